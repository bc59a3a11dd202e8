#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/cli/doctor_checks.h"
#include "client/cli/inputs.h"
#include "client/cli/progress.h"
#include "client/cli/status_view.h"
#include "tests/client/command.h"
#include "tests/client/fake_server.h"
#include "tests/client/records.h"

namespace reprise::cli {
namespace {

using nlohmann::json;
using test::CommandResult;
using testing::HasSubstr;

class CliTest : public testing::Test {
 protected:
  CliTest() {
    char pattern[] = "/tmp/reprise-cli-XXXXXX";
    directory_ = mkdtemp(pattern);
    const auto tokens = test::MakeTokens(5, 3 * kBlockTokens + 20);
    std::string text;
    for (const TokenId token : tokens) text += std::to_string(token) + "\n";
    Write("tokens.txt", text);
    Write("tokens.bin", AsText(std::as_bytes(std::span(tokens))));
    std::string payload(3 * 27'136, '\0');
    Prng prng(6);
    for (char& c : payload) c = static_cast<char>(prng.Next());
    Write("payload", payload);
  }
  ~CliTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  void Write(const std::string& name, std::string_view bytes) const {
    std::ofstream(Path(name), std::ios::binary)
        .write(bytes.data(), static_cast<long>(bytes.size()));
  }
  std::string Read(const std::string& name) const { return ReadFile(Path(name), 1_GiB).value(); }

  // `words` after the address; stderr is dropped unless they say otherwise.
  CommandResult Reprise(const std::string& words) const {
    return test::RunCommand("cd " + directory_ + " && " RP_BINARY_DIR "/bin/reprise --address " +
                            server_.address() + " " + words + " 2>/dev/null");
  }
  json RepriseJson(const std::string& words, int exit_code = kExitOk) const {
    const CommandResult result = Reprise("--json " + words);
    EXPECT_EQ(result.exit_code, exit_code) << words << "\n" << result.out;
    const json parsed = json::parse(result.out, nullptr, false);
    EXPECT_TRUE(parsed.is_object()) << words << "\n" << result.out;
    return parsed;
  }

  test::FakeServer server_;
  std::string directory_;
};

TEST_F(CliTest, PutThenGetGivesTheSameBytes) {
  json put = RepriseJson("put --model nano --tokens tokens.txt --payload payload --durable");
  EXPECT_EQ(put["blocks"], 3);
  EXPECT_EQ(put["outcomes"], json({{"ok", 3}}));
  EXPECT_EQ(server_.durable_puts, 1u);
  put = RepriseJson("put --tokens tokens.bin --payload payload");
  EXPECT_EQ(put["outcomes"], json({{"exists", 3}})) << "text and binary name the same blocks";

  const json got = RepriseJson("get --tokens tokens.txt --out out");
  EXPECT_EQ(got["asked_blocks"], 3);
  EXPECT_EQ(got["hit_blocks"], 3);
  EXPECT_EQ(got["hit_tokens"], 384);
  EXPECT_EQ(got["stopped_by"], "ok");
  EXPECT_EQ(Read("out"), Read("payload"));
  EXPECT_THAT(Reprise("get --tokens tokens.txt --out out").out, HasSubstr("3 of 3 blocks"));
}

TEST_F(CliTest, AMissIsExitCodeOne) {
  const json nothing = RepriseJson("get --tokens tokens.txt --out out", kExitMiss);
  EXPECT_EQ(nothing["hit_blocks"], 0);
  EXPECT_EQ(nothing["stopped_by"], "not_found");
  RepriseJson("put --tokens tokens.txt --payload payload");
  const json other = RepriseJson("get --tokens tokens.txt --tenant x --out out", kExitMiss);
  EXPECT_EQ(other["hit_blocks"], 0) << "another tenant is another namespace";
  EXPECT_EQ(RepriseJson("explain --tokens tokens.txt", kExitMiss)["reason"], "never_stored");
}

TEST_F(CliTest, EvictAndVerify) {
  RepriseJson("put --tokens tokens.txt --payload payload");
  EXPECT_EQ(RepriseJson("verify --all")["checked_blocks"], 3);
  EXPECT_EQ(RepriseJson("evict --tokens tokens.bin")["evicted_blocks"], 3);
  EXPECT_EQ(RepriseJson("evict --all")["evicted_blocks"], 0);
  server_.faults().damage_record = 0;
  EXPECT_EQ(RepriseJson("verify --all", kExitMiss)["failed_blocks"], 1);
  EXPECT_EQ(RepriseJson("verify", kExitUsage)["error"]["exit_code"], kExitUsage);
  EXPECT_EQ(RepriseJson("evict --all --tokens tokens.txt", kExitUsage)["error"]["code"],
            "invalid_argument");
}

TEST_F(CliTest, StatusAndTop) {
  EXPECT_EQ(RepriseJson("status")["version"], "0.0-fake");
  EXPECT_THAT(Reprise("status").out, HasSubstr("budget_bytes  1.00 MiB"));
  const json top = RepriseJson("top --once --interval 20ms");
  EXPECT_EQ(top["rates_per_second"]["tiers.dram.blocks"], 0.0);
  EXPECT_GE(top["seconds"], 0.019);
  EXPECT_THAT(Reprise("top --once --interval 20ms").out, HasSubstr("tiers.dram\n"));
}

struct UsageCase {
  const char* words;
  const char* message;
};

TEST_F(CliTest, WrongUsageSaysWhatAndExitsWithTwo) {
  Write("bad.txt", "1 2 x3");
  Write("negative.txt", "1 -2");
  Write("odd.bin", "12345");
  Write("short", "abc");
  Write("few.txt", "1 2 3");
  const UsageCase cases[] = {
      {"", "subcommand"},
      {"nonsense", "nonsense"},
      {"status --deadline 5", "quantity with a unit"},
      {"put --tokens tokens.txt", "--payload is required"},
      {"put --tokens missing.txt --payload payload", "missing.txt"},
      {"put --tokens bad.txt --payload payload", "token 2"},
      {"put --tokens negative.txt --payload payload", "token 1"},
      {"put --tokens odd.bin --payload payload", "whole number of int32"},
      {"put --tokens few.txt --payload payload", "no whole block"},
      {"put --tokens tokens.txt --payload short", "need 81408"},
      {"put --model v4.1-flash --tokens tokens.txt --payload payload", "records of 114688"},
      {"put --model other --tokens tokens.txt --payload payload", "known are v4.1-flash and nano"},
      {"top --interval 1ms --once", "between 10ms and 1h"},
      {"completion tcsh", "tcsh"}};
  for (const UsageCase& c : cases) {
    const json error = RepriseJson(c.words, kExitUsage);
    EXPECT_THAT(error["error"]["message"].get<std::string>(), HasSubstr(c.message)) << c.words;
    EXPECT_EQ(error["error"]["exit_code"], 2);
  }
}

TEST_F(CliTest, TheOtherExitCodes) {
  const std::string reprise = RP_BINARY_DIR "/bin/reprise ";
  EXPECT_EQ(test::RunCommand(reprise + "--address unix:/nonexistent status 2>&1").exit_code,
            kExitCannotConnect);
  EXPECT_EQ(test::RunCommand(reprise + "--address nonsense status 2>&1").exit_code, kExitUsage);
  EXPECT_EQ(
      test::RunCommand("REPRISE_ADDRESS=" + server_.address() + " " + reprise + "status").exit_code,
      kExitOk);
  server_.faults().opcode = static_cast<uint8_t>(wire::Opcode::kControl);
  server_.faults().outcome = static_cast<uint8_t>(Outcome::kIo);
  EXPECT_EQ(RepriseJson("status", kExitServerError)["error"]["code"], "data_loss");
  server_.faults().outcome = 0;
  server_.faults().no_reply = true;
  EXPECT_EQ(RepriseJson("status --deadline 50ms", kExitTimeout)["error"]["code"],
            "deadline_exceeded");
}

TEST_F(CliTest, DoctorTellsEveryCheck) {
  const CommandResult result = Reprise("doctor --json --data-dir .");
  const json doctor = json::parse(result.out);
  std::vector<std::string> names;
  for (const json& check : doctor["checks"]) {
    names.push_back(check["check"]);
    EXPECT_NE(check["found"], "");
    EXPECT_EQ(check["level"] == "ok", check["advice"] == "") << check;
  }
  EXPECT_THAT(names, testing::ElementsAre("daemon", "io_uring", "memlock", "huge pages",
                                          "loopback TCP", "rdma", "gpu", "disk"));
  EXPECT_EQ(doctor["checks"][0]["level"], "ok");
  EXPECT_EQ(result.exit_code, doctor["ok"].get<bool>() ? kExitOk : kExitMiss);
}

TEST_F(CliTest, CompletionScriptsKnowVerbsAndOptions) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const CommandResult result = Reprise(std::string("completion ") + shell);
    EXPECT_EQ(result.exit_code, kExitOk);
    for (const char* word : {"status", "explain", "payload", "durable", "deadline", "interval"}) {
      EXPECT_THAT(result.out, HasSubstr(word)) << shell;
    }
    Write(shell, result.out);
  }
  const CommandResult completed = test::RunCommand(
      "bash -c 'source " + Path("bash") +
      "; COMP_WORDS=(reprise put --du); COMP_CWORD=2; _reprise; echo ${COMPREPLY[@]}'");
  EXPECT_EQ(completed.out, "--durable\n");
}

TEST(DoctorChecksTest, Judgements) {
  using Level = Check::Level;
  EXPECT_EQ(JudgeMemlock(true, 0).level, Level::kOk);
  EXPECT_EQ(JudgeMemlock(false, 8_MiB).level, Level::kWarn);
  EXPECT_EQ(JudgeMemlock(false, 1_GiB).level, Level::kOk);
  EXPECT_EQ(JudgeHugePages(0, "always advise [never]").level, Level::kWarn);
  EXPECT_EQ(JudgeHugePages(0, "always [advise] never").level, Level::kOk);
  EXPECT_EQ(JudgeHugePages(5, "").level, Level::kOk);
  EXPECT_EQ(JudgeCongestionControl("cubic", "").level, Level::kOk);
  EXPECT_EQ(JudgeCongestionControl("bbr", "reno").level, Level::kOk);
  EXPECT_EQ(JudgeCongestionControl("bbr", "").level, Level::kWarn);
  EXPECT_EQ(CheckDirectIo("/nonexistent").level, Level::kWarn);
  EXPECT_NE(CheckDirectIo("/proc").level, Level::kOk);
}

TEST(ProgressTest, Lines) {
  using Unit = Progress::Unit;
  EXPECT_EQ(Progress::Line("put", 50, 100, Unit::kCount, kSecond, 200),
            "put [############............] 50% 50 of 100, 50/s, 1.00 s left");
  EXPECT_EQ(Progress::Line("read", 2048, 0, Unit::kBytes, 2 * kSecond, 200),
            "read 2.00 KiB, 1.00 KiB/s");
  EXPECT_EQ(Progress::Line("put", 100, 100, Unit::kCount, 0, 200),
            "put [########################] 100% 100 of 100, 0/s");
  EXPECT_EQ(Progress::Line("put", 1, 3, Unit::kCount, kSecond, 10), "put [#####");
}

TEST(StatusViewTest, UnitsComeFromTheKeys) {
  EXPECT_EQ(ValueText("used_bytes", 1536), "1.50 KiB");
  EXPECT_EQ(ValueText("bytes_read", 17), "17 B");
  EXPECT_EQ(ValueText("uptime_ms", 1500), "1.50 s");
  EXPECT_EQ(ValueText("uptime_seconds", 7), "7.00 s");
  EXPECT_EQ(ValueText("blocks", 1536), "1536");
  EXPECT_EQ(ValueText("share", 0.25), "0.250");
  EXPECT_EQ(ValueText("ready", true), "true");
  const Json status = Json::parse(R"({"a":1,"long":"x","inner":{"b":[1,2]}})");
  EXPECT_EQ(ObjectText(status), "a     1\nlong  x\ninner\n  b\n    1\n    2\n");
}

TEST(StatusViewTest, Rates) {
  const Json before = Json::parse(R"({"tiers":{"ssd":{"bytes_read":0,"blocks":5}},"x":1})");
  const Json now = Json::parse(R"({"tiers":{"ssd":{"bytes_read":4096,"blocks":3}},"x":9})");
  const Json rates = RatesJson(before, now, 2.0);
  EXPECT_EQ(rates["rates_per_second"],
            Json::parse(R"({"tiers.ssd.blocks":-1.0,"tiers.ssd.bytes_read":2048.0})"));
  const std::string text = RatesText(before, now, 2.0);
  EXPECT_THAT(text, HasSubstr("2.00 KiB/s"));
  EXPECT_THAT(text, HasSubstr("-1/s"));
  EXPECT_THAT(text, testing::Not(HasSubstr("x")));
}

}  // namespace
}  // namespace reprise::cli
