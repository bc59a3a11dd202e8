#include "server/acquire_call.h"

namespace reprise::server {

void AcquireCall::Prepare(std::span<const BlockKey> keys, uint16_t name_space, Instant deadline,
                          void (*finished)(void* context), void* context) {
  keys_ = keys;
  op_.name_space = name_space;
  slots_.resize(keys.size());
  outcomes_.resize(keys.size());
  deadline_ = deadline;
  finished_ = finished;
  context_ = context;
}

void AcquireCall::Execute(Shard& owner) {
  op_.call = this;
  op_.keys = keys_;
  op_.slots = slots_;
  op_.outcomes = outcomes_;
  op_.done = [](Completion* self, int32_t) {
    AcquireCall* call = static_cast<Op*>(self)->call;
    call->target->timers().Cancel(&call->timer_);
    call->target->Reply(call);
  };
  timer_.call = this;
  timer_.fire = [](Timer* self, Instant) {
    AcquireCall* call = static_cast<Deadline*>(self)->call;
    call->target->blocks().Cancel(&call->op_);
  };
  owner.timers().Arm(&timer_, deadline_);
  owner.blocks().Acquire(&op_);
}

void AcquireRun::Start(Shard* shard, ConstBytes keys, uint32_t key_count, uint16_t name_space,
                       Instant deadline, void (*finished)(void* context), void* context) {
  shard_ = shard;
  key_count_ = key_count;
  finished_ = finished;
  context_ = context;
  result_ = {};
  deal_ = std::make_unique<KeyDeal>(keys, key_count, shard->shard_count());
  calls_.resize(shard->shard_count());
  pending_ = 1;
  for (uint32_t i = 0; i < calls_.size(); ++i) {
    if (deal_->keys(i).empty()) continue;
    if (calls_[i] == nullptr) calls_[i] = std::make_unique<AcquireCall>();
    calls_[i]->Prepare(
        deal_->keys(i), name_space, deadline,
        [](void* self) { static_cast<AcquireRun*>(self)->OnCall(); }, this);
    ++pending_;
    shard->Call(i, calls_[i].get());
  }
  OnCall();
}

void AcquireRun::OnCall() {
  if (--pending_ > 0) return;
  Merge();
  finished_(context_);
}

void AcquireRun::Merge() {
  std::vector<uint32_t> surplus;
  result_.slots.reserve(key_count_);
  for (uint32_t i = 0; i < key_count_; ++i) {
    const KeyDeal::Place place = deal_->Next();
    const AcquireCall& call = *calls_[place.shard];
    const Outcome outcome = call.outcomes()[place.index];
    if (result_.stopped_by == Outcome::kOk && outcome != Outcome::kOk) result_.stopped_by = outcome;
    if (outcome != Outcome::kOk) continue;
    (result_.stopped_by == Outcome::kOk ? result_.slots : surplus)
        .push_back(call.slots()[place.index]);
  }
  for (uint32_t i = 0; i < calls_.size(); ++i) {
    if (!deal_->keys(i).empty()) result_.from_ssd += calls_[i]->from_ssd();
  }
  shard_->ReleaseSlots(surplus);
}

}  // namespace reprise::server
