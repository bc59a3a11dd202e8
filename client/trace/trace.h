#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "protocol/base/clock.h"
#include "protocol/base/status.h"
#include "protocol/base/types.h"

// Traces of requests, read one at a time: a trace larger than memory works.
namespace reprise {

inline constexpr int64_t kNoSession = -1;

// The longest prompt that a trace may hold: what one lookup can ask for (65,000 blocks), rounded
// down.
inline constexpr int64_t kInputTokensMax = 8'000'000;
inline constexpr uint32_t kTraceBlockTokensMax = 1 << 20;

// One request. The spans are the reader's memory and end with its next call.
struct TraceRequest {
  Nanos time_ns = 0;  // On the trace's own time line; never before the previous request's.
  int64_t session = kNoSession;
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  // Equal id, equal prefix. Ids cover the prompt from its start, `block_tokens` each; the last one
  // may be partial or left out.
  uint32_t block_tokens = 0;
  std::span<const uint64_t> hash_ids;
  std::span<const TokenId> tokens;  // Format `tokens` only: the prompt itself.
};

enum class TraceFormat : uint8_t { kMooncake, kQwen, kDelta, kAzure, kTokens, kGenerated };

std::string_view TraceFormatName(TraceFormat format);
absl::StatusOr<TraceFormat> ParseTraceFormat(std::string_view name);

class TraceReader {
 public:
  virtual ~TraceReader() = default;
  // The next request, or false at the end. An error names the file, the line and what was wrong
  // with it; reading cannot go on after one.
  virtual absl::StatusOr<bool> Next(TraceRequest* request) = 0;
  virtual TraceFormat format() const = 0;
  // Lines left out because they were broken (TraceOptions::lenient).
  virtual uint64_t skipped_lines() const { return 0; }
};

struct TraceOptions {
  std::string format;         // Empty: found out from the first line.
  uint32_t block_tokens = 0;  // 0: the format's own (mooncake 512, qwen 16, delta: its header's).
  bool lenient = false;       // Leave broken lines out and count them.
};

// `spec` is a file (plain, gzip or zstd, told apart by content), or "generated" with options:
// "generated:sessions=16,turns=12,seed=1" (generated_trace.h has them all).
absl::StatusOr<std::unique_ptr<TraceReader>> OpenTrace(const std::string& spec,
                                                       const TraceOptions& options);

// One line of the mooncake format, without its line feed; `session` is added when there is one.
// REQUIRES: the request has hash ids, or a prompt shorter than a block.
std::string MooncakeRow(const TraceRequest& request);

}  // namespace reprise
