#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/cuda/kernels.h"

// What the kernels of a layer must give, one row at a time, as plain loops in the wording of the
// model's description. Values that are bf16 on the device are floats here; sums are in double
// unless their order is part of the contract.
namespace reprise::engine::cuda::reference {

using Floats = std::vector<float>;
using FloatSpan = std::span<const float>;

inline constexpr uint32_t kCopies = 4;

// ---- Streams and hyper-connections (model-facts section 7) -------------------------------------

void Rotations(uint32_t position, FloatSpan frequencies, float* cosines, float* sines);

// h of a row whose experts gave outputs [slots][hidden]: in float, in the order of its slots, then
// the shared expert's.
Floats SumOfExperts(FloatSpan outputs, std::span<const uint32_t> slots, FloatSpan shared);
// stream [4][hidden], post [4], comb [4][4].
Floats Update(FloatSpan stream, FloatSpan h, const float* post, const float* comb);
Floats Collapse(FloatSpan stream, const float* pre);
Floats MeanOfCopies(FloatSpan stream);

struct Mixes {
  float pre[kCopies], post[kCopies], comb[kCopies * kCopies];
  double spread[24];  // Root of the squared terms of each sum, after scaling: what errors go by.
};
struct MixParameters {
  FloatSpan fn, base, scale;  // [24][4 x hidden], [24], [3]
  uint32_t iterations = 0;
  float eps = 0;       // Of the split.
  float norm_eps = 0;  // Of the stream's rms.
};
Mixes MixesOf(FloatSpan stream, const MixParameters& parameters);
void Sinkhorn(double (&c)[kCopies][kCopies], uint32_t iterations, double eps);

// ---- Norms, rotation, quantisers (sections 2.4 and 3) ------------------------------------------

Floats Norm(FloatSpan x, FloatSpan weight, float eps);
// Through quantiser A and back; of C likewise.
Floats RoundA(FloatSpan x);
Floats RoundC(FloatSpan x);

struct Rotation {
  const float* cosines = nullptr;
  const float* sines = nullptr;
  uint32_t pairs = 0;
};
// The last 2 pairs values are turned.
Floats Turned(FloatSpan x, const Rotation& rotation);

struct Codes {
  std::vector<uint8_t> codes, scales;
};
Codes CodesA(FloatSpan x);
Codes CodesB(FloatSpan x);
Codes CodesC(FloatSpan x);

// A row's window row into the ring of its sequence.
void WriteWindow(const WindowView& view, uint32_t position, const uint8_t* codes,
                 const uint8_t* scales, uint8_t* window);

// ---- Global KV and selection (sections 4 and 5) ------------------------------------------------

// Of ratio 2, before the norm.
Floats MixedPair(FloatSpan a0, FloatSpan g0, FloatSpan a1, FloatSpan g1);
float* TailOf(const WindowView& view, uint32_t position, uint32_t dim, uint8_t* window);
// Whether (a, g) of a position is kept, in a call that ends at `end`.
bool IsKept(const WindowView& view, uint32_t position, uint32_t end, uint32_t write_from);

struct Entry {
  Codes main, index;
};
Entry EntryOf(FloatSpan latent, FloatSpan key, FloatSpan key_norm, float eps,
              const Rotation& rotation);
void WriteEntry(const EntryView& view, uint32_t entry, const Entry& value, uint8_t* payload);

// Entries of the best blocks, ascending; the newest block is always among them.
std::vector<uint32_t> Pool(FloatSpan scores, uint32_t block, uint32_t blocks_max);

// ---- Experts (section 8) -----------------------------------------------------------------------

struct Route {
  std::vector<uint32_t> experts;  // Ascending.
  Floats weights;
  // How far the last one that is chosen is above the best that is not, where they differ at all.
  double margin = 0;
};
Route RouteOf(FloatSpan logits, FloatSpan bias, uint32_t chosen, float scaling);

// silu(min(a, limit)) x clamp(c, limit) x weight.
float Swiglu(float a, float c, float limit, float weight);

// ---- Engram (section 9) ------------------------------------------------------------------------

// One table row, through quantiser A.
Floats TableRow(std::span<const uint8_t> codes, std::span<const uint8_t> scales);
// One copy of the stream, with the value added through its gate.
Floats Gated(FloatSpan stream, FloatSpan key, FloatSpan weight, FloatSpan value, float eps);

}  // namespace reprise::engine::cuda::reference
