#include "gpu/cuda/device.h"

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

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(uint64_t bytes) {
  DeviceMemory memory;
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes == 0 ? 1 : bytes);
  RP_TRY(CudaStatus(error, "allocating " + std::to_string(bytes) + " bytes of device memory"));
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}
DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) cudaFree(data_);
}

absl::StatusOr<PinnedMemory> PinnedMemory::Allocate(uint64_t bytes) {
  PinnedMemory memory;
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, bytes == 0 ? 1 : bytes);
  RP_TRY(CudaStatus(error, "allocating " + std::to_string(bytes) + " bytes of pinned memory"));
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}
PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

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
