#include "protocol/rdma/verbs.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace reprise::rdma {
namespace {

constexpr size_t kIpv4At = 12;

bool DeviceFits(const Port& port, std::string_view device) {
  if (device.empty() || device == port.device) return true;
  return device == port.device + ":" + std::to_string(port.number);
}

// Higher is better.
int Rank(const Port& port, const Gid* prefer) {
  if (prefer != nullptr && port.gid == *prefer) return 4 + (port.gid_kind == GidKind::kRoceV2);
  if (port.gid_kind == GidKind::kRoceV2 && IsIpv4(port.gid)) return 3;
  if (port.gid_kind == GidKind::kInfiniBand) return 2;
  return port.gid_kind == GidKind::kRoceV2 ? 1 : 0;
}

}  // namespace

bool IsIpv4(const Gid& gid) {
  static constexpr std::array<uint8_t, kIpv4At> kMapped = {0, 0, 0, 0, 0,    0,
                                                           0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kMapped.begin(), kMapped.end(), gid.begin(),
                    [](uint8_t a, std::byte b) { return std::byte{a} == b; });
}

bool GidOf(const sockaddr_storage& address, Gid* gid) {
  gid->fill(std::byte{0});
  if (address.ss_family == AF_INET) {
    (*gid)[kIpv4At - 2] = (*gid)[kIpv4At - 1] = std::byte{0xff};
    std::memcpy(gid->data() + kIpv4At, &reinterpret_cast<const sockaddr_in&>(address).sin_addr,
                gid->size() - kIpv4At);
    return true;
  }
  if (address.ss_family != AF_INET6) return false;
  std::memcpy(gid->data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, gid->size());
  return true;
}

std::string GidText(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool ipv4 = IsIpv4(gid);
  inet_ntop(ipv4 ? AF_INET : AF_INET6, gid.data() + (ipv4 ? kIpv4At : 0), text.data(), text.size());
  return text.data();
}

const Port* ChoosePort(std::span<const Port> ports, std::string_view device, int gid_index,
                       const Gid* prefer, std::string* why) {
  const Port* best = nullptr;
  bool named = false, active = false;
  for (const Port& port : ports) {
    if (!DeviceFits(port, device)) continue;
    named = true;
    if (!port.active) continue;
    active = true;
    if (port.gid_index < 0 || (gid_index >= 0 && port.gid_index != gid_index)) continue;
    if (best == nullptr || Rank(port, prefer) > Rank(*best, prefer)) best = &port;
  }
  if (best != nullptr) return best;
  if (ports.empty()) {
    *why = "this machine has no RDMA device";
  } else if (!named) {
    *why = "there is no RDMA device \"" + std::string(device) + "\"";
  } else if (!active) {
    *why = "no port is active";
  } else {
    *why = gid_index < 0 ? "no port has an address (GID)"
                         : "no active port has GID index " + std::to_string(gid_index);
  }
  return nullptr;
}

std::string_view WorkErrorName(WorkError error) {
  switch (error) {
    case WorkError::kNone:
      return "none";
    case WorkError::kFlushed:
      return "flushed";
    case WorkError::kPeerSilent:
      return "peer_silent";
    case WorkError::kPeerRefused:
      return "peer_refused";
    case WorkError::kNoReceive:
      return "no_receive";
    case WorkError::kLocal:
      return "local";
    case WorkError::kOther:
      return "other";
  }
  return "other";
}

}  // namespace reprise::rdma
