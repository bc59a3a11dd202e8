#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/cpu/cpu_engine.h"
#include "gpu/cuda/cuda_engine.h"
#include "gpu/cuda/device.h"

// Skips, with the reason, where there is no GPU that the engine runs on.
#define RP_NEEDS_DEVICE()                                                      \
  do {                                                                         \
    const absl::Status device = ::reprise::engine::cuda::UseDevice().status(); \
    if (!device.ok()) GTEST_SKIP() << Message(device);                         \
  } while (false)

namespace reprise::engine::cuda::test {

// The model of gpu/nano; the working folder is the project's root.
const ModelGeometry& NanoGeometry();
const Checkpoint& NanoCheckpoint();
std::vector<uint32_t> NanoEngramMap();
std::unique_ptr<cpu::CpuEngine> CpuNano();
CudaEngine& CudaNano();  // Loaded once.

// Text that the model knows.
std::vector<TokenId> Text(size_t count);
// By row: the likeliest token, and draws at three temperatures, some of a nucleus.
std::vector<TokenDraw> DrawsOfFourKinds(uint32_t rows);
// The stream of its rows as it begins: [rows][copies][hidden].
std::vector<float> Embedded(std::span<const TokenId> tokens);
// Rows from `first` on, all the way and with logits.
Segment WholeRows(const SequenceMemory& memory, std::span<const TokenId> tokens, uint32_t first);
double RelativeRms(const std::vector<float>& got, const std::vector<float>& want);
// Rows of logits whose largest is the same.
uint32_t EqualTokens(std::span<const float> a, std::span<const float> b, size_t vocab);

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", Message(value.status()).c_str());
    std::abort();
  }
  return *std::move(value);
}
inline void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", Message(status).c_str());
  std::abort();
}

// Values in device memory, poisoned with 0xff at first: a bf16 or float NaN.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(size_t count) : memory_(Must(DeviceMemory::Allocate(count * sizeof(T)))) {
    Must(CudaStatus(cudaMemset(memory_.data(), 0xff, count * sizeof(T)), "poison"));
    Settle();
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) { Put(values); }
  void Put(const std::vector<T>& values) {
    Must(CudaStatus(cudaMemcpy(memory_.data(), values.data(), values.size() * sizeof(T),
                               cudaMemcpyHostToDevice),
                    "put"));
    Settle();
  }
  std::vector<T> Get() const {
    std::vector<T> values(memory_.bytes() / sizeof(T));
    Must(CudaStatus(
        cudaMemcpy(values.data(), memory_.data(), memory_.bytes(), cudaMemcpyDeviceToHost), "get"));
    return values;
  }
  T* data() const { return memory_.as<T>(); }

 private:
  // Streams that do not wait for the default one see it from here on: both calls above may return
  // before the device is done.
  void Settle() { Must(CudaStatus(cudaStreamSynchronize(cudaStreamLegacy), "settle")); }

  DeviceMemory memory_;
};

// One sequence twice: in host memory for the CPU engine, and on the device.
class TwinSequence {
 public:
  TwinSequence(const Engine& engine, uint32_t tokens_max);

  SequenceMemory host() { return {.blocks = host_blocks_, .window = host_window_.data()}; }
  SequenceMemory device() { return {.blocks = device_blocks_, .window = device_window_.data()}; }
  void ToDevice();  // Host bytes replace the device's.
  // What the device holds, in the host's layout.
  std::vector<std::byte> DeviceBlocks() const;
  std::vector<std::byte> DeviceWindow() const;
  const std::vector<std::byte>& host_blocks() const { return host_payloads_; }
  const std::vector<std::byte>& host_window() const { return host_window_; }
  void FromDevice();

 private:
  std::vector<std::byte> host_payloads_, host_window_;
  std::vector<std::byte*> host_blocks_, device_blocks_;
  DeviceMemory device_payloads_, device_window_;
};

}  // namespace reprise::engine::cuda::test
