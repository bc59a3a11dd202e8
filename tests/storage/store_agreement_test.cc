// The model of a store and the store itself, asked the same: every answer and every eviction agree.
#include <gtest/gtest.h>

#include <algorithm>

#include "protocol/base/prng.h"
#include "protocol/identity/block_hash.h"
#include "protocol/record/record.h"
#include "storage/block_store.h"
#include "storage/economics/block_model.h"
#include "tests/storage/vector_memory.h"

namespace reprise::storage {
namespace {

constexpr uint32_t kRecordSize = 4096;
constexpr uint32_t kPayload = 1024;

// HashedChains of blocks whose token ids are their number.
struct Block {
  uint32_t number = 0;
  Hash256 hash, parent;
  uint32_t index = 0;
};

class HashedChains {
 public:
  explicit HashedChains(uint64_t seed) : random_(seed) {}

  std::vector<Block> Next() {
    std::vector<Block>& chain = sessions_[random_.Below(sessions_.size())];
    const uint64_t dice = random_.Below(20);
    if (dice == 0 || chain.size() > 60) {
      chain.clear();
    } else if (dice < 3 && !chain.empty()) {
      chain.resize(random_.Below(chain.size()));
    }
    for (uint64_t n = 1 + random_.Below(8); n > 0; --n) Grow(&chain);
    return chain;
  }
  static const Hash256& name_space() {
    static const Hash256 hash = BlockHash({}, std::vector<TokenId>(kBlockTokens, 7));
    return hash;
  }

 private:
  void Grow(std::vector<Block>* chain) {
    Block block{.number = next_++};
    block.index = static_cast<uint32_t>(chain->size());
    block.parent = chain->empty() ? name_space() : chain->back().hash;
    block.hash = BlockHash(block.parent, Tokens(block.number));
    chain->push_back(block);
  }

 public:
  static std::vector<TokenId> Tokens(uint32_t number) {
    return std::vector<TokenId>(kBlockTokens, static_cast<TokenId>(number));
  }

 private:
  Prng random_;
  std::vector<std::vector<Block>> sessions_ = std::vector<std::vector<Block>>(12);
  uint32_t next_ = 0;
};

// A store without SSD, used as a client uses it.
class Store {
 public:
  Store(uint32_t slots, const std::string& eviction)
      : memory_(0, slots, kRecordSize), slots_(&memory_, 0, slots, 0) {
    store_ =
        *BlockStore::Create({.record_bytes = kRecordSize, .dram_eviction = eviction}, &slots_, 0);
  }

  uint32_t Serve(const std::vector<Block>& chain) {
    std::vector<BlockKey> keys;
    for (const Block& block : chain) keys.push_back(KeyOf(block.hash));
    std::vector<BlockStore::Residency> where(keys.size());
    store_->Lookup(keys, where);
    uint32_t hit = 0;
    while (hit < keys.size() && where[hit] == BlockStore::Residency::kDram) ++hit;
    Load(std::span(keys).first(hit));
    for (uint32_t i = hit; i < chain.size(); ++i) Put(chain[i]);
    return hit;
  }
  BlockStore& store() { return *store_; }

 private:
  void Load(std::span<const BlockKey> keys) {
    std::vector<uint32_t> slots(keys.size());
    std::vector<Outcome> outcomes(keys.size());
    BlockStore::AcquireOp op;
    op.done = [](Completion*, int32_t) {};
    op.keys = keys;
    op.slots = slots;
    op.outcomes = outcomes;
    store_->Acquire(&op);
    store_->Poll();
    for (const uint32_t slot : slots) store_->Release(slot);
  }
  void Put(const Block& block) {
    std::vector<std::byte> record(kRecordSize);
    const std::vector<TokenId> tokens = HashedChains::Tokens(block.number);
    std::memcpy(Bytes(record).last(kRecordTokenBytes).data(), tokens.data(), kRecordTokenBytes);
    SealRecord(record, {.name_space = HashedChains::name_space(),
                        .block_hash = block.hash,
                        .parent_hash = block.parent,
                        .block_index = block.index,
                        .payload_bytes = kPayload,
                        .record_bytes = kRecordSize,
                        .token_count = kBlockTokens});
    BlockStore::PutOp op;
    op.done = [](Completion*, int32_t) {};
    op.record = record;
    op.name_space = HashedChains::name_space();
    op.key = KeyOf(block.hash);
    store_->Put(&op);
    store_->Poll();
    EXPECT_TRUE(op.outcome == Outcome::kOk || op.outcome == Outcome::kExists);
  }

  VectorMemory memory_;
  SlotPool slots_;
  std::unique_ptr<BlockStore> store_;
};

TEST(StoreAgreement, DramOverManyRequests) {
  for (const char* policy : {"lru"}) {
    for (const uint32_t capacity : {70u, 150u, 400u}) {
      Store store(capacity, policy);
      auto model = *economics::BlockModel::Create({.record_bytes = kRecordSize,
                                                   .dram_bytes = uint64_t{capacity} * kRecordSize,
                                                   .dram_eviction = policy},
                                                  20'000);
      HashedChains chains(3);
      for (int i = 0; i < 3'000; ++i) {
        const std::vector<Block> chain = chains.Next();
        std::vector<uint32_t> numbers;
        for (const Block& block : chain) numbers.push_back(block.number);
        const uint32_t hit = model->Lookup(numbers).blocks;
        ASSERT_EQ(store.Serve(chain), hit) << policy << " " << capacity << " " << i;
        model->Load(numbers, hit);
        model->Put(numbers, hit, false);
        ASSERT_EQ(store.store().stats().dram_evictions, model->counts().dram_evictions);
      }
    }
  }
}

}  // namespace
}  // namespace reprise::storage
