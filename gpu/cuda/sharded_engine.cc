#include "gpu/cuda/sharded_engine.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "gpu/cuda/device.h"

namespace reprise::engine::cuda {
namespace {

// All kernels are loaded when a device is first used. The variable is read once, when the process
// starts to use CUDA: here, unless something did before.
absl::Status LoadKernelsAtOnce(int device) {
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  RP_TRY(UseDevice(device).status());
  constexpr unsigned kSince = 11070;
  constexpr int kEager = 1;  // CU_MODULE_EAGER_LOADING
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  RP_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuModuleGetLoadingMode", &function, kSince,
                                               cudaEnableDefault, &found));
  int mode = kEager;
  if (found == cudaDriverEntryPointSuccess) {
    if (reinterpret_cast<int (*)(int*)>(function)(&mode) != 0) mode = 0;
  }
  if (mode == kEager) return absl::OkStatus();
  return FailedPrecondition(
      "several GPUs need all kernels loaded at once, and this process began to use CUDA without; "
      "set CUDA_MODULE_LOADING=EAGER in its environment");
}

absl::Status CheckDevices(const std::vector<int>& devices) {
  if (std::set<int>(devices.begin(), devices.end()).size() != devices.size()) {
    return InvalidArgument("a GPU is named twice; give each once");
  }
  for (const int device : devices) RP_TRY(UseDevice(device).status());
  return absl::OkStatus();
}

}  // namespace

ShardedCudaEngine::ShardedCudaEngine(const ShardedOptions& options)
    : devices_(options.devices),
      backend_("cuda/sm90x" + std::to_string(options.devices.size())),
      gate_(static_cast<uint32_t>(options.devices.size())),
      threads_(std::make_unique<RankThreads>(static_cast<uint32_t>(options.devices.size()))) {}

absl::StatusOr<std::unique_ptr<ShardedCudaEngine>> ShardedCudaEngine::Make(
    const ModelGeometry& geometry, const Checkpoint& checkpoint,
    const std::vector<uint32_t>& engram_map, const ShardedOptions& options) {
  return MakeWith(options, [&](const CudaEngineOptions& of_rank) {
    return CudaEngine::Make(geometry, checkpoint, engram_map, of_rank);
  });
}

absl::StatusOr<std::unique_ptr<ShardedCudaEngine>> ShardedCudaEngine::MakeRandom(
    const ModelGeometry& geometry, const std::vector<uint32_t>& engram_map,
    const ShardedOptions& options) {
  return MakeWith(options, [&](const CudaEngineOptions& of_rank) {
    return CudaEngine::MakeRandom(geometry, engram_map, of_rank);
  });
}

absl::StatusOr<std::unique_ptr<ShardedCudaEngine>> ShardedCudaEngine::MakeWith(
    const ShardedOptions& options, const MakeRank& make) {
  if (options.devices.size() < 2) {
    return InvalidArgument("a sharded engine takes two GPUs or more");
  }
  RP_TRY(LoadKernelsAtOnce(options.devices[0]));
  RP_TRY(CheckDevices(options.devices));
  std::unique_ptr<ShardedCudaEngine> engine(new ShardedCudaEngine(options));
  RP_ASSIGN(engine->communicators_, Communicator::Connect(options.devices));
  engine->engines_.resize(options.devices.size());
  const std::vector<absl::Status> made = engine->threads_->Run([&](uint32_t rank) -> absl::Status {
    Communicator* const communicator = engine->communicators_[rank].get();
    RP_ASSIGN(engine->engines_[rank], make({.device = options.devices[rank],
                                            .rows_max = options.rows_max,
                                            .graphs = options.graphs,
                                            .place = {.shard = communicator->shard(),
                                                      .communicator = communicator,
                                                      .gate = &engine->gate_}}));
    return absl::OkStatus();
  });
  std::vector<CudaMemory*> memories;
  for (uint32_t rank = 0; rank < made.size(); ++rank) {
    RP_TRY(engine->Named(rank, made[rank]));
    memories.push_back(&engine->engines_[rank]->device_memory());
  }
  engine->memory_ = std::make_unique<ShardedMemory>(std::move(memories), engine->threads_.get());
  RP_TRY(engine->EnterThread());
  return engine;
}

