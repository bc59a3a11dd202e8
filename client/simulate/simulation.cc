#include "client/simulate/simulation.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <unordered_set>

#include "storage/key_hash.h"

namespace reprise {
namespace {

using economics::BlockModel;
using economics::BlockTrace;
using economics::TraceRow;
using economics::WindowModel;

constexpr size_t kForksRemembered = 1024;  // As server/serving's ForkDetector.
constexpr double kPercentiles[] = {0.50, 0.95, 0.99};

uint64_t MixRoot(uint64_t root, uint64_t machine) {
  return storage::MixBits(root ^ ((machine + 1) * 0x9e3779b97f4a7c15u));
}

// One daemon, its policies and its pools.
class Machine {
 public:
  static absl::StatusOr<std::unique_ptr<Machine>> Create(const SimulationOptions& options,
                                                         const BlockTrace& trace) {
    RP_ASSIGN(auto blocks, BlockModel::Create(options.blocks, trace.distinct_blocks()));
    WindowModel::Options windows = options.windows;
    windows.snapshots_max = static_cast<uint32_t>(
        std::min<size_t>(trace.size() * (options.fork_snapshots ? 2 : 1), UINT32_MAX / 64));
    return std::unique_ptr<Machine>(new Machine(std::move(blocks), windows, options));
  }

  // RequestDriver::Drive, step by step.
  void Serve(const BlockTrace& trace, std::span<const uint32_t> blocks, ServedRequest* served,
             uint64_t* lost_blocks) {
    const TraceRow& row = trace.row(served->index);
    const BlockModel::Hit hit = blocks_->Lookup(blocks);
    WindowModel::Place window;
    const bool found = hit.blocks > 0 && has_windows_ &&
                       FindWindow(trace, served->index, blocks, hit.blocks, &window);
    const uint32_t loaded = blocks_->Load(blocks, hit.blocks);
    served->hit = TokensOf(hit, loaded);
    *lost_blocks += hit.blocks - loaded;
    const bool whole = loaded == hit.blocks;
    const bool exact = !has_windows_ || (found && whole && windows_.Use(window, row.time_ns));
    served->replayed = loaded > 0 && !exact;
    if (served->replayed) {
      const uint32_t tip = blocks[loaded - 1];
      served->fork = !ends_.contains(tip) && !EndedInside(trace, served->index, loaded);
      if (fork_snapshots_) NoteReplay(tip, loaded, row);
    }
    blocks_->Put(blocks, loaded, served->replayed);
    if (!has_windows_ || row.snapshot.position == 0) return;
    windows_.Put(row.snapshot, SessionId(row), row.time_ns);
    if (row.snapshot.position % kBlockTokens == 0) {
      ends_.insert(static_cast<uint32_t>(row.snapshot.prefix));
    }
  }

  const BlockModel& blocks() const { return *blocks_; }
  WindowModel& windows() { return windows_; }

 private:
  Machine(std::unique_ptr<BlockModel> blocks, const WindowModel::Options& windows,
          const SimulationOptions& options)
      : blocks_(std::move(blocks)),
        windows_(windows),
        has_windows_(windows.snapshot_bytes > 0),
        fork_snapshots_(options.fork_snapshots) {}

  static uint64_t SessionId(const TraceRow& row) {
    return row.session == TraceRow::kNoSession ? 0 : uint64_t{row.session} + 1;
  }

  // Where the hit ends: exact positions inside the block after it, and its boundary; the longest.
  bool FindWindow(const BlockTrace& trace, size_t request, std::span<const uint32_t> blocks,
                  uint32_t hit_blocks, WindowModel::Place* place) const {
    const Nanos now = trace.row(request).time_ns;
    bool found = false;
    for (const WindowModel::Place& known : trace.known_snapshots(request)) {
      if (known.position / kBlockTokens != hit_blocks) continue;
      if (found && known.position <= place->position) continue;
      if (!windows_.Has(known, now)) continue;
      *place = known;
      found = true;
    }
    if (found) return true;
    *place = {.prefix = blocks[hit_blocks - 1], .position = uint64_t{hit_blocks} * kBlockTokens};
    return windows_.Has(*place, now);
  }

