#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/model/model_config.h"

namespace reprise::engine {

// Row numbers of one Engram layer from compressed token ids (model-facts section 9.2). Immutable;
// any thread.
class EngramHash {
 public:
  // `engram`: index into config.engram_layers. `map`: token id to compressed id (BuildEngramMap).
  static absl::StatusOr<EngramHash> For(const ModelConfig& config, uint32_t engram,
                                        std::vector<uint32_t> map);

  // Rows of the token at the end of `recent`: orders x heads of them, order-major. `recent` holds
  // the token and up to engram_max_ngram - 1 before it, oldest first; where fewer are given, the
  // text begins. `blocked[i]` (may be empty: none is) marks positions of an image span: such a
  // position, and all before it, count as padding. So does an id that the map does not have.
  void Rows(std::span<const TokenId> recent, std::span<const bool> blocked,
            std::span<uint64_t> rows) const;

  // Rows of a table that the hash of `config` reaches: what engram_rows must say.
  static uint64_t TableRows(const ModelConfig& config, uint32_t engram);

  uint32_t rows_per_token() const;
  const std::vector<uint64_t>& multipliers() const { return multipliers_; }
  const std::vector<uint64_t>& primes() const { return primes_; }  // Order-major.

 private:
  EngramHash() = default;

  std::vector<uint32_t> map_;
  uint32_t pad_ = 0;  // Compressed.
  uint32_t orders_ = 0;
  uint32_t heads_ = 0;
  std::vector<uint64_t> multipliers_;
  std::vector<uint64_t> primes_;
  std::vector<uint64_t> offsets_;
};

// FAILED_PRECONDITION, with what to do, unless a map has as many compressed ids as the model.
absl::Status CheckEngramMapSize(uint32_t found, uint32_t compressed_vocab);

}  // namespace reprise::engine
