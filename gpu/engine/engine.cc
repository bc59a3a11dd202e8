#include "gpu/engine/engine.h"

#include <string>

namespace reprise::engine {
namespace {

absl::Status Wrong(size_t index, const std::string& what) {
  return InvalidArgument("segment " + std::to_string(index) + ": " + what);
}

absl::Status CheckSegment(const ModelGeometry& geometry, size_t index, const Segment& segment) {
  const size_t end = segment.tokens.size();
  const std::string rows = "[" + std::to_string(segment.first) + ", " + std::to_string(end) + ")";
  if (segment.first >= end) return Wrong(index, "its rows " + rows + " are none");
  if (end > geometry.config.max_positions) {
    return Wrong(index, "position " + std::to_string(end - 1) + " is beyond the model's " +
                            std::to_string(geometry.config.max_positions));
  }
  if (segment.encoder_from > segment.first || segment.decoder_from > segment.decoder_first ||
      segment.decoder_first < segment.first || segment.decoder_first > end ||
      segment.logits_from < segment.decoder_first || segment.logits_from > end) {
    return Wrong(
        index, "encoder_from, decoder_from, decoder_first and logits_from do not fit rows " + rows);
  }
  if (segment.memory.window == nullptr ||
      segment.memory.blocks.size() < (end + kBlockTokens - 1) / kBlockTokens) {
    return Wrong(index, "a window, and a block for every 128 tokens up to " + std::to_string(end) +
                            ", are needed");
  }
  for (size_t i = segment.first; i < end; ++i) {
    if (segment.tokens[i] >= 0 &&
        static_cast<uint32_t>(segment.tokens[i]) < geometry.config.vocab_size) {
      continue;
    }
    return Wrong(index, "token " + std::to_string(segment.tokens[i]) + " at position " +
                            std::to_string(i) + " is not in the vocabulary of " +
                            std::to_string(geometry.config.vocab_size));
  }
  if (segment.image_marks.empty()) return absl::OkStatus();
  if (segment.image_marks.size() != end) return Wrong(index, "one image mark per token is needed");
  size_t marked = 0;
  for (size_t i = segment.first; i < end; ++i) marked += segment.image_marks[i] != 0 ? 1 : 0;
  if (segment.image_rows.size() != marked * geometry.config.hidden_size) {
    return Wrong(index, "image_rows must hold one embedding for each of its " +
                            std::to_string(marked) + " marked rows");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint32_t> CheckSegments(const Engine& engine, std::span<const Segment> batch) {
  uint64_t rows = 0;
  uint32_t logit_rows = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    RP_TRY(CheckSegment(engine.geometry(), i, batch[i]));
    rows += batch[i].tokens.size() - batch[i].first;
    logit_rows += static_cast<uint32_t>(batch[i].tokens.size()) - batch[i].logits_from;
  }
  if (rows > engine.rows_max()) {
    return InvalidArgument("a call of " + std::to_string(rows) + " rows; at most " +
                           std::to_string(engine.rows_max()) + " fit, cut it into several");
  }
  return logit_rows;
}

absl::Status CheckForward(const Engine& engine, std::span<const Segment> batch,
                          std::span<const LogitRow> rows) {
  RP_ASSIGN(const uint32_t count, CheckSegments(engine, batch));
  if (rows.size() == count) return absl::OkStatus();
  return InvalidArgument(std::to_string(rows.size()) + " rows take logits or tokens; " +
                         std::to_string(count) + " rows give them");
}

absl::Status Engine::Forward(std::span<const Segment> batch, std::span<float> logits) {
  const size_t vocab = geometry().config.vocab_size;
  if (logits.size() % vocab != 0) {
    return InvalidArgument("logits has " + std::to_string(logits.size()) +
                           " places, which are no rows of the vocabulary of " +
                           std::to_string(vocab));
  }
  std::vector<LogitRow> rows(logits.size() / vocab);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].choose = false;
    rows[i].logits = &logits[i * vocab];
  }
  return ForwardRows(batch, rows);
}

absl::Status CheckDraftRequests(const Engine& engine, std::span<const DraftRequest> requests,
                                std::span<const DraftResult> results) {
  const ModelConfig& config = engine.geometry().config;
  if (config.draft_stages == 0) {
    return FailedPrecondition("this model has no draft stages (num_nextn_predict_layers is 0)");
  }
  if (results.size() != requests.size()) {
    return InvalidArgument("as many results as draft requests are needed");
  }
  for (const DraftRequest& request : requests) {
    const bool known =
        request.token >= 0 && static_cast<uint32_t>(request.token) < config.vocab_size;
    const bool drawn = request.draws.empty() || request.draws.size() == config.draft_block;
    if (request.memory.window != nullptr && known && drawn &&
        request.decoder_from <= request.length) {
      continue;
    }
    return InvalidArgument(
        "a draft request needs a window, a token of the vocabulary, "
        "decoder_from up to its length, and draws for none of its drafts or for all");
  }
  return absl::OkStatus();
}

}  // namespace reprise::engine
