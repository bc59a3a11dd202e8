#pragma once

#include <string>

#include "gpu/backends/loaded_model.h"
#include "protocol/base/clock.h"

namespace reprise::bench {

struct EngineBenchOptions {
  std::string model = "nano";
  std::string device = "auto";  // See EngineOptions.
  uint32_t threads = 0;         // 0: one per core.
  uint32_t prefill_tokens = 4096;
  uint32_t decode_tokens = 256;
  uint32_t long_tokens = 16384;  // The prefix whose replay is measured.
  uint32_t rounds = 3;           // The best of so many counts.
};

struct EngineBenchFigures {
  std::string backend;
  std::string note;  // To be told; empty: nothing.
  uint32_t threads = 0;
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;        // One sequence, without drafts.
  double draft_decode_tokens_per_second = 0;  // With drafts, of generated text.
  double accepted_drafts_per_step = 0;
  double cold_seconds = 0;            // Prefill of long_tokens.
  double encoder_replay_seconds = 0;  // 128 rows at their end.
  double decoder_short_seconds = 0;   // The decoder's share of a prefill of 2,048 tokens,
  double decoder_long_seconds = 0;    // and of long_tokens.
};

// Runs everything on a made-up text of the model's tokenizer.
absl::StatusOr<EngineBenchFigures> RunEngineBench(const EngineBenchOptions& options,
                                                  const Clock& clock);

}  // namespace reprise::bench
