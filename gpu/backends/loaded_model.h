#pragma once

#include <memory>
#include <string>

#include "gpu/backends/make_engine.h"
#include "gpu/tokenizer/tokenizer.h"

namespace reprise::engine {

// A model that is ready to run: what its folder holds, and an engine for it.
struct LoadedModel {
  std::string folder;
  ModelGeometry geometry;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;
  std::string note;  // Of the engine's choice, to be told once; empty: nothing.
};

// `folder` holds config.json; the shards beside it or in checkpoint/; tokenizer.json, but for a
// model of nano's configuration, whose tokens are bytes; and engram_map.bin where Engram's map is
// shipped as data (else it is built from the tokenizer).
absl::StatusOr<LoadedModel> LoadModel(const std::string& folder, const EngineOptions& options,
                                      const EngineMaker& make = MakeEngine);

// The folder that a model's name means: itself when it is one; for "nano", share/reprise/nano
// beside the program's folder, then the one this build was made from.
absl::StatusOr<std::string> FindModelFolder(const std::string& name);

}  // namespace reprise::engine
