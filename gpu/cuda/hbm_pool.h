#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/cuda/device.h"
#include "gpu/engine/kv_slots.h"

// The HBM tier: slots for block records and windows in device memory, and copies between them and
// pinned host memory that run beside the engine's steps.
//
// Order is kept by events, never by waiting on the host:
//   a copy into a slot    after every step and copy that reads the slot or wrote it
//   a copy out of a slot  after the step or copy that wrote it
//   a step                after the copies into its slots, and out of those that it writes
namespace reprise::engine::cuda {

// Work on a stream up to some point: number n is done when all before it are.
class StreamClock {
 public:
  static absl::StatusOr<StreamClock> Create(cudaStream_t stream);

  cudaStream_t stream() const { return stream_; }
  // Everything queued so far, as a number; numbers begin at 1.
  absl::StatusOr<uint64_t> Mark();
  // `other`'s stream goes on only after work `number` of this one. 0: at once.
  absl::Status HoldBack(cudaStream_t other, uint64_t number) const;
  // On the host: whether it is done; and until it is.
  absl::StatusOr<bool> Done(uint64_t number) const;
  absl::Status Wait(uint64_t number) const;

 private:
  // Events of the last marks: an older number is covered by the oldest that is kept.
  static constexpr uint64_t kKept = 64;
  cudaEvent_t EventOf(uint64_t number) const;

  cudaStream_t stream_ = nullptr;
  uint64_t marked_ = 0;
  std::array<Event, kKept> events_;
};

class HbmPool {
 public:
  // `compute`: the stream that steps run on. Slots are aligned to 256 bytes.
  static absl::StatusOr<HbmPool> Create(uint64_t slot_bytes, uint32_t slots, cudaStream_t compute);

  uint64_t slot_bytes() const { return slot_bytes_; }
  uint32_t slots() const { return static_cast<uint32_t>(uses_.size()); }
  uint32_t free_slots() const { return static_cast<uint32_t>(free_.size()); }
  std::byte* data(uint32_t slot) const { return memory_.data() + slot * stride_; }

  // A slot that is nobody's; RESOURCE_EXHAUSTED when there is none. What it held may still be read
  // or copied out: what is queued for it next waits for that.
  absl::StatusOr<uint32_t> Take();
  void Give(uint32_t slot);

  // Queues a batch of copies; their host memory is pinned. The number is of the stream that they
  // run on: loads(), stores(). The host memory of a store may be read once its number is done, that
  // of a load written to.
  absl::StatusOr<uint64_t> Load(std::span<const SlotCopy> copies);
  absl::StatusOr<uint64_t> Store(std::span<const SlotCopy> copies);
  const StreamClock& loads() const { return loads_; }
  const StreamClock& stores() const { return stores_; }

  // Around what is queued on the compute stream: which slots it reads, and which it writes.
  absl::Status BeginStep(std::span<const uint32_t> reads, std::span<const uint32_t> writes);
  absl::StatusOr<uint64_t> EndStep(std::span<const uint32_t> reads,
                                   std::span<const uint32_t> writes);
  const StreamClock& steps() const { return steps_; }

  // For another process on this machine, to map all slots (opened_pool.h): slot i lies at
  // i * stride().
  absl::StatusOr<cudaIpcMemHandle_t> Export() const;
  uint64_t stride() const { return stride_; }

 private:
  // The last work of each stream on a slot.
  struct Use {
    uint64_t step_read = 0, step_wrote = 0, loaded = 0, stored = 0;
  };

  absl::StatusOr<uint64_t> Copy(std::span<const SlotCopy> copies, bool load);

  uint64_t slot_bytes_ = 0, stride_ = 0;
  DeviceMemory memory_;
  std::vector<Use> uses_;
  std::vector<uint32_t> free_;
  Stream load_stream_, store_stream_;
  StreamClock steps_, loads_, stores_;
};

}  // namespace reprise::engine::cuda
