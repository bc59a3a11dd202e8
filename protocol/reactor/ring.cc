#include "protocol/reactor/ring.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "protocol/base/bytes.h"
#include "protocol/base/check.h"

namespace reprise {
namespace {

constexpr uint64_t kSliceBytesMax = 1_GiB;

}  // namespace

Ring::~Ring() {
  if (open_) io_uring_queue_exit(&ring_);
}

absl::Status Ring::Open(uint32_t entries) {
  RP_CHECK(!open_);
  io_uring_params params{};
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE |
                 IORING_SETUP_CLAMP;
  params.cq_entries = entries * 4;
  int error = io_uring_queue_init_params(entries, &ring_, &params);
  if (error == -EINVAL) {  // A kernel before 6.1 knows neither flag.
    params = {};
    params.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    params.cq_entries = entries * 4;
    error = io_uring_queue_init_params(entries, &ring_, &params);
  }
  if (error != 0) return ErrnoStatus(-error, "io_uring_queue_init (is kernel.io_uring_disabled set?)");
  open_ = true;
  return absl::OkStatus();
}

absl::Status Ring::RegisterMemory(std::span<std::byte> memory) {
  std::array<iovec, kSlicesMax> vectors{};
  uint32_t count = 0;
  for (uint64_t at = 0; at < memory.size(); at += kSliceBytesMax) {
    if (count == kSlicesMax) return InvalidArgument("more than 64 GiB of memory in one ring");
    const uint64_t bytes = std::min<uint64_t>(kSliceBytesMax, memory.size() - at);
    vectors[count] = {memory.data() + at, bytes};
    slices_[count] = {memory.data() + at, memory.data() + at + bytes};
    ++count;
  }
  const int error = io_uring_register_buffers(&ring_, vectors.data(), count);
  if (error != 0) {
    return ErrnoStatus(-error, "registering " + std::to_string(memory.size()) +
                                   " bytes with io_uring (RLIMIT_MEMLOCK too low?)");
  }
  registered_ = std::span<Slice>(slices_, count);
  return absl::OkStatus();
}

absl::Status Ring::RegisterFiles(std::span<const int> fds) {
  const int error = io_uring_register_files(&ring_, fds.data(), static_cast<unsigned>(fds.size()));
  return error == 0 ? absl::OkStatus() : ErrnoStatus(-error, "registering files with io_uring");
}

int Ring::SliceOf(std::span<const std::byte> data) const {
  if (registered_.empty() || data.data() < registered_.front().begin) return -1;
  const auto index = static_cast<size_t>(data.data() - registered_.front().begin) / kSliceBytesMax;
  if (index >= registered_.size()) return -1;
  return data.data() + data.size() <= registered_[index].end ? static_cast<int>(index) : -1;
}

void Ring::PrepareReadFile(Completion* op, int file_index, std::span<std::byte> data,
                           uint64_t offset) {
  io_uring_sqe* sqe = NextSqe(op);
  const auto bytes = static_cast<unsigned>(data.size());
  if (const int slice = SliceOf(data); slice >= 0) {
    io_uring_prep_read_fixed(sqe, file_index, data.data(), bytes, offset, slice);
  } else {
    io_uring_prep_read(sqe, file_index, data.data(), bytes, offset);
  }
  sqe->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PrepareWriteFile(Completion* op, int file_index, std::span<const std::byte> data,
                            uint64_t offset) {
  io_uring_sqe* sqe = NextSqe(op);
  const auto bytes = static_cast<unsigned>(data.size());
  if (const int slice = SliceOf(data); slice >= 0) {
    io_uring_prep_write_fixed(sqe, file_index, data.data(), bytes, offset, slice);
  } else {
    io_uring_prep_write(sqe, file_index, data.data(), bytes, offset);
  }
  sqe->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PrepareSyncFile(Completion* op, int file_index) {
  io_uring_sqe* sqe = NextSqe(op);
  io_uring_prep_fsync(sqe, file_index, IORING_FSYNC_DATASYNC);
  sqe->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PrepareAllocateFile(Completion* op, int file_index, int mode, uint64_t offset,
                               uint64_t bytes) {
  io_uring_sqe* sqe = NextSqe(op);
  io_uring_prep_fallocate(sqe, file_index, mode, static_cast<off_t>(offset),
                          static_cast<off_t>(bytes));
  sqe->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PrepareAccept(Completion* op, int fd) {
  io_uring_sqe* sqe = NextSqe(op);
  io_uring_prep_accept(sqe, fd, nullptr, nullptr, SOCK_CLOEXEC);
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PrepareReceive(Completion* op, int fd, std::span<std::byte> data) {
  io_uring_sqe* sqe = NextSqe(op);
  io_uring_prep_recv(sqe, fd, data.data(), data.size(), 0);
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PrepareSend(Completion* op, int fd, const msghdr* message) {
  io_uring_sqe* sqe = NextSqe(op);
  io_uring_prep_sendmsg(sqe, fd, message, MSG_NOSIGNAL);
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PrepareRead(Completion* op, int fd, std::span<std::byte> data) {
  io_uring_sqe* sqe = NextSqe(op);
  io_uring_prep_read(sqe, fd, data.data(), static_cast<unsigned>(data.size()), 0);
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PrepareCancel(Completion* op, Completion* target) {
  io_uring_sqe* sqe = NextSqe(op);
  io_uring_prep_cancel(sqe, target, 0);
  io_uring_sqe_set_data(sqe, op);
}

absl::StatusOr<uint32_t> Ring::RunOnce(Nanos wait_ns) {
  int error = 0;
  if (wait_ns > 0) {
    io_uring_cqe* cqe = nullptr;
    __kernel_timespec timeout{.tv_sec = wait_ns / kSecond, .tv_nsec = wait_ns % kSecond};
    error = io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &timeout, nullptr);
  } else {
    // Under DEFER_TASKRUN the kernel delivers completions only when asked for events: a loop that
    // spins on io_uring_submit() would wait for ever.
    error = io_uring_submit_and_get_events(&ring_);
  }
  if (error < 0 && error != -EINTR && error != -ETIME && error != -EBUSY && error != -EAGAIN) {
    return ErrnoStatus(-error, "io_uring_enter");
  }
  const uint32_t count = Reap();
  FifoList<Completion> batch;
  std::swap(batch, ready_);
  while (Completion* op = batch.Pop()) op->done(op, op->result);
  return count;
}

io_uring_sqe* Ring::NextSqe(Completion* op) {
  RP_CHECK(op->done != nullptr);
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  while (sqe == nullptr) {  // Full: hand the batch to the kernel, and keep what it completes.
    const int error = io_uring_submit_and_get_events(&ring_);
    RP_CHECK(error >= 0 || error == -EINTR || error == -EBUSY || error == -EAGAIN);
    Reap();
    sqe = io_uring_get_sqe(&ring_);
  }
  ++in_kernel_;
  return sqe;
}

uint32_t Ring::Reap() {
  io_uring_cqe* cqe = nullptr;
  unsigned head = 0;
  unsigned count = 0;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    auto* op = static_cast<Completion*>(io_uring_cqe_get_data(cqe));
    op->result = cqe->res;
    op->cqe_flags = cqe->flags;
    ready_.Push(op);
    ++count;
  }
  io_uring_cq_advance(&ring_, count);
  RP_CHECK(in_kernel_ >= count);
  in_kernel_ -= count;
  return count;
}

}  // namespace reprise
