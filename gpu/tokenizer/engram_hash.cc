#include "gpu/tokenizer/engram_hash.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "gpu/tokenizer/numpy_random.h"

namespace reprise::engine {
namespace {

// Bounds of what can be searched and hashed in a moment, far beyond any model's.
constexpr uint32_t kNgramMax = 16;
constexpr uint32_t kHeadsMax = 1024;
constexpr uint64_t kPrimeStartMax = uint64_t{1} << 32;
constexpr uint32_t kCompressedVocabMax = 1u << 24;

bool IsPrime(uint64_t number) {
  if (number < 2) return false;
  for (uint64_t divisor = 2; divisor * divisor <= number; ++divisor) {
    if (number % divisor == 0) return false;
  }
  return true;
}

// Every layer takes the next primes above `start` that the layers before it have left, and so does
// every order of n-grams within a layer.
std::vector<uint64_t> PrimesOf(uint64_t start, uint32_t engram, uint32_t count) {
  std::vector<uint64_t> primes;
  uint64_t number = start;
  for (uint32_t layer = 0; layer <= engram; ++layer) {
    primes.clear();
    while (primes.size() < count) {
      if (IsPrime(++number)) primes.push_back(number);
    }
  }
  return primes;
}

std::vector<uint64_t> MultipliersOf(uint32_t layer, uint32_t compressed_vocab, uint32_t count) {
  // Odd, and small enough that no product with a compressed id leaves int64.
  const uint64_t bound = static_cast<uint64_t>(INT64_MAX) / compressed_vocab / 2;
  NumpyRandom random(uint64_t{10007} * layer);
  std::vector<uint64_t> multipliers(count);
  for (uint64_t& multiplier : multipliers) multiplier = random.Below(bound) * 2 + 1;
  return multipliers;
}

absl::Status Check(const ModelConfig& config, uint32_t engram, const std::vector<uint32_t>& map) {
  const auto refuse = [](const std::string& sentence) {
    return InvalidArgument("Engram: " + sentence);
  };
  if (engram >= config.engram_layers.size() || engram >= config.engram_rows.size()) {
    return refuse("engram_layer_ids and engram_num_embeddings have no entry " +
                  std::to_string(engram));
  }
  if (config.engram_max_ngram < 2 || config.engram_max_ngram > kNgramMax) {
    return refuse("engram_max_ngram_size must be from 2 to " + std::to_string(kNgramMax));
  }
  if (config.engram_heads < 1 || config.engram_heads > kHeadsMax) {
    return refuse("engram_n_heads must be from 1 to " + std::to_string(kHeadsMax));
  }
  if (config.engram_vocab_size > kPrimeStartMax) return refuse("engram_vocab_size is too large");
  if (config.engram_compressed_vocab < 1 || config.engram_compressed_vocab > kCompressedVocabMax) {
    return refuse("engram_compressed_vocab_size must be from 1 to " +
                  std::to_string(kCompressedVocabMax));
  }
  if (map.size() != config.vocab_size || map.empty() ||
      *std::max_element(map.begin(), map.end()) >= config.engram_compressed_vocab) {
    return refuse("the map must have an id below engram_compressed_vocab_size for each of " +
                  std::to_string(config.vocab_size) + " tokens; build it from this model's files");
  }
  if (config.engram_pad_token < 0 || static_cast<size_t>(config.engram_pad_token) >= map.size()) {
    return refuse("engram_pad_token_id is not in the vocabulary");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EngramHash> EngramHash::For(const ModelConfig& config, uint32_t engram,
                                           std::vector<uint32_t> map) {
  RP_TRY(Check(config, engram, map));
  EngramHash hash;
  hash.pad_ = map[static_cast<size_t>(config.engram_pad_token)];
  hash.map_ = std::move(map);
  hash.orders_ = config.engram_max_ngram - 1;
  hash.heads_ = config.engram_heads;
  hash.multipliers_ = MultipliersOf(config.engram_layers[engram], config.engram_compressed_vocab,
                                    config.engram_max_ngram);
  hash.primes_ = PrimesOf(config.engram_vocab_size, engram, hash.rows_per_token());
  hash.offsets_.resize(hash.primes_.size());
  std::exclusive_scan(hash.primes_.begin(), hash.primes_.end(), hash.offsets_.begin(), uint64_t{0});
  const uint64_t rows = hash.offsets_.back() + hash.primes_.back();
  if (rows != config.engram_rows[engram]) {
    return InvalidArgument("Engram: the hash of layer " +
                           std::to_string(config.engram_layers[engram]) + " has " +
                           std::to_string(rows) + " rows, but engram_num_embeddings says " +
                           std::to_string(config.engram_rows[engram]) +
                           "; use the config.json that belongs to the checkpoint");
  }
  return hash;
}

void EngramHash::Rows(std::span<const TokenId> recent, std::span<const bool> blocked,
                      std::span<uint64_t> rows) const {
  RP_CHECK(blocked.empty() || blocked.size() == recent.size());
  RP_CHECK(rows.size() == rows_per_token());
  uint64_t mixed = 0;
  bool in_text = true;  // Until the text begins, or an image ends, before the positions read.
  for (uint32_t back = 0; back <= orders_; ++back) {
    uint32_t id = pad_;
    in_text = in_text && back < recent.size();
    if (in_text) {
      const size_t at = recent.size() - 1 - back;
      in_text = blocked.empty() || !blocked[at];
      const auto token = static_cast<size_t>(recent[at]);  // A negative id is a huge one.
      if (in_text && token < map_.size()) id = map_[token];
    }
    mixed ^= id * multipliers_[back];
    for (uint32_t head = 0; back > 0 && head < heads_; ++head) {
      const size_t row = size_t{back - 1} * heads_ + head;
      rows[row] = mixed % primes_[row] + offsets_[row];
    }
  }
}

uint64_t EngramHash::TableRows(const ModelConfig& config, uint32_t engram) {
  const uint32_t count = (config.engram_max_ngram - 1) * config.engram_heads;
  const std::vector<uint64_t> primes = PrimesOf(config.engram_vocab_size, engram, count);
  return std::accumulate(primes.begin(), primes.end(), uint64_t{0});
}

uint32_t EngramHash::rows_per_token() const { return orders_ * heads_; }

}  // namespace reprise::engine
