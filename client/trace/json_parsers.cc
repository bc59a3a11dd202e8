#include <cmath>
#include <unordered_map>
#include <vector>

#include "client/trace/json_row.h"
#include "client/trace/row_parser.h"

namespace reprise {
namespace {

// The year 2096 in Unix milliseconds: traces may use either relative or Unix time.
constexpr double kTimeMsMax = 4e12;
constexpr double kNanosPerMs = 1e6;

absl::StatusOr<Nanos> TimeMs(const JsonRow& row) {
  RP_ASSIGN(const double ms, row.Number("timestamp", 0, kTimeMsMax));
  return static_cast<Nanos>(std::llround(ms * kNanosPerMs));
}

absl::Status Lengths(const JsonRow& row, TraceRequest* request) {
  RP_ASSIGN(const int64_t input, row.Integer("input_length", 1, kInputTokensMax));
  RP_ASSIGN(const int64_t output, row.Integer("output_length", 0, kInputTokensMax));
  request->input_tokens = static_cast<uint32_t>(input);
  request->output_tokens = static_cast<uint32_t>(output);
  return absl::OkStatus();
}

absl::Status Ids(const JsonRow& row, uint32_t block_tokens, TraceRequest* request) {
  RP_ASSIGN(request->hash_ids, row.Integers("hash_ids"));
  request->block_tokens = block_tokens;
  return CheckIdCount(request->hash_ids.size(), request->input_tokens, block_tokens);
}

absl::Status OptionalSession(const JsonRow& row, TraceRequest* request) {
  if (!row.Has("session")) return absl::OkStatus();
  RP_ASSIGN(request->session, row.Integer("session", kNoSession, INT64_MAX));
  return absl::OkStatus();
}

class MooncakeParser final : public RowParser {
 public:
  explicit MooncakeParser(uint32_t block_tokens) : block_tokens_(block_tokens) {}

  absl::StatusOr<bool> Parse(std::string_view line, TraceRequest* request) override {
    RP_TRY(row_.Parse(line));
    RP_ASSIGN(request->time_ns, TimeMs(row_));
    RP_TRY(Lengths(row_, request));
    RP_TRY(Ids(row_, block_tokens_, request));
    RP_TRY(OptionalSession(row_, request));
    return true;
  }

 private:
  const uint32_t block_tokens_;
  JsonRow row_;
};

// A session is a chain of chats; its number is the id of the chat that began it. Remembers 16 bytes
// of payload a chat, because any later chat may name any earlier one.
class QwenParser final : public RowParser {
 public:
  explicit QwenParser(uint32_t block_tokens) : block_tokens_(block_tokens) {}

  absl::StatusOr<bool> Parse(std::string_view line, TraceRequest* request) override {
    RP_TRY(row_.Parse(line));
    RP_ASSIGN(const double seconds, row_.Number("timestamp", 0, kTimeMsMax / 1000));
    request->time_ns = static_cast<Nanos>(std::llround(seconds * 1e9));
    RP_TRY(Lengths(row_, request));
    RP_TRY(Ids(row_, block_tokens_, request));
    RP_ASSIGN(const int64_t chat, row_.Integer("chat_id", 0, INT64_MAX));
    RP_ASSIGN(const int64_t parent, row_.Integer("parent_chat_id", -1, INT64_MAX));
    int64_t root = chat;
    if (parent >= 0) {
      const auto found = roots_.find(parent);
      root = found == roots_.end() ? parent : found->second;  // A chat from before the trace.
    }
    roots_[chat] = root;
    request->session = root;
    return true;
  }

 private:
  const uint32_t block_tokens_;
  JsonRow row_;
  std::unordered_map<int64_t, int64_t> roots_;
};

class TokensParser final : public RowParser {
 public:
  absl::StatusOr<bool> Parse(std::string_view line, TraceRequest* request) override {
    RP_TRY(row_.Parse(line));
    RP_ASSIGN(request->time_ns, TimeMs(row_));
    RP_ASSIGN(const int64_t output, row_.Integer("output_length", 0, kInputTokensMax));
    request->output_tokens = static_cast<uint32_t>(output);
    RP_TRY(OptionalSession(row_, request));
    RP_ASSIGN(const auto ids, row_.Integers("tokens"));
    if (ids.empty() || ids.size() > static_cast<uint64_t>(kInputTokensMax)) {
      return InvalidArgument("\"tokens\" has " + std::to_string(ids.size()) + " ids: want 1 to " +
                             std::to_string(kInputTokensMax));
    }
    tokens_.clear();
    for (const uint64_t id : ids) {
      if (id > INT32_MAX) {
        return InvalidArgument("\"tokens\" holds " + std::to_string(id) +
                               ": a token id is at most 2147483647");
      }
      tokens_.push_back(static_cast<TokenId>(id));
    }
    request->input_tokens = static_cast<uint32_t>(tokens_.size());
    request->tokens = tokens_;
    return true;
  }

 private:
  JsonRow row_;
  std::vector<TokenId> tokens_;
};

}  // namespace

std::unique_ptr<RowParser> MakeMooncakeParser(uint32_t block_tokens) {
  return std::make_unique<MooncakeParser>(block_tokens);
}
std::unique_ptr<RowParser> MakeQwenParser(uint32_t block_tokens) {
  return std::make_unique<QwenParser>(block_tokens);
}
std::unique_ptr<RowParser> MakeTokensParser() { return std::make_unique<TokensParser>(); }

}  // namespace reprise
