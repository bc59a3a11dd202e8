#pragma once

#include <cstdint>
#include <string>

#include "client/cli/commands.h"
#include "client/trace/trace.h"

// Hit rates by definition, in the trace's own blocks (storage/economics/reference.h).
namespace reprise::cli {

struct ReferenceOptions {
  std::string trace;
  TraceOptions options;
  std::string policy = "lru";
  uint64_t capacity_blocks = 0;  // 0: all.
  bool partial_tails = false;
  Nanos window_ttl_ns = 300 * kSecond;
  std::string model = "v4.1-flash";  // Whose bytes a curve shows.
  double sample = 1;                 // Of the blocks, for a curve.
};

absl::StatusOr<Result> RunReference(const ReferenceOptions& options);
absl::StatusOr<Result> RunWindowReference(const ReferenceOptions& options);
// All capacities in one pass, shown at steps of a quarter of a power of two.
absl::StatusOr<Result> RunCurve(const ReferenceOptions& options);

}  // namespace reprise::cli
