#include "tests/gpu/cuda/device_fixture.h"

#include "gpu/tokenizer/tokenizer.h"

namespace reprise::engine::cuda::test {

const ModelGeometry& NanoGeometry() {
  static const auto* const geometry =
      new ModelGeometry(Must(ModelGeometry::For(Must(ModelConfig::Load("gpu/nano/config.json")))));
  return *geometry;
}
const Checkpoint& NanoCheckpoint() {
  static const auto* const checkpoint =
      new std::unique_ptr<Checkpoint>(Must(Checkpoint::Open("gpu/nano/checkpoint")));
  return **checkpoint;
}
std::vector<uint32_t> NanoEngramMap() {
  const ModelConfig& config = NanoGeometry().config;
  return Must(
      LoadEngramMap("gpu/nano/engram_map.bin", config.vocab_size, config.engram_compressed_vocab));
}
std::unique_ptr<cpu::CpuEngine> CpuNano() {
  return Must(cpu::CpuEngine::Make(NanoGeometry(), NanoCheckpoint(), NanoEngramMap(), {}));
}
CudaEngine& CudaNano() {
  static auto* const engine = new std::unique_ptr<CudaEngine>(
      Must(CudaEngine::Make(NanoGeometry(), NanoCheckpoint(), NanoEngramMap(), {})));
  return **engine;
}

TwinSequence::TwinSequence(const Engine& engine, uint32_t tokens_max) {
  const uint32_t count = (tokens_max + kBlockTokens - 1) / kBlockTokens;
  const size_t payload = engine.geometry().record.payload_bytes;
  host_payloads_.resize(count * payload);
  host_window_.resize(engine.window_layout().bytes);
  device_payloads_ = Must(DeviceMemory::Allocate(host_payloads_.size()));
  device_window_ = Must(DeviceMemory::Allocate(host_window_.size()));
  for (uint32_t i = 0; i < count; ++i) {
    host_blocks_.push_back(host_payloads_.data() + i * payload);
    device_blocks_.push_back(device_payloads_.data() + i * payload);
  }
  ToDevice();
}

void TwinSequence::ToDevice() {
  Must(CudaStatus(cudaMemcpy(device_payloads_.data(), host_payloads_.data(), host_payloads_.size(),
                             cudaMemcpyHostToDevice),
                  "blocks"));
  Must(CudaStatus(cudaMemcpy(device_window_.data(), host_window_.data(), host_window_.size(),
                             cudaMemcpyHostToDevice),
                  "window"));
}
std::vector<std::byte> TwinSequence::DeviceBlocks() const {
  std::vector<std::byte> bytes(device_payloads_.bytes());
  Must(CudaStatus(
      cudaMemcpy(bytes.data(), device_payloads_.data(), bytes.size(), cudaMemcpyDeviceToHost),
      "blocks"));
  return bytes;
}
std::vector<std::byte> TwinSequence::DeviceWindow() const {
  std::vector<std::byte> bytes(device_window_.bytes());
  Must(CudaStatus(
      cudaMemcpy(bytes.data(), device_window_.data(), bytes.size(), cudaMemcpyDeviceToHost),
      "window"));
  return bytes;
}
void TwinSequence::FromDevice() {
  const std::vector<std::byte> blocks = DeviceBlocks(), window = DeviceWindow();
  std::copy(blocks.begin(), blocks.end(), host_payloads_.begin());
  std::copy(window.begin(), window.end(), host_window_.begin());
}

}  // namespace reprise::engine::cuda::test
