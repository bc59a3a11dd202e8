#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>

#include "protocol/base/bytes.h"

namespace reprise {

using TokenId = int32_t;

// Tokens in a block: the unit of hashing, storing and loading (design: vocabulary).
inline constexpr uint32_t kBlockTokens = 128;

struct Hash256 {
  std::array<std::byte, 32> bytes{};

  friend bool operator==(const Hash256&, const Hash256&) = default;
  friend auto operator<=>(const Hash256&, const Hash256&) = default;
};
static_assert(sizeof(Hash256) == 32);

// The first 16 bytes of a block hash: what indexes and messages carry. The record keeps the whole
// hash and the token ids, which are compared on load.
struct BlockKey {
  uint64_t low = 0;   // Bytes 0..7, little-endian: names the bucket in an index.
  uint64_t high = 0;  // Bytes 8..15, little-endian: names the shard.

  friend bool operator==(const BlockKey&, const BlockKey&) = default;
  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;
};
static_assert(sizeof(BlockKey) == 16);

inline BlockKey KeyOf(const Hash256& hash) {
  return {LoadLe<uint64_t>(hash.bytes.data()), LoadLe<uint64_t>(hash.bytes.data() + 8)};
}
inline std::string ToHex(const Hash256& hash) { return ToHex(ConstBytes(hash.bytes)); }
inline std::string ToHex(const BlockKey& key) { return ToHex(AsBytes(key)); }

// The shard that owns a block. Uses the high half so that it is independent of the bucket.
constexpr uint32_t ShardOf(const BlockKey& key, uint32_t shard_count) {
  return static_cast<uint32_t>(key.high % shard_count);
}

// Where a block's bytes are. One byte on the wire; also the order of preference.
enum class Tier : uint8_t { kNone = 0, kHbm = 1, kDram = 2, kSsd = 3, kShared = 4 };

constexpr const char* TierName(Tier tier) {
  switch (tier) {
    case Tier::kNone:
      return "none";
    case Tier::kHbm:
      return "hbm";
    case Tier::kDram:
      return "dram";
    case Tier::kSsd:
      return "ssd";
    case Tier::kShared:
      return "shared";
  }
  return "unknown";
}

}  // namespace reprise

template <>
struct std::hash<reprise::BlockKey> {
  size_t operator()(const reprise::BlockKey& key) const noexcept { return key.low; }
};
template <>
struct std::hash<reprise::Hash256> {
  size_t operator()(const reprise::Hash256& value) const noexcept {
    return reprise::LoadLe<uint64_t>(value.bytes.data());
  }
};
