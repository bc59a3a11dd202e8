#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/base/status.h"

namespace reprise {

// A socket address: filled by the kernel or by Resolve, shown to people.
class SocketAddress {
 public:
  // "127.0.0.1:7070", "[::1]:7070", "localhost:7070"; asks the resolver, so it may block. In the
  // order in which they should be tried. The error names `text`.
  static absl::StatusOr<std::vector<SocketAddress>> Resolve(std::string_view text);

  // False, and the address unspecified, when the descriptor has none.
  bool ReadLocal(int fd);
  bool ReadPeer(int fd);

  int family() const { return storage_.ss_family; }
  bool loopback() const;
  uint16_t port() const;         // 0 for other than IPv4 and IPv6.
  std::string ToString() const;  // "127.0.0.1:7070", "[::1]:7070".

  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = sizeof(sockaddr_storage);
};

}  // namespace reprise
