#include "server/window_handover.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace reprise::server {
namespace {

constexpr uint64_t kMagic = 0x3153444e49575052;  // "RPWINDS1"
constexpr uint32_t kSnapshotBytesMax = 1u << 30;

struct FileHeader {
  uint64_t magic = kMagic;
  std::array<std::byte, 16> uuid{};
  int64_t written_at =
      0;  // CLOCK_MONOTONIC: the same for all processes until the machine restarts.
};
static_assert(sizeof(FileHeader) == 32);

struct Entry {
  BlockKey name_space;
  wire::WindowKey key;
  uint64_t session_id = 0;
  int64_t age_ns = 0;
  uint32_t bytes = 0;  // 0: the end.
  uint32_t crc = 0;
};
static_assert(sizeof(Entry) == 64);

bool WriteAll(int fd, ConstBytes bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

bool ReadAll(int fd, Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::read(fd, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return true;
}

}  // namespace

WindowHandover::WindowHandover(const std::array<std::byte, 16>& uuid, std::string folder)
    : uuid_(uuid), path_(std::move(folder) + "/reprise-" + ToHex(ConstBytes(uuid)) + ".windows") {}

absl::Status WindowHandover::Begin(Instant now) {
  const std::string unfinished = path_ + ".new";
  ::unlink(unfinished.c_str());
  fd_ = ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd_ < 0) return ErrnoStatus(errno, "making " + unfinished);
  const FileHeader header{.uuid = uuid_, .written_at = now};
  if (!WriteAll(fd_, AsBytes(header))) return ErrnoStatus(errno, "writing " + unfinished);
  return absl::OkStatus();
}

absl::Status WindowHandover::Append(Shard& shard, const NamespaceTable& namespaces, Instant now) {
  const auto known = namespaces.List();
  bool written = true;
  shard.windows().ForEach(now, [&](const storage::WindowPool::Stored& stored) {
    if (!written || stored.name_space >= known.size()) return;
    const Entry entry{.name_space = KeyOf(known[stored.name_space].name_space),
                      .key = stored.key,
                      .session_id = stored.session_id,
                      .age_ns = stored.age_ns,
                      .bytes = stored.bytes,
                      .crc = stored.crc};
    written = WriteAll(fd_, AsBytes(entry));
    uint64_t left = stored.bytes;
    for (const uint32_t slot : stored.slots) {
      const ConstBytes bytes = shard.SlotBytes(slot);
      const ConstBytes piece = bytes.first(std::min<uint64_t>(bytes.size(), left));
      left -= piece.size();
      written = written && WriteAll(fd_, piece);
    }
  });
  return written ? absl::OkStatus() : ErrnoStatus(errno, "writing windows to " + path_);
}

absl::Status WindowHandover::Finish() {
  const Entry end;
  const bool written = WriteAll(fd_, AsBytes(end));
  const int error = errno;
  ::close(fd_);
  fd_ = -1;
  if (!written) return ErrnoStatus(error, "writing windows to " + path_);
  if (::rename((path_ + ".new").c_str(), path_.c_str()) != 0) {
    return ErrnoStatus(errno, "naming " + path_);
  }
  return absl::OkStatus();
}

uint32_t WindowHandover::Take(const std::function<Shard&(const BlockKey& prefix)>& owner,
                              NamespaceTable* namespaces, Instant now) {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return 0;
  ::unlink(path_.c_str());
  uint32_t count = 0;
  FileHeader header;
  struct stat info {};
  const bool ours = ::fstat(fd, &info) == 0 && info.st_uid == ::geteuid() &&
                    ReadAll(fd, {reinterpret_cast<std::byte*>(&header), sizeof(header)}) &&
                    header.magic == kMagic && header.uuid == uuid_ && header.written_at <= now;
  std::vector<std::byte> snapshot;
  Entry entry;
  while (ours && ReadAll(fd, {reinterpret_cast<std::byte*>(&entry), sizeof(entry)}) &&
         entry.bytes != 0 && entry.bytes <= kSnapshotBytesMax) {
    snapshot.resize(entry.bytes);
    if (!ReadAll(fd, snapshot)) break;
    const Nanos age_ns = entry.age_ns + (now - header.written_at);
    const ConstBytes piece(snapshot);
    Shard& shard = owner(entry.key.prefix);
    if (age_ns >= shard.window_ttl_ns()) continue;
    const Outcome outcome =
        shard.windows().Put(namespaces->Recovered(entry.name_space), entry.key, entry.session_id,
                            {&piece, 1}, entry.bytes, entry.crc, now, age_ns);
    count += outcome == Outcome::kOk ? 1 : 0;
  }
  ::close(fd);
  return count;
}

}  // namespace reprise::server
