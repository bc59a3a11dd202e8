#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/base/clock.h"
#include "storage/economics/paged_array.h"
#include "storage/economics/window_model.h"

namespace reprise::economics {

// A request of a trace, in blocks of the store. What its blocks are is the trace's to say.
struct TraceRow {
  Nanos time_ns = 0;
  uint32_t session = 0;  // Dense; kNoSession: none.
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  uint64_t root = 0;  // Names the first block: where a cluster places the prefix.
  // Where the prompt's snapshot is taken; position 0: nowhere. At the end of a block, that block's
  // number names the prefix.
  WindowModel::Place snapshot;

  static constexpr uint32_t kNoSession = UINT32_MAX;
};

// A whole trace, small: blocks are numbers (BlockNumbers) and those of a request are kept as runs
// of numbers in a row, which most requests have few of. It may be larger than memory. Written once,
// then read by any number of threads.
class BlockTrace {
 public:
  explicit BlockTrace(uint32_t block_tokens) : block_tokens_(block_tokens) {}

  // `known`: earlier snapshots of the session that are prefixes of this prompt and end inside a
  // block. Requests are added in order of time. Fails where there is no room (PagedBytes).
  absl::Status Add(const TraceRow& row, std::span<const uint32_t> blocks,
                   std::span<const WindowModel::Place> known);

  size_t size() const { return rows_.size(); }
  const TraceRow& row(size_t request) const { return rows_[request]; }
  // The request's blocks, written to `*blocks`.
  void Expand(size_t request, std::vector<uint32_t>* blocks) const;
  uint32_t block_count(size_t request) const { return ends_[request].blocks; }
  std::span<const WindowModel::Place> known_snapshots(size_t request) const;

  uint32_t block_tokens() const { return block_tokens_; }
  uint32_t distinct_blocks() const { return distinct_; }
  uint64_t references() const { return references_; }
  uint64_t input_tokens() const { return input_tokens_; }
  uint64_t output_tokens() const { return output_tokens_; }
  uint32_t longest_blocks() const { return longest_; }
  uint32_t sessions() const { return sessions_; }
  Nanos span_ns() const { return rows_.empty() ? 0 : row(size() - 1).time_ns - row(0).time_ns; }

 private:
  struct Run {
    uint32_t first = 0, count = 0;
  };
  struct Ends {  // One past the request's last, in runs_ and known_.
    uint64_t runs = 0, known = 0;
    uint32_t blocks = 0;
  };

  uint32_t block_tokens_;
  PagedArray<TraceRow> rows_;
  PagedArray<Ends> ends_;
  PagedArray<Run> runs_;
  PagedArray<WindowModel::Place> known_;
  uint32_t distinct_ = 0, longest_ = 0, sessions_ = 0;
  uint64_t references_ = 0, input_tokens_ = 0, output_tokens_ = 0;
};

}  // namespace reprise::economics
