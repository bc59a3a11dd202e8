#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "protocol/base/status.h"
#include "protocol/base/types.h"

namespace reprise::storage {

// "May it enter SSD?" Asked once per block that was not put as durable; told of every request for a
// key. Confined to one thread, no allocation after construction.
class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;
  // A request touched `key` (a lookup that hit, an acquire, a put).
  virtual void Record(const BlockKey& key) = 0;
  virtual bool Admit(const BlockKey& key) = 0;
};

// "all": everything enters. "tinylfu": a key enters when a count-min sketch with periodic halving
// (Einziger, Friedman and Manes, ACM TOS 2017) has seen it at least twice lately, a Bloom
// doorkeeper taking the first sight; `capacity` is the number of blocks that the tier holds and
// sizes the sketch.
//
// Lately: counts are halved and the doorkeeper is emptied every 10 * capacity records, or sooner,
// when the doorkeeper has taken the 2 * capacity first sights that it is sized for. Memory: 4 bytes
// for each block of capacity, half of it the sketch. Collisions only admit: at most 4 % of one-time
// keys pass beside a quiet tier, one in six beside `capacity` others that all return. Refuses a
// capacity of 2^32 or more.
absl::StatusOr<std::unique_ptr<AdmissionPolicy>> MakeAdmissionPolicy(std::string_view name,
                                                                     uint64_t capacity);

}  // namespace reprise::storage
