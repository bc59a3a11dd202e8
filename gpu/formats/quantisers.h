#pragma once

#include <cstddef>
#include <cstdint>

namespace reprise::engine {

// The three quantisers of the model (model-facts section 2.4), as plain loops: the definition that
// the vector kernels must equal bit for bit. Groups are consecutive values; `count` is a multiple
// of the group. Inputs hold bf16 values. Codes of E2M1 are packed two a byte, the even value in the
// low nibble.

// A: activations and window rows. E4M3 codes, a UE8M0 scale per 32.
inline constexpr size_t kGroupA = 32;
void QuantiseA(const float* x, size_t count, uint8_t* codes, uint8_t* scales);
void DequantiseA(const uint8_t* codes, const uint8_t* scales, size_t count, float* x);

// B: main global KV. E2M1 codes, an E4M3 scale per 16.
inline constexpr size_t kGroupB = 16;
void QuantiseB(const float* x, size_t count, uint8_t* codes, uint8_t* scales);
void DequantiseB(const uint8_t* codes, const uint8_t* scales, size_t count, float* x);

// C: indexer keys and queries, and the form of FP4 weights. E2M1 codes, a UE8M0 scale per 32.
inline constexpr size_t kGroupC = 32;
void QuantiseC(const float* x, size_t count, uint8_t* codes, uint8_t* scales);
void DequantiseC(const uint8_t* codes, const uint8_t* scales, size_t count, float* x);

}  // namespace reprise::engine
