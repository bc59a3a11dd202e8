#include "client/simulate/settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "protocol/base/units.h"

namespace reprise {
namespace {

using S = SimulationSettings;

constexpr size_t kPointsMax = 10'000;

template <auto member>
absl::Status SetSize(S* settings, const std::string& text) {
  if (text == "0") {
    settings->*member = 0;
    return absl::OkStatus();
  }
  RP_ASSIGN(settings->*member, ParseBytes(text));
  return absl::OkStatus();
}
template <auto member>
std::string GetSize(const S& settings) {
  return ExactBytes(settings.*member);
}

template <auto member, uint32_t min, uint32_t max>
absl::Status SetCount(S* settings, const std::string& text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    return InvalidArgument("\"" + text + "\" must be a number from " + std::to_string(min) +
                           " to " + std::to_string(max));
  }
  settings->*member = value;
  return absl::OkStatus();
}
template <auto member>
std::string GetCount(const S& settings) {
  return std::to_string(settings.*member);
}

absl::Status OneOf(const std::string& text, std::initializer_list<std::string_view> words) {
  if (std::find(words.begin(), words.end(), text) != words.end()) return absl::OkStatus();
  std::string known;
  for (const std::string_view word : words)
    known += (known.empty() ? "" : ", ") + std::string(word);
  return InvalidArgument("unknown word \"" + text + "\": use one of " + known);
}

template <auto member>
std::string GetText(const S& settings) {
  return settings.*member;
}

constexpr std::array kSettings = {
    Setting{"model", "MODEL",
            "Whose bytes and operations: v4.1-flash, v4-flash, v3.2, nano, a folder",
            [](S* s, const std::string& text) {
              RP_TRY(ModelCosts::For(text).status());
              s->model = text;
              return absl::OkStatus();
            },
            GetText<&S::model>},
    Setting{"hbm", "SIZE", "The engine's own pool of blocks on its GPUs", SetSize<&S::hbm_bytes>,
            GetSize<&S::hbm_bytes>},
    Setting{"dram", "SIZE", "Memory for blocks, of each machine", SetSize<&S::dram_bytes>,
            GetSize<&S::dram_bytes>},
    Setting{"ssd", "SIZE", "Disk space for blocks; 0: none", SetSize<&S::ssd_bytes>,
            GetSize<&S::ssd_bytes>},
    Setting{"window", "SIZE", "Memory for window snapshots; auto: 10 % of dram; 0: none",
            [](S* s, const std::string& text) {
              if (text != "auto") return SetSize<&S::window_bytes>(s, text);
              s->window_bytes = S::kTenPercentOfDram;
              return absl::OkStatus();
            },
            [](const S& s) {
              return s.window_bytes == S::kTenPercentOfDram ? "auto" : ExactBytes(s.window_bytes);
            }},
    Setting{"window-ttl", "DURATION", "A snapshot leaves when it was not used for so long",
            [](S* s, const std::string& text) {
              RP_ASSIGN(s->window_ttl_ns, ParseDuration(text));
              return absl::OkStatus();
            },
            [](const S& s) { return ExactDuration(s.window_ttl_ns); }},
    Setting{"positions", "N", "Newest snapshots of a session that are kept",
            SetCount<&S::window_positions, 1, 1024>, GetCount<&S::window_positions>},
    Setting{"policy", "WORD", "Which block leaves DRAM: lru, s3fifo or fifo",
            [](S* s, const std::string& text) {
              RP_TRY(OneOf(text, {"lru", "s3fifo", "fifo"}));
              s->policy = text;
              return absl::OkStatus();
            },
            GetText<&S::policy>},
    Setting{"admission", "WORD", "Which blocks may enter the SSD: all or tinylfu",
            [](S* s, const std::string& text) {
              RP_TRY(OneOf(text, {"all", "tinylfu"}));
              s->admission = text;
              return absl::OkStatus();
            },
            GetText<&S::admission>},
    Setting{"ssd-policy", "WORD", "Which region leaves the SSD: fifo, lru or s3fifo",
            [](S* s, const std::string& text) {
              RP_TRY(OneOf(text, {"fifo", "lru", "s3fifo"}));
              s->ssd_policy = text;
              return absl::OkStatus();
            },
            GetText<&S::ssd_policy>},
    Setting{"ssd-write", "WORD", "through: written when put; demote: when they leave DRAM",
            [](S* s, const std::string& text) {
              RP_TRY(OneOf(text, {"through", "demote"}));
              s->ssd_write = text;
              return absl::OkStatus();
            },
            GetText<&S::ssd_write>},
    Setting{"region", "SIZE", "Unit of writing and eviction of the SSD",
            [](S* s, const std::string& text) {
              RP_ASSIGN(const uint64_t bytes, ParseBytes(text));
              if (bytes == 0 || bytes % kPageBytes != 0) {
                return InvalidArgument("\"" + text + "\" must be a multiple of 4KiB");
              }
              s->region_bytes = bytes;
              return absl::OkStatus();
            },
            GetSize<&S::region_bytes>},
    Setting{"reinsert-percent", "N", "Of a leaving region, what is in use and written again",
            SetCount<&S::reinsert_percent, 0, 50>, GetCount<&S::reinsert_percent>},
    Setting{"snapshots", "WORDS", "Where they are taken: prompt-end, or prompt-end+fork",
            [](S* s, const std::string& text) {
              RP_TRY(OneOf(text, {"prompt-end", "prompt-end+fork"}));
              s->snapshots = text;
              return absl::OkStatus();
            },
            GetText<&S::snapshots>},
    Setting{"machines", "N", "Daemons that share the load", SetCount<&S::machines, 1, 4096>,
            GetCount<&S::machines>},
    Setting{"placement", "WORD", "Who serves what: root (of the prefix), session, or round-robin",
            [](S* s, const std::string& text) {
              RP_TRY(OneOf(text, {"root", "session", "round-robin"}));
              s->placement = text;
              return absl::OkStatus();
            },
            GetText<&S::placement>},
};

Placement PlacementOf(const std::string& word) {
  if (word == "session") return Placement::kSession;
  return word == "round-robin" ? Placement::kRoundRobin : Placement::kRoot;
}

// "1GiB..64GiB:7" as seven sizes in equal ratios; durations likewise.
absl::StatusOr<std::vector<std::string>> Steps(const Setting& setting, const std::string& text) {
  const size_t dots = text.find(".."), colon = text.rfind(':');
  const absl::Status error =
      InvalidArgument("\"" + text + "\": write FIRST..LAST:COUNT, as in 1GiB..64GiB:7");
  if (colon == std::string::npos || colon < dots) return error;
  uint32_t count = 0;
  const char* end = text.data() + text.size();
  if (const auto [rest, problem] = std::from_chars(text.data() + colon + 1, end, count);
      problem != std::errc() || rest != end || count < 2 || count > 1000) {
    return error;
  }
  const std::string first = text.substr(0, dots), last = text.substr(dots + 2, colon - dots - 2);
  const auto steps = [&](double from, double to, auto show) {
    std::vector<std::string> values;
    for (uint32_t i = 0; i < count; ++i) {
      values.push_back(show(from * std::pow(to / from, i / (count - 1.0))));
    }
    return values;
  };
  if (setting.type == "SIZE") {
    RP_ASSIGN(const uint64_t from, ParseBytes(first));
    RP_ASSIGN(const uint64_t to, ParseBytes(last));
    if (from == 0 || to <= from) return error;
    return steps(static_cast<double>(from), static_cast<double>(to), [](double bytes) {
      // Sizes that can be read: seven binary digits of them.
      const double unit = std::max<double>(kPageBytes, std::exp2(std::floor(std::log2(bytes)) - 6));
      return ExactBytes(static_cast<uint64_t>(std::round(bytes / unit) * unit));
    });
  }
  if (setting.type != "DURATION") return error;
  RP_ASSIGN(const Nanos from, ParseDuration(first));
  RP_ASSIGN(const Nanos to, ParseDuration(last));
  if (from <= 0 || to <= from) return error;
  return steps(static_cast<double>(from), static_cast<double>(to), [](double duration) {
    return ExactDuration(static_cast<Nanos>(duration / kMillisecond) * kMillisecond);
  });
}

}  // namespace