  static bool EndedInside(const BlockTrace& trace, size_t request, uint32_t hit_blocks) {
    const auto known = trace.known_snapshots(request);
    return std::any_of(known.begin(), known.end(), [hit_blocks](const WindowModel::Place& place) {
      return place.position / kBlockTokens == hit_blocks;
    });
  }

  void NoteReplay(uint32_t tip, uint32_t hit_blocks, const TraceRow& row) {
    if (std::find(replayed_at_.begin(), replayed_at_.end(), tip) != replayed_at_.end()) {
      windows_.Put({.prefix = tip, .position = uint64_t{hit_blocks} * kBlockTokens}, SessionId(row),
                   row.time_ns);
      return;
    }
    replayed_at_.push_back(tip);
    if (replayed_at_.size() > kForksRemembered) replayed_at_.pop_front();
  }

  // Of the leading `loaded` blocks of a hit. What a lease could not keep is taken off its end.
  static HitTokens TokensOf(const BlockModel::Hit& hit, uint32_t loaded) {
    const uint32_t lost = hit.blocks - loaded;
    const uint32_t ssd = hit.ssd - std::min(hit.ssd, lost);
    const uint32_t dram = std::min(hit.dram, loaded - ssd);
    return {.hbm = uint64_t{loaded - ssd - dram} * kBlockTokens,
            .dram = uint64_t{dram} * kBlockTokens,
            .ssd = uint64_t{ssd} * kBlockTokens};
  }

