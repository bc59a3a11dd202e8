// What a running daemon tells of economics: its requests as a trace, its ledger in money, and what
// other sizes would hit.
#include <gmock/gmock.h>

#include <thread>

#include "tests/integration/daemon_process.h"

namespace reprise::test {
namespace {

using testing::HasSubstr;

constexpr const char* kSmallTrace =
    "generated:sessions=24,turns=10,seed=7,block=64,system=3000,append=900,input_max=30000";
// Driven in a second or two, under a sanitizer too.
constexpr const char* kTinyTrace = "generated:sessions=4,turns=5,seed=7,block=64,input_max=20000";

class EconomicsTest : public DaemonTest {
 protected:
  std::string Http() { return "http://127.0.0.1:" + std::to_string(daemon().http_port()); }
  Json Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--json"});
    const ProgramResult result = RunReprise(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
    return Json::parse(result.out, nullptr, false);
  }
  Json Drive(const char* trace) { return Run({"drive", trace, "--model", "nano"}); }
  const DaemonConfig config_{.dram_bytes = "48MiB", .ssd_bytes = "0B", .http = "127.0.0.1:0"};
};

TEST_F(EconomicsTest, ARecordingIsTheTrafficWithoutItsContent) {
  ASSERT_TRUE(Start(config_));
  const std::string file = directory() + "/recorded.jsonl";
  Json recorded;
  const std::string http = Http();
  std::thread recorder([&] {
    const ProgramResult result =
        RunReprise({"--json", "record", file, "--for", "10s", "--http", http}, "", "recorder");
    recorded = Json::parse(result.out, nullptr, false);
  });
  EXPECT_TRUE(Eventually([this] { return Status()["trace_recording"] == true; }));
  EXPECT_THAT(RunReprise({"record", directory() + "/second", "--for", "1s", "--http", Http()}).err,
              HasSubstr("records already"));
  const Json driven = Drive(kTinyTrace);
  recorder.join();
  EXPECT_EQ(recorded["requests"], driven["requests"]);
  EXPECT_EQ(recorded["dropped"], 0);
  const std::vector<std::string> same = {"--model", "nano", "--dram", "48MiB", "--ssd", "0"};
  std::vector<std::string> of_trace = {"simulate", kTinyTrace},
                           of_file = {"simulate", file, "--trace-block", "128"};
  of_trace.insert(of_trace.end(), same.begin(), same.end());
  of_file.insert(of_file.end(), same.begin(), same.end());
  EXPECT_EQ(Run(of_file)["hit_tokens"], Run(of_trace)["hit_tokens"]);
  EXPECT_EQ(Run({"trace", "inspect", file, "--trace-block", "128"})["chain_breaks"], 0);
  // Nobody records now: a next one may begin.
  EXPECT_EQ(Run({"record", file, "--for", "1s", "--http", Http()})["requests"], 0);
  EXPECT_THAT(RunReprise({"record", file, "--for", "10ms", "--http", Http()}).err,
              HasSubstr("1s and 7d"));
}

TEST_F(EconomicsTest, OtherSizesAndMoneyAreShown) {
  ASSERT_TRUE(Start(config_));
  const Json driven = Drive(kSmallTrace);
  const Json status = Status();
  const Json rates = status["what_if"]["hit_rate"]["dram"];
  EXPECT_GT(status["what_if"]["sampled_lookups"], 500);
  EXPECT_LE(rates["0.5x"], rates["1x"]);
  EXPECT_LE(rates["1x"], rates["8x"]);
  EXPECT_NEAR(rates["1x"].get<double>(), driven["hit_rate"].get<double>(), 0.06);
  EXPECT_THAT(HttpGet(daemon().http_port(), "/metrics"),
              HasSubstr("reprise_what_if_hits_total{tier=\"dram\",size=\"2x\"}"));
  // The ledger is written every few seconds.
  EXPECT_TRUE(Eventually([this] { return !Status()["ledger"].empty(); }));
  const Json worth = Run({"status", "--money"})["money"];
  EXPECT_GT(worth["saved"], 0);
  EXPECT_EQ(worth["model"], "nano");
  const Json dear = Run({"status", "--money", "--set", "gpu.usd_per_hour=30"})["money"];
  EXPECT_NEAR(dear["saved"].get<double>(), 10 * worth["saved"].get<double>(),
              1e-6 * dear["saved"].get<double>());
  EXPECT_EQ(RunReprise({"status", "--money", "--model", "v5"}).exit_code, 2);
}

TEST_F(EconomicsTest, ACalibratedProfileIsAWholeOne) {
  const std::string file = directory() + "/profile.toml";
  const Json measured = Run({"calibrate", "--dir", directory(), "--file-size", "32MiB", "--for",
                             "100ms", "--engine", "", "--out", file});
  EXPECT_GT(measured["ssd_read_gb_per_second"], 0);
  EXPECT_GT(measured["dram_gb_per_second"], 0);
  EXPECT_THAT(ReadText(file), HasSubstr("# Measured on this machine"));
  const Json simulated = Run({"simulate", kSmallTrace, "--profile", file});
  EXPECT_GT(simulated["money"]["saved"], 0);
  EXPECT_EQ(RunReprise({"calibrate", "--dir", "/nonexistent", "--for", "10ms"}).exit_code, 2);
  EXPECT_EQ(RunReprise({"calibrate", "--file-size", "1KiB"}).exit_code, 2);
}

}  // namespace
}  // namespace reprise::test
