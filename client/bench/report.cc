#include "client/bench/report.h"

#include <cstdarg>
#include <cstdio>

namespace reprise::bench {
namespace {

using cli::Json;

__attribute__((format(printf, 2, 3))) void Print(std::string* text, const char* format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  *text += line;
}

double Micros(Nanos ns) { return static_cast<double>(ns) * 1e-3; }

Json LatencyJson(const LatencyHistogram& latency) {
  return {{"p50", Micros(latency.Percentile(0.5))},
          {"p90", Micros(latency.Percentile(0.9))},
          {"p99", Micros(latency.Percentile(0.99))},
          {"p999", Micros(latency.Percentile(0.999))},
          {"max", Micros(latency.max_ns())}};
}

Json MeasuredJson(const Measured& measured) {
  return {{"records", measured.records},
          {"seconds", measured.seconds()},
          {"records_per_second", measured.records_per_second()},
          {"bytes_per_second", measured.bytes_per_second()},
          {"latency_us", LatencyJson(measured.latency)}};
}

Json SeriesJson(const Series& series) {
  return {{"median", series.median()}, {"min", series.min()}, {"max", series.max()}};
}

constexpr const char* kColumns =
    "                    MB/s   records/s      p50 us      p99 us    p99.9 us\n";

void PrintRow(std::string* text, const char* name, const Measured& measured) {
  Print(text, "%-14s %9.1f %11.0f %11.1f %11.1f %11.1f\n", name, measured.bytes_per_second() * 1e-6,
        measured.records_per_second(), Micros(measured.latency.Percentile(0.5)),
        Micros(measured.latency.Percentile(0.99)), Micros(measured.latency.Percentile(0.999)));
}

Json DaemonConfigJson(const char* name, const DaemonBenchOptions& options, uint32_t record_bytes) {
  return {{"bench", name},
          {"record_bytes", record_bytes},
          {"working_set_records", options.records},
          {"batch", options.batch},
          {"rounds", options.rounds}};
}

}  // namespace

cli::Result Report(const SsdBenchOptions& options, const SsdBenchFigures& figures) {
  cli::Result result;
  result.json = {{"bench", "ssd"},
                 {"file", SsdBenchFile(options)},
                 {"size_bytes", options.size_bytes},
                 {"region_bytes", options.region_bytes},
                 {"record_bytes", options.record_bytes},
                 {"queue_depth", options.queue_depth},
                 {"direct", figures.direct},
                 {"registered_memory", figures.registered_memory},
                 {"pages", figures.pages},
                 {"recovered_records", figures.recovered_records},
                 {"checked", options.check},
                 {"wrong_records", figures.wrong_records}};
  Print(&result.text, "%u records of %u bytes at a time, %s, %s buffers in %s pages\n%s",
        options.queue_depth, options.record_bytes,
        figures.direct ? "direct" : "through the page cache",
        figures.registered_memory ? "registered" : "unregistered", figures.pages.c_str(), kColumns);
  if (options.append) {
    result.json["append"] = MeasuredJson(figures.append);
    PrintRow(&result.text, "append", figures.append);
  }
  if (options.append_durable) {
    result.json["append_durable"] = MeasuredJson(figures.append_durable);
    result.json["append_durable"]["syncs"] = figures.syncs;
    PrintRow(&result.text, "append durable", figures.append_durable);
  }
  if (options.read) {
    result.json["read"] = MeasuredJson(figures.read);
    PrintRow(&result.text, "read", figures.read);
  }
  if (!figures.remarks.empty()) {
    result.json["remarks"] = figures.remarks;
    result.text += figures.remarks + "\n";
  }
  if (figures.wrong_records > 0) {
    result.exit_code = cli::kExitMiss;
    Print(&result.text, "WRONG: %llu records that were read failed their checks\n",
          static_cast<unsigned long long>(figures.wrong_records));
  }
  return result;
}

cli::Result Report(const DaemonBenchOptions& options, const DramBenchFigures& figures) {
  cli::Result result;
  result.json = DaemonConfigJson("dram", options, figures.record_bytes);
  result.json["wrong_records"] = figures.wrong_records;
  result.json["lease"] = MeasuredJson(figures.lease);
  result.json["lease"]["records_per_second_rounds"] = SeriesJson(figures.lease_rate);
  result.json["copy"] = MeasuredJson(figures.copy);
  result.json["copy"]["bytes_per_second_rounds"] = SeriesJson(figures.copy_rate);
  result.json["memcpy"] = MeasuredJson(figures.memory_copy);
  result.json["memcpy"]["bytes_per_second_rounds"] = SeriesJson(figures.memory_copy_rate);
  result.json["copy_over_memcpy"] = SeriesJson(figures.copy_ratio);
  Print(&result.text, "batches of %u records of %u bytes; times are of a batch\n%s", options.batch,
        figures.record_bytes, kColumns);
  PrintRow(&result.text, "lease", figures.lease);
  PrintRow(&result.text, "lease and copy", figures.copy);
  PrintRow(&result.text, "memcpy alone", figures.memory_copy);
  Print(&result.text, "copy over memcpy: %.3f [%.3f..%.3f]\n", figures.copy_ratio.median(),
        figures.copy_ratio.min(), figures.copy_ratio.max());
  if (figures.wrong_records > 0) {
    result.exit_code = cli::kExitMiss;
    Print(&result.text, "WRONG: %llu records were not what was put\n",
          static_cast<unsigned long long>(figures.wrong_records));
  }
  return result;
}

cli::Result Report(const DaemonBenchOptions& options, const WireBenchFigures& figures) {
  cli::Result result;
  result.json = DaemonConfigJson("wire", options, figures.record_bytes);
  result.json["routes"] = Json::array();
  Print(&result.text, "one connection, records of %u bytes; times are of a request\n%s",
        figures.record_bytes, kColumns);
  for (const WireBenchFigures::Route& route : figures.routes) {
    const std::string verb = route.put ? "put" : "get";
    Json json = {{"route", route.name}, {"verb", verb}, {"batch", route.batch}};
    json.update(MeasuredJson(route.measured));
    json["bytes_per_second_rounds"] = SeriesJson(route.rate);
    result.json["routes"].push_back(std::move(json));
    PrintRow(&result.text, (route.name + " " + verb + " x" + std::to_string(route.batch)).c_str(),
             route.measured);
  }
  return result;
}

cli::Result Report(const DaemonBenchOptions& options, const LookupBenchFigures& figures) {
  cli::Result result;
  result.json = {{"bench", "lookup"},
                 {"chain_blocks", kLookupChainBlocks},
                 {"rounds", options.rounds},
                 {"in_process", Json::array()}};
  Print(&result.text, "chains of %u known blocks, one thread; times are of a chain\n",
        kLookupChainBlocks);
  result.text += "                        Mblocks/s      p50 us      p99 us  index B/block\n";
  for (const LookupBenchFigures::InProcess& index : figures.in_process) {
    result.json["in_process"].push_back({{"blocks", index.blocks},
                                         {"blocks_per_second", index.measured.records_per_second()},
                                         {"blocks_per_second_rounds", SeriesJson(index.rate)},
                                         {"index_bytes_per_block", index.index_bytes_per_block},
                                         {"latency_us", LatencyJson(index.measured.latency)}});
    Print(&result.text, "index of %-13llu %10.2f %11.1f %11.1f %14.1f\n",
          static_cast<unsigned long long>(index.blocks), index.measured.records_per_second() * 1e-6,
          Micros(index.measured.latency.Percentile(0.5)),
          Micros(index.measured.latency.Percentile(0.99)), index.index_bytes_per_block);
  }
  if (!figures.daemon_rate.empty()) {
    result.json["daemon"] = {{"blocks_per_second", figures.daemon.records_per_second()},
                             {"blocks_per_second_rounds", SeriesJson(figures.daemon_rate)},
                             {"latency_us", LatencyJson(figures.daemon.latency)}};
    Print(&result.text, "%-22s %10.2f %11.1f %11.1f\n", "daemon",
          figures.daemon.records_per_second() * 1e-6,
          Micros(figures.daemon.latency.Percentile(0.5)),
          Micros(figures.daemon.latency.Percentile(0.99)));
  }
  return result;
}

}  // namespace reprise::bench
