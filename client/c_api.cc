#include "client/c_api.h"

#include <algorithm>
#include <cstring>

#include "client/explanation_json.h"
#include "protocol/identity/block_hash.h"

// The calls that need no records: connection, manifest, keys, lookup, windows, administration.
// Loading and putting are in c_api_records.cc, slots in HBM in c_api_slots.cc. Every function
// checks its pointers, since the callers are other languages.
namespace reprise::c_api {

rp_status StatusCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return RP_OK;
    case absl::StatusCode::kNotFound:
      return RP_NOT_FOUND;
    case absl::StatusCode::kInvalidArgument:
      return RP_INVALID;
    case absl::StatusCode::kUnavailable:
      return RP_UNAVAILABLE;
    case absl::StatusCode::kDeadlineExceeded:
      return RP_TIMEOUT;
    case absl::StatusCode::kDataLoss:
      return RP_DAMAGED;
    case absl::StatusCode::kResourceExhausted:
      return RP_BUSY;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
      return RP_REFUSED;
    default:
      return RP_INTERNAL;
  }
}

rp_status Fail(rp_client* client, const absl::Status& status) {
  client->error = Message(status);
  return StatusCode(status);
}

std::vector<BlockKey> FromC(const rp_key* keys, size_t key_count) {
  std::vector<BlockKey> out(key_count);
  if (key_count > 0)
    std::memcpy(static_cast<void*>(out.data()), keys, key_count * sizeof(BlockKey));
  return out;
}

bool CheckNamespace(rp_client* client, uint32_t namespace_id) {
  if (namespace_id < client->payload_bytes.size()) return true;
  client->error = "namespace id " + std::to_string(namespace_id) +
                  " was not opened on this client; call rp_open_namespace first";
  return false;
}

namespace {

std::string Text(const rp_text& text) {
  return text.data == nullptr ? std::string() : std::string(text.data, text.length);
}

void Refine(const rp_text& text, std::string* field) {
  if (text.data != nullptr) *field = Text(text);
}

absl::StatusOr<Manifest> ManifestOf(const rp_manifest& in) {
  if (in.struct_bytes != sizeof(rp_manifest)) {
    return InvalidArgument("rp_manifest.struct_bytes is wrong; call rp_manifest_init first");
  }
  Manifest manifest;
  manifest.record_layout = std::to_string(kRecordLayoutVersion);
  if (in.preset.data != nullptr) {
    RP_ASSIGN(const KvGeometry geometry, KvGeometry::Preset(Text(in.preset)));
    RP_ASSIGN(manifest, Manifest::For(geometry));
  }
  if (in.opaque != 0) manifest.kind = "opaque";
  Refine(in.model_config, &manifest.model_config);
  Refine(in.weights_digest, &manifest.weights_digest);
  Refine(in.tokenizer_digest, &manifest.tokenizer_digest);
  Refine(in.kv_formats, &manifest.kv_formats);
  Refine(in.kv_sources, &manifest.kv_sources);
  if (in.payload_bytes != 0) manifest.payload_bytes = in.payload_bytes;
  Refine(in.tenant_salt, &manifest.tenant_salt);
  Refine(in.adapter, &manifest.adapter);
  Refine(in.engine, &manifest.engine);
  if (manifest.payload_bytes == 0) {
    return InvalidArgument("rp_manifest.payload_bytes is 0; set it, or name a preset");
  }
  return manifest;
}

static_assert(static_cast<uint32_t>(Transport::kAuto) == RP_TRANSPORT_AUTO &&
              static_cast<uint32_t>(Transport::kShared) == RP_TRANSPORT_SHARED &&
              static_cast<uint32_t>(Transport::kRdma) == RP_TRANSPORT_RDMA &&
              static_cast<uint32_t>(Transport::kTcp) == RP_TRANSPORT_TCP);

absl::StatusOr<ClientOptions> OptionsOf(const rp_options* in) {
  ClientOptions options{.name = "c"};
  if (in == nullptr) return options;
  if (in->struct_bytes != sizeof(rp_options)) {
    return InvalidArgument("rp_options.struct_bytes is not sizeof(rp_options)");
  }
  if (in->address != nullptr) options.address.assign(in->address, in->address_length);
  if (in->name != nullptr) options.name.assign(in->name, in->name_length);
  if (in->deadline_us > 0) options.deadline_ns = in->deadline_us * kMicrosecond;
  if (in->spin_us != 0) options.spin_ns = in->spin_us < 0 ? 0 : in->spin_us * kMicrosecond;
  if (in->staging_slots != 0) options.staging_slots = in->staging_slots;
  options.local_memory = in->no_local_memory == 0;
  options.verify_local = in->verify_local != 0;
  if (in->transport > RP_TRANSPORT_TCP) {
    return InvalidArgument("rp_options.transport is none of RP_TRANSPORT_*");
  }
  options.transport = static_cast<Transport>(in->transport);
  if (in->rdma_device != nullptr)
    options.rdma_device = Text({in->rdma_device, in->rdma_device_length});
  return options;
}

}  // namespace
}  // namespace reprise::c_api

