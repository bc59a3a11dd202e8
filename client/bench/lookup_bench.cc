#include <algorithm>
#include <array>

#include "client/bench/bench_chain.h"
#include "client/bench/daemon_bench.h"
#include "protocol/base/prng.h"
#include "storage/block_store.h"

namespace reprise::bench {
namespace {

using storage::BlockStore;

// The lookups below never touch a slot; a store has at least one.
class NoMemory final : public storage::SlotPool::Memory {
 public:
  Bytes slot(uint32_t) override { return {}; }
  uint32_t generation(uint32_t) const override { return 0; }
  void BumpGeneration(uint32_t) override {}
};

// A block key is a prefix of a SHA-256, so a random one is as good; chains lie one after another.
std::vector<BlockKey> RandomKeys(uint64_t count, uint64_t seed) {
  Prng prng(seed);
  std::vector<BlockKey> keys(count);
  for (BlockKey& key : keys) key = {.low = prng.Next(), .high = prng.Next()};
  return keys;
}

absl::StatusOr<LookupBenchFigures::InProcess> LookUpIn(const DaemonBenchOptions& options,
                                                       uint64_t blocks, const Clock& clock) {
  if (blocks < kLookupChainBlocks || blocks > UINT32_MAX / 2) {
    return InvalidArgument("--blocks " + std::to_string(blocks) + ": give 1024 to 2147483647");
  }
  NoMemory memory;
  storage::SlotPool slots(&memory, 0, 1, 0);
  BlockStore::Options store_options;
  store_options.record_bytes = kV41RecordBytes;
  RP_ASSIGN(const auto store, BlockStore::Create(store_options, &slots, blocks - 1));
  const std::vector<BlockKey> keys = RandomKeys(blocks, options.seed);
  for (uint64_t i = 0; i < blocks; ++i) {
    const storage::TrailerEntry entry{.key = keys[i],
                                      .block_index = static_cast<uint32_t>(i % kLookupChainBlocks)};
    store->Restore(entry, static_cast<uint32_t>(i), 0);
  }

  LookupBenchFigures::InProcess result;
  result.blocks = blocks;
  result.index_bytes_per_block =
      static_cast<double>(store->stats().index_bytes) / static_cast<double>(blocks);
  Prng prng(options.seed + 1);
  std::array<BlockStore::Residency, kLookupChainBlocks> found{};
  uint64_t missed = 0;
  for (uint32_t round = 0; round < options.rounds; ++round) {
    Measured measured;
    const Instant begin = clock.Now();
    Instant now = begin;
    while (now < begin + options.duration_ns / options.rounds) {
      const uint64_t first = prng.Below(blocks / kLookupChainBlocks) * kLookupChainBlocks;
      store->Lookup(std::span(keys).subspan(first, kLookupChainBlocks), found, 0);
      missed += static_cast<uint64_t>(
          std::count(found.begin(), found.end(), BlockStore::Residency::kAbsent));
      const Instant after = clock.Now();
      measured.latency.Add(after - now);
      measured.records += kLookupChainBlocks;
      now = after;
    }
    measured.elapsed_ns = now - begin;
    result.measured.Merge(measured);
    result.rate.Add(measured.records_per_second());
  }
  if (missed != 0) return Internal(std::to_string(missed) + " known blocks were not found");
  return result;
}

}  // namespace

absl::Status RunIndexLookups(const DaemonBenchOptions& options, const std::vector<uint64_t>& fills,
                             const Clock& clock, LookupBenchFigures* figures) {
  for (const uint64_t blocks : fills) {
    RP_ASSIGN(auto result, LookUpIn(options, blocks, clock));
    figures->in_process.push_back(std::move(result));
  }
  return absl::OkStatus();
}

absl::Status RunDaemonLookups(const DaemonBenchOptions& options, const Clock& clock,
                              LookupBenchFigures* figures) {
  ClientOptions client_options;
  client_options.address = options.address;
  client_options.name = "reprise bench lookup";
  client_options.deadline_ns = options.deadline_ns;
  RP_ASSIGN(const auto client, Client::Connect(client_options));
  RP_ASSIGN(const BenchNamespace name_space, OpenBenchNamespace(client.get()));
  const BenchChain chain(client->name_space(name_space.id), name_space.payload_bytes, options.seed,
                         kLookupChainBlocks);
  RP_TRY(StoreChain(client.get(), name_space, chain, wire::Durability::kRelaxed, clock).status());
  for (uint32_t round = 0; round < options.rounds; ++round) {
    Measured measured;
    const Instant begin = clock.Now();
    Instant now = begin;
    while (now < begin + options.duration_ns / options.rounds) {
      RP_ASSIGN(const Verdict verdict, client->Lookup(name_space.id, chain.keys()));
      if (verdict.hit_blocks != kLookupChainBlocks) {
        return ResourceExhausted("the daemon holds " + std::to_string(verdict.hit_blocks) +
                                 " of 1024 blocks; make its DRAM tier larger");
      }
      const Instant after = clock.Now();
      measured.latency.Add(after - now);
      measured.records += kLookupChainBlocks;
      now = after;
    }
    measured.elapsed_ns = now - begin;
    figures->daemon.Merge(measured);
    figures->daemon_rate.Add(measured.records_per_second());
  }
  return absl::OkStatus();
}

}  // namespace reprise::bench
