#include "server/serving/load_gate.h"

#include <algorithm>

namespace reprise::server {
namespace {

constexpr double kNewWeight = 0.2;          // Of a measurement in a running mean.
constexpr double kFirstByteSeconds = 2e-4;  // Until the first block of a request is there.
constexpr uint32_t kRowsMin = 32;           // Fewer rows say more of the step than of the rows.

}  // namespace

void LoadGate::RecordLoad(uint64_t bytes, double seconds) {
  const double transfer = std::max(seconds - kFirstByteSeconds, seconds / 10);
  if (bytes == 0 || transfer <= 0) return;
  bytes_per_second_ += kNewWeight * (static_cast<double>(bytes) / transfer - bytes_per_second_);
}

void LoadGate::RecordRows(uint32_t rows, double seconds) {
  if (rows < kRowsMin) return;
  const double each = seconds / rows;
  seconds_per_row_ =
      seconds_per_row_ == 0 ? each : seconds_per_row_ + kNewWeight * (each - seconds_per_row_);
}

uint32_t LoadGate::BlocksToUse(std::span<const Residency> blocks, uint64_t tokens,
                               uint32_t record_bytes, uint32_t replay_tokens) const {
  if (seconds_per_row_ == 0) return static_cast<uint32_t>(blocks.size());
  uint32_t best = 0, from_ssd = 0;
  double best_seconds = seconds_per_row_ * static_cast<double>(tokens);
  for (uint32_t used = 1; used <= blocks.size(); ++used) {
    from_ssd += blocks[used - 1] == Residency::kSsd ? 1 : 0;
    const double load = from_ssd == 0 ? 0
                                      : kFirstByteSeconds + static_cast<double>(from_ssd) *
                                                                record_bytes / bytes_per_second_;
    const double held = double{kBlockTokens} * used;
    const double rows = static_cast<double>(tokens) - held + std::min<double>(replay_tokens, held);
    const double seconds = load + rows * seconds_per_row_;
    if (seconds >= best_seconds) continue;
    best = used;
    best_seconds = seconds;
  }
  return best;
}

}  // namespace reprise::server
