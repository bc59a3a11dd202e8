// Sessions over HTTP: what a pause, a restart and a crash change, and what they do not.
#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "client/session/api_client.h"
#include "protocol/identity/manifest.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/data_files.h"
#include "tests/integration/small_disk.h"

namespace reprise::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using Body = ApiClient::Json;

constexpr const char* kMessages[] = {
    "Remember: the zulo port is 4312.", "Remember: the mika owner is bakola.",
    "What is the zulo port?",           "Compute 47*12.",
    "What is the mika owner?",          "Note that the rano level is 77."};

class SessionTest : public DaemonTest {
 protected:
  DaemonConfig Config() const {
    return {
        .dram_bytes = "32MiB", .window_bytes = "32MiB", .http = "127.0.0.1:0", .engine = "nano"};
  }
  std::unique_ptr<ApiClient> Api(const std::string& key = "") {
    auto api = ApiClient::Create(
        {.url = "http://127.0.0.1:" + std::to_string(daemon().http_port()), .key = key});
    EXPECT_TRUE(api.ok());
    return *std::move(api);
  }
  // The answer to one message, as /send gives it.
  Body Send(const std::string& session, const std::string& content, Body more = Body::object()) {
    more["content"] = content;
    more["temperature"] = 0;
    const auto answer = Api()->Post("/v1/sessions/" + session + "/send", more);
    EXPECT_TRUE(answer.ok()) << answer.status() << daemon().log();
    return answer.ok() ? *answer : Body::object();
  }
  // What the model said: calls have other ids every time.
  static std::string TextOf(const Body& answer) {
    Body message = answer["choices"][0]["message"];
    if (message.contains("tool_calls")) {
      for (Body& call : message["tool_calls"]) call.erase("id");
    }
    return message.dump();
  }
  void New(const std::string& name) {
    const auto made = Api()->Post("/v1/sessions", {{"name", name}});
    ASSERT_TRUE(made.ok()) << made.status();
  }
  Body Serving() {
    const std::string text = HttpGet(daemon().http_port(), "/status");
    const size_t body = text.find("\r\n\r\n");
    return Body::parse(text.substr(body == std::string::npos ? 0 : body + 4))["serving"];
  }
  // What names the session's blocks, from its exported file.
  Manifest ExportedManifest(const std::string& session) {
    const std::string file = directory() + "/" + session + ".rpsession";
    EXPECT_EQ(RunReprise({"session", "export", session, file, "--http",
                          "http://127.0.0.1:" + std::to_string(daemon().http_port())})
                  .exit_code,
              0);
    return ManifestOfSessionFile(ReadText(file));
  }
  static BlockKey KeyFrom(const Body& block) {
    return LoadLe<BlockKey>(BytesFromHex(block["key"]).data());
  }
  bool BecomesIdle() {
    return Eventually([this] {
      const Body serving = Serving();
      return serving["running"] == 0 && serving["waiting"] == 0 && serving["buffers_reserved"] == 0;
    });
  }
};

TEST_F(SessionTest, RestartsInBetweenChangeNothing) {
  std::vector<std::string> want;
  ASSERT_TRUE(Start(Config()));
  New("s");
  for (const char* message : kMessages) want.push_back(TextOf(Send("s", message)));
  Stop();
  std::filesystem::remove_all(data_dir());
  for (size_t i = 0; i < std::size(kMessages); ++i) {
    ASSERT_TRUE(Start(Config()));
    if (i == 0) New("s");
    const Body answer = Send("s", kMessages[i]);
    EXPECT_EQ(TextOf(answer), want[i]);
    EXPECT_EQ(answer["reprise"]["window"], i == 0 ? "cold" : "found") << i;
    EXPECT_EQ(answer["reprise"]["exactness"], "exact");
    Stop();
  }
}

