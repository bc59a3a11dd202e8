#include "server/api/answer_stream.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <utility>

#include "gpu/engine/sampler.h"

namespace reprise::server {

AnswerStream::AnswerStream(const engine::Tokenizer* tokenizer, const ChatFormat* format,
                           const AnswerOptions& options, const ChatOptions& chat)
    : tokenizer_(tokenizer), options_(options) {
  for (uint32_t i = 0; i < options.choices; ++i) {
    readers_.emplace_back(tokenizer, format, chat.tools, chat.thinking, options.stops);
  }
}

// ---- The HTTP request's thread -----------------------------------------------------------------

std::vector<AnswerEvent> AnswerStream::Take(Nanos pause_ns, Nanos limit_ns) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(pause_ns), [this] { return done_; });
  listening_ = true;
  changed_.wait_for(lock, std::chrono::nanoseconds(limit_ns),
                    [this] { return !events_.empty() || done_; });
  listening_ = false;
  std::vector<AnswerEvent> taken;
  for (AnswerEvent& event : events_) {
    if (taken.empty() || taken.back().choice != event.choice ||
        !taken.back().finish_reason.empty()) {
      taken.push_back(std::move(event));
      continue;
    }
    AnswerEvent& last = taken.back();
    last.delta.content += event.delta.content;
    last.delta.reasoning += event.delta.reasoning;
    std::move(event.delta.calls.begin(), event.delta.calls.end(),
              std::back_inserter(last.delta.calls));
    last.tokens.insert(last.tokens.end(), event.tokens.begin(), event.tokens.end());
    std::move(event.logprobs.begin(), event.logprobs.end(), std::back_inserter(last.logprobs));
    last.finish_reason = std::move(event.finish_reason);
  }
  events_.clear();
  return taken;
}

bool AnswerStream::done() const {
  const std::lock_guard lock(mutex_);
  return done_ && events_.empty();
}

RequestReport AnswerStream::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

absl::Status AnswerStream::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

// ---- The engine's thread -----------------------------------------------------------------------

void AnswerStream::Push(AnswerEvent event) {
  bool wanted = false;
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    wanted = listening_;
  }
  if (wanted) changed_.notify_one();
}

void AnswerStream::OnPrompt(const RequestReport& report) {
  const std::lock_guard lock(mutex_);
  report_ = report;
}

TokenLogprobs AnswerStream::LogprobsOf(TokenId token, std::span<const float> logits) const {
  const double offset = engine::LogSumExp(logits);
  const auto chance = [&](TokenId id) {
    return TokenChance{id, tokenizer_->Piece(id, true), logits[static_cast<size_t>(id)] - offset};
  };
  TokenLogprobs out{.chosen = chance(token), .top = {}};
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t count = std::min<size_t>(options_.top_logprobs, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count), ids.end(),
                    [&](TokenId a, TokenId b) {
                      const float x = logits[static_cast<size_t>(a)];
                      const float y = logits[static_cast<size_t>(b)];
                      return x > y || (x == y && a < b);
                    });
  for (size_t i = 0; i < count; ++i) out.top.push_back(chance(ids[i]));
  return out;
}

bool AnswerStream::OnToken(uint32_t choice, TokenId token, std::span<const float> logits) {
  AnswerEvent event{.choice = choice, .delta = readers_[choice].Add(token), .tokens = {token}};
  if (options_.logprobs) event.logprobs.push_back(LogprobsOf(token, logits));
  const bool more = !readers_[choice].stopped();
  Push(std::move(event));
  return more;
}

void AnswerStream::OnChoiceDone(uint32_t choice, FinishReason reason) {
  AnswerReader& reader = readers_[choice];
  AnswerEvent event{.choice = choice, .delta = reader.Finish()};
  event.finish_reason = reader.called()                      ? "tool_calls"
                        : reason == FinishReason::kLength    ? "length"
                        : reason == FinishReason::kCancelled ? "cancelled"
                                                             : "stop";
  Push(std::move(event));
}

void AnswerStream::OnDone(const RequestReport& report, const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    report_ = report;
    status_ = status;
    done_ = true;
  }
  changed_.notify_one();
}

}  // namespace reprise::server
