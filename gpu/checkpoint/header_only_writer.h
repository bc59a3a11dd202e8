#pragma once

#include <string>

#include "gpu/model/model_geometry.h"

namespace reprise::engine {

// Writes a checkpoint of this model into `folder`, which must exist and be empty: config.json is
// not written, headers and the index are, and the tensor data are holes of sparse files (zeros). So
// a whole V4.1-Flash costs a few MB of disk and can be verified and mapped like the real one.
absl::Status WriteHeaderOnlyCheckpoint(const ModelGeometry& geometry, const std::string& folder,
                                       uint32_t shards);

}  // namespace reprise::engine
