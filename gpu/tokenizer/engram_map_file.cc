#include <cstring>
#include <string>

#include "gpu/tokenizer/engram_hash.h"
#include "gpu/tokenizer/read_file.h"
#include "gpu/tokenizer/tokenizer.h"

// The map of token ids to compressed ids as a file: a model without its tokenizer can use it.
namespace reprise::engine {

absl::Status CheckEngramMapSize(uint32_t found, uint32_t compressed_vocab) {
  if (found == compressed_vocab) return absl::OkStatus();
  return FailedPrecondition(
      "the map of Engram has " + std::to_string(found) + " compressed ids, but the model has " +
      std::to_string(compressed_vocab) +
      "; use the tokenizer that belongs to the model, or the map that is shipped with it");
}

absl::StatusOr<std::vector<uint32_t>> LoadEngramMap(const std::string& path, uint32_t vocab_size,
                                                    uint32_t compressed_vocab) {
  const uint64_t expected_bytes = uint64_t{vocab_size} * sizeof(uint32_t);
  RP_ASSIGN(const std::string bytes, ReadFile(path, expected_bytes));
  if (bytes.size() != expected_bytes) {
    return InvalidArgument(path + " has " + std::to_string(bytes.size()) +
                           " bytes; a map of this model has " + std::to_string(expected_bytes));
  }
  std::vector<uint32_t> map(vocab_size);
  if (!bytes.empty()) std::memcpy(map.data(), bytes.data(), bytes.size());
  uint32_t next = 0;
  for (size_t token = 0; token < map.size(); ++token) {
    if (map[token] > next) {
      return InvalidArgument(path + ": the compressed id of token " + std::to_string(token) +
                             " is not in order of first appearance; write the file again");
    }
    if (map[token] == next) ++next;
  }
  RP_TRY(CheckEngramMapSize(next, compressed_vocab));
  return map;
}

}  // namespace reprise::engine
