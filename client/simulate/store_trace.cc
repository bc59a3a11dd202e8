#include "client/simulate/store_trace.h"

#include <algorithm>
#include <string>

#include "protocol/wire/messages.h"

namespace reprise {
namespace {

using economics::TraceRow;
using economics::WindowModel;

constexpr uint64_t kRoot = 0x9e3779b97f4a7c15u;
constexpr uint64_t kInside = 0xd6e8feb86659fd93u;
constexpr uint64_t kProgressEvery = 4096;

// One more value of a sequence that `hash` names.
uint64_t Fold(uint64_t hash, uint64_t value) {
  hash = (hash ^ (value + kRoot)) * 0xbf58476d1ce4e5b9u;
  return hash ^ (hash >> 29);
}

}  // namespace

absl::Status StoreTraceBuilder::Add(const TraceRequest& request) {
  BuildChain(request);
  const bool has_ids = !request.hash_ids.empty();
  const uint32_t end = has_ids ? request.input_tokens / request.block_tokens * request.block_tokens
                               : request.input_tokens;
  TraceRow row{.time_ns = request.time_ns,
               .session = SessionOf(request),
               .input_tokens = request.input_tokens,
               .output_tokens = request.output_tokens,
               .root = chain_.empty() ? Fold(kRoot, ordinal_) : chain_.front(),
               .snapshot = {.prefix = 0, .position = end & ~1u}};
  known_.clear();
  const bool in_session = row.session != TraceRow::kNoSession;
  if (in_session) {
    for (const WindowModel::Place& place : inside_[row.session]) {
      const auto end_of = static_cast<uint32_t>(place.position);
      if (end_of <= request.input_tokens && PrefixAt(request, end_of) == place.prefix) {
        known_.push_back(place);
      }
    }
  }
  const std::span<const uint32_t> blocks = numbers_.Of(chain_);
  const auto position = static_cast<uint32_t>(row.snapshot.position);
  if (position % kBlockTokens != 0) {
    row.snapshot.prefix = PrefixAt(request, position);
  } else if (position > 0) {
    row.snapshot.prefix = blocks[position / kBlockTokens - 1];
  }
  RP_TRY(trace_.Add(row, blocks, known_));
  if (in_session && row.snapshot.position % kBlockTokens != 0) {
    std::vector<WindowModel::Place>& inside = inside_[row.session];
    std::erase_if(inside, [&](const WindowModel::Place& place) {
      return place.position == row.snapshot.position;
    });
    inside.insert(inside.begin(), row.snapshot);
    if (inside.size() > wire::kWindowCandidatesMax) inside.pop_back();
  }
  ++ordinal_;
  return absl::OkStatus();
}

void StoreTraceBuilder::BuildChain(const TraceRequest& request) {
  chain_.resize(request.input_tokens / kBlockTokens);
  const std::span<const uint64_t> ids = request.hash_ids;
  const uint32_t id_tokens = request.block_tokens;
  uint64_t hash = kRoot;
  size_t block = 0;
  if (!request.tokens.empty()) {
    for (; block < chain_.size(); ++block) {
      for (uint32_t i = 0; i < kBlockTokens; ++i) {
        hash = Fold(hash, static_cast<uint64_t>(request.tokens[block * kBlockTokens + i]));
      }
      chain_[block] = hash;
    }
  } else if (!ids.empty() && kBlockTokens % id_tokens == 0) {
    const size_t per_block = kBlockTokens / id_tokens;
    const size_t covered = std::min(chain_.size(), ids.size() / per_block);
    for (; block < covered; ++block) {
      for (size_t i = 0; i < per_block; ++i) hash = Fold(hash, ids[block * per_block + i]);
      chain_[block] = hash;
    }
  } else if (!ids.empty()) {
    for (; block < chain_.size(); ++block) {
      const uint64_t first = uint64_t{block} * kBlockTokens;
      const uint64_t last_id = (first + kBlockTokens - 1) / id_tokens;
      if (last_id >= ids.size()) break;
      for (uint64_t i = first / id_tokens; i <= last_id; ++i) hash = Fold(hash, ids[i]);
      chain_[block] = hash = Fold(hash, first % id_tokens);
    }
  }
  for (; block < chain_.size(); ++block) chain_[block] = hash = Fold(hash, ~ordinal_);
}

uint64_t StoreTraceBuilder::PrefixAt(const TraceRequest& request, uint32_t position) const {
  const uint32_t whole = position / kBlockTokens;
  uint64_t hash = whole == 0 ? kRoot : chain_[whole - 1];
  if (position % kBlockTokens == 0) return hash;
  if (!request.tokens.empty()) {
    for (uint32_t i = whole * kBlockTokens; i < position; ++i) {
      hash = Fold(hash, static_cast<uint64_t>(request.tokens[i]));
    }
  } else if (!request.hash_ids.empty()) {
    const uint32_t id_tokens = request.block_tokens;
    for (uint32_t i = whole * kBlockTokens / id_tokens; i * id_tokens < position; ++i) {
      hash = Fold(hash, i < request.hash_ids.size() ? request.hash_ids[i] : ~ordinal_);
    }
  } else {
    hash = Fold(hash, ~ordinal_);
  }
  return Fold(hash ^ kInside, position);
}

uint32_t StoreTraceBuilder::SessionOf(const TraceRequest& request) {
  if (request.session == kNoSession) return TraceRow::kNoSession;
  const auto [found, added] =
      sessions_.try_emplace(request.session, static_cast<uint32_t>(sessions_.size()));
  if (added) inside_.emplace_back();
  return found->second;
}

// ---- Scaled ------------------------------------------------------------------------------------

namespace {

absl::Status AddScaled(const TraceRequest& request, const TraceScale& scale, Nanos shift_ns,
                       std::vector<uint64_t>* ids, StoreTraceBuilder* builder) {
  TraceRequest scaled = request;
  scaled.time_ns =
      static_cast<Nanos>(static_cast<double>(request.time_ns) / scale.speed) + shift_ns;
  if (uint64_t{request.input_tokens} * scale.context > kInputTokensMax) {
    return InvalidArgument("--context-times " + std::to_string(scale.context) +
                           " makes a prompt of " + std::to_string(request.input_tokens) +
                           " tokens longer than " + std::to_string(kInputTokensMax));
  }
  scaled.input_tokens *= scale.context;
  scaled.block_tokens *= scale.context;
  for (uint32_t copy = 0; copy < scale.sessions; ++copy) {
    if (copy > 0) {
      ids->assign(request.hash_ids.begin(), request.hash_ids.end());
      for (uint64_t& id : *ids) id = Fold(id, copy);
      scaled.hash_ids = *ids;
    }
    if (request.session != kNoSession) scaled.session = request.session * scale.sessions + copy;
    RP_TRY(builder->Add(scaled));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<economics::BlockTrace> ReadStoreTrace(
    const std::string& spec, const TraceOptions& options, const TraceScale& scale,
    const std::function<void(uint64_t requests)>& progress, uint64_t* skipped_lines) {
  StoreTraceBuilder builder;
  std::vector<uint64_t> ids;
  uint64_t requests = 0;
  Nanos shift_ns = 0, first_ns = 0, last_ns = 0;
  *skipped_lines = 0;
  for (uint32_t round = 0; round < scale.repeat; ++round) {
    RP_ASSIGN(const auto reader, OpenTrace(spec, options));
    TraceRequest request;
    for (bool first = true;; first = false) {
      RP_ASSIGN(const bool found, reader->Next(&request));
      if (!found) break;
      if (!request.tokens.empty() && (scale.sessions > 1 || scale.context > 1)) {
        return InvalidArgument(
            "--sessions-times and --context-times need a trace with hash ids; this one has tokens");
      }
      if (first) first_ns = request.time_ns;
      last_ns = request.time_ns;
      if (scale.none()) {
        RP_TRY(builder.Add(request));
      } else {
        RP_TRY(AddScaled(request, scale, shift_ns, &ids, &builder));
      }
      if (++requests % kProgressEvery == 0 && progress) progress(requests);
    }
    *skipped_lines += reader->skipped_lines();
    // The next round begins a mean gap after this one ended.
    const auto span = static_cast<double>(last_ns - first_ns) / scale.speed;
    shift_ns +=
        static_cast<Nanos>(span + span / static_cast<double>(std::max<uint64_t>(requests, 1)));
  }
  if (progress) progress(requests);
  return builder.Take();
}

}  // namespace reprise
