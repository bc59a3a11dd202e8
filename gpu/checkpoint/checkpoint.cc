#include "gpu/checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "gpu/checkpoint/mapped_file.h"
#include "gpu/checkpoint/safetensors.h"
#include "gpu/checkpoint/safetensors_index.h"
#include "gpu/checkpoint/strict_json.h"

namespace reprise::engine {
namespace {

constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr char kSingleFile[] = "model.safetensors";
constexpr size_t kLengthBytes = sizeof(uint64_t);  // Before the header: its length.

// The JSON header of a shard; what follows it are tensors.
absl::StatusOr<std::string_view> HeaderOf(ConstBytes file) {
  if (file.size() < kLengthBytes) {
    return DataLoss("it has " + std::to_string(file.size()) +
                    " bytes and not even the length of a header: it is truncated");
  }
  const auto length = LoadLe<uint64_t>(file.data());
  if (length > kSafetensorsHeaderMax) {
    return DataLoss("its header is said to have " + std::to_string(length) +
                    " bytes, allowed are " + std::to_string(kSafetensorsHeaderMax) +
                    ": it is damaged, or not a safetensors file");
  }
  if (length > file.size() - kLengthBytes) {
    return DataLoss("its header of " + std::to_string(length) + " bytes does not fit its " +
                    std::to_string(file.size()) + " bytes: it is truncated");
  }
  return AsText(file.subspan(kLengthBytes, length));
}

class MappedCheckpoint final : public Checkpoint {
 public:
  absl::Status OpenShards(const std::string& folder);

  absl::StatusOr<Tensor> Find(std::string_view name, DType dtype,
                              const std::vector<uint64_t>& shape) const override;
  const Tensor* Find(std::string_view name) const override;
  std::vector<std::string> Names() const override;
  uint64_t total_bytes() const override { return total_bytes_; }
  Hash256 Digest() const override { return Sha256({AsBytes(digests_)}); }

 private:
  // `index` is null for a checkpoint in one file.
  absl::Status AddShard(const std::string& file, const SafetensorsIndex* index);
  absl::Status AddTensors(const std::string& file, const std::vector<SafetensorsEntry>& entries,
                          ConstBytes data, const SafetensorsIndex* index);
  absl::Status CheckAgainst(const SafetensorsIndex& index) const;
  void AddDigest(ConstBytes bytes) { digests_ += AsText(AsBytes(Sha256({bytes}))); }

