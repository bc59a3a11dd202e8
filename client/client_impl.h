#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/channel.h"
#include "client/client.h"
#include "client/local_memory.h"
#include "client/receive_buffers.h"
#include "protocol/wire/control.pb.h"

namespace reprise {

// What a Client holds. Its calls are cut by job: client.cc (hello, namespaces), client_load.cc,
// client_put.cc, client_window.cc, client_admin.cc.
class Client::Impl {
 public:
  struct OpenedNamespace {
    uint32_t daemon_id = 0;
    Hash256 hash;
  };

  Impl(const ClientOptions& opts, std::unique_ptr<Connection> connection)
      : options(opts), channel(std::move(connection)) {}

  absl::Status Hello(Instant deadline);
  Instant Deadline() { return channel.connection().Now() + options.deadline_ns; }
  // Null, with the error to return in *status, when the id was not opened here.
  absl::StatusOr<const OpenedNamespace*> Find(uint32_t namespace_id) const;

  absl::StatusOr<Lease> AcquireLocal(Client* client, const OpenedNamespace& name_space,
                                     std::span<const BlockKey> keys);
  absl::StatusOr<Lease> AcquireRemote(Client* client, const OpenedNamespace& name_space,
                                      std::span<const BlockKey> keys);
  absl::StatusOr<Snapshot> GetWindowLocal(const wire::WindowRequest& request);
  absl::StatusOr<Snapshot> GetWindowRemote(const wire::WindowRequest& request);
  absl::StatusOr<wire::ControlReply> Control(const wire::ControlRequest& request);

  ClientOptions options;
  Channel channel;
  LocalMemory memory;
  ReceiveBuffers buffers;
  wire::HelloReply hello;
  std::vector<OpenedNamespace> namespaces;  // The index is the client's id.
};

// Protobuf's string in a body.
template <typename Message>
bool ParseBody(ConstBytes body, Message* out) {
  return out->ParseFromArray(body.data(), static_cast<int>(body.size()));
}

}  // namespace reprise
