#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// The steps of a layer as launches. Pointers are to device memory unless they say otherwise;
// values are bf16 (uint16_t here) where the model stores bf16, else float. What becomes of a row
// never depends on the other rows. Every function queues on `stream` and returns the launch's
// error.
namespace reprise::engine::cuda {

using Bf16Bits = uint16_t;

// ---- What the rows of a call are ---------------------------------------------------------------

// Consecutive rows of one sequence (Segment), laid end to end with those of the others.
struct DevicePart {
  std::byte* window = nullptr;
  uint32_t first_block = 0;  // In StepView::blocks.
  uint32_t row = 0;          // Its first row.
  uint32_t rows = 0;
  uint32_t first = 0;         // Position of that row.
  uint32_t windows_from = 0;  // First position that the windows of this half hold.
  uint32_t write_from = 0;    // Rows before it write no global KV.
};
struct StepView {
  uint32_t rows = 0, parts = 0;
  const DevicePart* part = nullptr;       // [parts]
  const uint32_t* part_of_row = nullptr;  // [rows]
  const uint32_t* positions = nullptr;
  const int32_t* tokens = nullptr;
  const uint8_t* image = nullptr;
  std::byte* const* blocks = nullptr;  // Payloads, part after part.
  const float* cosines[2] = {};        // [rows][pairs]; [1]: of layers with a ratio.
  const float* sines[2] = {};
  uint32_t pairs = 0;
};

// LiveWindowLayout, as the device needs it.
struct WindowView {
  uint32_t window = 0, ring_rows = 0, code_bytes = 0, scale_bytes = 0;
  uint64_t layer_offset = 0;  // Of this layer in a window's memory.
  uint64_t tail_offset = 0;   // Of its (a, g), for a source of ratio 2.
  uint32_t tail_rows = 0;
};
// Where a source's entries lie in a block payload (SourcePlanes).
struct EntryView {
  uint32_t block_shift = 0;  // Entries of a block, as a power of two.
  uint32_t main_codes = 0, main_scales = 0, index_codes = 0, index_scales = 0;
  uint32_t main_code_bytes = 0, main_scale_bytes = 0, index_code_bytes = 0, index_scale_bytes = 0;
};

// cos and sin of position x frequency, for StepView: of layers without and with a ratio.
struct RotationCall {
  const uint32_t* positions = nullptr;  // [rows]
  uint32_t rows = 0, pairs = 0;
  const float* frequencies[2] = {};  // [pairs]
  float* cosines[2] = {};            // [rows][pairs]
  float* sines[2] = {};
};
cudaError_t LaunchRotations(const RotationCall& call, cudaStream_t stream);

// ---- Streams and hyper-connections (model-facts section 7) -------------------------------------

struct StreamShape {
  uint32_t hidden = 0;  // A multiple of 64.
  float eps = 0;
};

// stream [rows][4][hidden], pre [rows][4]. image_rows [marked rows][hidden], by image_index [rows].
cudaError_t LaunchEmbed(const StepView& step, const Bf16Bits* table, const Bf16Bits* image_rows,
                        const uint32_t* image_index, uint32_t hidden, Bf16Bits* stream, float* pre,
                        cudaStream_t cuda);

// What a sublayer gives, for stream = post h + comb stream. post null: nothing.
struct StreamAdd {
  const float* post = nullptr;  // [rows][4]
  const float* comb = nullptr;  // [rows][4][4]
  const Bf16Bits* h = nullptr;  // [rows][hidden]; null: the sum of what follows.
  // What the ranks have of h, [ranks][part_stride], added by rank; null: experts' outputs.
  const float* parts = nullptr;
  uint32_t ranks = 0;
  uint64_t part_stride = 0;
  uint32_t chosen = 0;
  const uint32_t* slot_of = nullptr;  // [rows][chosen]: a row's slots are added in order,
  const Bf16Bits* outputs = nullptr;  // [slots][hidden]
  const Bf16Bits* shared = nullptr;   // [rows][hidden]: then the shared expert's.
};
// As LaunchSumParts makes an h of parts.
cudaError_t LaunchUpdate(const StreamShape& shape, uint32_t rows, const StreamAdd& add,
                         Bf16Bits* stream, cudaStream_t cuda);

struct MixWeights {
  const float* base = nullptr;   // [24]
  const float* scale = nullptr;  // [3]
  uint32_t iterations = 0;
  float eps = 0;
};
// From sums over the stream of rows to pre, post and comb.
struct MixesCall {
  StreamShape shape;
  uint32_t rows = 0;  // 0: none.
  MixWeights weights;
  float* partials = nullptr;  // [rows][hidden / 64][kMixPartials]
  float* pre = nullptr;       // [rows][4]
  float* post = nullptr;      // [rows][4]
  float* comb = nullptr;      // [rows][4][4]
};
inline constexpr uint32_t kMixPartials = 32;
cudaError_t LaunchMixes(const MixesCall& call, cudaStream_t stream);

// The update, then x = norm(collapse(stream, pre)), also through quantiser A; the sums of the
// stream become `mixes`, for the round after that.
struct MixCall {
  MixesCall mixes;
  StreamAdd add;
  const Bf16Bits* stream = nullptr;
  Bf16Bits* updated = nullptr;  // Not `stream`; nothing is written there when nothing is added.
  const float* pre = nullptr;
  const Bf16Bits* fn = nullptr;  // PackMix
  const float* norm = nullptr;
  Bf16Bits* y = nullptr;  // [rows][hidden]: the collapse before the norm.
  Bf16Bits* x = nullptr;
  Bf16Bits* x_round = nullptr;
};
// Of the mixes only the sums, in `partials`: the rest takes longer than all else, nobody wants it
// before the next LaunchMix, and a launch in between takes it along at no cost of time (`mixes` of
// ProjectedCall and RouteCall), or else LaunchMixes does it. Up to so many rows are one launch,
// which leaves partial sums; more are two, which leave a row's sums where the first of its partial
// ones was.
inline constexpr uint32_t kPartialMixes = 8;
cudaError_t LaunchMix(const MixCall& call, cudaStream_t stream);

// x = norm(collapse(stream, pre)) alone. y null: the collapse before the norm is not wanted.
cudaError_t LaunchCollapse(const StreamShape& shape, uint32_t rows, const Bf16Bits* stream,
                           const float* pre, const float* norm, Bf16Bits* y, Bf16Bits* x,
                           cudaStream_t cuda);
// Mean over the copies, into out [rows][targets][hidden] at `tap`.
cudaError_t LaunchTap(const StreamShape& shape, uint32_t rows, const Bf16Bits* stream, uint32_t tap,
                      uint32_t targets, Bf16Bits* out, cudaStream_t cuda);
// to[i] = from[index[i]], rows of `bytes` (a multiple of 16).
cudaError_t LaunchGatherRows(const void* from, const uint32_t* index, uint32_t rows, uint32_t bytes,
                             void* to, cudaStream_t cuda);

// ---- Around the products -----------------------------------------------------------------------

// y = x through quantiser A, in groups of 32; count a multiple of 32. y may be x.
cudaError_t LaunchRoundA(const Bf16Bits* x, uint64_t count, Bf16Bits* y, cudaStream_t stream);
// y = norm(x) w, then through quantiser A when `round`.
cudaError_t LaunchNorm(const Bf16Bits* x, uint64_t x_stride, const float* weight, uint32_t count,
                       uint32_t rows, float eps, bool round, Bf16Bits* y, uint64_t y_stride,
                       cudaStream_t stream);
// What attention takes from wq_a's and wkv's product [rows][low + dim]: the queries' low-rank part
// is normed, and goes through quantiser A, in place; the window row is normed, rotated and becomes
// codes and scales. `ring` not null: also there (see LaunchWriteWindows), which is right before
// attention only when no part has more rows than a ring has to spare.
struct ProjectedCall {
  StepView step;
  int rotation = 0;
  Bf16Bits* projected = nullptr;
  uint32_t low = 0, dim = 0;
  const float* q_norm = nullptr;  // Null: the window rows alone.
  const float* kv_norm = nullptr;
  float eps = 0;
  uint8_t* codes = nullptr;          // [rows][dim]
  uint8_t* scales = nullptr;         // [rows][dim / 32]
  const WindowView* ring = nullptr;  // On the host.
  // Taken along, perhaps while the launch before still runs: a product lies between LaunchMix and
  // this. Of `step`'s rows, or none.
  MixesCall mixes;
};
cudaError_t LaunchProjected(const ProjectedCall& call, cudaStream_t stream);
// Turns the last 2 pairs values of every head of q [rows][heads][dim].
cudaError_t LaunchRotateHeads(const StepView& step, int rotation, Bf16Bits* q, uint32_t heads,
                              uint32_t dim, cudaStream_t stream);
// Rows' window rows into their rings; of a part longer than the ring, the last ones.
cudaError_t LaunchWriteWindows(const StepView& step, const WindowView& windows,
                               const uint8_t* codes, const uint8_t* scales, cudaStream_t stream);

// ---- Attention (model-facts sections 3.5 to 3.7) -----------------------------------------------

struct AttentionCall {
  StepView step;
  int rotation = 0;
  WindowView windows;
  EntryView entries;
  const Bf16Bits* query = nullptr;     // [rows][heads][dim], rotated unless rotate_query.
  const uint8_t* kv_codes = nullptr;   // [rows][dim]: the rows' own window rows.
  const uint8_t* kv_scales = nullptr;  // [rows][dim / 32]
  const int32_t* selected = nullptr;   // [rows][topk], ascending, -1 after the last; null: none.
  uint32_t topk = 0;
  const float* sinks = nullptr;  // [heads]
  uint32_t heads = 0, dim = 0;
  float scale = 0;
  Bf16Bits* out = nullptr;  // [rows][heads][dim], turned back.
  // All rows of a part see the window before its first position and one another (DSpark drafts).
  bool drafts = false;
  // The last 2 pairs values of every head of the query are still to be turned (LaunchRotateHeads).
  bool rotate_query = false;
  // kAttentionRoomBytes, for what blocks of few rows send each other; null: rows take longer.
  void* room = nullptr;
};
inline constexpr uint32_t kSpreadRowsMax = 16;
inline constexpr uint32_t kAttentionRoomBytesOfRow = 10 * (8192 + 512);
inline constexpr uint32_t kAttentionRoomBytes = kSpreadRowsMax * kAttentionRoomBytesOfRow;
cudaError_t LaunchAttention(const AttentionCall& call, cudaStream_t stream);
// For any shape, without the matrix units: what the faster ones are compared with.
cudaError_t LaunchSimpleAttention(const AttentionCall& call, cudaStream_t stream);

// ---- Global KV (model-facts sections 4 and 5.1) ------------------------------------------------

// A group of tokens that ends in a row of this call.
inline constexpr uint32_t kNoPart = 0xffffffff;
struct DeviceGroup {
  uint32_t part = 0, entry = 0;
  uint32_t row = 0;        // Of its last token.
  uint32_t from_tail = 0;  // Ratio 2: its first token was an earlier call's.
};
// Latents [groups][dim], normed, bf16. Ratio 2: a, g [rows][dim] float; ratio 1: a bf16.
cudaError_t LaunchLatents(const StepView& step, const WindowView& windows,
                          const DeviceGroup* groups, uint32_t count, uint32_t ratio, const void* a,
                          const float* g, const float* norm, uint32_t dim, float eps,
                          Bf16Bits* latents, cudaStream_t stream);
// Keys [groups][index_dim] are normed, rotated and stored, latents rotated and stored.
cudaError_t LaunchWriteEntries(const StepView& step, const EntryView& entries,
                               const DeviceGroup* groups, uint32_t count, uint32_t ratio,
                               const float* frequencies, const Bf16Bits* latents, uint32_t dim,
                               const Bf16Bits* keys, const float* key_norm, uint32_t index_dim,
                               float eps, cudaStream_t stream);
// (a, g) of the parts' last even positions into their tails.
cudaError_t LaunchStoreTails(const StepView& step, const WindowView& windows, const float* a,
                             const float* g, uint32_t dim, cudaStream_t stream);

// ---- Selection (model-facts sections 5.2 to 5.5) -----------------------------------------------

// q [rows][heads][dim] -> rotated, through quantiser C, as bf16 values in place.
cudaError_t LaunchIndexQueries(const StepView& step, Bf16Bits* q, uint32_t heads, uint32_t dim,
                               cudaStream_t stream);
inline constexpr uint32_t kRowsThatShareKeys = 4;
struct ScoreCall {
  StepView step;
  EntryView entries;
  uint32_t ratio = 0;
  uint32_t row = 0, rows = 0;         // Rows of the step that are scored.
  bool one_part = false;              // They all are of one part.
  const Bf16Bits* queries = nullptr;  // [step rows][heads][dim]
  const Bf16Bits* weights = nullptr;  // [step rows][heads]
  float factor = 0;                   // Of the weights.
  uint32_t heads = 0, dim = 0;
  float* scores = nullptr;  // [rows][stride]
  uint64_t stride = 0;
  const uint32_t* candidates = nullptr;  // [rows][stride] entries; null: all that are visible.
  const uint32_t* candidate_counts = nullptr;  // [rows]
};
cudaError_t LaunchScores(const ScoreCall& call, uint32_t entries_max, cudaStream_t stream);
struct SelectCall {
  StepView step;
  uint32_t ratio = 0;
  uint32_t row = 0, rows = 0;
  const float* scores = nullptr;  // [rows][stride]; 16-byte rows.
  uint64_t stride = 0;
  const uint32_t* candidates = nullptr;
  const uint32_t* candidate_counts = nullptr;
  uint32_t topk = 0;
  int32_t* selected = nullptr;  // [step rows][topk]
  void* room = nullptr;         // SelectRoomBytes(), if there are scores.
  uint32_t entries_max = 0;     // Scores of a row at most.
};
uint64_t SelectRoomBytes();
// The best of each row, ascending; of equal scores the lower entries. scores null: all are visible
// and no more than topk.
cudaError_t LaunchSelect(const SelectCall& call, cudaStream_t stream);
struct PoolCall {
  StepView step;
  uint32_t row = 0, rows = 0;
  const float* scores = nullptr;  // [rows][stride], of all that are visible; 16-byte rows.
  uint64_t stride = 0;
  void* room = nullptr;      // SelectRoomBytes()
  uint32_t entries_max = 0;  // Of a row at most.
  uint32_t block = 0, blocks_max = 0;
  uint32_t* candidates = nullptr;        // [step rows][blocks_max x block], ascending
  uint32_t* candidate_counts = nullptr;  // [step rows]
};
cudaError_t LaunchPool(const PoolCall& call, cudaStream_t stream);

// ---- Experts (model-facts section 8) -----------------------------------------------------------

struct ExpertTile;
inline constexpr uint32_t kNoSlot = 0xffffffff;
// Which experts a row goes to, with what weights; and the rows of every expert, as tiles.
struct RouteCall {
  uint32_t rows = 0, experts = 0, chosen = 0;
  const float* logits = nullptr;  // [rows][experts]
  const float* bias = nullptr;
  const float* image_bias = nullptr;
  const uint8_t* image = nullptr;
  float scaling = 0;
  // Experts of this rank: tiles count from the first of them, choices of others get kNoSlot.
  uint32_t own_first = 0, own = 0;
  uint32_t tile_rows = 0;
  uint32_t* ticket = nullptr;     // 0 between launches.
  uint32_t* expert_of = nullptr;  // [rows][chosen], ascending
  float* weight_of = nullptr;     // [rows][chosen]
  uint32_t* slot_of = nullptr;    // [rows][chosen]
  uint32_t* row_of = nullptr;     // [rows x chosen] by slot
  float* slot_weights = nullptr;  // by slot
  ExpertTile* tiles = nullptr;
  uint32_t* tile_count = nullptr;
  MixesCall mixes;  // Taken along, after the product with the gate or beside it.
};
// `gate`: the product that gives the logits, in the same launch for up to 8 rows.
struct LinearCall;
cudaError_t LaunchRoute(const LinearCall& gate, const RouteCall& call, cudaStream_t stream);

// ---- Engram (model-facts section 9) ------------------------------------------------------------

// Table rows [first, first + count), of codes [..][dim] and scales [..][dim / 32].
struct EngramTable {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  uint64_t first = 0, count = 0;
  uint32_t dim = 0;
};
// table_rows [rows][per_token] -> e [rows][per_token x dim], through quantiser A; zeros for rows
// that the table does not have.
cudaError_t LaunchEngramLookup(const uint64_t* table_rows, uint32_t rows, uint32_t per_token,
                               const EngramTable& table, Bf16Bits* e, cudaStream_t stream);
// kv [rows][5][hidden]: a key for each copy, then the value. qk [4][hidden].
cudaError_t LaunchEngramGate(const StreamShape& shape, uint32_t rows, const uint8_t* image,
                             const Bf16Bits* kv, const float* qk, Bf16Bits* stream,
                             cudaStream_t cuda);

// ---- Sums over ranks ---------------------------------------------------------------------------

// Counts are even. out = bf16 of the sum of parts [ranks][count], by rank.
cudaError_t LaunchSumParts(const float* parts, uint32_t ranks, uint64_t count, Bf16Bits* out,
                           cudaStream_t stream);
// The same of parts of which one at most is not 0.
cudaError_t LaunchJoinParts(const Bf16Bits* parts, uint32_t ranks, uint64_t count, Bf16Bits* out,
                            cudaStream_t stream);
// This rank's experts' outputs of a row, in order, then the shared one's (null: another rank's).
cudaError_t LaunchSumExperts(uint32_t hidden, uint32_t rows, const StreamAdd& add, float* out,
                             cudaStream_t stream);

}  // namespace reprise::engine::cuda
