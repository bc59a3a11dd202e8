#include <algorithm>
#include <cstring>
#include <map>

#include "client/c_api.h"
#include "client/record_builder.h"
#include "protocol/identity/block_hash.h"

namespace reprise::c_api {
namespace {

constexpr uint32_t kPutFlagsKnown = RP_PUT_DURABLE | RP_PUT_REPLAY_DERIVED;
constexpr uint32_t kBatchBlocks = 64;  // Records in memory at a time.

wire::Durability DurabilityOf(uint32_t flags) {
  return (flags & RP_PUT_DURABLE) != 0 ? wire::Durability::kDurable : wire::Durability::kRelaxed;
}

// Places for the records of one batch: the slot in which a payload already lies, else memory of our
// own, which Client::Put copies into slots that are free.
class RecordPlaces {
 public:
  RecordPlaces(Client* client, const void* const* payloads, uint32_t count) : client_(*client) {
    std::map<const void*, uint32_t> slots;
    for (uint32_t slot = 0; slot < client->staging_slots(); ++slot) {
      slots[client->staging(slot).data()] = slot;
    }
    for (uint32_t i = 0; i < count; ++i) {
      const auto found = slots.find(payloads[i]);
      slot_.push_back(found == slots.end() ? wire::kNoSlot : found->second);
    }
    memory_.resize(uint64_t{count} * client->record_bytes());
  }
  Bytes place(uint32_t i) {
    if (slot_[i] != wire::kNoSlot) return client_.staging(slot_[i]);
    return Bytes(memory_).subspan(uint64_t{i} * client_.record_bytes(), client_.record_bytes());
  }

 private:
  Client& client_;
  std::vector<uint32_t> slot_;
  std::vector<std::byte> memory_;
};

struct PutArguments {
  uint32_t namespace_id;
  std::span<const TokenId> tokens;
  uint32_t first_block;
  uint32_t block_count;
  const void* const* payloads;
  uint32_t flags;
  rp_outcome* outcomes;
};

absl::Status PutBatch(rp_client* handle, const PutArguments& put, std::span<const Hash256> chain,
                      uint32_t begin, uint32_t end) {
  Client& client = *handle->client;
  const Hash256& name_space = client.name_space(put.namespace_id);
  RecordPlaces places(&client, put.payloads + begin, end - begin);
  std::vector<ConstBytes> records;
  const int64_t now_ms = SystemClock().WallMillis();
  for (uint32_t i = begin; i < end; ++i) {
    const uint32_t index = put.first_block + i;
    const TokenBlock block{
        .name_space = name_space,
        .parent_hash = index == 0 ? name_space : chain[index - 1],
        .block_index = index,
        .tokens = put.tokens.subspan(uint64_t{index} * kBlockTokens, kBlockTokens),
        .flags = (put.flags & RP_PUT_REPLAY_DERIVED) != 0 ? uint32_t{kReplayDerived} : 0,
        .created_ms = now_ms};
    const ConstBytes payload(static_cast<const std::byte*>(put.payloads[i]),
                             handle->payload_bytes[put.namespace_id]);
    const Bytes record = places.place(i - begin);
    RP_TRY(BuildTokenRecord(block, payload, record).status());
    records.push_back(record);
  }
  std::vector<Outcome> outcomes(records.size());
  const absl::Status status =
      client.Put(put.namespace_id, records, DurabilityOf(put.flags), outcomes);
  std::transform(outcomes.begin(), outcomes.end(), put.outcomes + begin,
                 [](Outcome outcome) { return static_cast<rp_outcome>(outcome); });
  return status;
}

absl::Status Put(rp_client* handle, const PutArguments& put) {
  std::fill_n(put.outcomes, put.block_count, static_cast<rp_outcome>(Outcome::kClosed));
  const uint64_t end_block = uint64_t{put.first_block} + put.block_count;
  if (end_block * kBlockTokens > put.tokens.size()) {
    return InvalidArgument("the sequence has " + std::to_string(put.tokens.size()) +
                           " tokens; blocks up to " + std::to_string(end_block) + " need " +
                           std::to_string(end_block * kBlockTokens));
  }
  if ((put.flags & ~kPutFlagsKnown) != 0) return InvalidArgument("unknown RP_PUT_* flag");
  for (uint32_t i = 0; i < put.block_count; ++i) {
    if (put.payloads[i] == nullptr) {
      return InvalidArgument("payloads[" + std::to_string(i) + "] is NULL");
    }
  }
  const auto chain = PrefixChain(handle->client->name_space(put.namespace_id),
                                 put.tokens.first(end_block * kBlockTokens));
  for (uint32_t begin = 0; begin < put.block_count; begin += kBatchBlocks) {
    RP_TRY(PutBatch(handle, put, chain, begin, std::min(begin + kBatchBlocks, put.block_count)));
  }
  return absl::OkStatus();
}

absl::Status PutOpaque(rp_client* handle, uint32_t namespace_id, ConstBytes key, ConstBytes payload,
                       uint32_t flags, rp_outcome* outcome) {
  Client& client = *handle->client;
  if ((flags & ~uint32_t{RP_PUT_DURABLE}) != 0) {
    return InvalidArgument("an opaque put takes RP_PUT_DURABLE only");
  }
  std::vector<std::byte> memory(client.staging_slots() == 0 ? client.record_bytes() : 0);
  const Bytes record = client.staging_slots() == 0 ? Bytes(memory) : client.staging(0);
  RP_TRY(BuildOpaqueRecord(client.name_space(namespace_id), key, payload,
                           SystemClock().WallMillis(), record)
             .status());
  const ConstBytes view = record;
  Outcome result = Outcome::kClosed;
  RP_TRY(client.Put(namespace_id, {&view, 1}, DurabilityOf(flags), {&result, 1}));
  *outcome = static_cast<rp_outcome>(result);
  return absl::OkStatus();
}

// The payload's length as the record's header says it, never more than the record has.
size_t PayloadBytes(ConstBytes record) {
  return std::min<size_t>(LoadRecordHeader(record).payload_bytes, record.size() - kRecordTailBytes);
}

}  // namespace
}  // namespace reprise::c_api

