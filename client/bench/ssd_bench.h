#pragma once

#include <cstdint>
#include <string>

#include "client/bench/measured.h"
#include "protocol/base/bytes.h"
#include "protocol/base/status.h"
#include "protocol/record/record_layout.h"

namespace reprise::bench {

struct SsdBenchOptions {
  std::string dir = ".";
  uint64_t size_bytes = 2_GiB;
  uint64_t region_bytes = 64_MiB;
  uint32_t record_bytes = kV41RecordBytes;
  uint32_t queue_depth = 32;
  Nanos duration_ns = 5 * kSecond;  // Of each phase.
  Nanos warm_up_ns = 200 * kMillisecond;
  bool append = true;
  bool append_durable = true;
  bool read = true;
  bool check = true;  // Every record that is read: header, key and CRC32C.
  // Leave the file for another run, and use the one that is there.
  bool keep = false;
  uint64_t seed = 1;
};

struct SsdBenchFigures {
  Measured append, append_durable, read;
  uint64_t syncs = 0;              // In append_durable.
  uint64_t recovered_records = 0;  // From an earlier run's file.
  uint64_t wrong_records = 0;
  bool direct = false;
  bool registered_memory = false;
  std::string pages;    // What backs the buffers.
  std::string remarks;  // Why something is slower than it could be.
};

// The SSD tier by itself: Ring, FileDevice and RegionLog as in the daemon, buffers from an Arena,
// an index of one array. Appends, durable appends, then reads of random records, `queue_depth` at a
// time. Writes dir/reprise-bench.data, which must not be there unless `keep` is set.
absl::StatusOr<SsdBenchFigures> RunSsdBench(const SsdBenchOptions& options, const Clock& clock);

// The name of that file.
std::string SsdBenchFile(const SsdBenchOptions& options);

}  // namespace reprise::bench
