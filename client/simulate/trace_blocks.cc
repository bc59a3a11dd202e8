#include "client/simulate/trace_blocks.h"

#include <algorithm>

#include "protocol/identity/block_hash.h"

namespace reprise {

absl::StatusOr<std::span<const uint64_t>> WholeBlockIds(const TraceRequest& row,
                                                        std::vector<uint64_t>* hashed,
                                                        uint32_t* block_tokens) {
  if (!row.tokens.empty()) {
    hashed->clear();
    for (const Hash256& hash : PrefixChain(Hash256{}, row.tokens)) {
      hashed->push_back(KeyOf(hash).low);
    }
    *block_tokens = kBlockTokens;
    return *hashed;
  }
  *block_tokens = row.block_tokens;
  if (row.block_tokens == 0) {
    return InvalidArgument("this trace has lengths alone, no prefixes: it shows load and no hits");
  }
  return row.hash_ids.first(
      std::min<size_t>(row.hash_ids.size(), row.input_tokens / row.block_tokens));
}

absl::StatusOr<bool> TraceBlocks::Next(economics::BlockRequest* request) {
  RP_ASSIGN(const bool found, reader_->Next(&row_));
  if (!found) return false;
  uint32_t block_tokens = 0;
  RP_ASSIGN(std::span<const uint64_t> ids, WholeBlockIds(row_, &hashed_, &block_tokens));
  if (partial_tails_ && row_.tokens.empty()) ids = row_.hash_ids;
  *request = {.time_ns = row_.time_ns,
              .input_tokens = row_.input_tokens,
              .block_tokens = block_tokens,
              .blocks = numbers_.Of(ids)};
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
