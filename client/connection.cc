#include "client/connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace reprise {
namespace {

constexpr Nanos kRetryEvery = 2 * kMillisecond;
constexpr size_t kPartsPerCall = 512;  // Below IOV_MAX.

absl::Status CannotConnect(const std::string& address, std::string_view why) {
  return Unavailable("cannot connect to " + address + ": " + std::string(why) +
                     "; check that reprised runs and listens there");
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

// Small requests must not wait for more (Nagle), and bbr, a usual default, paces loopback to less
// than half of what cubic or reno move.
void TuneTcp(int fd, const sockaddr* peer) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (!IsLoopback(peer)) return;
  for (const char* name : {"cubic", "reno"}) {
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name,
                   static_cast<socklen_t>(std::strlen(name))) == 0) {
      return;
    }
  }
}

// "host:port", the host in brackets when it has colons of its own.
bool SplitHostPort(const std::string& text, std::string* host, std::string* port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) return false;
  *host = text.substr(0, colon);
  *port = text.substr(colon + 1);
  if (host->front() == '[' && host->back() == ']') *host = host->substr(1, host->size() - 2);
  return !host->empty();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const std::string& address,
                                                             Nanos spin_ns, Instant deadline) {
  std::string host;
  std::string port;
  if (address.starts_with("unix:") && address.size() > 5) {
    std::unique_ptr<Connection> connection(new Connection(spin_ns, true));
    RP_TRY(connection->ConnectUnix(address.substr(5), deadline));
    return connection;
  }
  if (address.starts_with("tcp:") && SplitHostPort(address.substr(4), &host, &port)) {
    std::unique_ptr<Connection> connection(new Connection(spin_ns, false));
    RP_TRY(connection->ConnectTcp(host, port, deadline));
    return connection;
  }
  return InvalidArgument("\"" + address +
                         "\" is not an address: write unix:/path/to/socket or tcp:host:port");
}

Connection::~Connection() {
  Close();
  for (const int fd : descriptors_) {
    if (fd >= 0) close(fd);
  }
}

void Connection::Close() {
  rdma_.reset();
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::Status Connection::ConnectUnix(const std::string& path, Instant deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument("the socket path \"" + path + "\" is longer than " +
                           std::to_string(sizeof(address.sun_path) - 1) +
                           " bytes; use a shorter directory");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) return ErrnoStatus(errno, "socket");
  while (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EINTR) continue;
    // EAGAIN: the daemon's backlog is full, and no event tells when it no longer is.
    if (errno != EAGAIN) return CannotConnect("unix:" + path, std::strerror(errno));
    if (Now() + kRetryEvery >= deadline) {
      return CannotConnect("unix:" + path, "the daemon did not accept in time");
    }
    poll(nullptr, 0, static_cast<int>(kRetryEvery / kMillisecond));
  }
  return absl::OkStatus();
}

absl::Status Connection::ConnectTcp(const std::string& host, const std::string& port,
                                    Instant deadline) {
  const std::string name = "tcp:" + host + ":" + port;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return CannotConnect(name, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::string why = "no address";
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    Close();
    fd_ = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) return ErrnoStatus(errno, "socket");
    int error = connect(fd_, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      if (!WaitFor(POLLOUT, deadline).ok()) {
        why = "no answer in time";
        continue;
      }
      socklen_t error_bytes = sizeof(error);
      getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
    }
    if (error == 0) {
      TuneTcp(fd_, a->ai_addr);
      return absl::OkStatus();
    }
    why = std::strerror(error);
  }
  return CannotConnect(name, why);
}

absl::Status Connection::WaitFor(short events, Instant deadline) {
  while (true) {
    const Nanos left_ns = deadline - Now();
    if (left_ns <= 0) return DeadlineExceeded("the daemon did not answer before the deadline");
    const timespec timeout = {.tv_sec = left_ns / kSecond, .tv_nsec = left_ns % kSecond};
    pollfd wait = {.fd = fd_, .events = events, .revents = 0};
    const int ready = ppoll(&wait, 1, &timeout, nullptr);
    if (ready > 0) return absl::OkStatus();  // Errors too: the next call on the socket names them.
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
  }
}

bool Connection::LocalGid(rdma::Gid* gid) const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return false;
  return rdma::GidOf(address, gid);
}

absl::Status Connection::Send(std::span<iovec> parts, Instant deadline) {
  if (rdma_ != nullptr) return rdma_->Send(parts, deadline);
  while (!parts.empty()) {
    if (parts.front().iov_len == 0) {
      parts = parts.subspan(1);
      continue;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = std::min(parts.size(), kPartsPerCall);
    ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) {
        return Unavailable(std::string("the connection broke while sending: ") +
                           std::strerror(errno));
      }
      RP_TRY(WaitFor(POLLOUT, deadline));
      continue;
    }
    for (auto left = static_cast<size_t>(sent); left > 0;) {
      iovec& part = parts.front();
      const size_t taken = std::min(left, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + taken;
      part.iov_len -= taken;
      left -= taken;
      if (part.iov_len == 0) parts = parts.subspan(1);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> Connection::Receive(Bytes out, size_t bytes_min, Instant deadline) {
  if (rdma_ != nullptr) return rdma_->Receive(out, bytes_min, deadline);
  size_t filled = 0;
  Instant spin_until = Now() + spin_ns_;
  while (filled < bytes_min) {
    const ssize_t received = ReceiveOnce(out.subspan(filled));
    if (received > 0) {
      filled += static_cast<size_t>(received);
      spin_until = Now() + spin_ns_;
      continue;
    }
    if (received == 0) return Unavailable("the daemon closed the connection");
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return Unavailable(std::string("the connection broke while receiving: ") +
                         std::strerror(errno));
    }
    if (Now() < std::min(spin_until, deadline)) continue;
    RP_TRY(WaitFor(POLLIN, deadline));
  }
  return filled;
}

ssize_t Connection::ReceiveOnce(Bytes out) {
  if (!keep_descriptors_) return recv(fd_, out.data(), out.size(), MSG_DONTWAIT);
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * 2)> control{};
  iovec part = {.iov_base = out.data(), .iov_len = out.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t received = recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received > 0) StoreDescriptors(&message);
  return received;
}

void Connection::StoreDescriptors(msghdr* message) {
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      const auto fd = LoadLe<int>(CMSG_DATA(part) + i * sizeof(int));
      const auto free = std::find(descriptors_.begin(), descriptors_.end(), -1);
      if (free != descriptors_.end()) {
        *free = fd;
      } else {
        close(fd);
      }
    }
  }
}

std::array<int, 2> Connection::TakeDescriptors() {
  keep_descriptors_ = false;
  return std::exchange(descriptors_, {-1, -1});
}

}  // namespace reprise
