// Prefill plans case by case, the draft scheduler, and the worker pool.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "gpu/cpu/worker_pool.h"
#include "gpu/engine/draft_scheduler.h"
#include "gpu/engine/prefill_plan.h"

namespace reprise::engine {
namespace {

ModelGeometry Nano() { return *ModelGeometry::For(*ModelConfig::Preset("nano")); }

struct Case {
  const char* name;
  ResumePoint held;
  uint32_t length;
  PrefillMode mode;
  std::vector<PrefillStep> steps;
  uint32_t replayed;
  bool encoder_replayed;
  bool decoder_replayed;
};

TEST(PrefillPlan, CaseByCase) {
  const auto bounded = PrefillMode::kBounded;
  const Case cases[] = {
      {"cold, short", {}, 100, bounded, {{0, 100, 0, 0, 0, 0}}, 0, false, false},
      {"cold", {}, 300, bounded, {{0, 300, 0, 0, 172, 172}}, 0, false, true},
      {"both windows, a short suffix",
       {.hit = 300,
        .encoder_window = true,
        .encoder_from = 0,
        .decoder_window = true,
        .decoder_from = 172},
       310,
       bounded,
       {{300, 310, 300, 0, 300, 172}},
       0,
       false,
       false},
      {"both windows, a long suffix",
       {.hit = 300,
        .encoder_window = true,
        .encoder_from = 0,
        .decoder_window = true,
        .decoder_from = 172},
       500,
       bounded,
       {{300, 500, 300, 0, 372, 372}},
       0,
       false,
       true},
      {"encoder window, a long suffix",
       {.hit = 300, .encoder_window = true, .encoder_from = 172},
       428,
       bounded,
       {{300, 428, 300, 172, 300, 300}},
       0,
       false,
       true},
      {"encoder window, a short suffix",
       {.hit = 300, .encoder_window = true, .encoder_from = 172},
       310,
       bounded,
       {{182, 300, 300, 172, 182, 182, true}, {300, 310, 300, 172, 300, 182}},
       118,
       false,
       true},
      {"no window, a long suffix",
       {.hit = 300},
       600,
       bounded,
       {{172, 600, 300, 172, 472, 472}},
       128,
       true,
       true},
      {"no window, a short suffix",
       {.hit = 300},
       301,
       bounded,
       {{172, 301, 300, 172, 173, 173}},
       128,
       true,
       true},
      {"no window, a short hit",
       {.hit = 90},
       95,
       bounded,
       {{0, 95, 90, 0, 0, 0}},
       90,
       false,
       false},
      {"exact, no window",
       {.hit = 2000},
       2100,
       PrefillMode::kExact,
       {{464, 2100, 2000, 464, 1232, 1232}},
       1536,
       false,
       false},
      {"oracle", {}, 300, PrefillMode::kOracle, {{0, 300, 0, 0, 0, 0}}, 0, false, false}};
  for (const Case& c : cases) {
    const PrefillPlan plan = PlanPrefill(Nano(), c.held, c.length, c.mode, 4096);
    EXPECT_EQ(plan.steps, c.steps) << c.name;
    EXPECT_EQ(plan.replayed_rows, c.replayed) << c.name;
    EXPECT_EQ(plan.encoder_replayed, c.encoder_replayed) << c.name;
    EXPECT_EQ(plan.decoder_replayed, c.decoder_replayed) << c.name;
  }
}

// Calls cover the rows once, in order, and say the same of the windows.
TEST(PrefillPlan, CallsOfAnySizeAreTheSamePlan) {
  for (const uint32_t rows_max : {1u, 7u, 64u, 128u, 300u}) {
    for (const uint32_t hit : {0u, 90u, 300u}) {
      const PrefillPlan whole =
          PlanPrefill(Nano(), {.hit = hit}, 640, PrefillMode::kBounded, 1 << 20);
      const PrefillPlan cut =
          PlanPrefill(Nano(), {.hit = hit}, 640, PrefillMode::kBounded, rows_max);
      ASSERT_EQ(whole.steps.size(), 1u);
      uint32_t at = whole.steps[0].first;
      for (const PrefillStep& step : cut.steps) {
        EXPECT_EQ(step.first, at);
        EXPECT_LE(step.end - step.first, rows_max);
        EXPECT_EQ(step.write_from, hit);
        EXPECT_EQ(step.encoder_from, std::min(whole.steps[0].encoder_from, step.first));
        EXPECT_EQ(step.decoder_first,
                  std::clamp(whole.steps[0].decoder_first, step.first, step.end));
        at = step.end;
      }
      EXPECT_EQ(at, 640u);
    }
  }
}

TEST(DraftScheduler, VerifiesWhatPays) {
  DraftScheduler scheduler;
  for (const uint32_t rows : {1u, 2u, 3u, 4u, 5u, 6u}) {
    scheduler.RecordStep(rows, 0.010 + 0.001 * rows);  // A row more costs little.
  }
  EXPECT_EQ(scheduler.Choose(std::vector<float>{0.9f, 0.9f, 0.9f, 0.9f, 0.9f}), 5u);
  EXPECT_EQ(scheduler.Choose(std::vector<float>{0.01f, 0.9f}), 0u);
  EXPECT_EQ(scheduler.Choose(std::vector<float>{0.9f, 0.8f, 0.01f, 0.9f}), 2u);
  DraftScheduler costly;
  for (const uint32_t rows : {1u, 2u, 3u}) costly.RecordStep(rows, 0.01 * rows);
  EXPECT_EQ(costly.Choose(std::vector<float>{0.9f, 0.9f}), 0u);
}

TEST(DraftScheduler, StopsDraftingThatDoesNotPay) {
  DraftScheduler scheduler;
  scheduler.RecordStep(1, 0.010);
  scheduler.RecordDraft(0.008);
  scheduler.RecordStep(6, 0.020);
  scheduler.RecordYield(1);  // 28 ms a token where a plain step takes 10.
  uint32_t drafted = 0;
  for (int i = 0; i < 128; ++i) drafted += scheduler.WorthDrafting() ? 1 : 0;
  EXPECT_EQ(drafted, 2u);  // Now and then it is tried again.
}

TEST(WorkerPool, RunsEveryTaskOnce) {
  for (const uint32_t threads : {1u, 2u, 5u}) {
    cpu::WorkerPool pool(threads);
    for (uint32_t round = 0; round < 2000; ++round) {
      const uint32_t tasks = round % 37;
      std::vector<std::atomic<uint32_t>> seen(tasks);
      pool.Run(tasks, [&](uint32_t task, uint32_t worker) {
        EXPECT_LT(worker, threads);
        seen[task].fetch_add(1, std::memory_order_relaxed);
      });
      for (const auto& count : seen) ASSERT_EQ(count.load(std::memory_order_relaxed), 1u);
    }
  }
}

}  // namespace
}  // namespace reprise::engine
