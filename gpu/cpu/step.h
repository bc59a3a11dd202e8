#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/cpu/kernels.h"
#include "gpu/cpu/weights.h"
#include "gpu/cpu/worker_pool.h"
#include "gpu/engine/engine.h"
#include "gpu/engine/rope.h"

namespace reprise::engine::cpu {

// Where the entries of a source lie in a sequence's blocks.
struct EntryPlace {
  uint8_t* main_codes;
  uint8_t* main_scales;
  uint8_t* index_codes;
  uint8_t* index_scales;
};
class EntryMap {
 public:
  EntryMap(const ModelGeometry& geometry, const SourcePlanes& planes);

  EntryPlace Of(const SequenceMemory& memory, uint32_t entry) const {
    auto* payload = reinterpret_cast<uint8_t*>(memory.blocks[entry >> block_shift_]);
    const size_t row = entry & row_mask_;
    return {payload + planes_.main_codes + row * main_code_bytes_,
            payload + planes_.main_scales + row * main_scale_bytes_,
            payload + planes_.indexer_codes + row * index_code_bytes_,
            payload + planes_.indexer_scales + row * index_scale_bytes_};
  }

 private:
  SourcePlanes planes_;
  uint32_t block_shift_, row_mask_;  // A block's rows of a source are a power of two.
  uint32_t main_code_bytes_, main_scale_bytes_, index_code_bytes_, index_scale_bytes_;
};

// What the parts of the forward pass share: the model, and how to run loops. One caller at a time.
class Machine {
 public:
  Machine(const ModelGeometry& geometry, const ModelWeights& weights,
          const LiveWindowLayout& windows, const Kernels& kernels, uint32_t threads);

  const ModelGeometry& geometry;
  const ModelConfig& config;
  const ModelWeights& weights;
  const LiveWindowLayout& windows;
  const Kernels& kernels;
  WorkerPool pool;

  // Global entries that a layer reads or writes; it must have some.
  const EntryMap& EntriesOf(uint32_t layer) const {
    return entries_[source_index_[geometry.layers[layer].kv_source]];
  }

  // body(first, end, worker) over pieces of [0, rows) of at most `grain` rows.
  template <typename Body>
  void ForRows(uint32_t rows, uint32_t grain, Body&& body) {
    pool.Run((rows + grain - 1) / grain, [&](uint32_t piece, uint32_t worker) {
      const uint32_t first = piece * grain;
      body(first, std::min(rows, first + grain), worker);
    });
  }

  // y [rows, outputs] = x [rows, inputs] times the matrix. Several are run as one loop.
  struct Product {
    const PackedMatrix* matrix = nullptr;
    const float* x = nullptr;
    size_t x_stride = 0;
    float* y = nullptr;
    size_t y_stride = 0;
    uint32_t rows = 0;
    bool round_bf16 = true;
  };
  void Multiply(std::span<const Product> products);
  void Multiply(const Product& product) { Multiply({&product, 1}); }

  // Floats that a worker may use within one task.
  float* Scratch(uint32_t worker, size_t floats);

 private:
  struct Piece {
    uint32_t product, tile_begin, tile_end, row_begin, row_end;
  };
  std::vector<EntryMap> entries_;       // By source, in the order of the record.
  std::vector<uint32_t> source_index_;  // Of a Full layer: its place there. Else kNoLayer.
  std::vector<Piece> pieces_;
  std::vector<Floats> scratch_;
};

// cos and sin of every rotated pair, for a row's position: [rows][pairs].
struct Rotation {
  Floats cosines, sines;
};

// Rows of the segments of one call, laid end to end, and what becomes of them layer by layer.
struct Step {
  struct Part {
    const Segment* segment = nullptr;
    uint32_t row = 0;  // Its first row in the step.
    uint32_t rows = 0;
    uint32_t first = 0;         // Position of that row.
    uint32_t windows_from = 0;  // First position that the windows of this half hold, or will hold.
  };
  std::vector<Part> parts;
  uint32_t rows = 0;

