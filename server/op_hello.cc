// The requests that set a connection up: Hello, OpenNamespace, and the one-way Release.
#include "protocol/wire/control.pb.h"
#include "server/dispatch.h"
#include "server/operation.h"

namespace reprise::server {
namespace {

class HelloOperation final : public Operation {
 public:
  HelloOperation(Connection* connection, const wire::FrameHeader& request)
      : Operation(connection, request) {}

  void Start(const wire::HelloRequest& request) {
    const ServerFacts& facts = shard().facts();
    connection().Greet(request.client_name().substr(0, 64));
    wire::HelloReply reply;
    reply.set_protocol_version(wire::kProtocolVersion);
    reply.set_server_version(facts.version);
    reply.set_store_uuid(facts.uuid.data(), facts.uuid.size());
    reply.set_record_bytes(facts.record_bytes);
    reply.set_payload_bytes_max(facts.record_bytes - kRecordTailBytes);
    reply.set_model(facts.model);
    reply.set_shards(facts.shard_count);
    auto frame = MakeFrame(Outcome::kOk);
    if (request.local_memory() && connection().local() && facts.arena != nullptr) {
      ShareMemory(request.staging_slots(), &reply, frame.get());
    }
    if (request.rdma_address().empty()) {
      connection().stream().DeclineRdma();
    } else if (const absl::Status status = AcceptRdma(request, &reply); !status.ok()) {
      connection().stream().DeclineRdma();
      reply.set_rdma_declined(Message(status));
    }
    frame->body = reply.SerializeAsString();
    SendLast(std::move(frame));
  }

 private:
  absl::Status AcceptRdma(const wire::HelloRequest& request, wire::HelloReply* reply) {
    rdma::PeerAddress peer;
    if (request.rdma_address().size() != sizeof(peer)) {
      return InvalidArgument("the RDMA address is not of this protocol");
    }
    if (connection().local()) return InvalidArgument("RDMA is agreed on by TCP alone");
    std::memcpy(&peer, request.rdma_address().data(), sizeof(peer));
    const storage::StagingArea* staging =
        request.staging_slots() == 0 ? nullptr : connection().MakeStaging(request.staging_slots());
    const absl::StatusOr<RdmaGrant> accepted =
        connection().stream().AcceptRdma(peer, staging != nullptr ? staging->memory() : Bytes());
    if (!accepted.ok()) {
      connection().DropStaging();
      return accepted.status();
    }
    const RdmaGrant& grant = *accepted;
    reply->set_rdma_address(&grant.address, sizeof(grant.address));
    reply->set_rdma_staging_address(grant.staging_address);
    reply->set_rdma_staging_key(grant.staging_key);
    if (staging != nullptr) reply->set_staging_slots(staging->slot_count());
    return absl::OkStatus();
  }

  // Without staging slots (budget spent) there is no local memory: the client falls back to the
  // socket.
  void ShareMemory(uint32_t staging_slots, wire::HelloReply* reply, OutFrame* frame) {
    const storage::StagingArea* staging = connection().MakeStaging(std::max(1u, staging_slots));
    if (staging == nullptr) return;
    const storage::Arena& arena = *shard().facts().arena;
    reply->set_local_memory(true);
    reply->set_arena_bytes(arena.bytes());
    reply->set_arena_slots(arena.slot_count());
    reply->set_generations_offset(arena.generations_offset());
    reply->set_staging_slots(staging->slot_count());
    frame->fds = {arena.read_only_fd(), staging->fd()};
    frame->fd_count = 2;
  }
};

class OpenNamespaceOperation final : public Operation {
 public:
  OpenNamespaceOperation(Connection* connection, const wire::FrameHeader& request)
      : Operation(connection, request) {}

  void Start(const std::string& manifest_bytes) {
    wire::OpenNamespaceReply reply;
    const absl::Status status = Open(manifest_bytes, &reply);
    if (!status.ok()) reply.set_error(Message(status));
    SendLast(status.ok() ? Outcome::kOk : Outcome::kInvalid, reply.SerializeAsString());
  }

 private:
  absl::Status Open(const std::string& manifest_bytes, wire::OpenNamespaceReply* reply) {
    RP_ASSIGN(const Manifest manifest, DecodeManifest(manifest_bytes));
    RP_ASSIGN(const NamespaceTable::Opened opened, shard().facts().namespaces->Open(manifest));
    reply->set_namespace_id(
        connection().AddNamespace({opened.name_space, opened.index, manifest.payload_bytes}));
    reply->set_name_space(opened.name_space.bytes.data(), opened.name_space.bytes.size());
    return absl::OkStatus();
  }
};

template <typename Message>
bool ParseMessage(ConstBytes body, Message* message) {
  return message->ParseFromArray(body.data(), static_cast<int>(body.size()));
}

}  // namespace

void StartHello(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  wire::HelloRequest request;
  if (!ParseMessage(body, &request)) {
    connection->Refuse(Outcome::kInvalid, "the hello message is damaged");
    return;
  }
  if (request.protocol_version() != wire::kProtocolVersion) {
    connection->Refuse(Outcome::kUnsupported, "this daemon speaks protocol version " +
                                                  std::to_string(wire::kProtocolVersion) +
                                                  ", the client version " +
                                                  std::to_string(request.protocol_version()));
    return;
  }
  (new HelloOperation(connection, header))->Start(request);
}

void StartOpenNamespace(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  wire::OpenNamespaceRequest request;
  if (!ParseMessage(body, &request)) {
    FailedOperation::Start(connection, header, Outcome::kInvalid);
    return;
  }
  (new OpenNamespaceOperation(connection, header))->Start(request.manifest());
}

void StartRelease(Connection* connection, const wire::FrameHeader&, ConstBytes body) {
  wire::ReleaseView view;
  if (!wire::Decode(body, &view)) {
    connection->Refuse(Outcome::kInvalid, "a release message is damaged");
    return;
  }
  for (uint32_t i = 0; i < view.fixed.lease_count; ++i) {
    connection->EndLease(wire::At<uint64_t>(view.lease_ids, i));
  }
}

}  // namespace reprise::server
