#pragma once

#include <cstdint>

#include "protocol/base/types.h"

namespace reprise::storage {

// The finaliser of splitmix64: every bit of the value reaches every bit of the result.
constexpr uint64_t MixBits(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// 64 mixed bits of a key. Keys of stored blocks are hashes already; those of simulated blocks are
// small numbers, and the policies must not care.
constexpr uint64_t HashOf(const BlockKey& key) {
  return MixBits(MixBits(key.low + 0x9e3779b97f4a7c15u) + key.high);
}

}  // namespace reprise::storage
