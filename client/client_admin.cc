#include <algorithm>

#include "client/client_impl.h"
#include "protocol/identity/block_hash.h"

namespace reprise {
namespace {

constexpr size_t kControlBodyBytes = 64 * 1024;  // First read of a reply; more follows as needed.
constexpr size_t kControlKeysMax = 50'000;       // 18 bytes each in protobuf: below kBodyBytesMax.
constexpr size_t kExplainTokensMax = kControlKeysMax * kBlockTokens;

template <typename Request>
void AddKeys(std::span<const BlockKey> keys, Request* request) {
  for (const BlockKey& key : keys)
    request->add_keys(reinterpret_cast<const char*>(&key), sizeof(key));
}

void Add(const wire::VerifyReply& reply, Client::Verification* total) {
  total->checked += reply.checked_blocks();
  total->failed += reply.failed_blocks();
  total->failed_keys.insert(total->failed_keys.end(), reply.failed().begin(), reply.failed().end());
}

}  // namespace

absl::StatusOr<wire::ControlReply> Client::Impl::Control(const wire::ControlRequest& request) {
  RP_ASSIGN(const Reply reply, channel.Call(wire::Opcode::kControl, request.SerializeAsString(), {},
                                            kControlBodyBytes, Deadline()));
  wire::ControlReply body;
  if (!ParseBody(reply.body, &body)) {
    return channel.Break(DataLoss("a control reply cannot be read; use the same release"));
  }
  if (reply.outcome() != Outcome::kOk) {
    const absl::Status status = StatusOf(reply.outcome(), "control");
    return body.error().empty() ? status : absl::Status(status.code(), body.error());
  }
  if (!body.error().empty()) return Internal(body.error());
  return body;
}

absl::StatusOr<std::string> Client::StatusJson() {
  wire::ControlRequest request;
  request.mutable_status();
  RP_ASSIGN(const wire::ControlReply reply, impl_->Control(request));
  return reply.status().json();
}

absl::StatusOr<Client::Explanation> Client::Explain(uint32_t namespace_id,
                                                    std::span<const TokenId> tokens) {
  RP_ASSIGN(const auto* name_space, impl_->Find(namespace_id));
  if (tokens.size() > kExplainTokensMax) {
    return InvalidArgument("explain: " + std::to_string(tokens.size()) +
                           " tokens do not fit one message; give the first " +
                           std::to_string(kExplainTokensMax));
  }
  wire::ControlRequest request;
  wire::ExplainRequest& asked = *request.mutable_explain();
  asked.set_namespace_id(name_space->daemon_id);
  asked.set_token_count(tokens.size());
  const auto first_block = tokens.first(std::min<size_t>(tokens.size(), kBlockTokens));
  asked.mutable_tokens()->Add(first_block.begin(), first_block.end());
  std::vector<BlockKey> keys;
  for (const Hash256& hash : PrefixChain(name_space->hash, tokens)) keys.push_back(KeyOf(hash));
  AddKeys(keys, &asked);
  RP_ASSIGN(const wire::ControlReply reply, impl_->Control(request));
  const wire::ExplainReply& explain = reply.explain();
  return Explanation{
      .tokens = explain.tokens(),
      .asked_blocks = explain.asked_blocks(),
      .hit_blocks = explain.hit_blocks(),
      .block_index = explain.block_index(),
      .reason = explain.reason(),
      .detail = explain.detail(),
      .block = explain.block(),
      .window = explain.window(),
      .differing_fields = {explain.differing_fields().begin(), explain.differing_fields().end()},
      .tiers = {explain.tiers().begin(), explain.tiers().end()}};
}

absl::StatusOr<uint64_t> Client::Evict(uint32_t namespace_id, std::span<const BlockKey> keys) {
  RP_ASSIGN(const auto* name_space, impl_->Find(namespace_id));
  uint64_t evicted = 0;
  while (!keys.empty()) {
    const auto part = keys.first(std::min(keys.size(), kControlKeysMax));
    wire::ControlRequest request;
    request.mutable_evict()->set_namespace_id(name_space->daemon_id);
    AddKeys(part, request.mutable_evict());
    RP_ASSIGN(const wire::ControlReply reply, impl_->Control(request));
    evicted += reply.evict().evicted_blocks();
    keys = keys.subspan(part.size());
  }
  return evicted;
}

absl::StatusOr<uint64_t> Client::EvictNamespace(uint32_t namespace_id) {
  RP_ASSIGN(const auto* name_space, impl_->Find(namespace_id));
  wire::ControlRequest request;
  request.mutable_evict()->set_namespace_id(name_space->daemon_id);
  request.mutable_evict()->set_whole_namespace(true);
  RP_ASSIGN(const wire::ControlReply reply, impl_->Control(request));
  return reply.evict().evicted_blocks();
}

absl::StatusOr<Client::Verification> Client::Verify(uint32_t namespace_id,
                                                    std::span<const BlockKey> keys) {
  RP_ASSIGN(const auto* name_space, impl_->Find(namespace_id));
  Verification total;
  const bool all = keys.empty();
  do {
    const auto part = keys.first(std::min(keys.size(), kControlKeysMax));
    wire::ControlRequest request;
    request.mutable_verify()->set_namespace_id(name_space->daemon_id);
    request.mutable_verify()->set_all(all);
    AddKeys(part, request.mutable_verify());
    RP_ASSIGN(const wire::ControlReply reply, impl_->Control(request));
    Add(reply.verify(), &total);
    keys = keys.subspan(part.size());
  } while (!keys.empty());
  return total;
}

}  // namespace reprise
