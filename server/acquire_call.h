#pragma once

#include <memory>
#include <span>
#include <vector>

#include "protocol/reactor/timers.h"
#include "server/operation.h"
#include "server/shard.h"

namespace reprise::server {

// Pins one shard's part of a run of keys, within a deadline.
class AcquireCall final : public ShardCall {
 public:
  // `finished` runs on the origin's thread.
  void Prepare(std::span<const BlockKey> keys, uint16_t name_space, Instant deadline,
               void (*finished)(void* context), void* context);

  const std::vector<uint32_t>& slots() const { return slots_; }
  const std::vector<Outcome>& outcomes() const { return outcomes_; }
  uint32_t from_ssd() const { return op_.from_ssd; }

 private:
  struct Op : storage::BlockStore::AcquireOp {
    AcquireCall* call = nullptr;
  };
  struct Deadline : Timer {
    using Timer::Timer;
    AcquireCall* call = nullptr;
  };

  void Execute(Shard& owner) override;
  void Finished() override { finished_(context_); }

  std::span<const BlockKey> keys_;
  std::vector<uint32_t> slots_;
  std::vector<Outcome> outcomes_;
  Instant deadline_ = 0;
  void (*finished_)(void* context) = nullptr;
  void* context_ = nullptr;
  Op op_;
  Deadline timer_;
};

// A run of keys pinned over all shards: the leading part of it, in order, once every shard
// answered.
class AcquireRun {
 public:
  // What the leading run is. Slots beyond it, that other shards granted, were given back already.
  struct Result {
    std::vector<uint32_t> slots;
    Outcome stopped_by = Outcome::kOk;
    uint32_t from_ssd = 0;
  };

  // `finished(context)` once, maybe before Start returns. `keys` is copied; those of another
  // namespace are not found.
  void Start(Shard* shard, ConstBytes keys, uint32_t key_count, uint16_t name_space,
             Instant deadline, void (*finished)(void* context), void* context);
  Result& result() { return result_; }

 private:
  void OnCall();
  void Merge();

  Shard* shard_ = nullptr;
  uint32_t key_count_ = 0;
  std::unique_ptr<KeyDeal> deal_;
  std::vector<std::unique_ptr<AcquireCall>> calls_;
  uint32_t pending_ = 0;
  void (*finished_)(void* context) = nullptr;
  void* context_ = nullptr;
  Result result_;
};

}  // namespace reprise::server
