#include "gpu/cuda/step_upload.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "gpu/formats/number_formats.h"
#include "protocol/base/bytes.h"

namespace reprise::engine::cuda {
namespace {

constexpr uint64_t kAlign = 256;

// A size that grows by eighths: few different ones, and not much too large.
uint32_t RoundedUp(uint32_t size) {
  const uint32_t step = std::max(64u, std::bit_floor(std::max(size, 1u)) / 8);
  return static_cast<uint32_t>(AlignUp(size, step));
}
// Groups that so many rows can end, by ratio.
uint32_t GroupsMax(uint32_t ratio, uint32_t rows, uint32_t parts) {
  return ratio == 1 ? rows : (rows + parts) / 2;
}

uint32_t CountOf(const StepUpload::Rows& rows) { return rows.end - rows.first; }
uint32_t CountOf(std::span<const StepUpload::Rows> all) {
  uint32_t count = 0;
  for (const StepUpload::Rows& rows : all) count += CountOf(rows);
  return count;
}

}  // namespace

// Space for `count` values: *host is where they are written, the result where they will be.
template <typename T>
T* StepUpload::Add(size_t count, T** host) {
  used_ = AlignUp(used_, kAlign);
  *host = reinterpret_cast<T*>(staging_.data() + used_);
  T* device = reinterpret_cast<T*>(device_.data() + used_);
  used_ += count * sizeof(T);
  return device;
}

absl::Status StepUpload::Room(uint64_t bytes) {
  if (bytes <= device_.bytes()) return absl::OkStatus();
  const uint64_t size = bytes + bytes / 2;
  RP_ASSIGN(staging_, PinnedMemory::Allocate(size));
  RP_ASSIGN(device_, DeviceMemory::Allocate(size));
  ++moved_;
  return absl::OkStatus();
}

void StepUpload::AddHalf(std::span<const Rows> rows, const std::vector<std::byte*>& blocks,
                         HalfStep* half) {
  *half = {};
  const uint32_t count = CountOf(rows);
  half->view.rows = count;
  half->view.parts = static_cast<uint32_t>(rows.size());
  half->view.pairs = pairs_;
  std::byte** block_list = nullptr;
  half->view.blocks = Add(RoundedUp(static_cast<uint32_t>(blocks.size())), &block_list);
  std::copy(blocks.begin(), blocks.end(), block_list);
  DevicePart* parts = nullptr;
  uint32_t *part_of_row = nullptr, *positions = nullptr;
  int32_t* tokens = nullptr;
  uint8_t* image = nullptr;
  half->view.part = Add(rows.size(), &parts);
  half->view.part_of_row = Add(count, &part_of_row);
  half->view.positions = Add(count, &positions);
  half->view.tokens = Add(count, &tokens);
  half->view.image = Add(count, &image);
  std::vector<DeviceGroup> groups[3];
  uint32_t row = 0, first_block = 0;
  for (uint32_t p = 0; p < rows.size(); ++p) {
    const Rows& of = rows[p];
    half->parts.push_back({.window = of.segment->memory.window,
                           .first_block = first_block,
                           .row = row,
                           .rows = CountOf(of),
                           .first = of.first,
                           .windows_from = of.windows_from,
                           .write_from = of.write_from});
    parts[p] = half->parts.back();
    half->part_rows_max = std::max(half->part_rows_max, CountOf(of));
    first_block += static_cast<uint32_t>(of.segment->memory.blocks.size());
    for (uint32_t position = of.first; position < of.end; ++position, ++row) {
      part_of_row[row] = p;
      positions[row] = position;
      tokens[row] = of.ids.empty() ? of.segment->tokens[position] : of.ids[position - of.first];
      image[row] = of.segment->image_marks.empty() ? 0 : of.segment->image_marks[position];
      for (const uint32_t ratio : {1u, 2u}) {
        if (position < of.write_from || (position + 1) % ratio != 0) continue;
        groups[ratio].push_back({.part = p,
                                 .entry = position / ratio,
                                 .row = row,
                                 .from_tail = ratio == 2 && position == of.first ? 1u : 0u});
      }
    }
    for (const uint32_t ratio : {1u, 2u}) {
      half->entries_max[ratio] = std::max(half->entries_max[ratio], of.end / ratio);
    }
  }
  for (const uint32_t ratio : {1u, 2u}) {
    half->entries_max[ratio] = RoundedUp(half->entries_max[ratio]);
    std::vector<DeviceGroup>& of_ratio = groups[ratio];
    if (!of_ratio.empty()) {
      of_ratio.resize(GroupsMax(ratio, count, half->view.parts), {.part = kNoPart});
    }
    DeviceGroup* list = nullptr;
    half->groups[ratio] = Add(of_ratio.size(), &list);
    std::copy(of_ratio.begin(), of_ratio.end(), list);
    half->group_count[ratio] = static_cast<uint32_t>(of_ratio.size());
  }
}

absl::Status StepUpload::Begin(std::span<const Rows> encoder_rows, std::span<const Rows> kept,
                               const Lists& lists, uint32_t pairs,
                               const float* const frequencies[2], cudaStream_t stream) {
  pairs_ = pairs;
  frequencies_[0] = frequencies[0];
  frequencies_[1] = frequencies[1];
  std::vector<std::byte*> encoder_blocks, decoder_blocks;
  size_t image_values = 0;
  for (const Rows& rows : encoder_rows) {
    const auto& blocks = rows.segment->memory.blocks;
    encoder_blocks.insert(encoder_blocks.end(), blocks.begin(), blocks.end());
    image_values += rows.segment->image_rows.size();
  }
  for (const Rows& rows : kept) {
    const auto& blocks = rows.segment->memory.blocks;
    decoder_blocks.insert(decoder_blocks.end(), blocks.begin(), blocks.end());
  }
  const uint64_t rows = CountOf(encoder_rows), kept_rows = CountOf(kept);
  const uint64_t of_row = sizeof(uint32_t) * 5 + 1 + 2 * sizeof(DeviceGroup) +
                          4 * pairs * sizeof(float) + sizeof(uint32_t);
  const uint64_t blocks = RoundedUp(static_cast<uint32_t>(encoder_blocks.size())) +
                          RoundedUp(static_cast<uint32_t>(decoder_blocks.size()));
  RP_TRY(CudaStatus(cudaStreamSynchronize(stream), "the step before"));
  RP_TRY(Room((rows + kept_rows) * of_row + blocks * 8 +
              (encoder_rows.size() + kept.size()) * sizeof(DeviceGroup) +
              (encoder_rows.size() + kept.size()) * sizeof(DevicePart) +
              uint64_t{lists.engram_words} * 8 + lists.draws * sizeof(TokenDraw) +
              lists.first_tokens * sizeof(uint32_t) + image_values * 2 + 64 * kAlign));
  used_ = 0;
  AddHalf(encoder_rows, encoder_blocks, &encoder);
  AddHalf(kept, decoder_blocks, &decoder);

  uint32_t *kept_index = nullptr, *image_places = nullptr;
  decoder_rows = Add(kept_rows, &kept_index);
  image_index = Add(rows, &image_places);
  Bf16Bits* images = nullptr;
  image_rows = Add(image_values, &images);
  engram_device = Add(lists.engram_words, &engram_host);
  draws = Add(lists.draws, &draws_host);
  first_tokens = Add(lists.first_tokens, &first_tokens_host);
  uint32_t row = 0, images_seen = 0;
  for (const Rows& of : encoder_rows) {
    for (uint32_t position = of.first; position < of.end; ++position, ++row) {
      const bool marked =
          !of.segment->image_marks.empty() && of.segment->image_marks[position] != 0;
      image_places[row] = marked ? images_seen++ : 0;
    }
    for (const float value : of.segment->image_rows) *images++ = ToBf16(value);
  }
  uint32_t begin = 0;
  for (const Rows& of : encoder_rows) {
    for (const Rows& half : kept) {
      if (half.segment != of.segment) continue;
      for (uint32_t i = 0; i < CountOf(half); ++i)
        *kept_index++ = begin + half.first - of.first + i;
    }
    begin += CountOf(of);
  }
  uint32_t* logit_index = nullptr;
  logit_row_count = 0;
  for (const Rows& of : kept) logit_row_count += of.end - of.logits_from;
  logit_rows = Add(logit_row_count, &logit_index);
  begin = 0;
  for (const Rows& of : kept) {
    for (uint32_t position = of.logits_from; position < of.end; ++position) {
      *logit_index++ = begin + position - of.first;
    }
    begin += CountOf(of);
  }
  copied_ = used_;
  // Rotations are computed there: they need room, and no copy.
  for (HalfStep* half : {&encoder, &decoder}) {
    float* unused = nullptr;
    for (int kind = 0; kind < 2; ++kind) {
      half->view.cosines[kind] = Add(size_t{half->view.rows} * pairs, &unused);
      half->view.sines[kind] = Add(size_t{half->view.rows} * pairs, &unused);
    }
  }
  RP_CHECK(used_ <= device_.bytes());
  return absl::OkStatus();
}

absl::Status StepUpload::Copy(cudaStream_t stream) {
  return CudaStatus(
      cudaMemcpyAsync(device_.data(), staging_.data(), copied_, cudaMemcpyHostToDevice, stream),
      "a step's rows");
}

absl::Status StepUpload::Rotate(cudaStream_t stream) {
  for (const HalfStep* half : {&encoder, &decoder}) {
    RotationCall call{.positions = half->view.positions, .rows = half->view.rows, .pairs = pairs_};
    for (int kind = 0; kind < 2; ++kind) {
      call.frequencies[kind] = frequencies_[kind];
      call.cosines[kind] = const_cast<float*>(half->view.cosines[kind]);
      call.sines[kind] = const_cast<float*>(half->view.sines[kind]);
    }
    RP_CUDA_TRY(LaunchRotations(call, stream));
  }
  return absl::OkStatus();
}

void StepUpload::AddTo(StepKey* key) const {
  for (const HalfStep* half : {&encoder, &decoder}) {
    const auto offset = reinterpret_cast<const std::byte*>(half->view.sines[1]) - device_.data();
    key->insert(key->end(), {half->view.rows, half->view.parts, half->part_rows_max,
                             half->entries_max[1], half->entries_max[2], half->group_count[1],
                             half->group_count[2], static_cast<uint64_t>(offset)});
  }
  key->insert(key->end(), {logit_row_count, used_});
}

}  // namespace reprise::engine::cuda
