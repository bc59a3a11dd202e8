#pragma once

#include <cstdint>

#include "client/economics/cost_profile.h"
#include "client/economics/model_costs.h"

namespace reprise {

// Where the blocks of a hit come from, in tokens.
struct HitTokens {
  uint64_t hbm = 0, dram = 0, ssd = 0;
  uint64_t all() const { return hbm + dram + ssd; }
};

// GPU seconds are those of one GPU; the seconds of a request are those of an instance that has
// nothing else to do.
struct RequestCost {
  double cold_gpu_seconds = 0;     // Without any cache.
  double compute_gpu_seconds = 0;  // What is left to compute.
  double replay_gpu_seconds = 0;
  double load_seconds = 0;
  double saved_gpu_seconds() const {
    return cold_gpu_seconds - compute_gpu_seconds - replay_gpu_seconds;
  }
};

// A model on some hardware: seconds and money of requests, and the rules that follow from them.
// Formulas are those of the field's notes on five-minute rules; each says its own below.
class Costs {
 public:
  Costs(const ModelCosts& model, const CostProfile& profile);

  const ModelCosts& model() const { return model_; }
  const CostProfile& profile() const { return profile_; }

  // A prompt of `input` tokens of which `hit` are loaded; `replayed`: its windows are rebuilt.
  RequestCost Of(uint64_t input, const HitTokens& hit, bool replayed) const;
  // Load, replay and compute one after the other.
  double FirstTokenSeconds(const RequestCost& cost) const;
  double GpuSeconds(double flops) const { return flops / flops_per_second_; }
  double Usd(double gpu_seconds) const { return gpu_seconds * profile_.gpu_usd_per_second(); }
  double FirstTokenColdSeconds(const RequestCost& cost) const {
    return cost.cold_gpu_seconds / profile_.gpu.per_instance;
  }

  // $ to compute one token once more, at the profile's prompt length: c_r = G / R.
  double usd_per_token() const;
  // Prompt tokens from which on loading is quicker than computing, from a tier with this bandwidth:
  // t0 / (1/P - b/BW), P an instance's tokens a second. Infinity: never.
  double BreakEvenTokens(double gb_per_second) const;
  // How long a block may wait for one certain reuse in a tier before computing it again is cheaper:
  // c_r / (b h).
  double KeepSeconds(double usd_per_byte_second) const;
  // A block used more often than this belongs in DRAM rather than on SSD: what its bandwidth costs
  // on the drive against what its bytes cost in DRAM (Gray and Putzolu's rule; block size cancels).
  double DramInsteadOfSsdSeconds() const;
  // The chance of a reuse that pays for writing a token to SSD: b w / c_r.
  double SsdAdmissionProbability() const;
  // The rate of reuse (1/s) from which on keeping a snapshot is cheaper than replaying: S h / (W
  // c_r).
  double WindowHazardPerSecond() const;

 private:
  double InstanceTokensPerSecond() const {
    return profile_.gpu.prefill_tokens_per_second * profile_.gpu.per_instance;
  }

  ModelCosts model_;
  CostProfile profile_;
  double flops_per_second_ = 0;  // Of one GPU, as the profile's rate implies.
};

}  // namespace reprise
