#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/api/answer_reader.h"
#include "server/api/openai_request.h"
#include "server/serving/request.h"

namespace reprise::server {

struct TokenChance {
  TokenId token = 0;
  std::string bytes;
  double logprob = 0;
};
struct TokenLogprobs {
  TokenChance chosen;
  std::vector<TokenChance> top;
};

// What became known of an answer.
struct AnswerEvent {
  uint32_t choice = 0;
  AnswerDelta delta;
  std::vector<TokenId> tokens;          // That the delta came with; may be held back from it.
  std::vector<TokenLogprobs> logprobs;  // Of these, when they were asked for.
  std::string finish_reason;            // "stop", "length", "tool_calls"; set in the last one.
};

// The way from the engine's thread to the thread of an HTTP request: tokens become text on the
// engine's, so that a stop string ends the answer with the token that completes it.
class AnswerStream final : public RequestEvents {
 public:
  // `format` null: plain completions. Both are borrowed.
  AnswerStream(const engine::Tokenizer* tokenizer, const ChatFormat* format,
               const AnswerOptions& options, const ChatOptions& chat);

  // ---- The HTTP request's thread
  // Sleeps for `pause_ns`, or until the answer is whole; then waits for an event, at most limit_ns.
  // What has come until then, with events of one answer in a row as one: an engine that gives a
  // token every millisecond is not held up by a thread that is woken for each. Empty: there is
  // nothing, or there never will be: see done().
  std::vector<AnswerEvent> Take(Nanos pause_ns, Nanos limit_ns);
  bool done() const;
  // Once done: what it cost, and whether it failed.
  RequestReport report() const;
  absl::Status status() const;

  // ---- The engine's thread
  void OnPrompt(const RequestReport& report) override;
  bool OnToken(uint32_t choice, TokenId token, std::span<const float> logits) override;
  void OnChoiceDone(uint32_t choice, FinishReason reason) override;
  void OnDone(const RequestReport& report, const absl::Status& status) override;

 private:
  TokenLogprobs LogprobsOf(TokenId token, std::span<const float> logits) const;
  void Push(AnswerEvent event);

  const engine::Tokenizer* tokenizer_;
  AnswerOptions options_;
  std::vector<AnswerReader> readers_;  // By choice.

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<AnswerEvent> events_;
  bool listening_ = false;  // The reader wants to be woken by events.
  bool done_ = false;
  RequestReport report_;
  absl::Status status_;
};

}  // namespace reprise::server
