// Hit rates by definition: the six requests whose answers were worked out by hand, and policies
// against plain models of them on random chains.
#include "storage/economics/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <set>

#include "protocol/base/prng.h"
#include "storage/economics/lru_curve.h"

namespace reprise::economics {
namespace {

// traces/toy.jsonl, in blocks of 4.
struct Toy {
  int64_t seconds;
  uint64_t input;
  std::vector<uint64_t> ids;
};
const std::vector<Toy> kToy = {{0, 12, {1, 2, 3}}, {10, 16, {1, 2, 3, 4}},
                               {20, 8, {1, 5}},    {400, 18, {1, 2, 3, 4}},
                               {410, 8, {6, 7}},   {420, 12, {1, 5, 8}}};

template <typename Visit>
void ForToy(Visit&& visit) {
  BlockNumbers numbers;
  for (const Toy& toy : kToy) {
    visit(BlockRequest{.time_ns = toy.seconds * kSecond,
                       .input_tokens = toy.input,
                       .block_tokens = 4,
                       .blocks = numbers.Of(toy.ids)});
  }
}

uint64_t HitTokens(ReferencePolicy policy, uint64_t capacity) {
  const auto cache = MakeReferenceCache(policy, capacity);
  Tally tally;
  ForToy([&](const BlockRequest& request) { tally.Add(request, cache->Serve(request.blocks)); });
  EXPECT_EQ(tally.input_tokens, 74u);
  return tally.hit_tokens;
}

uint64_t BeladyTokens(uint64_t capacity) {
  BeladyRun run;
  ForToy([&](const BlockRequest& request) { run.Add(request.blocks); });
  uint64_t tokens = 0;
  for (const uint32_t hit : run.Run(capacity)) tokens += hit * 4;
  return tokens;
}

TEST(Reference, TheToyIsAsWorkedOutByHand) {
  EXPECT_EQ(HitTokens(ReferencePolicy::kLru, 0), 40u);
  EXPECT_EQ(HitTokens(ReferencePolicy::kLru, 4), 32u);
  EXPECT_EQ(HitTokens(ReferencePolicy::kLru, 3), 28u);
  EXPECT_EQ(HitTokens(ReferencePolicy::kLruNaive, 4), 20u);
  EXPECT_EQ(HitTokens(ReferencePolicy::kFifo, 4), 24u);
  EXPECT_EQ(BeladyTokens(4), 36u);
  EXPECT_EQ(BeladyTokens(3), 32u);
  ReuseIntervals intervals({300 * kSecond});
  ForToy([&](const BlockRequest& request) { intervals.Add(request); });
  EXPECT_EQ(intervals.reused_tokens(), 40u);
  EXPECT_EQ(intervals.tokens_within()[0], 20u);
}

TEST(Reference, NumbersAreDenseAndStable) {
  BlockNumbers numbers;
  const std::vector<uint64_t> ids = {7, 8, 1ull << 60, 9};
  const auto first = numbers.Of(ids);
  EXPECT_EQ(std::vector<uint32_t>(first.begin(), first.end()), (std::vector<uint32_t>{0, 1, 2, 3}));
  std::vector<uint64_t> many;
  for (uint64_t i = 0; i < 5000; ++i) many.push_back(i * 977);
  numbers.Of(many);
  const auto again = numbers.Of(ids);
  EXPECT_EQ(std::vector<uint32_t>(again.begin(), again.end()), (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(numbers.id(2), 1ull << 60);
}

// ---- Against plain models ----------------------------------------------------------------------

// Chains that share prefixes, as conversations do.
std::vector<std::vector<uint32_t>> RandomChains(uint64_t seed, size_t requests) {
  Prng prng(seed);
  std::vector<std::vector<uint32_t>> chains(6);
  std::vector<std::vector<uint32_t>> out;
  uint32_t next = 0;
  for (size_t i = 0; i < requests; ++i) {
    std::vector<uint32_t>& chain = chains[prng.Below(chains.size())];
    if (prng.Below(5) == 0) chain.resize(prng.Below(chain.size() + 1));
    for (uint64_t more = prng.Below(4); more > 0; --more) chain.push_back(next++);
    out.push_back(chain);
  }
  return out;
}

// Newest first.
uint64_t PlainServe(ReferencePolicy policy, uint64_t capacity, const std::vector<uint32_t>& blocks,
                    std::list<uint32_t>* order) {
  const auto has = [&](uint32_t block) {
    return std::find(order->begin(), order->end(), block) != order->end();
  };
  uint64_t hit = 0;
  while (hit < blocks.size() && has(blocks[hit])) ++hit;
  std::vector<uint32_t> touched = blocks;
  if (policy != ReferencePolicy::kLruNaive) std::reverse(touched.begin(), touched.end());
  for (const uint32_t block : touched) {
    if (has(block) && policy == ReferencePolicy::kFifo) continue;
    order->remove(block);
    order->push_front(block);
    if (policy == ReferencePolicy::kLruNaive && order->size() > capacity) order->pop_back();
  }
  while (order->size() > capacity) order->pop_back();
  return hit;
}

TEST(Reference, PoliciesAreTheirPlainModels) {
  for (const ReferencePolicy policy :
       {ReferencePolicy::kLru, ReferencePolicy::kLruNaive, ReferencePolicy::kFifo}) {
    for (const uint64_t capacity : {1u, 3u, 10u, 40u, 1000u}) {
      const auto cache = MakeReferenceCache(policy, capacity);
      std::list<uint32_t> order;
      for (const auto& blocks : RandomChains(capacity, 300)) {
        ASSERT_EQ(cache->Serve(blocks), PlainServe(policy, capacity, blocks, &order))
            << static_cast<int>(policy) << " " << capacity;
        ASSERT_EQ(cache->resident(), order.size());
      }
    }
  }
}

TEST(Reference, BeladyIsItsPlainModelAndTheBest) {
  for (const uint64_t capacity : {1u, 4u, 12u, 60u}) {
    const auto chains = RandomChains(capacity + 50, 250);
    BeladyRun run;
    for (const auto& blocks : chains) run.Add(blocks);
    const std::vector<uint32_t> hits = run.Run(capacity);
    // (next use, depth, block): the largest leave first.
    std::set<std::tuple<size_t, size_t, uint32_t>> resident;
    uint64_t best = 0, lru = 0;
    const auto cache = MakeReferenceCache(ReferencePolicy::kLru, capacity);
    for (size_t i = 0; i < chains.size(); ++i) {
      const auto find = [&](uint32_t block) {
        return std::find_if(resident.begin(), resident.end(),
                            [&](const auto& entry) { return std::get<2>(entry) == block; });
      };
      uint32_t hit = 0;
      while (hit < chains[i].size() && find(chains[i][hit]) != resident.end()) ++hit;
      ASSERT_EQ(hits[i], hit) << capacity << " request " << i;
      for (size_t depth = 0; depth < chains[i].size(); ++depth) {
        const uint32_t block = chains[i][depth];
        if (const auto at = find(block); at != resident.end()) resident.erase(at);
        for (size_t later = i + 1; later < chains.size(); ++later) {
          const auto& next = chains[later];
          if (std::find(next.begin(), next.end(), block) == next.end()) continue;
          resident.emplace(later, depth, block);
          break;
        }
      }
      while (resident.size() > capacity) resident.erase(std::prev(resident.end()));
      best += hit;
      lru += cache->Serve(chains[i]);
    }
    EXPECT_GE(best, lru);
  }
}

TEST(LruCurve, IsTheCacheOfEveryCapacity) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    const auto chains = RandomChains(seed, 200);
    LruCurve curve;
    const auto request_of = [](const std::vector<uint32_t>& blocks, size_t i) {
      // Some prompts end inside their last block.
      const uint64_t tokens = blocks.size() * 10;
      return BlockRequest{.input_tokens = i % 3 == 0 && tokens > 0 ? tokens - 4 : tokens,
                          .block_tokens = 10,
                          .blocks = blocks};
    };
    for (size_t i = 0; i < chains.size(); ++i) curve.Add(request_of(chains[i], i));
    for (uint64_t capacity = 1; capacity <= curve.capacity_max() + 5; ++capacity) {
      const auto cache = MakeReferenceCache(ReferencePolicy::kLru, capacity);
      Tally tally;
      for (size_t i = 0; i < chains.size(); ++i) {
        const BlockRequest request = request_of(chains[i], i);
        tally.Add(request, cache->Serve(request.blocks));
      }
      ASSERT_EQ(curve.HitTokens(capacity), tally.hit_tokens) << seed << " " << capacity;
      ASSERT_EQ(curve.input_tokens(), tally.input_tokens);
    }
  }
  LruCurve toy;
  ForToy([&](const BlockRequest& request) { toy.Add(request); });
  EXPECT_EQ(toy.HitTokens(3), 28u);
  EXPECT_EQ(toy.HitTokens(4), 32u);
  EXPECT_EQ(toy.HitTokens(1000), 40u);
}

TEST(Reference, WindowsByHand) {
  WindowReference windows(100 * kSecond);
  const auto add = [&](int64_t seconds, std::vector<uint32_t> blocks) {
    windows.Add({.time_ns = seconds * kSecond,
                 .input_tokens = blocks.size() * 100,
                 .block_tokens = 100,
                 .blocks = blocks});
  };
  add(0, {0, 1, 2});
  add(10, {0, 1, 2, 3});   // Ends where the first ended: found.
  add(20, {0, 1, 4});      // Leaves in the middle of a prompt: a fork.
  add(30, {0, 5});         // 100 tokens are not adopted.
  add(150, {0, 1, 2, 3});  // Its tip was the end at 10, too long ago.
  add(160, {0, 1, 4, 6});  // The fork's end at 20, too.
  const WindowReference::Figures& f = windows.figures();
  EXPECT_EQ(f.adopted_hits, 4u);
  EXPECT_EQ(f.found, 1u);
  EXPECT_EQ(f.replays, 3u);
  EXPECT_EQ(f.replay_tokens, 3u * 128);
  EXPECT_EQ(f.forks, 1u);
  EXPECT_EQ(f.found_every_position, 2u);
  EXPECT_EQ(f.live_checkpoints_peak, 4u);
}

}  // namespace
}  // namespace reprise::economics
