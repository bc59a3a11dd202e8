#include "protocol/reactor/wake_event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "protocol/base/check.h"

namespace reprise {

WakeEvent::~WakeEvent() {
  if (fd_ >= 0) close(fd_);
}

absl::Status WakeEvent::Open() {
  RP_CHECK(fd_ < 0);
  fd_ = eventfd(0, EFD_CLOEXEC);
  return fd_ >= 0 ? absl::OkStatus()
                  : ErrnoStatus(errno, "eventfd (raise the limit of open files, RLIMIT_NOFILE)");
}

void WakeEvent::Arm(Ring* ring) {
  RP_CHECK(fd_ >= 0 && ring_ == nullptr);
  ring_ = ring;
  read_.event = this;
  read_.done = [](Completion* op, int32_t result) {
    if (result == -ECANCELED) return;  // The ring is being drained.
    auto* read = static_cast<ReadOp*>(op);
    WakeEvent* self = read->event;
    self->ring_->PrepareRead(read, self->fd_, {reinterpret_cast<std::byte*>(&read->count), 8});
  };
  read_.done(&read_, 0);
}

void WakeEvent::Wake() {
  const uint64_t one = 1;
  // Never waits: the counter would have to reach 2^64 - 2 first.
  while (write(fd_, &one, sizeof(one)) != sizeof(one)) RP_CHECK(errno == EINTR);
}

}  // namespace reprise
