#include "storage/economics/paged_array.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace reprise::economics {
namespace {

constexpr uint64_t kGrowMin = 1 << 20;

absl::Status Refused(int error) {
  return ErrnoStatus(error,
                     "cannot write to the folder for temporary files (TMPDIR names another one)");
}

}  // namespace

PagedBytes::PagedBytes(PagedBytes&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      memory_(std::exchange(other.memory_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

PagedBytes& PagedBytes::operator=(PagedBytes&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(memory_, other.memory_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

PagedBytes::~PagedBytes() {
  if (memory_ != nullptr) munmap(memory_, capacity_);
  if (file_ >= 0) close(file_);
}

absl::Status PagedBytes::Append(ConstBytes bytes) {
  if (bytes.empty()) return absl::OkStatus();
  if (size_ + bytes.size() > capacity_) RP_TRY(Grow(size_ + bytes.size()));
  std::memcpy(memory_ + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
  return absl::OkStatus();
}

absl::Status PagedBytes::Grow(uint64_t needed) {
  const uint64_t capacity =
      AlignUp(std::max({needed, capacity_ + capacity_ / 2, kGrowMin}), kGrowMin);
  if (file_ < 0) {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    if (error) return Refused(error.value());
    file_ = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file_ < 0) return Refused(errno);
  }
  // Takes the room now: a page that finds none later would be a SIGBUS.
  const int error = posix_fallocate(file_, 0, static_cast<off_t>(capacity));
  if (error != 0) return Refused(error);
  void* memory = memory_ == nullptr
                     ? mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0)
                     : mremap(memory_, capacity_, capacity, MREMAP_MAYMOVE);
  if (memory == MAP_FAILED) return Refused(errno);
  memory_ = static_cast<std::byte*>(memory);
  capacity_ = capacity;
  return absl::OkStatus();
}

}  // namespace reprise::economics
