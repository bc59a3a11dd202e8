#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "client/trace/trace.h"
#include "protocol/base/status.h"

namespace reprise {

// One trace format: turns lines into requests, in file order. Errors do not name the line; the
// caller adds where it was.
class RowParser {
 public:
  virtual ~RowParser() = default;
  // False: the line holds no request (a header). The spans in `request` end with the next call.
  virtual absl::StatusOr<bool> Parse(std::string_view line, TraceRequest* request) = 0;
  // The line given last was left out: forget what later lines would build on.
  virtual void OnSkipped() {}
};

// `block_tokens` 0: the format's own. A format that states its block size, or has no blocks,
// refuses another.
absl::StatusOr<std::unique_ptr<RowParser>> MakeRowParser(TraceFormat format, uint32_t block_tokens);

// The formats; MakeRowParser picks one.
std::unique_ptr<RowParser> MakeMooncakeParser(uint32_t block_tokens);
std::unique_ptr<RowParser> MakeQwenParser(uint32_t block_tokens);
std::unique_ptr<RowParser> MakeTokensParser();
std::unique_ptr<RowParser> MakeDeltaParser(uint32_t block_tokens);
std::unique_ptr<RowParser> MakeAzureParser();

// Refuses ids that do not fit the prompt: floor(input / block) of them, or one more for a partial
// tail.
absl::Status CheckIdCount(size_t id_count, uint32_t input_tokens, uint32_t block_tokens);

}  // namespace reprise
