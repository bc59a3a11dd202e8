#include "client/simulate/trace_blocks.h"

#include <algorithm>

#include "protocol/identity/block_hash.h"

namespace reprise {

absl::StatusOr<bool> TraceBlocks::Next(economics::BlockRequest* request) {
  RP_ASSIGN(const bool found, reader_->Next(&row_));
  if (!found) return false;
  std::span<const uint64_t> ids = row_.hash_ids;
  uint32_t block_tokens = row_.block_tokens;
  if (reader_->format() == TraceFormat::kTokens) {
    hashed_.clear();
    for (const Hash256& hash : PrefixChain(Hash256{}, row_.tokens)) {
      hashed_.push_back(KeyOf(hash).low);
    }
    ids = hashed_;
    block_tokens = kBlockTokens;
  }
  if (block_tokens == 0) {
    return InvalidArgument("a trace of format " + std::string(TraceFormatName(reader_->format())) +
                           " has lengths alone, no prefixes: it shows load and no hits");
  }
  const size_t whole = row_.input_tokens / block_tokens;
  const size_t count = partial_tails_ ? ids.size() : std::min(ids.size(), whole);
  *request = {.time_ns = row_.time_ns,
              .input_tokens = row_.input_tokens,
              .block_tokens = block_tokens,
              .blocks = numbers_.Of(ids.first(count))};
  return true;
}

absl::Status ForEachRequest(
    const std::string& spec, const TraceOptions& options, bool partial_tails,
    const std::function<void(const economics::BlockRequest&, const TraceBlocks&)>& visit) {
  RP_ASSIGN(auto reader, OpenTrace(spec, options));
  TraceBlocks blocks(std::move(reader), partial_tails);
  for (;;) {
    economics::BlockRequest request;
    RP_ASSIGN(const bool found, blocks.Next(&request));
    if (!found) return absl::OkStatus();
    visit(request, blocks);
  }
}

}  // namespace reprise
