#include "storage/file_device.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "protocol/base/bytes.h"
#include "protocol/base/check.h"
#include "protocol/base/units.h"

namespace reprise::storage {
namespace {

constexpr uint64_t kStatBlockBytes = 512;  // What st_blocks counts.
constexpr uint64_t kZeroBytes = 1_MiB;
// Never written to. Not const, so that it takes no room in the program's file.
alignas(kPageBytes) constinit std::byte zeros[kZeroBytes] = {};

constexpr uint64_t WholePages(int32_t bytes) {
  return static_cast<uint64_t>(bytes) & ~uint64_t{kPageBytes - 1};
}

// fallocate(2), through signals.
int Reserve(int fd, uint64_t bytes) {
  while (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

absl::Status DiskFull(const FileDevice::Options& options, uint64_t held_bytes,
                      const std::string& free) {
  return ResourceExhausted("cannot reserve " + FormatBytes(options.size_bytes) + " for " +
                           options.path + ": the file system has " + free +
                           " free and the file holds " + FormatBytes(held_bytes) +
                           "; free some space, or configure a smaller SSD size");
}

// Asked before reserving, which would fill the disk up for everybody before it failed.
absl::Status CheckSpace(int fd, const FileDevice::Options& options, uint64_t held_bytes) {
  struct statvfs disk {};
  if (fstatvfs(fd, &disk) != 0 || disk.f_blocks == 0) return absl::OkStatus();
  const uint64_t free_bytes = uint64_t{disk.f_bavail} * disk.f_frsize;
  if (options.size_bytes <= held_bytes + free_bytes) return absl::OkStatus();
  return DiskFull(options, held_bytes, FormatBytes(free_bytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileDevice>> FileDevice::Open(const Options& options) {
  if (options.size_bytes == 0 || options.size_bytes % kPageBytes != 0) {
    return InvalidArgument(options.path + ": a size of " + std::to_string(options.size_bytes) +
                           " bytes is not a positive multiple of 4096");
  }
  std::unique_ptr<FileDevice> device(new FileDevice);
  device->size_bytes_ = options.size_bytes;
  RP_TRY(device->OpenFile(options));
  RP_TRY(device->SetSize(options));
  return device;
}

FileDevice::~FileDevice() {
  RP_CHECK(in_flight_ == 0);
  if (fd_ >= 0) close(fd_);
}

absl::Status FileDevice::OpenFile(const Options& options) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC;
  if (options.direct) {
    fd_ = open(options.path.c_str(), kFlags | O_DIRECT, 0640);
    direct_ = fd_ >= 0;
    if (fd_ < 0 && errno != EINVAL && errno != EOPNOTSUPP) {
      return ErrnoStatus(errno, "opening " + options.path);
    }
    if (fd_ < 0) {
      remark_ = options.path + ": the file system refuses O_DIRECT (" + std::strerror(errno) +
                "), so transfers go through the page cache";
    }
  }
  if (fd_ < 0) fd_ = open(options.path.c_str(), kFlags, 0640);
  if (fd_ < 0) return ErrnoStatus(errno, "opening " + options.path);
  return absl::OkStatus();
}

absl::Status FileDevice::SetSize(const Options& options) {
  struct stat file {};
  if (fstat(fd_, &file) != 0) return ErrnoStatus(errno, "looking at " + options.path);
  if (!S_ISREG(file.st_mode)) {
    return InvalidArgument(options.path + " is not a regular file; move it away");
  }
  const auto old_bytes = static_cast<uint64_t>(file.st_size);
  if (old_bytes > size_bytes_ && ftruncate(fd_, static_cast<off_t>(size_bytes_)) != 0) {
    return ErrnoStatus(errno, "cutting " + options.path + " to " + FormatBytes(size_bytes_));
  }
  const uint64_t held_bytes =
      std::min(size_bytes_, static_cast<uint64_t>(file.st_blocks) * kStatBlockBytes);
  RP_TRY(CheckSpace(fd_, options, held_bytes));
  int error = Reserve(fd_, size_bytes_);
  if (error == EOPNOTSUPP) {
    remark_ += (remark_.empty() ? options.path + ": " : "; ") +
               std::string("the file system cannot reserve space, so a full disk may fail writes");
    error = ftruncate(fd_, static_cast<off_t>(size_bytes_)) == 0 ? 0 : errno;
  }
  if (error == 0) return absl::OkStatus();
  const absl::Status status =
      error == ENOSPC || error == EDQUOT || error == EFBIG
          ? DiskFull(options, held_bytes, "not enough")
          : ErrnoStatus(error, "reserving " + FormatBytes(size_bytes_) + " for " + options.path);
  // Give back what was reserved before the disk was full. The first error is the one to report.
  if (old_bytes < size_bytes_ && ftruncate(fd_, static_cast<off_t>(old_bytes)) != 0) return status;
  return status;
}

void FileDevice::Attach(Ring* ring, int file_index) {
  RP_CHECK(ring_ == nullptr && ring != nullptr && file_index >= 0);
  ring_ = ring;
  file_index_ = file_index;
}

FileDevice::Transfer* FileDevice::TakeTransfer() {
  if (free_transfers_.empty()) {
    transfers_.push_back(std::make_unique<Transfer>());
    transfers_.back()->device = this;
    transfers_.back()->done = [](Completion* self, int32_t result) {
      auto* transfer = static_cast<Transfer*>(self);
      transfer->device->OnDone(transfer, result);
    };
    return transfers_.back().get();
  }
  return free_transfers_.Pop();
}

void FileDevice::Submit(DeviceOp* op) {
  RP_CHECK(ring_ != nullptr && op->done != nullptr && op->offset % kPageBytes == 0);
  if (op->kind == DeviceOp::Kind::kErase) {
    RP_CHECK(op->erase_bytes > 0 && op->erase_bytes % kPageBytes == 0);
    RP_CHECK(op->erase_bytes <= size_bytes_ && op->offset <= size_bytes_ - op->erase_bytes);
  } else if (op->kind != DeviceOp::Kind::kSync) {
    RP_CHECK(!op->bytes.empty() && op->bytes.size() % kPageBytes == 0);
    RP_CHECK(op->bytes.size() <= size_bytes_ && op->offset <= size_bytes_ - op->bytes.size());
  }
  Transfer* transfer = TakeTransfer();
  transfer->op = op;
  transfer->moved_bytes = 0;
  ++in_flight_;
  Continue(transfer);
}

void FileDevice::Continue(Transfer* transfer) {
  const DeviceOp& op = *transfer->op;
  const uint64_t offset = op.offset + transfer->moved_bytes;
  switch (op.kind) {
    case DeviceOp::Kind::kRead:
      return ring_->PrepareReadFile(transfer, file_index_, op.bytes.subspan(transfer->moved_bytes),
                                    offset);
    case DeviceOp::Kind::kWrite:
      return ring_->PrepareWriteFile(transfer, file_index_, op.bytes.subspan(transfer->moved_bytes),
                                     offset);
    case DeviceOp::Kind::kSync:
      return ring_->PrepareSyncFile(transfer, file_index_);
    case DeviceOp::Kind::kErase:
      return ContinueErase(transfer);
  }
}

void FileDevice::ContinueErase(Transfer* transfer) {
  const DeviceOp& op = *transfer->op;
  const uint64_t left_bytes = op.erase_bytes - transfer->moved_bytes;
  transfer->erased_by = erase_by_;
  if (erase_by_ == EraseBy::kWriteZeros) {
    return ring_->PrepareWriteFile(transfer, file_index_,
                                   ConstBytes(zeros).first(std::min(kZeroBytes, left_bytes)),
                                   op.offset + transfer->moved_bytes);
  }
  const int how = erase_by_ == EraseBy::kZeroRange ? FALLOC_FL_ZERO_RANGE : FALLOC_FL_PUNCH_HOLE;
  ring_->PrepareAllocateFile(transfer, file_index_, how | FALLOC_FL_KEEP_SIZE,
                             op.offset + transfer->moved_bytes, left_bytes);
}

void FileDevice::OnDone(Transfer* transfer, int32_t result) {
  if (result == -EINTR || result == -EAGAIN) return Continue(transfer);
  if (!Ended(transfer, &result)) return;
  DeviceOp* op = transfer->op;
  transfer->op = nullptr;
  free_transfers_.Push(transfer);
  --in_flight_;
  op->result = result;
  op->done(op, result);
}

bool FileDevice::Ended(Transfer* transfer, int32_t* result) {
  const DeviceOp& op = *transfer->op;
  if (op.kind == DeviceOp::Kind::kErase) return EraseEnded(transfer, result);
  if (*result < 0 || op.kind == DeviceOp::Kind::kSync) return true;
  const uint64_t whole_bytes = op.bytes.size() - transfer->moved_bytes;
  if (static_cast<uint64_t>(*result) == whole_bytes) {
    *result = static_cast<int32_t>(op.bytes.size());
    return true;
  }
  // Short. O_DIRECT goes on at page borders only; the bytes after the last one move twice. Without
  // progress the file has become shorter than it was at opening.
  if (WholePages(*result) == 0) {
    *result = -EIO;
    return true;
  }
  transfer->moved_bytes += WholePages(*result);
  Continue(transfer);
  return false;
}

bool FileDevice::EraseEnded(Transfer* transfer, int32_t* result) {
  if (transfer->erased_by == EraseBy::kWriteZeros) {
    if (*result < 0) return true;
    transfer->moved_bytes += WholePages(*result);
    if (WholePages(*result) > 0 && transfer->moved_bytes < transfer->op->erase_bytes) {
      Continue(transfer);
      return false;
    }
    *result = transfer->moved_bytes == transfer->op->erase_bytes ? 0 : -EIO;
    return true;
  }
  if (*result != -EOPNOTSUPP && *result != -EINVAL && *result != -ENOSYS) return true;
  if (transfer->erased_by == erase_by_) {  // Else another erase has found out already.
    erase_by_ = erase_by_ == EraseBy::kZeroRange ? EraseBy::kPunchHole : EraseBy::kWriteZeros;
  }
  Continue(transfer);
  return false;
}

}  // namespace reprise::storage
