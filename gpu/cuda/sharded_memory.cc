#include "gpu/cuda/sharded_memory.h"

#include <algorithm>
#include <utility>

#include "gpu/cuda/device.h"
#include "protocol/base/check.h"

namespace reprise::engine::cuda {
namespace {

// The first error, by rank.
absl::Status FirstOf(const std::vector<absl::Status>& all) {
  for (const absl::Status& status : all) RP_TRY(status);
  return absl::OkStatus();
}

}  // namespace

// Slots of every rank. Loads go to all of them; stores come from the first.
class ShardedSlots final : public KvSlots {
 public:
  ShardedSlots(ShardedMemory* memory, std::vector<std::unique_ptr<KvSlots>> of_rank)
      : memory_(memory), of_rank_(std::move(of_rank)) {}
  ~ShardedSlots() override {
    const auto lock = memory_->Hold();
    memory_->Remove(data(0));
    of_rank_.clear();
  }

  uint64_t slot_bytes() const override { return of_rank_[0]->slot_bytes(); }
  uint32_t slots() const override { return of_rank_[0]->slots(); }
  std::byte* data(uint32_t slot) const override { return of_rank_[0]->data(slot); }
  uint32_t SlotOf(const std::byte* data) const override { return of_rank_[0]->SlotOf(data); }

