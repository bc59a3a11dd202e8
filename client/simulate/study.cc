#include "client/simulate/study.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "storage/economics/lru_curve.h"
#include "storage/economics/reference.h"

namespace reprise {
namespace {

using economics::BlockRequest;
using economics::BlockTrace;
using economics::ReferencePolicy;

constexpr uint32_t kBuckets = 72;
constexpr size_t kSessionsShown = 10;
constexpr uint32_t kBoundPoints = 14;
constexpr double kMillion = 1e6;

// Calls work(i) for i below `count`, on `threads` threads.
void InParallel(size_t count, uint32_t threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> helpers;
  for (uint32_t i = 1; i < std::min<size_t>(threads, count); ++i) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
}

void AddToBucket(const BlockTrace& trace, const ServedRequest& served, Study* study) {
  const economics::TraceRow& row = trace.row(served.index);
  const Nanos since = row.time_ns - trace.row(0).time_ns;
  const double share =
      trace.span_ns() == 0 ? 0 : static_cast<double>(since) / static_cast<double>(trace.span_ns());
  TimeBucket& bucket =
      study->buckets[std::min<size_t>(static_cast<size_t>(share * kBuckets), kBuckets - 1)];
  ++bucket.requests;
  bucket.input_tokens += row.input_tokens;
  bucket.replayed_hits += served.replayed ? 1 : 0;
  bucket.hit.hbm += served.hit.hbm;
  bucket.hit.dram += served.hit.dram;
  bucket.hit.ssd += served.hit.ssd;
  bucket.ssd_bytes_written += served.ssd_bytes_written;
  bucket.window_bytes = std::max(bucket.window_bytes, served.window_bytes);
  const uint64_t record_bytes = study->record_bytes;
  bucket.dram_bytes = served.dram_blocks * record_bytes;
  bucket.ssd_bytes = served.ssd_blocks * record_bytes;
  bucket.evictions += served.evictions;
  bucket.computed_gpu_seconds += served.cost.compute_gpu_seconds;
  bucket.replayed_gpu_seconds += served.cost.replay_gpu_seconds;
  bucket.saved_gpu_seconds += std::max(0.0, served.cost.saved_gpu_seconds());
  bucket.load_seconds += served.cost.load_seconds;
}

// The hit rate of a cache of one pool, by definition (storage/economics/reference.h).
double BoundRate(const BlockTrace& trace, ReferencePolicy policy, uint64_t capacity) {
  std::vector<uint32_t> blocks;
  uint64_t hit_blocks = 0;
  if (policy == ReferencePolicy::kBelady) {
    economics::BeladyRun run;
    for (size_t i = 0; i < trace.size(); ++i) {
      trace.Expand(i, &blocks);
      run.Add(blocks);
    }
    for (const uint32_t hit : run.Run(capacity)) hit_blocks += hit;
  } else {
    const auto cache = economics::MakeReferenceCache(policy, capacity);
    for (size_t i = 0; i < trace.size(); ++i) {
      trace.Expand(i, &blocks);
      hit_blocks += cache->Serve(blocks);
    }
  }
  return static_cast<double>(hit_blocks * trace.block_tokens()) /
         static_cast<double>(std::max<uint64_t>(1, trace.input_tokens()));
}

}  // namespace

Money MoneyOf(const SimulationSettings& settings, const SimulationFigures& figures,
              const Costs& costs) {
  const CostProfile& profile = costs.profile();
  const double seconds = static_cast<double>(figures.span_ns) / kSecond * settings.machines;
  const auto held = [seconds](uint64_t bytes, double usd_per_byte_second) {
    return static_cast<double>(bytes) * usd_per_byte_second * seconds;
  };
  const auto input = static_cast<double>(figures.input_tokens) / kMillion;
  const auto hit = static_cast<double>(figures.hit_tokens.all()) / kMillion;
  const double output =
      static_cast<double>(figures.output_tokens) / kMillion * profile.price.output_usd_per_million;
  const uint64_t windows = costs.model().window_bytes() == 0 ? 0 : settings.window_pool_bytes();
  return {.saved = costs.Usd(figures.cold_gpu_seconds - figures.compute_gpu_seconds),
          .replay = costs.Usd(figures.replay_gpu_seconds),
          .hbm = held(settings.hbm_bytes, profile.hbm_usd_per_byte_second()),
          .dram = held(settings.dram_bytes, profile.dram_usd_per_byte_second()),
          .window = held(windows, profile.dram_usd_per_byte_second()),
          .ssd = held(settings.ssd_bytes, profile.ssd_usd_per_byte_second()),
          .ssd_wear = static_cast<double>(figures.blocks.ssd_bytes_written) *
                      profile.ssd_usd_per_byte_written(),
          .list_without = input * profile.price.miss_usd_per_million + output,
          .list_with = (input - hit) * profile.price.miss_usd_per_million +
                       hit * profile.price.hit_usd_per_million + output};
}

absl::StatusOr<std::vector<SimulatedRun>> RunPoints(
    const BlockTrace& trace, const std::vector<SimulationSettings>& points,
    const CostProfile& profile, double warm_up, uint32_t threads,
    const std::function<void(uint64_t points)>& done) {
  std::vector<SimulatedRun> runs(points.size());
  std::mutex mutex;
  absl::Status status;
  uint64_t finished = 0;
  InParallel(points.size(), threads, [&](size_t i) {
    const auto run = [&]() -> absl::Status {
      RP_ASSIGN(const ModelCosts model, ModelCosts::For(points[i].model));
      const Costs costs(model, profile);
      RP_ASSIGN(const SimulationFigures figures,
                Simulate(trace, points[i].OptionsFor(model, warm_up), costs));
      runs[i] = {points[i], figures, MoneyOf(points[i], figures, costs)};
      return absl::OkStatus();
    };
    const absl::Status result = run();
    const std::lock_guard lock(mutex);
    if (status.ok()) status = result;
    if (done) done(++finished);
  });
  RP_TRY(status);
  return runs;
}

absl::Status RunWithSeries(const BlockTrace& trace, const Costs& costs, Study* study) {
  study->record_bytes = costs.model().record_bytes();
  const Nanos width = trace.span_ns() / kBuckets;
  study->buckets.assign(kBuckets, {});
  for (uint32_t i = 0; i < kBuckets; ++i) {
    study->buckets[i].begin_hours = static_cast<double>(width) * i / (3600.0 * kSecond);
  }
  std::unordered_map<uint32_t, SessionTotal> sessions;
  RP_ASSIGN(study->run.figures,
            Simulate(trace, study->run.settings.OptionsFor(costs.model(), study->warm_up), costs,
                     [&](const ServedRequest& served) {
                       AddToBucket(trace, served, study);
                       const economics::TraceRow& row = trace.row(served.index);
                       if (row.session == economics::TraceRow::kNoSession) return;
                       SessionTotal& total = sessions[row.session];
                       total.session = row.session;
                       ++total.requests;
                       total.input_tokens += row.input_tokens;
                       total.hit_tokens += served.hit.all();
                     }));
  study->run.money = MoneyOf(study->run.settings, study->run.figures, costs);
  study->session_count = sessions.size();
  for (const auto& [session, total] : sessions) study->sessions.push_back(total);
  const auto uncached = [](const SessionTotal& total) {
    return total.input_tokens - std::min(total.input_tokens, total.hit_tokens);
  };
  std::sort(study->sessions.begin(), study->sessions.end(),
            [&](const SessionTotal& a, const SessionTotal& b) {
              if (uncached(a) != uncached(b)) return uncached(a) > uncached(b);
              return a.session < b.session;
            });
  study->sessions.resize(std::min(study->sessions.size(), kSessionsShown));
  return absl::OkStatus();
}

void AddCurves(const BlockTrace& trace, const Costs& costs, bool belady, uint32_t threads,
               Study* study) {
  economics::LruCurve curve;
  std::vector<uint32_t> blocks;
  for (size_t i = 0; i < trace.size(); ++i) {
    trace.Expand(i, &blocks);
    curve.Add({.time_ns = 0,
               .input_tokens = trace.row(i).input_tokens,
               .block_tokens = trace.block_tokens(),
               .blocks = blocks});
  }
  const auto input = static_cast<double>(std::max<uint64_t>(1, trace.input_tokens()));
  const auto rate = [&](uint64_t capacity) {
    return static_cast<double>(curve.HitTokens(capacity)) / input;
  };
  const uint64_t most = curve.capacity_max();
  study->ceiling = rate(most);
  const uint64_t record_bytes = costs.model().record_bytes();
  double step = std::max<double>(16, static_cast<double>(most) / 4096);
  const double first = step;
  for (;; step *= std::pow(2.0, 0.125)) {
    const auto capacity = std::min<uint64_t>(static_cast<uint64_t>(step), most);
    study->lru.push_back({capacity * record_bytes, rate(capacity)});
    if (capacity == most) break;
  }
  study->naive.resize(kBoundPoints);
  study->belady.resize(belady ? kBoundPoints : 0);
  InParallel(study->naive.size() + study->belady.size(), threads, [&](size_t i) {
    const bool optimal = i >= kBoundPoints;
    const double share = static_cast<double>(i % kBoundPoints) / (kBoundPoints - 1);
    const auto capacity = static_cast<uint64_t>(
        std::max(1.0, first * std::pow(static_cast<double>(most) / first, share)));
    const auto policy = optimal ? ReferencePolicy::kBelady : ReferencePolicy::kLruNaive;
    (optimal ? study->belady : study->naive)[i % kBoundPoints] = {
        capacity * record_bytes, BoundRate(trace, policy, capacity)};
  });
}

WindowEconomics WeighWindows(const BlockTrace& trace, const economics::ReuseStudy& reuse,
                             Nanos ttl_ns, const Costs& costs) {
  const CostProfile& profile = costs.profile();
  const auto bytes = static_cast<double>(costs.model().window_bytes());
  const double replay_usd = costs.model().replay_tokens() * costs.usd_per_token();
  const double hold_usd = bytes * profile.dram_usd_per_byte_second();
  const auto cost = [&](Nanos ttl) {
    const economics::ReuseStudy::AtTtl at = reuse.At(ttl);
    const uint64_t missed = reuse.hits() - at.found;
    return static_cast<double>(missed) * replay_usd + at.snapshot_seconds * hold_usd;
  };
  WindowEconomics weighed;
  weighed.no_pool_usd = static_cast<double>(reuse.hits()) * replay_usd;
  weighed.ttl_usd = weighed.no_pool_usd;
  weighed.configured_usd = cost(ttl_ns);
  // The cost falls only where an interval ends.
  for (const Nanos interval : reuse.snapshot_intervals()) {
    const double usd = cost(interval);
    if (usd >= weighed.ttl_usd) continue;
    weighed.ttl_usd = usd;
    weighed.ttl_seconds = static_cast<double>(interval) / kSecond;
  }
  double held_seconds = 0;
  uint64_t snapshots = 0;
  const Nanos end = trace.size() == 0 ? 0 : trace.row(trace.size() - 1).time_ns;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (trace.row(i).snapshot.position == 0) continue;
    ++snapshots;
    held_seconds += static_cast<double>(end - trace.row(i).time_ns) / kSecond;
  }
  weighed.persisted_bytes = snapshots * costs.model().window_bytes();
  weighed.persisted_usd =
      static_cast<double>(weighed.persisted_bytes) * profile.ssd_usd_per_byte_written() +
      held_seconds * bytes * profile.ssd_usd_per_byte_second();
  return weighed;
}

}  // namespace reprise
