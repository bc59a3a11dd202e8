// Many sessions with random turns, pauses longer than the TTL, and restarts, for RP_SOAK_SECONDS:
// every answer is compared with an offline run of the same engine in the same mode, and nothing is
// left over at the end.
//
// The offline run follows what the daemon says that it found: from the start, from a window that an
// earlier turn left, or from blocks alone with a replay. So a wrong byte in any block or window
// shows as another token.
#include <gmock/gmock.h>

#include <cstdlib>
#include <map>
#include <thread>

#include "client/session/api_client.h"
#include "gpu/backends/loaded_model.h"
#include "gpu/engine/generator.h"
#include "gpu/engine/snapshot.h"
#include "protocol/base/prng.h"
#include "tests/integration/daemon_process.h"

namespace reprise::test {
namespace {

using engine::PrefillMode;
using engine::ResumePoint;
using engine::Sequence;
using Body = ApiClient::Json;

constexpr uint32_t kPositions = 8192;  // Of a session, before it begins anew.
constexpr uint32_t kAnswerTokens = 24;

// One session as it would be without a daemon: its records, and its windows at the ends of prompts
// and answers.
class Offline {
 public:
  explicit Offline(engine::Engine* engine)
      : engine_(*engine),
        payload_(engine->geometry().record.payload_bytes),
        records_(size_t{kPositions / kBlockTokens} * payload_),
        window_(engine->window_layout().bytes + 64) {
    for (uint32_t i = 0; i < kPositions / kBlockTokens; ++i) {
      blocks_.push_back(records_.data() + i * payload_);
    }
  }

  // Null: there is no window of that position, which a daemon could not have found.
  std::optional<std::vector<TokenId>> Answer(const std::vector<TokenId>& prompt, uint32_t hit,
                                             const std::string& window) {
    Sequence sequence(&engine_, memory());
    ResumePoint resume{.hit = hit};
    if (window == "found") {
      const auto saved = windows_.find(hit);
      if (saved == windows_.end()) return std::nullopt;
      const auto info = engine::RestoreSnapshot(engine_.geometry(), engine_.window_layout(),
                                                saved->second.bytes, memory().window);
      EXPECT_TRUE(info.ok()) << info.status();
      const uint32_t from = hit - std::min(hit, engine_.geometry().config.window);
      resume = {.hit = hit,
                .encoder_window = true,
                .encoder_from = from,
                .decoder_window = info->decoder,
                .decoder_from = from};
      // What of the last block belongs to this position.
      std::copy(saved->second.partial.begin(), saved->second.partial.end(),
                blocks_[std::min<size_t>(hit / kBlockTokens, blocks_.size() - 1)]);
    }
    sequence.Resume({prompt.begin(), prompt.begin() + hit}, resume);
    std::vector<float> logits(engine_.geometry().config.vocab_size);
    Prefill(&sequence, std::span(prompt).subspan(hit), window == "replayed" ? hit : 0, logits);
    Save(sequence.length(), true);
    std::vector<TokenId> tokens;
    const auto report = engine::Generate(
        &sequence, logits,
        {.tokens_max = kAnswerTokens, .stop_tokens = {engine_.geometry().config.eos_token}}, clock_,
        [&](TokenId token, std::span<const float>) {
          tokens.push_back(token);
          return true;
        });
    EXPECT_TRUE(report.ok());
    Save(sequence.length(), true);
    return tokens;
  }

 private:
  struct Saved {
    std::vector<std::byte> bytes, partial;
  };

  engine::SequenceMemory memory() {
    auto* aligned =
        reinterpret_cast<std::byte*>(AlignUp(reinterpret_cast<uintptr_t>(window_.data()), 64));
    return {.blocks = blocks_, .window = aligned};
  }
  // Keeps the windows at `stop` too, where a daemon may see a fork: without the decoder's.
  void Prefill(Sequence* sequence, std::span<const TokenId> rest, uint32_t stop,
               std::span<float> logits) {
    ASSERT_TRUE(sequence->BeginPrefill(rest, PrefillMode::kBounded).ok());
    while (sequence->rows_left() > 0) {
      uint32_t rows = std::min(sequence->rows_left(), 256u);
      if (sequence->next_row() < stop) rows = std::min(rows, stop - sequence->next_row());
      const engine::Segment segment = *sequence->NextRows(std::max(rows, sequence->rows_min()));
      const bool last = segment.logits_from < segment.tokens.size();
      ASSERT_TRUE(engine_.Forward({&segment, 1}, last ? logits : std::span<float>()).ok());
      ASSERT_TRUE(sequence->RowsDone().ok());
      if (stop != 0 && sequence->rows_left() > 0 && sequence->next_row() == stop) Save(stop, false);
    }
  }

  void Save(uint32_t position, bool decoder) {
    Saved& saved = windows_[position];
    saved.bytes.resize(engine::SnapshotBytes(engine_.geometry(), position, decoder));
    engine::SaveSnapshot(engine_.geometry(), engine_.window_layout(), memory().window,
                         {.position = position, .decoder = decoder}, saved.bytes);
    const std::byte* block = blocks_[position / kBlockTokens];
    saved.partial.assign(block, block + payload_);
  }