SimulationOptions SimulationSettings::OptionsFor(const ModelCosts& costs, double warm_up) const {
  return {.blocks = {.record_bytes = costs.record_bytes(),
                     .hbm_bytes = hbm_bytes,
                     .dram_bytes = dram_bytes,
                     .dram_eviction = policy,
                     .ssd_bytes = ssd_bytes,
                     .region_bytes = region_bytes,
                     .demote = ssd_write == "demote",
                     .ssd_admission = admission,
                     .ssd_eviction = ssd_policy,
                     .reinsert_percent = reinsert_percent,
                     .durable = durable},
          .windows = {.pool_bytes = window_pool_bytes(),
                      .snapshot_bytes = static_cast<uint32_t>(costs.window_bytes()),
                      .record_bytes = costs.record_bytes(),
                      .ttl_ns = window_ttl_ns,
                      .positions_per_session = window_positions},
          .fork_snapshots = snapshots == "prompt-end+fork",
          .machines = machines,
          .placement = PlacementOf(placement),
          .warm_up = warm_up};
}

std::span<const Setting> AllSettings() { return kSettings; }

absl::StatusOr<const Setting*> FindSetting(std::string_view name) {
  std::string known;
  for (const Setting& setting : kSettings) {
    if (setting.name == name) return &setting;
    known += (known.empty() ? "" : ", ") + std::string(setting.name);
  }
  return InvalidArgument("unknown setting \"" + std::string(name) + "\": known are " + known);
}

