#include "client/trace/trace_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>

#include "protocol/base/sha256.h"
#include "protocol/identity/block_hash.h"

namespace reprise {
namespace {

// What JSON readers in other languages can hold exactly.
constexpr uint64_t kIdMask = (uint64_t{1} << 53) - 1;
constexpr uint64_t kDeltaIdMax = (uint64_t{1} << 40) - 1;

class MooncakeWriter final : public TraceWriter {
 public:
  absl::StatusOr<std::string> Lines(const TraceRequest& request) override {
    return MooncakeRow(request) + "\n";
  }
};

class DeltaWriter final : public TraceWriter {
 public:
  absl::StatusOr<std::string> Lines(const TraceRequest& request) override {
    std::string text;
    if (block_tokens_ == 0) {
      block_tokens_ = request.block_tokens;
      text = "{\"kvtrace\":1,\"block\":" + std::to_string(block_tokens_) + "}\n";
    }
    if (request.block_tokens != block_tokens_) {
      return InvalidArgument("blocks of " + std::to_string(request.block_tokens) +
                             " after blocks of " + std::to_string(block_tokens_) +
                             ": a delta trace has one size");
    }
    Session& session = sessions_[request.session];
    ids_.clear();
    for (const uint64_t id : request.hash_ids) {
      // Numbers in order of appearance: they come in a row, and fit.
      const auto [found, added] = numbers_.try_emplace(id, Number{request.session, session.ids});
      if (added) ++session.ids;
      if (found->second.session != request.session) {
        return InvalidArgument(
            "sessions share ids, and those of a delta trace are the session's own: write mooncake");
      }
      ids_.push_back(found->second.number);
    }
    const auto differ =
        std::mismatch(ids_.begin(), ids_.end(), session.last.begin(), session.last.end());
    const auto kept = static_cast<size_t>(differ.first - ids_.begin());
    text += "{\"t\":" + std::to_string(request.time_ns / kMillisecond) +
            ",\"s\":" + std::to_string(std::max<int64_t>(request.session, 0)) +
            ",\"in\":" + std::to_string(request.input_tokens) +
            ",\"out\":" + std::to_string(request.output_tokens) + ",\"p\":" + std::to_string(kept) +
            ",\"r\":[";
    bool first = true;
    for (size_t begin = kept; begin < ids_.size();) {
      size_t end = begin + 1;
      while (end < ids_.size() && ids_[end] == ids_[end - 1] + 1) ++end;
      if (ids_[end - 1] > kDeltaIdMax) return InvalidArgument("more than 2^40 different ids");
      text += (first ? "" : ",") + std::to_string(ids_[begin]) + "," + std::to_string(end - begin);
      first = false;
      begin = end;
    }
    session.last = ids_;
    return text + "]}\n";
  }

 private:
  struct Session {
    uint64_t ids = 0;  // Different ones, so far.
    std::vector<uint64_t> last;
  };
  struct Number {
    int64_t session = 0;
    uint64_t number = 0;
  };

  uint32_t block_tokens_ = 0;
  std::unordered_map<int64_t, Session> sessions_;
  std::unordered_map<uint64_t, Number> numbers_;
  std::vector<uint64_t> ids_;
};

}  // namespace

std::unique_ptr<TraceWriter> MakeMooncakeWriter() { return std::make_unique<MooncakeWriter>(); }
std::unique_ptr<TraceWriter> MakeDeltaWriter() { return std::make_unique<DeltaWriter>(); }

void HashTokens(TraceRequest* request, std::vector<uint64_t>* ids) {
  ids->clear();
  for (const Hash256& hash : PrefixChain(Hash256{}, request->tokens)) {
    ids->push_back(KeyOf(hash).low & kIdMask);
  }
  request->hash_ids = *ids;
  request->block_tokens = kBlockTokens;
  request->tokens = {};
}

void TraceAnonymiser::Anonymise(TraceRequest* request) {
  if (!begun_) first_ns_ = request->time_ns;
  begun_ = true;
  request->time_ns -= first_ns_;
  if (request->session != kNoSession) {
    const auto next = static_cast<int64_t>(sessions_.size());
    request->session = sessions_.try_emplace(request->session, next).first->second;
  }
  ids_.clear();
  for (const uint64_t id : request->hash_ids) {
    const auto [found, added] = hashes_.try_emplace(id);
    if (added) {
      const Hash256 hash = Sha256({AsBytes(std::string_view(key_)), AsBytes(id)});
      found->second = KeyOf(hash).low & kIdMask;
    }
    ids_.push_back(found->second);
  }
  request->hash_ids = ids_;
}

absl::StatusOr<std::string> TraceFingerprint(const std::string& spec) {
  if (spec == "-" || spec.starts_with("generated")) return std::string();
  std::ifstream file(spec, std::ios::binary);
  if (!file) return InvalidArgument("cannot read " + spec + ": " + std::strerror(errno));
  std::array<char, 65536> piece;
  return ToHex(Sha256Of([&] {
    file.read(piece.data(), piece.size());
    return AsBytes(std::string_view(piece.data(), static_cast<size_t>(file.gcount())));
  }));
}

}  // namespace reprise
