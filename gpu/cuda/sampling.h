#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/cuda/kernels.h"
#include "gpu/engine/token_draw.h"

// Tokens from logits, and drafts one after another, without the host. Pointers are to device
// memory. Every function queues on `stream` and returns the launch's error.
namespace reprise::engine::cuda {

inline constexpr uint32_t kChooseVocabMax = 1 << 18;  // A row lies in shared memory of 8 blocks.

struct ChooseCall {
  const float* logits = nullptr;
  uint64_t stride = 0;  // From row to row.
  // Added to the logits first; null: nothing is.
  const float* corrections = nullptr;  // [rows][vocab]
  uint32_t rows = 0, vocab = 0;
  const TokenDraw* draws = nullptr;  // [rows]
  uint32_t* tokens = nullptr;        // [rows]
};
// The tokens that ChooseToken takes from the same logits. vocab is at most kChooseVocabMax.
cudaError_t LaunchChoose(const ChooseCall& call, cudaStream_t stream);

// What estimates the confidence in the drafts of some requests: row r of draft k is y of that row,
// then the embedding of the token before the draft.
struct DraftInputsCall {
  const Bf16Bits* y = nullptr;  // [requests][drafts][hidden], hidden a multiple of 8.
  uint32_t requests = 0, drafts = 0, hidden = 0;
  const Bf16Bits* embed = nullptr;   // [vocab][rank]
  const uint32_t* first = nullptr;   // [requests]: the tokens before the first drafts.
  const uint32_t* tokens = nullptr;  // [drafts][requests]: the drafts.
  uint32_t rank = 0;
  Bf16Bits* inputs = nullptr;  // [drafts][requests][width]; nothing is written behind the rank.
  uint32_t width = 0;
};
cudaError_t LaunchDraftInputs(const DraftInputsCall& call, cudaStream_t stream);

}  // namespace reprise::engine::cuda
