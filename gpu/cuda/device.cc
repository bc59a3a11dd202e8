#include "gpu/cuda/device.h"

#include <algorithm>
#include <cstring>

namespace reprise::engine::cuda {

absl::Status CudaStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = std::string(what) + ": " + cudaGetErrorString(error);
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(text);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInitializationError:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::StatusOr<DeviceFacts> UseDevice(int ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return absl::UnavailableError(
        std::string("no CUDA device: ") +
        (error == cudaSuccess ? "the driver lists none" : cudaGetErrorString(error)));
  }
  if (ordinal >= count) {
    return InvalidArgument("there is no CUDA device " + std::to_string(ordinal) +
                           "; the machine has " + std::to_string(count));
  }
  cudaDeviceProp properties;
  RP_CUDA_TRY(cudaGetDeviceProperties(&properties, ordinal));
  RP_CUDA_TRY(cudaSetDevice(ordinal));
  DeviceFacts facts{.name = properties.name,
                    .ordinal = ordinal,
                    .major = properties.major,
                    .minor = properties.minor,
                    .multiprocessors = properties.multiProcessorCount,
                    .memory_bytes = properties.totalGlobalMem,
                    .l2_bytes = properties.l2CacheSize};
  if (facts.major != 9) {
    return absl::UnavailableError(facts.name + " has compute capability " +
                                  std::to_string(facts.major) + "." + std::to_string(facts.minor) +
                                  "; the CUDA engine is built for 9.0 (Hopper)");
  }
  size_t free = 0, total = 0;
  RP_CUDA_TRY(cudaMemGetInfo(&free, &total));
  facts.free_bytes = free;
  return facts;
}

absl::StatusOr<DeviceName> NameOf(int ordinal) {
  cudaDeviceProp properties;
  RP_CUDA_TRY(cudaGetDeviceProperties(&properties, ordinal));
  std::array<char, 32> bus{};
  RP_CUDA_TRY(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), ordinal));
  DeviceName name{.pci_bus_id = bus.data()};
  static_assert(sizeof(properties.uuid.bytes) == sizeof(name.uuid));
  std::memcpy(name.uuid.data(), properties.uuid.bytes, sizeof(name.uuid));
  return name;
}

absl::StatusOr<int> OrdinalOf(const std::array<std::byte, 16>& uuid) {
  int count = 0;
  RP_CUDA_TRY(cudaGetDeviceCount(&count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    RP_ASSIGN(const DeviceName name, NameOf(ordinal));
    if (name.uuid == uuid) return ordinal;
  }
  return NotFound("none of the " + std::to_string(count) +
                  " CUDA devices that this process sees is the one wanted; see "
                  "CUDA_VISIBLE_DEVICES, and the devices of the container");
}

template <MemoryKind kKind>
absl::StatusOr<OwnedMemory<kKind>> OwnedMemory<kKind>::Allocate(uint64_t bytes) {
  constexpr bool kDevice = kKind == MemoryKind::kDevice;
  void* data = nullptr;
  const uint64_t some = std::max<uint64_t>(bytes, 1);
  const cudaError_t error = kDevice ? cudaMalloc(&data, some) : cudaMallocHost(&data, some);
  RP_TRY(CudaStatus(error, "allocating " + std::to_string(bytes) + " bytes of " +
                               (kDevice ? "device" : "pinned") + " memory"));
  OwnedMemory memory;
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}
template <MemoryKind kKind>
OwnedMemory<kKind>::~OwnedMemory() {
  if (data_ == nullptr) return;
  kKind == MemoryKind::kDevice ? cudaFree(data_) : cudaFreeHost(data_);
}
template class OwnedMemory<MemoryKind::kDevice>;
template class OwnedMemory<MemoryKind::kPinned>;

absl::StatusOr<Stream> Stream::Create() {
  Stream stream;
  RP_CUDA_TRY(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking));
  return stream;
}
Stream::~Stream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}
absl::Status Stream::Wait() const {
  return CudaStatus(cudaStreamSynchronize(stream_), "the device");
}

absl::StatusOr<Event> Event::Create(bool timed) {
  Event event;
  RP_CUDA_TRY(
      cudaEventCreateWithFlags(&event.event_, timed ? cudaEventDefault : cudaEventDisableTiming));
  return event;
}
Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

}  // namespace reprise::engine::cuda
