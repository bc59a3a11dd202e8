#pragma once

#include "client/bench/daemon_bench.h"
#include "client/bench/ssd_bench.h"
#include "client/cli/commands.h"

// Figures as `reprise bench` prints them: a table for people, an object for programs.
namespace reprise::bench {

cli::Result Report(const SsdBenchOptions& options, const SsdBenchFigures& figures);
cli::Result Report(const DaemonBenchOptions& options, const DramBenchFigures& figures);
cli::Result Report(const DaemonBenchOptions& options, const WireBenchFigures& figures);
cli::Result Report(const DaemonBenchOptions& options, const LookupBenchFigures& figures);

}  // namespace reprise::bench
