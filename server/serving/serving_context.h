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
#include "server/serving/load_gate.h"
#include "server/serving/store_port.h"
#include "server/serving_metrics.h"

namespace reprise::server {

// Live windows of sequences, kept for reuse. One thread.
class LiveWindows {
 public:
  explicit LiveWindows(uint64_t bytes) : bytes_(bytes) {}
  ~LiveWindows();
  LiveWindows(const LiveWindows&) = delete;
  LiveWindows& operator=(const LiveWindows&) = delete;

  std::byte* Take();  // Aligned to 64 bytes; content unspecified.
  void Return(std::byte* window) { free_.push_back(window); }

 private:
  uint64_t bytes_;
  std::vector<std::byte*> free_;
};

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
  ServingContext(engine::Engine* the_engine, StorePort* the_store, const Clock* the_clock,
                 uint32_t record_bytes, uint32_t buffer_count)
      : engine(*the_engine),
        store(*the_store),
        clock(*the_clock),
        buffers(record_bytes, buffer_count),
        windows(the_engine->window_layout().bytes),
        prng(static_cast<uint64_t>(the_clock->WallMillis())) {}

  engine::Engine& engine;
  StorePort& store;
  const Clock& clock;
  BlockBuffers buffers;
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
