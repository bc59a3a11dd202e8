#pragma once

#include <string>

#include "client/cli/commands.h"
#include "client/drive/driver.h"
#include "client/trace/trace.h"

namespace reprise {

// What `reprise drive` was asked for.
struct DriveCommand {
  std::string trace;
  TraceOptions trace_options;
  std::string speed = "max";
  std::string model = "v4.1-flash";
  std::string salt;
  int64_t window_bytes = -1;  // -1: the model's.
  std::string write_trace;    // A file: write the trace there and do nothing else.
  DriveOptions options;
};

// Bytes of all windows of a session: what a snapshot of the model holds.
absl::StatusOr<uint32_t> WindowBytesOf(const std::string& model);

// "max" gives 0, "trace" 1, a number itself.
absl::StatusOr<double> ParseSpeed(const std::string& text);

// Connects, plays the trace, and reports. Exit code 1 when wrong bytes were served.
absl::StatusOr<cli::Result> RunDriveCommand(DriveCommand command, const cli::Globals& globals);

}  // namespace reprise
