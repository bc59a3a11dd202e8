#pragma once

#include <cstdint>
#include <string>

#include "protocol/base/clock.h"

namespace reprise::cli {

// One line on stderr that shows how far long work is: bar, share, rate, time left. Draws only when
// stderr is a terminal, at most ten times a second, and erases itself at the end, so logs and pipes
// stay clean.
class Progress {
 public:
  enum class Unit { kCount, kBytes };

  // `total` 0: not known beforehand, no bar. `clock` outlives this.
  Progress(std::string what, uint64_t total, Unit unit, const Clock& clock);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Cheap enough to call per block.
  void Update(uint64_t done);

  // The line for a state of the work, `width` columns at most.
  static std::string Line(const std::string& what, uint64_t done, uint64_t total, Unit unit,
                          Nanos elapsed_ns, uint32_t width);

 private:
  std::string what_;
  uint64_t total_;
  Unit unit_;
  const Clock& clock_;
  Instant start_;
  Instant next_draw_;
  bool terminal_;
};

}  // namespace reprise::cli
