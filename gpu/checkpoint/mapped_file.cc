#include "gpu/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace reprise::engine {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // Does not wait where the path is a pipe, which is refused below.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return ErrnoStatus(errno, "cannot open " + path);
  struct stat facts {};
  void* memory = nullptr;
  absl::Status status;
  if (fstat(file, &facts) != 0) {
    status = ErrnoStatus(errno, "cannot look at " + path);
  } else if (!S_ISREG(facts.st_mode)) {
    status = InvalidArgument(path + " is not a regular file");
  } else if (facts.st_size > 0) {
    memory = mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    if (memory == MAP_FAILED) status = ErrnoStatus(errno, "cannot map " + path);
  }
  close(file);  // The mapping keeps the file.
  RP_TRY(status);
  return MappedFile({static_cast<const std::byte*>(memory), static_cast<size_t>(facts.st_size)});
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace reprise::engine
