#include "client/drive/figures.h"

namespace reprise {

const char* DriveCallName(DriveCall call) {
  switch (call) {
    case DriveCall::kLookup:
      return "lookup";
    case DriveCall::kAcquireDram:
      return "acquire_dram";
    case DriveCall::kAcquireSsd:
      return "acquire_ssd";
    case DriveCall::kPut:
      return "put";
    case DriveCall::kWindowGet:
      return "window_get";
    case DriveCall::kWindowPut:
      return "window_put";
  }
  return "unknown";
}

void DriveFigures::Merge(const DriveFigures& other) {
  static constexpr uint64_t DriveFigures::*kCounters[] = {
      &DriveFigures::requests,         &DriveFigures::input_tokens,
      &DriveFigures::hit_tokens,       &DriveFigures::exact_hits,
      &DriveFigures::replayed_hits,    &DriveFigures::misses,
      &DriveFigures::replayed_tokens,  &DriveFigures::loaded_bytes,
      &DriveFigures::put_bytes,        &DriveFigures::window_loaded_bytes,
      &DriveFigures::window_put_bytes, &DriveFigures::blocks_put,
      &DriveFigures::blocks_existing,  &DriveFigures::lost_blocks,
      &DriveFigures::lost_windows,     &DriveFigures::retries,
      &DriveFigures::reconnects,       &DriveFigures::wrong_bytes,
      &DriveFigures::wrong_records};
  for (const auto counter : kCounters) this->*counter += other.*counter;
  for (size_t i = 0; i < kTierCount; ++i) hit_tokens_by_tier[i] += other.hit_tokens_by_tier[i];
  for (size_t i = 0; i < kDriveCallCount; ++i) latencies[i].Merge(other.latencies[i]);
  for (const auto& [name, count] : other.errors) errors[name] += count;
}

}  // namespace reprise
