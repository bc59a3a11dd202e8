#include "gpu/backends/loaded_model.h"

#include <filesystem>
#include <utility>
#include <vector>

namespace reprise::engine {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerOf(const std::string& folder,
                                                       const ModelConfig& config) {
  const std::string path = folder + "/tokenizer.json";
  if (std::filesystem::exists(path)) return LoadTokenizerJson(path);
  const absl::StatusOr<ModelConfig> nano = ModelConfig::Preset("nano");
  if (nano.ok() && config == *nano) return MakeNanoTokenizer();
  return NotFound("there is no tokenizer.json in " + folder +
                  "; copy the one that belongs to the checkpoint there");
}

absl::StatusOr<std::vector<uint32_t>> EngramMapOf(const std::string& folder,
                                                  const ModelConfig& config,
                                                  const Tokenizer& tokenizer) {
  if (config.engram_layers.empty()) return std::vector<uint32_t>();
  const std::string path = folder + "/engram_map.bin";
  if (std::filesystem::exists(path)) {
    return LoadEngramMap(path, config.vocab_size, config.engram_compressed_vocab);
  }
  return BuildEngramMap(tokenizer, config.engram_compressed_vocab);
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const std::string& folder, const EngineOptions& options,
                                      const EngineMaker& make) {
  LoadedModel model{.folder = folder,
                    .geometry = {},
                    .checkpoint = nullptr,
                    .tokenizer = nullptr,
                    .engine = nullptr,
                    .note = {}};
  RP_ASSIGN(const ModelConfig config, ModelConfig::Load(folder + "/config.json"));
  RP_ASSIGN(model.geometry, ModelGeometry::For(config));
  const bool below = std::filesystem::is_directory(folder + "/checkpoint");
  RP_ASSIGN(model.checkpoint, Checkpoint::Open(below ? folder + "/checkpoint" : folder));
  RP_ASSIGN(model.tokenizer, TokenizerOf(folder, config));
  RP_ASSIGN(std::vector<uint32_t> map, EngramMapOf(folder, config, *model.tokenizer));
  RP_ASSIGN(model.engine,
            make(model.geometry, *model.checkpoint, std::move(map), options, &model.note));
  return model;
}

absl::StatusOr<std::string> FindModelFolder(const std::string& name) {
  namespace fs = std::filesystem;
  std::vector<fs::path> tried = {name};
  if (name == "nano") {
    tried.clear();
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    if (!error) {
      tried.push_back(program.parent_path().parent_path() / "share" / "reprise" / "nano");
    }
    tried.emplace_back(RP_NANO_FOLDER);
  }
  std::string looked;
  for (const fs::path& folder : tried) {
    if (fs::exists(folder / "config.json")) return folder.string();
    looked += (looked.empty() ? "" : ", ") + folder.string();
  }
  return InvalidArgument("no model \"" + name + "\": there is no config.json in " + looked +
                         "; give a folder, or nano");
}

}  // namespace reprise::engine
