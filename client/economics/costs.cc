#include "client/economics/costs.h"

#include <algorithm>
#include <limits>

namespace reprise {
namespace {

constexpr double kBytesPerGb = 1e9;

}  // namespace

Costs::Costs(const ModelCosts& model, const CostProfile& profile)
    : model_(model), profile_(profile) {
  const double length = std::max(profile.gpu.prefill_at_tokens, 1.0);
  const double flops = model.PrefillFlops(0, length) + model.TailFlops(length);
  flops_per_second_ = flops / length * profile.gpu.prefill_tokens_per_second;
}

RequestCost Costs::Of(uint64_t input, const HitTokens& hit, bool replayed) const {
  const auto length = static_cast<double>(input);
  const auto held = static_cast<double>(std::min(hit.all(), input));
  const double tail = model_.TailFlops(length);
  RequestCost cost;
  cost.cold_gpu_seconds = GpuSeconds(model_.PrefillFlops(0, length) + tail);
  cost.compute_gpu_seconds = GpuSeconds(model_.PrefillFlops(held, length) + tail);
  if (replayed) cost.replay_gpu_seconds = GpuSeconds(model_.ReplayFlops(held));
  if (hit.dram + hit.ssd == 0) return cost;
  const double bytes = model_.bytes_per_token() / kBytesPerGb;
  cost.load_seconds = profile_.load_latency_ms / 1e3 +
                      static_cast<double>(hit.dram) * bytes / profile_.dram.gb_per_second +
                      static_cast<double>(hit.ssd) * bytes / profile_.ssd.read_gb_per_second;
  return cost;
}

double Costs::FirstTokenSeconds(const RequestCost& cost) const {
  return cost.load_seconds +
         (cost.compute_gpu_seconds + cost.replay_gpu_seconds) / profile_.gpu.per_instance;
}

double Costs::usd_per_token() const {
  return profile_.gpu_usd_per_second() / profile_.gpu.prefill_tokens_per_second;
}

double Costs::BreakEvenTokens(double gb_per_second) const {
  const double saved_per_token =
      1 / InstanceTokensPerSecond() - model_.bytes_per_token() / (gb_per_second * kBytesPerGb);
  if (saved_per_token <= 0) return std::numeric_limits<double>::infinity();
  return profile_.load_latency_ms / 1e3 / saved_per_token;
}

double Costs::KeepSeconds(double usd_per_byte_second) const {
  return usd_per_token() / (model_.bytes_per_token() * usd_per_byte_second);
}

double Costs::DramInsteadOfSsdSeconds() const {
  const double drive_usd_per_second =
      profile_.ssd_usd_per_byte_second() * profile_.ssd.drive_gb * kBytesPerGb;
  const double usd_per_byte_read =
      drive_usd_per_second / (profile_.ssd.read_gb_per_second * kBytesPerGb);
  return usd_per_byte_read / profile_.dram_usd_per_byte_second();
}

double Costs::SsdAdmissionProbability() const {
  return model_.bytes_per_token() * profile_.ssd_usd_per_byte_written() / usd_per_token();
}

double Costs::WindowHazardPerSecond() const {
  const double replay_usd = model_.replay_tokens() * usd_per_token();
  if (replay_usd == 0) return 0;
  return static_cast<double>(model_.window_bytes()) * profile_.dram_usd_per_byte_second() /
         replay_usd;
}

}  // namespace reprise
