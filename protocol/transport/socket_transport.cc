#include "protocol/transport/socket_transport.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/base/check.h"
#include "protocol/transport/socket_address.h"

namespace reprise {
namespace {

// Loopback has no congestion to control, but the usual algorithms find some: bbr paces, and cubic
// takes a busy scheduler's delays for a full link and leaves slow start for good. reno stays in
// slow start, so the window grows to what the buffers hold; it is also allowed to everybody.
void SetLoopbackCongestionControl(int fd) {
  for (const std::string_view name : {"reno", "cubic"}) {
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                   static_cast<socklen_t>(name.size())) == 0) {
      return;
    }
  }
}

class SocketStream final : public Stream {
 public:
  SocketStream(Ring* ring, int fd);
  ~SocketStream() override;

  void Receive(ReceiveOp* op) override;
  void Send(SendOp* op) override;
  void Shutdown() override { (void)shutdown(fd_, SHUT_RDWR); }
  bool local() const override { return local_; }
  std::string peer() const override { return peer_; }

 private:
  struct Io : Completion {
    SocketStream* stream = nullptr;
  };

  static void OnReceived(Completion* io, int32_t result);
  static void OnSent(Completion* io, int32_t result);
  void AttachDescriptors(const SendOp& op);
  void ContinueSend();
  // Drops the first `bytes` of what is left to send.
  void Consume(size_t bytes);

  Ring* ring_;
  int fd_;
  bool local_ = false;
  std::string peer_;

  Io receive_io_;
  ReceiveOp* receive_ = nullptr;  // In flight, or null.

  Io send_io_;
  SendOp* send_ = nullptr;  // In flight, or null.
  msghdr message_{};        // What is left of it to send.
  alignas(cmsghdr) char control_[CMSG_SPACE(sizeof(SendOp::fds))];
};

SocketStream::SocketStream(Ring* ring, int fd) : ring_(ring), fd_(fd) {
  receive_io_.done = &SocketStream::OnReceived;
  receive_io_.stream = this;
  send_io_.done = &SocketStream::OnSent;
  send_io_.stream = this;

  // io_uring answers -EAGAIN on a non-blocking descriptor instead of waiting.
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0 && (flags & O_NONBLOCK) != 0) (void)fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);

  SocketAddress address;
  const bool known = address.ReadPeer(fd);
  local_ = address.family() == AF_UNIX;
  if (local_) {
    ucred credentials{};
    socklen_t size = sizeof(credentials);
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size);
    peer_ = "unix:pid=" + std::to_string(credentials.pid);
    return;
  }
  peer_ = known ? address.ToString() : "disconnected";
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (address.loopback()) SetLoopbackCongestionControl(fd);
}

SocketStream::~SocketStream() {
  RP_CHECK(receive_ == nullptr && send_ == nullptr);
  close(fd_);
}

void SocketStream::Receive(ReceiveOp* op) {
  RP_CHECK(receive_ == nullptr && !op->buffer.empty());
  receive_ = op;
  ring_->PrepareReceive(&receive_io_, fd_, op->buffer);
}

void SocketStream::OnReceived(Completion* io, int32_t result) {
  SocketStream* self = static_cast<Io*>(io)->stream;
  if (result == -EINTR) {
    self->ring_->PrepareReceive(io, self->fd_, self->receive_->buffer);
    return;
  }
  ReceiveOp* op = std::exchange(self->receive_, nullptr);
  op->result = result;
  op->done(op, result);  // May destroy `self`.
}

void SocketStream::Send(SendOp* op) {
  RP_CHECK(send_ == nullptr && op->part_count > 0 && op->part_count <= SendOp::kPartsMax);
  RP_CHECK(op->fd_count == 0 || (local_ && op->fd_count <= op->fds.size()));
  send_ = op;
  message_ = {};
  message_.msg_iov = op->parts.data();
  message_.msg_iovlen = op->part_count;
  AttachDescriptors(*op);
  ContinueSend();
}

void SocketStream::AttachDescriptors(const SendOp& op) {
  if (op.fd_count == 0) return;
  const size_t bytes = op.fd_count * sizeof(int);
  std::memset(control_, 0, sizeof(control_));
  message_.msg_control = control_;
  message_.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* header = CMSG_FIRSTHDR(&message_);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(header), op.fds.data(), bytes);
}

void SocketStream::ContinueSend() { ring_->PrepareSend(&send_io_, fd_, &message_); }

void SocketStream::OnSent(Completion* io, int32_t result) {
  SocketStream* self = static_cast<Io*>(io)->stream;
  if (result > 0) {
    self->Consume(static_cast<size_t>(result));
    // The descriptors went with the first byte; sent again they would arrive twice.
    self->message_.msg_control = nullptr;
    self->message_.msg_controllen = 0;
  }
  const bool more = self->message_.msg_iovlen > 0;
  if (result == -EINTR || (result > 0 && more)) {
    self->ContinueSend();
    return;
  }
  if (result == 0 && more) result = -EPIPE;  // No progress: would repeat for ever.
  SendOp* op = std::exchange(self->send_, nullptr);
  op->result = result < 0 ? result : 0;
  op->done(op, op->result);  // May destroy `self`.
}

void SocketStream::Consume(size_t bytes) {
  while (message_.msg_iovlen > 0 && bytes >= message_.msg_iov->iov_len) {
    bytes -= message_.msg_iov->iov_len;
    ++message_.msg_iov;
    --message_.msg_iovlen;
  }
  if (bytes == 0) return;
  RP_CHECK(message_.msg_iovlen > 0);
  message_.msg_iov->iov_base = static_cast<std::byte*>(message_.msg_iov->iov_base) + bytes;
  message_.msg_iov->iov_len -= bytes;
}

}  // namespace

std::unique_ptr<Stream> MakeSocketStream(Ring* ring, int fd) {
  return std::make_unique<SocketStream>(ring, fd);
}

}  // namespace reprise
