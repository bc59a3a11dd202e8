#include "gpu/cuda/communicator.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>

#include "gpu/cuda/device.h"

#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

namespace reprise::engine::cuda {
namespace {

// What NCCL promises to keep: a build needs none of its files.
using Handle = void*;  // ncclComm_t
constexpr int kDone = 0, kBytes = 1;
#if __has_include(<nccl.h>)
static_assert(ncclSuccess == kDone && ncclUint8 == kBytes && sizeof(ncclComm_t) == sizeof(Handle) &&
              sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int));
#endif

struct Nccl {
  int (*init_all)(Handle*, int, const int*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*abort)(Handle) = nullptr;
  int (*all_gather)(const void*, void*, size_t, int, Handle, cudaStream_t) = nullptr;
  int (*send)(const void*, size_t, int, int, Handle, cudaStream_t) = nullptr;
  int (*receive)(void*, size_t, int, int, Handle, cudaStream_t) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  const char* (*error_text)(int) = nullptr;
  const char* (*last_error)(Handle) = nullptr;

  absl::Status Status(int result, const std::string& what, Handle handle = nullptr) const {
    if (result == kDone) return absl::OkStatus();
    const char* more = last_error(handle);
    return absl::InternalError(what + ": NCCL: " + error_text(result) +
                               (more == nullptr || *more == 0 ? "" : std::string("; ") + more) +
                               " (NCCL_DEBUG=WARN tells more)");
  }
};

absl::StatusOr<Nccl> Open() {
  constexpr const char* kLibrary = "libnccl.so.2";
  // Else ranks that capture a step exchange addresses on the way, and wait for one that failed.
  setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // Stays.
  if (library == nullptr) {
    return FailedPrecondition(std::string("several GPUs need NCCL: ") + dlerror() +
                              "; install the package libnccl2, or name the folder of " + kLibrary +
                              " in LD_LIBRARY_PATH");
  }
  Nccl nccl;
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto* function) {
    *reinterpret_cast<void**>(function) = dlsym(library, name);
    if (*function == nullptr) missing = name;
  };
  find("ncclCommInitAll", &nccl.init_all);
  find("ncclCommDestroy", &nccl.destroy);
  find("ncclCommAbort", &nccl.abort);
  find("ncclAllGather", &nccl.all_gather);
  find("ncclSend", &nccl.send);
  find("ncclRecv", &nccl.receive);
  find("ncclGroupStart", &nccl.group_start);
  find("ncclGroupEnd", &nccl.group_end);
  find("ncclGetErrorString", &nccl.error_text);
  find("ncclGetLastError", &nccl.last_error);
  if (missing != nullptr) {
    return FailedPrecondition(std::string(kLibrary) + " has no " + missing +
                              "; install NCCL 2.13 or later");
  }
  return nccl;
}

// Opened once; a library that was not there may be the next time.
absl::StatusOr<const Nccl*> Library() {
  static std::mutex mutex;
  static const Nccl* opened = nullptr;
  const std::lock_guard lock(mutex);
  if (opened == nullptr) {
    RP_ASSIGN(const Nccl nccl, Open());
    opened = new Nccl(nccl);
  }
  return opened;
}
// Of a communicator: there is one.
const Nccl& Opened() { return **Library(); }

absl::Status Refused() {
  return absl::AbortedError("this GPU's ties to the others were cut after an error");
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> Communicator::Connect(
    std::span<const int> devices) {
  RP_ASSIGN(const Nccl* nccl, Library());
  std::vector<Handle> handles(devices.size());
  RP_TRY(
      nccl->Status(nccl->init_all(handles.data(), static_cast<int>(devices.size()), devices.data()),
                   "connecting " + std::to_string(devices.size()) + " GPUs"));
  std::vector<std::unique_ptr<Communicator>> all;
  const auto ranks = static_cast<uint32_t>(devices.size());
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    all.emplace_back(new Communicator({.rank = rank, .ranks = ranks}, handles[rank]));
  }
  StepGate gate(ranks);
  std::vector<absl::Status> warm(ranks);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      warm[rank] = all[rank]->WarmUp(devices[rank], &gate);
      if (warm[rank].ok()) return;
      for (const auto& one : all) one->Abort();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : warm) RP_TRY(status);
  return all;
}

absl::Status Communicator::WarmUp(int device, StepGate* gate) {
  constexpr uint64_t kLarge = 4 << 20;  // Small and large messages take different ways.
  Stream stream;
  DeviceMemory from, to;
  const auto prepare = [&]() -> absl::Status {
    RP_CUDA_TRY(cudaSetDevice(device));
    RP_ASSIGN(stream, Stream::Create());
    RP_ASSIGN(from, DeviceMemory::Allocate(shard_.ranks * kLarge));
    RP_ASSIGN(to, DeviceMemory::Allocate(shard_.ranks * kLarge));
    return absl::OkStatus();
  };
  RP_TRY(gate->Meet(prepare()));
  for (const uint64_t bytes : {uint64_t{1024}, kLarge}) {
    RP_TRY(AllGather(from.data(), to.data(), bytes, stream.get()));
    RP_TRY(stream.Wait());
    RP_TRY(Exchange(from.data(), to.data(), bytes, stream.get()));
    RP_TRY(stream.Wait());
  }
  return absl::OkStatus();
}

absl::Status Communicator::AllGather(const void* from, void* to, uint64_t bytes,
                                     cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return Refused();
  return Opened().Status(Opened().all_gather(from, to, bytes, kBytes, handle_, stream),
                         "gathering rows of all GPUs", handle_);
}

absl::Status Communicator::Exchange(const void* from, void* to, uint64_t bytes,
                                    cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return Refused();
  const Nccl& nccl = Opened();
  constexpr const char* kWhat = "exchanging rows between GPUs";
  RP_TRY(nccl.Status(nccl.group_start(), kWhat, handle_));
  int result = kDone;
  for (uint32_t rank = 0; rank < shard_.ranks && result == kDone; ++rank) {
    const auto peer = static_cast<int>(rank);
    result = nccl.send(static_cast<const std::byte*>(from) + rank * bytes, bytes, kBytes, peer,
                       handle_, stream);
    if (result != kDone) break;
    result = nccl.receive(static_cast<std::byte*>(to) + rank * bytes, bytes, kBytes, peer, handle_,
                          stream);
  }
  const int ended = nccl.group_end();
  return nccl.Status(result == kDone ? ended : result, kWhat, handle_);
}

void Communicator::Abort() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(aborted_, true)) return;
  abort_ = std::thread([handle = handle_] { Opened().abort(handle); });
}

Communicator::~Communicator() {
  if (abort_.joinable()) {
    abort_.join();
  } else {
    Opened().destroy(handle_);
  }
}

}  // namespace reprise::engine::cuda
