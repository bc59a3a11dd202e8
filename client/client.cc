#include "client/client.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "client/client_impl.h"
#include "protocol/base/check.h"
#include "protocol/rdma/lib_verbs.h"
#include "protocol/record/record_layout.h"

namespace reprise {
namespace {

constexpr size_t kHelloBodyBytes =
    16 * 1024;  // First read of a control reply; more follows as needed.

absl::Status CheckHello(const wire::HelloReply& hello) {
  const uint32_t record_bytes = hello.record_bytes();
  if (hello.protocol_version() != wire::kProtocolVersion) {
    return FailedPrecondition("the daemon speaks protocol version " +
                              std::to_string(hello.protocol_version()) +
                              "; use the same release on both sides");
  }
  if (record_bytes < kRecordTailBytes || record_bytes % kPageBytes != 0 ||
      record_bytes > wire::kDataBytesMax ||
      hello.payload_bytes_max() > record_bytes - kRecordTailBytes ||
      hello.store_uuid().size() != 16) {
    return DataLoss("the daemon's hello makes no sense (records of " +
                    std::to_string(record_bytes) + " bytes); use the same release on both sides");
  }
  return absl::OkStatus();
}

rdma::Verbs* LibVerbs() {
  static const std::unique_ptr<rdma::Verbs> verbs = rdma::MakeLibVerbs();
  return verbs.get();
}

absl::Status CheckTransport(const ClientOptions& options) {
  const bool is_tcp = options.address.starts_with("tcp:");
  const bool needs_tcp =
      options.transport == Transport::kRdma || options.transport == Transport::kTcp;
  if (needs_tcp && !is_tcp) {
    return InvalidArgument("this transport needs a tcp: address, not " + options.address +
                           " (RDMA is agreed on by TCP)");
  }
  if (options.transport == Transport::kShared && is_tcp) {
    return InvalidArgument("shared memory needs a unix: address, not " + options.address);
  }
  return absl::OkStatus();
}

bool WantsRdma(const ClientOptions& options) {
  if (options.transport == Transport::kRdma) return true;
  return options.transport == Transport::kAuto && options.address.starts_with("tcp:") &&
         options.rdma_device != "off";
}

absl::StatusOr<std::unique_ptr<RdmaLink>> MakeLink(const ClientOptions& options,
                                                   const Connection& connection) {
  RP_ASSIGN(const rdma::PortWish wish, rdma::ParsePortWish(options.rdma_device));
  rdma::Gid gid;
  return RdmaLink::Create(options.verbs != nullptr ? options.verbs : LibVerbs(),
                          {.wish = wish,
                           .local = connection.LocalGid(&gid) ? &gid : nullptr,
                           .daemon = options.address,
                           .spin_ns = options.spin_ns});
}

// Closes what came with a hello, whatever happens.
struct Descriptors {
  std::array<int, 2> fds;
  ~Descriptors() {
    for (const int fd : fds) {
      if (fd >= 0) close(fd);
    }
  }
};

}  // namespace

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  const Instant deadline = SystemClock().Now() + options.connect_timeout_ns;
  RP_TRY(CheckTransport(options));
  std::string note;
  for (bool try_rdma = true;; try_rdma = false) {
    RP_ASSIGN(auto connection, Connection::Open(options.address, options.spin_ns, deadline));
    std::unique_ptr<RdmaLink> link;
    if (try_rdma && WantsRdma(options)) {
      auto made = MakeLink(options, *connection);
      if (made.ok()) {
        link = *std::move(made);
      } else if (options.transport == Transport::kRdma) {
        return made.status();
      } else {
        note = Message(made.status());
      }
    }
    auto impl = std::make_unique<Impl>(options, std::move(connection));
    const absl::Status status = impl->Hello(std::move(link), deadline);
    if (!status.ok()) {
      // A link that carries nothing: without it, the daemon may be reached all the same.
      if (!impl->rdma_agreed || options.transport == Transport::kRdma) return status;
      note = Message(status);
      continue;
    }
    if (impl->transport_note.empty()) impl->transport_note = note;
    return std::unique_ptr<Client>(new Client(std::move(impl)));
  }
}

