#pragma once

#include <cstdint>

#include "client/drive/drive_store.h"
#include "client/drive/figures.h"
#include "client/drive/request_driver.h"
#include "client/trace/trace.h"

namespace reprise {

struct DriveOptions {
  RequestDriverOptions request;
  uint64_t requests_max = 0;  // 0: all.
  uint64_t sessions_max = 0;  // Only the first this many sessions of the trace; 0: all.
  // Trace time passes this many times as fast as the clock; 0: as fast as the store answers.
  double speed = 0;
  // Threads with a connection each. Requests of one session stay in order, on one connection; those
  // without a session are dealt out in turn.
  uint32_t connections = 1;
};

class DriveObserver {
 public:
  virtual ~DriveObserver() = default;
  // From the thread that called Drive, after every request that was handed to a connection.
  virtual void OnSent(uint64_t requests) = 0;
};

// Plays a trace against a store, to its end. The first error of the trace, or a connection that
// cannot be made again, ends it.
absl::StatusOr<DriveFigures> Drive(TraceReader* trace, DriveStoreMaker* stores,
                                   const DriveOptions& options, const WaitingClock* clock,
                                   DriveObserver* observer = nullptr);

}  // namespace reprise
