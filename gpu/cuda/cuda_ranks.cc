// What the ranks of a model give one another: sums after attention and after the experts, rows of
// Engram's tables, columns of logits.
#include <algorithm>

#include "gpu/cuda/communicator.h"
#include "gpu/cuda/cuda_engine.h"

namespace reprise::engine::cuda {
namespace {

// Up to so many bytes from the others, one trip with more of them is the quicker.
constexpr uint64_t kGatheredBytesMax = 8 << 20;

bool GatheredAtOnce(const Shard& shard, uint64_t part_bytes) {
  return (shard.ranks - 1) * part_bytes <= kGatheredBytesMax;
}

}  // namespace

absl::Status CudaEngine::Meet(const absl::Status& prepared) {
  if (place_.gate == nullptr) return prepared;
  const absl::Status all = place_.gate->Meet(prepared);
  // Ranks must not differ in which steps they have seen.
  if (!all.ok()) graphs_.Clear();
  met_ = all.ok();
  return all;
}

float* CudaEngine::OwnPart(uint32_t rows) {
  const uint64_t count = uint64_t{rows} * config_.hidden_size;
  if (!GatheredAtOnce(place_.shard, count * sizeof(float))) return Floats(work_.part);
  return Floats(work_.gathered) + place_.shard.rank * count;
}

// Few rows: every rank takes all parts, and the sum is made where it is added to the stream. Many:
// each sums its share of the rows for all. Values are added by rank either way.
absl::Status CudaEngine::SumOverRanks(uint32_t rows) {
  const auto& [rank, ranks] = place_.shard;
  const uint64_t hidden = config_.hidden_size, count = rows * hidden;
  pending_ = {.post = Floats(work_.post), .comb = Floats(work_.comb)};
  if (GatheredAtOnce(place_.shard, count * sizeof(float))) {
    pending_.parts = Floats(work_.gathered);
    pending_.ranks = ranks;
    pending_.part_stride = count;
    return place_.communicator->AllGather(OwnPart(rows), work_.gathered.data(),
                                          count * sizeof(float), stream_.get());
  }
  const uint64_t share = (rows + ranks - 1) / ranks * hidden;
  RP_TRY(place_.communicator->Exchange(work_.part.data(), work_.gathered.data(),
                                       share * sizeof(float), stream_.get()));
  Bf16Bits* const own = Bits(work_.h) + rank * share;
  RP_CUDA_TRY(LaunchSumParts(Floats(work_.gathered), ranks, share, own, stream_.get()));
  pending_.h = Bits(work_.h);
  return place_.communicator->AllGather(own, work_.h.data(), share * sizeof(Bf16Bits),
                                        stream_.get());
}

absl::Status CudaEngine::LookUpEngram(const EngramDevice& engram, const uint64_t* table_rows,
                                      uint32_t rows) {
  const auto& [rank, ranks] = place_.shard;
  const uint32_t per_token = engram.hash.rows_per_token();
  const uint64_t count = uint64_t{rows} * per_token * config_.engram_head_dim;
  const bool alone = place_.shard.alone();
  Bf16Bits* const own = alone ? Bits(work_.engram) : Bits(work_.gathered) + rank * count;
  RP_CUDA_TRY(LaunchEngramLookup(table_rows, rows, per_token,
                                 {.codes = engram.codes.as<uint8_t>(),
                                  .scales = engram.scales.as<uint8_t>(),
                                  .first = engram.rows.first,
                                  .count = engram.rows.count,
                                  .dim = config_.engram_head_dim},
                                 own, stream_.get()));
  if (alone) return absl::OkStatus();
  RP_TRY(place_.communicator->AllGather(own, work_.gathered.data(), count * sizeof(Bf16Bits),
                                        stream_.get()));
  return CudaStatus(
      LaunchJoinParts(Bits(work_.gathered), ranks, count, Bits(work_.engram), stream_.get()),
      "Engram's rows");
}

// Each gives as many columns as the widest part has, in pieces of rows that fit, and copies those
// of every rank to their places.
absl::Status CudaEngine::JoinLogits(uint32_t rows) {
  if (place_.shard.alone()) return absl::OkStatus();
  const uint32_t ranks = place_.shard.ranks;
  const uint64_t widest = WidestLogits() * sizeof(float);
  const uint64_t own_width = weights_.head_tokens.count * sizeof(float);
  const uint64_t vocab = config_.vocab_size, pitch = vocab * sizeof(float);
  const uint64_t rows_at_once = work_.gathered.bytes() / (ranks * widest);
  for (uint64_t first = 0, count = 0; first < rows; first += count) {
    count = std::min(rows - first, rows_at_once);
    const uint64_t part_bytes = count * widest;
    RP_TRY(place_.communicator->AllGather(work_.logits.data() + first * own_width,
                                          work_.gathered.data(), part_bytes, stream_.get()));
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const Shard::Part tokens = Shard{.rank = rank, .ranks = ranks}.PartOf(vocab, kTileOutputs);
      const uint64_t width = tokens.count * sizeof(float);
      std::byte* const to =
          work_.joined_logits.data() + first * pitch + tokens.first * sizeof(float);
      RP_CUDA_TRY(cudaMemcpy2DAsync(to, pitch, work_.gathered.data() + rank * part_bytes, width,
                                    width, count, cudaMemcpyDeviceToDevice, stream_.get()));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaEngine::CopyLogits(uint32_t first, uint32_t rows, float* to) {
  // Copies to ordinary memory block: not in the driver, while a device waits for another rank.
  if (!place_.shard.alone()) RP_TRY(stream_.Wait());
  const Shard::Part& own = weights_.head_tokens;
  const uint64_t pitch = uint64_t{config_.vocab_size} * sizeof(float);
  const uint64_t width = own.count * sizeof(float);
  return CudaStatus(cudaMemcpy2DAsync(to + own.first, pitch, work_.logits.data() + first * width,
                                      width, width, rows, cudaMemcpyDeviceToHost, stream_.get()),
                    "logits to the host");
}

}  // namespace reprise::engine::cuda
