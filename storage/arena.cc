#include "storage/arena.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/base/check.h"
#include "protocol/base/units.h"

namespace reprise::storage {
namespace {

constexpr uint64_t kHugePageBytes = 2_MiB;
constexpr uint64_t kTouchStepBytes = 64_MiB;
// Left to the rest of the machine when the arena is touched.
constexpr uint64_t kMemoryReserveBytes = 64_MiB;

// ---- What the machine has ---------------------------------------------------------------------

// The kernel's "MemAvailable"; UINT64_MAX when it does not say.
uint64_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::string unit;
  uint64_t kibibytes = 0;
  while (file >> name >> kibibytes) {
    std::getline(file, unit);
    if (name == "MemAvailable:") return kibibytes << 10;
  }
  return UINT64_MAX;
}

// The chosen word of "always within_size [advise] never": says whether MADV_HUGEPAGE has an effect
// on a memfd.
bool SharedHugePagesAllowed() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string line;
  std::getline(file, line);
  const size_t begin = line.find('[');
  const size_t end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return false;
  const std::string chosen = line.substr(begin + 1, end - begin - 1);
  return chosen != "never" && chosen != "deny";
}

// ---- Memory -----------------------------------------------------------------------------------

// A sized memfd with its mapping, or what it came to: closes and unmaps unless released.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { Reset(); }

  // `bytes` is a multiple of `alignment`, a power of two that the address gets.
  absl::Status Open(const char* name, unsigned memfd_flags, uint64_t bytes, uint64_t alignment);
  absl::Status Seal(int seals) const {
    return fcntl(fd_, F_ADD_SEALS, seals) == 0 ? absl::OkStatus()
                                               : ErrnoStatus(errno, "sealing the memory file");
  }
  void Reset();

  Bytes memory() const { return memory_; }
  int fd() const { return fd_; }
  // The caller owns both from now on.
  void Release() {
    fd_ = -1;
    memory_ = {};
  }

 private:
  int fd_ = -1;
  Bytes memory_;
};

absl::Status Mapping::Open(const char* name, unsigned memfd_flags, uint64_t bytes,
                           uint64_t alignment) {
  const std::string what = "a memory file of " + FormatBytes(bytes);
  fd_ = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | memfd_flags);
  if (fd_ < 0) return ErrnoStatus(errno, "creating " + what);
  if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) return ErrnoStatus(errno, "sizing " + what);
  // Addresses first, so that the memory can go where it is aligned.
  const uint64_t reserved = bytes + alignment;
  void* reservation =
      mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reservation == MAP_FAILED) return ErrnoStatus(errno, "reserving addresses for " + what);
  auto* begin = static_cast<std::byte*>(reservation);
  const uint64_t skip = -reinterpret_cast<uintptr_t>(begin) & (alignment - 1);
  void* mapped = mmap(begin + skip, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0);
  const int error = errno;
  if (skip > 0) munmap(begin, skip);
  munmap(begin + skip + bytes, reserved - skip - bytes);
  // What fails may have unmapped the reservation before: what lies there now may be another
  // thread's, and the addresses stay as they are.
  if (mapped == MAP_FAILED) return ErrnoStatus(error, "mapping " + what);
  memory_ = {static_cast<std::byte*>(mapped), bytes};
  // Core dumps are for state, not for gigabytes of other people's contexts.
  (void)madvise(mapped, bytes, MADV_DONTDUMP);
  return absl::OkStatus();
}

void Mapping::Reset() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
  if (fd_ >= 0) close(fd_);
  Release();
}

