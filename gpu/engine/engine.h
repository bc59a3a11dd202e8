#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "gpu/checkpoint/checkpoint.h"
#include "gpu/engine/engine_memory.h"
#include "gpu/engine/live_window.h"
#include "gpu/engine/token_draw.h"
#include "gpu/model/model_geometry.h"

namespace reprise::engine {

// What a sequence's state lies in. The caller lends it: block payloads in the record format, so
// that what the store keeps is what attention reads, and one live window; all of it of the kind
// that the engine's memory() is.
//
// All of it is addressed by absolute position. Taking rows back (a rejected draft, a shorter
// prefix) is therefore only to go on from an earlier position.
struct SequenceMemory {
  // Payload of block i: tokens [128 i, 128 (i + 1)). Every block up to the last row's, aligned to
  // 64 bytes. Payloads before write_from are only read.
  std::span<std::byte* const> blocks;
  std::byte* window = nullptr;  // LiveWindowLayout::bytes, aligned to 64 bytes.
};

// Consecutive rows of one sequence in one call.
struct Segment {
  SequenceMemory memory;
  // Ids of the whole sequence up to the last row: the rows are [first, tokens.size()). Engram looks
  // back three ids before `first`.
  std::span<const TokenId> tokens;
  uint32_t first = 0;

  // Rows before this position are replayed: they rebuild windows and never write global KV.
  uint32_t write_from = 0;
  // Encoder windows in memory hold positions [encoder_from, first). first: they are empty, and the
  // rows see no further back than the first of them (bounded replay).
  uint32_t encoder_from = 0;
  // Rows from here on go through the decoder as well; tokens.size(): none do.
  uint32_t decoder_first = 0;
  // Decoder and draft windows hold [decoder_from, decoder_first). decoder_first: they are empty.
  uint32_t decoder_from = 0;
  // Rows from here on give logits; not before decoder_first. tokens.size(): none.
  uint32_t logits_from = 0;

  // One per token of `tokens` that belongs to an image span; empty: none does. Such rows take their
  // embedding from image_rows: [marked rows of this segment][hidden_size], bf16 values.
  std::span<const uint8_t> image_marks;
  std::span<const float> image_rows;
};

// What is wanted of a row that gives logits: the token after it, or the logits themselves, or both.
// A token costs four bytes on the way from a device, whole logits half a megabyte.
struct LogitRow {
  TokenDraw draw;
  bool choose = true;       // False: `token` is left as it is.
  float* logits = nullptr;  // Takes vocab_size of them. Null: they are not wanted.
  TokenId token = 0;        // ChooseToken(draw, the row's logits).
};

// A draft wanted after `token`, which was chosen for position `length` and is not yet run.
struct DraftRequest {
  SequenceMemory memory;
  uint32_t length = 0;        // Tokens whose state is in memory.
  uint32_t decoder_from = 0;  // Draft windows hold [decoder_from, length).
  TokenId token = 0;
  std::vector<TokenDraw> draws;  // Of draft k, or empty: the likeliest each.
};
struct DraftResult {
  std::vector<TokenId> tokens;     // For positions length + 1, length + 2, ...
  std::vector<float> confidences;  // Estimated chance that each is accepted, given those before.
};

struct EngineCounters {
  uint64_t encoder_rows = 0;
  uint64_t decoder_rows = 0;
  uint64_t replayed_rows = 0;  // Rows before write_from, of encoder_rows.
  uint64_t draft_steps = 0;
  uint64_t global_entries = 0;  // Written.
};

// Runs a model. What a row computes, and every byte it stores, depends on the sequence and on the
// windows it finds, never on how rows are cut into calls, on the other segments of a call or on the
// number of threads.
//
// A backend provides ForwardRows and Draft. Tokens are chosen there, from logits that stay where
// they were computed, and are those that the host's sampler would choose (token_draw.h). One call
// at a time; a call blocks until its rows are computed and the memory it was lent is quiet again.
// Segments of one call must not share a window nor a block that one of them writes.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const ModelGeometry& geometry() const = 0;
  virtual const LiveWindowLayout& window_layout() const = 0;
  virtual std::string_view backend() const = 0;  // "cpu/avx512"
  virtual uint32_t rows_max() const = 0;         // Of one call, over all segments.

  // The kind of memory that segments lend.
  virtual EngineMemory& memory() const { return HostMemory(); }
  // Called by a thread other than the one that made the engine, before its first call.
  virtual absl::Status EnterThread() { return absl::OkStatus(); }

  // Runs the rows. `rows`: those that give logits, segment after segment. InvalidArgument, before
  // anything is touched, for segments that contradict themselves.
  virtual absl::Status ForwardRows(std::span<const Segment> batch, std::span<LogitRow> rows) = 0;
  // All logits and no tokens: `logits` takes [rows that give logits][vocab_size].
  absl::Status Forward(std::span<const Segment> batch, std::span<float> logits);

  // Writes nothing to memory. FailedPrecondition when the model has no draft stages.
  virtual absl::Status Draft(std::span<const DraftRequest> requests,
                             std::span<DraftResult> results) = 0;

  virtual EngineCounters counters() const = 0;
};

// What a backend checks of segments; the number of logit rows.
absl::StatusOr<uint32_t> CheckSegments(const Engine& engine, std::span<const Segment> batch);
// The same, and that `rows` are as many.
absl::Status CheckForward(const Engine& engine, std::span<const Segment> batch,
                          std::span<const LogitRow> rows);
// What Draft checks of its requests, for every backend.
absl::Status CheckDraftRequests(const Engine& engine, std::span<const DraftRequest> requests,
                                std::span<const DraftResult> results);

struct CpuEngineOptions {
  uint32_t threads = 0;     // With the caller; 0: one per core.
  uint32_t rows_max = 512;  // Of one call: decides the memory for activations.
  // "avx512", "avx2", "portable"; empty: the best of this machine. All give the same bytes.
  std::string_view kernels;
};
// Loads and packs all weights; refuses a checkpoint that does not fit, by tensor. `engram_map`:
// token id to compressed id; may be empty where the model has no Engram.
absl::StatusOr<std::unique_ptr<Engine>> MakeCpuEngine(const ModelGeometry& geometry,
                                                      const Checkpoint& checkpoint,
                                                      std::vector<uint32_t> engram_map,
                                                      const CpuEngineOptions& options);

}  // namespace reprise::engine
