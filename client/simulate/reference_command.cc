#include "client/simulate/reference_command.h"

#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "client/economics/model_costs.h"
#include "client/simulate/trace_blocks.h"
#include "client/simulate/trace_options.h"
#include "protocol/base/units.h"
#include "storage/economics/lru_curve.h"
#include "storage/economics/sampled_curve.h"

namespace reprise::cli {
namespace {

using economics::BeladyRun;
using economics::BlockRequest;
using economics::ReferenceCache;
using economics::ReferencePolicy;
using economics::Tally;
using economics::WindowReference;

Json TallyJson(const Tally& tally) {
  return {{"requests", tally.requests},
          {"input_tokens", tally.input_tokens},
          {"hit_tokens", tally.hit_tokens},
          {"hit_requests", tally.hit_requests},
          {"hit_rate", tally.hit_rate()}};
}

// What was asked and answered, and of the second half of the requests alone: the first warms it.
struct Outcomes {
  std::vector<Tally> of_requests;

  void Add(const BlockRequest& request, uint64_t hit_blocks) {
    of_requests.emplace_back();
    of_requests.back().Add(request, hit_blocks);
  }
  Tally From(size_t first) const {
    Tally sum;
    for (size_t i = first; i < of_requests.size(); ++i) {
      sum.requests += of_requests[i].requests;
      sum.input_tokens += of_requests[i].input_tokens;
      sum.hit_tokens += of_requests[i].hit_tokens;
      sum.hit_requests += of_requests[i].hit_requests;
    }
    return sum;
  }
};

// A curve's values at steps of a quarter of a power of two, up to where nothing is gained.
void AddCurveSteps(uint64_t capacity_max, uint64_t bytes_per_block,
                   const std::function<Json(uint64_t capacity)>& values, Result* result) {
  for (double step = 64;; step *= std::pow(2.0, 0.25)) {
    const auto capacity = std::min<uint64_t>(static_cast<uint64_t>(step), capacity_max);
    Json point = {{"capacity_blocks", capacity}, {"capacity_bytes", capacity * bytes_per_block}};
    point.update(values(capacity));
    char line[128];
    std::snprintf(line, sizeof(line), "%12llu blocks %12s  %s",
                  static_cast<unsigned long long>(capacity),
                  FormatBytes(capacity * bytes_per_block).c_str(),
                  PercentOf(point["hit_rate"].get<double>()).c_str());
    result->text += line;
    if (point.contains("hit_rate_error")) {
      result->text += " +- " + PercentOf(point["hit_rate_error"].get<double>());
    }
    result->text += "\n";
    result->json["curve"].push_back(std::move(point));
    if (capacity == capacity_max) return;
  }
}

absl::StatusOr<Result> RunSampledCurve(const ReferenceOptions& options, const ModelCosts& model) {
  RP_ASSIGN(auto reader, OpenTrace(options.trace, options.options));
  economics::SampledCurve curve(options.sample);
  TraceRequest row;
  std::vector<uint64_t> hashed;
  uint64_t input_tokens = 0;
  uint32_t block_tokens = 0;
  for (;;) {
    RP_ASSIGN(const bool found, reader->Next(&row));
    if (!found) break;
    RP_ASSIGN(const std::span<const uint64_t> ids, WholeBlockIds(row, &hashed, &block_tokens));
    curve.Add(ids, block_tokens);
    input_tokens += row.input_tokens;
  }
  Result result;
  result.json = {{"policy", "lru"},
                 {"input_tokens", input_tokens},
                 {"block_tokens", block_tokens},
                 {"bytes_per_token", model.bytes_per_token()},
                 {"sample", options.sample},
                 {"sampled_blocks", curve.sampled_blocks()},
                 {"curve", Json::array()}};
  const auto input = static_cast<double>(std::max<uint64_t>(1, input_tokens));
  AddCurveSteps(
      std::max<uint64_t>(curve.capacity_max(), 1),
      static_cast<uint64_t>(block_tokens * model.bytes_per_token()),
      [&](uint64_t capacity) {
        const economics::SampledCurve::Estimate hit = curve.HitTokens(capacity);
        return Json{{"hit_tokens", hit.hit_tokens},
                    {"hit_rate", hit.hit_tokens / input},
                    {"hit_rate_error", hit.standard_error / input}};
      },
      &result);
  return result;
}

}  // namespace

absl::StatusOr<Result> RunReference(const ReferenceOptions& options) {
  RP_ASSIGN(const ReferencePolicy policy, economics::ParseReferencePolicy(options.policy));
  const bool belady = policy == ReferencePolicy::kBelady && options.capacity_blocks != 0;
  std::unique_ptr<ReferenceCache> cache;
  if (!belady) cache = economics::MakeReferenceCache(policy, options.capacity_blocks);
  BeladyRun run;
  std::vector<BlockRequest> requests;  // For Belady: without their blocks, which the run keeps.
  Outcomes outcomes;
  uint32_t distinct = 0, block_tokens = 0;
  RP_TRY(ForEachRequest(options.trace, options.options, options.partial_tails,
                        [&](const BlockRequest& request, const TraceBlocks& blocks) {
                          distinct = blocks.distinct_blocks();
                          block_tokens = request.block_tokens;
                          if (belady) {
                            run.Add(request.blocks);
                            requests.push_back(request);
                            requests.back().blocks = {};
                          } else {
                            outcomes.Add(request, cache->Serve(request.blocks));
                          }
                        }));
  if (belady) {
    const std::vector<uint32_t> hits = run.Run(options.capacity_blocks);
    for (size_t i = 0; i < requests.size(); ++i) outcomes.Add(requests[i], hits[i]);
  }
  const Tally all = outcomes.From(0);
  const Tally half = outcomes.From(outcomes.of_requests.size() / 2);
  Result result;
  result.json = TallyJson(all);
  result.json["policy"] = options.capacity_blocks == 0 ? "infinite" : options.policy;
  result.json["capacity_blocks"] = options.capacity_blocks;
  result.json["block_tokens"] = block_tokens;
  result.json["distinct_blocks"] = distinct;
  result.json["definition"] =
      options.partial_tails ? "listed_blocks_incl_partial_tail" : "complete_blocks_only";
  result.json["last_half"] = TallyJson(half);
  result.text = "policy        " + result.json["policy"].get<std::string>() + "\n" +
                "requests      " + std::to_string(all.requests) + "\n" + "input tokens  " +
                std::to_string(all.input_tokens) + "\n" + "hit tokens    " +
                std::to_string(all.hit_tokens) + "  " + PercentOf(all.hit_rate()) +
                "\nlast half     " + std::to_string(half.hit_tokens) + "  " +
                PercentOf(half.hit_rate()) + "\n";
  return result;
}

absl::StatusOr<Result> RunWindowReference(const ReferenceOptions& options) {
  WindowReference windows(options.window_ttl_ns);
  RP_TRY(ForEachRequest(
      options.trace, options.options, false,
      [&](const BlockRequest& request, const TraceBlocks&) { windows.Add(request); }));
  const WindowReference::Figures& f = windows.figures();
  Result result;
  result.json = {{"window_ttl_seconds", static_cast<double>(options.window_ttl_ns) / kSecond},
                 {"adopted_hits", f.adopted_hits},
                 {"found", f.found},
                 {"replays", f.replays},
                 {"replay_tokens", f.replay_tokens},
                 {"forks", f.forks},
                 {"found_every_position", f.found_every_position},
                 {"live_checkpoints_peak", f.live_checkpoints_peak}};
  for (const auto& [key, value] : result.json.items()) {
    result.text += key + " " + value.dump() + "\n";
  }
  return result;
}

absl::StatusOr<Result> RunCurve(const ReferenceOptions& options) {
  RP_ASSIGN(const ModelCosts model, ModelCosts::For(options.model));
  if (options.sample < 1) return RunSampledCurve(options, model);
  economics::LruCurve curve;
  uint32_t block_tokens = 0;
  RP_TRY(ForEachRequest(options.trace, options.options, options.partial_tails,
                        [&](const BlockRequest& request, const TraceBlocks&) {
                          block_tokens = request.block_tokens;
                          curve.Add(request);
                        }));
  Result result;
  result.json = {{"policy", "lru"},
                 {"input_tokens", curve.input_tokens()},
                 {"block_tokens", block_tokens},
                 {"bytes_per_token", model.bytes_per_token()},
                 {"curve", Json::array()}};
  const auto input = static_cast<double>(std::max<uint64_t>(1, curve.input_tokens()));
  AddCurveSteps(
      std::max<uint64_t>(curve.capacity_max(), 1),
      static_cast<uint64_t>(block_tokens * model.bytes_per_token()),
      [&](uint64_t capacity) {
        const uint64_t hit = curve.HitTokens(capacity);
        return Json{{"hit_tokens", hit}, {"hit_rate", static_cast<double>(hit) / input}};
      },
      &result);
  return result;
}

}  // namespace reprise::cli
