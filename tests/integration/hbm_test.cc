// The HBM tier: what a daemon does with an engine whose memory is its own must be, token by token
// and byte by byte, what it does with one that reads blocks where the store has them.
#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <thread>

#include "client/session/api_client.h"
#include "protocol/record/record.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/data_files.h"

namespace reprise::test {
namespace {

using testing::HasSubstr;
using Body = ApiClient::Json;

constexpr uint32_t kRecordBytes = 28672;  // nano's.

class HbmTest : public DaemonTest {
 protected:
  static DaemonConfig Config(const std::string& program, const std::string& more = "") {
    return {.dram_bytes = "32MiB",
            .window_bytes = "32MiB",
            .http = "127.0.0.1:0",
            .program = program,
            .engine = "nano",
            .more = "threads = 1\n" + more};
  }
  std::unique_ptr<ApiClient> Api() {
    auto api = ApiClient::Create(
        {.url = "http://127.0.0.1:" + std::to_string(daemon().http_port()), .key = {}});
    EXPECT_TRUE(api.ok());
    return *std::move(api);
  }
  Body Complete(const std::string& prompt, Body more = Body::object()) {
    more["model"] = "nano";
    more["prompt"] = prompt;
    if (!more.contains("max_tokens")) more["max_tokens"] = 24;
    if (!more.contains("temperature")) more["temperature"] = 0;
    const auto answer = Api()->Post("/v1/completions", more);
    EXPECT_TRUE(answer.ok()) << answer.status() << daemon().log();
    return answer.ok() ? *answer : Body::object();
  }
  static std::string TextOf(const Body& answer) {
    std::string text;
    for (const Body& choice : answer["choices"]) text += choice["text"].get<std::string>() + "|";
    return text;
  }
  Body HttpStatus() {
    const std::string text = HttpGet(daemon().http_port(), "/status");
    const size_t body = text.find("\r\n\r\n");
    return Body::parse(text.substr(body == std::string::npos ? 0 : body + 4));
  }
  Body Serving() { return HttpStatus()["serving"]; }
  Body Hbm() { return HttpStatus()["tiers"]["hbm"]; }
  bool BecomesIdle() {
    return Eventually([this] {
      const Body serving = Serving();
      return serving["running"] == 0 && serving["waiting"] == 0 &&
             serving["buffers_reserved"] == 0 && Hbm()["slots_reserved"] == 0;
    });
  }
  void Clean() { std::filesystem::remove_all(data_dir()); }
  // Every record on disk, without when it was made: by its key.
  std::map<std::string, std::string> RecordsOnDisk() const {
    std::map<std::string, std::string> records;
    const std::string file = ReadText(data_dir() + "/shard-0.data");
    for (size_t at = 0; at + kRecordBytes <= file.size(); at += 4096) {
      const ConstBytes record(reinterpret_cast<const std::byte*>(file.data()) + at, kRecordBytes);
      RecordHeader header = LoadRecordHeader(record);
      if (header.magic != kRecordMagic || header.record_bytes != kRecordBytes) continue;
      if (VerifyRecord(record, KeyOf(header.block_hash)) != Outcome::kOk) continue;
      header.created_ms = 0;
      header.header_crc = 0;
      std::string bytes = file.substr(at, kRecordBytes);
      std::memcpy(bytes.data() + kRecordBytes - kRecordTailBytes, &header, sizeof(header));
      records[ToHex(header.block_hash)] = bytes;
    }
    return records;
  }
};

std::string Text(char letter, size_t count) {
  std::string text;
  for (size_t i = 0; text.size() < count; ++i) {
    text += std::string(1, letter) + " is item " + std::to_string(i * 7) + " of the list. ";
  }
  text.resize(count);
  return text;
}

TEST_F(HbmTest, TokensAndBytesAreThoseOfAnInPlaceRun) {
  const std::string common = Text('a', 700);
  struct Case {
    std::string prompt;
    Body more;
  };
  const std::vector<Case> cases = {
      {common + Text('b', 100), {}},
      {common + Text('b', 100), {}},                  // All of it was there.
      {common + Text('c', 300), {}},                  // A fork.
      {common + Text('c', 300) + Text('d', 10), {}},  // A short suffix.
      {common + Text('e', 40), {{"n", 3}, {"temperature", 0.9}, {"seed", 5}}},
      {common + Text('f', 500), {{"reprise", {{"exact", true}}}}},
      {common + Text('f', 500) + "x", {{"reprise", {{"write_cache", false}}}}},
      {Text('g', 300), {{"reprise", {{"read_cache", false}}}}},
      {Text('g', 300) + Text('h', 900), {{"max_tokens", 200}}},
  };
  std::vector<std::string> want;
  std::vector<Body> reports;
  std::map<std::string, std::string> records;
  for (const std::string program : {"reprised", "reprised_arena"}) {
    SCOPED_TRACE(program);
    ASSERT_TRUE(Start(Config(program)));
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(i);
      const Body answer = Complete(cases[i].prompt, cases[i].more);
      Body report = answer["reprise"];
      if (program == "reprised") {
        want.push_back(TextOf(answer));
        reports.push_back(report);
        continue;
      }
      EXPECT_EQ(TextOf(answer), want[i]);
      for (const char* same : {"hit_tokens", "window", "exactness", "replayed_tokens",
                               "computed_tokens", "stored_bytes"}) {
        EXPECT_EQ(report[same], reports[i][same]) << same;
      }
      EXPECT_EQ(report["hit_blocks_by_tier"]["dram"], 0);  // All of it is in HBM since it was made.
      EXPECT_EQ(report["hit_blocks_by_tier"]["hbm"], report["hit_tokens"].get<int>() / 128);
    }
    EXPECT_TRUE(BecomesIdle()) << Serving().dump(2);
    EXPECT_EQ(Serving()["counters"]["publish_failures"], 0);
    Stop();
    if (program == "reprised") {
      records = RecordsOnDisk();
      EXPECT_GE(records.size(), 20u);
    } else {
      EXPECT_EQ(RecordsOnDisk(), records);
    }
    Clean();
  }
}

TEST_F(HbmTest, BlocksComeBackFromDramAndSsd) {
  ASSERT_TRUE(Start(Config("reprised_arena")));
  const std::string prompt = Text('a', 1000);
  const Body first = Complete(prompt);
  const Body second = Complete(prompt);
  EXPECT_EQ(TextOf(second), TextOf(first));
  EXPECT_EQ(second["reprise"]["hit_blocks_by_tier"]["hbm"], 7);
  EXPECT_EQ(Hbm()["loaded_blocks"], 0);
  Stop();
  ASSERT_TRUE(Start(Config("reprised_arena")));
  const Body third = Complete(prompt);
  EXPECT_EQ(TextOf(third), TextOf(first));
  EXPECT_EQ(third["reprise"]["hit_blocks_by_tier"]["ssd"], 7);
  EXPECT_EQ(Hbm()["loaded_blocks"], 7);
  EXPECT_EQ(Complete(prompt)["reprise"]["hit_blocks_by_tier"]["hbm"], 7);
  EXPECT_TRUE(BecomesIdle());
  const std::string metrics = HttpGet(daemon().http_port(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("reprise_hbm_loads_total 7"));
  EXPECT_THAT(metrics, HasSubstr("reprise_engine_hit_blocks_total{tier=\"hbm\"} 7"));
}

// Room for two requests at once: everything else must leave, and comes back from DRAM.
TEST_F(HbmTest, ATinyTierEvictsAndAnswersTheSame) {
  const std::string more = "load_gate = false\n";
  std::vector<std::string> prompts, cold, replayed;
  for (const char letter : {'a', 'b', 'c', 'd', 'e', 'f'}) prompts.push_back(Text(letter, 900));
  ASSERT_TRUE(Start(Config("reprised", more)));
  for (const std::string& prompt : prompts) cold.push_back(TextOf(Complete(prompt)));
  for (const std::string& prompt : prompts) replayed.push_back(TextOf(Complete(prompt)));
  Stop();
  Clean();
  ASSERT_TRUE(Start(Config("reprised_arena", more + "hbm_bytes = \"500KiB\"\n")));
  EXPECT_EQ(Hbm()["slots"], 18);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> clients;
    std::vector<std::string> got(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      clients.emplace_back([&, i] { got[i] = TextOf(Complete(prompts[i])); });
    }
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(got, round == 0 ? cold : replayed);
  }
  EXPECT_TRUE(BecomesIdle()) << Serving().dump(2);
  const Body hbm = Hbm();
  EXPECT_GT(hbm["evictions"].get<int>(), 20);
  EXPECT_GT(hbm["loaded_blocks"].get<int>(), 0);
  EXPECT_LE(hbm["blocks"].get<int>(), 18);
  EXPECT_EQ(Status()["tiers"]["dram"]["pinned_blocks"], 0);
  // What can never fit is refused, and says what to do.
  const auto refused = Api()->Post(
      "/v1/completions", {{"model", "nano"}, {"prompt", Text('z', 900)}, {"max_tokens", 3000}});
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("raise engine.hbm_bytes"));
}

