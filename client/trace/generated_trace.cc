#include "client/trace/generated_trace.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

namespace reprise {
namespace {

constexpr Nanos kSessionStagger = 20 * kSecond;

struct Limit {
  std::string_view name;
  uint32_t GeneratorOptions::*field;
  uint32_t min, max;
};
constexpr std::array kLimits = {
    Limit{"sessions", &GeneratorOptions::sessions, 1, 1'000'000},
    Limit{"turns", &GeneratorOptions::turns, 1, 10'000},
    Limit{"block", &GeneratorOptions::block, 1, 65'536},
    Limit{"kinds", &GeneratorOptions::kinds, 1, 1'000},
    Limit{"system", &GeneratorOptions::system, 1, 1'000'000},
    Limit{"append", &GeneratorOptions::append, 1, 500'000},
    Limit{"output", &GeneratorOptions::output, 1, 1'000'000},
    Limit{"think_ms", &GeneratorOptions::think_ms, 1, 86'400'000},
    Limit{"fork_per_mille", &GeneratorOptions::fork_per_mille, 0, 1'000},
    Limit{"pause_per_mille", &GeneratorOptions::pause_per_mille, 0, 1'000},
    Limit{"input_max", &GeneratorOptions::input_max, 1, kInputTokensMax},
};

absl::Status SetOption(std::string_view name, std::string_view text, GeneratorOptions* options) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size() && !text.empty();
  if (name == "seed" && whole) {
    options->seed = value;
    return absl::OkStatus();
  }
  std::string known = "seed";
  for (const Limit& limit : kLimits) {
    known += ", " + std::string(limit.name);
    if (limit.name != name) continue;
    if (!whole || value < limit.min || value > limit.max) {
      return InvalidArgument("generated: " + std::string(name) + " is \"" + std::string(text) +
                             "\": want " + std::to_string(limit.min) + " to " +
                             std::to_string(limit.max));
    }
    options->*limit.field = static_cast<uint32_t>(value);
    return absl::OkStatus();
  }
  return InvalidArgument("generated: \"" + std::string(name) + "=" + std::string(text) +
                         "\" is not one of " + known + ", with a whole number");
}

}  // namespace

absl::StatusOr<GeneratorOptions> ParseGeneratorOptions(std::string_view spec) {
  GeneratorOptions options;
  const size_t colon = spec.find(':');
  std::string_view rest = colon == std::string_view::npos ? "" : spec.substr(colon + 1);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t equals = item.find('=');
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
    RP_TRY(SetOption(item.substr(0, equals), value, &options));
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
  return options;
}

GeneratedTrace::GeneratedTrace(const GeneratorOptions& options)
    : options_(options), prng_(options.seed) {
  std::vector<Session> kinds(options.kinds);
  for (Session& kind : kinds) {
    Grow(&kind,
         options.system / 2 + static_cast<uint32_t>(prng_.Below(uint64_t{options.system} + 1)));
  }
  for (uint32_t i = 0; i < options.sessions; ++i) {
    Session session = kinds[prng_.Below(kinds.size())];
    session.number = next_session_++;
    session.next_ns = i * kSessionStagger + static_cast<Nanos>(prng_.Below(kSessionStagger));
    session.turns_left = Draw(options.turns);
    waiting_.push(std::move(session));
  }
}

uint32_t GeneratedTrace::Draw(uint32_t mean) {
  const double drawn = -std::log(1.0 - prng_.Unit()) * mean;
  return static_cast<uint32_t>(std::clamp(drawn, 1.0, 8.0 * mean));
}

Nanos GeneratedTrace::ThinkTime() {
  const Nanos think_ns = Draw(options_.think_ms) * kMillisecond;
  return prng_.Chance(options_.pause_per_mille) ? 100 * think_ns : think_ns;
}

void GeneratedTrace::Grow(Session* session, uint32_t tokens) {
  session->input_tokens += tokens;
  while (session->ids.size() < session->input_tokens / options_.block) {
    session->ids.push_back(next_id_++);
  }
}

void GeneratedTrace::MaybeFork(const Session& session) {
  if (session.turns_left == 0 || !prng_.Chance(options_.fork_per_mille)) return;
  Session fork;
  fork.number = next_session_++;
  fork.input_tokens = session.turn_ends[prng_.Below(session.turn_ends.size())];
  const auto shared = static_cast<ptrdiff_t>(fork.input_tokens / options_.block);
  fork.ids.assign(session.ids.begin(), session.ids.begin() + shared);
  fork.turns_left = 1 + static_cast<uint32_t>(prng_.Below(session.turns_left));
  fork.next_ns = session.next_ns + ThinkTime();
  waiting_.push(std::move(fork));
}

absl::StatusOr<bool> GeneratedTrace::Next(TraceRequest* request) {
  for (;;) {
    if (waiting_.empty()) return false;
    current_ = waiting_.top();
    waiting_.pop();
    if (current_.turns_left == 0) continue;
    Grow(&current_, Draw(options_.append));
    if (current_.input_tokens > options_.input_max && !current_.turn_ends.empty()) continue;
    break;
  }
  *request = TraceRequest();
  request->time_ns = current_.next_ns;
  request->session = current_.number;
  request->input_tokens = current_.input_tokens;
  request->output_tokens = Draw(options_.output);
  request->block_tokens = options_.block;

  Session next = current_;
  --next.turns_left;
  next.turn_ends.push_back(next.input_tokens);
  MaybeFork(next);
  Grow(&next, request->output_tokens);
  next.next_ns += ThinkTime();
  waiting_.push(std::move(next));
  request->hash_ids = current_.ids;
  return true;
}

}  // namespace reprise
