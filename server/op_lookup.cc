// One lookup, from frame to verdict:
//   StartLookup -> LookupRun over the shards that own keys -> OnBlocks: where the hit ends
//   -> ProbeCall on the shards that may hold a window for that end -> OnWindows: the verdict.
#include <algorithm>
#include <memory>

#include "server/dispatch.h"
#include "server/lookup_run.h"

namespace reprise::server {
namespace {

using Residency = storage::BlockStore::Residency;

class LookupOperation;

struct ProbeCall final : ShardCall {
  LookupOperation* operation = nullptr;
  uint16_t name_space = 0;
  wire::WindowKey key;
  uint32_t window_bytes = 0;  // Out; 0: not there.

  void Execute(Shard& owner) override {
    window_bytes = owner.windows().Probe(name_space, key, owner.now());
    owner.Reply(this);
  }
  void Finished() override;
};

class LookupOperation final : public Operation {
 public:
  LookupOperation(Connection* connection, const wire::FrameHeader& request, uint16_t name_space,
                  const wire::LookupView& view)
      : Operation(connection, request), name_space_(name_space), keys_(view.fixed.key_count) {
    for (uint32_t i = 0; i < view.fixed.window_count; ++i) {
      candidates_.push_back(wire::At<wire::WindowKey>(view.windows, i));
    }
    if (!keys_.empty()) std::memcpy(keys_.data(), view.keys.data(), view.keys.size());
  }

  void Start() {
    run_.Start(
        &shard(), std::as_bytes(std::span(keys_)), static_cast<uint32_t>(keys_.size()), name_space_,
        LookupFor::kRequest, [](void* self) { static_cast<LookupOperation*>(self)->OnBlocks(); },
        this);
  }

  void OnProbed() {
    if (--pending_ == 0) OnWindows();
  }

 private:
  void OnBlocks() {
    tiers_.reserve(keys_.size());
    run_.ForEach([this](Residency residency) {
      if (residency == Residency::kAbsent) reply_.stop_reason = wire::StopReason::kNotStored;
      if (residency == Residency::kPending) reply_.stop_reason = wire::StopReason::kPending;
      if (reply_.stop_reason != wire::StopReason::kNone) return false;
      tiers_.push_back(residency == Residency::kDram ? Tier::kDram : Tier::kSsd);
      return true;
    });
    reply_.hit_blocks = static_cast<uint32_t>(tiers_.size());
    reply_.hit_tokens = uint64_t{reply_.hit_blocks} * kBlockTokens;
    ProbeWindows();
  }

  // Windows that fit where the hit ends: exact positions inside the block after it, and its
  // boundary.
  void ProbeWindows() {
    const auto hit_blocks = uint64_t{reply_.hit_blocks};
    for (uint32_t i = 0; i < candidates_.size(); ++i) {
      const uint64_t position = candidates_[i].position;
      if (position / kBlockTokens != hit_blocks || position % kBlockTokens == 0) continue;
      AddProbe(candidates_[i], i);
    }
    if (hit_blocks > 0) AddProbe({keys_[hit_blocks - 1], hit_blocks * kBlockTokens}, kBoundary);
    pending_ = 1 + static_cast<uint32_t>(probes_.size());
    for (const auto& probe : probes_) {
      shard().Call(ShardOf(probe->key.prefix, shard().shard_count()), probe.get());
    }
    OnProbed();
  }

  void AddProbe(const wire::WindowKey& key, uint32_t candidate) {
    probes_.push_back(std::make_unique<ProbeCall>());
    probes_.back()->operation = this;
    probes_.back()->name_space = name_space_;
    probes_.back()->key = key;
    probe_candidates_.push_back(candidate);
  }

  void OnWindows() {
    const ProbeCall* best = nullptr;
    for (size_t i = 0; i < probes_.size(); ++i) {
      const ProbeCall& probe = *probes_[i];
      if (probe.window_bytes == 0) continue;
      if (best != nullptr && best->key.position >= probe.key.position) continue;
      best = &probe;
      const bool boundary = probe_candidates_[i] == kBoundary;
      reply_.window_state = boundary ? wire::WindowState::kBoundary : wire::WindowState::kExact;
      reply_.window_index = boundary ? 0 : probe_candidates_[i];
      reply_.window_bytes = probe.window_bytes;
      reply_.hit_tokens = probe.key.position;
    }
    Count();
    std::string body;
    wire::Append(&body, reply_);
    wire::AppendArray(&body, std::span<const Tier>(tiers_));
    SendLast(Outcome::kOk, std::move(body));
  }

  void Count() {
    RequestCounters& counters = shard().counters();
    counters.lookup_tokens += keys_.size() * kBlockTokens;
    counters.hit_tokens += reply_.hit_tokens;
    if (reply_.hit_tokens == 0) {
      ++counters.misses;
    } else if (reply_.window_state == wire::WindowState::kNone) {
      ++counters.replayed_hits;
    } else {
      ++counters.exact_hits;
    }
  }

  static constexpr uint32_t kBoundary = UINT32_MAX;

  uint16_t name_space_;
  std::vector<BlockKey> keys_;
  LookupRun run_;
  std::vector<wire::WindowKey> candidates_;
  std::vector<std::unique_ptr<ProbeCall>> probes_;
  std::vector<uint32_t> probe_candidates_;
  std::vector<Tier> tiers_;
  wire::LookupReply reply_;
  uint32_t pending_ = 0;
};

void ProbeCall::Finished() { operation->OnProbed(); }

}  // namespace

void StartLookup(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  wire::LookupView view;
  if (!wire::Decode(body, &view)) {
    FailedOperation::Start(connection, header, Outcome::kInvalid);
    return;
  }
  const Connection::OpenNamespace* opened =
      NamespaceOf(connection, header, view.fixed.namespace_id);
  if (opened == nullptr) return;
  (new LookupOperation(connection, header, opened->index, view))->Start();
}

}  // namespace reprise::server
