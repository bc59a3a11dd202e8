#pragma once

#include <cstdint>
#include <vector>

#include "gpu/model/model_geometry.h"

namespace reprise::engine {

// What is in memory when a sequence goes on: the first `hit` tokens' global KV, and windows that
// hold positions [..._from, hit), or no window.
struct ResumePoint {
  uint32_t hit = 0;
  bool encoder_window = false;
  uint32_t encoder_from = 0;
  bool decoder_window = false;
  uint32_t decoder_from = 0;
};

enum class PrefillMode : uint8_t {
  kBounded,  // Missing windows are rebuilt by replaying `window` tokens (model-facts section 6).
  kExact,    // They are rebuilt from layers x window tokens: the same bytes as if never lost.
  kOracle,   // All layers on all rows: what the others approximate. Needs both windows, or no hit.
};

// One call of Engine::Forward: the fields of Segment.
struct PrefillStep {
  uint32_t first = 0;
  uint32_t end = 0;
  uint32_t write_from = 0;
  uint32_t encoder_from = 0;
  uint32_t decoder_first = 0;
  uint32_t decoder_from = 0;
  // The step replays rows whose encoder windows are at hand: these must be as before afterwards.
  bool keep_encoder_windows = false;

  friend bool operator==(const PrefillStep&, const PrefillStep&) = default;
};

struct PrefillPlan {
  std::vector<PrefillStep> steps;
  uint32_t encoder_from = 0;  // What the windows hold at the end, to `length`.
  uint32_t decoder_from = 0;
  uint32_t replayed_rows = 0;     // Rows that are run again in the encoder.
  bool encoder_replayed = false;  // New global KV derives from a bounded replay.
  bool decoder_replayed = false;  // The decoder's windows do, and so do the logits.
};

// How to bring a sequence from the resume point to `length` tokens, at most `rows_max` rows a call;
// the cases of model-facts section 6.6:
//   both windows, a suffix shorter than the window   all layers over the suffix; exact
//   encoder window, a longer suffix                  encoder over the suffix, decoder over its end
//   encoder window, a shorter suffix                 the rows before it are run again for the
//   decoder
//                                                    alone, from the windows at hand: the suffix's
//                                                    own KV stays exact
//   no encoder window                                the last `window` tokens of the hit are
//   replayed
// REQUIRES: resume.hit < length.
PrefillPlan PlanPrefill(const ModelGeometry& geometry, const ResumePoint& resume, uint32_t length,
                        PrefillMode mode, uint32_t rows_max);

// Cuts the first `rows` rows off a step, which keeps the others: rows [first, end) may run in as
// many calls as one likes, but for a step that keeps encoder windows.
PrefillStep TakeRows(PrefillStep* rest, uint32_t rows);

}  // namespace reprise::engine
