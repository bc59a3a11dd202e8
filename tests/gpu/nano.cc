#include "tests/gpu/nano.h"

#include <algorithm>

#include "gpu/tokenizer/tokenizer.h"

namespace reprise::engine::test {
namespace {

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", Message(value.status()).c_str());
    std::abort();
  }
  return *std::move(value);
}

}  // namespace

std::string NanoPath(const std::string& name) {
  return std::string(RP_SOURCE_DIR "/gpu/nano/").append(name);
}

const ModelGeometry& NanoGeometry() {
  static const auto* const geometry =
      new ModelGeometry(Must(ModelGeometry::For(Must(ModelConfig::Load(NanoPath("config.json"))))));
  return *geometry;
}

const Checkpoint& NanoCheckpoint() {
  static const auto* const checkpoint =
      new std::unique_ptr<Checkpoint>(Must(Checkpoint::Open(NanoPath("checkpoint"))));
  return **checkpoint;
}

std::vector<uint32_t> NanoEngramMap() {
  return Must(BuildEngramMap(*MakeNanoTokenizer(), NanoGeometry().config.engram_compressed_vocab));
}

std::unique_ptr<cpu::CpuEngine> NanoEngine(const CpuEngineOptions& options) {
  return Must(cpu::CpuEngine::Make(NanoGeometry(), NanoCheckpoint(), NanoEngramMap(), options));
}

TestSequence::TestSequence(const Engine& engine, uint32_t tokens_max) {
  const uint32_t count = (tokens_max + kBlockTokens - 1) / kBlockTokens;
  const size_t payload = engine.geometry().record.payload_bytes;
  payloads_.resize(count * payload);
  for (uint32_t i = 0; i < count; ++i) blocks_.push_back(payloads_.data() + i * payload);
  window_.resize(engine.window_layout().bytes);
}

std::vector<float> TestSequence::RunExact(Engine& engine, const std::vector<TokenId>& tokens,
                                          uint32_t first, uint32_t chunk) {
  const size_t vocab = engine.geometry().config.vocab_size;
  std::vector<float> logits((tokens.size() - first) * vocab);
  for (uint32_t at = first; at < tokens.size(); at += chunk) {
    const auto end = std::min<size_t>(tokens.size(), size_t{at} + chunk);
    const Segment segment{.memory = memory(),
                          .tokens = std::span(tokens).first(end),
                          .first = at,
                          .write_from = at,
                          .encoder_from = 0,
                          .decoder_first = at,
                          .decoder_from = 0,
                          .logits_from = at};
    const auto out = std::span(logits).subspan((at - first) * vocab, (end - at) * vocab);
    const absl::Status status = engine.Forward({&segment, 1}, out);
    if (!status.ok()) Must(absl::StatusOr<int>(status));
  }
  return logits;
}

std::string TestSequence::RecordBytes(const Engine& engine, uint32_t length) {
  const ModelGeometry& geometry = engine.geometry();
  std::string out;
  for (uint32_t source = 0; source < geometry.record.sources.size(); ++source) {
    const uint32_t ratio = geometry.kv.sources[source].ratio;
    const cpu::EntryMap map(geometry, geometry.record.sources[source]);
    for (uint32_t entry = 0; entry < length / ratio; ++entry) {
      const cpu::EntryPlace place = map.Of(memory(), entry);
      const auto add = [&out](const uint8_t* bytes, uint32_t count) {
        out.append(reinterpret_cast<const char*>(bytes), count);
      };
      add(place.main_codes, geometry.kv.main.code_bytes());
      add(place.main_scales, geometry.kv.main.scale_bytes());
      add(place.index_codes, geometry.kv.indexer.code_bytes());
      add(place.index_scales, geometry.kv.indexer.scale_bytes());
    }
  }
  return out;
}

std::string TestSequence::StoredBytes(const Engine& engine, uint32_t length,
                                      uint32_t windows_from) {
  const LiveWindowLayout& layout = engine.window_layout();
  std::string out = RecordBytes(engine, length);
  const auto add = [&out](const void* bytes, size_t count) {
    out.append(static_cast<const char*>(bytes), count);
  };
  const uint32_t from = std::max(windows_from, length - std::min(length, layout.window));
  for (uint32_t layer = 0; layer < engine.geometry().all_layers(); ++layer) {
    for (uint32_t position = from; position < length; ++position) {
      add(layout.codes(window(), layer, position), layout.code_bytes);
      add(layout.scales(window(), layer, position), layout.scale_bytes);
    }
    if (length % 2 == 0 || layout.tail_of_layer[layer] == kNoLayer) continue;
    add(layout.tail(window(), layer, length - 1), 2 * layout.latent * sizeof(float));
  }
  return out;
}

}  // namespace reprise::engine::test
