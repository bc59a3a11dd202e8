#pragma once

#include <memory>
#include <span>
#include <vector>

#include "server/operation.h"
#include "server/shard.h"

namespace reprise::server {

// Why somebody looks: a request's lookup is counted for what-ifs and recorded in traces, an
// administrator's is not.
enum class LookupFor : uint8_t { kRequest, kInspection };

// Where each of some keys is, asked of the shards that own them. Pins nothing.
class LookupRun {
 public:
  using Residency = storage::BlockStore::Residency;

  // `finished(context)` once, maybe before Start returns. `keys` (BlockKey[key_count]) is copied;
  // those of another namespace than `name_space` (or kAnyNamespace) are absent.
  void Start(Shard* shard, ConstBytes keys, uint32_t key_count, uint16_t name_space,
             LookupFor purpose, void (*finished)(void* context), void* context);

  // After it finished, once: calls visit(residency) for each key in order, until it returns false.
  template <typename Visit>
  void ForEach(Visit visit) {
    for (uint32_t i = 0; i < key_count_; ++i) {
      const KeyDeal::Place place = deal_->Next();
      if (!visit(calls_[place.shard].residency[place.index])) return;
    }
  }

 private:
  struct Call final : ShardCall {
    LookupRun* run_of = nullptr;
    std::span<const BlockKey> keys;
    uint16_t name_space = 0;
    LookupFor purpose = LookupFor::kRequest;
    std::vector<Residency> residency;

    void Execute(Shard& owner) override {
      if (purpose == LookupFor::kRequest) owner.blocks().NoteRequest(keys);
      residency.resize(keys.size());
      owner.blocks().Lookup(keys, residency, name_space);
      owner.Reply(this);
    }
    void Finished() override { run_of->OnCall(); }
  };

  void OnCall() {
    if (--pending_ == 0) finished_(context_);
  }

  uint32_t key_count_ = 0;
  std::unique_ptr<KeyDeal> deal_;
  std::vector<Call> calls_;
  uint32_t pending_ = 0;
  void (*finished_)(void* context) = nullptr;
  void* context_ = nullptr;
};

inline void LookupRun::Start(Shard* shard, ConstBytes keys, uint32_t key_count, uint16_t name_space,
                             LookupFor purpose, void (*finished)(void* context), void* context) {
  if (purpose == LookupFor::kRequest) shard->facts().trace.Add(keys, shard->now());
  key_count_ = key_count;
  finished_ = finished;
  context_ = context;
  deal_ = std::make_unique<KeyDeal>(keys, key_count, shard->shard_count());
  calls_ = std::vector<Call>(shard->shard_count());
  pending_ = 1;
  for (uint32_t i = 0; i < calls_.size(); ++i) {
    if (deal_->keys(i).empty()) continue;
    calls_[i].run_of = this;
    calls_[i].keys = deal_->keys(i);
    calls_[i].name_space = name_space;
    calls_[i].purpose = purpose;
    ++pending_;
    shard->Call(i, &calls_[i]);
  }
  OnCall();
}

}  // namespace reprise::server
