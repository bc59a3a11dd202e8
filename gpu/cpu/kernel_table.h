#pragma once

// The body of kernels_<isa>.cc: a Kernels of what this file's flags made. Needs RP_KERNELS_TABLE
// and RP_KERNELS_NAME.
#include "gpu/cpu/attention_kernels.h"
#include "gpu/cpu/elementwise_kernels.h"
#include "gpu/cpu/index_kernels.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/matrix_kernels.h"
#include "gpu/cpu/quantise_kernels.h"

namespace reprise::engine::cpu {

const Kernels RP_KERNELS_TABLE = {
    .name = RP_KERNELS_NAME,
    .quantise_a = KernelQuantiseA,
    .quantise_b = KernelQuantiseB,
    .quantise_c = KernelQuantiseC,
    .dequantise_a = KernelDequantiseA,
    .dequantise_b = KernelDequantiseB,
    .dequantise_c = KernelDequantiseC,
    .round_a = KernelRoundA,
    .round_bf16 = KernelRoundBf16,
    .rms_norm = KernelRmsNorm,
    .inverse_rms = KernelInverseRms,
    .rotate = KernelRotate,
    .matrix = KernelMatrix,
    .attention_block = KernelAttentionBlock,
    .attention_end = KernelAttentionEnd,
    .index_tile = KernelIndexTile,
    .index_query = KernelIndexQuery,
    .index_scores = KernelIndexScores,
    .block_tops = KernelBlockTops,
    .largest = KernelLargest,
    .swiglu = KernelSwiglu,
    .compress_pair = KernelCompressPair,
    .mhc_split = KernelMhcSplit,
    .mhc_collapse = KernelMhcCollapse,
    .mhc_update = KernelMhcUpdate,
    .add_scaled = KernelAddScaled,
    .add = KernelAdd,
    .dot3 = KernelDot3,
};

}  // namespace reprise::engine::cpu
