#include "server/serving/hit_blocks.h"

#include <algorithm>
#include <utility>

#include "protocol/record/record.h"
#include "server/log.h"
#include "server/serving/serving_context.h"

namespace reprise::server {
namespace {

bool ReplayDerived(ConstBytes record) {
  return (LoadRecordHeader(record).flags & kReplayDerived) != 0;
}

}  // namespace

HitBlocks::~HitBlocks() { RP_CHECK(blocks_.empty() && slots_.empty()); }

void HitBlocks::Load(const StorePort::Namespace& name_space, std::vector<BlockKey> keys,
                     bool exact_only, Nanos limit_ns, std::function<void(const Loaded&)> done) {
  keys_ = std::move(keys);
  exact_only_ = exact_only;
  done_ = std::move(done);
  std::vector<BlockKey> wanted;
  if (context_.tier == nullptr) {
    wanted = keys_;
  } else {
    for (const BlockKey& key : keys_) {
      std::byte* data = context_.tier->Pin(key, exact_only_);
      const bool derived = data != nullptr && context_.tier->replay_derived(data);
      blocks_.push_back({.data = data, .replay_derived = derived, .from_hbm = data != nullptr});
      if (data == nullptr) wanted.push_back(key);
    }
    if (wanted.empty()) return CopyIn();
  }
  context_.store.Acquire(
      name_space, std::move(wanted), limit_ns, [this](StorePort::Acquired acquired) {
        loaded_ = {.from_ssd = acquired.from_ssd, .stopped_by = acquired.stopped_by};
        OnAcquired(std::move(acquired.slots));
      });
}

void HitBlocks::OnAcquired(std::vector<uint32_t> slots) {
  slots_ = std::move(slots);
  if (context_.tier != nullptr) return CopyIn();
  for (const uint32_t slot : slots_) {
    const Bytes record = context_.store.slot(slot);
    blocks_.push_back({.data = record.data(), .replay_derived = ReplayDerived(record)});
  }
  done_(loaded_);
}

// ---- Into the HBM tier -------------------------------------------------------------------------

// Slots of the store, in order, for the blocks that the tier lacks.
void HitBlocks::CopyIn() {
  HbmTier& tier = *context_.tier;
  std::vector<HbmTier::Copy> copies;
  size_t next = 0;
  uint32_t reached = 0;
  for (; reached < blocks_.size(); ++reached) {
    Block& block = blocks_[reached];
    if (block.data != nullptr) continue;
    if (next == slots_.size()) break;
    const Bytes record = context_.store.slot(slots_[next++]);
    // Another request may have loaded it meanwhile.
    block.data = tier.Pin(keys_[reached], exact_only_);
    block.from_hbm = block.data != nullptr;
    if (block.from_hbm) {
      block.replay_derived = tier.replay_derived(block.data);
      continue;
    }
    block.data = tier.Take();
    block.replay_derived = ReplayDerived(record);
    tier.Name(block.data, keys_[reached], block.replay_derived);
    copies.push_back({.data = block.data, .host = record.data()});
  }
  CutTo(reached);
  if (!copies.empty()) {
    return tier.Load(copies, [this](const absl::Status& status) { OnCopied(status); });
  }
  std::vector<std::byte*> pinned;
  for (const Block& block : blocks_) pinned.push_back(block.data);
  tier.AfterLoads(pinned, [this](const absl::Status& status) { OnCopied(status); });
}

void HitBlocks::OnCopied(const absl::Status& status) {
  context_.store.Release(std::exchange(slots_, {}));
  if (!status.ok()) {
    LogError("hbm_load_failed", {{"error", status}, {"action", "the hit is computed again"}});
    for (const BlockKey& key : keys_) context_.tier->Forget(key);
    CutTo(0);
  }
  done_(loaded_);
}

// ---- What is pinned ----------------------------------------------------------------------------

uint32_t HitBlocks::FromHbm(uint32_t blocks) const {
  return static_cast<uint32_t>(std::count_if(blocks_.begin(), blocks_.begin() + blocks,
                                             [](const Block& block) { return block.from_hbm; }));
}

void HitBlocks::CutTo(uint32_t blocks) {
  if (context_.tier == nullptr && slots_.size() > blocks) {
    context_.store.Release({slots_.begin() + blocks, slots_.end()});
    slots_.resize(blocks);
  }
  // From the end: a block is of no use without those before it, and stays longer.
  while (blocks_.size() > blocks) {
    if (context_.tier != nullptr && blocks_.back().data != nullptr) {
      context_.tier->Unpin(blocks_.back().data);
    }
    blocks_.pop_back();
  }
}

}  // namespace reprise::server
