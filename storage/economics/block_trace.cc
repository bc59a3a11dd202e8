#include "storage/economics/block_trace.h"

#include <algorithm>
#include <numeric>

namespace reprise::economics {

absl::Status BlockTrace::Add(const TraceRow& row, std::span<const uint32_t> blocks,
                             std::span<const WindowModel::Place> known) {
  for (size_t begin = 0; begin < blocks.size();) {
    size_t end = begin + 1;
    while (end < blocks.size() && blocks[end] == blocks[end - 1] + 1) ++end;
    RP_TRY(runs_.Append({blocks[begin], static_cast<uint32_t>(end - begin)}));
    distinct_ = std::max(distinct_, blocks[end - 1] + 1);
    begin = end;
  }
  const auto count = static_cast<uint32_t>(blocks.size());
  RP_TRY(known_.Append(known));
  RP_TRY(rows_.Append(row));
  RP_TRY(ends_.Append({runs_.size(), known_.size(), count}));
  longest_ = std::max(longest_, count);
  if (row.session != TraceRow::kNoSession) sessions_ = std::max(sessions_, row.session + 1);
  references_ += blocks.size();
  input_tokens_ += row.input_tokens;
  output_tokens_ += row.output_tokens;
  return absl::OkStatus();
}

void BlockTrace::Expand(size_t request, std::vector<uint32_t>* blocks) const {
  blocks->resize(ends_[request].blocks);
  auto out = blocks->begin();
  for (uint64_t i = request == 0 ? 0 : ends_[request - 1].runs; i < ends_[request].runs; ++i) {
    std::iota(out, out + runs_[i].count, runs_[i].first);
    out += runs_[i].count;
  }
}

std::span<const WindowModel::Place> BlockTrace::known_snapshots(size_t request) const {
  const uint64_t begin = request == 0 ? 0 : ends_[request - 1].known;
  return known_.span().subspan(begin, ends_[request].known - begin);
}

}  // namespace reprise::economics
