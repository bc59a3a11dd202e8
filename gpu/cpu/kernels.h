#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// The CPU backend's inner loops, compiled once for each instruction set and chosen when the program
// starts. All of them give the same bits (simd16.h), and what a row becomes never depends on the
// other rows of a call: that makes the engine deterministic and batch-invariant.
//
// Values are float, and hold bf16 values where the model says so. Counts are multiples of 16 unless
// a comment says otherwise. No function allocates or blocks; any thread.
namespace reprise::engine::cpu {

// A weight matrix [outputs, inputs], packed by PackedMatrix: tiles of 32 outputs, each [inputs][32]
// bf16 in pairs (output i in the low half of word i, output i + 16 in the high half), or float.
inline constexpr uint32_t kTileOutputs = 32;

struct MatrixTiles {
  const uint32_t* bf16 = nullptr;  // [tiles][inputs][16] words; null when the weights are float.
  const float* fp32 = nullptr;     // [tiles][inputs][32]
  uint32_t inputs = 0;
  uint32_t outputs = 0;
};

// y[row][o] = sum over i of x[row][i] w[o][i], for outputs of tiles [tile_begin, tile_end).
// Summed in chains of 32 inputs, and these in order. `scratch` holds inputs x 32 floats.
struct MatrixCall {
  MatrixTiles matrix;
  const float* x = nullptr;
  size_t x_stride = 0;  // Floats from row to row.
  float* y = nullptr;
  size_t y_stride = 0;
  uint32_t rows = 0;
  uint32_t tile_begin = 0;
  uint32_t tile_end = 0;
  bool round_bf16 = false;
  float* scratch = nullptr;
};

// One block of at most 64 keys of an attention row: online softmax with probabilities rounded to
// bf16 before they meet the values (model-facts section 3.6). Keys are also the values.
inline constexpr uint32_t kAttentionBlock = 64;
struct AttentionCall {
  const float* query = nullptr;  // [heads][dim]
  uint32_t heads = 0;
  uint32_t dim = 0;
  float scale = 0;
  const float* const* keys = nullptr;  // `count` pointers to dim floats.
  uint32_t count = 0;
  float* top = nullptr;    // [heads] running maximum.
  float* total = nullptr;  // [heads] running denominator.
  float* sum = nullptr;    // [heads][dim] running numerator.
};

inline constexpr uint32_t kIndexEntries = 32;
// Of 16 keys: a byte for every value, then for every group of 32 its scale and what its sums start
// from.
constexpr size_t IndexTileBytes(uint32_t dim) {
  return kIndexEntries / 16 * (size_t{dim} * 16 + size_t{dim} / 32 * 16 * 8);
}
// A byte for every value, then the scale of every group.
constexpr size_t IndexQueryBytes(uint32_t dim) { return size_t{dim} + size_t{dim} / 32 * 4; }

struct Kernels {
  const char* name;

  // y may be x. Groups and rounding of model-facts section 2.4.
  void (*quantise_a)(const float* x, size_t count, uint8_t* codes, uint8_t* scales);
  void (*quantise_b)(const float* x, size_t count, uint8_t* codes, uint8_t* scales);
  void (*quantise_c)(const float* x, size_t count, uint8_t* codes, uint8_t* scales);
  void (*dequantise_a)(const uint8_t* codes, const uint8_t* scales, size_t count, float* x);
  void (*dequantise_b)(const uint8_t* codes, const uint8_t* scales, size_t count, float* x);
  void (*dequantise_c)(const uint8_t* codes, const uint8_t* scales, size_t count, float* x);
  // Quantises by A and dequantises at once: an activation on its way into an FP8 linear.
  void (*round_a)(const float* x, size_t count, float* y);
  void (*round_bf16)(const float* x, size_t count, float* y);

  // bf16(x / rms(x) * weight); eps is added to the mean square.
  void (*rms_norm)(const float* x, const float* weight, size_t count, float eps, float* y);
  // 1 / sqrt(mean(x^2) + eps).
  float (*inverse_rms)(const float* x, size_t count, float eps);
  // Turns pairs of adjacent elements of x[0, 2 pairs) by (cos, sin); rounds to bf16.
  void (*rotate)(float* x, const float* cosines, const float* sines, size_t pairs);

  void (*matrix)(const MatrixCall& call);

  void (*attention_block)(const AttentionCall& call);
  // out = bf16(sum / (total + e^(sink - top))).
  void (*attention_end)(const AttentionCall& call, const float* sinks, float* out);

  // Index scores: sum over heads of weight x max(0, q . k), exact in the dot products. E2M1 codes
  // are small integers times a power of two, so the products are those of bytes.
  //   index_tile   kIndexEntries keys, by their stored codes and scales, into IndexTileBytes(dim)
  //   index_query  one head's query, by its codes and scales, into IndexQueryBytes(dim)
  //   index_scores queries [row][heads], weights [row][heads]; scores[row * stride + entry]; heads
  //                are a multiple of 4
  void (*index_tile)(const uint8_t* const* codes, const uint8_t* const* scales, uint32_t dim,
                     uint8_t* tile);
  void (*index_query)(const uint8_t* codes, const uint8_t* scales, uint32_t dim, uint8_t* query);
  void (*index_scores)(const uint8_t* tile, const uint8_t* queries, const float* weights,
                       uint32_t heads, uint32_t dim, uint32_t rows, float* scores, size_t stride);

  // The largest of every `size` values.
  void (*block_tops)(const float* values, uint32_t blocks, uint32_t size, float* tops);
  // Indices of the `wanted` largest of values[0, count), ascending; of equal ones the first are
  // in. Returns how many. Any count; values are finite.
  uint32_t (*largest)(const float* values, uint32_t count, uint32_t wanted, uint32_t* indices);

  // bf16(silu(min(a, limit)) * clamp(b, -limit, limit) * weight).
  void (*swiglu)(const float* a, const float* b, float weight, float limit, size_t count, float* y);
  // Two tokens' (a, g): bf16(softmax over the two g, per channel, times a). count: channels.
  void (*compress_pair)(const float* a0, const float* g0, const float* a1, const float* g1,
                        size_t count, float* y);

  // Hyper-connections of 4 copies. mixes [row][24 or more] -> pre, post [row][4], comb [row][4][4];
  // at most sixteen rows; stride: floats from row to row of mixes, which are multiplied by the
  // row's inverse_rms first.
  void (*mhc_split)(const float* mixes, size_t stride, const float* inverse_rms, uint32_t rows,
                    const float* base, const float* scale, uint32_t iterations, float eps,
                    float* pre, float* post, float* comb);
  // y = bf16(sum over c of pre[c] x[c]); x [4][count].
  void (*mhc_collapse)(const float* x, const float* pre, size_t count, float* y);
  // x[k] = bf16(post[k] h + sum over a of comb[a][k] x[a]), in place.
  void (*mhc_update)(const float* h, const float* post, const float* comb, size_t count, float* x);
  // x[i] += gate * value[i], bf16.
  void (*add_scaled)(float gate, const float* value, size_t count, float* x);
  // y[i] += x[i].
  void (*add)(const float* x, size_t count, float* y);
  // sum of a[i] b[i] c[i].
  float (*dot3)(const float* a, const float* b, const float* c, size_t count);
};

// The best that this machine can run: "avx512vnni", "avx512", "avx2" or "portable".
const Kernels& BestKernels();
// All that this machine can run, best first.
std::span<const Kernels* const> RunnableKernels();

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512VnniKernels;

}  // namespace reprise::engine::cpu