// A tenant at its quota: the store takes nothing more, and what leaves HBM is offered once more.
TEST_F(HbmTest, WhatTheStoreDidNotTakeIsOfferedAgain) {
  DaemonConfig config = Config("reprised_arena", "hbm_bytes = \"500KiB\"\n");
  config.quota[""] = "100KiB";
  ASSERT_TRUE(Start(config));
  std::vector<std::string> texts;
  for (int round = 0; round < 2; ++round) {
    for (const char letter : {'a', 'b', 'c'}) texts.push_back(TextOf(Complete(Text(letter, 900))));
  }
  EXPECT_EQ(texts[3], texts[0]);
  EXPECT_TRUE(BecomesIdle());
  EXPECT_GT(Hbm()["stored_out"].get<int>(), 5);
  EXPECT_GT(Serving()["counters"]["publish_failures"].get<int>(), 10);
}

// While blocks are read and copied in, for itself and for others.
TEST_F(HbmTest, ClientsThatVanishWhileTheirHitIsLoaded) {
  const std::string prompt = Text('a', 5000);
  ASSERT_TRUE(Start(Config("reprised_arena")));
  Complete(prompt);
  const std::string want = TextOf(Complete(prompt));
  for (int round = 0; round < 4; ++round) {
    Stop();
    ASSERT_TRUE(Start(Config("reprised_arena")));
    std::vector<std::thread> clients;
    std::vector<std::string> got(2);
    for (size_t i = 0; i < 6; ++i) {
      clients.emplace_back([&, i] {
        if (i % 3 == 0) {
          got[i / 3] = TextOf(Complete(prompt));
          return;
        }
        // Before, in the middle of, or after the load.
        const auto vanished = ApiClient::Create(
            {.url = "http://127.0.0.1:" + std::to_string(daemon().http_port()), .key = {}});
        (void)(*vanished)->PostStream(
            "/v1/completions",
            {{"model", "nano"}, {"prompt", prompt}, {"max_tokens", 500}, {"stream", true}},
            [](const Body&) { return false; });
      });
    }
    for (std::thread& client : clients) client.join();
    for (const std::string& text : got) EXPECT_EQ(text, want);
    EXPECT_TRUE(BecomesIdle()) << Serving().dump(2);
    EXPECT_EQ(Status()["tiers"]["dram"]["pinned_blocks"], 0);
  }
}

