// What `reprise simulate` predicts, and what the daemon does when `reprise drive` plays the same
// trace against the same configuration.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/integration/daemon_process.h"

namespace reprise::test {
namespace {

using testing::HasSubstr;

// Sessions that are long enough for every tier to overflow: 6,600 requests' blocks of 28 KiB.
constexpr const char* kTrace =
    "generated:sessions=24,turns=14,seed=5,block=64,system=3000,append=900,input_max=30000,"
    "fork_per_mille=80";

// More of them: what 64 blocks at a time do to the order matters less.
constexpr const char* kLongTrace =
    "generated:sessions=60,turns=14,seed=5,block=64,system=3000,append=900,input_max=30000,"
    "fork_per_mille=80";

class SimulateTest : public DaemonTest {
 protected:
  Json Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--json"});
    const ProgramResult result = RunReprise(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
    return Json::parse(result.out, nullptr, false);
  }

  struct Both {
    Json simulated, driven, before, after;
  };
  Both Compare(const char* trace, const DaemonConfig& config,
               const std::vector<std::string>& simulate_more,
               const std::vector<std::string>& drive_more) {
    Both both;
    EXPECT_TRUE(Start(config));
    both.before = Status();
    std::vector<std::string> drive = {"drive", trace, "--model", "nano", "--connections", "1"};
    drive.insert(drive.end(), drive_more.begin(), drive_more.end());
    both.driven = Run(drive);
    both.after = Status();
    std::vector<std::string> simulate = {
        "simulate",     trace,
        "--model",      "nano",
        "--dram",       config.dram_bytes,
        "--ssd",        config.ssd_bytes == "0B" ? "0" : config.ssd_bytes,
        "--region",     config.region_bytes,
        "--window",     config.window_bytes,
        "--window-ttl", "30d",
        "--policy",     config.dram_eviction,
        "--admission",  config.ssd_admission,
        "--ssd-write",  config.ssd_write};
    simulate.insert(simulate.end(), simulate_more.begin(), simulate_more.end());
    both.simulated = Run(simulate);
    EXPECT_EQ(both.driven["wrong_bytes"], 0);
    EXPECT_TRUE(both.driven["errors"].empty()) << both.driven["errors"];
    return both;
  }

  static void ExpectEqual(const Both& both, const std::vector<std::string>& keys) {
    for (const std::string& key : keys) EXPECT_EQ(both.simulated[key], both.driven[key]) << key;
  }
  // Within one percent of what was driven, or of the whole where that is said.
  static void ExpectNear(const std::string& what, const Json& simulated, const Json& driven,
                         double whole) {
    const double difference = std::abs(simulated.get<double>() - driven.get<double>());
    EXPECT_LE(difference, 0.01 * whole)
        << what << ": " << simulated << " simulated, " << driven << " driven";
  }
  uint64_t Evictions(const Json& status, const char* tier) {
    return status["tiers"][tier]["evictions"].get<uint64_t>();
  }

