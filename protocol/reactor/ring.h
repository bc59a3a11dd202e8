#pragma once

#include <liburing.h>
#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/base/bytes.h"
#include "protocol/base/clock.h"
#include "protocol/base/status.h"
#include "protocol/reactor/completion.h"

namespace reprise {

// The only io_uring loop. One per shard, used by that shard's thread alone.
//
// Open it on the thread that will run it: SINGLE_ISSUER binds the ring to its creator. Submission
// is batched: Prepare* queues, RunOnce enters the kernel once for all of it. Completions are copied
// off the ring first and called after, from a list, so a callback that submits more cannot recurse.
//
// Operations, and the memory, messages and times that they name, stay valid until `done`. A
// transfer is at most 1 GiB.
class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  // Cancels what is in flight and waits until the kernel has let go of its memory. No `done` runs.
  ~Ring();

  // `entries`: submissions between two RunOnce; the completion queue is four times that.
  absl::Status Open(uint32_t entries);
  bool open() const { return open_; }

  static constexpr uint64_t kSliceBytesMax = 1_GiB;  // The kernel's limit on one registered buffer.
  // Registers `memory` in slices, so that reads and writes inside one slice skip the page walk.
  // kResourceExhausted when RLIMIT_MEMLOCK does not allow it: transfers then go unregistered, and
  // work. Once, and on the ring's thread.
  absl::Status RegisterMemory(std::span<std::byte> memory,
                              uint64_t slice_bytes_max = kSliceBytesMax);
  bool memory_registered() const { return !registered_.empty(); }
  // Registers descriptors; indices into the array are then the `fd` of Prepare*File.
  absl::Status RegisterFiles(std::span<const int> fds);

  // Files, by registered index. `data` need not be in registered memory, but is quicker if it is.
  void PrepareReadFile(Completion* op, int file_index, std::span<std::byte> data, uint64_t offset);
  void PrepareWriteFile(Completion* op, int file_index, std::span<const std::byte> data,
                        uint64_t offset);
  void PrepareSyncFile(Completion* op, int file_index);  // fdatasync
  // fallocate with `mode` (FALLOC_FL_ZERO_RANGE and so on).
  void PrepareAllocateFile(Completion* op, int file_index, int mode, uint64_t offset,
                           uint64_t bytes);

  // Sockets and event descriptors, by descriptor.
  void PrepareAccept(Completion* op, int fd);
  void PrepareReceive(Completion* op, int fd, std::span<std::byte> data);
  void PrepareSend(Completion* op, int fd, const msghdr* message);
  void PrepareRead(Completion* op, int fd, std::span<std::byte> data);
  // `events` of poll(2), once; the result is those that came.
  void PreparePoll(Completion* op, int fd, uint32_t events);
  // Result 0 when `target` was cancelled (it completes with -ECANCELED), -ENOENT when it had
  // completed, -EALREADY when it cannot be stopped any more.
  void PrepareCancel(Completion* op, const Completion* target);
  // Result -ETIME after `wait`. For pauses where no Timers are at hand.
  void PrepareTimeout(Completion* op, const __kernel_timespec* wait);

  // Submits what is queued, waits for at most `wait_ns` (0: not at all) until something completes,
  // then runs the callbacks of all that did. Returns how many ran.
  absl::StatusOr<uint32_t> RunOnce(Nanos wait_ns);

  // Queued or in flight: prepared, and not yet completed by the kernel.
  uint32_t in_kernel() const { return in_kernel_; }

 private:
  struct Slice {
    const std::byte* begin;
    const std::byte* end;
  };

  io_uring_sqe* NextSqe(Completion* op);
  // Index of the registered slice that holds all of `data`, or -1.
  int SliceOf(std::span<const std::byte> data) const;
  void Reap();
  void CancelAll();

  io_uring ring_{};
  FifoList<Completion> ready_;
  uint32_t in_kernel_ = 0;
  bool open_ = false;
  std::vector<Slice> registered_;  // Equal sizes, but for the last.
  uint64_t slice_bytes_ = 0;
};

}  // namespace reprise
