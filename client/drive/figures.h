#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "client/drive/latency_histogram.h"
#include "protocol/base/types.h"

namespace reprise {

inline constexpr size_t kTierCount = 5;  // Values of Tier, kNone among them.

enum class DriveCall : uint8_t { kLookup, kAcquireDram, kAcquireSsd, kPut, kWindowGet, kWindowPut };
inline constexpr size_t kDriveCallCount = 6;
// "lookup", "acquire_dram", ...: the words of the report.
const char* DriveCallName(DriveCall call);

// What one connection, or all of them together, did and saw. Names are those of `reprise simulate`.
struct DriveFigures {
  uint64_t requests = 0;
  uint64_t input_tokens = 0;
  uint64_t hit_tokens = 0;  // Complete blocks found and loaded, times 128.
  std::array<uint64_t, kTierCount> hit_tokens_by_tier{};
  // Every request is one of three: blocks and window found, blocks found, nothing found.
  uint64_t exact_hits = 0;
  uint64_t replayed_hits = 0;
  uint64_t misses = 0;
  uint64_t replayed_tokens = 0;  // 128 for each replayed hit.

  uint64_t loaded_bytes = 0, put_bytes = 0;  // Records.
  uint64_t window_loaded_bytes = 0, window_put_bytes = 0;
  uint64_t blocks_put = 0;
  uint64_t blocks_existing = 0;  // Put found them stored already.
  uint64_t lost_blocks = 0;      // In a verdict, and gone when they were to be loaded.
  uint64_t lost_windows = 0;     // Likewise.
  uint64_t retries = 0;          // Of calls that the daemon was too busy for.
  uint64_t reconnects = 0;
  uint64_t wrong_bytes = 0;
  uint64_t wrong_records = 0;              // And snapshots.
  std::map<std::string, uint64_t> errors;  // "put/busy" and the like, by call and outcome.

  std::array<LatencyHistogram, kDriveCallCount> latencies;

  Nanos elapsed_ns = 0;
  Nanos behind_ns_max = 0;  // How late a request was sent, against the trace's own time.

  // Everything but the two times above, which are the run's.
  void Merge(const DriveFigures& other);
};

// From the daemon's status, before or after a run. Nothing where the daemon does not tell.
struct StoreCounters {
  std::optional<uint64_t> ssd_written_bytes;
  std::optional<uint64_t> ssd_read_bytes;
  std::optional<uint64_t> window_peak_bytes;
};

}  // namespace reprise
