#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/bench/measured.h"
#include "client/client.h"

namespace reprise::bench {

// What the benchmarks of a running daemon share.
struct DaemonBenchOptions {
  std::string address;                     // unix: for dram and lookup.
  std::string tcp_address;                 // wire; empty: leave TCP and RDMA out.
  Transport transport = Transport::kAuto;  // wire: this one alone; kAuto: all that can be had.
  std::string rdma_device = "auto";
  std::string verb;                 // wire: get or put alone; empty: both.
  uint32_t records = 2'000;         // The working set; it must fit in DRAM.
  uint32_t batch = 64;              // Keys in one request.
  Nanos duration_ns = 3 * kSecond;  // Of each measure, all rounds together.
  uint32_t rounds = 5;              // The measures of a benchmark take turns this often.
  Nanos deadline_ns = 60 * kSecond;
  uint64_t seed = 1;
};

// ---- Leases and copies of records in DRAM, beside memcpy of as many bytes in this process
struct DramBenchFigures {
  Measured lease;        // Acquire and Release: the records can be read in place.
  Measured copy;         // Acquire, copy every record to our buffer, Release.
  Measured memory_copy;  // memcpy of the same bytes from our memory to the same buffer.
  Series lease_rate, copy_rate, memory_copy_rate;  // Records, bytes, bytes per second.
  Series copy_ratio;                               // copy over memory_copy, round by round.
  uint32_t record_bytes = 0;
  uint64_t wrong_records = 0;
};
absl::StatusOr<DramBenchFigures> RunDramBench(const DaemonBenchOptions& options,
                                              const Clock& clock);

// ---- Records from and to a daemon, checksums verified where they arrive
struct WireBenchFigures {
  struct Route {
    std::string name;  // "tcp", "unix", "shm", "rdma".
    bool put = false;  // Else records are loaded.
    uint32_t batch = 0;
    Measured measured;
    Series rate;  // Bytes per second.
  };
  std::vector<Route> routes;
  uint32_t record_bytes = 0;
};
absl::StatusOr<WireBenchFigures> RunWireBench(const DaemonBenchOptions& options,
                                              const Clock& clock);

// ---- Lookups of chains of known blocks
inline constexpr uint32_t kLookupChainBlocks = 1'024;

struct LookupBenchFigures {
  struct InProcess {
    uint64_t blocks = 0;  // In the index, which is full.
    double index_bytes_per_block = 0;
    Measured measured;  // Blocks looked up, in chains; one thread.
    Series rate;        // Blocks per second.
  };
  std::vector<InProcess> in_process;
  Measured daemon;  // Empty when no daemon was asked.
  Series daemon_rate;
};
// BlockStore::Lookup in this process, one result for each index size of `fills`.
absl::Status RunIndexLookups(const DaemonBenchOptions& options, const std::vector<uint64_t>& fills,
                             const Clock& clock, LookupBenchFigures* figures);
// Lookup messages to the daemon.
absl::Status RunDaemonLookups(const DaemonBenchOptions& options, const Clock& clock,
                              LookupBenchFigures* figures);

}  // namespace reprise::bench
