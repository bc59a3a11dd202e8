// What the daemon says before it serves: about its configuration, its directory, its sockets.
#include <sys/stat.h>

#include <filesystem>

#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"

namespace reprise::test {
namespace {

using testing::Test;

class StartTest : public DaemonTest {};

struct BadConfig {
  const char* name;
  std::string text;
  std::vector<std::string> says;  // Each must be in the one line on stderr.
};

TEST_F(StartTest, BadConfigurationsNameTheKeyAndTheFix) {
  const std::string here = "data_dir = \"" + data_dir() + "\"\nmodel = \"nano\"\n";
  const BadConfig cases[] = {
      {"misspelt", here + "[dram]\nbyte = \"16MiB\"\n", {"c.toml:4", "dram.byte", "dram.bytes?"}},
      {"unknown", here + "[dram]\nzzzzzzzzzzzz = 1\n", {"c.toml:4", "dram.zzz", "unknown key"}},
      {"section",
       here + "[drams]\nbytes = \"16MiB\"\n",
       {"drams.bytes", "did you mean dram.bytes"}},
      {"no unit", here + "[dram]\nbytes = 5\n", {"dram.bytes = 5", "with its unit"}},
      {"one of", here + "[ssd]\nwrite = \"never\"\n", {"ssd.write", "through, demote"}},
      {"not toml", here + "[dram\n", {"c.toml:3", "not TOML"}},
      {"memory", here + "[dram]\nbytes = \"100TiB\"\n", {"dram.bytes", "of memory", "lower one"}},
      {"disk",
       here + "[dram]\nbytes = \"16MiB\"\n[window]\nbytes = \"8MiB\"\n[ssd]\nbytes = \"10TiB\"\n",
       {"ssd.bytes = 10.0 TiB", "has room for", "lower it"}},
      {"few regions",
       here + "[ssd]\nbytes = \"100MiB\"\nregion_bytes = \"64MiB\"\n",
       {"ssd.bytes", "set it to 192.0 MiB or more"}},
      {"region", here + "[ssd]\nregion_bytes = \"4KiB\"\n", {"ssd.region_bytes", "not one record"}},
      {"pool", here + "[dram]\nbytes = \"1KiB\"\n", {"dram.bytes", "4 records"}},
      {"model", "data_dir = \"" + data_dir() + "\"\nmodel = \"v5\"\n", {"model", "v4.1-flash"}},
      {"parent",
       "data_dir = \"" + directory() + "/none/d\"\nmodel = \"nano\"\n[ssd]\nbytes = \"0B\"\n",
       {"data_dir", directory() + "/none", "create it first"}},
      {"quota", here + "[quota]\nx = \"1KiB\"\n", {"quota.x", "one record"}},
      {"http", here + "[listen]\nhttp = \"nowhere\"\n", {"listen.http", "host:port"}},
  };
  for (const BadConfig& bad : cases) {
    SCOPED_TRACE(bad.name);
    WriteText(config_path(), bad.text);
    for (const bool check : {false, true}) {
      std::vector<std::string> arguments{"--config", config_path()};
      if (check) arguments.push_back("--check-config");
      const ProgramResult result = RunReprised(arguments);
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_EQ(result.out, "");
      for (const std::string& word : bad.says) {
        EXPECT_NE(result.err.find(word), std::string::npos) << word << " is not in " << result.err;
      }
    }
    EXPECT_FALSE(std::filesystem::exists(data_dir())) << "made before the configuration was good";
  }
}

TEST_F(StartTest, AConfigurationThatIsNotThereIsNamed) {
  const ProgramResult result = RunReprised({"--config", directory() + "/none.toml"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("none.toml"), std::string::npos) << result.err;
}

TEST_F(StartTest, PrintConfigReadsBackToItself) {
  WriteText(config_path(), DaemonConfig{.quota = {{"a tenant", "1GiB"}}}.ToToml(data_dir()));
  const ProgramResult first = RunReprised({"--config", config_path(), "--print-config"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.out.find("a tenant"), std::string::npos);
  WriteText(config_path(), first.out);
  const ProgramResult second = RunReprised({"--config", config_path(), "--print-config"});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
  const ProgramResult checked = RunReprised({"--config", config_path(), "--check-config"});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_EQ(checked.out, "configuration ok\n");
  EXPECT_FALSE(std::filesystem::exists(data_dir())) << "checking must change nothing";
}

TEST_F(StartTest, ASecondDaemonOnADirectoryIsRefusedAndTheFirstServes) {
  ASSERT_TRUE(Start({}));
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  const Chain chain(NanoManifest(), 1, 4);
  ASSERT_TRUE(PutChain(client.get(), chain));
  const std::string error = StartRefused({.unix_path = directory() + "/other.sock"});
  EXPECT_NE(error.find("in use by process " + std::to_string(daemon().pid())), std::string::npos)
      << error;
  EXPECT_NE(error.find("stop that daemon"), std::string::npos) << error;
  EXPECT_EQ(GetRun(client.get(), chain), 4u);
  EXPECT_EQ(GetRun(Connect().get(), chain), 4u) << "the socket of the first is untouched";
}

TEST_F(StartTest, ASocketPathInUseIsRefusedAndAStaleOneIsTaken) {
  ASSERT_TRUE(Start({}));
  const std::string other = directory() + "/other.toml";
  WriteText(other, DaemonConfig{.unix_path = socket_path()}.ToToml(directory() + "/e"));
  const ProgramResult result = RunReprised({"--config", other});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("another daemon is listening on"), std::string::npos) << result.err;
  EXPECT_NE(Connect(), nullptr);
  Kill();
  EXPECT_TRUE(std::filesystem::is_socket(socket_path())) << "a kill leaves the socket behind";
  EXPECT_TRUE(Start({}));
}

TEST_F(StartTest, AFileInTheSocketsPlaceIsLeftAlone) {
  const std::string path = directory() + "/precious";
  WriteText(path, "data");
  const std::string error = StartRefused({.unix_path = path});
  EXPECT_NE(error.find("is not a socket"), std::string::npos) << error;
  EXPECT_EQ(ReadText(path), "data");
}

TEST_F(StartTest, AnHttpPortInUseIsNamed) {
  ASSERT_TRUE(Start({.http = "127.0.0.1:0"}));
  const std::string taken = "127.0.0.1:" + std::to_string(daemon().http_port());
  const std::string other = directory() + "/other.toml";
  WriteText(other, DaemonConfig{.http = taken}.ToToml(directory() + "/e"));
  const ProgramResult result = RunReprised({"--config", other});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find(taken), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("listen.http"), std::string::npos) << result.err;
}

TEST_F(StartTest, AnotherGeometryIsRefusedWithWhatToDo) {
  ASSERT_TRUE(Start({}));
  ASSERT_TRUE(PutChain(Connect().get(), Chain(NanoManifest(), 2, 8), wire::Durability::kDurable));
  Stop();
  const struct {
    DaemonConfig config;
    std::string says;
  } cases[] = {
      {{.shards = 2}, "shard count of 1"},
      {{.model = "nano", .payload_bytes = "64KiB"}, "records of 28"},
      {{.region_bytes = "2MiB"}, "regions of 1.00 MiB"},
  };
  for (const auto& bad : cases) {
    const std::string error = StartRefused(bad.config);
    EXPECT_NE(error.find(bad.says), std::string::npos) << error;
    EXPECT_NE(error.find("change the configuration back"), std::string::npos) << error;
  }
  ASSERT_TRUE(Start({}));
  EXPECT_EQ(GetRun(Connect().get(), Chain(NanoManifest(), 2, 8)), 8u);
}

TEST_F(StartTest, TheSsdTierMayGrowAndShrink) {
  const Chain chain(NanoManifest(), 3, 400);  // 12 regions of the 16 that 16 MiB are.
  ASSERT_TRUE(Start({.ssd_bytes = "16MiB"}));
  ASSERT_TRUE(PutChain(Connect().get(), chain, wire::Durability::kDurable));
  Stop();
  ASSERT_TRUE(Start({.ssd_bytes = "32MiB"}));
  EXPECT_EQ(CountHeld(Connect().get(), chain), 400u);
  Stop();
  ASSERT_TRUE(Start({.ssd_bytes = "6MiB"}));
  const auto client = Connect();
  const uint32_t held = CountHeld(client.get(), chain);
  EXPECT_GE(held, 3 * 36u);
  EXPECT_LE(held, 6 * 36u);
  const Json status = Status();
  EXPECT_EQ(status["traffic"]["failed_checks"], 0);
  EXPECT_EQ(status["tiers"]["ssd"]["read_errors"], 0);
  EXPECT_LE(status["tiers"]["ssd"]["used_bytes"], 6_MiB);
  EXPECT_LE(std::filesystem::file_size(data_dir() + "/shard-0.data"), 6_MiB);
  ASSERT_TRUE(PutChain(client.get(), Chain(NanoManifest(), 4, 100), wire::Durability::kDurable));
}

TEST_F(StartTest, DamagedSuperblocksAreRepairedOrRefused) {
  const Chain chain(NanoManifest(), 5, 4);
  ASSERT_TRUE(Start({}));
  ASSERT_TRUE(PutChain(Connect().get(), chain, wire::Durability::kDurable));
  Stop();
  const std::string path = data_dir() + "/superblock";
  const std::string whole = ReadText(path);
  ASSERT_EQ(whole.size(), 2u * kPageBytes);
  std::string damaged = whole;
  damaged[20] ^= 1;
  WriteText(path, damaged);
  ASSERT_TRUE(Start({}));
  EXPECT_NE(daemon().log().find("superblock_repaired"), std::string::npos) << daemon().log();
  EXPECT_EQ(GetRun(Connect().get(), chain), 4u);
  Stop();
  EXPECT_EQ(ReadText(path), whole);
  damaged[kPageBytes + 20] ^= 1;
  WriteText(path, damaged);
  const std::string error = StartRefused({});
  EXPECT_NE(error.find("not a valid superblock"), std::string::npos) << error;
  EXPECT_NE(error.find("restore the superblock"), std::string::npos) << error;
  WriteText(path, whole);
  ASSERT_TRUE(Start({}));
  EXPECT_EQ(GetRun(Connect().get(), chain), 4u) << "a refusal touches no block";
}

}  // namespace
}  // namespace reprise::test