  const std::vector<std::string> kHits = {
      "requests",      "input_tokens",    "hit_tokens", "hits_by_tier", "exact_hits",
      "replayed_hits", "replayed_tokens", "misses",     "blocks_put",   "blocks_existing"};
};

// No timing plays a part: every count is the same.
TEST_F(SimulateTest, DramAloneAgreesExactly) {
  for (const char* policy : {"lru", "s3fifo"}) {
    const Both both = Compare(
        kTrace,
        {.dram_bytes = "48MiB", .ssd_bytes = "0B", .dram_eviction = policy, .window_bytes = "8MiB"},
        {}, {});
    if (std::string(policy) == "lru") {
      ExpectEqual(both, kHits);
      ExpectEqual(both, {"window_pool_peak_bytes"});
      EXPECT_EQ(both.simulated["dram_evictions"], Evictions(both.after, "dram"));
    } else {  // Its ghost memory goes by 32 bits of keys, which are other ones.
      ExpectNear("hit_tokens", both.simulated["hit_tokens"], both.driven["hit_tokens"],
                 both.driven["hit_tokens"]);
    }
    EXPECT_GT(both.simulated["dram_evictions"], 100);
    EXPECT_GT(both.simulated["replayed_hits"], 10);
    Stop();
  }
}

// Every put waits for the SSD, which has room for all: DRAM evicts, and nothing is lost.
TEST_F(SimulateTest, DurableWithRoomAgreesExactly) {
  const Both both =
      Compare(kTrace, {.dram_bytes = "24MiB", .ssd_bytes = "1GiB", .window_bytes = "8MiB"},
              {"--durable"}, {"--durable"});
  ExpectEqual(both, kHits);
  ExpectEqual(both, {"ssd_bytes_written", "ssd_bytes_read", "window_pool_peak_bytes"});
  EXPECT_EQ(both.simulated["dram_evictions"], Evictions(both.after, "dram"));
  EXPECT_GT(both.simulated["hits_by_tier"]["ssd"], 100'000);
}

// Writes and reclaims go on behind the requests' backs: when, is a matter of timing, and in demote
// mode up to 64 blocks are on their way out at once.
TEST_F(SimulateTest, SlowAFullSsdAgreesWithinAPercent) {
  for (const char* write : {"through", "demote"}) {
    const Both both = Compare(
        kLongTrace,
        {.dram_bytes = "64MiB", .ssd_bytes = "96MiB", .ssd_write = write, .window_bytes = "8MiB"},
        {}, {});
    const double hits = both.driven["hit_tokens"];
    ExpectNear("hit_tokens", both.simulated["hit_tokens"], both.driven["hit_tokens"], hits);
    for (const char* tier : {"dram", "ssd"}) {
      ExpectNear(tier, both.simulated["hits_by_tier"][tier], both.driven["hits_by_tier"][tier],
                 hits);
      const double evictions = static_cast<double>(Evictions(both.after, tier));
      ExpectNear(std::string(tier) + " evictions", both.simulated[std::string(tier) + "_evictions"],
                 evictions, evictions);
    }
    const double requests = both.driven["requests"];
    for (const char* key : {"exact_hits", "replayed_hits", "misses"}) {
      ExpectNear(key, both.simulated[key], both.driven[key], requests);
    }
    for (const char* key : {"ssd_bytes_written", "blocks_put"}) {
      ExpectNear(key, both.simulated[key], both.driven[key], both.driven[key]);
    }
    // Few against what is written, and most of them of blocks that had only just left DRAM.
    ExpectNear("ssd_bytes_read", both.simulated["ssd_bytes_read"], both.driven["ssd_bytes_read"],
               both.driven["ssd_bytes_read"].get<double>() +
                   both.driven["ssd_bytes_written"].get<double>());
    EXPECT_GT(both.simulated["ssd_evictions"], 5'000);
    Stop();
    std::filesystem::remove_all(data_dir());
  }
}

// ---- Without a daemon --------------------------------------------------------------------------

TEST_F(SimulateTest, SweepsCsvAndPage) {
  const std::string csv = directory() + "/sweep.csv", page = directory() + "/page.html";
  const Json swept = Run({"simulate", kTrace, "--model", "nano", "--sweep", "dram=8MiB..64MiB:4",
                          "--sweep", "policy=lru,s3fifo", "--ssd", "0", "--csv", csv});
  ASSERT_EQ(swept["runs"].size(), 8u);
  double last = -1;
  for (const Json& run : swept["runs"]) {
    if (run["config"]["policy"] != "lru") continue;
    EXPECT_GE(run["hit_rate"].get<double>(), last) << "more memory hits no less";
    last = run["hit_rate"];
  }
  const std::string text = ReadText(csv);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 9);
  const Json study = Run({"simulate", kTrace, "--model", "nano", "--html", page, "--belady"});
  EXPECT_GT(study["ceiling"], 0.5);
  EXPECT_LE(study["hit_rate"], study["ceiling"]);
  const std::string html = ReadText(page);
  for (const char* part :
       {"class=\"verdict\"", "Belady", "window TTL", "Definitions", "<svg", "SSD wear"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  EXPECT_EQ(html.find("http://"), std::string::npos) << "needs nothing else";
  EXPECT_EQ(html.find("https://"), std::string::npos);
}

TEST_F(SimulateTest, InfiniteTiersReachTheCeiling) {
  const Json simulated = Run({"simulate", kTrace, "--dram", "1TiB", "--ssd", "0"});
  const Json curve = Run({"simulate", kTrace, "--html", directory() + "/p.html", "--dram", "1TiB"});
  EXPECT_DOUBLE_EQ(simulated["hit_rate"].get<double>(), curve["ceiling"].get<double>());
  // Twice as fast, twice as many: nothing is shared, so the rate stays.
  const Json twice =
      Run({"simulate", kTrace, "--dram", "1TiB", "--ssd", "0", "--sessions-times", "2"});
  EXPECT_EQ(twice["hit_tokens"].get<uint64_t>(), 2 * simulated["hit_tokens"].get<uint64_t>());
  const Json again = Run({"simulate", kTrace, "--dram", "1TiB", "--ssd", "0", "--repeat", "2"});
  EXPECT_GT(again["hit_rate"], simulated["hit_rate"]);
  const Json machines = Run({"simulate", kTrace, "--dram", "1TiB", "--ssd", "0", "--machines", "4",
                             "--placement", "root"});
  EXPECT_EQ(machines["hit_tokens"], simulated["hit_tokens"]) << "a prefix stays together";
  const Json spread = Run({"simulate", kTrace, "--dram", "1TiB", "--ssd", "0", "--machines", "4",
                           "--placement", "round-robin"});
  EXPECT_LT(spread["hit_tokens"], simulated["hit_tokens"]);
}

TEST_F(SimulateTest, ConvertedTracesAreTheSameTrace) {
  const std::string delta = directory() + "/t.delta", mooncake = directory() + "/t.jsonl";
  const auto convert = [&](std::vector<std::string> arguments, const std::string& to) {
    arguments.insert(arguments.begin(), {"trace", "convert"});
    const ProgramResult result = RunReprise(std::move(arguments));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    WriteText(to, result.out);
  };
  convert({kTrace, "--anonymise"}, mooncake);
  const std::string one_session =
      "generated:sessions=1,turns=40,seed=5,block=64,fork_per_mille=0,input_max=60000";
  convert({one_session, "--to", "delta"}, delta);
  const auto hits = [&](const std::string& trace, std::vector<std::string> more = {}) {
    more.insert(more.begin(),
                {"simulate", trace, "--dram", "64MiB", "--ssd", "0", "--model", "nano"});
    return Run(more)["hit_tokens"];
  };
  EXPECT_EQ(hits(mooncake, {"--trace-block", "64"}), hits(kTrace));
  EXPECT_EQ(hits(delta), hits(one_session));
}

TEST_F(SimulateTest, WhatIsWrongIsSaid) {
  const auto error = [this](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"simulate"});
    const ProgramResult result = RunReprise(std::move(arguments));
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(error({kTrace, "--dram", "64"}), HasSubstr("unit"));
  EXPECT_THAT(error({kTrace, "--policy", "mru"}), HasSubstr("use one of lru, s3fifo, fifo"));
  EXPECT_THAT(error({kTrace, "--policy", "belady"}), HasSubstr("a policy of --reference"));
  EXPECT_THAT(error({kTrace, "--reference", "--policy", "mru"}), HasSubstr("lru-naive"));
  EXPECT_THAT(error({kTrace, "--sweep", "dram=1GiB,2"}), HasSubstr("--sweep dram=1GiB,2"));
  EXPECT_THAT(error({kTrace, "--sweep", "ram=1GiB"}), HasSubstr("unknown setting \"ram\""));
  EXPECT_THAT(error({kTrace, "--model", "v5"}), HasSubstr("v4-flash"));
  EXPECT_THAT(error({kTrace, "--ssd", "100MiB"}), HasSubstr("needs 3"));
  EXPECT_THAT(error({kTrace, "--warm-up", "200%"}), HasSubstr("0% to 99%"));
  EXPECT_THAT(error({kTrace, "--set", "gpu.usd=3"}), HasSubstr("unknown key gpu.usd"));
  EXPECT_THAT(error({}), HasSubstr("name a trace"));
  const std::string profile = directory() + "/profile.toml";
  WriteText(profile, "load_latency_ms = 1.0\n");
  EXPECT_THAT(error({kTrace, "--profile", profile}), HasSubstr("does not say"));
  WriteText(profile, "[gpu]\nusd_per_hour = \"three\"\n");
  EXPECT_THAT(error({kTrace, "--profile", profile}), HasSubstr("profile.toml:2: gpu.usd_per_hour"));
  const std::string trace = directory() + "/broken.jsonl";
  const std::string row =
      "{\"timestamp\":0,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1]}\n";
  WriteText(trace, row + "{\"timestamp\":1,\n" + row);
  EXPECT_THAT(error({trace}), HasSubstr("broken.jsonl:2"));
  EXPECT_EQ(Run({"simulate", trace, "--lenient"})["trace"]["skipped_lines"], 1);
  WriteText(trace, "");
  EXPECT_THAT(error({trace}), HasSubstr("is empty"));
  WriteText(trace,
            "{\"timestamp\":5,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1]}\n" + row);
  EXPECT_THAT(error({trace}), HasSubstr("time goes back"));
  WriteText(trace, "{\"timestamp\":0,\"input_length\":-5,\"output_length\":1,\"hash_ids\":[1]}\n");
  EXPECT_THAT(error({trace}), HasSubstr("broken.jsonl:1"));
  WriteText(trace,
            "{\"timestamp\":0,\"input_length\":5000,\"output_length\":1,\"hash_ids\":[1]}\n");
  EXPECT_THAT(error({trace}), HasSubstr("lists 1 hash ids"));
}

}  // namespace
}  // namespace reprise::test
