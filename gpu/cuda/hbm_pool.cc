#include "gpu/cuda/hbm_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "protocol/base/bytes.h"

namespace reprise::engine::cuda {
namespace {

constexpr uint64_t kSlotAlign = 256;
// What the driver allocates at a time. The pool is whole pieces of it, so that nothing else lies in
// what is exported.
constexpr uint64_t kDriverPiece = uint64_t{2} << 20;
constexpr size_t kFirstPiece = 32, kPieceMax = 256;  // Copies of one call of the driver.

}  // namespace

// ---- StreamClock -------------------------------------------------------------------------------

absl::StatusOr<StreamClock> StreamClock::Create(cudaStream_t stream) {
  StreamClock clock;
  clock.stream_ = stream;
  for (Event& event : clock.events_) {
    RP_ASSIGN(event, Event::Create());
  }
  return clock;
}

absl::StatusOr<uint64_t> StreamClock::Mark() {
  const uint64_t number = ++marked_;
  RP_CUDA_TRY(cudaEventRecord(EventOf(number), stream_));
  return number;
}

cudaEvent_t StreamClock::EventOf(uint64_t number) const {
  const uint64_t oldest = marked_ < kKept ? 1 : marked_ - kKept + 1;
  return events_[std::max(number, oldest) % kKept].get();
}

absl::Status StreamClock::HoldBack(cudaStream_t other, uint64_t number) const {
  if (number == 0 || other == stream_) return absl::OkStatus();
  return CudaStatus(cudaStreamWaitEvent(other, EventOf(number), 0), "ordering streams");
}

absl::StatusOr<bool> StreamClock::Done(uint64_t number) const {
  if (number == 0) return true;
  const cudaError_t error = cudaEventQuery(EventOf(number));
  if (error == cudaErrorNotReady) return false;
  RP_TRY(CudaStatus(error, "queued work"));
  return true;
}

absl::Status StreamClock::Wait(uint64_t number) const {
  if (number == 0) return absl::OkStatus();
  return CudaStatus(cudaEventSynchronize(EventOf(number)), "queued work");
}

// ---- HbmPool -----------------------------------------------------------------------------------

absl::StatusOr<HbmPool> HbmPool::Create(uint64_t slot_bytes, uint32_t slots, cudaStream_t compute) {
  if (slot_bytes == 0 || slots == 0) return InvalidArgument("an HBM pool needs slots with bytes");
  HbmPool pool;
  pool.slot_bytes_ = slot_bytes;
  pool.stride_ = AlignUp(slot_bytes, kSlotAlign);
  RP_ASSIGN(pool.memory_, DeviceMemory::Allocate(AlignUp(pool.stride_ * slots, kDriverPiece)));
  pool.uses_.resize(slots);
  for (uint32_t slot = slots; slot > 0; --slot) pool.free_.push_back(slot - 1);
  RP_ASSIGN(pool.load_stream_, Stream::Create());
  RP_ASSIGN(pool.store_stream_, Stream::Create());
  RP_ASSIGN(pool.steps_, StreamClock::Create(compute));
  RP_ASSIGN(pool.loads_, StreamClock::Create(pool.load_stream_.get()));
  RP_ASSIGN(pool.stores_, StreamClock::Create(pool.store_stream_.get()));
  return pool;
}

absl::StatusOr<uint32_t> HbmPool::Take() {
  if (free_.empty()) {
    return absl::ResourceExhaustedError("all " + std::to_string(slots()) +
                                        " HBM slots are in use; evict some");
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void HbmPool::Give(uint32_t slot) {
  RP_CHECK(slot < slots());
  free_.push_back(slot);
}

absl::StatusOr<uint64_t> HbmPool::Load(std::span<const SlotCopy> copies) {
  return Copy(copies, true);
}
absl::StatusOr<uint64_t> HbmPool::Store(std::span<const SlotCopy> copies) {
  return Copy(copies, false);
}

// In batches: a call of the driver per record reaches less than half the bandwidth.
absl::StatusOr<uint64_t> HbmPool::Copy(std::span<const SlotCopy> copies, bool load) {
  StreamClock& clock = load ? loads_ : stores_;
  std::vector<const void*> from;
  std::vector<void*> to;
  std::vector<size_t> sizes;
  Use latest;
  for (const SlotCopy& copy : copies) {
    const uint64_t bytes = copy.bytes == 0 ? slot_bytes_ : copy.bytes;
    if (copy.slot >= slots() || copy.offset + bytes > slot_bytes_ || copy.host == nullptr) {
      return InvalidArgument("a copy of HBM slot " + std::to_string(copy.slot) +
                             " is not within it, or has no host memory");
    }
    const Use& use = uses_[copy.slot];
    latest.step_read = std::max(latest.step_read, use.step_read);
    latest.step_wrote = std::max(latest.step_wrote, use.step_wrote);
    latest.loaded = std::max(latest.loaded, use.loaded);
    latest.stored = std::max(latest.stored, use.stored);
    std::byte* slot = data(copy.slot) + copy.offset;
    from.push_back(load ? copy.host : slot);
    to.push_back(load ? slot : copy.host);
    sizes.push_back(bytes);
  }
  if (copies.empty()) return clock.Mark();
  RP_TRY(steps_.HoldBack(clock.stream(), latest.step_wrote));
  if (load) {
    RP_TRY(steps_.HoldBack(clock.stream(), latest.step_read));
    RP_TRY(stores_.HoldBack(clock.stream(), latest.stored));
  } else {
    RP_TRY(loads_.HoldBack(clock.stream(), latest.loaded));
  }
  // Sources and targets are touched in stream order only. The device begins when a call of the
  // driver returns: a small one first, then larger ones while it copies.
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t attributes_from = 0;
  size_t piece = kFirstPiece;
  for (size_t at = 0; at < sizes.size();) {
    const size_t count = std::min(piece, sizes.size() - at);
    RP_CUDA_TRY(cudaMemcpyBatchAsync(&to[at], &from[at], &sizes[at], count, &attributes,
                                     &attributes_from, 1, clock.stream()));
    at += count;
    piece = std::min(2 * piece, kPieceMax);
  }
  RP_ASSIGN(const uint64_t number, clock.Mark());
  for (const SlotCopy& copy : copies) {
    (load ? uses_[copy.slot].loaded : uses_[copy.slot].stored) = number;
  }
  return number;
}

absl::Status HbmPool::BeginStep(std::span<const uint32_t> reads, std::span<const uint32_t> writes) {
  Use latest;
  for (const std::span<const uint32_t> slots : {reads, writes}) {
    for (const uint32_t slot : slots) latest.loaded = std::max(latest.loaded, uses_[slot].loaded);
  }
  for (const uint32_t slot : writes) latest.stored = std::max(latest.stored, uses_[slot].stored);
  RP_TRY(loads_.HoldBack(steps_.stream(), latest.loaded));
  return stores_.HoldBack(steps_.stream(), latest.stored);
}

absl::StatusOr<uint64_t> HbmPool::EndStep(std::span<const uint32_t> reads,
                                          std::span<const uint32_t> writes) {
  RP_ASSIGN(const uint64_t number, steps_.Mark());
  for (const uint32_t slot : reads) uses_[slot].step_read = number;
  for (const uint32_t slot : writes) uses_[slot].step_wrote = number;
  return number;
}

absl::StatusOr<cudaIpcMemHandle_t> HbmPool::Export() const {
  cudaIpcMemHandle_t handle;
  RP_CUDA_TRY(cudaIpcGetMemHandle(&handle, memory_.data()));
  return handle;
}

}  // namespace reprise::engine::cuda