  std::string folder_;
  std::vector<MappedFile> shards_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  uint64_t total_bytes_ = 0;
  std::string digests_;  // SHA-256 of the index and of each header, one after the other.
};

absl::Status MappedCheckpoint::OpenShards(const std::string& folder) {
  folder_ = folder;
  const std::string path = folder + "/" + kIndexFile;
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    absl::Status single = AddShard(kSingleFile, nullptr);
    if (!absl::IsNotFound(single)) return single;
    return NotFound(folder + " holds no checkpoint: neither " + kIndexFile + " nor " + kSingleFile);
  }
  RP_TRY(file.status());
  if (file->bytes().size() > kSafetensorsIndexMax) {
    return DataLoss(path + " has " + std::to_string(file->bytes().size()) + " bytes, allowed are " +
                    std::to_string(kSafetensorsIndexMax));
  }
  absl::StatusOr<SafetensorsIndex> index = ParseSafetensorsIndex(AsText(file->bytes()));
  if (!index.ok()) return DataLoss(path + ": " + Message(index.status()));
  AddDigest(file->bytes());
  std::set<std::string> names;
  for (const auto& [tensor, shard] : index->files) names.insert(shard);
  for (const std::string& name : names) {
    absl::Status status = AddShard(name, &*index);
    if (absl::IsNotFound(status)) {
      return DataLoss(folder + "/" + name + " is missing: " + kIndexFile + " names it");
    }
    RP_TRY(status);
  }
  return CheckAgainst(*index);
}

absl::Status MappedCheckpoint::AddShard(const std::string& file, const SafetensorsIndex* index) {
  const std::string path = folder_ + "/" + file;
  RP_ASSIGN(MappedFile shard, MappedFile::Open(path));
  const ConstBytes bytes = shard.bytes();
  const absl::StatusOr<std::string_view> header = HeaderOf(bytes);
  if (!header.ok()) return DataLoss(path + ": " + Message(header.status()));
  const ConstBytes data = bytes.subspan(kLengthBytes + header->size());
  const auto entries = ParseSafetensorsHeader(*header, data.size());
  if (!entries.ok()) return DataLoss(path + ": " + Message(entries.status()));
  AddDigest(AsBytes(*header));
  shards_.push_back(std::move(shard));
  return AddTensors(file, *entries, data, index);
}

absl::Status MappedCheckpoint::AddTensors(const std::string& file,
                                          const std::vector<SafetensorsEntry>& entries,
                                          ConstBytes data, const SafetensorsIndex* index) {
  const auto damaged = [this, &file](const SafetensorsEntry& entry, const std::string& what) {
    return DataLoss(folder_ + "/" + file + ": tensor " + Quoted(entry.name) + " " + what);
  };
  for (const SafetensorsEntry& entry : entries) {
    Tensor tensor{.dtype = entry.dtype,
                  .shape = entry.shape,
                  .bytes = data.subspan(entry.begin, entry.end - entry.begin)};
    if (!tensors_.emplace(entry.name, std::move(tensor)).second) {
      return damaged(entry, "is in another shard too");
    }
    if (index == nullptr) continue;
    const auto named = index->files.find(entry.name);
    if (named == index->files.end()) return damaged(entry, std::string("is not in ") + kIndexFile);
    if (named->second != file) {
      return damaged(
          entry, std::string("lies elsewhere by ") + kIndexFile + ": in " + Quoted(named->second));
    }
  }
  total_bytes_ += data.size();
  return absl::OkStatus();
}

// What AddTensors could not see: tensors of the index that no shard holds, and its total.
absl::Status MappedCheckpoint::CheckAgainst(const SafetensorsIndex& index) const {
  for (const auto& [name, file] : index.files) {
    if (!tensors_.contains(name)) {
      return DataLoss(folder_ + "/" + file + ": tensor " + Quoted(name) +
                      " is missing: " + kIndexFile + " says that it is here");
    }
  }
  if (index.total_bytes && *index.total_bytes != total_bytes_) {
    return DataLoss(folder_ + "/" + kIndexFile + ": metadata.total_size is " +
                    std::to_string(*index.total_bytes) + ", the shards hold " +
                    std::to_string(total_bytes_) + " bytes of tensors");
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> MappedCheckpoint::Find(std::string_view name, DType dtype,
                                              const std::vector<uint64_t>& shape) const {
  const Tensor* tensor = Find(name);
  if (tensor == nullptr) {
    return NotFound("tensor " + Quoted(name) + " is missing in " + folder_ +
                    ": is it the checkpoint of this model?");
  }
  if (tensor->dtype != dtype || tensor->shape != shape) {
    return FailedPrecondition("tensor " + Quoted(name) + " in " + folder_ + " is " +
                              TensorText(tensor->dtype, tensor->shape) + ", the model needs " +
                              TensorText(dtype, shape));
  }
  return *tensor;
}

const Tensor* MappedCheckpoint::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string> MappedCheckpoint::Names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

}  // namespace

std::string_view DTypeName(DType type) {
  switch (type) {
    case DType::kF32:
      return "F32";
    case DType::kBf16:
      return "BF16";
    case DType::kI8:
      return "I8";
    case DType::kF8E4m3:
      return "F8_E4M3";
    case DType::kF8E8m0:
      return "F8_E8M0";
  }
  return "unknown";
}

uint32_t DTypeBytes(DType type) { return type == DType::kF32 ? 4 : type == DType::kBf16 ? 2 : 1; }

std::string TensorText(DType dtype, const std::vector<uint64_t>& shape) {
  std::string text = std::string(DTypeName(dtype)) + " [";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& folder) {
  auto checkpoint = std::make_unique<MappedCheckpoint>();
  RP_TRY(checkpoint->OpenShards(folder));
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

}  // namespace reprise::engine
