#include <algorithm>
#include <cstring>

#include "client/client_impl.h"
#include "protocol/record/record.h"

namespace reprise {
namespace {

std::string KeysBody(uint32_t daemon_id, std::span<const BlockKey> keys) {
  std::string body;
  body.reserve(sizeof(wire::KeysRequest) + keys.size_bytes());
  wire::Append(&body, wire::KeysRequest{.namespace_id = daemon_id,
                                        .key_count = static_cast<uint32_t>(keys.size())});
  wire::AppendArray<BlockKey>(&body, keys);
  return body;
}

// Records are verified a few at a time: while they are in the cache, and while the kernel takes in
// the next ones.
constexpr uint32_t kRecordsPerReceive = 8;

}  // namespace

absl::Status CheckKeyCount(size_t key_count, const char* call) {
  if (key_count <= wire::kKeysMax) return absl::OkStatus();
  return InvalidArgument(std::string(call) + ": " + std::to_string(key_count) +
                         " keys are over the limit of " + std::to_string(wire::kKeysMax) +
                         "; ask for the prefix in pieces");
}

bool EndsRun(Outcome outcome) {
  switch (outcome) {
    case Outcome::kInvalid:
    case Outcome::kUnsupported:
    case Outcome::kWrongNamespace:
    case Outcome::kClosed:
      return false;
    default:
      return true;
  }
}

bool IsTheBlock(ConstBytes record, const BlockKey& key, const Hash256& name_space) {
  const RecordHeader header = LoadRecordHeader(record);
  return header.magic == kRecordMagic && KeyOf(header.block_hash) == key &&
         header.name_space == name_space;
}

absl::StatusOr<Verdict> Client::Lookup(uint32_t namespace_id, std::span<const BlockKey> keys,
                                       std::span<const wire::WindowKey> windows) {
  RP_ASSIGN(const auto* name_space, impl_->Find(namespace_id));
  RP_TRY(CheckKeyCount(keys.size(), "lookup"));
  if (windows.size() > wire::kWindowCandidatesMax) {
    return InvalidArgument("lookup: at most " + std::to_string(wire::kWindowCandidatesMax) +
                           " window positions; give the newest");
  }
  std::string body;
  wire::Append(&body, wire::LookupRequest{.namespace_id = name_space->daemon_id,
                                          .key_count = static_cast<uint32_t>(keys.size()),
                                          .window_count = static_cast<uint32_t>(windows.size())});
  wire::AppendArray<BlockKey>(&body, keys);
  wire::AppendArray<wire::WindowKey>(&body, windows);
  RP_ASSIGN(const Reply reply,
            impl_->channel.Call(wire::Opcode::kLookup, body, {},
                                sizeof(wire::LookupReply) + keys.size(), impl_->Deadline()));
  if (reply.outcome() != Outcome::kOk) return StatusOf(reply.outcome(), "lookup");
  wire::LookupReplyView view;
  const bool decoded = wire::Decode(reply.body, &view);
  const wire::LookupReply& fixed = view.fixed;
  const bool exact = fixed.window_state == wire::WindowState::kExact;
  if (!decoded || fixed.hit_blocks > keys.size() ||
      (exact && fixed.window_index >= windows.size())) {
    return impl_->channel.Break(DataLoss("lookup: the verdict makes no sense; connect again"));
  }
  Verdict verdict{.hit_tokens = fixed.hit_tokens,
                  .hit_blocks = fixed.hit_blocks,
                  .stop_reason = fixed.stop_reason,
                  .window = fixed.window_state,
                  .window_bytes = fixed.window_bytes};
  verdict.tiers.resize(fixed.hit_blocks);
  if (fixed.hit_blocks > 0) {
    std::memcpy(verdict.tiers.data(), view.tiers.data(), fixed.hit_blocks);
  }
  if (exact) verdict.window_key = windows[fixed.window_index];
  if (fixed.window_state == wire::WindowState::kBoundary && fixed.hit_blocks > 0) {
    verdict.window_key = {.prefix = keys[fixed.hit_blocks - 1], .position = fixed.hit_tokens};
  }
  return verdict;
}

absl::StatusOr<Lease> Client::Acquire(uint32_t namespace_id, std::span<const BlockKey> keys) {
  RP_ASSIGN(const auto* name_space, impl_->Find(namespace_id));
  RP_TRY(CheckKeyCount(keys.size(), "acquire"));
  if (local()) return impl_->AcquireLocal(this, *name_space, keys);
  return impl_->rdma() != nullptr ? impl_->AcquireByRdma(this, *name_space, keys)
                                  : impl_->AcquireRemote(this, *name_space, keys);
}

absl::StatusOr<Lease> Client::Impl::AcquireLocal(Client* client, const OpenedNamespace& name_space,
                                                 std::span<const BlockKey> keys) {
  RP_ASSIGN(
      const Reply reply,
      channel.Call(wire::Opcode::kAcquire, KeysBody(name_space.daemon_id, keys), {},
                   sizeof(wire::AcquireReply) + keys.size() * sizeof(wire::SlotRef), Deadline()));
  if (!EndsRun(reply.outcome())) return StatusOf(reply.outcome(), "acquire");
  Lease lease;
  lease.stopped_by_ = reply.outcome();
  if (reply.body.empty() && reply.outcome() != Outcome::kOk) return lease;
  wire::AcquireReplyView view;
  if (!wire::Decode(reply.body, &view) || view.fixed.slot_count > keys.size()) {
    return channel.Break(DataLoss("acquire: the reply makes no sense; connect again"));
  }
  lease.client_ = client;
  lease.lease_id_ = view.fixed.lease_id;
  lease.from_ssd_ = view.fixed.from_ssd;
  lease.slots_.reserve(view.fixed.slot_count);
  lease.records_.reserve(view.fixed.slot_count);
  for (uint32_t i = 0; i < view.fixed.slot_count; ++i) {
    const auto ref = wire::At<wire::SlotRef>(view.slots, i);
    if (ref.slot >= memory.arena_slots()) {
      return channel.Break(DataLoss("acquire: a slot outside the arena; connect again"));
    }
    const ConstBytes record = memory.slot(ref.slot);
    if (!memory.Current(ref) || !IsTheBlock(record, keys[i], name_space.hash) ||
        (options.verify_local && VerifyRecord(record, keys[i]) != Outcome::kOk)) {
      lease.stopped_by_ = Outcome::kCorrupt;
      break;
    }
    lease.slots_.push_back(ref);
    lease.records_.push_back(record);
  }
  return lease;
}

absl::StatusOr<Lease> Client::Impl::AcquireRemote(Client* client, const OpenedNamespace& name_space,
                                                  std::span<const BlockKey> keys) {
  const Instant deadline = Deadline();
  const uint64_t record_bytes = hello.record_bytes();
  RP_TRY(channel.Send(wire::Opcode::kGet, KeysBody(name_space.daemon_id, keys), {}, deadline));
  Lease lease;
  lease.client_ = client;
  uint32_t arrived = 0;
  for (bool more = true; more;) {
    RP_ASSIGN(const Reply reply, channel.Receive(sizeof(wire::GetReply), deadline));
    more = reply.more();
    if (!EndsRun(reply.outcome()) && reply.header.data_bytes == 0 && !more) {
      return StatusOf(reply.outcome(), "get");
    }
    if (!more && lease.stopped_by_ == Outcome::kOk) lease.stopped_by_ = reply.outcome();
    if (reply.body.empty() && reply.header.data_bytes == 0 && reply.outcome() != Outcome::kOk)
      break;
    wire::GetReply part;
    if (!wire::Decode(reply.body, &part) || part.first_index != arrived ||
        part.record_count > keys.size() - arrived ||
        reply.header.data_bytes != part.record_count * record_bytes) {
      return channel.Break(DataLoss("get: a reply makes no sense; connect again"));
    }
    if (part.record_count == 0) continue;
    const Bytes buffer = buffers.Take(reply.header.data_bytes);
    if (buffer.empty()) {
      return channel.Break(ResourceExhausted("get: no memory for the records; ask for fewer"));
    }
    lease.buffers_.push_back(buffer);
    lease.from_ssd_ += part.from_ssd;
    for (uint32_t i = 0; i < part.record_count; ++i, ++arrived) {
      if (i % kRecordsPerReceive == 0) {
        const uint64_t records = std::min(kRecordsPerReceive, part.record_count - i);
        RP_TRY(channel.ReceiveData(buffer.subspan(i * record_bytes, records * record_bytes),
                                   deadline));
      }
      const ConstBytes record = buffer.subspan(i * record_bytes, record_bytes);
      if (lease.records_.size() != arrived) continue;  // The run ended before; only drain.
      if (IsTheBlock(record, keys[arrived], name_space.hash) &&
          VerifyRecord(record, keys[arrived]) == Outcome::kOk) {
        lease.records_.push_back(record);
      } else {
        lease.stopped_by_ = Outcome::kCorrupt;
      }
    }
  }
  return lease;
}

bool Client::TokensMatch(ConstBytes record, std::span<const TokenId> tokens) {
  const auto expected = std::as_bytes(tokens);
  return record.size() >= kRecordTailBytes && expected.size() == kRecordTokenBytes &&
         (LoadRecordHeader(record).flags & kOpaqueKey) == 0 &&
         std::memcmp(RecordTokens(record).data(), expected.data(), expected.size()) == 0;
}

}  // namespace reprise
