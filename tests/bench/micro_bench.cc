// Micro-benchmarks of what every block passes through. Run one with
// --benchmark_filter=Index.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "client/drive/pattern.h"
#include "protocol/base/checksum.h"
#include "protocol/base/prng.h"
#include "protocol/identity/block_hash.h"
#include "protocol/record/record.h"
#include "protocol/wire/messages.h"
#include "storage/admission_policy.h"
#include "storage/block_index.h"
#include "storage/eviction_policy.h"
#include "storage/what_if.h"

namespace reprise {
namespace {

BlockKey RandomKey(Prng* prng) { return {.low = prng->Next(), .high = prng->Next()}; }

std::vector<TokenId> RandomTokens(Prng* prng) {
  std::vector<TokenId> tokens(kBlockTokens);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng->Below(100'000));
  return tokens;
}

// ---- Index

void IndexFind(benchmark::State& state) {
  const auto blocks = static_cast<uint64_t>(state.range(0));
  storage::BlockIndex index(blocks);
  Prng prng(1);
  std::vector<BlockKey> keys(blocks);
  for (BlockKey& key : keys) {
    key = RandomKey(&prng);
    index.Insert({.key = key, .ssd_location = 1});
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(index.Find(keys[prng.Below(blocks)]));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(IndexFind)->Arg(1 << 12)->Arg(200'000)->Arg(8'000'000);

void IndexInsertErase(benchmark::State& state) {
  constexpr uint64_t kBlocks = 200'000;
  storage::BlockIndex index(kBlocks);
  Prng prng(1);
  std::vector<BlockKey> keys(kBlocks);
  for (BlockKey& key : keys) {
    key = RandomKey(&prng);
    index.Insert({.key = key, .ssd_location = 1});
  }
  size_t oldest = 0;
  for (auto _ : state) {
    index.Erase(index.Find(keys[oldest]));
    keys[oldest] = RandomKey(&prng);
    index.Insert({.key = keys[oldest], .ssd_location = 1});
    oldest = oldest + 1 == kBlocks ? 0 : oldest + 1;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(IndexInsertErase);

// ---- Policies: one step is a hit, an eviction and a newcomer in its place

void EvictionStep(benchmark::State& state, const char* name) {
  constexpr uint32_t kIds = 65'536;
  const auto policy = *storage::MakeEvictionPolicy(name, kIds);
  Prng prng(1);
  for (uint32_t id = 0; id < kIds; ++id) policy->Track(id, RandomKey(&prng));
  for (auto _ : state) {
    policy->Touch(static_cast<uint32_t>(prng.Below(kIds)));
    policy->Track(policy->Evict(), RandomKey(&prng));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(EvictionStep, fifo, "fifo");
BENCHMARK_CAPTURE(EvictionStep, lru, "lru");
BENCHMARK_CAPTURE(EvictionStep, s3fifo, "s3fifo");

void TinyLfuRecordAndAdmit(benchmark::State& state) {
  const auto policy = *storage::MakeAdmissionPolicy("tinylfu", 200'000);
  Prng prng(1);
  for (auto _ : state) {
    const BlockKey key = RandomKey(&prng);
    policy->Record(key);
    benchmark::DoNotOptimize(policy->Admit(key));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(TinyLfuRecordAndAdmit);

// ---- What-if pools: a block is looked for and then used. The argument is the pool's size in
// blocks, which sets the rate as the daemon does; the pools are a DRAM tier, an SSD tier four times
// as large, and both at 0.5 to 8 times.

void WhatIfLookAndUse(benchmark::State& state) {
  const auto blocks = static_cast<uint64_t>(state.range(0));
  storage::WhatIf::Options options{.rate = storage::WhatIfRate(blocks), .capacities = {}};
  for (const uint64_t eighths : {4, 8, 16, 16, 32, 32, 64, 64, 128, 256}) {
    options.capacities.push_back(blocks * eighths / 8);
  }
  storage::WhatIf what_if(options);
  Prng prng(1);
  std::vector<BlockKey> keys(1 << 20);
  for (BlockKey& key : keys) key = RandomKey(&prng);
  const uint64_t range = std::min<uint64_t>(keys.size(), blocks * 4);
  size_t next = 0;
  for (auto _ : state) {
    const BlockKey& key = keys[next];
    what_if.Look(key);
    what_if.Use(key);
    next = next + 1 == range ? 0 : next + 1;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(WhatIfLookAndUse)->Arg(1 << 12)->Arg(40'000)->Arg(200'000)->Arg(8'000'000);

// ---- Checksums and hashes

void Crc32cOf(benchmark::State& state) {
  std::vector<std::byte> bytes(static_cast<size_t>(state.range(0)), std::byte{7});
  for (auto _ : state) benchmark::DoNotOptimize(Crc32c(bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(Crc32cOf)->Arg(64)->Arg(768)->Arg(28'672)->Arg(kV41RecordBytes);

void HashOfBlock(benchmark::State& state) {
  Prng prng(1);
  const std::vector<TokenId> tokens = RandomTokens(&prng);
  Hash256 parent;
  for (auto _ : state) {
    parent = BlockHash(parent, tokens);
    benchmark::DoNotOptimize(parent);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(HashOfBlock);

// ---- Records

class Record {
 public:
  Record() : bytes_(kV41RecordBytes) {
    Prng prng(1);
    const std::vector<TokenId> tokens = RandomTokens(&prng);
    header_.block_hash = BlockHash(header_.parent_hash, tokens);
    header_.payload_bytes = kV41PayloadBytes;
    header_.record_bytes = kV41RecordBytes;
    header_.token_count = kBlockTokens;
    FillPattern(1, Bytes(bytes_).first(kV41PayloadBytes));
    std::memcpy(Bytes(bytes_).last(kRecordTokenBytes).data(), tokens.data(), kRecordTokenBytes);
    Seal();
  }
  void Seal() { SealRecord(bytes_, header_); }
  ConstBytes bytes() const { return bytes_; }
  BlockKey key() const { return KeyOf(header_.block_hash); }

 private:
  std::vector<std::byte> bytes_;
  RecordHeader header_;
};

void RecordSeal(benchmark::State& state) {
  Record record;
  for (auto _ : state) record.Seal();
  state.SetBytesProcessed(state.iterations() * kV41RecordBytes);
}
BENCHMARK(RecordSeal);

void RecordVerify(benchmark::State& state) {
  const Record record;
  if (VerifyRecord(record.bytes(), record.key()) != Outcome::kOk) {
    state.SkipWithError("a sealed record fails its check");
  }
  for (auto _ : state) benchmark::DoNotOptimize(VerifyRecord(record.bytes(), record.key()));
  state.SetBytesProcessed(state.iterations() * kV41RecordBytes);
}
BENCHMARK(RecordVerify);

void RecordVerifyHeader(benchmark::State& state) {
  const Record record;
  const ConstBytes tail = record.bytes().last(kRecordTailBytes);
  for (auto _ : state) benchmark::DoNotOptimize(VerifyHeader(tail, kV41RecordBytes));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(RecordVerifyHeader);

// ---- Frames: header, body and keys of a lookup, as a connection takes them apart

void FrameParse(benchmark::State& state) {
  const auto key_count = static_cast<uint32_t>(state.range(0));
  Prng prng(1);
  std::string body;
  wire::Append(&body, wire::LookupRequest{.namespace_id = 1, .key_count = key_count});
  for (uint32_t i = 0; i < key_count; ++i) wire::Append(&body, RandomKey(&prng));
  wire::FrameHeader sealed;
  sealed.opcode = static_cast<uint8_t>(wire::Opcode::kLookup);
  sealed.request_id = 1;
  wire::SealFrame(&sealed, AsBytes(body));
  for (auto _ : state) {
    wire::FrameHeader header;
    wire::LookupView view;
    const bool parsed = wire::ParseFrameHeader(AsBytes(sealed), &header) == Outcome::kOk &&
                        wire::BodyMatches(header, AsBytes(body)) &&
                        wire::Decode(AsBytes(body), &view);
    if (!parsed) state.SkipWithError("a sealed frame was refused");
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(FrameParse)->Arg(1)->Arg(64)->Arg(1'024);

}  // namespace
}  // namespace reprise

BENCHMARK_MAIN();
