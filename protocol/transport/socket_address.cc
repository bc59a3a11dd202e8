#include "protocol/transport/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <charconv>
#include <cstring>

namespace reprise {
namespace {

struct HostAndPort {
  std::string host;
  std::string port;
};

absl::StatusOr<HostAndPort> Split(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return InvalidArgument("address \"" + std::string(text) + "\": " + std::string(why) +
                           "; write HOST:PORT, for example 127.0.0.1:7070 or [::1]:7070");
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad("no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad("an IPv6 host must be in brackets");
  }
  if (host.empty()) return bad("no host");
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size()) {
    return bad("the port is not a number from 0 to 65535");
  }
  return HostAndPort{std::string(host), std::string(port)};
}

}  // namespace

absl::StatusOr<std::vector<SocketAddress>> SocketAddress::Resolve(std::string_view text) {
  RP_ASSIGN(const HostAndPort parts, Split(text));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(parts.host.c_str(), parts.port.c_str(), &hints, &list);
  if (error != 0) {
    return InvalidArgument("address \"" + std::string(text) +
                           "\": cannot resolve the host: " + gai_strerror(error));
  }
  std::vector<SocketAddress> found;
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    if (item->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress& address = found.emplace_back();
    std::memcpy(&address.storage_, item->ai_addr, item->ai_addrlen);
    address.size_ = item->ai_addrlen;
  }
  freeaddrinfo(list);
  return found;
}

bool SocketAddress::ReadLocal(int fd) {
  size_ = sizeof(storage_);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&storage_), &size_) == 0;
}

bool SocketAddress::ReadPeer(int fd) {
  size_ = sizeof(storage_);
  return getpeername(fd, reinterpret_cast<sockaddr*>(&storage_), &size_) == 0;
}

bool SocketAddress::loopback() const {
  if (family() == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage_);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  if (family() == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
  }
  return false;
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(storage_).sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port);
  return 0;
}

std::string SocketAddress::ToString() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (family() == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage_);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return std::string(text.data()) + ":" + std::to_string(port());
  }
  if (family() == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage_);
    inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    return "[" + std::string(text.data()) + "]:" + std::to_string(port());
  }
  return family() == AF_UNIX ? "unix" : "unknown";
}

}  // namespace reprise
