#pragma once

#include <string>

#include "client/cli/commands.h"
#include "client/trace/trace.h"

namespace reprise::cli {

// TRACE, --format, --trace-block and --lenient.
void AddTraceOptions(CLI::App* verb, std::string* trace, TraceOptions* options);

// An option that ParseDuration reads.
CLI::Option* AddDuration(CLI::App* verb, const std::string& name, Nanos* duration_ns,
                         const std::string& help);

std::string PercentOf(double share);  // "37.3380 %"

}  // namespace reprise::cli