  std::unique_ptr<BlockModel> blocks_;
  WindowModel windows_;
  bool has_windows_;
  bool fork_snapshots_;
  std::unordered_set<uint32_t> ends_;  // Blocks at whose end a prompt's snapshot was taken.
  std::deque<uint32_t> replayed_at_;
};

uint32_t Place(const TraceRow& row, size_t request, const SimulationOptions& options) {
  if (options.machines == 1) return 0;
  if (options.placement == Placement::kRoundRobin) {
    return static_cast<uint32_t>(request % options.machines);
  }
  const bool by_session =
      options.placement == Placement::kSession && row.session != TraceRow::kNoSession;
  const uint64_t root = by_session ? row.session : row.root;
  uint32_t best = 0;
  for (uint32_t machine = 1; machine < options.machines; ++machine) {
    if (MixRoot(root, machine) > MixRoot(root, best)) best = machine;
  }
  return best;
}

BlockModel::Counts Difference(BlockModel::Counts later, const BlockModel::Counts& earlier) {
  later.puts_stored -= earlier.puts_stored;
  later.puts_existing -= earlier.puts_existing;
  later.puts_busy -= earlier.puts_busy;
  later.replaced -= earlier.replaced;
  later.dram_evictions -= earlier.dram_evictions;
  later.ssd_evictions -= earlier.ssd_evictions;
  later.admissions_refused -= earlier.admissions_refused;
  later.loads -= earlier.loads;
  later.evicted_for_good -= earlier.evicted_for_good;
  later.ssd_bytes_written -= earlier.ssd_bytes_written;
  later.ssd_bytes_read -= earlier.ssd_bytes_read;
  later.ssd_reclaimed_regions -= earlier.ssd_reclaimed_regions;
  later.ssd_reinserted -= earlier.ssd_reinserted;
  return later;
}

void Add(const BlockModel::Counts& counts, BlockModel::Counts* sum) {
  BlockModel::Counts none;
  // a + b is a - (0 - b): the sums wrap around, and back.
  *sum = Difference(*sum, Difference(none, counts));
}

void Count(const ServedRequest& served, const TraceRow& row, const Costs& costs,
           SimulationFigures* figures) {
  ++figures->requests;
  figures->input_tokens += row.input_tokens;
  figures->output_tokens += row.output_tokens;
  figures->hit_tokens.hbm += served.hit.hbm;
  figures->hit_tokens.dram += served.hit.dram;
  figures->hit_tokens.ssd += served.hit.ssd;
  if (served.hit.all() == 0) {
    ++figures->misses;
  } else if (served.replayed) {
    ++figures->replayed_hits;
    figures->replayed_tokens += costs.model().replay_tokens();
    figures->fork_hits += served.fork ? 1 : 0;
  } else {
    ++figures->exact_hits;
  }
  figures->cold_gpu_seconds += served.cost.cold_gpu_seconds;
  figures->compute_gpu_seconds += served.cost.compute_gpu_seconds;
  figures->replay_gpu_seconds += served.cost.replay_gpu_seconds;
  figures->load_seconds += served.cost.load_seconds;
}

void SetPercentiles(std::vector<float>* values, std::array<double, 3>* few,
                    std::array<float, 101>* all) {
  if (values->empty()) return;
  std::sort(values->begin(), values->end());
  const auto at = [&](double share) {
    return (*values)[static_cast<size_t>(share * static_cast<double>(values->size() - 1))];
  };
  for (size_t i = 0; i < few->size(); ++i) (*few)[i] = at(kPercentiles[i]);
  for (size_t i = 0; i < all->size(); ++i) (*all)[i] = at(static_cast<double>(i) / 100);
}

}  // namespace

absl::StatusOr<SimulationFigures> Simulate(
    const BlockTrace& trace, const SimulationOptions& options, const Costs& costs,
    const std::function<void(const ServedRequest&)>& served) {
  std::vector<std::unique_ptr<Machine>> machines;
  for (uint32_t i = 0; i < options.machines; ++i) {
    RP_ASSIGN(auto machine, Machine::Create(options, trace));
    machines.push_back(std::move(machine));
  }
  const auto warm = static_cast<size_t>(options.warm_up * static_cast<double>(trace.size()));
  std::vector<BlockModel::Counts> before(machines.size());
  SimulationFigures figures;
  std::vector<float> first_token, first_token_cold;
  std::vector<uint32_t> blocks;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (i == warm) {
      for (size_t m = 0; m < machines.size(); ++m) before[m] = machines[m]->blocks().counts();
    }
    const TraceRow& row = trace.row(i);
    ServedRequest request{.index = i, .machine = Place(row, i, options), .counted = i >= warm};
    Machine& machine = *machines[request.machine];
    const BlockModel::Counts earlier = served ? machine.blocks().counts() : BlockModel::Counts();
    trace.Expand(i, &blocks);
    uint64_t lost = 0;
    machine.Serve(trace, blocks, &request, &lost);
    request.cost = costs.Of(row.input_tokens, request.hit, request.replayed);
    if (request.counted) {
      Count(request, row, costs, &figures);
      figures.lost_blocks += lost;
      first_token.push_back(static_cast<float>(costs.FirstTokenSeconds(request.cost)));
      first_token_cold.push_back(static_cast<float>(costs.FirstTokenColdSeconds(request.cost)));
    }
    if (!served) continue;
    request.window_bytes = machine.windows().bytes(row.time_ns);
    const BlockModel::Counts now = machine.blocks().counts();
    request.dram_blocks = machine.blocks().dram_blocks();
    request.ssd_blocks = machine.blocks().ssd_blocks();
    request.ssd_bytes_written = now.ssd_bytes_written - earlier.ssd_bytes_written;
    request.evictions = now.evicted_for_good - earlier.evicted_for_good;
    served(request);
  }
  for (size_t m = 0; m < machines.size(); ++m) {
    Add(Difference(machines[m]->blocks().counts(), before[m]), &figures.blocks);
    figures.window_pool_peak_bytes += machines[m]->windows().bytes_peak();
    const storage::WindowPool::Stats stats = machines[m]->windows().stats();
    figures.window_puts += stats.puts;
    figures.window_expired += stats.expired;
    figures.window_evicted += stats.evicted;
  }
  figures.dram_bytes_read = figures.hit_tokens.dram / kBlockTokens * options.blocks.record_bytes;
  figures.span_ns =
      warm < trace.size() ? trace.row(trace.size() - 1).time_ns - trace.row(warm).time_ns : 0;
  SetPercentiles(&first_token, &figures.first_token, &figures.first_token_by_percent);
  SetPercentiles(&first_token_cold, &figures.first_token_cold,
                 &figures.first_token_cold_by_percent);
  return figures;
}

}  // namespace reprise
