#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "storage/format.h"

namespace reprise::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr MachineFacts kMachine{.memory_bytes = 64_GiB, .disk_free_bytes = 500_GiB};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Config, DefaultsAreValidAndAutomaticValuesAreResolved) {
  Config config = Config::Defaults();
  ASSERT_TRUE(config.Validate(kMachine).ok());
  EXPECT_EQ(config.payload_bytes, 113'920u);
  EXPECT_EQ(config.record_bytes(), 114'688u);
  EXPECT_EQ(config.listen.unix_path, "./reprise-data/reprised.sock");
  EXPECT_EQ(config.window.bytes, 64_GiB / 10 / 1_MiB * 1_MiB);
  const Config resolved = config;
  ASSERT_TRUE(config.Validate(kMachine).ok());
  EXPECT_EQ(config, resolved) << "validating twice changes nothing";
}

// RP_UPDATE_PAGES=1 rewrites the page from the table.
TEST(Config, TheExampleFileIsWhatTheTableSays) {
  const std::string path = std::string(RP_SOURCE_DIR) + "/deploy/reprised.toml";
  const std::string generated = Config::Defaults().ToToml();
  if (std::getenv("RP_UPDATE_PAGES") != nullptr) std::ofstream(path) << generated;
  EXPECT_EQ(ReadFile(path), generated) << "run this test once with RP_UPDATE_PAGES=1";
  auto read = Config::Load(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Config::Defaults());
}

TEST(Config, EveryFieldSurvivesPrintingAndParsing) {
  Config config;
  config.data_dir = "/var/lib/\"odd\\ name\"";
  config.model = "nano";
  config.payload_bytes = 27'137;
  config.shards = 3;
  config.listen = {
      .unix_path = "/run/r.sock", .tcp = "[::1]:7440", .http = "", .connections_max = 7};
  config.dram = {.bytes = 3_GiB + 1, .huge_pages = false, .eviction = "lru"};
  config.ssd = {.bytes = 0,
                .region_bytes = 1_MiB,
                .write = "demote",
                .admission = "tinylfu",
                .eviction = "s3fifo",
                .reinsert_percent = 0,
                .queue_depth = 1};
  config.window = {.bytes = 0, .ttl_ns = 90 * kSecond, .positions_per_session = 1};
  config.limits = {.staging_slots_per_connection = 1,
                   .staging_bytes_total = 5_KiB,
                   .waiting_max = 1,
                   .idle_frame_timeout_ns = 1500 * kMillisecond,
                   .deadline_default_ns = 3600 * kSecond};
  config.policy.replace_replay_derived = false;
  config.log = {.level = "debug", .format = "json"};
  config.quota_bytes = {{"acme", 10_GiB}, {"a.b \"c\"", 5}};
  auto read = Config::Parse(config.ToToml(), "printed");
  ASSERT_TRUE(read.ok()) << read.status() << "\n" << config.ToToml();
  EXPECT_EQ(*read, config) << config.ToToml();
}

TEST(Config, AnEmptyFileMeansDefaults) {
  auto read = Config::Parse("", "empty");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, Config::Defaults());
}

struct BadText {
  const char* text;
  const char* error;  // All of it, without "f:".
};

class ConfigParse : public ::testing::TestWithParam<BadText> {};

TEST_P(ConfigParse, NamesLineKeyAndFix) {
  auto read = Config::Parse(GetParam().text, "f");
  ASSERT_FALSE(read.ok()) << GetParam().text;
  EXPECT_THAT(Message(read.status()), StartsWith(std::string("f:") + GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    Errors, ConfigParse,
    ::testing::Values(
        BadText{"\n[dram]\nbyts = \"1GiB\"\n",
                "3: dram.byts: unknown key; did you mean dram.bytes?"},
        BadText{"sharts = 2", "1: sharts: unknown key; did you mean shards?"},
        BadText{"huge_pages = true", "1: huge_pages: unknown key; did you mean dram.huge_pages?"},
        BadText{"[ssd]\nhuge_pages = true",
                "2: ssd.huge_pages: unknown key; did you mean dram.huge_pages?"},
        BadText{"[srd]\nbytes = \"1GiB\"", "2: srd.bytes: unknown key; did you mean ssd.bytes?"},
        BadText{"[nonsense]\n", "1: nonsense: unknown key; `reprised --print-config`"},
        BadText{"zzzzzzzzzzzz = 1",
                "1: zzzzzzzzzzzz: unknown key; `reprised --print-config` lists them all"},
        BadText{"dram = 3", "1: dram = 3: is a section; write [dram]"},
        BadText{"[shards]\nx = 1", "2: shards.x: unknown key; did you mean shards?"},
        BadText{"[dram]\nbytes = 64", "2: dram.bytes = 64: must be a size with its unit in quotes"},
        BadText{"[dram]\nbytes = \"64\"", "2: dram.bytes: \"64\" is not a quantity with a unit"},
        BadText{"[dram]\nbytes = \"auto\"", "2: dram.bytes: \"auto\" is not a quantity"},
        BadText{"[dram]\nbytes = \"-1GiB\"", "2: dram.bytes: \"-1GiB\" is not a quantity"},
        BadText{"[dram]\nhuge_pages = \"yes\"",
                "2: dram.huge_pages = \"yes\": must be true or false"},
        BadText{"[dram]\neviction = \"fifo\"",
                "2: dram.eviction = \"fifo\": must be one of lru, s3fifo"},
        BadText{"[dram]\neviction = \"lru|s3fifo\"",
                "2: dram.eviction = \"lru|s3fifo\": must be one of"},
        BadText{"[dram]\neviction = \"\"", "2: dram.eviction = \"\": must be one of"},
        BadText{"[ssd]\neviction = 3", "2: ssd.eviction = 3: must be text in quotes"},
        BadText{"[window]\nttl = 10", "2: window.ttl = 10: must be a time with its unit"},
        BadText{"[window]\nttl = \"10\"", "2: window.ttl: \"10\" is not a quantity with a unit"},
        BadText{"[window]\nttl = \"0s\"", "2: window.ttl = \"0s\": must be from 1s to 2592000s"},
        BadText{"shards = 0", "1: shards = 0: must be a whole number from 1 to 64"},
        BadText{"shards = 65", "1: shards = 65: must be a whole number from 1 to 64"},
        BadText{"shards = -1", "1: shards = -1: must be a whole number"},
        BadText{"shards = 1.5", "1: shards = (a number or date): must be a whole number"},
        BadText{"shards = [1]", "1: shards = (an array): must be a whole number"},
        BadText{"[quota]\nacme = 5", "2: quota.acme = 5: must be a size"},
        BadText{"[quota]\nacme = \"5\"", "2: quota.acme: \"5\" is not a quantity"},
        BadText{"shards = 1\nshards = 2", "2: not TOML: "}, BadText{"shards = ", "1: not TOML: "},
        BadText{"\xff\xfe", "1: not TOML: "}));

TEST(Config, LoadSaysWhatToDoWithoutAFile) {
  EXPECT_THAT(Message(Config::Load("/nonexistent/x.toml").status()),
              AllOf(HasSubstr("/nonexistent/x.toml"), HasSubstr("--config")));
  EXPECT_FALSE(Config::Load("/").ok());
}

struct BadConfig {
  const char* name;
  void (*change)(Config& config, MachineFacts& machine);
  const char* field;  // What the error begins with.
  const char* fix;    // What it says somewhere.
};

class ConfigValidate : public ::testing::TestWithParam<BadConfig> {};

TEST_P(ConfigValidate, NamesFieldValueAndFix) {
  Config config;
  MachineFacts machine = kMachine;
  GetParam().change(config, machine);
  const absl::Status status = config.Validate(machine);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(Message(status), AllOf(StartsWith(GetParam().field), HasSubstr(GetParam().fix)));
}

using M = MachineFacts;
INSTANTIATE_TEST_SUITE_P(
    Errors, ConfigValidate,
    ::testing::Values(
        BadConfig{"memory", [](Config& c, M&) { c.dram.bytes = 60_GiB; },
                  "dram.bytes = 60.0 GiB: with window",
                  "this machine's 64.0 GiB of memory; lower one"},
        BadConfig{"memory_overflow",
                  [](Config& c, M&) { c.dram.bytes = c.limits.staging_bytes_total = 1ull << 46; },
                  "dram.bytes = 64.0 TiB: ", "lower one"},
        BadConfig{"window", [](Config& c, M&) { c.window.bytes = 63_GiB; },
                  "dram.bytes = 1.00 GiB: ", "window.bytes = 63.0 GiB"},
        BadConfig{"disk", [](Config&, M& m) { m.disk_free_bytes = 1_GiB; },
                  "ssd.bytes = 4.00 GiB: ", "has room for 1.00 GiB; lower it, or set data_dir"},
        BadConfig{"parent",
                  [](Config&, M& m) { m.data_dir_problem = "its parent /x is missing; create it"; },
                  "data_dir = \"./reprise-data\": its parent /x", "create it"},
        BadConfig{"no_data_dir", [](Config& c, M&) { c.data_dir = ""; },
                  "data_dir = \"\": ", "such as"},
        BadConfig{"shards", [](Config& c, M&) { c.shards = 65; }, "shards = 65: ", "from 1 to 64"},
        BadConfig{"small_region", [](Config& c, M&) { c.ssd.region_bytes = 112_KiB; },
                  "ssd.region_bytes = 112.0 KiB: not one record fits", "64MiB"},
        BadConfig{"odd_region", [](Config& c, M&) { c.ssd.region_bytes = 64_MiB + 1; },
                  "ssd.region_bytes = 64.0 MiB: ", "multiple of 4KiB"},
        BadConfig{"zero_region", [](Config& c, M&) { c.ssd.region_bytes = 0; },
                  "ssd.region_bytes = 0 B: ", "not one record fits"},
        BadConfig{"few_regions", [](Config& c, M&) { c.ssd.bytes = 64_MiB * 3 - 1; },
                  "ssd.bytes = 192.0 MiB: ", "needs 3 regions of 64.0 MiB; set it to 192.0 MiB"},
        BadConfig{"few_regions_per_shard", [](Config& c, M&) { c.shards = 64; },
                  "ssd.bytes = 4.00 GiB: ", "each of 64 shards needs 3 regions"},
        BadConfig{"small_dram", [](Config& c, M&) { c.dram.bytes = 4 * 114'688 - 1; },
                  "dram.bytes = ", "4 records of 112.0 KiB"},
        BadConfig{"small_window", [](Config& c, M&) { c.window.bytes = 1; },
                  "window.bytes = 1 B: ", "or more"},
        BadConfig{"small_staging", [](Config& c, M&) { c.limits.staging_bytes_total = 7_MiB - 1; },
                  "limits.staging_bytes_total = ", "64 slots; set it to 7.00 MiB"},
        BadConfig{"small_quota", [](Config& c, M&) { c.quota_bytes["acme"] = 1; },
                  "quota.acme = 1 B: ", "leave the tenant out"},
        BadConfig{"engine_device",
                  [](Config& c, M&) {
                    c.engine.model = "nano";
                    c.engine.device = "cuda:x";
                  },
                  "engine.device = \"cuda:x\": ", "set it to cpu, cuda, cuda:<number"},
        BadConfig{"engine_devices",
                  [](Config& c, M&) {
                    c.engine.model = "nano";
                    c.engine.device = "cuda:0,,1";
                  },
                  "engine.device = \"cuda:0,,1\": ", "several of them as cuda:0,1"},
        BadConfig{"engine_hbm",
                  [](Config& c, M&) {
                    c.engine.model = "nano";
                    c.engine.device = "cpu";
                    c.engine.hbm_bytes = 1_GiB;
                  },
                  "engine.hbm_bytes = 1.00 GiB: ", "set it to 0B, or engine.device to cuda"},
        BadConfig{"model", [](Config& c, M&) { c.model = "gpt"; },
                  "model = \"gpt\": ", "v4.1-flash or nano"},
        BadConfig{"payload", [](Config& c, M&) { c.payload_bytes = 1000; },
                  "payload_bytes = 1000 B: ", "113920"},
        BadConfig{"huge_payload", [](Config& c, M&) { c.payload_bytes = 65_MiB; },
                  "payload_bytes = 65.0 MiB: ", "64.0 MiB"},
        BadConfig{"no_payload",
                  [](Config& c, M&) {
                    c.model = "mine";
                    c.payload_bytes = 0;
                  },
                  "payload_bytes = 0 B: ", "1B"},
        BadConfig{"tcp", [](Config& c, M&) { c.listen.tcp = "7440"; },
                  "listen.tcp = \"7440\": ", "127.0.0.1:7440"},
        BadConfig{"http", [](Config& c, M&) { c.listen.http = "host:99999"; },
                  "listen.http = \"host:99999\": ", "write host:port"},
        BadConfig{"same_port", [](Config& c, M&) { c.listen.tcp = c.listen.http; },
                  "listen.http = ", "another port"},
        BadConfig{"long_socket", [](Config& c, M&) { c.data_dir = std::string(100, 'd'); },
                  "listen.unix = ", "shorter path"}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    ErrorsOfLeases, ConfigValidate,
    ::testing::Values(BadConfig{"on_cpu",
                                [](Config& c, M&) {
                                  c.engine.model = "nano";
                                  c.engine.device = "cpu";
                                  c.engine.hbm_lease_bytes = 1_GiB;
                                },
                                "engine.hbm_lease_bytes = 1.00 GiB: ", "engine.device to cuda"},
                      BadConfig{"of_all",
                                [](Config& c, M&) {
                                  c.engine.model = "nano";
                                  c.engine.device = "cuda";
                                  c.engine.hbm_bytes = c.engine.hbm_lease_bytes = 1_GiB;
                                },
                                "engine.hbm_lease_bytes = 1.00 GiB: ", "lower it, or raise that"},
                      BadConfig{"of_none", [](Config& c, M&) { c.engine.hbm_lease_bytes = 1_GiB; },
                                "engine.hbm_lease_bytes = 1.00 GiB: ", "set engine.model"}));

TEST(ConfigValidate, EdgesAreAccepted) {
  struct Case {
    const char* name;
    void (*change)(Config& config, MachineFacts& machine);
  };
  const Case cases[] = {
      {"exactly 3 regions", [](Config& c, M&) { c.ssd.bytes = 3 * 64_MiB; }},
      {"no SSD",
       [](Config& c, M& m) { c.ssd.bytes = 0, m.disk_free_bytes = 0, c.ssd.region_bytes = 1; }},
      {"no window", [](Config& c, M&) { c.window.bytes = 0; }},
      {"4 records", [](Config& c, M&) { c.dram.bytes = 4 * 114'688; }},
      {"one slot a region", [](Config& c, M&) { c.ssd.region_bytes = 114'688 + 8_KiB; }},
      {"disk counts our files",
       [](Config&, M& m) { m.disk_free_bytes = 1_GiB, m.shard_files_bytes = 3_GiB; }},
      {"another model", [](Config& c, M&) { c.model = "mine", c.payload_bytes = 1; }},
      {"larger payload", [](Config& c, M&) { c.payload_bytes = 200'000; }},
      {"no addresses", [](Config& c, M&) { c.listen.http = "", c.listen.tcp = ""; }},
      {"any ports", [](Config& c, M&) { c.listen.http = c.listen.tcp = "127.0.0.1:0"; }},
      {"all memory",
       [](Config& c, M& m) {
         m.memory_bytes = 2_GiB;
         c.window.bytes = 512_MiB;
       }},
  };
  for (const Case& c : cases) {
    Config config;
    MachineFacts machine = kMachine;
    c.change(config, machine);
    const absl::Status status = config.Validate(machine);
    EXPECT_TRUE(status.ok()) << c.name << ": " << status;
    EXPECT_TRUE(config.ssd.bytes == 0 ||
                storage::CutRegion(config.record_bytes(), config.ssd.region_bytes).slots >= 1);
  }
}

TEST(Config, AddressesAreTakenApart) {
  struct Case {
    const char* text;
    const char* host;  // Null: refused.
    int port;
  };
  for (const Case& c : {Case{"127.0.0.1:7440", "127.0.0.1", 7440},
                        {"[::1]:1", "::1", 1},
                        {"h:0", "h", 0},
                        {"h:65535", "h", 65535},
                        {"h:65536", nullptr, 0},
                        {"h:", nullptr, 0},
                        {":1", nullptr, 0},
                        {"h", nullptr, 0},
                        {"::1:80", nullptr, 0},
                        {"[]:1", nullptr, 0},
                        {"[::1:1", nullptr, 0},
                        {"h:1x", nullptr, 0},
                        {"h:-1", nullptr, 0},
                        {"", nullptr, 0}}) {
    const auto address = ParseHostPort(c.text);
    ASSERT_EQ(address.ok(), c.host != nullptr) << c.text;
    if (!address.ok()) continue;
    EXPECT_EQ(address->host, c.host);
    EXPECT_EQ(address->port, c.port);
  }
}

class MachineFactsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/reprise-facts-XXXXXX";
    dir_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string dir_;
};

TEST_F(MachineFactsTest, ReadsThisMachine) {
  auto facts = ReadMachineFacts(dir_);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_GT(facts->memory_bytes, 64_MiB);
  EXPECT_LT(facts->memory_bytes, 1ull << 50);
  EXPECT_GT(facts->disk_free_bytes, 0u);
  EXPECT_EQ(facts->shard_files_bytes, 0u);
  EXPECT_EQ(facts->data_dir_problem, "");
}

TEST_F(MachineFactsTest, CountsExistingShardFiles) {
  std::ofstream(dir_ + "/shard-0.data") << std::string(1_MiB, 'x') << std::flush;
  std::ofstream(dir_ + "/shard-63.data") << std::string(1_MiB, 'x') << std::flush;
  auto facts = ReadMachineFacts(dir_ + "/");
  ASSERT_TRUE(facts.ok());
  EXPECT_GE(facts->shard_files_bytes, 2_MiB);
  EXPECT_LE(facts->shard_files_bytes, 3_MiB);
}

TEST_F(MachineFactsTest, ADirectoryToBeMadeNeedsAParent) {
  EXPECT_EQ(ReadMachineFacts(dir_ + "/new")->data_dir_problem, "");
  EXPECT_EQ(ReadMachineFacts(dir_ + "/new/")->data_dir_problem, "");
  EXPECT_THAT(ReadMachineFacts(dir_ + "/no/such")->data_dir_problem,
              AllOf(HasSubstr("/no is not a directory"), HasSubstr("create it")));
  std::ofstream(dir_ + "/file") << "x";
  EXPECT_THAT(ReadMachineFacts(dir_ + "/file")->data_dir_problem, HasSubstr("not a directory"));
}

}  // namespace
}  // namespace reprise::server
