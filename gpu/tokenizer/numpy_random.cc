#include "gpu/tokenizer/numpy_random.h"

#include <bit>

#include "protocol/base/check.h"

namespace reprise::engine {
namespace {

using Uint128 = unsigned __int128;

constexpr Uint128 Join(uint64_t high, uint64_t low) { return Uint128{high} << 64 | low; }

// numpy's SeedSequence: spreads a few words of seed over a pool, and the pool over as many words
// as a generator wants.
class SeedSequence {
 public:
  explicit SeedSequence(uint64_t seed) {
    // The words beyond the seed's own count as zero, so a seed of one word needs no special case.
    pool_ = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
    for (uint32_t& word : pool_) word = Hash(word);
    for (size_t from = 0; from < pool_.size(); ++from) {
      for (size_t to = 0; to < pool_.size(); ++to) {
        if (from != to) pool_[to] = Mix(pool_[to], Hash(pool_[from]));
      }
    }
  }

  std::array<uint64_t, 4> Words() const {
    constexpr uint32_t kMultiplier = 0x58f38ded;
    uint32_t constant = 0x8b51f9dd;
    std::array<uint64_t, 4> words{};
    for (size_t i = 0; i < 2 * words.size(); ++i) {
      uint32_t value = pool_[i % pool_.size()] ^ constant;
      constant *= kMultiplier;
      value *= constant;
      value ^= value >> 16;
      words[i / 2] |= uint64_t{value} << (i % 2 * 32);
    }
    return words;
  }

 private:
  uint32_t Hash(uint32_t value) {
    constexpr uint32_t kMultiplier = 0x931e8875;
    value ^= constant_;
    constant_ *= kMultiplier;
    value *= constant_;
    return value ^ value >> 16;
  }
  static uint32_t Mix(uint32_t left, uint32_t right) {
    const uint32_t value = 0xca01f9ddu * left - 0x4973f715u * right;
    return value ^ value >> 16;
  }

  std::array<uint32_t, 4> pool_{};
  uint32_t constant_ = 0x43b0d7e5;
};

}  // namespace

NumpyRandom::NumpyRandom(uint64_t seed) {
  const std::array<uint64_t, 4> words = SeedSequence(seed).Words();
  increment_ = Join(words[2], words[3]) << 1 | 1;
  Step();
  state_ += Join(words[0], words[1]);
  Step();
}

void NumpyRandom::Step() {
  constexpr Uint128 kMultiplier = Join(0x2360ED051FC65DA4, 0x4385DF649FCCF645);
  state_ = state_ * kMultiplier + increment_;
}

uint64_t NumpyRandom::Next() {
  Step();
  const auto high = static_cast<uint64_t>(state_ >> 64);
  return std::rotr(high ^ static_cast<uint64_t>(state_), static_cast<int>(high >> 58));
}

uint64_t NumpyRandom::Below(uint64_t bound) {
  RP_CHECK(bound > uint64_t{1} << 32);
  // Lemire 2019: the high half of a product, where the low half is not one of the few too many.
  const uint64_t too_many = -bound % bound;
  while (true) {
    const Uint128 product = Uint128{Next()} * bound;
    if (static_cast<uint64_t>(product) >= too_many) return static_cast<uint64_t>(product >> 64);
  }
}

}  // namespace reprise::engine
