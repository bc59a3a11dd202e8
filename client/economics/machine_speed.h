#pragma once

#include <cstdint>
#include <string>

#include "protocol/base/clock.h"
#include "protocol/base/status.h"

namespace reprise {

// What this machine's parts reach, for a cost profile.
struct DiskSpeed {
  double read_bytes_per_second = 0, write_bytes_per_second = 0;
  bool direct = false;  // O_DIRECT; else the page cache answered too.
};
// Writes a file of `bytes` in `folder` with records of V4.1-Flash, then reads it at random places,
// 32 at a time, for some seconds each. The file is removed.
absl::StatusOr<DiskSpeed> MeasureDisk(const std::string& folder, uint64_t bytes, Nanos duration_ns,
                                      const Clock& clock);

// Copies of records from memory that no cache holds, on one core.
double MeasureCopyBytesPerSecond(Nanos duration_ns, const Clock& clock);

}  // namespace reprise
