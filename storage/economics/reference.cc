#include "storage/economics/reference.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "protocol/base/check.h"

namespace reprise::economics {
namespace {

constexpr uint32_t kNoBlock = UINT32_MAX;
constexpr uint32_t kNoRequest = UINT32_MAX;

// Blocks in order of age, and which are in it: 9 bytes a block.
class AgeList {
 public:
  void Reserve(uint32_t blocks) {
    if (blocks <= resident_.size()) return;
    older_.resize(blocks, kNoBlock);
    newer_.resize(blocks, kNoBlock);
    resident_.resize(blocks);
  }
  bool Has(uint32_t block) const { return resident_[block] != 0; }
  uint64_t size() const { return size_; }
  uint32_t older(uint32_t block) const { return older_[block]; }

  // Makes `first` and the older ones after it, to `last`, the newest. They are in the list, in a
  // row.
  void Renew(uint32_t first, uint32_t last) {
    if (first == newest_) return;
    const uint32_t before = newer_[first], after = older_[last];
    older_[before] = after;
    (after == kNoBlock ? oldest_ : newer_[after]) = before;
    older_[last] = newest_;
    newer_[newest_] = last;
    newer_[first] = kNoBlock;
    newest_ = first;
  }
  void AddNewest(uint32_t block) {
    resident_[block] = 1;
    ++size_;
    older_[block] = newest_;
    newer_[block] = kNoBlock;
    (newest_ == kNoBlock ? oldest_ : newer_[newest_]) = block;
    newest_ = block;
  }
  void DropOldest() {
    const uint32_t block = oldest_;
    resident_[block] = 0;
    --size_;
    oldest_ = newer_[block];
    (oldest_ == kNoBlock ? newest_ : older_[oldest_]) = kNoBlock;
  }

 private:
  std::vector<uint32_t> older_, newer_;
  std::vector<uint8_t> resident_;
  uint32_t newest_ = kNoBlock, oldest_ = kNoBlock;
  uint64_t size_ = 0;
};

uint32_t Above(std::span<const uint32_t> blocks) {
  uint32_t above = 0;
  for (const uint32_t block : blocks) above = std::max(above, block + 1);
  return above;
}

class AgeCache : public ReferenceCache {
 public:
  explicit AgeCache(uint64_t capacity)
      : capacity_(capacity == 0 ? std::numeric_limits<uint64_t>::max() : capacity) {}

  uint64_t Serve(std::span<const uint32_t> blocks) final {
    list_.Reserve(Above(blocks));
    uint64_t hit = 0;
    while (hit < blocks.size() && list_.Has(blocks[hit])) ++hit;
    Admit(blocks);
    return hit;
  }
  uint64_t resident() const final { return list_.size(); }

 protected:
  virtual void Admit(std::span<const uint32_t> blocks) = 0;
  void DropBeyond() {
    while (list_.size() > capacity_) list_.DropOldest();
  }

  uint64_t capacity_;
  AgeList list_;
};

class LruCache final : public AgeCache {
 public:
  using AgeCache::AgeCache;

 private:
  // From the last to the first; neighbours in the list, which most are, go as one.
  void Admit(std::span<const uint32_t> blocks) override {
    size_t end = blocks.size();
    while (end > 0) {
      if (!list_.Has(blocks[end - 1])) {
        list_.AddNewest(blocks[--end]);
        continue;
      }
      size_t begin = end - 1;
      while (begin > 0 && list_.Has(blocks[begin - 1]) &&
             list_.older(blocks[begin - 1]) == blocks[begin]) {
        --begin;
      }
      list_.Renew(blocks[begin], blocks[end - 1]);
      end = begin;
    }
    DropBeyond();
  }
};

class NaiveLruCache final : public AgeCache {
 public:
  using AgeCache::AgeCache;

 private:
  void Admit(std::span<const uint32_t> blocks) override {
    for (const uint32_t block : blocks) {
      if (list_.Has(block)) {
        list_.Renew(block, block);
      } else {
        list_.AddNewest(block);
        DropBeyond();
      }
    }
  }
};

class FifoCache final : public AgeCache {
 public:
  using AgeCache::AgeCache;

