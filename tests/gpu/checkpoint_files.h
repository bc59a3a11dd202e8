#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "protocol/base/bytes.h"
#include "tests/storage/temp_directory.h"

// Folders with small checkpoints, whole and damaged.
namespace reprise::engine::test {

using Json = nlohmann::ordered_json;

// A header entry of `bytes` bytes of type I8 from `begin` on.
inline Json Entry(uint64_t begin, uint64_t bytes) {
  return {{"dtype", "I8"}, {"shape", {bytes}}, {"data_offsets", {begin, begin + bytes}}};
}

inline std::string Shard(const std::string& header, const std::string& data) {
  std::string bytes(sizeof(uint64_t), '\0');
  StoreLe(bytes.data(), uint64_t{header.size()});
  return bytes + header + data;
}
inline std::string Shard(const Json& header, const std::string& data) {
  return Shard(header.dump(), data);
}

inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
}

constexpr char kIndex[] = "model.safetensors.index.json";

// Two shards: a and b in the first, c in the second.
class TwoShards {
 public:
  TwoShards() {
    one = {{"a", Entry(0, 3)}, {"b", Entry(3, 5)}};
    two = {{"c", Entry(0, 4)}};
    index = {{"metadata", {{"total_size", 12}}},
             {"weight_map",
              {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}}}};
  }
  void Write(const storage::TempDirectory& folder) const {
    WriteBytes(folder / "one.safetensors", Shard(one, std::string(8, '\1')));
    WriteBytes(folder / "two.safetensors", Shard(two, std::string(4, '\2')));
    WriteBytes(folder / kIndex, index.dump());
  }

  Json one, two, index;
};

}  // namespace reprise::engine::test