absl::Status Client::Impl::Hello(std::unique_ptr<RdmaLink> link, Instant deadline) {
  const bool ask_local = options.local_memory && channel.connection().is_unix();
  wire::HelloRequest request;
  request.set_protocol_version(wire::kProtocolVersion);
  request.set_client_name(options.name);
  request.set_local_memory(ask_local);
  request.set_staging_slots(ask_local || link != nullptr ? options.staging_slots : 0);
  if (link != nullptr) request.set_rdma_address(&link->address(), sizeof(rdma::PeerAddress));
  if (ask_local) channel.connection().KeepDescriptors();
  RP_ASSIGN(const Reply reply, channel.Call(wire::Opcode::kHello, request.SerializeAsString(), {},
                                            kHelloBodyBytes, deadline));
  const Descriptors received{channel.connection().TakeDescriptors()};
  if (!ParseBody(reply.body, &hello)) {
    return channel.Break(DataLoss("the daemon's hello cannot be read; use the same release"));
  }
  if (absl::Status status = CheckHello(hello); !status.ok()) return channel.Break(status);
  channel.set_store_id(LoadLe<uint64_t>(hello.store_uuid().data()));
  if (link != nullptr) {
    if (!hello.rdma_address().empty()) {
      rdma_agreed = true;
      return StartRdma(std::move(link), deadline);
    }
    transport_note =
        hello.rdma_declined().empty() ? "the daemon knows no RDMA" : hello.rdma_declined();
    if (options.transport == Transport::kRdma) {
      return channel.Break(FailedPrecondition("the daemon declined RDMA: " + transport_note));
    }
  }
  if (!ask_local || !hello.local_memory()) {
    if (options.transport != Transport::kShared) return absl::OkStatus();
    return channel.Break(
        FailedPrecondition("the daemon did not share its memory; see reprise status"));
  }
  return memory.Map(received.fds[0], received.fds[1],
                    {.slot_bytes = hello.record_bytes(),
                     .arena_bytes = hello.arena_bytes(),
                     .arena_slots = hello.arena_slots(),
                     .generations_offset = hello.generations_offset(),
                     .staging_slots = hello.staging_slots()});
}

absl::Status Client::Impl::StartRdma(std::unique_ptr<RdmaLink> link, Instant deadline) {
  rdma::PeerAddress peer;
  if (hello.rdma_address().size() != sizeof(peer)) {
    return channel.Break(DataLoss("the daemon's RDMA address is not of this protocol"));
  }
  std::memcpy(&peer, hello.rdma_address().data(), sizeof(peer));
  RP_TRY(memory.MakeStaging(hello.record_bytes(), hello.staging_slots()));
  Connection& connection = channel.connection();
  RP_TRY(link->Connect(peer, connection.descriptor(), memory.staging_area(), hello.record_bytes(),
                       hello.rdma_staging_address(), hello.rdma_staging_key()));
  buffers.OnUnmap([this](Bytes buffer) {
    if (rdma() != nullptr) rdma()->Forget(buffer);
  });
  connection.UseRdma(std::move(link));
  // Half of the time, so that enough is left to connect without it.
  const Instant now = connection.Now();
  RP_TRY(rdma()->Prove(now + (deadline - now) / 2));
  by_rdma = true;
  return absl::OkStatus();
}

std::string Client::transport() const {
  if (local()) return "shared memory";
  if (impl_->by_rdma) return "rdma";
  return impl_->channel.connection().is_unix() ? "unix" : "tcp";
}
const std::string& Client::transport_note() const { return impl_->transport_note; }

uint32_t Client::record_bytes() const { return impl_->hello.record_bytes(); }
uint32_t Client::payload_bytes_max() const { return impl_->hello.payload_bytes_max(); }
std::string Client::model() const { return impl_->hello.model(); }
bool Client::local() const { return impl_->memory.mapped(); }
std::string Client::server_version() const { return impl_->hello.server_version(); }
void Client::set_deadline(Nanos deadline_ns) { impl_->options.deadline_ns = deadline_ns; }

absl::StatusOr<uint32_t> Client::OpenNamespace(const Manifest& manifest) {
  const Hash256 hash = NamespaceOf(manifest);
  auto& opened = impl_->namespaces;
  for (uint32_t id = 0; id < opened.size(); ++id) {
    if (opened[id].hash == hash) return id;
  }
  wire::OpenNamespaceRequest request;
  request.set_manifest(EncodeManifest(manifest));
  RP_ASSIGN(const Reply reply,
            impl_->channel.Call(wire::Opcode::kOpenNamespace, request.SerializeAsString(), {},
                                kHelloBodyBytes, impl_->Deadline()));
  wire::OpenNamespaceReply body;
  if (!ParseBody(reply.body, &body)) return DataLoss("open namespace: the reply cannot be read");
  if (reply.outcome() != Outcome::kOk) {
    const absl::Status status = StatusOf(reply.outcome(), "open namespace");
    if (body.error().empty()) return status;
    return absl::Status(status.code(), "open namespace: " + body.error());
  }
  if (AsBytes(body.name_space()).size() != hash.bytes.size() ||
      std::memcmp(body.name_space().data(), hash.bytes.data(), hash.bytes.size()) != 0) {
    return Internal(
        "open namespace: the daemon computed another namespace for this manifest; use "
        "the same release on both sides");
  }
  opened.push_back(
      {.daemon_id = body.namespace_id(), .hash = hash, .payload_bytes = manifest.payload_bytes});
  return static_cast<uint32_t>(opened.size() - 1);
}

const Hash256& Client::name_space(uint32_t namespace_id) const {
  RP_CHECK(namespace_id < impl_->namespaces.size());
  return impl_->namespaces[namespace_id].hash;
}

absl::StatusOr<const Client::Impl::OpenedNamespace*> Client::Impl::Find(
    uint32_t namespace_id) const {
  if (namespace_id < namespaces.size()) return &namespaces[namespace_id];
  return InvalidArgument("namespace id " + std::to_string(namespace_id) +
                         " was not opened on this client; call OpenNamespace first");
}

}  // namespace reprise
