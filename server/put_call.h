#pragma once

#include <cstdint>
#include <list>

#include "protocol/reactor/timers.h"
#include "server/connection.h"
#include "server/shard.h"

namespace reprise::server {

// Puts some records on the shard that owns them, within a deadline.
class PutCall final : public ShardCall {
 public:
  // `finished` runs on the origin's thread.
  void Prepare(Instant deadline, void (*finished)(PutCall* call, void* context), void* context) {
    deadline_ = deadline;
    finished_ = finished;
    context_ = context;
  }
  // `index` is the record's place in the request. The record must not move nor end before then.
  void Add(uint32_t index, ConstBytes record, const BlockKey& key,
           const Connection::OpenNamespace& name_space, wire::Durability durability);
  bool empty() const { return ops_.empty(); }
  void Clear() { ops_.clear(); }

  template <typename Visit>
  void ForEachOutcome(Visit visit) const {
    for (const Op& op : ops_) visit(op.index, op.outcome);
  }

 private:
  struct Op : storage::BlockStore::PutOp {
    PutCall* call = nullptr;
    uint32_t index = 0;
  };
  struct Deadline : Timer {
    using Timer::Timer;
    PutCall* call = nullptr;
  };

  void Execute(Shard& owner) override;
  void Finished() override { finished_(this, context_); }
  void OnDone();

  std::list<Op> ops_;  // Operations must not move; each carries a kilobyte of record tail.
  uint32_t pending_ = 0;
  Instant deadline_ = 0;
  void (*finished_)(PutCall* call, void* context) = nullptr;
  void* context_ = nullptr;
  Deadline timer_;
};

// What a router reads of a record; the store checks it again on its own copy.
inline BlockKey PeekKey(ConstBytes record) { return KeyOf(LoadRecordHeader(record).block_hash); }

}  // namespace reprise::server