absl::StatusOr<SweepAxis> ParseSweepAxis(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    return InvalidArgument("--sweep " + text + ": write NAME=VALUE,VALUE,..");
  }
  SweepAxis axis;
  RP_ASSIGN(axis.setting, FindSetting(text.substr(0, equals)));
  const std::string values = text.substr(equals + 1);
  for (size_t begin = 0; begin <= values.size();) {
    const size_t end = std::min(values.find(',', begin), values.size());
    const std::string value = values.substr(begin, end - begin);
    begin = end + 1;
    if (value.find("..") != std::string::npos) {
      RP_ASSIGN(const std::vector<std::string> steps, Steps(*axis.setting, value));
      axis.values.insert(axis.values.end(), steps.begin(), steps.end());
    } else {
      axis.values.push_back(value);
    }
  }
  SimulationSettings scratch;
  for (const std::string& value : axis.values) {
    if (const absl::Status status = axis.setting->set(&scratch, value); !status.ok()) {
      return InvalidArgument("--sweep " + text + ": " + Message(status));
    }
  }
  return axis;
}

absl::StatusOr<std::vector<SimulationSettings>> SweepPoints(const SimulationSettings& base,
                                                            const std::vector<SweepAxis>& axes) {
  std::vector<SimulationSettings> points = {base};
  for (const SweepAxis& axis : axes) {
    if (points.size() * axis.values.size() > kPointsMax) {
      return InvalidArgument("a sweep has at most " + std::to_string(kPointsMax) + " points");
    }
    std::vector<SimulationSettings> next;
    for (const SimulationSettings& point : points) {
      for (const std::string& value : axis.values) {
        next.push_back(point);
        RP_TRY(axis.setting->set(&next.back(), value));
      }
    }
    points = std::move(next);
  }
  return points;
}

}  // namespace reprise
