#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "server/serving/store_port.h"

namespace reprise::server {

struct ServingContext;

// The blocks of a request's hit, pinned where its engine reads them: in the slots of the store's
// DRAM where the engine takes host memory, else in the HBM tier, into which those that it lacks are
// copied beside the steps of other sequences. The engine's thread.
class HitBlocks {
 public:
  struct Loaded {
    uint32_t from_ssd = 0;
    Outcome stopped_by = Outcome::kOk;
  };

  explicit HitBlocks(ServingContext* context) : context_(*context) {}
  ~HitBlocks();  // REQUIRES: nothing is pinned.
  HitBlocks(const HitBlocks&) = delete;
  HitBlocks& operator=(const HitBlocks&) = delete;

  // Once: the leading run of `keys` that can be loaded; those that `limit_ns` allows to be read
  // from SSD. `exact_only`: of the HBM tier, nothing that derives from a replay. `done` may be
  // called before Load returns; the object must live until then.
  void Load(const StorePort::Namespace& name_space, std::vector<BlockKey> keys, bool exact_only,
            Nanos limit_ns, std::function<void(const Loaded&)> done);

  uint32_t size() const { return static_cast<uint32_t>(blocks_.size()); }
  std::byte* data(uint32_t block) const { return blocks_[block].data; }
  bool replay_derived(uint32_t block) const { return blocks_[block].replay_derived; }
  // Of the first `blocks`, those that were in the HBM tier already.
  uint32_t FromHbm(uint32_t blocks) const;
  // Gives back what lies behind the first `blocks`.
  void CutTo(uint32_t blocks);

 private:
  struct Block {
    std::byte* data = nullptr;  // Null: not there yet.
    bool replay_derived = false;
    bool from_hbm = false;
  };

  void OnAcquired(std::vector<uint32_t> slots);
  void CopyIn();
  void OnCopied(const absl::Status& status);

  ServingContext& context_;
  std::vector<BlockKey> keys_;
  bool exact_only_ = false;
  std::function<void(const Loaded&)> done_;
  Loaded loaded_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> slots_;  // Of the store, pinned: until the end, or until they are copied.
};

}  // namespace reprise::server
