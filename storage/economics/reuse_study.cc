#include "storage/economics/reuse_study.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace reprise::economics {
namespace {

constexpr uint32_t kStepsPerOctave = 4;
constexpr uint32_t kOctaves = 20;  // From 1 s to 12 days.

uint64_t KeyOfPlace(const WindowModel::Place& place) {
  return place.prefix ^ (place.position * 0x9e3779b97f4a7c15u);
}

}  // namespace

ReuseStudy::ReuseStudy(const BlockTrace& trace) {
  for (uint32_t i = 0; i <= kOctaves * kStepsPerOctave; ++i) {
    const double seconds = std::exp2(static_cast<double>(i) / kStepsPerOctave);
    bins_.push_back({.upto_ns = static_cast<Nanos>(seconds * kSecond)});
  }
  bins_.push_back({.upto_ns = kNever});

  distinct_tokens_ = uint64_t{trace.distinct_blocks()} * trace.block_tokens();
  std::vector<Nanos> last_use(trace.distinct_blocks(), kNever);
  std::unordered_map<uint64_t, Nanos> snapshots;  // Last put or used.
  std::vector<uint32_t> blocks;
  uint64_t puts = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    const TraceRow& row = trace.row(i);
    trace.Expand(i, &blocks);
    size_t hit = 0;
    while (hit < blocks.size() && last_use[blocks[hit]] != kNever) {
      const Nanos last = last_use[blocks[hit]];
      const size_t begin = hit;
      while (hit < blocks.size() && last_use[blocks[hit]] == last) ++hit;
      NoteInterval(row.time_ns - last, (hit - begin) * trace.block_tokens());
    }
    if (hit > 0) {
      ++hits_;
      ++BinFor(row.time_ns - last_use[blocks[hit - 1]]).tips;
      // The longest position that a snapshot was ever taken at.
      WindowModel::Place place{.prefix = blocks[hit - 1],
                               .position = uint64_t{hit} * trace.block_tokens()};
      for (const WindowModel::Place& known : trace.known_snapshots(i)) {
        if (known.position / trace.block_tokens() != hit || known.position <= place.position) {
          continue;
        }
        if (snapshots.contains(KeyOfPlace(known))) place = known;
      }
      const auto found = snapshots.find(KeyOfPlace(place));
      if (found == snapshots.end()) {
        ++fork_hits_;
      } else {
        const Nanos interval = row.time_ns - found->second;
        ++BinFor(interval).snapshots;
        snapshot_intervals_.push_back(interval);
        found->second = row.time_ns;
      }
    }
    for (const uint32_t block : blocks) last_use[block] = row.time_ns;
    if (row.snapshot.position == 0) continue;
    const auto [place, added] = snapshots.try_emplace(KeyOfPlace(row.snapshot), row.time_ns);
    if (added) {
      ++puts;
    } else {
      place->second = row.time_ns;
    }
  }
  // Each ends with a wait that nothing ended.
  snapshots_unused_ = puts;
  std::sort(snapshot_intervals_.begin(), snapshot_intervals_.end());
  interval_sums_ = {0};
  for (const Nanos interval : snapshot_intervals_) {
    interval_sums_.push_back(interval_sums_.back() + static_cast<double>(interval) / kSecond);
  }
}

ReuseStudy::Bin& ReuseStudy::BinFor(Nanos interval_ns) {
  return *std::lower_bound(bins_.begin(), bins_.end(), interval_ns,
                           [](const Bin& bin, Nanos value) { return bin.upto_ns < value; });
}

void ReuseStudy::NoteInterval(Nanos interval_ns, uint64_t tokens) {
  reused_tokens_ += tokens;
  BinFor(interval_ns).tokens += tokens;
}

double ReuseStudy::WorkingSetTokens(Nanos within_ns, Nanos span_ns) const {
  // A use keeps its tokens in the set until the next one, for at most that long.
  double token_seconds =
      static_cast<double>(distinct_tokens_) * static_cast<double>(within_ns) / kSecond;
  for (const Bin& bin : bins_) {
    token_seconds += static_cast<double>(bin.tokens) *
                     static_cast<double>(std::min(bin.upto_ns, within_ns)) / kSecond;
  }
  const double span = std::max(1e-9, static_cast<double>(span_ns) / kSecond);
  return std::min(token_seconds / span, static_cast<double>(distinct_tokens_));
}

ReuseStudy::AtTtl ReuseStudy::At(Nanos ttl_ns) const {
  const auto within = static_cast<size_t>(
      std::upper_bound(snapshot_intervals_.begin(), snapshot_intervals_.end(), ttl_ns) -
      snapshot_intervals_.begin());
  const uint64_t whole = snapshot_intervals_.size() - within + snapshots_unused_;
  return {.found = within,
          .snapshot_seconds = interval_sums_[within] +
                              static_cast<double>(whole) * static_cast<double>(ttl_ns) / kSecond};
}

}  // namespace reprise::economics
