#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/engine/engine.h"
#include "protocol/base/clock.h"
#include "protocol/base/prng.h"
#include "server/serving/block_buffers.h"
#include "server/serving/block_writer.h"
#include "server/serving/hbm_tier.h"
#include "server/serving/live_windows.h"
#include "server/serving/load_gate.h"
#include "server/serving/store_port.h"
#include "server/serving_metrics.h"

namespace reprise::server {

// Remembers where hits were completed by a replay lately: a second one at the same place means that
// a common prefix forks there, and a snapshot is worth its memory. One thread.
class ForkDetector {
 public:
  bool SeenBefore(const BlockKey& end_of_hit);

 private:
  static constexpr size_t kRemembered = 1024;
  std::deque<BlockKey> replayed_at_;
};

// What the requests of one engine share. The engine's thread, but for what says otherwise.
struct ServingContext {
  // `the_tier`: for an engine whose memory is not the host's; null for others.
  ServingContext(engine::Engine* the_engine, StorePort* the_store, const Clock* the_clock,
                 uint32_t record_bytes, uint32_t buffer_count, std::unique_ptr<HbmTier> the_tier);

  // Reserves what a request may need in each: blocks in the engine's memory, and buffers.
  bool Reserve(uint32_t blocks);

  engine::Engine& engine;
  StorePort& store;
  const Clock& clock;
  // Host memory for the blocks that active sequences compute; with a tier, for those on their way
  // from it to the store.
  BlockBuffers buffers;
  engine::EngineBuffer pinned_buffers;  // They end first.
  std::unique_ptr<HbmTier> tier;        // Null: blocks lie in buffers and in the store's slots.
  BlockWriter writer;
  LiveWindows windows;
  LoadGate gate;
  ForkDetector forks;
  Prng prng;
  bool gate_loads = true;
  bool durable = true;  // Blocks are acknowledged when they are on SSD.
  Nanos load_limit_ns = 5 * kSecond;
  ServingCounters counters;

  double SecondsSince(Instant begin) const {
    return static_cast<double>(clock.Now() - begin) / kSecond;
  }
};

}  // namespace reprise::server
