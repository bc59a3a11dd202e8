#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "client/trace/trace.h"
#include "storage/economics/block_numbers.h"
#include "storage/economics/block_trace.h"

namespace reprise {

// Turns requests of a trace into blocks of the store: 128 tokens each, whatever the trace's own
// block size is, equal exactly where `reprise drive` makes equal token ids (drive/prompt.h). Tokens
// that no id covers are the request's own, and a trace of lengths alone shares nothing.
class StoreTraceBuilder {
 public:
  StoreTraceBuilder() : trace_(kBlockTokens) {}

  absl::Status Add(const TraceRequest& request);
  economics::BlockTrace Take() { return std::move(trace_); }

 private:
  void BuildChain(const TraceRequest& request);
  // Names the first `position` tokens, given the chain.
  uint64_t PrefixAt(const TraceRequest& request, uint32_t position) const;
  uint32_t SessionOf(const TraceRequest& request);

  economics::BlockTrace trace_;
  economics::BlockNumbers numbers_;
  std::vector<uint64_t> chain_;  // Of the request in work: names its leading blocks.
  std::unordered_map<int64_t, uint32_t> sessions_;
  // By session: its latest snapshots that end inside a block, newest first.
  std::vector<std::vector<economics::WindowModel::Place>> inside_;
  std::vector<economics::WindowModel::Place> known_;
  uint64_t ordinal_ = 0;
};

// More of the same than was recorded.
struct TraceScale {
  uint32_t repeat = 1;    // The whole trace so many times, one after the other.
  uint32_t sessions = 1;  // Each session so many times at once; the copies share nothing.
  uint32_t context = 1;   // Prompts so many times as long.
  double speed = 1;       // So many times as fast.
  bool none() const { return repeat == 1 && sessions == 1 && context == 1 && speed == 1; }
};

// Reads the whole trace; `progress` is told how many requests were read, now and then. Also what
// `inspect` needs: lines that were left out are in *skipped_lines.
absl::StatusOr<economics::BlockTrace> ReadStoreTrace(
    const std::string& spec, const TraceOptions& options, const TraceScale& scale,
    const std::function<void(uint64_t requests)>& progress, uint64_t* skipped_lines);

}  // namespace reprise
