#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/channel.h"
#include "client/client.h"
#include "client/local_memory.h"
#include "client/receive_buffers.h"
#include "protocol/wire/control.pb.h"

namespace reprise {

// What a Client holds. Its calls are cut by job: client.cc (hello, namespaces), client_load.cc,
// client_slots.cc, client_put.cc, client_window.cc, client_admin.cc.
class Client::Impl {
 public:
  struct OpenedNamespace {
    uint32_t daemon_id = 0;
    Hash256 hash;
    uint32_t payload_bytes = 0;
  };

  Impl(const ClientOptions& opts, std::unique_ptr<Connection> connection)
      : options(opts), channel(std::move(connection)) {}

  // `link`: offered to the daemon; null: no RDMA.
  absl::Status Hello(std::unique_ptr<RdmaLink> link, Instant deadline);
  // Goes on by RDMA, and proves that it works.
  absl::Status StartRdma(std::unique_ptr<RdmaLink> link, Instant deadline);
  RdmaLink* rdma() const { return channel.connection().rdma(); }
  Instant Deadline() { return channel.connection().Now() + options.deadline_ns; }
  // Null, with the error to return in *status, when the id was not opened here.
  absl::StatusOr<const OpenedNamespace*> Find(uint32_t namespace_id) const;

  absl::StatusOr<Lease> AcquireLocal(Client* client, const OpenedNamespace& name_space,
                                     std::span<const BlockKey> keys);
  absl::StatusOr<Lease> AcquireRemote(Client* client, const OpenedNamespace& name_space,
                                      std::span<const BlockKey> keys);
  absl::StatusOr<Lease> AcquireByRdma(Client* client, const OpenedNamespace& name_space,
                                      std::span<const BlockKey> keys);
  // One Fetch. `check(i)`: whether record i, which has landed, is good; the run ends before the
  // first that is not.
  using Check = std::function<bool(uint32_t)>;
  absl::StatusOr<Landed> FetchOnce(const OpenedNamespace& name_space,
                                   std::span<const BlockKey> keys, const wire::Landing& landing,
                                   const Check& check, Instant deadline);
  // The same into `part` of `whole`, which the daemon can write to until this returns.
  absl::StatusOr<Landed> FetchInto(const OpenedNamespace& name_space,
                                   std::span<const BlockKey> keys, Bytes whole, Bytes part,
                                   const Check& check, Instant deadline);
  // The landing's key ends, and `result` is returned, of a request that had it.
  template <typename T>
  absl::StatusOr<T> CloseLanding(absl::StatusOr<T> result, Instant deadline) {
    if (rdma() == nullptr) return result;  // The connection was closed, and the key with it.
    const absl::Status closed = rdma()->CloseLanding(deadline);
    if (!closed.ok()) return channel.Break(closed);
    return result;
  }
  absl::StatusOr<Snapshot> GetWindowByRdma(const wire::WindowRequest& request);
  absl::StatusOr<Snapshot> GetWindowLocal(const wire::WindowRequest& request);
  absl::StatusOr<Snapshot> GetWindowRemote(const wire::WindowRequest& request);
  absl::StatusOr<wire::ControlReply> Control(const wire::ControlRequest& request);

  ClientOptions options;
  LocalMemory memory;
  ReceiveBuffers buffers;
  Channel channel;  // Goes before the memory that its device uses.
  std::string transport_note;
  bool rdma_agreed = false;  // The daemon took the offer.
  bool by_rdma = false;      // And it works.
  wire::HelloReply hello;
  std::optional<SlotPool> slot_pool;        // Once it was asked for.
  std::vector<OpenedNamespace> namespaces;  // The index is the client's id.
};

// ---- What the calls that load records share (client_load.cc)
absl::Status CheckKeyCount(size_t key_count, const char* call);
// Outcomes that end a run of keys, as opposed to those that say the request itself was wrong.
bool EndsRun(Outcome outcome);
// What can be told of a record from its header alone: that it is a record, the one asked for, and
// of this namespace.
bool IsTheBlock(ConstBytes record, const BlockKey& key, const Hash256& name_space);

// Protobuf's string in a body.
template <typename Message>
bool ParseBody(ConstBytes body, Message* out) {
  return out->ParseFromArray(body.data(), static_cast<int>(body.size()));
}

}  // namespace reprise
