#include <algorithm>
#include <unordered_map>
#include <vector>

#include "client/trace/json_row.h"
#include "client/trace/row_parser.h"

namespace reprise {
namespace {

// A global id is the session above the session's own id.
constexpr uint32_t kLocalIdBits = 40;
constexpr uint64_t kLocalIdMax = (uint64_t{1} << kLocalIdBits) - 1;
constexpr int64_t kSessionMax = (int64_t{1} << (63 - kLocalIdBits)) - 1;
constexpr int64_t kDeltaMsMax = 4'000'000'000'000;

// Requests as changes to the session's previous one: memory of one request's ids a session.
class DeltaParser final : public RowParser {
 public:
  explicit DeltaParser(uint32_t block_tokens) : asked_block_tokens_(block_tokens) {}

  absl::StatusOr<bool> Parse(std::string_view line, TraceRequest* request) override {
    RP_TRY(row_.Parse(line));
    if (block_tokens_ == 0) {
      RP_TRY(ParseHeader());
      return false;
    }
    RP_ASSIGN(const int64_t time_ms, row_.Integer("t", 0, kDeltaMsMax));
    RP_ASSIGN(const int64_t session, row_.Integer("s", 0, kSessionMax));
    RP_ASSIGN(const int64_t input, row_.Integer("in", 1, kInputTokensMax));
    RP_ASSIGN(const int64_t output, row_.Integer("out", 0, kInputTokensMax));
    RP_ASSIGN(const int64_t kept, row_.Integer("p", 0, kInputTokensMax));
    RP_ASSIGN(const auto runs, row_.Integers("r"));

    std::vector<uint64_t>& ids = sessions_[session];
    if (static_cast<size_t>(kept) > ids.size()) {
      return InvalidArgument("\"p\" keeps " + std::to_string(kept) +
                             " ids, but the previous line of session " + std::to_string(session) +
                             " has " + std::to_string(ids.size()));
    }
    ids.resize(static_cast<size_t>(kept));
    const uint64_t limit = DivideUp(static_cast<uint64_t>(input), block_tokens_);
    RP_TRY(AppendRuns(runs, static_cast<uint64_t>(session) << kLocalIdBits, limit, &ids));
    request->time_ns = time_ms * kMillisecond;
    request->session = session;
    request->input_tokens = static_cast<uint32_t>(input);
    request->output_tokens = static_cast<uint32_t>(output);
    request->block_tokens = block_tokens_;
    request->hash_ids = ids;
    RP_TRY(CheckIdCount(ids.size(), request->input_tokens, block_tokens_));
    return true;
  }

  // Later lines of any session may build on the one that was left out: only a line that keeps
  // nothing can follow.
  void OnSkipped() override { sessions_.clear(); }

 private:
  absl::Status ParseHeader() {
    RP_TRY(row_.Integer("kvtrace", 1, 1).status());
    RP_ASSIGN(const int64_t block, row_.Integer("block", 1, kTraceBlockTokensMax));
    if (asked_block_tokens_ != 0 && asked_block_tokens_ != static_cast<uint64_t>(block)) {
      return InvalidArgument("the header says blocks of " + std::to_string(block) +
                             " tokens: leave --trace-block out");
    }
    block_tokens_ = static_cast<uint32_t>(block);
    return absl::OkStatus();
  }

  // `runs` is [first, count, first, count, ...].
  static absl::Status AppendRuns(std::span<const uint64_t> runs, uint64_t high, uint64_t limit,
                                 std::vector<uint64_t>* ids) {
    if (runs.size() % 2 != 0) {
      return InvalidArgument("\"r\" has " + std::to_string(runs.size()) +
                             " numbers: want pairs of first and count");
    }
    for (size_t i = 0; i < runs.size(); i += 2) {
      const uint64_t first = runs[i], count = runs[i + 1];
      if (count > limit || ids->size() + count > limit) {
        return InvalidArgument("\"p\" and \"r\" give more than the " + std::to_string(limit) +
                               " ids that \"in\" has room for");
      }
      if (first > kLocalIdMax - count) {
        return InvalidArgument("\"r\" holds " + std::to_string(first) + ": an id is below 2^40");
      }
      for (uint64_t id = first; id < first + count; ++id) ids->push_back(high | id);
    }
    return absl::OkStatus();
  }

  const uint32_t asked_block_tokens_;
  uint32_t block_tokens_ = 0;  // 0 until the header was read.
  JsonRow row_;
  std::unordered_map<int64_t, std::vector<uint64_t>> sessions_;
};

}  // namespace

std::unique_ptr<RowParser> MakeDeltaParser(uint32_t block_tokens) {
  return std::make_unique<DeltaParser>(block_tokens);
}

}  // namespace reprise
