#include "server/put_call.h"

#include <algorithm>

namespace reprise::server {

void PutCall::Add(uint32_t index, ConstBytes record, const BlockKey& key,
                  const Connection::OpenNamespace& name_space, wire::Durability durability) {
  ops_.emplace_back();
  Op& op = ops_.back();
  op.call = this;
  op.index = index;
  op.record = record;
  op.key = key;
  op.name_space = name_space.name_space;
  op.name_space_index = name_space.index;
  op.durability = durability;
}

void PutCall::Execute(Shard& owner) {
  pending_ = static_cast<uint32_t>(ops_.size());
  timer_.call = this;
  timer_.fire = [](Timer* self, Instant) {
    PutCall* call = static_cast<Deadline*>(self)->call;
    for (Op& op : call->ops_) call->target->blocks().Cancel(&op);
  };
  owner.timers().Arm(&timer_, deadline_);
  const auto put = [&owner](Op& op) {
    op.done = [](Completion* self, int32_t) { static_cast<Op*>(self)->call->OnDone(); };
    owner.blocks().Put(&op);
  };
  if (owner.shard_count() == 1 && owner.blocks().puts_head_first()) {
    std::for_each(ops_.begin(), ops_.end(), put);
  } else {
    std::for_each(ops_.rbegin(), ops_.rend(), put);
  }
}

void PutCall::OnDone() {
  if (--pending_ > 0) return;
  target->timers().Cancel(&timer_);
  target->Reply(this);
}

}  // namespace reprise::server
