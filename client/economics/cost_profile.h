#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/base/status.h"

namespace reprise {

// What hardware costs and how fast it is: all that money and seconds derive from, beside the model.
// The initialisers are the defaults; each field's meaning, unit and source stand in the table of
// cost_profile.cc, from which the parser and ToToml follow. GB are 10^9 bytes.
struct CostProfile {
  struct Gpu {
    double usd_per_hour = 3.0;
    double memory_gb = 141;
    double per_instance = 4;
    double prefill_tokens_per_second = 10'000;
    double prefill_at_tokens = 8'192;
    double watts = 700;
    friend bool operator==(const Gpu&, const Gpu&) = default;
  } gpu;
  struct Hbm {
    double gb_per_second = 4'800;
    friend bool operator==(const Hbm&, const Hbm&) = default;
  } hbm;
  struct Dram {
    double usd_per_gb = 10.9;
    double gb_per_second = 50;
    friend bool operator==(const Dram&, const Dram&) = default;
  } dram;
  struct Ssd {
    double usd_per_gb = 0.356;
    double read_gb_per_second = 7;
    double write_gb_per_second = 5;
    double drive_gb = 7'680;
    double drive_writes_per_day = 1;
    double write_amplification = 1.2;
    friend bool operator==(const Ssd&, const Ssd&) = default;
  } ssd;
  struct Shared {
    double gb_per_second = 3.125;
    friend bool operator==(const Shared&, const Shared&) = default;
  } shared;
  double load_latency_ms = 1;
  double hardware_life_years = 5;
  double holding_overhead = 1.3;
  struct Price {
    double hit_usd_per_million = 0.003;
    double miss_usd_per_million = 0.15;
    double output_usd_per_million = 0.60;
    friend bool operator==(const Price&, const Price&) = default;
  } price;

  friend bool operator==(const CostProfile&, const CostProfile&) = default;

  // A TOML file that gives every field. One that is missing, unknown or out of its range is an
  // error that names file, line and key.
  static absl::StatusOr<CostProfile> Load(const std::string& path);
  static absl::StatusOr<CostProfile> Parse(const std::string& text, const std::string& name);
  // The file (empty: the defaults), then assignments as Set takes them.
  static absl::StatusOr<CostProfile> LoadAndSet(const std::string& path,
                                                const std::vector<std::string>& assignments);
  // "gpu.usd_per_hour=2.5".
  absl::Status Set(std::string_view assignment);
  // With the sources as comments; Parse reads it back to an equal profile. `measured`: what to say
  // instead of a key's source, where it was measured.
  std::string ToToml(const std::map<std::string, std::string>& measured = {}) const;

  // ---- What follows (docs: economics) ---------------------------------------------------------
  double gpu_usd_per_second() const { return gpu.usd_per_hour / 3600; }
  // $ for holding a byte a second: price x overhead / life; HBM by its share of the rent.
  double hbm_usd_per_byte_second() const;
  double dram_usd_per_byte_second() const;
  double ssd_usd_per_byte_second() const;
  // $ of wear for writing a byte: price / (writes of the whole drive in its life).
  double ssd_usd_per_byte_written() const;
};

}  // namespace reprise
