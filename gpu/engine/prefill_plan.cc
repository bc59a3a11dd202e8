#include "gpu/engine/prefill_plan.h"

#include <algorithm>

#include "protocol/base/check.h"

namespace reprise::engine {
namespace {

uint32_t Before(uint32_t position, uint64_t rows) {
  return position - static_cast<uint32_t>(std::min<uint64_t>(position, rows));
}

void AddSteps(PrefillStep whole, uint32_t rows_max, std::vector<PrefillStep>* steps) {
  while (whole.first < whole.end) steps->push_back(TakeRows(&whole, rows_max));
}

class Planner {
 public:
  Planner(const ModelGeometry& geometry, const ResumePoint& resume, uint32_t length,
          uint32_t rows_max)
      : geometry_(geometry),
        window_(geometry.config.window),
        resume_(resume),
        length_(length),
        rows_max_(rows_max) {}

  PrefillPlan Bounded() {
    const uint32_t hit = resume_.hit, tail = Before(length_, window_);
    if (resume_.encoder_window && resume_.decoder_window && length_ - hit < window_) {
      return Continue(hit, resume_.decoder_from);
    }
    const bool replay = hit > 0 && !resume_.encoder_window;
    if (!replay && hit > tail) return ShortSuffix(tail);
    const uint32_t first = replay ? Before(hit, window_) : hit;
    plan_.encoder_from = replay ? first : resume_.encoder_from;
    plan_.decoder_from = tail;
    plan_.replayed_rows = hit - first;
    plan_.encoder_replayed = replay && first > 0;
    plan_.decoder_replayed = tail > 0;
    Add(first, tail, tail);
    return plan_;
  }

  PrefillPlan Exact() {
    const uint32_t hit = resume_.hit;
    if (hit == 0) return Continue(0, 0);
    if (resume_.encoder_window && resume_.decoder_window) {
      return Continue(hit, resume_.decoder_from);
    }
    const uint64_t encoder_span = uint64_t{geometry_.encoder_layers} * window_;
    const uint64_t decoder_span =
        uint64_t{geometry_.config.layer_count - geometry_.encoder_layers} * window_;
    const uint32_t decoder_first = Before(hit, decoder_span);
    const uint32_t first = Before(decoder_first, encoder_span);
    plan_.encoder_from = first;
    plan_.decoder_from = decoder_first;
    plan_.replayed_rows = hit - first;
    Add(first, decoder_first, decoder_first);
    return plan_;
  }

  // All layers over the rows from the hit on.
  PrefillPlan Continue(uint32_t decoder_first, uint32_t decoder_from) {
    plan_.encoder_from = resume_.encoder_window ? resume_.encoder_from : resume_.hit;
    plan_.decoder_from = decoder_from;
    Add(resume_.hit, decoder_first, decoder_from);
    return plan_;
  }

 private:
  // The decoder needs the encoder's output of rows [tail, hit), which nobody stores.
  PrefillPlan ShortSuffix(uint32_t tail) {
    const uint32_t hit = resume_.hit;
    plan_.encoder_from = resume_.encoder_from;
    plan_.decoder_from = tail;
    plan_.replayed_rows = hit - tail;
    plan_.decoder_replayed = tail > 0;
    AddSteps({.first = tail,
              .end = hit,
              .write_from = hit,
              .encoder_from = resume_.encoder_from,
              .decoder_first = tail,
              .decoder_from = tail,
              .keep_encoder_windows = true},
             rows_max_, &plan_.steps);
    Add(hit, hit, tail);
    return plan_;
  }

  void Add(uint32_t first, uint32_t decoder_first, uint32_t decoder_from) {
    AddSteps({.first = first,
              .end = length_,
              .write_from = resume_.hit,
              .encoder_from = plan_.encoder_from,
              .decoder_first = decoder_first,
              .decoder_from = decoder_from},
             rows_max_, &plan_.steps);
  }

  const ModelGeometry& geometry_;
  uint32_t window_;
  const ResumePoint& resume_;
  uint32_t length_;
  uint32_t rows_max_;
  PrefillPlan plan_;
};

}  // namespace

PrefillStep TakeRows(PrefillStep* rest, uint32_t rows) {
  PrefillStep step = *rest;
  step.end = static_cast<uint32_t>(std::min<uint64_t>(rest->end, uint64_t{rest->first} + rows));
  step.encoder_from = std::min(rest->encoder_from, step.first);
  step.decoder_first = std::clamp(rest->decoder_first, step.first, step.end);
  step.decoder_from = std::min(rest->decoder_from, step.decoder_first);
  rest->first = step.end;
  return step;
}

PrefillPlan PlanPrefill(const ModelGeometry& geometry, const ResumePoint& resume, uint32_t length,
                        PrefillMode mode, uint32_t rows_max) {
  RP_CHECK(resume.hit < length && rows_max > 0);
  Planner planner(geometry, resume, length, rows_max);
  switch (mode) {
    case PrefillMode::kBounded:
      return planner.Bounded();
    case PrefillMode::kExact:
      return planner.Exact();
    case PrefillMode::kOracle:
      RP_CHECK(resume.hit == 0 || (resume.encoder_window && resume.decoder_window));
      return planner.Continue(resume.hit, resume.hit == 0 ? 0 : resume.decoder_from);
  }
  return {};
}

}  // namespace reprise::engine
