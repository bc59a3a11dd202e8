#include "server/rdma_ports.h"

#include <set>

#include "protocol/rdma/port_wish.h"

namespace reprise::server {
namespace {

absl::StatusOr<std::unique_ptr<RdmaPort>> OpenPort(rdma::Verbs* verbs, const rdma::Port& port,
                                                   Bytes memory, uint64_t slot_bytes) {
  auto opened = std::make_unique<RdmaPort>();
  RP_ASSIGN(opened->device, verbs->Open(port));
  RP_ASSIGN(opened->memory, rdma::RegisteredMemory::Register(opened->device.get(), memory,
                                                             rdma::Access::kReadHere, slot_bytes));
  return opened;
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<RdmaPort>>> OpenRdmaPorts(rdma::Verbs* verbs,
                                                                     const std::string& setting,
                                                                     Bytes memory,
                                                                     uint64_t slot_bytes,
                                                                     std::string* why_none) {
  std::vector<std::unique_ptr<RdmaPort>> opened;
  RP_ASSIGN(const rdma::PortWish wish, rdma::ParsePortWish(setting));
  if (wish.off) {
    *why_none = "rdma.device is off";
    return opened;
  }
  const bool named = !wish.device.empty();
  absl::StatusOr<std::vector<rdma::Port>> ports = verbs->Ports();
  if (!ports.ok()) {
    if (named) return ports.status();
    *why_none = Message(ports.status());
    return opened;
  }
  std::set<std::string> tried;  // By "device:port": each with its best address.
  for (const rdma::Port& port : *ports) {
    const std::string name = port.device + ":" + std::to_string(port.number);
    if (named && wish.device != port.device && wish.device != name) continue;
    if (!tried.insert(name).second) continue;
    const rdma::Port* best = rdma::ChoosePort(*ports, name, wish.gid_index, nullptr, why_none);
    if (best == nullptr) continue;
    auto made = OpenPort(verbs, *best, memory, slot_bytes);
    if (made.ok()) {
      opened.push_back(*std::move(made));
    } else if (named) {
      return made.status();
    } else {
      *why_none = Message(made.status());
    }
  }
  if (opened.empty() && tried.empty()) {
    (void)rdma::ChoosePort(*ports, wish.device, wish.gid_index, nullptr, why_none);
  }
  if (opened.empty() && named) {
    return FailedPrecondition("rdma.device = \"" + setting + "\": " + *why_none);
  }
  return opened;
}

}  // namespace reprise::server