  // Per row.
  std::vector<uint32_t> positions;
  std::vector<TokenId> tokens;
  std::vector<uint8_t> image;     // 1: of an image span.
  Rotation plain, compressed;     // [rows][pairs]
  Floats stream;                  // [rows][4][hidden], bf16 values.
  Floats pre;                     // [rows][4]
  Floats post, comb;              // [rows][4], [rows][4][4]
  std::vector<int32_t> selected;  // [rows][topk]: entries ascending, -1 after the last.
  std::vector<uint64_t> pool;     // [rows][pool_words]: candidate blocks, a bit each.
  uint32_t pool_words = 0;        // 0: everything is a candidate.
  Floats taps;                    // [rows][targets][hidden], for DSpark.
  uint32_t taps_taken = 0;

  // Within a layer.
  Floats x;        // [rows][hidden] normed input, bf16 values.
  Floats x_round;  // x through quantiser A.
  Floats qr;       // [rows][q_lora]
  Floats qr_round;
  Floats query;  // [rows][heads][dim]
  Floats kv;     // [rows][dim], dequantised.
  std::vector<uint8_t> kv_codes, kv_scales;
  Floats attended;  // [rows][heads][dim]
  Floats low;       // [rows][groups][rank]
  Floats low_round;
  Floats h;                          // [rows][hidden] of a sub-layer.
  Floats mixes;                      // [rows][32]
  std::vector<uint8_t> index_tiles;  // Keys of long parts, expanded.
  Floats past;                       // [parts][window - 1][dim]: window keys before the rows.
  Floats expert_input, expert_gate, expert_up, expert_inner, expert_output;
  Floats inverse_rms;

  // Makes room for `row_count` rows.
  void Resize(const ModelGeometry& geometry, uint32_t row_count);
  // Keeps rows [part.row + drop, part.row + part.rows) of each part: drops[i] rows go.
  void DropRows(const ModelGeometry& geometry, std::span<const uint32_t> drops);
};

// ---- The parts of a layer, each in its own file ------------------------------------------------

// step.cc: streams, pre and rotations of rows whose positions, tokens and image marks are set.
void EmbedRows(Machine& machine, const Rope& rope, Step& step);

// hyper_connections.cc: mixes of a sub-layer; new pre into `pre_next`, post and comb into the step.
void Mix(Machine& machine, const MhcWeights& weights, Step& step, Floats* pre_next);
// x = norm(collapse(stream, pre)), and x_round.
void CollapseAndNorm(Machine& machine, const Floats& norm, Step& step);
// stream = post h + comb stream.
void UpdateStream(Machine& machine, Step& step);

// engram.cc
void AddEngram(Machine& machine, const EngramWeights& weights, Step& step);

// attention.cc
const Rotation& RotationOf(const Machine& machine, uint32_t layer, const Step& step);
void Project(Machine& machine, uint32_t layer, Step& step);  // qr, query, kv.
void LocalKv(Machine& machine, uint32_t layer, const float* input_round, Step& step);  // kv alone.
void Attend(Machine& machine, uint32_t layer, Step& step);                             // attended.
void ProjectOut(Machine& machine, uint32_t layer, Step& step);                         // h.
void WriteWindows(Machine& machine, uint32_t layer, Step& step);

// global_kv.cc: entries that the rows from write_from on complete. x must be of this layer.
uint64_t WriteGlobal(Machine& machine, const Rope& rope, uint32_t layer, Step& step);

// selection.cc: selected (and the pool) of an index layer.
void Select(Machine& machine, uint32_t layer, Step& step);

// feed_forward.cc: h = MoE(x); and the whole sub-layer around it, from stream to stream.
void FeedForward(Machine& machine, uint32_t layer, Step& step);
void RunFeedForward(Machine& machine, uint32_t layer, Step& step);

// draft.cc
void WriteDraftContext(Machine& machine, Step& step);

}  // namespace reprise::engine::cpu
