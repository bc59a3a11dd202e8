#pragma once

#include <span>
#include <vector>

#include "gpu/cuda/device.h"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/step_graphs.h"
#include "gpu/engine/engine.h"

// What the kernels need to know of a call's rows, put together on the host and copied at once.
namespace reprise::engine::cuda {

// Rows of one half of the model: in the encoder all of them, in the decoder the last of each
// segment.
struct HalfStep {
  StepView view;
  std::vector<DevicePart> parts;  // As on the device.
  uint32_t part_rows_max = 0;     // Rows of the largest of them.
  // By ratio: global entries that a row sees at most, rounded up.
  uint32_t entries_max[3] = {};
  // Groups that end in these rows at or after write_from, by ratio. Where there are any, the list
  // is as long as it could be for so many rows: groups of no part (kNoPart) are skipped.
  const DeviceGroup* groups[3] = {};
  uint32_t group_count[3] = {};
};

// Lists have lengths that follow from numbers of rows and parts, and a few sizes that are rounded
// up, so that steps that differ in positions alone have all they need at the same addresses.
class StepUpload {
 public:
  // Rows of a half of a segment: [first, end), which find windows from windows_from on.
  struct Rows {
    const Segment* segment = nullptr;
    uint32_t first = 0, end = 0, windows_from = 0, write_from = 0;
    uint32_t logits_from = 0;           // Of the decoder's.
    std::span<const TokenId> ids = {};  // Of these rows; empty: the segment's tokens.
  };
  // Lengths of lists that the caller fills, on the host, before Copy.
  struct Lists {
    uint32_t engram_words = 0;
    uint32_t draws = 0;
    uint32_t first_tokens = 0;  // Those before drafts.
  };
  // Lays out a call. Pointers of the halves are to device memory, valid until the next Begin.
  // Blocks until the copy before this one is done.
  absl::Status Begin(std::span<const Rows> encoder, std::span<const Rows> decoder,
                     const Lists& lists, uint32_t pairs, const float* const frequencies[2],
                     cudaStream_t stream);

  HalfStep encoder, decoder;
  const uint32_t* decoder_rows = nullptr;  // Of the encoder's rows, those that go on.
  const uint32_t* image_index = nullptr;   // [encoder rows]
  const Bf16Bits* image_rows = nullptr;
  uint64_t* engram_host = nullptr;
  const uint64_t* engram_device = nullptr;
  TokenDraw* draws_host = nullptr;
  const TokenDraw* draws = nullptr;  // On the device, as what follows.
  uint32_t* first_tokens_host = nullptr;
  const uint32_t* first_tokens = nullptr;
  // Rows that give logits, as rows of the decoder.
  const uint32_t* logit_rows = nullptr;
  uint32_t logit_row_count = 0;

  // Queues the copy; and then, on the device, the rotations of all rows.
  absl::Status Copy(cudaStream_t stream);
  absl::Status Rotate(cudaStream_t stream);

  // What decides where things lie and how many they are, for StepKey.
  void AddTo(StepKey* key) const;
  // Another number: what lay in device memory lies elsewhere now.
  uint64_t moved() const { return moved_; }

 private:
  template <typename T>
  T* Add(size_t count, T** host);
  absl::Status Room(uint64_t bytes);
  void AddHalf(std::span<const Rows> rows, const std::vector<std::byte*>& blocks, HalfStep* half);

  PinnedMemory staging_;
  DeviceMemory device_;
  uint64_t used_ = 0, copied_ = 0, moved_ = 0;
  uint32_t pairs_ = 0;
  const float* frequencies_[2] = {};
};

}  // namespace reprise::engine::cuda
