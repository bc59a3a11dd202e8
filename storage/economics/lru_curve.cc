#include "storage/economics/lru_curve.h"

#include <algorithm>

namespace reprise::economics {

void LruCurve::Change(uint32_t request, int64_t by) {
  for (size_t at = size_t{request} + 1; at < tree_.size(); at += at & (~at + 1)) tree_[at] += by;
}

uint64_t LruCurve::CountFrom(uint32_t request) const {
  int64_t before = 0;
  for (size_t at = request; at > 0; at -= at & (~at + 1)) before += tree_[at];
  return total_ - static_cast<uint64_t>(before);
}

void LruCurve::AddRequest(uint64_t blocks) {
  const size_t at = tree_.size();
  int64_t sum = static_cast<int64_t>(blocks);
  // A new node covers what the tree's nodes below it cover.
  for (size_t step = 1; step < (at & (~at + 1)); step *= 2) sum += tree_[at - step];
  tree_.push_back(sum);
  counts_.push_back(blocks);
  total_ += blocks;
}

void LruCurve::Add(const BlockRequest& request) {
  const std::span<const uint32_t> blocks = request.blocks;
  input_tokens_ += request.input_tokens;
  for (const uint32_t block : blocks) {
    if (block >= last_request_.size()) last_request_.resize(size_t{block} + 1, kNever);
  }
  const auto now = static_cast<uint32_t>(counts_.size());
  // Places are of the order before this request: what its first groups leave behind does not move
  // the later ones, which are older, until all of them are known.
  std::vector<std::pair<uint32_t, uint64_t>> taken;
  for (size_t begin = 0; begin < blocks.size();) {
    const uint32_t last = last_request_[blocks[begin]];
    if (last == kNever) break;
    size_t end = begin + 1;
    while (end < blocks.size() && last_request_[blocks[end]] == last) ++end;
    const uint64_t place = CountFrom(last + 1) + 1;
    const uint64_t length = end - begin;
    if (place + length >= differences_.size()) differences_.resize(place + length + 1);
    differences_[place] += request.block_tokens;
    differences_[place + length] -= request.block_tokens;
    const uint64_t whole = request.HitTokens(end) - request.HitTokens(end - 1);
    if (whole < request.block_tokens) {  // A tail that is not full.
      differences_[place + length - 1] -= request.block_tokens - whole;
      differences_[place + length] += request.block_tokens - whole;
    }
    taken.emplace_back(last, length);
    begin = end;
  }
  for (const auto& [last, length] : taken) {
    counts_[last] -= length;
    Change(last, -static_cast<int64_t>(length));
    total_ -= length;
  }
  for (const uint32_t block : blocks) last_request_[block] = now;
  AddRequest(blocks.size());
  hit_tokens_.clear();
}

void LruCurve::Sum() const {
  if (!hit_tokens_.empty()) return;
  hit_tokens_.resize(differences_.size());
  uint64_t at_place = 0, sum = 0;
  for (size_t place = 0; place < differences_.size(); ++place) {
    at_place += differences_[place];  // Differences wrap around, and so do their sums, back again.
    sum += at_place;
    hit_tokens_[place] = sum;
  }
}

uint64_t LruCurve::HitTokens(uint64_t capacity) const {
  Sum();
  return hit_tokens_[std::min<uint64_t>(capacity, hit_tokens_.size() - 1)];
}

}  // namespace reprise::economics