  engine::Engine& engine_;
  size_t payload_;
  std::vector<std::byte> records_, window_;
  std::vector<std::byte*> blocks_;
  std::map<uint32_t, Saved> windows_;
  SystemClock clock_;
};

class SoakTest : public DaemonTest {};

TEST_F(SoakTest, SlowEveryAnswerIsThatOfAnOfflineRun) {
  const char* wanted = std::getenv("RP_SOAK_SECONDS");
  const Nanos duration = (wanted != nullptr ? std::atoi(wanted) : 45) * kSecond;
  constexpr uint32_t kSessions = 32;
  DaemonConfig config{.dram_bytes = "64MiB",
                      .ssd_bytes = "256MiB",
                      .window_bytes = "24MiB",
                      .window_ttl = "2s",
                      .http = "127.0.0.1:0",
                      .engine = "nano"};
  config.more = "sequences_max = 4\nthreads = 1\n";
  ASSERT_TRUE(Start(config));
  auto loaded =
      engine::LoadModel(*engine::FindModelFolder("nano"), {.device = "cpu", .threads = 1});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const engine::Tokenizer& tokenizer = *loaded->tokenizer;

  struct Talk {
    std::unique_ptr<Offline> offline;
    std::vector<TokenId> tokens;
  };
  std::vector<Talk> talks(kSessions);
  Prng prng(11);
  std::map<std::string, uint32_t> windows;
  uint32_t answers = 0, restarts = 0;
  uint64_t resident_early = 0;
  const SystemClock clock;
  const Instant until = clock.Now() + duration;
  while (clock.Now() < until && !HasFailure()) {
    // Some sessions at once, each with a prompt that goes on from its last.
    std::vector<uint32_t> chosen;
    for (uint32_t i = 0; i < 1 + prng.Below(5); ++i) {
      const auto which = static_cast<uint32_t>(prng.Below(kSessions));
      if (std::find(chosen.begin(), chosen.end(), which) == chosen.end()) chosen.push_back(which);
    }
    std::vector<Body> replies(chosen.size());
    std::vector<std::thread> clients;
    const std::string http = "http://127.0.0.1:" + std::to_string(daemon().http_port());
    for (size_t i = 0; i < chosen.size(); ++i) {
      Talk& talk = talks[chosen[i]];
      if (talk.offline == nullptr || talk.tokens.size() + 800 > kPositions) {
        talk = {.offline = std::make_unique<Offline>(loaded->engine.get()), .tokens = {256}};
      }
      std::string message;
      const uint64_t letters = 20 + prng.Below(prng.Below(4) == 0 ? 600 : 60);
      for (uint64_t k = 0; k < letters; ++k) message += static_cast<char>('a' + prng.Below(26));
      const auto add = [&](const std::string& text, bool special) {
        const auto ids = tokenizer.Encode(text, special);
        talk.tokens.insert(talk.tokens.end(), ids.begin(), ids.end());
      };
      add("<user>", true);
      add("session " + std::to_string(chosen[i]) + ": " + message, false);
      add("<assistant></think>", true);
      clients.emplace_back([&, i] {
        auto api = *ApiClient::Create({.url = http, .key = {}});
        const auto reply = api->Post("/v1/completions", {{"model", "nano"},
                                                         {"prompt", talks[chosen[i]].tokens},
                                                         {"max_tokens", kAnswerTokens},
                                                         {"temperature", 0},
                                                         {"logprobs", 0}});
        ASSERT_TRUE(reply.ok()) << reply.status();
        replies[i] = *reply;
      });
    }
    for (std::thread& client : clients) client.join();
    for (size_t i = 0; i < chosen.size() && !HasFailure(); ++i) {
      Talk& talk = talks[chosen[i]];
      const Body& report = replies[i]["reprise"];
      const auto window = report["window"].get<std::string>();
      ++windows[window];
      ++answers;
      const auto want = talk.offline->Answer(talk.tokens, report["hit_tokens"], window);
      ASSERT_TRUE(want.has_value())
          << "a window was found at " << report["hit_tokens"] << ", where no turn ended";
      std::string text;
      for (const TokenId token : *want) text += tokenizer.Piece(token, true);
      // The reply's tokens, by their bytes: special ones by name.
      std::string got;
      for (const Body& piece : replies[i]["choices"][0]["logprobs"]["tokens"])
        got += piece.get<std::string>();
      const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0; });
      if (printable) {
        EXPECT_EQ(got, text) << "session " << chosen[i] << ", " << report.dump();
      }
      EXPECT_EQ(replies[i]["usage"]["completion_tokens"], want->size());
      talk.tokens.insert(talk.tokens.end(), want->begin(), want->end());
    }
    if (prng.Below(12) == 0) SleepFor(2500 * kMillisecond);
    if (prng.Below(20) == 0) {
      if (prng.Below(2) == 0) {
        Stop();
      } else {
        Kill();
      }
      ASSERT_TRUE(Start(config));
      ++restarts;
      resident_early = 0;
    }
    if (resident_early == 0 && restarts > 0) resident_early = ResidentBytes(daemon().pid());
  }
  // Nothing is left over.
  EXPECT_TRUE(Eventually([this] {
    const std::string text = HttpGet(daemon().http_port(), "/status");
    const Body status = Body::parse(text.substr(text.find("\r\n\r\n") + 4));
    return status["serving"]["running"] == 0 && status["serving"]["buffers_reserved"] == 0 &&
           status["tiers"]["dram"]["pinned_blocks"] == 0 && status["window_pool"]["leased"] == 0 &&
           status["serving"]["counters"]["publish_failures"] == 0;
  }));
  if (resident_early != 0) {
    EXPECT_LT(ResidentBytes(daemon().pid()), resident_early + 64_MiB);
  }
  std::printf("%u answers, %u restarts; windows:", answers, restarts);
  for (const auto& [kind, count] : windows) std::printf(" %s %u", kind.c_str(), count);
  std::printf("\n");
  EXPECT_GT(answers, 10u);
}

}  // namespace
}  // namespace reprise::test
