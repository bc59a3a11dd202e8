#include "gpu/checkpoint/checkpoint_verifier.h"

#include <unordered_set>

#include "gpu/checkpoint/tensor_inventory.h"

namespace reprise::engine {
namespace {

uint64_t BytesOf(const TensorSpec& spec) {
  uint64_t bytes = DTypeBytes(spec.dtype);
  for (const uint64_t side : spec.shape) bytes *= side;
  return bytes;
}

// Counts all, keeps the first few.
void Note(std::string text, std::vector<std::string>* texts, uint64_t* count) {
  if (texts->size() < CheckpointReport::kNamesMax) texts->push_back(std::move(text));
  ++*count;
}

}  // namespace

CheckpointReport VerifyCheckpoint(const ModelGeometry& geometry, const Checkpoint& checkpoint) {
  CheckpointReport report;
  std::unordered_set<const Tensor*> expected;  // At most those that the checkpoint holds.
  ForEachTensor(geometry, [&](const TensorSpec& spec) {
    ++report.tensors_expected;
    report.bytes_expected += BytesOf(spec);
    const Tensor* tensor = checkpoint.Find(spec.name);
    if (tensor == nullptr) {
      Note(spec.name, &report.missing, &report.missing_count);
      return;
    }
    expected.insert(tensor);
    if (tensor->dtype != spec.dtype || tensor->shape != spec.shape) {
      Note(spec.name + ": " + TensorText(tensor->dtype, tensor->shape) + ", expected " +
               TensorText(spec.dtype, spec.shape),
           &report.wrong, &report.wrong_count);
    }
  });
  for (const std::string& name : checkpoint.Names()) {
    ++report.tensors;
    if (!expected.contains(checkpoint.Find(name))) {
      Note(name, &report.unexpected, &report.unexpected_count);
    }
  }
  report.bytes = checkpoint.total_bytes();
  return report;
}

}  // namespace reprise::engine
