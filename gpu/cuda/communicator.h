#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "gpu/cuda/shard.h"

// The door to NCCL, whose library is opened when more than one GPU is asked for: a program that
// runs on one does not need it.
//
// There is no reduction among the calls: NCCL adds in an order that depends on the size and on the
// place of a value, and rows would then become other bytes beside other rows. Ranks exchange what
// they have, and add it by rank themselves (rank_sums.cu).
namespace reprise::engine::cuda {

// One rank's end. Its calls are of one thread, that of the rank; Abort of any. All ranks make the
// same calls in the same order. Streams that capture may be given: graphs that hold such calls end
// before the communicator does.
class Communicator {
 public:
  // For GPUs of this process, by ordinal; each has carried every kind of call when this returns, so
  // that none of them sets up anything later. FAILED_PRECONDITION, with what to install, where
  // there is no libnccl.so.2.
  static absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> Connect(
      std::span<const int> devices);
  ~Communicator();

  const Shard& shard() const { return shard_; }

  // `to` [ranks][bytes]: what each rank has at `from`, which may be its own place in `to`.
  absl::Status AllGather(const void* from, void* to, uint64_t bytes, cudaStream_t stream);
  // `from` [ranks][bytes] goes to rank after rank; `to` [ranks][bytes] comes from them. Apart.
  absl::Status Exchange(const void* from, void* to, uint64_t bytes, cudaStream_t stream);

  // What was queued ends at once with any bytes at all, here and for good: calls are refused. For
  // when another rank failed, and would never come. Does not block.
  void Abort();

 private:
  Communicator(Shard shard, void* handle) : shard_(shard), handle_(handle) {}
  absl::Status WarmUp(int device, StepGate* gate);

  const Shard shard_;
  void* handle_ = nullptr;  // ncclComm_t
  std::mutex mutex_;        // Calls, and whether there may be any.
  bool aborted_ = false;
  std::thread abort_;  // NCCL's abort waits until graphs with its calls are gone.
};

}  // namespace reprise::engine::cuda