using reprise::InvalidArgument;
using reprise::c_api::CheckNamespace;
using reprise::c_api::Fail;
using reprise::c_api::FromC;
using reprise::c_api::ToC;

extern "C" {

uint32_t rp_abi_version(void) { return RP_ABI_VERSION; }

const char* rp_status_name(rp_status status) {
  static constexpr const char* kNames[] = {"ok",          "not_found", "invalid",
                                           "unavailable", "timeout",   "damaged",
                                           "busy",        "refused",   "internal"};
  const auto index = static_cast<size_t>(status);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

const char* rp_outcome_name(rp_outcome outcome) {
  return reprise::OutcomeName(static_cast<reprise::Outcome>(outcome)).data();
}

rp_status rp_connect(const rp_options* options, rp_client** client, const char** error_text) {
  static thread_local std::string error;
  if (client == nullptr) return RP_INVALID;
  *client = nullptr;
  absl::StatusOr<std::unique_ptr<reprise::Client>> connected = absl::InternalError("");
  const auto parsed = reprise::c_api::OptionsOf(options);
  connected = parsed.ok() ? reprise::Client::Connect(*parsed) : parsed.status();
  if (!connected.ok()) {
    error = reprise::Message(connected.status());
    if (error_text != nullptr) *error_text = error.c_str();
    return reprise::c_api::StatusCode(connected.status());
  }
  *client = new rp_client{.client = *std::move(connected)};
  (*client)->model = (*client)->client->model();
  (*client)->server_version = (*client)->client->server_version();
  (*client)->transport = (*client)->client->transport();
  return RP_OK;
}

void rp_close(rp_client* client) { delete client; }

const char* rp_last_error(const rp_client* client) {
  return client == nullptr ? "the client is NULL" : client->error.c_str();
}

void rp_set_deadline(rp_client* client, int64_t deadline_us) {
  if (client != nullptr) client->client->set_deadline(deadline_us * reprise::kMicrosecond);
}

rp_status rp_get_facts(const rp_client* client, rp_facts* facts) {
  if (client == nullptr || facts == nullptr || facts->struct_bytes != sizeof(rp_facts)) {
    return RP_INVALID;
  }
  facts->record_bytes = client->client->record_bytes();
  facts->payload_bytes_max = client->client->payload_bytes_max();
  facts->staging_slots = client->client->staging_slots();
  facts->local = client->client->local() ? 1 : 0;
  facts->reserved = 0;
  facts->model = client->model.c_str();
  facts->server_version = client->server_version.c_str();
  facts->transport = client->transport.c_str();
  facts->transport_note = client->client->transport_note().c_str();
  return RP_OK;
}

rp_status rp_manifest_init(rp_manifest* manifest, const char* preset, size_t preset_length) {
  if (manifest == nullptr) return RP_INVALID;
  *manifest = {};
  manifest->struct_bytes = sizeof(rp_manifest);
  manifest->preset = {preset, preset_length};
  return RP_OK;
}

rp_status rp_open_namespace(rp_client* client, const rp_manifest* manifest, uint32_t* namespace_id,
                            uint8_t* namespace_hash) {
  if (client == nullptr || manifest == nullptr || namespace_id == nullptr) return RP_INVALID;
  const auto parsed = reprise::c_api::ManifestOf(*manifest);
  if (!parsed.ok()) return Fail(client, parsed.status());
  const auto id = client->client->OpenNamespace(*parsed);
  if (!id.ok()) return Fail(client, id.status());
  if (*id >= client->payload_bytes.size()) client->payload_bytes.resize(*id + 1);
  client->payload_bytes[*id] = parsed->payload_bytes;
  *namespace_id = *id;
  if (namespace_hash != nullptr) {
    std::memcpy(namespace_hash, client->client->name_space(*id).bytes.data(), 32);
  }
  return RP_OK;
}

rp_status rp_block_hashes(rp_client* client, uint32_t namespace_id, const int32_t* tokens,
                          size_t token_count, rp_key* keys, size_t key_capacity,
                          size_t* key_count) {
  if (client == nullptr || key_count == nullptr || (tokens == nullptr && token_count > 0) ||
      (keys == nullptr && key_capacity > 0) || !CheckNamespace(client, namespace_id)) {
    return RP_INVALID;
  }
  *key_count = token_count / reprise::kBlockTokens;
  const size_t wanted = std::min(*key_count, key_capacity);
  const auto chain = reprise::PrefixChain(client->client->name_space(namespace_id),
                                          {tokens, wanted * reprise::kBlockTokens});
  for (size_t i = 0; i < wanted; ++i) keys[i] = ToC(KeyOf(chain[i]));
  return RP_OK;
}

rp_status rp_opaque_key(rp_client* client, uint32_t namespace_id, const void* key,
                        size_t key_length, rp_key* out) {
  if (client == nullptr || key == nullptr || out == nullptr ||
      !CheckNamespace(client, namespace_id)) {
    return RP_INVALID;
  }
  if (key_length == 0 || key_length > RP_OPAQUE_KEY_BYTES_MAX) {
    return Fail(client, InvalidArgument("an opaque key has 1 to 512 bytes"));
  }
  *out = ToC(KeyOf(reprise::OpaqueHash(client->client->name_space(namespace_id),
                                       {static_cast<const std::byte*>(key), key_length})));
  return RP_OK;
}

rp_status rp_prefix_window_key(rp_client* client, uint32_t namespace_id, const int32_t* tokens,
                               size_t token_count, uint64_t position, rp_window_key* out) {
  if (client == nullptr || tokens == nullptr || out == nullptr ||
      !CheckNamespace(client, namespace_id)) {
    return RP_INVALID;
  }
  if (position == 0 || position > token_count || position > UINT32_MAX) {
    return Fail(client, InvalidArgument("a window's position lies in 1..token_count"));
  }
  const auto& name_space = client->client->name_space(namespace_id);
  const std::span<const int32_t> prefix(tokens, position);
  const auto chain = reprise::PrefixChain(name_space, prefix);
  *out = {.prefix = ToC(KeyOf(reprise::ExactPrefixHash(name_space, chain, prefix,
                                                       static_cast<uint32_t>(position)))),
          .position = position};
  return RP_OK;
}

rp_status rp_lookup(rp_client* client, uint32_t namespace_id, const rp_key* keys, size_t key_count,
                    const rp_window_key* windows, size_t window_count, rp_verdict* verdict,
                    uint8_t* tiers) {
  if (client == nullptr || verdict == nullptr || (keys == nullptr && key_count > 0) ||
      (windows == nullptr && window_count > 0)) {
    return RP_INVALID;
  }
  std::vector<reprise::wire::WindowKey> asked;
  for (size_t i = 0; i < window_count; ++i) asked.push_back(FromC(windows[i]));
  const auto found = client->client->Lookup(namespace_id, FromC(keys, key_count), asked);
  if (!found.ok()) return Fail(client, found.status());
  *verdict = {.hit_tokens = found->hit_tokens,
              .hit_blocks = found->hit_blocks,
              .window_bytes = found->window_bytes,
              .stop_reason = static_cast<uint8_t>(found->stop_reason),
              .window_state = static_cast<uint8_t>(found->window)};
  if (found->window == reprise::wire::WindowState::kExact) {
    verdict->window_index = static_cast<uint32_t>(
        std::find(asked.begin(), asked.end(), found->window_key) - asked.begin());
  }
  if (tiers != nullptr && !found->tiers.empty()) {
    std::memcpy(tiers, found->tiers.data(), found->tiers.size());
  }
  return RP_OK;
}

rp_status rp_window_put(rp_client* client, uint32_t namespace_id, const rp_window_key* key,
                        uint64_t session_id, const void* snapshot, size_t snapshot_bytes,
                        rp_outcome* outcome) {
  if (client == nullptr || key == nullptr || snapshot == nullptr || outcome == nullptr) {
    return RP_INVALID;
  }
  const auto put =
      client->client->PutWindow(namespace_id, FromC(*key), session_id,
                                {static_cast<const std::byte*>(snapshot), snapshot_bytes});
  if (!put.ok()) return Fail(client, put.status());
  *outcome = static_cast<rp_outcome>(*put);
  return RP_OK;
}

rp_status rp_window_get(rp_client* client, uint32_t namespace_id, const rp_window_key* key,
                        void* out, size_t capacity, size_t* bytes) {
  if (client == nullptr || key == nullptr || bytes == nullptr || (out == nullptr && capacity > 0)) {
    return RP_INVALID;
  }
  const auto snapshot = client->client->GetWindow(namespace_id, FromC(*key));
  if (!snapshot.ok()) return Fail(client, snapshot.status());
  *bytes = snapshot->bytes.size();
  if (capacity < *bytes) {
    return Fail(client, InvalidArgument("the snapshot has " + std::to_string(*bytes) +
                                        " bytes, the buffer " + std::to_string(capacity)));
  }
  std::memcpy(out, snapshot->bytes.data(), *bytes);
  return RP_OK;
}

rp_status rp_status_json(rp_client* client, const char** json, size_t* length) {
  if (client == nullptr || json == nullptr || length == nullptr) return RP_INVALID;
  auto text = client->client->StatusJson();
  if (!text.ok()) return Fail(client, text.status());
  client->json = *std::move(text);
  *json = client->json.c_str();
  *length = client->json.size();
  return RP_OK;
}

rp_status rp_explain_json(rp_client* client, uint32_t namespace_id, const int32_t* tokens,
                          size_t token_count, const char** json, size_t* length) {
  if (client == nullptr || json == nullptr || length == nullptr ||
      (tokens == nullptr && token_count > 0)) {
    return RP_INVALID;
  }
  const auto explanation = client->client->Explain(namespace_id, {tokens, token_count});
  if (!explanation.ok()) return Fail(client, explanation.status());
  client->json = reprise::ExplanationJson(*explanation, client->client->name_space(namespace_id));
  *json = client->json.c_str();
  *length = client->json.size();
  return RP_OK;
}

rp_status rp_evict(rp_client* client, uint32_t namespace_id, const rp_key* keys, size_t key_count,
                   uint64_t* evicted_blocks) {
  if (client == nullptr || evicted_blocks == nullptr || (keys == nullptr && key_count > 0)) {
    return RP_INVALID;
  }
  const auto evicted = client->client->Evict(namespace_id, FromC(keys, key_count));
  if (!evicted.ok()) return Fail(client, evicted.status());
  *evicted_blocks = *evicted;
  return RP_OK;
}

}  // extern "C"
