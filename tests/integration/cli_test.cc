// The command line tool against a real daemon: exit codes, what a person reads, JSON and nothing
// else.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>

#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"

namespace reprise::test {
namespace {

using testing::HasSubstr;

class CliTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    std::string text;
    for (const TokenId token : chain_.tokens()) text += std::to_string(token) + " ";
    WriteText(Tokens(), text);
    std::string payload;
    for (uint32_t i = 0; i < chain_.size(); ++i) {
      payload += AsText(ConstBytes(chain_.Record(i)).first(chain_.manifest().payload_bytes));
    }
    WriteText(Payload(), payload);
  }
  std::string Tokens() const { return directory() + "/tokens.txt"; }
  std::string Payload() const { return directory() + "/payload"; }

  const Chain chain_{NanoManifest(), 11, 5};
};

TEST_F(CliTest, PutGetExplainVerifyEvict) {
  ASSERT_TRUE(Start({}));
  const std::string got = directory() + "/got";
  const struct {
    std::vector<std::string> arguments;
    int exit_code;
    const char* says;
  } steps[] = {
      {{"explain", "--tokens", Tokens()}, 1, "never_stored"},
      {{"get", "--tokens", Tokens(), "--out", got}, 1, "0 of 5 blocks"},
      {{"put", "--tokens", Tokens(), "--payload", Payload(), "--durable"}, 0, "5 blocks ok"},
      {{"put", "--tokens", Tokens(), "--payload", Payload()}, 0, "5 blocks exists"},
      {{"get", "--tokens", Tokens(), "--out", got}, 0, "5 of 5 blocks"},
      {{"explain", "--tokens", Tokens()}, 0, "hit      5 of 5"},
      {{"verify", "--all"}, 0, "5 blocks checked, 0 failed"},
      {{"verify", "--tokens", Tokens()}, 0, "5 blocks checked, 0 failed"},
      {{"status"}, 0, "nano"},
      {{"evict", "--tokens", Tokens()}, 0, "5 blocks evicted"},
      {{"explain", "--tokens", Tokens()}, 1, "evicted"},
      {{"evict", "--all"}, 0, "0 blocks evicted"},
  };
  for (const auto& step : steps) {
    SCOPED_TRACE(step.arguments[0]);
    const ProgramResult result = RunReprise(step.arguments);
    EXPECT_EQ(result.exit_code, step.exit_code) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr(step.says));
  }
  EXPECT_EQ(ReadText(got), ReadText(Payload()));
}

TEST_F(CliTest, JsonIsOneObjectAndNothingElse) {
  ASSERT_TRUE(Start({}));
  const std::string missing = directory() + "/none";
  const std::pair<std::vector<std::string>, int> verbs[] = {
      {{"status"}, 0},
      {{"put", "--tokens", Tokens(), "--payload", Payload()}, 0},
      {{"get", "--tokens", Tokens(), "--out", directory() + "/got"}, 0},
      {{"explain", "--tokens", Tokens()}, 0},
      {{"verify", "--all"}, 0},
      {{"evict", "--tokens", Tokens()}, 0},
      {{"explain", "--tokens", Tokens()}, 1},
      {{"drive", "--model", "nano", "generated:sessions=2,turns=2,seed=1,system=500,append=300"},
       0},
      {{"get", "--tokens", missing, "--out", directory() + "/got"}, 2},
      {{"put", "--tokens", Tokens(), "--payload", Tokens()}, 2},
      {{"verify"}, 2},
      {{"drive", missing}, 2},
      {{"nonsense"}, 2},
      {{}, 2},
  };
  for (auto [arguments, exit_code] : verbs) {
    SCOPED_TRACE(arguments.empty() ? "(none)" : arguments[0]);
    arguments.insert(arguments.begin(), "--json");
    const ProgramResult result = RunReprise(arguments);
    if (arguments.size() > 2 && arguments.back() == missing) {
      EXPECT_NE(result.exit_code, 0);
    } else {
      EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
    }
    const Json json = Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(json.is_object()) << result.out;
    if (result.exit_code > 1) {
      EXPECT_EQ(json["error"]["exit_code"], result.exit_code) << result.out;
      EXPECT_NE(json["error"]["message"], "") << result.out;
      EXPECT_NE(result.err, "");
    }
  }
}

TEST_F(CliTest, NoDaemonAndADaemonThatHangs) {
  ProgramResult result = RunReprise({"status"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr(socket_path()));
  ASSERT_TRUE(Start({}));
  daemon().Signal(SIGSTOP);
  result = RunReprise({"--deadline", "300ms", "status"});
  daemon().Signal(SIGCONT);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_EQ(RunReprise({"status"}).exit_code, 0);
  Kill();
  EXPECT_EQ(RunReprise({"status"}).exit_code, 3) << "its socket file is still there";
}

TEST_F(CliTest, ABrokenLineOfATraceIsNamed) {
  ASSERT_TRUE(Start({}));
  const std::string trace = directory() + "/trace.jsonl";
  WriteText(
      trace,
      "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}\n"
      "{\"timestamp\": 9, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 3]}\n"
      "{\"timestamp\": 12, \"input_length\": \n"
      "{\"timestamp\": 20, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}\n");
  ProgramResult result = RunReprise({"drive", "--model", "nano", trace});
  EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("trace.jsonl:3"));
  result = RunReprise({"--json", "drive", "--model", "nano", "--lenient", trace});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Json figures = Json::parse(result.out, nullptr, false);
  EXPECT_EQ(figures["config"]["skipped_lines"], 1) << result.out;
  EXPECT_EQ(figures["requests"], 3) << result.out;
}

}  // namespace
}  // namespace reprise::test