using reprise::c_api::CheckNamespace;
using reprise::c_api::Fail;
using reprise::c_api::FromC;

extern "C" {

rp_status rp_acquire(rp_client* client, uint32_t namespace_id, const rp_key* keys, size_t key_count,
                     rp_lease** lease) {
  if (client == nullptr || lease == nullptr || (keys == nullptr && key_count > 0)) {
    return RP_INVALID;
  }
  *lease = nullptr;
  auto acquired = client->client->Acquire(namespace_id, FromC(keys, key_count));
  if (!acquired.ok()) return Fail(client, acquired.status());
  *lease = new rp_lease{.lease = *std::move(acquired)};
  return RP_OK;
}

void rp_lease_release(rp_lease* lease) { delete lease; }

uint32_t rp_lease_size(const rp_lease* lease) { return lease == nullptr ? 0 : lease->lease.size(); }

uint32_t rp_lease_from_ssd(const rp_lease* lease) {
  return lease == nullptr ? 0 : lease->lease.from_ssd();
}

rp_outcome rp_lease_stopped_by(const rp_lease* lease) {
  const auto outcome = lease == nullptr ? reprise::Outcome::kClosed : lease->lease.stopped_by();
  return static_cast<rp_outcome>(outcome);
}

const void* rp_lease_record(const rp_lease* lease, uint32_t index, size_t* bytes) {
  if (index >= rp_lease_size(lease)) return nullptr;
  const reprise::ConstBytes record = lease->lease.record(index);
  if (bytes != nullptr) *bytes = record.size();
  return record.data();
}

const void* rp_lease_payload(const rp_lease* lease, uint32_t index, size_t* bytes) {
  if (index >= rp_lease_size(lease)) return nullptr;
  const reprise::ConstBytes record = lease->lease.record(index);
  if (bytes != nullptr) *bytes = reprise::c_api::PayloadBytes(record);
  return record.data();
}

rp_status rp_lease_copy_payload(const rp_lease* lease, uint32_t index, void* out, size_t capacity,
                                size_t* bytes) {
  if (index >= rp_lease_size(lease) || out == nullptr || bytes == nullptr) return RP_INVALID;
  *bytes = reprise::c_api::PayloadBytes(lease->lease.record(index));
  if (capacity < *bytes) return RP_INVALID;
  const reprise::Outcome outcome =
      lease->lease.CopyTo(index, {static_cast<std::byte*>(out), *bytes});
  return outcome == reprise::Outcome::kOk ? RP_OK : RP_UNAVAILABLE;
}

int rp_lease_tokens_match(const rp_lease* lease, uint32_t index, const int32_t* tokens) {
  if (index >= rp_lease_size(lease) || tokens == nullptr) return 0;
  return reprise::Client::TokensMatch(lease->lease.record(index), {tokens, RP_BLOCK_TOKENS}) ? 1
                                                                                             : 0;
}

rp_status rp_landing_register(rp_client* client, void* memory, size_t bytes, rp_landing** landing) {
  if (client == nullptr || memory == nullptr || landing == nullptr) return RP_INVALID;
  *landing = nullptr;
  auto zone = client->client->RegisterLanding({static_cast<std::byte*>(memory), bytes});
  if (!zone.ok()) return Fail(client, zone.status());
  *landing = new rp_landing{.zone = *std::move(zone)};
  return RP_OK;
}

rp_status rp_landing_register_dmabuf(rp_client* client, int fd, uint64_t offset, uint64_t bytes,
                                     rp_landing** landing) {
  if (client == nullptr || landing == nullptr) return RP_INVALID;
  *landing = nullptr;
  auto zone = client->client->RegisterDeviceLanding(fd, offset, bytes);
  if (!zone.ok()) return Fail(client, zone.status());
  *landing = new rp_landing{.zone = *std::move(zone)};
  return RP_OK;
}

void rp_landing_release(rp_landing* landing) { delete landing; }

rp_status rp_fetch(rp_client* client, uint32_t namespace_id, const rp_key* keys, size_t key_count,
                   rp_landing* landing, uint64_t offset, rp_landed* landed) {
  if (client == nullptr || landing == nullptr || landed == nullptr ||
      (keys == nullptr && key_count > 0)) {
    return RP_INVALID;
  }
  *landed = {};
  const auto fetched =
      client->client->Fetch(namespace_id, FromC(keys, key_count), landing->zone.get(), offset);
  if (!fetched.ok()) return Fail(client, fetched.status());
  landed->records = fetched->records;
  landed->from_ssd = fetched->from_ssd;
  landed->stopped_by = static_cast<rp_outcome>(fetched->stopped_by);
  return RP_OK;
}

rp_status rp_put(rp_client* client, uint32_t namespace_id, const int32_t* tokens,
                 size_t token_count, uint32_t first_block, uint32_t block_count,
                 const void* const* payloads, uint32_t flags, rp_outcome* outcomes) {
  if (client == nullptr || tokens == nullptr || payloads == nullptr || outcomes == nullptr ||
      !CheckNamespace(client, namespace_id)) {
    return RP_INVALID;
  }
  const absl::Status status = reprise::c_api::Put(client, {.namespace_id = namespace_id,
                                                           .tokens = {tokens, token_count},
                                                           .first_block = first_block,
                                                           .block_count = block_count,
                                                           .payloads = payloads,
                                                           .flags = flags,
                                                           .outcomes = outcomes});
  return status.ok() ? RP_OK : Fail(client, status);
}

rp_status rp_put_opaque(rp_client* client, uint32_t namespace_id, const void* key,
                        size_t key_length, const void* payload, size_t payload_length,
                        uint32_t flags, rp_outcome* outcome) {
  if (client == nullptr || key == nullptr || payload == nullptr || outcome == nullptr ||
      !CheckNamespace(client, namespace_id)) {
    return RP_INVALID;
  }
  const absl::Status status = reprise::c_api::PutOpaque(
      client, namespace_id, {static_cast<const std::byte*>(key), key_length},
      {static_cast<const std::byte*>(payload), payload_length}, flags, outcome);
  return status.ok() ? RP_OK : Fail(client, status);
}

void* rp_staging(rp_client* client, uint32_t slot) {
  if (client == nullptr || slot >= client->client->staging_slots()) return nullptr;
  return client->client->staging(slot).data();
}

}  // extern "C"
