#include "tests/gpu/cuda/device_fixture.h"

#include <cmath>

#include "gpu/engine/sampler.h"
#include "gpu/formats/number_formats.h"
#include "gpu/tokenizer/tokenizer.h"
#include "protocol/base/bytes.h"
#include "tests/gpu/npz.h"

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

std::vector<TokenId> Text(size_t count) {
  const Npz npz = *Npz::Load("gpu/nano/golden/p1025.npz");
  std::vector<TokenId> tokens;
  for (const int16_t id : npz.Find("ids")->As<int16_t>()) tokens.push_back(id);
  while (tokens.size() < count) tokens.push_back(tokens[tokens.size() - 1025 + 3]);
  tokens.resize(count);
  return tokens;
}
std::vector<TokenDraw> DrawsOfFourKinds(uint32_t rows) {
  std::vector<TokenDraw> draws;
  for (uint32_t row = 0; row < rows; ++row) {
    const Sampler sampler({.temperature = row % 4 == 0 ? 0 : 0.4 * (row % 4),
                           .top_p = row % 2 == 0 ? 0.9 : 1,
                           .seed = row});
    draws.push_back(sampler.DrawAt(1000 + row));
  }
  return draws;
}

std::vector<float> Embedded(std::span<const TokenId> tokens) {
  const ModelConfig& c = NanoGeometry().config;
  const Tensor embed = *NanoCheckpoint().Find("embed.weight");
  std::vector<float> stream;
  stream.reserve(tokens.size() * c.hc_mult * c.hidden_size);
  for (const TokenId token : tokens) {
    for (size_t i = 0; i < c.hc_mult * c.hidden_size; ++i) {
      const size_t at = static_cast<size_t>(token) * c.hidden_size + i % c.hidden_size;
      stream.push_back(FromBf16(LoadLe<uint16_t>(embed.bytes.data() + 2 * at)));
    }
  }
  return stream;
}

Segment WholeRows(const SequenceMemory& memory, std::span<const TokenId> tokens, uint32_t first) {
  return {.memory = memory,
          .tokens = tokens,
          .first = first,
          .write_from = first,
          .encoder_from = 0,
          .decoder_first = first,
          .decoder_from = 0,
          .logits_from = first};
}

double RelativeRms(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    norm += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(error / norm);
}

uint32_t EqualTokens(std::span<const float> a, std::span<const float> b, size_t vocab) {
  uint32_t equal = 0;
  for (size_t at = 0; at < a.size(); at += vocab) {
    equal += LikeliestToken(a.subspan(at, vocab)) == LikeliestToken(b.subspan(at, vocab)) ? 1 : 0;
  }
  return equal;
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