  // Ranks are asked for the same loads: they number them alike.
  absl::StatusOr<uint64_t> Load(std::span<const SlotCopy> copies) override {
    const KeepDevice keep;
    uint64_t number = 0;
    for (size_t rank = 0; rank < of_rank_.size(); ++rank) {
      RP_TRY(memory_->of_rank_[rank]->MakeCurrent());
      RP_ASSIGN(const uint64_t of_rank, of_rank_[rank]->Load(copies));
      RP_CHECK(number == 0 || number == of_rank);
      number = of_rank;
    }
    return number;
  }
  absl::StatusOr<uint64_t> Store(std::span<const SlotCopy> copies) override {
    const KeepDevice keep;
    RP_TRY(memory_->of_rank_[0]->MakeCurrent());
    return of_rank_[0]->Store(copies);
  }
  absl::StatusOr<bool> LoadDone(uint64_t number) override {
    for (const auto& one : of_rank_) {
      RP_ASSIGN(const bool done, one->LoadDone(number));
      if (!done) return false;
    }
    return true;
  }
  absl::StatusOr<bool> StoreDone(uint64_t number) override {
    return of_rank_[0]->StoreDone(number);
  }
  absl::Status Clear(std::span<const uint32_t> slots) override {
    const KeepDevice keep;
    for (size_t rank = 0; rank < of_rank_.size(); ++rank) {
      RP_TRY(memory_->of_rank_[rank]->MakeCurrent());
      RP_TRY(of_rank_[rank]->Clear(slots));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<SlotsExport> Export() const override {
    const KeepDevice keep;
    SlotsExport all;
    for (size_t rank = 0; rank < of_rank_.size(); ++rank) {
      RP_TRY(memory_->of_rank_[rank]->MakeCurrent());
      RP_ASSIGN(SlotsExport own, of_rank_[rank]->Export());
      all.kind = own.kind;
      all.stride_bytes = own.stride_bytes;
      all.devices.push_back(std::move(own.devices.at(0)));
    }
    return all;
  }

 private:
  ShardedMemory* const memory_;
  std::vector<std::unique_ptr<KvSlots>> of_rank_;
};

void ShardedMemory::Add(uint64_t bytes, std::vector<std::byte*> of_rank) {
  const std::byte* const key = of_rank[0];
  arenas_[key] = {.bytes = bytes, .of_rank = std::move(of_rank)};
}
void ShardedMemory::Remove(const std::byte* data) { arenas_.erase(data); }

ShardedMemory::Arenas::const_iterator ShardedMemory::ArenaOf(const std::byte* address) const {
  auto after = arenas_.upper_bound(address);
  if (after == arenas_.begin()) return arenas_.end();
  const auto arena = std::prev(after);
  return address < arena->first + arena->second.bytes ? arena : arenas_.end();
}

uint64_t ShardedMemory::free_bytes() const {
  const KeepDevice keep;
  uint64_t least = UINT64_MAX;
  for (const CudaMemory* memory : of_rank_) least = std::min(least, memory->free_bytes());
  return least;
}

absl::StatusOr<EngineBuffer> ShardedMemory::Allocate(uint64_t bytes) {
  // What the buffer owns: one of every rank.
  struct Owned {
    ShardedMemory* memory = nullptr;
    std::vector<EngineBuffer> of_rank;
  };
  const auto lock = Hold();
  const KeepDevice keep;
  auto owned = std::make_unique<Owned>();
  owned->memory = this;
  std::vector<std::byte*> data;
  for (CudaMemory* memory : of_rank_) {
    RP_ASSIGN(EngineBuffer buffer, memory->Allocate(bytes));
    data.push_back(buffer.data());
    owned->of_rank.push_back(std::move(buffer));
  }
  std::byte* const first = data[0];
  Add(std::max<uint64_t>(bytes, 1), std::move(data));
  return EngineBuffer(
      first, bytes,
      [](std::byte* of, void* owner) {
        const std::unique_ptr<Owned> all(static_cast<Owned*>(owner));
        const auto quiet = all->memory->Hold();
        all->memory->Remove(of);
        all->of_rank.clear();
      },
      owned.release());
}

absl::Status ShardedMemory::Copy(std::span<const MemoryCopy> copies) {
  const auto lock = Hold();
  return FirstOf(threads_->Run([&](uint32_t rank) {
    std::vector<MemoryCopy> own;
    for (const MemoryCopy& copy : copies) {
      const auto to = ArenaOf(copy.to), from = ArenaOf(copy.from);
      if (to == arenas_.end() && rank > 0) continue;
      own.push_back(copy);
      if (to != arenas_.end()) own.back().to = to->second.of_rank[rank] + (copy.to - to->first);
      if (from != arenas_.end()) {
        own.back().from = from->second.of_rank[rank] + (copy.from - from->first);
      }
    }
    return of_rank_[rank]->Copy(own);
  }));
}

absl::StatusOr<EngineBuffer> ShardedMemory::Pin(std::span<std::byte> host) {
  const auto lock = Hold();
  const KeepDevice keep;
  return of_rank_[0]->Pin(host);  // For all devices.
}

absl::StatusOr<std::unique_ptr<KvSlots>> ShardedMemory::MakeSlots(uint64_t slot_bytes,
                                                                  uint32_t slots) {
  const auto lock = Hold();
  const KeepDevice keep;
  std::vector<std::unique_ptr<KvSlots>> all;
  std::vector<std::byte*> data;
  for (CudaMemory* memory : of_rank_) {
    RP_ASSIGN(std::unique_ptr<KvSlots> own, memory->MakeSlots(slot_bytes, slots));
    data.push_back(own->data(0));
    all.push_back(std::move(own));
  }
  if (slots > 0) {
    const auto bytes = static_cast<uint64_t>(all[0]->data(slots - 1) - data[0]) + slot_bytes;
    Add(bytes, std::move(data));
  }
  return std::unique_ptr<KvSlots>(std::make_unique<ShardedSlots>(this, std::move(all)));
}

absl::StatusOr<SequenceMemory> ShardedMemory::Translated(uint32_t rank,
                                                         const SequenceMemory& memory,
                                                         std::vector<std::byte*>* blocks) const {
  // Neighbours are of one arena nearly always.
  Arenas::const_iterator arena = arenas_.end();
  const auto translate = [&](std::byte* address) -> std::byte* {
    const bool same = arena != arenas_.end() && address >= arena->first &&
                      address < arena->first + arena->second.bytes;
    if (!same) arena = ArenaOf(address);
    if (arena == arenas_.end()) return nullptr;
    return arena->second.of_rank[rank] + (address - arena->first);
  };
  blocks->clear();
  blocks->reserve(memory.blocks.size());
  for (std::byte* const block : memory.blocks) blocks->push_back(translate(block));
  std::byte* const window = translate(memory.window);
  if (window == nullptr || std::find(blocks->begin(), blocks->end(), nullptr) != blocks->end()) {
    return InvalidArgument(
        "a segment lends memory that is not the engine's; lend what its memory() gave");
  }
  return SequenceMemory{.blocks = *blocks, .window = window};
}

absl::Status ShardedMemory::FromRank(uint32_t rank, const std::byte* from,
                                     std::span<std::byte> to) const {
  const auto arena = ArenaOf(from);
  if (arena == arenas_.end()) return InvalidArgument("the address is not of the engine's memory");
  const std::byte* const source = arena->second.of_rank[rank] + (from - arena->first);
  return CudaStatus(cudaMemcpy(to.data(), source, to.size(), cudaMemcpyDefault), "a rank's bytes");
}

}  // namespace reprise::engine::cuda
