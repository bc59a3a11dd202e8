// Costs, settings and the trace in blocks of the store. What is simulated is checked against the
// daemon in tests/integration/simulate_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/drive/chain_builder.h"
#include "client/drive/prompt.h"
#include "client/economics/costs.h"
#include "client/simulate/settings.h"
#include "client/simulate/store_trace.h"
#include "client/simulate/study_report.h"
#include "client/simulate/svg_plot.h"

namespace reprise {
namespace {

using testing::HasSubstr;

Costs DefaultCosts(const std::string& model = "v4.1-flash") {
  return {*ModelCosts::For(model), CostProfile{}};
}

// ---- The model ---------------------------------------------------------------------------------

TEST(ModelCosts, BytesFollowFromTheShapes) {
  EXPECT_EQ(ModelCosts::For("v4.1-flash")->bytes_per_token(), 890);
  EXPECT_EQ(ModelCosts::For("v4.1-flash")->record_bytes(), 114'688u);
  EXPECT_EQ(ModelCosts::For("v4.1-flash")->window_bytes(), 2'703'360u);
  EXPECT_EQ(ModelCosts::For("nano")->bytes_per_token(), 212);
  EXPECT_EQ(ModelCosts::For("nano")->window_bytes(), 202'752u);
  // Published for the generations before (model-facts 2.2).
  EXPECT_EQ(std::floor(ModelCosts::For("v4-flash")->bytes_per_token()), 3514);
  EXPECT_EQ(ModelCosts::For("v3.2")->bytes_per_token(), 48'068);
  EXPECT_EQ(ModelCosts::For("v3.2")->window_bytes(), 0u);
  EXPECT_THAT(Message(ModelCosts::For("gpt").status()), HasSubstr("v4.1-flash, v4-flash, v3.2"));
}

TEST(ModelCosts, OperationsAreOfLayersAndOfContext) {
  const ModelCosts model = *ModelCosts::For("v4.1-flash");
  // 2 x 7.89e9 for a token, and attention on top.
  EXPECT_NEAR(model.PrefillFlops(0, 1), 2 * 7.89e9, 0.02e9);
  // A replay is 128 tokens: about 2 TFLOP (economics 4.1).
  EXPECT_NEAR(model.ReplayFlops(4'096), 2.05e12, 0.25e12);
  EXPECT_EQ(model.ReplayFlops(0), 0);
  EXPECT_GT(model.TailFlops(1000), 0);
  EXPECT_LT(model.TailFlops(10), model.TailFlops(128));
  // Later tokens cost more, and intervals add up.
  const double early = model.PrefillFlops(0, 1000), late = model.PrefillFlops(100'000, 101'000);
  EXPECT_GT(late, early);
  EXPECT_LT(late, 2 * early);
  EXPECT_NEAR(model.PrefillFlops(0, 5000),
              model.PrefillFlops(0, 700) + model.PrefillFlops(700, 5000), 1e6);
}

// ---- Money -------------------------------------------------------------------------------------

// economics.md 4.1 and 4.2 at its defaults.
TEST(Costs, RulesAreThoseOfTheFormulas) {
  const Costs costs = DefaultCosts();
  const CostProfile& p = costs.profile();
  constexpr double kDay = 86'400, kMonth = 30.44 * kDay;
  EXPECT_NEAR(p.ssd_usd_per_byte_second() * 1e9 * kMonth, 0.0077, 0.0001);
  EXPECT_NEAR(p.dram_usd_per_byte_second() * 1e9 * kMonth, 0.237, 0.002);
  EXPECT_NEAR(p.hbm_usd_per_byte_second() * 1e9 * kMonth, 15.5, 0.1);
  EXPECT_NEAR(costs.usd_per_token(), 8.3e-8, 0.05e-8);
  EXPECT_NEAR(costs.KeepSeconds(p.ssd_usd_per_byte_second()) / kDay, 369, 4);
  EXPECT_NEAR(costs.KeepSeconds(p.dram_usd_per_byte_second()) / kDay, 12.0, 0.1);
  EXPECT_NEAR(costs.KeepSeconds(p.hbm_usd_per_byte_second()) / 3600, 4.4, 0.1);
  EXPECT_NEAR(costs.SsdAdmissionProbability(), 0.0025, 0.0001);
  EXPECT_NEAR(costs.DramInsteadOfSsdSeconds(), 36, 1);
  EXPECT_NEAR(costs.BreakEvenTokens(7), 40, 1);
  // A window of 2.7 MB, where the notes assume 1.5.
  EXPECT_NEAR(costs.WindowHazardPerSecond() * 3600, 0.045 * 2'703'360 / 1.495e6, 0.003);
}

TEST(Costs, SlowLinksNeverPay) {
  // Half a gigabyte a second moves fewer tokens than 40,000 a second are computed.
  CostProfile profile;
  profile.gpu.prefill_tokens_per_second = 1e7;
  const Costs costs(*ModelCosts::For("v3.2"), profile);
  EXPECT_TRUE(std::isinf(costs.BreakEvenTokens(7)));
}

TEST(Costs, ARequestIsLoadReplayAndCompute) {
  const Costs costs = DefaultCosts();
  const RequestCost cold = costs.Of(8'192, {}, false);
  // The profile's rate holds at that length.
  EXPECT_NEAR(cold.cold_gpu_seconds, 8'192 / 10'000.0, 1e-9);
  EXPECT_EQ(cold.compute_gpu_seconds, cold.cold_gpu_seconds);
  EXPECT_EQ(cold.load_seconds, 0);
  const RequestCost hit = costs.Of(8'192, {.dram = 4'096, .ssd = 4'000}, true);
  EXPECT_LT(hit.compute_gpu_seconds, 0.1 * cold.cold_gpu_seconds);
  EXPECT_GT(hit.replay_gpu_seconds, 0);
  EXPECT_NEAR(hit.load_seconds, 1e-3 + 4'096 * 890 / 50e9 + 4'000 * 890 / 7e9, 1e-9);
  EXPECT_LT(costs.FirstTokenSeconds(hit), costs.FirstTokenColdSeconds(hit));
}

TEST(CostProfile, IsReadBackAndComplete) {
  const std::string text = CostProfile{}.ToToml();
  EXPECT_EQ(*CostProfile::Parse(text, "t"), CostProfile{});
  EXPECT_THAT(text, HasSubstr("VDURA"));
  const auto error = [&](const std::string& bad) {
    return Message(CostProfile::Parse(bad, "p.toml").status());
  };
  std::string bad = text;
  bad.replace(bad.find("usd_per_hour = 3"), 16, "usd_per_hour = -3");
  EXPECT_THAT(error(bad), HasSubstr("gpu.usd_per_hour = -3"));
  bad = text;
  bad.replace(bad.find("drive_gb"), 8, "drive_gB");
  EXPECT_THAT(error(bad), HasSubstr("unknown key ssd.drive_gB"));
  bad = text;
  bad.erase(bad.find("drive_gb"), 20);
  EXPECT_THAT(error(bad), testing::AnyOf(HasSubstr("ssd.drive_gb"), HasSubstr("p.toml:")));
  EXPECT_THAT(error("gpu = ["), HasSubstr("p.toml:1"));
  CostProfile profile;
  EXPECT_TRUE(profile.Set("gpu.usd_per_hour=2.5").ok());
  EXPECT_EQ(profile.gpu.usd_per_hour, 2.5);
  for (const char* wrong : {"gpu.usd_per_hour", "gpu.usd_per_hour=", "gpu.usd_per_hour=x",
                            "gpu.usd_per_hour=-1", "nothing=1"}) {
    EXPECT_FALSE(profile.Set(wrong).ok()) << wrong;
  }
}

// ---- Settings ----------------------------------------------------------------------------------

TEST(Settings, AxesAndTheirCombinations) {
  const SweepAxis dram = *ParseSweepAxis("dram=1GiB..16GiB:5");
  EXPECT_THAT(dram.values, testing::ElementsAre("1GiB", "2GiB", "4GiB", "8GiB", "16GiB"));
  const SweepAxis ttl = *ParseSweepAxis("window-ttl=1m,5m,15m");
  const auto points = *SweepPoints({}, {dram, ttl});
  ASSERT_EQ(points.size(), 15u);
  EXPECT_EQ(points[0].dram_bytes, 1_GiB);
  EXPECT_EQ(points[1].window_ttl_ns, 300 * kSecond);
  EXPECT_EQ(points[14].dram_bytes, 16_GiB);
  EXPECT_EQ(points[14].window_pool_bytes(), 16_GiB / 10);
  for (const char* wrong : {"dram", "dram=", "dram=1", "dram=4GiB..1GiB:3", "dram=1GiB..4GiB",
                            "dram=1GiB..4GiB:1", "policy=1..3:2", "machines=0", "region=5KiB"}) {
    EXPECT_FALSE(ParseSweepAxis(wrong).ok()) << wrong;
  }
}

TEST(Settings, EachIsReadBack) {
  for (const Setting& setting : AllSettings()) {
    SimulationSettings settings;
    const std::string value = setting.get(settings);
    EXPECT_TRUE(setting.set(&settings, value == "0B" ? "0" : value).ok())
        << setting.name << " " << value;
    EXPECT_EQ(setting.get(settings), value);
  }
}

// ---- Blocks of the store -----------------------------------------------------------------------

// Two blocks are equal here exactly when drive gives them equal hashes.
TEST(StoreTrace, BlocksAreThoseOfDrive) {
  for (const char* spec : {"generated:sessions=6,turns=6,block=64,input_max=20000",
                           "generated:sessions=6,turns=6,block=512,input_max=20000",
                           "generated:sessions=6,turns=6,block=96,input_max=20000"}) {
    const auto reader = *OpenTrace(spec, {});
    StoreTraceBuilder builder;
    ChainBuilder chains{Hash256{}};
    std::vector<std::vector<Hash256>> hashes;
    TraceRequest request;
    uint64_t ordinal = 0;
    while (*reader->Next(&request)) {
      ASSERT_TRUE(builder.Add(request).ok());
      const auto chain = chains.Build(Prompt(request, ordinal++));
      hashes.emplace_back(chain.begin(), chain.end());
    }
    const economics::BlockTrace trace = builder.Take();
    ASSERT_EQ(trace.size(), hashes.size());
    std::map<Hash256, uint32_t> number_of;
    std::vector<uint32_t> blocks;
    for (size_t i = 0; i < trace.size(); ++i) {
      trace.Expand(i, &blocks);
      ASSERT_EQ(blocks.size(), hashes[i].size());
      for (size_t k = 0; k < blocks.size(); ++k) {
        EXPECT_EQ(number_of.try_emplace(hashes[i][k], blocks[k]).first->second, blocks[k]);
      }
    }
    EXPECT_EQ(number_of.size(), trace.distinct_blocks()) << spec;
  }
}

TEST(StoreTrace, ScaledTracesAreMoreOfTheSame) {
  const std::string spec = "generated:sessions=4,turns=5,input_max=20000";
  uint64_t skipped = 0;
  const auto read = [&](const TraceScale& scale) {
    return *ReadStoreTrace(spec, {}, scale, {}, &skipped);
  };
  const economics::BlockTrace one = read({});
  const economics::BlockTrace again = read({.repeat = 3});
  EXPECT_EQ(again.size(), 3 * one.size());
  EXPECT_EQ(again.distinct_blocks(), one.distinct_blocks());
  EXPECT_GT(again.span_ns(), 3 * one.span_ns());
  const economics::BlockTrace more = read({.sessions = 2});
  EXPECT_EQ(more.distinct_blocks(), 2 * one.distinct_blocks());
  EXPECT_EQ(more.span_ns(), one.span_ns());
  const economics::BlockTrace longer = read({.context = 3});
  EXPECT_EQ(longer.input_tokens(), 3 * one.input_tokens());
  EXPECT_EQ(longer.size(), one.size());
  EXPECT_NEAR(static_cast<double>(read({.speed = 2}).span_ns()),
              static_cast<double>(one.span_ns()) / 2, 1e6);
  EXPECT_FALSE(ReadStoreTrace(spec, {}, {.context = 1000}, {}, &skipped).ok());
}

// ---- Plots -------------------------------------------------------------------------------------

TEST(Plots, NothingToShowIsNoError) {
  const auto text = [](double value) { return std::to_string(value); };
  EXPECT_THAT((Plot{.title = "a<b", .x_text = text, .y_text = text}).Svg(), HasSubstr("a&lt;b"));
  EXPECT_THAT((StackedPlot{.x_text = text, .y_text = text}).Svg(), HasSubstr("<svg"));
  EXPECT_THAT((ShareBar{}).Svg(), HasSubstr("<svg"));
  const Plot one{.log_x = true,
                 .x_text = text,
                 .y_text = text,
                 .series = {{"s", "c0", {{5, 1}}}},
                 .markers = {{0.5, "here"}}};
  EXPECT_EQ(one.Svg().find("nan"), std::string::npos);
  EXPECT_EQ(one.Svg().find("inf"), std::string::npos);
}

TEST(Texts, NumbersForPeople) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(144'793'823), "144,793,823");
  EXPECT_EQ(UsdText(-0.5), "-$0.5000");
  EXPECT_EQ(UsdText(1234.5), "$1234");
  EXPECT_EQ(SecondsText(INFINITY), "never");
}

}  // namespace
}  // namespace reprise
