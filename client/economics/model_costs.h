#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/base/status.h"

namespace reprise {

// What a token of a model costs in bytes and in floating-point operations. All of it follows from
// the model's shape. A token at position p of a prompt costs
//
//   2 x (active parameters)  +  sum over terms of  operations x min(entries_max, p / ratio)
//
// in the layers that prefill runs for every token: for V4.1-Flash the encoder half and the
// decoder's KV projection. What only the last window of a prompt runs (the decoder half) is `tail`.
class ModelCosts {
 public:
  // "v4.1-flash", "v4-flash", "v3.2", "nano", or a folder with a config.json.
  static absl::StatusOr<ModelCosts> For(const std::string& model);

  const std::string& name() const { return name_; }
  double bytes_per_token() const { return bytes_per_token_; }
  // Of a stored block of 128 tokens, header and padding included.
  uint32_t record_bytes() const { return record_bytes_; }
  // Of a window snapshot; 0: the model has no windows, and a hit needs nothing else.
  uint64_t window_bytes() const { return window_bytes_; }
  // Tokens that a replay runs again, and that an exact rebuild would: 128, and layers x 128.
  uint32_t replay_tokens() const { return replay_tokens_; }
  uint32_t rebuild_tokens() const { return rebuild_tokens_; }
  double active_parameters() const { return active_; }

  // Operations to compute tokens [from, to) of a prompt, without the tail.
  double PrefillFlops(double from, double to) const;
  // Operations of the part that only the last window of a prompt runs, for a prompt of `length`.
  double TailFlops(double length) const;
  // Operations of the encoder replay before position `hit`.
  double ReplayFlops(double hit) const;

 private:
  // Of one layer: `operations` for each entry that a token sees.
  struct Term {
    double operations = 0;
    double ratio = 1;        // Tokens for an entry.
    double entries_max = 0;  // No more are seen.
  };

  static absl::StatusOr<ModelCosts> FromConfig(const std::string& model);
  static double AttentionFlops(const std::vector<Term>& terms, double from, double to);

  std::string name_;
  double bytes_per_token_ = 0;
  uint32_t record_bytes_ = 0;
  uint64_t window_bytes_ = 0;
  uint32_t replay_tokens_ = 0, rebuild_tokens_ = 0;
  double active_ = 0, tail_active_ = 0;
  std::vector<Term> terms_, tail_terms_;
};

}  // namespace reprise
