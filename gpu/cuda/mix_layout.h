#pragma once

#include <cstdint>
#include <span>
#include <vector>

// How the mixing weights of hyper-connections lie in device memory. Host code alone.
//
// Their 24 sums over the stream are wanted in float. A weight is cut into three bf16 pieces, whose
// sum it is but for its last bit or so; products of pieces with bf16 streams are exact, and the
// matrix units add them in float.
//
//   [hidden / 64][4 copies][72 rows: 24 largest pieces, 24 middle, 24 smallest][64 values]
//
// with the 16-byte pieces of a row swizzled by 128 bytes, as operand B of wgmma.
namespace reprise::engine::cuda {

inline constexpr uint32_t kMixes = 24;
inline constexpr uint32_t kMixPieces = 3;
inline constexpr uint32_t kMixTileValues = kMixPieces * kMixes * 64;

// fn [24][4 x hidden]; hidden is a multiple of 64.
std::vector<uint16_t> PackMix(std::span<const float> fn, uint32_t hidden);

}  // namespace reprise::engine::cuda