absl::Status ShardedCudaEngine::Named(uint32_t rank, const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), "GPU " + std::to_string(devices_[rank]) + " (rank " +
                                         std::to_string(rank) + " of " +
                                         std::to_string(devices_.size()) + "): " + Message(status));
}

absl::Status ShardedCudaEngine::OnRanks(const std::function<absl::Status(uint32_t)>& work) {
  if (!broken_.ok()) return broken_;
  std::atomic<bool> cut = false;
  const std::vector<absl::Status> all = threads_->Run([&](uint32_t rank) {
    absl::Status status = work(rank);
    if (!status.ok() && engines_[rank]->met()) {
      cut = true;
      for (const auto& communicator : communicators_) communicator->Abort();
    }
    return status;
  });
  // Of several errors, one that is not for another rank's sake.
  uint32_t failed = ranks();
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    if (all[rank].ok()) continue;
    if (failed == ranks() || all[failed].code() == absl::StatusCode::kAborted) failed = rank;
  }
  if (failed == ranks()) return absl::OkStatus();
  const absl::Status status = Named(failed, all[failed]);
  if (cut) {
    for (const auto& engine : engines_) engine->DropGraphs();
    broken_ = FailedPrecondition("the engine stopped after an error and must be started again: " +
                                 Message(status));
  }
  return status;
}

absl::StatusOr<Segment> ShardedCudaEngine::OnRank(uint32_t rank, const Segment& segment,
                                                  std::vector<std::byte*>* blocks) const {
  Segment own = segment;
  RP_ASSIGN(own.memory, memory_->Translated(rank, segment.memory, blocks));
  return own;
}

absl::Status ShardedCudaEngine::ForwardRows(std::span<const Segment> batch,
                                            std::span<LogitRow> rows) {
  RP_TRY(CheckForward(*this, batch, rows));
  if (batch.empty()) return absl::OkStatus();
  const std::vector<LogitRow> wanted(rows.begin(), rows.end());
  const auto lock = memory_->Hold();
  return OnRanks([&](uint32_t rank) -> absl::Status {
    engines_[rank]->BeginApart();
    std::vector<Segment> own(batch.size());
    std::vector<std::vector<std::byte*>> blocks(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      RP_ASSIGN(own[i], OnRank(rank, batch[i], &blocks[i]));  // Fails on all ranks or on none.
    }
    // All choose the same tokens; the first rank's are given.
    if (rank == 0) return engines_[0]->ForwardRows(own, rows);
    std::vector<LogitRow> same = wanted;
    return engines_[rank]->ForwardRows(own, same);
  });
}

absl::Status ShardedCudaEngine::Draft(std::span<const DraftRequest> requests,
                                      std::span<DraftResult> results) {
  RP_TRY(CheckDraftRequests(*this, requests, results));
  if (requests.empty()) return absl::OkStatus();
  const auto lock = memory_->Hold();
  return OnRanks([&](uint32_t rank) -> absl::Status {
    engines_[rank]->BeginApart();
    std::vector<DraftRequest> own(requests.begin(), requests.end());
    std::vector<std::vector<std::byte*>> blocks(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      RP_ASSIGN(own[i].memory, memory_->Translated(rank, requests[i].memory, &blocks[i]));
    }
    // As in ForwardRows.
    if (rank == 0) return engines_[0]->Draft(own, results);
    std::vector<DraftResult> same(results.size());
    return engines_[rank]->Draft(own, same);
  });
}

absl::Status ShardedCudaEngine::RunLayer(uint32_t layer, const Segment& segment,
                                         std::vector<float>* stream, std::vector<float>* pre) {
  RP_TRY(CheckSegments(*this, {&segment, 1}).status());
  const auto lock = memory_->Hold();
  const std::vector<float> stream_in = *stream, pre_in = *pre;
  return OnRanks([&](uint32_t rank) -> absl::Status {
    engines_[rank]->BeginApart();
    std::vector<std::byte*> blocks;
    RP_ASSIGN(const Segment own, OnRank(rank, segment, &blocks));
    std::vector<float> own_stream = stream_in, own_pre = pre_in;
    RP_TRY(engines_[rank]->RunLayer(layer, own, rank == 0 ? stream : &own_stream,
                                    rank == 0 ? pre : &own_pre));
    return absl::OkStatus();
  });
}

}  // namespace reprise::engine::cuda