TEST_F(SessionTest, AfterTheTtlAWindowIsReplayed) {
  DaemonConfig config = Config();
  config.window_ttl = "1s";
  ASSERT_TRUE(Start(config));
  New("s");
  for (const char* message : kMessages) Send("s", message);
  SleepFor(1200 * kMillisecond);
  const Body answer = Send("s", "What is the zulo port?");
  const Body& report = answer["reprise"];
  EXPECT_EQ(report["window"], "replayed");
  EXPECT_EQ(report["exactness"], "replayed");
  EXPECT_EQ(report["replayed_tokens"], 128);
  EXPECT_EQ(report["hit_tokens"].get<int>() % 128, 0);
  EXPECT_THAT(TextOf(answer), HasSubstr("4312"));
  // What was computed after it is marked, also when its window is found.
  EXPECT_EQ(Send("s", "Compute 5*6.")["reprise"]["exactness"], "replayed");
  // Asked for exactly, it is as if nothing had been lost.
  SleepFor(1200 * kMillisecond);
  const Body exact = Send("s", "What is the mika owner?", {{"reprise", {{"exact", true}}}});
  EXPECT_THAT(exact["reprise"]["window"].get<std::string>(), AnyOf("rebuilt", "cold"));
  EXPECT_EQ(exact["reprise"]["exactness"], "exact");
  const std::string metrics = HttpGet(daemon().http_port(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("reprise_engine_answers_total{exactness=\"replayed\"} 2"));
  EXPECT_THAT(metrics, HasSubstr("reprise_engine_windows_total{window=\"replayed\"} 1"));
}

TEST_F(SessionTest, AKillLosesWindowsAndNoBlocks) {
  ASSERT_TRUE(Start(Config()));
  New("s");
  for (const char* message : kMessages) Send("s", message);
  Kill();
  ASSERT_TRUE(Start(Config()));
  const Body answer = Send("s", "What is the zulo port?");
  const Body& report = answer["reprise"];
  EXPECT_EQ(report["window"], "replayed");
  EXPECT_EQ(report["hit_blocks_by_tier"]["dram"], 0);
  EXPECT_EQ(report["hit_blocks_by_tier"]["ssd"].get<int>() * 128, report["hit_tokens"].get<int>());
  EXPECT_GE(report["hit_tokens"].get<int>(), 128);
  EXPECT_THAT(TextOf(answer), HasSubstr("4312"));
}

// Nothing of a window is on disk, and a block's bytes are all that a session leaves there.
TEST_F(SessionTest, OnlyBlocksAreOnDisk) {
  ASSERT_TRUE(Start(Config()));
  New("s");
  uint32_t tokens = 0;
  for (const char* message : kMessages) tokens = Send("s", message)["usage"]["total_tokens"];
  const Json status = Status();
  const uint64_t blocks = status["tiers"]["ssd"]["blocks"];
  EXPECT_LE(blocks, (tokens + 127) / 128);
  EXPECT_EQ(status["tiers"]["ssd"]["used_bytes"], blocks * 28672);
  EXPECT_GT(status["window_pool"]["snapshots"], 0);
}

TEST_F(SessionTest, ForkExportImport) {
  ASSERT_TRUE(Start(Config()));
  New("s");
  for (const char* message : kMessages) Send("s", message);
  ASSERT_TRUE(Api()->Post("/v1/sessions/s/fork", {{"name", "f"}}).ok());
  const Body forked = Send("f", "What is the zulo port?");
  EXPECT_EQ(forked["reprise"]["window"], "found");
  const std::string file = directory() + "/s.rpsession";
  ASSERT_EQ(RunReprise({"session", "export", "s", file, "--http",
                        "http://127.0.0.1:" + std::to_string(daemon().http_port())})
                .exit_code,
            0);
  Stop();
  std::filesystem::remove_all(data_dir());
  ASSERT_TRUE(Start(Config()));
  const std::string http = "http://127.0.0.1:" + std::to_string(daemon().http_port());
  const auto import = [&](const std::string& path) {
    return RunReprise({"session", "import", path, "--http", http});
  };
  // Cut short, altered, of other weights: refused, and said why.
  const std::string content = ReadText(file);
  const std::string bad = directory() + "/bad";
  WriteText(bad, content.substr(0, content.size() - 1000));
  EXPECT_THAT(import(bad).err, HasSubstr("cut short"));
  std::string altered = content;
  altered[content.size() - 20'000] ^= 1;
  WriteText(bad, altered);
  EXPECT_THAT(import(bad).err, HasSubstr("altered"));
  const auto header_bytes =
      LoadLe<uint64_t>(reinterpret_cast<const std::byte*>(content.data()) + 8);
  Body header = HeaderOfSessionFile(content);
  Manifest manifest = ManifestOfSessionFile(content);
  manifest.weights_digest = std::string(manifest.weights_digest.size(), 'a');
  header["manifest"] = ToHex(AsBytes(std::string_view(EncodeManifest(manifest))));
  WriteText(bad, content.substr(0, 16) + header.dump() + content.substr(16 + header_bytes));
  EXPECT_THAT(import(bad).err, HasSubstr("differs in weights_digest"));
  WriteText(bad, "something else altogether");
  EXPECT_THAT(import(bad).err, HasSubstr("no session file"));
  EXPECT_EQ((*Api()->Get("/v1/sessions"))["data"].size(), 0u);
  // As it is: the blocks are there.
  ASSERT_EQ(import(file).exit_code, 0);
  const Body answer = Send("s", "What is the zulo port?");
  EXPECT_EQ(answer["reprise"]["window"], "replayed");
  EXPECT_GE(answer["reprise"]["hit_tokens"].get<int>(), 256);
  EXPECT_THAT(TextOf(answer), HasSubstr("4312"));
  const ProgramResult again = import(file);
  EXPECT_NE(again.exit_code, 0);
  EXPECT_THAT(again.err, HasSubstr("exists already"));
}

// A block that cannot be read is computed again, and nobody notices but the counters.
TEST_F(SessionTest, ADamagedBlockIsComputedAgain) {
  ASSERT_TRUE(Start(Config()));
  New("s");
  for (const char* message : kMessages) Send("s", message);
  const Body blocks = *Api()->Get("/v1/sessions/s/blocks");
  // Fills the region, which is sealed then: the next start reads its trailer, not its records.
  ASSERT_TRUE(
      Api()
          ->Post("/v1/completions",
                 {{"model", "nano"}, {"prompt", std::string(128 * 40, 'f')}, {"max_tokens", 1}})
          .ok());
  ASSERT_TRUE(BecomesIdle());  // An answer may come before its blocks are stored.
  Kill();
  const ShardFile file(data_dir() + "/shard-0.data", 28672, 1_MiB);
  const BlockKey key = KeyFrom(blocks["blocks"][1]);
  file.FlipBit(file.Find(key).value().offset + 5000);
  ASSERT_TRUE(Start(Config()));
  const Body answer = Send("s", "What is the zulo port?");
  EXPECT_THAT(TextOf(answer), HasSubstr("4312"));
  EXPECT_LE(answer["reprise"]["hit_tokens"].get<int>(), 128);
  EXPECT_TRUE(Eventually([this] { return Serving()["counters"]["load_shortfalls"] == 1; }));
  // It is stored again.
  EXPECT_GE(Send("s", "Compute 2+2.")["reprise"]["hit_tokens"].get<int>(), 256);
}

// Somebody else's client may store anything under the key of a session's window.
TEST_F(SessionTest, ASnapshotThatFailsItsCheckIsReplayed) {
  ASSERT_TRUE(Start(Config()));
  New("s");
  for (const char* message : kMessages) Send("s", message);
  const Manifest manifest = ExportedManifest("s");
  const Body blocks = (*Api()->Get("/v1/sessions/s/blocks"))["blocks"];
  ASSERT_GE(blocks.size(), 2u);
  const wire::WindowKey end{KeyFrom(blocks.back()), blocks.size() * kBlockTokens};
  // A right beginning and no more, and no sense at all.
  std::string begun("RPSS\1\0\0\0", 8);
  begun.resize(200'000, 'w');
  struct Case {
    std::string name, snapshot, question, answer;  // Other questions: nothing more is stored.
  };
  for (const Case& bad : {Case{"f", std::string(5, 'x'), "What is the zulo port?", "4312"},
                          Case{"g", std::string(200'000, 'x'), "What is the mika owner?", "bakola"},
                          Case{"h", begun, "What is the rano level?", "77"}}) {
    Kill();  // Loses the good one.
    ASSERT_TRUE(Start(Config()));
    const auto client = Connect();
    const uint32_t name_space = *client->OpenNamespace(manifest);
    const auto snapshot = AsBytes(std::string_view(bad.snapshot));
    ASSERT_EQ(*client->PutWindow(name_space, end, 0, snapshot), Outcome::kOk);
    ASSERT_TRUE(Api()->Post("/v1/sessions/s/fork", {{"name", bad.name}}).ok());
    const Body reply = Send(bad.name, bad.question);
    EXPECT_EQ(reply["reprise"]["window"], "replayed");
    EXPECT_EQ(reply["reprise"]["hit_tokens"], end.position);
    EXPECT_THAT(TextOf(reply), HasSubstr(bad.answer));
    EXPECT_EQ(Serving()["counters"]["bad_windows"], 1);
    EXPECT_THAT(daemon().log(), HasSubstr("bad_window"));
  }
}

// The disk takes nothing more while turns are published: answers go on and say the same, and what
// was not stored is computed again.
TEST_F(SessionTest, ADiskThatFailsWhilePublishingCostsNoAnswer) {
  SmallDisk disk(directory(), data_dir());
  if (!disk.EnterNamespace() || !disk.MountFailing()) {
    GTEST_SKIP() << "needs root, a mount namespace, a tmpfs and loop devices";
  }
  const auto complete = [this](char letter) {
    const auto answer =
        Api()->Post("/v1/completions", {{"model", "nano"},
                                        {"prompt", std::string(128 * 40 + 5, letter)},
                                        {"max_tokens", 8},
                                        {"temperature", 0}});
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? (*answer)["choices"][0]["text"].get<std::string>() : "";
  };
  std::vector<std::string> want;
  ASSERT_TRUE(Start(Config()));
  for (const char letter : {'a', 'b', 'c', 'd'}) want.push_back(complete(letter));
  Stop();
  for (const auto& entry : std::filesystem::directory_iterator(data_dir())) {
    std::filesystem::remove_all(entry.path());
  }
  ASSERT_TRUE(Start(Config()));
  disk.FailWrites();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_EQ(complete(static_cast<char>('a' + i)), want[i]);
  }
  EXPECT_GT(Serving()["counters"]["publish_failures"], 0) << "no write failed";
  EXPECT_TRUE(BecomesIdle());
  EXPECT_TRUE(Eventually([this] { return Status()["tiers"]["dram"]["pinned_blocks"] == 0; }));
  EndDaemon();
}

TEST_F(SessionTest, AClientThatVanishesFreesEverything) {
  ASSERT_TRUE(Start(Config()));
  for (int i = 0; i < 6; ++i) {
    uint32_t chunks = 0;
    const absl::Status status =
        Api()->PostStream("/v1/completions",
                          {{"model", "nano"},
                           {"prompt", "The list of all"},
                           {"max_tokens", 20'000},
                           {"stream", true},
                           {"temperature", 1}},
                          [&](const Body& chunk) {
                            return chunk.is_null() || ++chunks < static_cast<uint32_t>(3 + i);
                          });
    EXPECT_TRUE(status.code() == absl::StatusCode::kCancelled || status.ok()) << status;
  }
  EXPECT_TRUE(BecomesIdle()) << Serving().dump(2);
  EXPECT_TRUE(Eventually([this] { return Status()["tiers"]["dram"]["pinned_blocks"] == 0; }));
}

TEST_F(SessionTest, MoreRequestsThanPlacesAreRefusedPolitely) {
  DaemonConfig config = Config();
  config.more = "sequences_max = 2\nwaiting_max = 6\n";
  ASSERT_TRUE(Start(config));
  const std::string http = "http://127.0.0.1:" + std::to_string(daemon().http_port());
  std::atomic<int> answered = 0, refused = 0, other = 0;
  std::vector<std::thread> clients;
  constexpr int kClients = 40, kRequests = 25;  // A thousand.
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      for (int k = 0; k < kRequests; ++k) {
        const Instant begin = SystemClock().Now();
        auto api = *ApiClient::Create({.url = http, .key = {}});
        const auto answer =
            api->Post("/v1/completions", {{"model", "nano"}, {"prompt", "a"}, {"max_tokens", 2}});
        if (answer.ok()) {
          ++answered;
        } else if (answer.status().code() == absl::StatusCode::kResourceExhausted) {
          ++refused;
        } else {
          ++other;
          ADD_FAILURE() << answer.status() << " after "
                        << (SystemClock().Now() - begin) / kMillisecond << " ms";
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answered + refused, kClients * kRequests);
  EXPECT_GT(answered, 0);
  EXPECT_GT(refused, 0);
  EXPECT_TRUE(BecomesIdle());
  EXPECT_TRUE(Eventually([&] { return Serving()["counters"]["refused"] == refused.load(); }));
}

TEST_F(SessionTest, KeysAndTenants) {
  DaemonConfig config = Config();
  WriteText(directory() + "/keys", "key-of-alice alice\nkey-of-bob bob # comment\n");
  config.more = "[api]\nkeys_file = \"" + directory() + "/keys\"\nbody_bytes_max = \"64KiB\"\n";
  ASSERT_TRUE(Start(config));
  EXPECT_EQ(Api()->Get("/v1/models").status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Api("key-of-carol")->Get("/v1/models").status().code(),
            absl::StatusCode::kPermissionDenied);
  const Body request = {{"model", "nano"}, {"prompt", std::string(600, 'x')}, {"max_tokens", 1}};
  const auto hit = [&](const std::string& key) {
    const auto answer = Api(key)->Post("/v1/completions", request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? (*answer)["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>()
                       : -1;
  };
  EXPECT_EQ(hit("key-of-alice"), 0);
  EXPECT_GT(hit("key-of-alice"), 0);
  EXPECT_EQ(hit("key-of-bob"), 0);  // Sees nothing of hers.
  ASSERT_TRUE(Api("key-of-alice")->Post("/v1/sessions", {{"name", "mine"}}).ok());
  EXPECT_EQ((*Api("key-of-bob")->Get("/v1/sessions"))["data"].size(), 0u);
  EXPECT_FALSE(Api("key-of-bob")->Get("/v1/sessions/mine").ok());
  // Bodies are bounded, wherever they go.
  const Body huge = {{"model", "nano"}, {"prompt", std::string(100'000, 'x')}};
  for (const char* path : {"/v1/completions", "/v1/sessions"}) {
    EXPECT_EQ(Api("key-of-bob")->Post(path, huge).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(Api("key-of-bob")->Post("/nowhere", huge).ok());
}

// A sampled request is computed again with exact windows, when nobody waits.
TEST_F(SessionTest, TheShadowTellsWhatReplayCosts) {
  DaemonConfig config = Config();
  config.window_ttl = "1s";
  config.more = "shadow_permille = 1000\n";
  ASSERT_TRUE(Start(config));
  New("s");
  for (const char* message : kMessages) Send("s", message);
  SleepFor(1200 * kMillisecond);
  EXPECT_EQ(Send("s", "What is the zulo port?")["reprise"]["window"], "replayed");
  EXPECT_TRUE(Eventually([this] { return Serving()["counters"]["shadow_requests"] == 1; }));
  const Body counters = Serving()["counters"];
  EXPECT_GT(counters["shadow_tokens"], 5);
  EXPECT_GE(counters["shadow_tokens"], counters["shadow_agreed"]);
  EXPECT_GE(counters["shadow_kl_nats"].get<double>(), 0);
  EXPECT_TRUE(BecomesIdle());
}

// Two requests that leave a stored prefix at the same place: the third finds a window there.
TEST_F(SessionTest, AForkOfACommonPrefixGetsASnapshot) {
  DaemonConfig config = Config();
  config.window_ttl = "600s";
  ASSERT_TRUE(Start(config));
  const std::string common(128 * 4 - 1, 'k');  // With <bos>, four blocks.
  std::vector<std::string> windows;
  for (const char* end : {"first", "second", "third", "fourth"}) {
    const auto answer =
        Api()->Post("/v1/completions", {{"model", "nano"},
                                        {"prompt", common + end + std::string(300, *end)},
                                        {"max_tokens", 1},
                                        {"temperature", 0}});
    ASSERT_TRUE(answer.ok()) << answer.status();
    windows.push_back((*answer)["reprise"]["window"]);
  }
  EXPECT_EQ(windows, (std::vector<std::string>{"cold", "replayed", "replayed", "found"}));
}

// No room on the SSD tier for a single block more than a few: the oldest leave, answers go on.
TEST_F(SessionTest, AFullStoreEvictsAndAnswersGoOn) {
  DaemonConfig config = Config();
  config.dram_bytes = "256KiB";  // 9 blocks,
  config.ssd_bytes = "3MiB";     // and 72.
  ASSERT_TRUE(Start(config));
  for (int i = 0; i < 4; ++i) {
    const auto answer = Api()->Post("/v1/completions",
                                    {{"model", "nano"},
                                     {"prompt", std::string(128 * 40, static_cast<char>('a' + i))},
                                     {"max_tokens", 2},
                                     {"temperature", 0}});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ((*answer)["usage"]["completion_tokens"], 2);
  }
  const Json status = Status();
  EXPECT_LE(status["tiers"]["dram"]["used_bytes"], 256 * 1024);
  EXPECT_LE(status["tiers"]["ssd"]["used_bytes"], 3 * 1024 * 1024);
  EXPECT_TRUE(BecomesIdle());
}

TEST_F(SessionTest, WhatCannotBeServedIsSaidAtStart) {
  DaemonConfig config = Config();
  config.engine = "/nonexistent";
  EXPECT_THAT(StartRefused(config), HasSubstr("no model"));
  config = Config();
  config.http = "";
  EXPECT_THAT(StartRefused(config), HasSubstr("set listen.http"));
  config = Config();
  config.more = "[api]\nkeys_file = \"/nonexistent\"\n";
  EXPECT_THAT(StartRefused(config), HasSubstr("api.keys_file"));
}

}  // namespace
}  // namespace reprise::test
