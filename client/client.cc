#include "client/client.h"

#include <unistd.h>

#include "client/client_impl.h"
#include "protocol/base/check.h"
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
  RP_ASSIGN(auto connection, Connection::Open(options.address, options.spin_ns, deadline));
  auto impl = std::make_unique<Impl>(options, std::move(connection));
  RP_TRY(impl->Hello(deadline));
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

absl::Status Client::Impl::Hello(Instant deadline) {
  const bool ask_local = options.local_memory && channel.connection().is_unix();
  wire::HelloRequest request;
  request.set_protocol_version(wire::kProtocolVersion);
  request.set_client_name(options.name);
  request.set_local_memory(ask_local);
  request.set_staging_slots(ask_local ? options.staging_slots : 0);
  if (ask_local) channel.connection().KeepDescriptors();
  RP_ASSIGN(const Reply reply, channel.Call(wire::Opcode::kHello, request.SerializeAsString(), {},
                                            kHelloBodyBytes, deadline));
  const Descriptors received{channel.connection().TakeDescriptors()};
  if (!ParseBody(reply.body, &hello)) {
    return channel.Break(DataLoss("the daemon's hello cannot be read; use the same release"));
  }
  if (absl::Status status = CheckHello(hello); !status.ok()) return channel.Break(status);
  channel.set_store_id(LoadLe<uint64_t>(hello.store_uuid().data()));
  if (!ask_local || !hello.local_memory()) return absl::OkStatus();
  return memory.Map(received.fds[0], received.fds[1],
                    {.slot_bytes = hello.record_bytes(),
                     .arena_bytes = hello.arena_bytes(),
                     .arena_slots = hello.arena_slots(),
                     .generations_offset = hello.generations_offset(),
                     .staging_slots = hello.staging_slots()});
}

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
  opened.push_back({.daemon_id = body.namespace_id(), .hash = hash});
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
