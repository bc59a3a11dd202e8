#include "client/economics/cost_profile.h"

#include <toml++/toml.h>

#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

namespace reprise {
namespace {

template <auto... path>
double* At(CostProfile& profile) {
  return &(profile.*....*path);
}

struct Field {
  std::string_view key;
  double* (*at)(CostProfile&);
  double min, max;
  std::string_view help;  // Meaning, unit, source and date of the default.
};

using P = CostProfile;
constexpr double kHuge = 1e15;
constexpr std::array kFields = {
    Field{"load_latency_ms", At<&P::load_latency_ms>, 0, 1e6,
          "Milliseconds before the first byte of a load. An allowance, not a measurement."},
    Field{"hardware_life_years", At<&P::hardware_life_years>, 0.1, 100,
          "Years over which DRAM and SSD are written off. The usual data-sheet life."},
    Field{"holding_overhead", At<&P::holding_overhead>, 1, 100,
          "DRAM and SSD cost so many times their price: slots, power, replacement. An assumption."},

    Field{
        "gpu.usd_per_hour", At<&P::gpu, &P::Gpu::usd_per_hour>, 0, 1e6,
        "Rent of one GPU. H200: 2.5 to 3.5 long-tail, 3.5 to 7 elsewhere; price guides, May 2026."},
    Field{"gpu.memory_gb", At<&P::gpu, &P::Gpu::memory_gb>, 0.001, kHuge,
          "Memory of one GPU: HBM costs its share of the rent. H200 data sheet."},
    Field{"gpu.per_instance", At<&P::gpu, &P::Gpu::per_instance>, 0.01, 1e6,
          "GPUs that serve one request together. An assumption: the memory that V4.1-Flash needs."},
    Field{
        "gpu.prefill_tokens_per_second", At<&P::gpu, &P::Gpu::prefill_tokens_per_second>, 0.001,
        kHuge,
        "Prompt tokens that one GPU computes. An assumption, between 4.0k (V3 on H800, 37B active, "
        "open-infra-index, February 2025) and 18k (the same scaled to 8B active): try 5000 and "
        "20000."},
    Field{"gpu.prefill_at_tokens", At<&P::gpu, &P::Gpu::prefill_at_tokens>, 0, 1e8,
          "Prompt length at which the rate above holds; attention makes longer ones slower."},
    Field{"gpu.watts", At<&P::gpu, &P::Gpu::watts>, 0, 1e6,
          "Power of one GPU at work, for kWh. H200 data sheet. The rent pays for it."},
    Field{"hbm.gb_per_second", At<&P::hbm, &P::Hbm::gb_per_second>, 0.001, kHuge,
          "Bandwidth of one GPU's memory. H200 data sheet."},
    Field{"dram.usd_per_gb", At<&P::dram, &P::Dram::usd_per_gb>, 0, 1e6,
          "64 GB RDIMM at about $700. Counterpoint, March 2026."},
    Field{"dram.gb_per_second", At<&P::dram, &P::Dram::gb_per_second>, 0.001, kHuge,
          "From DRAM to where it is used, not overlapped. PCIe 5.0 x16 in practice."},
    Field{"ssd.usd_per_gb", At<&P::ssd, &P::Ssd::usd_per_gb>, 0, 1e6,
          "30 TB TLC at $10,950 (0.10 a year before). VDURA index, Q1 2026."},
    Field{"ssd.read_gb_per_second", At<&P::ssd, &P::Ssd::read_gb_per_second>, 0.001, kHuge,
          "All drives of a machine together. One PCIe 4.0 drive's data sheet."},
    Field{"ssd.write_gb_per_second", At<&P::ssd, &P::Ssd::write_gb_per_second>, 0.001, kHuge,
          "Likewise."},
    Field{
        "ssd.drive_gb", At<&P::ssd, &P::Ssd::drive_gb>, 0.001, kHuge,
        "Capacity of the drives behind that bandwidth: what DRAM instead of SSD is weighed with."},
    Field{"ssd.drive_writes_per_day", At<&P::ssd, &P::Ssd::drive_writes_per_day>, 0.001, 1000,
          "Endurance. Read-intensive TLC is sold with 1 over 5 years; QLC with 0.3 to 0.6."},
    Field{"ssd.write_amplification", At<&P::ssd, &P::Ssd::write_amplification>, 1, 100,
          "Flash bytes for a byte written. An assumption for large regions written in sequence."},
    Field{"shared.gb_per_second", At<&P::shared, &P::Shared::gb_per_second>, 0.001, kHuge,
          "From another machine. A 25 Gb/s link."},
    Field{"price.hit_usd_per_million", At<&P::price, &P::Price::hit_usd_per_million>, 0, 1e6,
          "List price of cached input. deepseek-flash off-peak, api-docs.deepseek.com, in force "
          "2026-09-10, seen 2026-11-15; the double in peak hours."},
    Field{"price.miss_usd_per_million", At<&P::price, &P::Price::miss_usd_per_million>, 0, 1e6,
          "List price of other input. Same page."},
    Field{"price.output_usd_per_million", At<&P::price, &P::Price::output_usd_per_million>, 0, 1e6,
          "List price of output. Same page."},
};

constexpr double kGb = 1e9;
constexpr double kYearSeconds = 365.25 * 86'400;

std::string Number(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  (void)error;
  std::string number(text, end);
  // TOML tells floats by the point or the exponent.
  if (number.find_first_of(".en") == std::string::npos) number += ".0";
  return number;
}

const Field* FindField(std::string_view key) {
  for (const Field& field : kFields) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

absl::Status UnknownKey(std::string_view key) {
  std::string known;
  for (const Field& field : kFields) {
    known += (known.empty() ? "" : ", ") + std::string(field.key);
  }
  return InvalidArgument("unknown key " + std::string(key) + ": known are " + known);
}

absl::Status CheckRange(const Field& field, double value) {
  if (value >= field.min && value <= field.max) return absl::OkStatus();
  return InvalidArgument(std::string(field.key) + " = " + Number(value) + ": must be from " +
                         Number(field.min) + " to " + Number(field.max));
}

// Comment lines of at most 100 columns.
std::string Comment(std::string_view text) {
  std::string out;
  std::string line = "#";
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > 100) {
      out += line + "\n";
      line = "#";
    }
    line += " " + word;
  }
  return out + line + "\n";
}

absl::Status ReadTable(const toml::table& table, const std::string& prefix, const std::string& name,
                       CostProfile* profile, std::set<std::string>* given) {
  for (const auto& [key, node] : table) {
    const std::string full = prefix + std::string(key.str());
    const std::string where = name + ":" + std::to_string(node.source().begin.line) + ": ";
    if (const toml::table* section = node.as_table(); section != nullptr && prefix.empty()) {
      RP_TRY(ReadTable(*section, full + ".", name, profile, given));
      continue;
    }
    const Field* field = FindField(full);
    if (field == nullptr) return InvalidArgument(where + Message(UnknownKey(full)));
    const std::optional<double> value = node.value<double>();
    if (!node.is_number() || !value || !std::isfinite(*value)) {
      return InvalidArgument(where + full + " must be a number");
    }
    if (const absl::Status status = CheckRange(*field, *value); !status.ok()) {
      return InvalidArgument(where + Message(status));
    }
    *field->at(*profile) = *value;
    given->insert(full);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CostProfile> CostProfile::Parse(const std::string& text, const std::string& name) {
  toml::table root;
  try {  // The door to toml++, which throws.
    root = toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    return InvalidArgument(name + ":" + std::to_string(error.source().begin.line) + ": " +
                           std::string(error.description()));
  }
  CostProfile profile;
  std::set<std::string> given;
  RP_TRY(ReadTable(root, "", name, &profile, &given));
  std::string missing;
  for (const Field& field : kFields) {
    if (given.contains(std::string(field.key))) continue;
    missing += (missing.empty() ? "" : ", ") + std::string(field.key);
  }
  if (missing.empty()) return profile;
  return InvalidArgument(name + " does not say " + missing +
                         "; `reprise simulate --print-profile` shows a whole one");
}

absl::StatusOr<CostProfile> CostProfile::Load(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return InvalidArgument("cannot read the cost profile " + path);
  }
  return Parse(text.str(), path);
}

absl::StatusOr<CostProfile> CostProfile::LoadAndSet(const std::string& path,
                                                    const std::vector<std::string>& assignments) {
  CostProfile profile;
  if (!path.empty()) {
    RP_ASSIGN(profile, Load(path));
  }
  for (const std::string& assignment : assignments) RP_TRY(profile.Set(assignment));
  return profile;
}

absl::Status CostProfile::Set(std::string_view assignment) {
  const size_t equals = assignment.find('=');
  const std::string_view key = assignment.substr(0, equals);
  const Field* field = FindField(key);
  if (field == nullptr) return UnknownKey(key);
  const std::string_view text =
      equals == std::string_view::npos ? "" : assignment.substr(equals + 1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) {
    return InvalidArgument("\"" + std::string(assignment) + "\": write KEY=NUMBER");
  }
  RP_TRY(CheckRange(*field, value));
  *field->at(*this) = value;
  return absl::OkStatus();
}

std::string CostProfile::ToToml(const std::map<std::string, std::string>& measured) const {
  std::string text =
      "# What hardware costs and how fast it is, for `reprise simulate --profile` and `reprise "
      "status\n# --money`. GB are 10^9 bytes. Every key must be there.\n";
  std::string section;
  for (const Field& field : kFields) {
    const size_t dot = field.key.find('.');
    const std::string_view own =
        dot == std::string_view::npos ? std::string_view() : field.key.substr(0, dot);
    if (own != section) {
      section = own;
      text += "\n[" + section + "]";
    }
    const auto found = measured.find(std::string(field.key));
    text += "\n" + Comment(found == measured.end() ? field.help : found->second) +
            std::string(dot == std::string_view::npos ? field.key : field.key.substr(dot + 1)) +
            " = " + Number(*field.at(const_cast<CostProfile&>(*this))) + "\n";
  }
  return text;
}

double CostProfile::hbm_usd_per_byte_second() const {
  return gpu_usd_per_second() / (gpu.memory_gb * kGb);
}
double CostProfile::dram_usd_per_byte_second() const {
  return dram.usd_per_gb / kGb * holding_overhead / (hardware_life_years * kYearSeconds);
}
double CostProfile::ssd_usd_per_byte_second() const {
  return ssd.usd_per_gb / kGb * holding_overhead / (hardware_life_years * kYearSeconds);
}
double CostProfile::ssd_usd_per_byte_written() const {
  const double writes = ssd.drive_writes_per_day * hardware_life_years * 365.25;
  return ssd.usd_per_gb / kGb / writes * ssd.write_amplification;
}

}  // namespace reprise
