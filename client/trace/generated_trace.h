#pragma once

#include <cstdint>
#include <queue>
#include <string_view>
#include <vector>

#include "client/trace/trace.h"
#include "protocol/base/prng.h"
#include "protocol/base/status.h"

namespace reprise {

// A made-up workload of agents: each session begins with the system prompt of its kind, then turns
// append tokens (tool results and the previous answer) after a think time; some sessions pause for
// long, some fork from where an earlier turn ended. Equal options give equal traces.
struct GeneratorOptions {
  uint32_t sessions = 16;
  uint32_t turns = 12;  // Mean of each session.
  uint64_t seed = 1;
  uint32_t block = 64;      // Tokens behind a hash id.
  uint32_t kinds = 3;       // Different system prompts.
  uint32_t system = 6'000;  // Tokens, mean over the kinds.
  uint32_t append = 1'200;  // New tokens of a turn, mean.
  uint32_t output = 350;    // Tokens of an answer, mean.
  uint32_t think_ms = 12'000;
  uint32_t fork_per_mille =
      40;  // Of turns after which another session goes on from an earlier turn.
  uint32_t pause_per_mille = 30;  // Of think times that are a hundred times as long.
  uint32_t input_max = 200'000;   // A session whose next prompt would be longer ends.
};

// "generated" or "generated:sessions=16,turns=12,...": the fields above, by name.
absl::StatusOr<GeneratorOptions> ParseGeneratorOptions(std::string_view spec);

class GeneratedTrace final : public TraceReader {
 public:
  explicit GeneratedTrace(const GeneratorOptions& options);

  absl::StatusOr<bool> Next(TraceRequest* request) override;
  TraceFormat format() const override { return TraceFormat::kGenerated; }

 private:
  struct Session {
    int64_t number = 0;
    Nanos next_ns = 0;
    uint32_t turns_left = 0;
    uint32_t input_tokens = 0;        // Of its previous prompt and answer.
    std::vector<uint64_t> ids;        // Whole blocks of those tokens.
    std::vector<uint32_t> turn_ends;  // Prompt lengths of its turns so far: where a fork may begin.
  };
  struct Later {
    bool operator()(const Session& a, const Session& b) const {
      return a.next_ns != b.next_ns ? a.next_ns > b.next_ns : a.number > b.number;
    }
  };

  // Exponential around `mean`, at least 1 and at most 8 times the mean.
  uint32_t Draw(uint32_t mean);
  Nanos ThinkTime();
  void Grow(Session* session, uint32_t tokens);
  void MaybeFork(const Session& session);

  const GeneratorOptions options_;
  Prng prng_;
  uint64_t next_id_ = 0;
  int64_t next_session_ = 0;
  std::priority_queue<Session, std::vector<Session>, Later> waiting_;
  Session current_;  // Whose request was handed out last.
};

}  // namespace reprise
