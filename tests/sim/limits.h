#pragma once

#include <cstdint>
#include <string>

#include "protocol/base/clock.h"
#include "protocol/base/prng.h"
#include "storage/block_store.h"

namespace reprise::sim {

// The limits of one run. Each has a short list of cruel values, so that a run reaches within
// milliseconds what production reaches in a month: full pools, full queues, regions of one record.
struct Limits {
  uint32_t shards = 1;
  uint32_t clients = 1;
  uint32_t connections_max = 64;
  uint32_t pipeline = 1;  // Requests that a client has under way at once.

  // Of a shard.
  uint32_t block_slots = 8;
  uint32_t window_slots = 4;
  uint32_t region_slots = 4;
  uint32_t region_count = 4;  // 0: no SSD tier.
  uint32_t loads_max = 4;
  uint32_t appends_max = 4;
  uint32_t waiting_max = 16;
  uint32_t reinsert_percent = 10;
  uint8_t hot_frequency = 2;
  std::string dram_eviction = "lru";
  std::string region_eviction = "fifo";
  std::string ssd_admission = "all";
  storage::BlockStore::SsdWrite ssd_write = storage::BlockStore::SsdWrite::kThrough;
  bool replace_replay_derived = true;
  uint32_t snapshots_max = 16;
  uint32_t positions_per_session = 3;

  bool rdma = false;  // Connections may go on by RDMA.
  uint32_t queue_pairs_max = 4;

  uint64_t quota_blocks = 0;  // Of the second namespace, over all shards; 0: none.
  uint64_t body_bytes_max = 0;
  Nanos tick_ns = kMillisecond;
  Nanos window_ttl_ns = kSecond;
  Nanos deadline_default_ns = kSecond;
  Nanos idle_frame_timeout_ns = kSecond;
  Nanos send_timeout_ns = kSecond;
  uint32_t disk_latency_ticks_max = 4;

  static Limits Draw(Prng* prng);
  std::string Describe() const;
};

// Which kinds of fault a run has: whole kinds are on or off, so that a run is odd in a few ways,
// strongly, and not a bit odd everywhere.
struct Faults {
  bool read_errors = false;
  bool write_errors = false;
  bool sync_errors = false;
  bool no_space = false;
  bool power_cuts = false;  // The machine stops.
  bool kills = false;       // The process stops.
  bool damage = false;      // Bits of the medium flip.
  bool meta_loss = false;   // The MetaStore is lost, or older than the disk, after a restart.
  bool fragments = false;   // The network cuts and delays what is sent.
  bool disconnects = false;
  bool silence = false;  // Half a frame, then nothing.
  bool slow_readers = false;
  bool rdma_errors = false;    // A device refuses a call.
  bool hostile = false;        // Bytes that are no frames, frames that lie.
  bool bad_puts = false;       // Records that are not what they say.
  bool clock_jumps = false;    // Of the wall clock.
  bool stalled_turns = false;  // A shard's thread is not scheduled for a while.

  static Faults Draw(Prng* prng);
  std::string Describe() const;
  bool disk_errors() const { return read_errors || write_errors || sync_errors || no_space; }
};

}  // namespace reprise::sim
