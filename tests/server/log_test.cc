#include "server/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

namespace reprise::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class LogTest : public ::testing::Test {
 protected:
  void SetUp() override { file_ = std::tmpfile(); }
  void TearDown() override {
    LogStart({});
    std::fclose(file_);
  }

  void Start(LogLevel level, bool json) { LogStart({.level = level, .json = json, .out = file_}); }

  std::vector<std::string> Lines() {
    std::fflush(file_);
    std::rewind(file_);
    std::vector<std::string> lines;
    char line[4096];
    while (std::fgets(line, sizeof(line), file_) != nullptr) lines.emplace_back(line);
    return lines;
  }

  std::FILE* file_ = nullptr;
};

TEST_F(LogTest, TextLinesQuoteWhatIsNotOneWord) {
  Start(LogLevel::kInfo, false);
  LogInfo("ready", {{"blocks", 81'920},
                    {"startup", "1.20 s"},
                    {"path", std::string("/a/b")},
                    {"ok", true},
                    {"rate", 0.5},
                    {"empty", ""},
                    {"odd", "a=\"b\"\n\\\x01\xc3"}});
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0],
              MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z info ready .*\n"));
  EXPECT_THAT(lines[0],
              EndsWith(" info ready blocks=81920 startup=\"1.20 s\" path=/a/b ok=true rate=0.5 "
                       "empty=\"\" odd=\"a=\\\"b\\\"\\n\\\\\\u0001\\u00c3\"\n"));
}

TEST_F(LogTest, JsonLinesKeepNumbersAsNumbers) {
  Start(LogLevel::kDebug, true);
  LogDebug("event", {{"count", -3}, {"text", "a \"b\""}, {"flag", false}, {"nan", std::nan("")}});
  LogError("failed", {{"error", InvalidArgument("no {} such")}});
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], MatchesRegex("\\{\"time\":\"[0-9T:.-]+Z\",.*\\}\n"));
  EXPECT_THAT(
      lines[0],
      EndsWith(",\"level\":\"debug\",\"event\":\"event\",\"count\":-3,\"text\":\"a \\\"b\\\"\","
               "\"flag\":false,\"nan\":\"nan\"}\n"));
  EXPECT_THAT(lines[1],
              HasSubstr("\"level\":\"error\",\"event\":\"failed\",\"error\":\"no {} such\"}"));
}

TEST_F(LogTest, LevelsBelowAreLeftOut) {
  Start(LogLevel::kWarning, false);
  LogDebug("a");
  LogInfo("b");
  LogWarning("c");
  LogError("d");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], EndsWith(" warning c\n"));
  EXPECT_THAT(lines[1], EndsWith(" error d\n"));
  EXPECT_EQ(*ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_THAT(Message(ParseLogLevel("loud").status()),
              HasSubstr("\"loud\" is not a log level; use debug"));
}

TEST_F(LogTest, LimiterLetsABurstThroughThenOneASecondAndCountsTheRest) {
  Start(LogLevel::kInfo, false);
  LogLimiter limiter(3);
  Instant now = 100 * kSecond;
  for (int i = 0; i < 10; ++i) limiter.Warning(now, "failed_check", {{"i", i}});
  EXPECT_EQ(Lines().size(), 3u);
  EXPECT_EQ(limiter.suppressed_total(), 7u);
  limiter.Warning(now + kSecond - 1, "failed_check", {});
  EXPECT_EQ(Lines().size(), 3u);
  limiter.Warning(now + kSecond, "failed_check", {{"block", "ab"}});
  EXPECT_THAT(Lines().back(), EndsWith(" warning failed_check block=ab suppressed=8\n"));
  limiter.Warning(now + 100 * kSecond, "failed_check", {});
  EXPECT_THAT(Lines().back(), EndsWith(" warning failed_check\n"));
  for (int i = 0; i < 10; ++i) limiter.Warning(now + 100 * kSecond, "failed_check", {});
  EXPECT_EQ(Lines().size(), 3u + 2 + 2) << "no more than the burst after a long quiet";
}

TEST_F(LogTest, LinesOfManyThreadsStayWhole) {
  Start(LogLevel::kInfo, false);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 250; ++i) LogInfo("tick", {{"thread", t}, {"i", i}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 1000u);
  for (const auto& line : lines)
    EXPECT_THAT(line, MatchesRegex(".* info tick thread=[0-9] i=[0-9]+\n"));
}

}  // namespace
}  // namespace reprise::server
