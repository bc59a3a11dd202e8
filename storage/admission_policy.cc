#include "storage/admission_policy.h"

#include <algorithm>
#include <string>
#include <vector>

#include "storage/key_hash.h"

namespace reprise::storage {
namespace {

class AdmitAll final : public AdmissionPolicy {
 public:
  void Record(const BlockKey&) override {}
  bool Admit(const BlockKey&) override { return true; }
};

// Maps 32 mixed bits to [0, bound).
uint64_t Reduce(uint32_t bits, uint64_t bound) { return (bits * bound) >> 32; }

// Four rows of 4-bit counters, 16 to a word. An estimate is never below the truth.
class CountMinSketch {
 public:
  static constexpr uint32_t kRows = 4;
  static constexpr uint32_t kCountMax = 15;

  explicit CountMinSketch(uint64_t width)
      : width_(width), words_(DivideUp(width * kRows, kCountersPerWord)) {}

  uint32_t Estimate(uint64_t hash) const {
    uint32_t least = kCountMax;
    for (uint32_t row = 0; row < kRows; ++row) least = std::min(least, Get(Place(hash, row)));
    return least;
  }

  // Raises only the counters that decide the estimate, which keeps the error of the others down.
  void Increment(uint64_t hash) {
    const uint32_t least = Estimate(hash);
    if (least == kCountMax) return;
    for (uint32_t row = 0; row < kRows; ++row) {
      const uint64_t place = Place(hash, row);
      if (Get(place) == least) {
        words_[place / kCountersPerWord] += uint64_t{1} << Shift(place);
      }
    }
  }

  void Halve() {
    for (uint64_t& word : words_) word = (word >> 1) & 0x7777'7777'7777'7777u;
  }

 private:
  static constexpr uint32_t kCountersPerWord = 16;

  uint64_t Place(uint64_t hash, uint32_t row) const {
    const auto start = static_cast<uint32_t>(hash);
    const uint32_t step = static_cast<uint32_t>(hash >> 32) | 1;
    return row * width_ + Reduce(start + row * step, width_);
  }
  static uint32_t Shift(uint64_t place) { return 4 * (place % kCountersPerWord); }
  uint32_t Get(uint64_t place) const {
    return (words_[place / kCountersPerWord] >> Shift(place)) & kCountMax;
  }

  uint64_t width_;
  std::vector<uint64_t> words_;
};

// A Bloom filter that keeps the four bits of a key in one word: one cache miss a look.
class Doorkeeper {
 public:
  explicit Doorkeeper(uint64_t bits) : words_(DivideUp(bits, 64)) {}

  bool Contains(uint64_t hash) const {
    const uint64_t mask = Mask(hash);
    return (words_[Word(hash)] & mask) == mask;
  }
  void Add(uint64_t hash) { words_[Word(hash)] |= Mask(hash); }
  void Clear() { std::fill(words_.begin(), words_.end(), 0); }

 private:
  uint64_t Word(uint64_t hash) const {
    return Reduce(static_cast<uint32_t>(hash >> 32), words_.size());
  }
  static uint64_t Mask(uint64_t hash) {
    uint64_t mask = 0;
    for (uint32_t i = 0; i < 4; ++i) mask |= uint64_t{1} << ((hash >> (6 * i)) & 63);
    return mask;
  }

  std::vector<uint64_t> words_;
};

class TinyLfu final : public AdmissionPolicy {
 public:
  explicit TinyLfu(uint64_t capacity)
      : records_max_(10 * capacity),
        first_sights_max_(2 * capacity),
        sketch_(std::max(capacity, kWidthMin)),
        // Eight bits for each first sight: at most 4 % of new keys pass for seen.
        doorkeeper_(8 * 2 * std::max(capacity, kWidthMin)) {}

  void Record(const BlockKey& key) override {
    if (records_ == records_max_ || first_sights_ == first_sights_max_) Age();
    ++records_;
    const uint64_t hash = HashOf(key);
    if (doorkeeper_.Contains(MixBits(hash))) {
      sketch_.Increment(hash);
    } else {
      doorkeeper_.Add(MixBits(hash));
      ++first_sights_;
    }
  }

  bool Admit(const BlockKey& key) override {
    const uint64_t hash = HashOf(key);
    const uint32_t sights = sketch_.Estimate(hash) + (doorkeeper_.Contains(MixBits(hash)) ? 1 : 0);
    return sights >= kSightsToEnter;
  }

 private:
  static constexpr uint32_t kSightsToEnter = 2;
  static constexpr uint64_t kWidthMin = 64;  // Tiny tiers would be all collisions.

  // One pass over 4 bytes a block of capacity, once in 2 to 10 * capacity records.
  void Age() {
    sketch_.Halve();
    doorkeeper_.Clear();
    records_ = 0;
    first_sights_ = 0;
  }

  uint64_t records_max_;
  uint64_t first_sights_max_;
  uint64_t records_ = 0;
  uint64_t first_sights_ = 0;
  CountMinSketch sketch_;
  Doorkeeper doorkeeper_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AdmissionPolicy>> MakeAdmissionPolicy(std::string_view name,
                                                                     uint64_t capacity) {
  if (name == "all") return std::make_unique<AdmitAll>();
  if (name != "tinylfu") {
    return InvalidArgument("unknown admission policy \"" + std::string(name) +
                           "\": use all or tinylfu");
  }
  if (capacity > UINT32_MAX) {
    return InvalidArgument("admission policy tinylfu counts for at most 4294967295 blocks, not " +
                           std::to_string(capacity) + ": use more shards");
  }
  return std::make_unique<TinyLfu>(std::max<uint64_t>(capacity, 1));
}

}  // namespace reprise::storage