TEST_F(HbmTest, WhatTheStoreNoLongerHasIsNoHit) {
  ASSERT_TRUE(Start(Config("reprised_arena")));
  const std::string http = "http://127.0.0.1:" + std::to_string(daemon().http_port());
  ASSERT_TRUE(Api()->Post("/v1/sessions", {{"name", "s"}}).ok());
  const auto send = [this] {
    return *Api()->Post("/v1/sessions/s/send", {{"content", Text('a', 600)}, {"temperature", 0}});
  };
  send();
  EXPECT_GE(send()["reprise"]["hit_blocks_by_tier"]["hbm"].get<int>(), 5);
  EXPECT_TRUE(BecomesIdle());
  EXPECT_GE(Hbm()["blocks"].get<int>(), 9);
  const std::string file = directory() + "/s.rpsession";
  ASSERT_EQ(RunReprise({"session", "export", "s", file, "--http", http}).exit_code, 0);
  const auto client = Connect();
  const uint32_t name_space = *client->OpenNamespace(ManifestOfSessionFile(ReadText(file)));
  EXPECT_GE(*client->EvictNamespace(name_space), 9u);
  EXPECT_EQ(send()["reprise"]["hit_blocks_by_tier"]["hbm"], 0);
}

TEST_F(HbmTest, ATierThatCannotBeMadeIsRefused) {
  DaemonConfig config = Config("reprised", "device = \"cuda\"\n");
  EXPECT_THAT(StartRefused(config), HasSubstr("compute capability 9.0"));
  config = Config("reprised", "device = \"tpu\"\n");
  EXPECT_THAT(StartRefused(config), HasSubstr("engine.device"));
}

}  // namespace
}  // namespace reprise::test
