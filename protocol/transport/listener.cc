#include "protocol/transport/listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "protocol/base/check.h"
#include "protocol/transport/socket_address.h"

namespace reprise {
namespace {

constexpr int kBacklog = 1024;
constexpr mode_t kSocketMode = 0660;
constexpr __kernel_timespec kPause = {.tv_sec = 0, .tv_nsec = 100 * kMillisecond};

std::string Quoted(std::string_view what, std::string_view name) {
  return std::string(what) + " \"" + std::string(name) + "\"";
}

absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument(Quoted("socket path", path) + " must have 1 to " +
                           std::to_string(sizeof(address.sun_path) - 1) +
                           " bytes (the kernel's limit); choose a shorter directory");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Is somebody listening on this socket file? Never waits: a full backlog counts as an answer.
absl::StatusOr<bool> Answers(const sockaddr_un& address, const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return ErrnoStatus(errno, "creating a Unix socket");
  const int error =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
  close(fd);
  if (error == 0 || error == EAGAIN) return true;
  if (error == ECONNREFUSED || error == ENOENT) return false;
  return ErrnoStatus(error, Quoted("asking whether a daemon uses socket", path));
}

// Leaves `path` free to be bound, or says why it is not.
absl::Status ClearStaleSocket(const sockaddr_un& address, const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, Quoted("socket path", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return FailedPrecondition(Quoted("socket path", path) +
                              " exists and is not a socket; move it away or choose another path");
  }
  RP_ASSIGN(const bool alive, Answers(address, path));
  if (alive) {
    return FailedPrecondition("another daemon is listening on " + Quoted("socket", path) +
                              "; stop it or choose another path");
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, Quoted("removing the stale socket", path));
  }
  return absl::OkStatus();
}

// Binds and listens; returns 0 or errno.
int BindTcp(int fd, const SocketAddress& address) {
  const int on = 1;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) return errno;
  if (bind(fd, address.address(), address.size()) != 0) return errno;
  return listen(fd, kBacklog) == 0 ? 0 : errno;
}

// Errors of the connection that was about to be accepted, not of the listener: accept(2), "Error
// handling".
bool IsConnectionError(int error) {
  switch (error) {
    case EINTR:
    case ECONNABORTED:
    case EPROTO:
    case ENOPROTOOPT:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENONET:
      return true;
    default:
      return false;
  }
}

}  // namespace

Listener::~Listener() {
  if (fd_ < 0) return;
  struct stat info {};
  if (!path_.empty() && lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
      info.st_ino == inode_) {
    (void)unlink(path_.c_str());
  }
  close(fd_);
}

absl::StatusOr<std::unique_ptr<Listener>> ListenUnix(const std::string& path) {
  RP_ASSIGN(const sockaddr_un address, UnixAddress(path));
  RP_TRY(ClearStaleSocket(address, path));
  std::unique_ptr<Listener> listener(new Listener);
  listener->address_ = path;
  listener->fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener->fd_ < 0) return ErrnoStatus(errno, "creating a Unix socket");
  // Linux gives the file the socket's own mode, less the umask: it is at no time wider than 0660.
  (void)fchmod(listener->fd_, kSocketMode);
  if (bind(listener->fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, Quoted("binding socket", path) +
                                  " (does its directory exist, and may this user write there?)");
  }
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) {
    listener->path_ = path;
    listener->device_ = info.st_dev;
    listener->inode_ = info.st_ino;
  }
  if (chmod(path.c_str(), kSocketMode) != 0) {
    return ErrnoStatus(errno, Quoted("setting the mode of socket", path));
  }
  if (listen(listener->fd_, kBacklog) != 0) {
    return ErrnoStatus(errno, Quoted("listening on socket", path));
  }
  return listener;
}

absl::StatusOr<std::unique_ptr<Listener>> ListenTcp(std::string_view host_and_port) {
  RP_ASSIGN(const std::vector<SocketAddress> addresses, SocketAddress::Resolve(host_and_port));
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& address : addresses) {
    std::unique_ptr<Listener> listener(new Listener);
    listener->fd_ = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    error = listener->fd_ < 0 ? errno : BindTcp(listener->fd_, address);
    if (error != 0) continue;
    SocketAddress bound;
    if (!bound.ReadLocal(listener->fd_)) return ErrnoStatus(errno, "getsockname");
    listener->address_ = bound.ToString();
    listener->port_ = bound.port();
    return listener;
  }
  return ErrnoStatus(error, Quoted("listening on", host_and_port) +
                                " (is the port in use, or the address not of this machine?)");
}

Acceptor::Acceptor(Ring* ring, const Listener& listener, Accepted accepted, void* context)
    : ring_(ring), fd_(listener.fd()), accepted_(accepted), context_(context) {
  accept_.acceptor = pause_.acceptor = cancel_.acceptor = this;
  accept_.done = &Acceptor::OnAccept;
  pause_.done = &Acceptor::OnPauseOver;
  cancel_.done = [](Completion* op, int32_t) { --static_cast<Op*>(op)->acceptor->in_flight_; };
}

Acceptor::~Acceptor() { RP_CHECK(stopped()); }

void Acceptor::Start() {
  RP_CHECK(stopped() && !stopping_);
  Next();
}

void Acceptor::Stop() {
  if (std::exchange(stopping_, true) || waiting_ == nullptr) return;
  ++in_flight_;
  ring_->PrepareCancel(&cancel_, waiting_);
}

void Acceptor::Next() {
  if (stopping_) return;
  ++in_flight_;
  waiting_ = &accept_;
  ring_->PrepareAccept(&accept_, fd_);
}

void Acceptor::Pause(int error) {
  ++stats_.pauses;
  stats_.last_error = error;
  ++in_flight_;
  waiting_ = &pause_;
  ring_->PrepareTimeout(&pause_, &kPause);
}

void Acceptor::OnAccept(Completion* op, int32_t result) {
  Acceptor* self = static_cast<Op*>(op)->acceptor;
  --self->in_flight_;
  self->waiting_ = nullptr;
  if (self->stopping_) {
    if (result >= 0) close(result);
    return;
  }
  if (result >= 0) {
    ++self->stats_.accepted;
    self->accepted_(self->context_, result);  // May call Stop.
    self->Next();
  } else if (IsConnectionError(-result)) {
    ++self->stats_.aborted;
    self->Next();
  } else {
    self->Pause(-result);
  }
}

void Acceptor::OnPauseOver(Completion* op, int32_t) {
  Acceptor* self = static_cast<Op*>(op)->acceptor;
  --self->in_flight_;
  self->waiting_ = nullptr;
  self->Next();
}

}  // namespace reprise