 private:
  void Admit(std::span<const uint32_t> blocks) override {
    for (size_t i = blocks.size(); i > 0; --i) {
      if (!list_.Has(blocks[i - 1])) list_.AddNewest(blocks[i - 1]);
    }
    DropBeyond();
  }
};

}  // namespace

absl::StatusOr<ReferencePolicy> ParseReferencePolicy(std::string_view name) {
  if (name == "lru") return ReferencePolicy::kLru;
  if (name == "lru-naive") return ReferencePolicy::kLruNaive;
  if (name == "fifo") return ReferencePolicy::kFifo;
  if (name == "belady") return ReferencePolicy::kBelady;
  return InvalidArgument("unknown policy \"" + std::string(name) +
                         "\": use lru, lru-naive, fifo or belady");
}

std::unique_ptr<ReferenceCache> MakeReferenceCache(ReferencePolicy policy,
                                                   uint64_t capacity_blocks) {
  switch (policy) {
    case ReferencePolicy::kLru:
      return std::make_unique<LruCache>(capacity_blocks);
    case ReferencePolicy::kLruNaive:
      return std::make_unique<NaiveLruCache>(capacity_blocks);
    case ReferencePolicy::kFifo:
      return std::make_unique<FifoCache>(capacity_blocks);
    case ReferencePolicy::kBelady:
      break;
  }
  RP_CHECK(capacity_blocks == 0);  // Without a limit all policies are one.
  return std::make_unique<FifoCache>(0);
}

// ---- Belady ------------------------------------------------------------------------------------

void BeladyRun::Add(std::span<const uint32_t> blocks) {
  references_.insert(references_.end(), blocks.begin(), blocks.end());
  begins_.push_back(references_.size());
  blocks_ = std::max(blocks_, Above(blocks));
}

std::vector<uint32_t> BeladyRun::Run(uint64_t capacity_blocks) const {
  const auto requests = static_cast<uint32_t>(begins_.size() - 1);
  // The request that uses a reference's block next.
  std::vector<uint32_t> next(references_.size());
  {
    std::vector<uint32_t> later(blocks_, kNoRequest);
    for (uint32_t request = requests; request > 0; --request) {
      for (uint64_t at = begins_[request - 1]; at < begins_[request]; ++at) {
        next[at] = later[references_[at]];
        later[references_[at]] = request - 1;
      }
    }
  }
  // Resident blocks by the request that uses them next, and there by their depth: a block has the
  // same place in every chain that contains it.
  std::map<uint32_t, std::priority_queue<uint32_t>> waiting;
  std::vector<uint8_t> resident(blocks_);
  uint64_t size = 0;
  std::vector<uint32_t> hits(requests);
  for (uint32_t request = 0; request < requests; ++request) {
    const uint64_t begin = begins_[request], end = begins_[request + 1];
    uint64_t hit = begin;
    while (hit < end && resident[references_[hit]] != 0) ++hit;
    hits[request] = static_cast<uint32_t>(hit - begin);
    if (const auto now = waiting.find(request); now != waiting.end()) waiting.erase(now);
    for (uint64_t at = begin; at < end; ++at) {
      uint8_t& is_resident = resident[references_[at]];
      const bool keep = next[at] != kNoRequest;
      size += (keep ? 1 : 0) - is_resident;
      is_resident = keep ? 1 : 0;
      if (keep) waiting[next[at]].push(static_cast<uint32_t>(at - begin));
    }
    while (size > capacity_blocks) {
      const auto last = std::prev(waiting.end());
      resident[references_[begins_[last->first] + last->second.top()]] = 0;
      last->second.pop();
      if (last->second.empty()) waiting.erase(last);
      --size;
    }
  }
  return hits;
}

// ---- Time --------------------------------------------------------------------------------------

ReuseIntervals::ReuseIntervals(std::vector<Nanos> bounds_ns)
    : bounds_(std::move(bounds_ns)), tokens_within_(bounds_.size()), tips_within_(bounds_.size()) {}

void ReuseIntervals::Add(const BlockRequest& request) {
  const std::span<const uint32_t> blocks = request.blocks;
  const uint32_t above = Above(blocks);
  if (above > last_use_.size()) last_use_.resize(above, kNever);
  size_t hit = 0;
  while (hit < blocks.size() && last_use_[blocks[hit]] != kNever) ++hit;
  for (size_t i = 0; i < hit; ++i) {
    const uint64_t tokens = request.HitTokens(i + 1) - request.HitTokens(i);
    const Nanos interval = request.time_ns - last_use_[blocks[i]];
    reused_tokens_ += tokens;
    tips_ += i + 1 == hit ? 1 : 0;
    for (size_t b = 0; b < bounds_.size(); ++b) {
      if (interval > bounds_[b]) continue;
      tokens_within_[b] += tokens;
      tips_within_[b] += i + 1 == hit ? 1 : 0;
    }
  }
  for (const uint32_t block : blocks) last_use_[block] = request.time_ns;
}

void WindowReference::Expire(Nanos now_ns) {
  while (!ends_.empty() && now_ns - ends_.front().first > ttl_ns_) {
    const auto [time, block] = ends_.front();
    ends_.pop();
    if (last_end_[block] == time) --live_;
  }
}

void WindowReference::Add(const BlockRequest& request) {
  const std::span<const uint32_t> blocks = request.blocks;
  const uint32_t above = Above(blocks);
  if (above > last_use_.size()) {
    last_use_.resize(above, kNever);
    last_end_.resize(above, kNever);
  }
  const Nanos now = request.time_ns;
  size_t hit = 0;
  while (hit < blocks.size() && last_use_[blocks[hit]] != kNever) ++hit;
  if (request.HitTokens(hit) > kWindow) {
    const uint32_t tip = blocks[hit - 1];
    ++figures_.adopted_hits;
    const bool ended_here = last_end_[tip] != kNever;
    const bool found = ended_here && now - last_end_[tip] <= ttl_ns_;
    ++(found ? figures_.found : figures_.replays);
    figures_.replay_tokens += found ? 0 : kWindow;
    figures_.forks += ended_here ? 0 : 1;
    figures_.found_every_position += now - last_use_[tip] <= ttl_ns_ ? 1 : 0;
  }
  for (const uint32_t block : blocks) last_use_[block] = now;
  if (blocks.empty()) return;
  Expire(now);
  const uint32_t end = blocks.back();
  if (last_end_[end] == kNever || now - last_end_[end] > ttl_ns_) ++live_;
  // Ends twice at the same time is once in the queue's account.
  if (last_end_[end] != now) ends_.emplace(now, end);
  last_end_[end] = now;
  figures_.live_checkpoints_peak = std::max(figures_.live_checkpoints_peak, live_);
}

}  // namespace reprise::economics
