#include "protocol/reactor/ring.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "protocol/base/bytes.h"
#include "protocol/base/check.h"

namespace reprise {
namespace {

constexpr uint64_t kSlicesMax = 1 << 14;  // The kernel's limit on registered buffers.
constexpr uint64_t kTransferBytesMax = 1_GiB;
constexpr uint32_t kDrainTurnsMax = 50;
constexpr __kernel_timespec kDrainTurn = {.tv_sec = 0, .tv_nsec = 100'000'000};

// What io_uring_enter says when the caller should just come again.
bool IsTransient(int error) {
  return error == -EINTR || error == -ETIME || error == -EBUSY || error == -EAGAIN;
}

unsigned TransferBytes(std::span<const std::byte> data) {
  RP_CHECK(data.size() <= kTransferBytesMax);
  return static_cast<unsigned>(data.size());
}

absl::Status RingError(int error, std::string_view what) {
  std::string text(what);
  if (error == -EEXIST) text += " (called by a thread that did not open this ring)";
  return ErrnoStatus(-error, text);
}

}  // namespace

Ring::~Ring() {
  if (!open_) return;
  if (in_kernel_ > 0) CancelAll();
  io_uring_queue_exit(&ring_);
}

absl::Status Ring::Open(uint32_t entries) {
  RP_CHECK(!open_);
  io_uring_params params{};
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE |
                 IORING_SETUP_CLAMP | IORING_SETUP_SUBMIT_ALL;
  params.cq_entries = entries * 4;
  int error = io_uring_queue_init_params(entries, &ring_, &params);
  if (error == -EINVAL) {  // A kernel before 6.1 knows neither flag.
    params = {};
    params.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    params.cq_entries = entries * 4;
    error = io_uring_queue_init_params(entries, &ring_, &params);
  }
  if (error != 0) {
    return ErrnoStatus(-error,
                       "io_uring_queue_init (needs Linux 5.19 or newer, the sysctl "
                       "kernel.io_uring_disabled at 0, and a seccomp profile that allows it)");
  }
  open_ = true;
  return absl::OkStatus();
}

absl::Status Ring::RegisterMemory(std::span<std::byte> memory, uint64_t slice_bytes_max) {
  RP_CHECK(registered_.empty() && !memory.empty());
  if (DivideUp(memory.size(), slice_bytes_max) > kSlicesMax) {
    return InvalidArgument("more than 16 TiB of memory in one ring");
  }
  std::vector<iovec> vectors;
  std::vector<Slice> slices;
  for (uint64_t at = 0; at < memory.size(); at += slice_bytes_max) {
    const auto slice = memory.subspan(at, std::min(slice_bytes_max, memory.size() - at));
    vectors.push_back({slice.data(), slice.size()});
    slices.push_back({slice.data(), slice.data() + slice.size()});
  }
  const int error =
      io_uring_register_buffers(&ring_, vectors.data(), static_cast<unsigned>(vectors.size()));
  if (error != 0) {
    return RingError(error, "registering " + std::to_string(memory.size()) +
                                " bytes with io_uring (raise RLIMIT_MEMLOCK if it is lower)");
  }
  registered_ = std::move(slices);
  slice_bytes_ = slice_bytes_max;
  return absl::OkStatus();
}

absl::Status Ring::RegisterFiles(std::span<const int> fds) {
  const int error = io_uring_register_files(&ring_, fds.data(), static_cast<unsigned>(fds.size()));
  if (error == 0) return absl::OkStatus();
  return RingError(error, "registering " + std::to_string(fds.size()) + " files with io_uring");
}

int Ring::SliceOf(std::span<const std::byte> data) const {
  if (registered_.empty() || data.data() < registered_.front().begin) return -1;
  const auto index = static_cast<size_t>(data.data() - registered_.front().begin) / slice_bytes_;
  if (index >= registered_.size()) return -1;
  return data.data() + data.size() <= registered_[index].end ? static_cast<int>(index) : -1;
}

void Ring::PrepareReadFile(Completion* op, int file_index, std::span<std::byte> data,
                           uint64_t offset) {
  io_uring_sqe* sqe = NextSqe(op);
  const unsigned bytes = TransferBytes(data);
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
  const unsigned bytes = TransferBytes(data);
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
  io_uring_prep_recv(sqe, fd, data.data(), TransferBytes(data), 0);
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PrepareSend(Completion* op, int fd, const msghdr* message) {
  io_uring_sqe* sqe = NextSqe(op);
  io_uring_prep_sendmsg(sqe, fd, message, MSG_NOSIGNAL);
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PrepareRead(Completion* op, int fd, std::span<std::byte> data) {
  io_uring_sqe* sqe = NextSqe(op);
  io_uring_prep_read(sqe, fd, data.data(), TransferBytes(data), 0);
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PreparePoll(Completion* op, int fd, uint32_t events) {
  io_uring_sqe* sqe = NextSqe(op);
  io_uring_prep_poll_add(sqe, fd, events);
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PrepareCancel(Completion* op, const Completion* target) {
  io_uring_sqe* sqe = NextSqe(op);
  io_uring_prep_cancel(sqe, const_cast<Completion*>(target), 0);
  io_uring_sqe_set_data(sqe, op);
}

void Ring::PrepareTimeout(Completion* op, const __kernel_timespec* wait) {
  io_uring_sqe* sqe = NextSqe(op);
  io_uring_prep_timeout(sqe, const_cast<__kernel_timespec*>(wait), 0, 0);
  io_uring_sqe_set_data(sqe, op);
}

absl::StatusOr<uint32_t> Ring::RunOnce(Nanos wait_ns) {
  int error = 0;
  if (wait_ns > 0 && ready_.empty()) {  // NextSqe may have reaped: those must not wait for others.
    io_uring_cqe* cqe = nullptr;
    __kernel_timespec timeout{.tv_sec = wait_ns / kSecond, .tv_nsec = wait_ns % kSecond};
    error = io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &timeout, nullptr);
  } else {
    // Under DEFER_TASKRUN the kernel delivers completions only when asked for events: a loop that
    // spins on io_uring_submit() would wait for ever.
    error = io_uring_submit_and_get_events(&ring_);
  }
  if (error < 0 && !IsTransient(error)) return RingError(error, "io_uring_enter");
  Reap();
  FifoList<Completion> batch;
  std::swap(batch, ready_);
  uint32_t count = 0;
  while (Completion* op = batch.Pop()) {
    ++count;
    op->done(op, op->result);
  }
  return count;
}

io_uring_sqe* Ring::NextSqe(Completion* op) {
  RP_CHECK(op->done != nullptr);
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  while (sqe == nullptr) {  // Full: hand the batch to the kernel, and keep what it completes.
    const int error = io_uring_submit_and_get_events(&ring_);
    RP_CHECK(error >= 0 || IsTransient(error));
    Reap();
    sqe = io_uring_get_sqe(&ring_);
  }
  ++in_kernel_;
  return sqe;
}

void Ring::Reap() {
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
}

void Ring::CancelAll() {
  // The owners may be gone, so completions are counted and not looked at.
  bool cancelling = false;
  for (uint32_t turn = 0; in_kernel_ > 0 && turn < kDrainTurnsMax; ++turn) {
    if (io_uring_sqe* sqe = cancelling ? nullptr : io_uring_get_sqe(&ring_); sqe != nullptr) {
      io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY);
      io_uring_sqe_set_data(sqe, nullptr);
      ++in_kernel_;
      cancelling = true;
    }
    io_uring_cqe* cqe = nullptr;
    __kernel_timespec timeout = kDrainTurn;
    const int error = io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &timeout, nullptr);
    if (error < 0 && !IsTransient(error)) return;  // Another thread: the kernel cancels by itself.
    unsigned head = 0;
    unsigned count = 0;
    io_uring_for_each_cqe(&ring_, head, cqe)++ count;
    io_uring_cq_advance(&ring_, count);
    in_kernel_ -= std::min<uint32_t>(in_kernel_, count);
  }
}

}  // namespace reprise
