#include "gpu/checkpoint/header_only_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "gpu/checkpoint/tensor_inventory.h"

namespace reprise::engine {
namespace {

// A shard while its tensors are named: the header so far and where the next tensor begins.
struct Shard {
  std::string file;
  std::string header = "{";
  uint64_t data_bytes = 0;
};

void AddTensor(const TensorSpec& spec, Shard* shard) {
  std::string shape;
  uint64_t bytes = DTypeBytes(spec.dtype);
  for (const uint64_t side : spec.shape) {
    shape += (shape.empty() ? "" : ",") + std::to_string(side);
    bytes *= side;
  }
  const uint64_t end = shard->data_bytes + bytes;
  shard->header += (shard->header.size() > 1 ? ",\"" : "\"") + spec.name + "\":{\"dtype\":\"" +
                   std::string(DTypeName(spec.dtype)) + "\",\"shape\":[" + shape +
                   "],\"data_offsets\":[" + std::to_string(shard->data_bytes) + "," +
                   std::to_string(end) + "]}";
  shard->data_bytes = end;
}

// Creates `path` with these bytes and a hole after them, `bytes` long in all.
absl::Status WriteSparse(const std::string& path, const std::string& start, uint64_t bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return ErrnoStatus(errno, "cannot create " + path);
  absl::Status status;
  for (size_t done = 0; status.ok() && done < start.size();) {
    const ssize_t count = write(file, start.data() + done, start.size() - done);
    if (count >= 0) {
      done += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      status = ErrnoStatus(errno, "cannot write " + path);
    }
  }
  if (status.ok() && ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    status = ErrnoStatus(errno, "cannot make " + path + " " + std::to_string(bytes) +
                                    " bytes long (more shards make smaller files)");
  }
  if (close(file) != 0 && status.ok()) status = ErrnoStatus(errno, "cannot close " + path);
  return status;
}

absl::Status WriteShard(const std::string& folder, Shard* shard) {
  std::string header = shard->header + "}";
  header.resize(AlignUp(header.size(), 8), ' ');  // So that tensors begin at a multiple of 8.
  std::string start(sizeof(uint64_t), '\0');
  StoreLe(start.data(), uint64_t{header.size()});
  start += header;
  return WriteSparse(folder + "/" + shard->file, start, start.size() + shard->data_bytes);
}

absl::Status CheckEmpty(const std::string& folder) {
  std::error_code error;
  const bool empty = std::filesystem::is_empty(folder, error);
  if (error) return ErrnoStatus(error.value(), "cannot look into " + folder);
  if (!empty) return FailedPrecondition(folder + " is not empty: name an empty folder");
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteHeaderOnlyCheckpoint(const ModelGeometry& geometry, const std::string& folder,
                                       uint32_t shards) {
  uint64_t count = 0;
  ForEachTensor(geometry, [&count](const TensorSpec&) { ++count; });
  if (shards == 0 || shards > count || shards > 99'999) {
    return InvalidArgument(std::to_string(shards) + " shards: use from 1 to one for each of the " +
                           std::to_string(count) + " tensors, and at most 99999");
  }
  RP_TRY(CheckEmpty(folder));
  Shard shard;
  std::string weight_map;
  uint64_t index = 0, total_bytes = 0, shard_index = 0;
  absl::Status status;
  // Shards get equally many tensors, in the order of the inventory.
  ForEachTensor(geometry, [&](const TensorSpec& spec) {
    if (!status.ok()) return;
    if (shard.file.empty()) {
      char name[64];
      std::snprintf(name, sizeof(name), "model-%05u-of-%05u.safetensors",
                    static_cast<uint32_t>(shard_index) + 1, shards);
      shard.file = name;
    }
    AddTensor(spec, &shard);
    weight_map +=
        (index == 0 ? "\n" : ",\n") + ("    \"" + spec.name) + "\": \"" + shard.file + "\"";
    ++index;
    if (index * shards / count == shard_index) return;
    status = WriteShard(folder, &shard);
    total_bytes += shard.data_bytes;
    shard = Shard();
    ++shard_index;
  });
  RP_TRY(status);
  const std::string text = "{\n  \"metadata\": {\"total_size\": " + std::to_string(total_bytes) +
                           "},\n  \"weight_map\": {" + weight_map + "\n  }\n}\n";
  return WriteSparse(folder + "/model.safetensors.index.json", text, text.size());
}

}  // namespace reprise::engine
