#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/model/model_geometry.h"
#include "protocol/base/bytes.h"
#include "protocol/base/sha256.h"

namespace reprise::engine {

// Element types of a V4.1 checkpoint (model-facts section 13.1). I8 holds two E2M1 codes a byte.
enum class DType : uint8_t { kF32, kBf16, kI8, kF8E4m3, kF8E8m0 };
std::string_view DTypeName(DType type);  // As safetensors spells it: "F32", "BF16", "I8", ...
uint32_t DTypeBytes(DType type);
std::string TensorText(DType dtype, const std::vector<uint64_t>& shape);  // "BF16 [512, 5120]".

// One tensor of an open checkpoint. The bytes are mapped from the file and live as long as it.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  ConstBytes bytes;
};

// A sharded safetensors checkpoint, mapped read-only: opening reads headers, not tensors. Follows
// model.safetensors.index.json; a folder with one model.safetensors needs no index. Refuses a
// truncated file, an oversized or damaged header, offsets that overlap, leave gaps or lie, a name
// in two shards, an index that does not fit the shards; each by file and tensor (DATA_LOSS, or
// NOT_FOUND where there is no checkpoint at all). Any thread.
class Checkpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& folder);
  virtual ~Checkpoint() = default;

  // Names the tensor when it is missing or not of this type and shape.
  virtual absl::StatusOr<Tensor> Find(std::string_view name, DType dtype,
                                      const std::vector<uint64_t>& shape) const = 0;
  // Null when there is none of this name.
  virtual const Tensor* Find(std::string_view name) const = 0;
  virtual std::vector<std::string> Names() const = 0;  // Sorted.
  virtual uint64_t total_bytes() const = 0;            // Of all tensors.
  // SHA-256 over the SHA-256 of the index and of each shard's header (its JSON), in order of file
  // name. Follows names, types, shapes and places, not the weights: see weights_digest.h.
  virtual Hash256 Digest() const = 0;
};

}  // namespace reprise::engine
