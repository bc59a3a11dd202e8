#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "gpu/cuda/cuda_memory.h"
#include "gpu/cuda/rank_threads.h"
#include "gpu/engine/engine.h"

namespace reprise::engine::cuda {

// Memory of several GPUs as one: whatever is allocated lies on every one of them, and its addresses
// are those of the first. What is copied there goes to all, what comes from there is the first's.
// All have the same bytes, since all write the same.
//
// What allocates and frees waits until no step runs: it could wait for a step on one GPU that waits
// for another.
class ShardedMemory final : public EngineMemory {
 public:
  // Of the ranks' engines, whose threads copies run on; all outlive this.
  ShardedMemory(std::vector<CudaMemory*> of_rank, RankThreads* threads)
      : of_rank_(std::move(of_rank)), threads_(threads) {}

  bool host() const override { return false; }
  uint64_t free_bytes() const override;  // Where there is least.
  absl::StatusOr<EngineBuffer> Allocate(uint64_t bytes) override;
  absl::Status Copy(std::span<const MemoryCopy> copies) override;
  absl::StatusOr<EngineBuffer> Pin(std::span<std::byte> host) override;
  absl::StatusOr<std::unique_ptr<KvSlots>> MakeSlots(uint64_t slot_bytes, uint32_t slots) override;

  // Held while a step runs. Translated and FromRank want it held, or no other thread.
  std::unique_lock<std::mutex> Hold() { return std::unique_lock(mutex_); }
  // The same on a rank. `blocks`: where the result's lie. INVALID_ARGUMENT for an address that is
  // not of this memory.
  absl::StatusOr<SequenceMemory> Translated(uint32_t rank, const SequenceMemory& memory,
                                            std::vector<std::byte*>* blocks) const;
  // To compare ranks: what one of them has at the address.
  absl::Status FromRank(uint32_t rank, const std::byte* from, std::span<std::byte> to) const;

 private:
  friend class ShardedSlots;
  // By the address on the first rank.
  struct Arena {
    uint64_t bytes = 0;
    std::vector<std::byte*> of_rank;
  };
  using Arenas = std::map<const std::byte*, Arena>;

  void Add(uint64_t bytes, std::vector<std::byte*> of_rank);
  void Remove(const std::byte* data);
  // Arenas end: of none of them.
  Arenas::const_iterator ArenaOf(const std::byte* address) const;

  const std::vector<CudaMemory*> of_rank_;
  RankThreads* const threads_;
  std::mutex mutex_;
  Arenas arenas_;
};

}  // namespace reprise::engine::cuda
