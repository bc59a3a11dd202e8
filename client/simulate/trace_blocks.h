#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/trace/trace.h"
#include "storage/economics/block_numbers.h"
#include "storage/economics/reference.h"

namespace reprise {

// Reads a trace as requests for numbered blocks. Token ids are cut into blocks of 128 and hashed.
class TraceBlocks {
 public:
  // `partial_tails`: a last block that is not full counts too, where the trace lists it.
  TraceBlocks(std::unique_ptr<TraceReader> reader, bool partial_tails)
      : reader_(std::move(reader)), partial_tails_(partial_tails) {}

  // False at the end. The request's spans end with the next call. A trace of lengths alone has no
  // blocks: InvalidArgument.
  absl::StatusOr<bool> Next(economics::BlockRequest* request);

  const TraceRequest& row() const { return row_; }  // Of the last request.
  const TraceReader& reader() const { return *reader_; }
  uint32_t distinct_blocks() const { return numbers_.size(); }

 private:
  std::unique_ptr<TraceReader> reader_;
  bool partial_tails_;
  TraceRequest row_;
  economics::BlockNumbers numbers_;
  std::vector<uint64_t> hashed_;
};

// The ids of a request's whole blocks, and their size: the trace's own, or hashes of blocks of 128
// of its token ids, which are put in `*hashed`. A trace of lengths alone has none: InvalidArgument.
absl::StatusOr<std::span<const uint64_t>> WholeBlockIds(const TraceRequest& row,
                                                        std::vector<uint64_t>* hashed,
                                                        uint32_t* block_tokens);

// Every request of a trace, in order.
absl::Status ForEachRequest(
    const std::string& spec, const TraceOptions& options, bool partial_tails,
    const std::function<void(const economics::BlockRequest&, const TraceBlocks&)>& visit);

}  // namespace reprise