// Writes to every page of fresh, zeroed memory, so that no later write faults.
absl::Status Touch(Bytes memory, uint64_t page_bytes) {
  for (uint64_t at = 0; at < memory.size(); at += kTouchStepBytes) {
    const Bytes step = memory.subspan(at, std::min(kTouchStepBytes, memory.size() - at));
    // Reports want of memory as an error, where the write below would be a signal.
    if (madvise(step.data(), step.size(), MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
      const int error = errno;
      return ErrnoStatus(error, "got only " + FormatBytes(at) + " of " +
                                    FormatBytes(memory.size()) +
                                    " for the arena; make the dram tier smaller");
    }
    // Populating fills the file, but under some hypervisors not yet the processor's page tables.
    for (uint64_t page = 0; page < step.size(); page += page_bytes) {
      *reinterpret_cast<volatile std::byte*>(step.data() + page) = std::byte{0};
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(uint64_t bytes) {
  const uint64_t available = AvailableBytes();
  if (available == UINT64_MAX || bytes + kMemoryReserveBytes <= available) return absl::OkStatus();
  return ResourceExhausted("the arena needs " + FormatBytes(bytes) + " and the machine has " +
                           FormatBytes(available) +
                           " available; make the dram tier or the window pool smaller");
}

// Opens the file anew for reading, and makes sure that the new descriptor cannot be used to write.
absl::StatusOr<int> OpenReadOnly(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const int read_only = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (read_only < 0) {
    return ErrnoStatus(errno, "opening the arena for reading through /proc (is it mounted?)");
  }
  void* mapped = mmap(nullptr, kHugePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, read_only, 0);
  if (mapped == MAP_FAILED) return read_only;
  munmap(mapped, kHugePageBytes);
  close(read_only);
  return Internal(
      "the kernel lets a read-only descriptor be mapped for writing; refusing to share");
}

absl::Status CheckOptions(const Arena::Options& options) {
  if (options.slot_bytes == 0 || options.slot_bytes % kPageBytes != 0) {
    return InvalidArgument("arena slots of " + std::to_string(options.slot_bytes) +
                           " bytes: the size must be a positive multiple of 4096");
  }
  if (options.slot_count == 0) {
    return InvalidArgument("an arena of no slots: give the dram tier at least one record");
  }
  return absl::OkStatus();
}

}  // namespace

// ---- Arena ------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Arena>> Arena::Create(const Options& options) {
  RP_TRY(CheckOptions(options));
  std::unique_ptr<Arena> arena(new Arena);
  arena->options_ = options;
  const uint64_t used =
      arena->generations_offset() + uint64_t{options.slot_count} * sizeof(std::atomic<uint32_t>);
  const uint64_t huge_bytes = AlignUp(used, kHugePageBytes);

  // Mapping hugetlb memory reserves it: once that worked, the pages are ours.
  Mapping mapping;
  bool ready = false;
  if (options.huge_pages) {
    ready =
        mapping.Open("reprise-dram", MFD_HUGETLB | MFD_HUGE_2MB, huge_bytes, kHugePageBytes).ok() &&
        (!options.touch || Touch(mapping.memory(), kHugePageBytes).ok());
    if (ready) arena->pages_ = Pages::kHugetlb;
  }
  if (!ready) {
    mapping.Reset();
    const bool transparent = options.huge_pages && SharedHugePagesAllowed();
    const uint64_t bytes = transparent ? huge_bytes : AlignUp(used, kPageBytes);
    if (options.touch) RP_TRY(CheckMemory(bytes));
    // The address is aligned all the same: device drivers and RDMA cards like it.
    RP_TRY(mapping.Open("reprise-dram", 0, bytes, kHugePageBytes));
    if (transparent && madvise(mapping.memory().data(), bytes, MADV_HUGEPAGE) == 0) {
      arena->pages_ = Pages::kTransparentHuge;
    }
    if (options.touch) RP_TRY(Touch(mapping.memory(), kPageBytes));
  }

  // From here on nobody, not even the owner of the descriptor, can resize the file or write to it
  // but through this one mapping. The mode keeps other users from opening it anew at all.
  (void)fchmod(mapping.fd(), 0400);
  RP_TRY(mapping.Seal(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE));
  RP_ASSIGN(arena->read_only_fd_, OpenReadOnly(mapping.fd()));
  arena->fd_ = mapping.fd();
  arena->memory_ = mapping.memory();
  mapping.Release();
  return arena;
}

Arena::~Arena() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
  if (read_only_fd_ >= 0) close(read_only_fd_);
  if (fd_ >= 0) close(fd_);
}

const char* Arena::pages_name() const {
  switch (pages_) {
    case Pages::kHugetlb:
      return "hugetlb 2 MiB";
    case Pages::kTransparentHuge:
      return "transparent 2 MiB";
    case Pages::kSmall:
      return "4 KiB";
  }
  return "unknown";
}

// ---- StagingArea ------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<StagingArea>> StagingArea::Create(uint32_t slot_bytes,
                                                                 uint32_t slots) {
  RP_TRY(CheckOptions({.slot_bytes = slot_bytes, .slot_count = slots}));
  Mapping mapping;
  RP_TRY(mapping.Open("reprise-staging", 0, uint64_t{slot_bytes} * slots, kPageBytes));
  // A client that could truncate the file could kill the daemon with SIGBUS. Sealed against further
  // seals too: they are not the client's to set.
  RP_TRY(mapping.Seal(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  std::unique_ptr<StagingArea> area(new StagingArea);
  area->slot_bytes_ = slot_bytes;
  area->slots_ = slots;
  area->fd_ = mapping.fd();
  area->memory_ = mapping.memory();
  mapping.Release();
  return area;
}

StagingArea::~StagingArea() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
  if (fd_ >= 0) close(fd_);
}

}  // namespace reprise::storage
