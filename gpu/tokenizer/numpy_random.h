#pragma once

#include <array>
#include <cstdint>

namespace reprise::engine {

// The numbers of numpy's default_rng(seed): PCG64 (O'Neill 2014, XSL-RR 128/64) seeded by
// SeedSequence. Models are trained with hashes drawn from it, so it is part of their definition;
// nothing else draws from it.
class NumpyRandom {
 public:
  explicit NumpyRandom(uint64_t seed);

  uint64_t Next();
  // As integers(0, bound) for 64-bit integers; `bound` > 2^32, since numpy draws smaller ones
  // differently.
  uint64_t Below(uint64_t bound);

 private:
  void Step();

  unsigned __int128 state_ = 0;
  unsigned __int128 increment_ = 0;
};

}  // namespace reprise::engine
