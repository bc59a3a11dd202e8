#pragma once

#include <cstdint>

// The largest model that a configuration may describe. All far above V4.1-Flash, and small enough
// that no product of shapes passes 64 bits and no allocation follows a hostile number.
namespace reprise::engine {

inline constexpr uint64_t kConfigBytesMax = 1 << 20;  // Of config.json.

inline constexpr uint32_t kLayersMax = 256;
inline constexpr uint32_t kDraftStagesMax = 16;
inline constexpr uint32_t kVocabMax = 1 << 22;
inline constexpr uint32_t kHiddenMax = 1 << 16;
inline constexpr uint32_t kPositionsMax = 1 << 30;
inline constexpr uint32_t kHeadsMax = 1024;
inline constexpr uint32_t kHeadDimMax = 4096;
inline constexpr uint32_t kRankMax = 1 << 16;  // q_lora_rank, o_lora_rank, dspark_markov_rank.
inline constexpr uint32_t kWindowMax = 1 << 14;
inline constexpr uint32_t kTopkMax = 1 << 16;               // index_topk and candidate_topk_blocks.
inline constexpr uint32_t kCandidateBlockMax = 1 << 12;     // candidate_block_size
inline constexpr uint32_t kExpertsMax = 4096;               // Routed, of a layer.
inline constexpr uint32_t kExpertDimMax = 1 << 16;          // moe_intermediate_size
inline constexpr uint32_t kHcMultMax = 16;                  // Copies of the stream.
inline constexpr uint32_t kSinkhornItersMax = 1000;         // hc_sinkhorn_iters
inline constexpr uint32_t kEngramNgramMax = 8;              // engram_max_ngram_size
inline constexpr uint32_t kEngramHeadsMax = 64;             // engram_n_heads
inline constexpr uint64_t kEngramVocabMax = 1 << 26;        // engram_vocab_size
inline constexpr uint64_t kEngramRowsMax = 1ull << 36;      // Of a table.
inline constexpr uint32_t kDraftBlockMax = 64;              // dspark_block_size
inline constexpr uint32_t kVisionPatchMax = 256;            // patch_size
inline constexpr uint32_t kVisionDownsampleMax = 16;        // downsample_ratio
inline constexpr uint32_t kVisionImageTokensMax = 1 << 20;  // max_image_tokens

// Weights are quantised in blocks of 32 x 32, activations and cache rows in groups of 32: what is a
// side of a quantised matrix or a row of a cache must be a multiple of it.
inline constexpr uint32_t kQuantBlock = 32;

}  // namespace reprise::engine
