#include "storage/data_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "protocol/base/bytes.h"
#include "protocol/base/units.h"
#include "storage/format_check.h"

namespace reprise::storage {
namespace {

constexpr int kCopies = 2;

// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Reads up to out.size() bytes; what the file does not have stays zero.
absl::Status ReadAt(int fd, Bytes out, uint64_t offset, const std::string& path) {
  while (!out.empty()) {
    const ssize_t got = pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "reading " + path);
    if (got == 0) return absl::OkStatus();
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

absl::Status WriteAt(int fd, ConstBytes bytes, uint64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t put = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(errno, "writing " + path);
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return absl::OkStatus();
}

// A version 4 UUID. The one door to true randomness: an identity must not repeat when a seed does.
absl::Status MakeUuid(Bytes uuid) {
  while (getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) {
    if (errno != EINTR) return ErrnoStatus(errno, "drawing a UUID with getrandom");
  }
  uuid[6] = (uuid[6] & std::byte{0x0f}) | std::byte{0x40};
  uuid[8] = (uuid[8] & std::byte{0x3f}) | std::byte{0x80};
  return absl::OkStatus();
}

std::string Hex64(uint64_t value) {
  char text[19];
  std::snprintf(text, sizeof(text), "0x%016llx", static_cast<unsigned long long>(value));
  return text;
}

absl::Status Mismatch(const std::string& path, const std::string& what, const std::string& found,
                      const std::string& asked) {
  return FailedPrecondition(path + " was formatted with " + what + " " + found +
                            ", and the configuration asks for " + asked +
                            "; change the configuration back, or start with an empty directory");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataDirectory>> DataDirectory::Open(const Options& options) {
  if (options.path.empty()) return InvalidArgument("the data directory's path is empty");
  if (options.shard_count == 0) return InvalidArgument("a data directory needs at least one shard");
  if (options.record_bytes == 0 || options.record_bytes % kPageBytes != 0 ||
      options.region_bytes % kPageBytes != 0 ||
      CutRegion(options.record_bytes, options.region_bytes).slots == 0) {
    return InvalidArgument("regions of " + FormatBytes(options.region_bytes) +
                           " do not hold records of " + FormatBytes(options.record_bytes) +
                           "; both are multiples of 4 KiB, and 64 MiB suits most models");
  }
  std::unique_ptr<DataDirectory> directory(new DataDirectory(options));
  RP_TRY(directory->MakeDirectory());
  RP_TRY(directory->Lock());
  RP_TRY(directory->LoadSuperblock());
  RP_TRY(directory->CheckSuperblock());
  return directory;
}

DataDirectory::~DataDirectory() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

std::array<std::byte, 16> DataDirectory::uuid() const {
  std::array<std::byte, 16> uuid{};
  std::memcpy(uuid.data(), superblock_.uuid, uuid.size());
  return uuid;
}

std::string DataDirectory::uuid_text() const { return UuidText(superblock_.uuid); }

std::string DataDirectory::shard_path(uint32_t shard) const {
  return options_.path + "/shard-" + std::to_string(shard) + ".data";
}

absl::Status DataDirectory::MakeDirectory() {
  if (mkdir(options_.path.c_str(), 0750) == 0) return absl::OkStatus();
  if (errno == ENOENT) {
    const auto parent = std::filesystem::path(options_.path).lexically_normal().parent_path();
    return NotFound("cannot create the data directory " + options_.path + ": its parent " +
                    (parent.empty() ? "." : parent.string()) +
                    " does not exist; create it, or mount the disk that holds it");
  }
  if (errno != EEXIST) return ErrnoStatus(errno, "creating the data directory " + options_.path);
  struct stat there {};
  if (stat(options_.path.c_str(), &there) != 0) {
    return ErrnoStatus(errno, "looking at " + options_.path);
  }
  if (S_ISDIR(there.st_mode)) return absl::OkStatus();
  return FailedPrecondition(options_.path + " is not a directory; name another data directory");
}

absl::Status DataDirectory::Lock() {
  const std::string path = options_.path + "/LOCK";
  lock_fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
  if (lock_fd_ < 0) return ErrnoStatus(errno, "opening " + path);
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, "locking " + path);
    char text[32] = {};
    const ssize_t got = pread(lock_fd_, text, sizeof(text) - 1, 0);
    std::string owner(text, got > 0 ? static_cast<size_t>(got) : 0);
    while (!owner.empty() && owner.back() == '\n') owner.pop_back();
    return FailedPrecondition("the data directory " + options_.path + " is in use by process " +
                              (owner.empty() ? "?" : owner) +
                              "; stop that daemon, or name another data directory");
  }
  // For the people who read the error above. The kernel's lock decides, never this number.
  const std::string owner = std::to_string(getpid()) + "\n";
  if (ftruncate(lock_fd_, 0) != 0) return ErrnoStatus(errno, "writing " + path);
  return WriteAt(lock_fd_, AsBytes(owner), 0, path);
}

bool DataDirectory::HasShardFile() const {
  DIR* directory = opendir(options_.path.c_str());
  if (directory == nullptr) return true;  // Unknown: never format over it.
  bool found = false;
  while (const dirent* entry = readdir(directory)) {
    const std::string_view name = entry->d_name;
    found |= name.starts_with("shard-") && name.ends_with(".data");
  }
  closedir(directory);
  return found;
}

absl::Status DataDirectory::LoadSuperblock() {
  const std::string path = superblock_path();
  const Descriptor fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0 && errno != ENOENT) return ErrnoStatus(errno, "opening " + path);
  Superblock copies[kCopies];
  FormatCheck checks[kCopies] = {FormatCheck::kBlank, FormatCheck::kBlank};
  int newest = -1;
  for (int i = 0; fd.get() >= 0 && i < kCopies; ++i) {
    std::array<std::byte, sizeof(Superblock)> bytes{};
    RP_TRY(ReadAt(fd.get(), bytes, uint64_t{kPageBytes} * static_cast<uint64_t>(i), path));
    copies[i] = LoadLe<Superblock>(bytes.data());
    checks[i] = Check(copies[i]);
    if (checks[i] == FormatCheck::kWrongVersion) {
      return FailedPrecondition(path + " has format version " + std::to_string(copies[i].version) +
                                ", and this program knows version " +
                                std::to_string(kStoreVersion) +
                                "; use the release that wrote it, or an empty directory");
    }
    if (checks[i] != FormatCheck::kOk) continue;
    if (newest < 0 || copies[i].sequence > copies[newest].sequence) newest = i;
  }
  if (newest >= 0) {
    superblock_ = copies[newest];
    if (checks[1 - newest] == FormatCheck::kOk &&
        copies[1 - newest].sequence == superblock_.sequence) {
      return absl::OkStatus();
    }
    // Also finishes an update that was cut short between its two copies.
    repaired_ = checks[1 - newest] != FormatCheck::kOk;
    return WriteSuperblock(fd.get());
  }
  if (!HasShardFile()) return Format();
  std::string found = "both copies are damaged or missing";
  if (checks[0] == FormatCheck::kWrongMagic) {
    found = "its magic is " + Hex64(copies[0].magic) + " instead of " + Hex64(kSuperblockMagic);
  }
  return DataLoss(path + " is not a valid superblock (" + found + "), and " + options_.path +
                  " holds shard files; they are left alone: restore the superblock, or remove "
                  "the shard files to start empty");
}

absl::Status DataDirectory::CheckSuperblock() const {
  const Superblock& found = superblock_;
  const Options& asked = options_;
  if (found.record_bytes != asked.record_bytes) {
    return Mismatch(asked.path, "records of", FormatBytes(found.record_bytes),
                    FormatBytes(asked.record_bytes));
  }
  if (found.region_bytes != asked.region_bytes) {
    return Mismatch(asked.path, "regions of", FormatBytes(found.region_bytes),
                    FormatBytes(asked.region_bytes));
  }
  if (found.shard_count != asked.shard_count) {
    return Mismatch(asked.path, "a shard count of", std::to_string(found.shard_count),
                    std::to_string(asked.shard_count));
  }
  return absl::OkStatus();
}

absl::Status DataDirectory::Format() {
  superblock_ = {.sequence = 1,
                 .shard_count = options_.shard_count,
                 .record_bytes = options_.record_bytes,
                 .region_bytes = options_.region_bytes,
                 .created_ms = options_.created_ms};
  RP_TRY(MakeUuid(superblock_.uuid));
  superblock_.crc = CrcOf(superblock_);
  const std::string path = superblock_path();
  const Descriptor fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640));
  if (fd.get() < 0) return ErrnoStatus(errno, "creating " + path);
  RP_TRY(WriteSuperblock(fd.get()));
  const Descriptor directory(open(options_.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0 || fsync(directory.get()) != 0) {
    return ErrnoStatus(errno, "syncing " + options_.path);
  }
  formatted_ = true;
  return absl::OkStatus();
}

// One copy, synced, before the other: a power cut leaves at least one whole.
absl::Status DataDirectory::WriteSuperblock(int fd) {
  std::array<std::byte, kPageBytes> page{};
  StoreLe(page.data(), superblock_);
  for (uint64_t copy = 0; copy < kCopies; ++copy) {
    RP_TRY(WriteAt(fd, page, copy * kPageBytes, superblock_path()));
    if (fsync(fd) != 0) return ErrnoStatus(errno, "syncing " + superblock_path());
  }
  return absl::OkStatus();
}

}  // namespace reprise::storage
