#include "tests/integration/raw_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "protocol/wire/control.pb.h"
#include "tests/integration/program.h"

namespace reprise::test {
namespace {

int ConnectUnix(const std::string& path) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.data(), std::min(path.size(), sizeof(to.sun_path) - 1));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

int ConnectTcp(const std::string& host_and_port, int receive_buffer_bytes) {
  const size_t colon = host_and_port.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(host_and_port.c_str() + colon + 1)));
  inet_pton(AF_INET, host_and_port.substr(0, colon).c_str(), &to.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer_bytes > 0) {
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  }
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

bool WaitFor(int fd, short events, Instant deadline) {
  const Nanos left_ns = deadline - SystemClock().Now();
  pollfd waiting{.fd = fd, .events = events, .revents = 0};
  return left_ns > 0 && poll(&waiting, 1, static_cast<int>(left_ns / kMillisecond) + 1) > 0;
}

}  // namespace

RawConnection::RawConnection(const std::string& address, int receive_buffer_bytes)
    : fd_(address.starts_with("unix:") ? ConnectUnix(address.substr(5))
                                       : ConnectTcp(address.substr(4), receive_buffer_bytes)) {}

RawConnection::RawConnection(RawConnection&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      store_id_(other.store_id_),
      next_request_id_(other.next_request_id_) {}

void RawConnection::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

bool RawConnection::Send(std::string_view bytes) {
  const Instant deadline = SystemClock().Now() + kPatience;
  while (!bytes.empty()) {
    if (!WaitFor(fd_, POLLOUT, deadline)) return false;
    const ssize_t put = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (put > 0) bytes.remove_prefix(static_cast<size_t>(put));
  }
  return true;
}

bool RawConnection::ReceiveExactly(char* out, size_t count, Instant deadline) {
  while (count > 0) {
    if (!WaitFor(fd_, POLLIN, deadline)) return false;
    const ssize_t got = recv(fd_, out, count, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got > 0) {
      out += got;
      count -= static_cast<size_t>(got);
    }
  }
  return true;
}

std::optional<RawConnection::Frame> RawConnection::Receive(Nanos timeout_ns) {
  const Instant deadline = SystemClock().Now() + timeout_ns;
  std::array<char, wire::kFrameHeaderBytes> bytes;
  Frame frame;
  if (!ReceiveExactly(bytes.data(), bytes.size(), deadline)) return std::nullopt;
  if (wire::ParseFrameHeader(std::as_bytes(std::span(bytes)), &frame.header) != Outcome::kOk) {
    return std::nullopt;
  }
  frame.body.resize(frame.header.body_bytes);
  if (!ReceiveExactly(frame.body.data(), frame.body.size(), deadline)) return std::nullopt;
  if (!wire::BodyMatches(frame.header, AsBytes(frame.body))) return std::nullopt;
  std::array<char, 16384> dropped;
  while (frame.data_bytes < frame.header.data_bytes) {
    const size_t count = std::min(dropped.size(), frame.header.data_bytes - frame.data_bytes);
    if (!ReceiveExactly(dropped.data(), count, deadline)) return std::nullopt;
    frame.data_bytes += count;
  }
  return frame;
}

bool RawConnection::ClosedWithin(Nanos timeout_ns) {
  const Instant deadline = SystemClock().Now() + timeout_ns;
  std::array<char, 16384> dropped;
  for (;;) {
    if (!WaitFor(fd_, POLLIN, deadline)) return false;
    const ssize_t got = recv(fd_, dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return true;
  }
}

bool RawConnection::Hello() {
  const auto reply = Call(wire::Opcode::kHello, HelloBody());
  wire::HelloReply hello;
  if (!reply.has_value() || reply->outcome() != Outcome::kOk ||
      !hello.ParseFromString(reply->body) || hello.store_uuid().size() != 16) {
    return false;
  }
  store_id_ = LoadLe<uint64_t>(hello.store_uuid().data());
  return true;
}

std::string RawConnection::MakeFrame(wire::Opcode opcode, std::string_view body,
                                     uint64_t data_bytes,
                                     const std::function<void(wire::FrameHeader*)>& change) {
  wire::FrameHeader header{.opcode = static_cast<uint8_t>(opcode),
                           .request_id = next_request_id_++,
                           .deadline_ms = 30'000,
                           .data_bytes = data_bytes,
                           .store_id = opcode == wire::Opcode::kHello ? 0 : store_id_};
  wire::SealFrame(&header, AsBytes(body));
  if (change) change(&header);
  std::string frame(AsText(AsBytes(header)));
  return frame.append(body);
}

void RawConnection::Reseal(wire::FrameHeader* header) {
  header->header_crc = wire::HeaderCrc(*header);
}

std::optional<RawConnection::Frame> RawConnection::Call(wire::Opcode opcode,
                                                        std::string_view body) {
  if (!connected() || !Send(MakeFrame(opcode, body))) return std::nullopt;
  return Receive(kPatience);
}

uint32_t RawConnection::OpenNamespace(const std::string& manifest_bytes) {
  wire::OpenNamespaceRequest request;
  request.set_manifest(manifest_bytes);
  const auto reply = Call(wire::Opcode::kOpenNamespace, request.SerializeAsString());
  wire::OpenNamespaceReply opened;
  return reply.has_value() && opened.ParseFromString(reply->body) ? opened.namespace_id() : 0;
}

std::string HelloBody(uint32_t version) {
  wire::HelloRequest request;
  request.set_protocol_version(version);
  request.set_client_name("raw");
  return request.SerializeAsString();
}

}  // namespace reprise::test
