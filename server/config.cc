#include "server/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <string_view>
#include <variant>
#include <vector>

#include "protocol/base/units.h"

namespace reprise::server {
namespace {

// ---- The table ---------------------------------------------------------------------------------

// The member that a path of pointers to members names: At<&Config::ssd, &Config::Ssd::bytes>.
template <auto... path>
auto* At(Config& config) {
  return &(config.*....*path);
}

using Text = std::string* (*)(Config&);
using Size = uint64_t* (*)(Config&);
using Time = Nanos* (*)(Config&);
using Count = uint32_t* (*)(Config&);
using Flag = bool* (*)(Config&);

struct Field {
  std::string_view key;
  std::variant<Text, Size, Time, Count, Flag> at;
  std::string_view help;
  std::string_view one_of = {};  // Text: the words allowed, separated by "|"; empty: any.
  uint32_t min = 0;              // Count and Time (seconds are enough for a bound): inclusive.
  uint32_t max = UINT32_MAX;
  bool automatic = false;  // Size: "auto" is allowed.
};

constexpr std::array kFields = {
    Field{"data_dir", Text{At<&Config::data_dir>},
          "Where superblock, shard files, index and socket live. Made when missing; its parent "
          "must exist."},
    Field{"model", Text{At<&Config::model>},
          "Name of the model whose blocks are stored; decides a block's bytes. Known: v4.1-flash, "
          "nano."},
    Field{"payload_bytes", Size{At<&Config::payload_bytes>},
          "Bytes of a block's payload, for a model that is not known here. auto: the model's.", "",
          0, UINT32_MAX, true},
    Field{"shards", Count{At<&Config::shards>},
          "Threads that own the blocks, each with its own io_uring and file. Fixed once data_dir "
          "exists.",
          "", 1, Config::kShardsMax},

    Field{"listen.unix", Text{At<&Config::listen, &Config::Listen::unix_path>},
          "Unix socket for clients on this machine. auto: <data_dir>/reprised.sock."},
    Field{"listen.tcp", Text{At<&Config::listen, &Config::Listen::tcp>},
          "host:port for clients on other machines, such as 127.0.0.1:7440. No authentication. "
          "Empty: off."},
    Field{"listen.http", Text{At<&Config::listen, &Config::Listen::http>},
          "host:port of the API (/v1), the page, /metrics, /healthz, /readyz and /status. Empty: "
          "off."},
    Field{"listen.connections_max", Count{At<&Config::listen, &Config::Listen::connections_max>},
          "Clients connected at once; one more is refused.", "", 1, 65'536},

    Field{
        "rdma.device", Text{At<&Config::rdma, &Config::Rdma::device>},
        "RDMA for clients that come by TCP. auto: every device that has an active port. off: none. "
        "Or one: mlx5_0, mlx5_0:1 (a port), mlx5_0:1/3 (a GID index)."},
    Field{"rdma.queue_pairs_max", Count{At<&Config::rdma, &Config::Rdma::queue_pairs_max>},
          "RDMA connections in each shard and device; one more stays with TCP.", "", 1, 4096},

    Field{"dram.bytes", Size{At<&Config::dram, &Config::Dram::bytes>},
          "Memory for blocks. Taken and touched at start, never grown."},
    Field{"dram.huge_pages", Flag{At<&Config::dram, &Config::Dram::huge_pages>},
          "Use 2 MiB pages where the machine has them."},
    Field{"dram.eviction", Text{At<&Config::dram, &Config::Dram::eviction>},
          "Which block leaves when memory is full.", "lru|s3fifo"},

    Field{"ssd.bytes", Size{At<&Config::ssd, &Config::Ssd::bytes>},
          "Disk space for blocks, all shards together. 0B: no SSD tier."},
    Field{"ssd.region_bytes", Size{At<&Config::ssd, &Config::Ssd::region_bytes>},
          "Unit of writing and eviction, a multiple of 4KiB. Fixed once data_dir exists."},
    Field{"ssd.write", Text{At<&Config::ssd, &Config::Ssd::write>},
          "through: blocks are written when they are put. demote: when they leave memory.",
          "through|demote"},
    Field{"ssd.admission", Text{At<&Config::ssd, &Config::Ssd::admission>},
          "Which blocks may enter. all: every one. tinylfu: those seen at least twice lately.",
          "all|tinylfu"},
    Field{"ssd.eviction", Text{At<&Config::ssd, &Config::Ssd::eviction>},
          "Which region leaves when the disk is full.", "fifo|lru|s3fifo"},
    Field{"ssd.reinsert_percent", Count{At<&Config::ssd, &Config::Ssd::reinsert_percent>},
          "At most this share of a leaving region's blocks is written again because it is in use.",
          "", 0, 50},
    Field{"ssd.queue_depth", Count{At<&Config::ssd, &Config::Ssd::queue_depth>},
          "Reads in flight in each shard.", "", 1, 1024},

    Field{"window.bytes", Size{At<&Config::window, &Config::Window::bytes>},
          "Memory for window snapshots, beside dram.bytes. auto: 10 % of the machine's DRAM. 0B: "
          "no pool, "
          "every window is replayed.",
          "", 0, UINT32_MAX, true},
    Field{"window.ttl", Time{At<&Config::window, &Config::Window::ttl_ns>},
          "A snapshot leaves when it was not used for this long.", "", 1, 30 * 86'400},
    Field{"window.positions_per_session",
          Count{At<&Config::window, &Config::Window::positions_per_session>},
          "Newest positions of a session that are kept.", "", 1, 1024},

    Field{"limits.staging_slots_per_connection",
          Count{At<&Config::limits, &Config::Limits::staging_slots_per_connection>},
          "Records that a local client can put without waiting.", "", 1, 4096},
    Field{"limits.staging_bytes_total",
          Size{At<&Config::limits, &Config::Limits::staging_bytes_total>},
          "Memory for all connections' staging slots; a connection beyond it gets none."},
    Field{"limits.waiting_max", Count{At<&Config::limits, &Config::Limits::waiting_max>},
          "Puts and loads in each shard that wait for memory; one more is answered busy.", "", 1,
          1u << 20},
    Field{"limits.idle_frame_timeout",
          Time{At<&Config::limits, &Config::Limits::idle_frame_timeout_ns>},
          "A connection that stops in the middle of a frame is closed after this long.", "", 1,
          3600},
    Field{"limits.deadline_default",
          Time{At<&Config::limits, &Config::Limits::deadline_default_ns>},
          "Deadline of a request that states none.", "", 1, 3600},

    Field{"engine.model", Text{At<&Config::engine, &Config::Engine::model>},
          "Model to serve text from: nano, or a folder with config.json, a checkpoint and a "
          "tokenizer. Empty: no engine, the daemon keeps blocks for others."},
    Field{
        "engine.device", Text{At<&Config::engine, &Config::Engine::device>},
        "What the model runs on: cpu; cuda, or cuda:N, a GPU of compute capability 9.0 (in builds "
        "of the preset cuda); cuda:0,1: GPUs that share it; auto: a GPU where there is one."},
    Field{"engine.hbm_bytes", Size{At<&Config::engine, &Config::Engine::hbm_bytes>},
          "HBM for blocks, on a GPU. 0B: what weights and windows leave, less a twentieth."},
    Field{"engine.hbm_lease_bytes", Size{At<&Config::engine, &Config::Engine::hbm_lease_bytes>},
          "Of it, what engines in other processes on this machine may lease at once, by CUDA IPC. "
          "They can write to all of it, so they must be trusted. 0B: nothing is lent."},
    Field{"engine.threads", Count{At<&Config::engine, &Config::Engine::threads>},
          "Threads of the engine, on the CPU. 0: one per core.", "", 0, 1024},
    Field{"engine.sequences_max", Count{At<&Config::engine, &Config::Engine::sequences_max>},
          "Answers that are worked on at once.", "", 1, 64},
    Field{"engine.waiting_max", Count{At<&Config::engine, &Config::Engine::waiting_max>},
          "Requests that wait for a place; one more is answered 429.", "", 0, 4096},
    Field{"engine.memory", Size{At<&Config::engine, &Config::Engine::memory_bytes>},
          "Memory for the blocks that active sequences compute, beside dram.bytes. On a GPU they "
          "pass through it on their way to the store."},
    Field{"engine.max_tokens", Count{At<&Config::engine, &Config::Engine::tokens_max_default>},
          "Tokens of an answer when the request does not say.", "", 1, 1u << 24},
    Field{"engine.prefill_rows", Count{At<&Config::engine, &Config::Engine::prefill_rows>},
          "Rows of prompts in a step while other sequences generate: fewer, and they go on more "
          "smoothly.",
          "", 16, 65'536},
    Field{"engine.load_gate", Flag{At<&Config::engine, &Config::Engine::load_gate>},
          "Compute again what takes longer to read from SSD."},
    Field{"engine.durable", Flag{At<&Config::engine, &Config::Engine::durable>},
          "An answer ends when its blocks are on SSD and synced; else they follow."},
    Field{"engine.shadow_permille", Count{At<&Config::engine, &Config::Engine::shadow_permille>},
          "Of 1,000 replayed requests, how many are computed again with exact windows, when the "
          "engine is idle: metrics then tell what replay costs in quality.",
          "", 0, 1000},

    Field{"api.keys_file", Text{At<&Config::api, &Config::Api::keys_file>},
          "File of API keys: a line has a key and, if there are several, its tenant. Tenants share "
          "nothing. Empty: no key is needed."},
    Field{"api.body_bytes_max", Size{At<&Config::api, &Config::Api::body_bytes_max>},
          "Largest body of a request, but for imported sessions."},

    Field{"policy.replace_replay_derived",
          Flag{At<&Config::policy, &Config::Policy::replace_replay_derived>},
          "An exact computation may replace a block that was computed after a replay."},
    Field{"policy.what_if", Flag{At<&Config::policy, &Config::Policy::what_if>},
          "Estimate, from a sample of the blocks, what tiers of half to eight times the size would "
          "hit: metrics and status show it."},

    Field{"log.level", Text{At<&Config::log, &Config::Log::level>}, "What is worth a line.",
          "debug|info|warning|error"},
    Field{"log.format", Text{At<&Config::log, &Config::Log::format>},
          "text: key=value lines. json: one JSON object a line.", "text|json"},
};

constexpr std::string_view kQuotaSection = "quota";

// ---- Errors ------------------------------------------------------------------------------------

std::string LastPart(std::string_view key) {
  const size_t dot = key.rfind('.');
  return std::string(dot == std::string_view::npos ? key : key.substr(dot + 1));
}

// Levenshtein's distance.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// Misspelt, or right but in the wrong section.
std::string NearestKey(const std::string& key) {
  std::string best;
  size_t best_distance = std::numeric_limits<size_t>::max();
  for (const Field& field : kFields) {
    const size_t distance = std::min(EditDistance(key, field.key),
                                     EditDistance(LastPart(key), LastPart(field.key)) + 2);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = field.key;
  }
  return best_distance <= std::max<size_t>(3, key.size() / 3) ? best : "";
}

struct Place {
  const std::string& file;
  const toml::node& node;
  std::string key;
};

std::string ValueText(const toml::node& node) {
  if (const auto* text = node.as_string()) return "\"" + text->get() + "\"";
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (node.is_table()) return "(a table)";
  if (node.is_array()) return "(an array)";
  return "(a number or date)";
}

absl::Status ErrorAt(const Place& place, const std::string& what) {
  return InvalidArgument(place.file + ":" + std::to_string(place.node.source().begin.line) + ": " +
                         place.key + what);
}

absl::Status BadValue(const Place& place, const std::string& what) {
  return ErrorAt(place, " = " + ValueText(place.node) + ": " + what);
}

absl::Status UnknownKey(const Place& place) {
  const std::string nearest = NearestKey(place.key);
  return ErrorAt(place, nearest.empty() ? ": unknown key; `reprised --print-config` lists them all"
                                        : ": unknown key; did you mean " + nearest + "?");
}

// ---- Reading -----------------------------------------------------------------------------------

std::string Words(std::string_view one_of) {
  std::string words(one_of);
  for (size_t bar = words.find('|'); bar != std::string::npos; bar = words.find('|', bar + 2)) {
    words.replace(bar, 1, ", ");
  }
  return words;
}

bool IsOneOf(std::string_view word, std::string_view one_of) {
  while (!one_of.empty()) {
    const size_t bar = std::min(one_of.find('|'), one_of.size());
    if (word == one_of.substr(0, bar)) return true;
    one_of.remove_prefix(std::min(bar + 1, one_of.size()));
  }
  return false;
}

struct Reader {
  Config* config;
  const Field& field;
  const Place& place;

  absl::Status operator()(Text at) const {
    const auto* text = place.node.as_string();
    if (text == nullptr) return BadValue(place, "must be text in quotes");
    if (!field.one_of.empty() && !IsOneOf(text->get(), field.one_of)) {
      return BadValue(place, "must be one of " + Words(field.one_of));
    }
    *at(*config) = text->get();
    return absl::OkStatus();
  }

  absl::Status operator()(Size at) const {
    const auto* text = place.node.as_string();
    if (text == nullptr)
      return BadValue(place, "must be a size with its unit in quotes, such as \"64GiB\"");
    if (field.automatic && text->get() == "auto") {
      *at(*config) = Config::kAuto;
      return absl::OkStatus();
    }
    auto bytes = ParseBytes(text->get());
    if (!bytes.ok()) return ErrorAt(place, ": " + Message(bytes.status()));
    *at(*config) = *bytes;
    return absl::OkStatus();
  }

  absl::Status operator()(Time at) const {
    const auto* text = place.node.as_string();
    if (text == nullptr)
      return BadValue(place, "must be a time with its unit in quotes, such as \"10s\"");
    auto duration = ParseDuration(text->get());
    if (!duration.ok()) return ErrorAt(place, ": " + Message(duration.status()));
    if (*duration < Nanos{field.min} * kSecond || *duration > Nanos{field.max} * kSecond) {
      return BadValue(place, "must be from " + std::to_string(field.min) + "s to " +
                                 std::to_string(field.max) + "s");
    }
    *at(*config) = *duration;
    return absl::OkStatus();
  }

  absl::Status operator()(Count at) const {
    const auto* number = place.node.as_integer();
    if (number == nullptr || number->get() < int64_t{field.min} ||
        number->get() > int64_t{field.max}) {
      return BadValue(place, "must be a whole number from " + std::to_string(field.min) + " to " +
                                 std::to_string(field.max));
    }
    *at(*config) = static_cast<uint32_t>(number->get());
    return absl::OkStatus();
  }

  absl::Status operator()(Flag at) const {
    const auto* flag = place.node.as_boolean();
    if (flag == nullptr) return BadValue(place, "must be true or false");
    *at(*config) = flag->get();
    return absl::OkStatus();
  }
};

absl::Status ReadField(Config* config, const Place& place) {
  const auto* field = std::find_if(kFields.begin(), kFields.end(),
                                   [&](const Field& known) { return known.key == place.key; });
  if (field == kFields.end()) return UnknownKey(place);
  return std::visit(Reader{config, *field, place}, field->at);
}

absl::Status ReadQuota(Config* config, const std::string& tenant, const Place& place) {
  const auto* text = place.node.as_string();
  if (text == nullptr)
    return BadValue(place, "must be a size with its unit in quotes, such as \"64GiB\"");
  auto bytes = ParseBytes(text->get());
  if (!bytes.ok()) return ErrorAt(place, ": " + Message(bytes.status()));
  config->quota_bytes[tenant] = *bytes;
  return absl::OkStatus();
}

bool IsSection(std::string_view name) {
  return name == kQuotaSection ||
         std::any_of(kFields.begin(), kFields.end(), [&](const Field& field) {
           return field.key.size() > name.size() && field.key.substr(0, name.size()) == name &&
                  field.key[name.size()] == '.';
         });
}

absl::Status ReadSection(Config* config, const std::string& file, const std::string& name,
                         const toml::table& section) {
  for (const auto& [key, node] : section) {
    const std::string inner(key.str());
    const Place place{file, node, name + "." + inner};
    RP_TRY(name == kQuotaSection ? ReadQuota(config, inner, place) : ReadField(config, place));
  }
  return absl::OkStatus();
}

// ---- Printing ----------------------------------------------------------------------------------

// A TOML basic string; text that is UTF-8 stays so.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    std::array<char, 8> escape{c, '\0'};
    if (c == '"' || c == '\\') escape = {'\\', c, '\0'};
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
    }
    out += escape.data();
  }
  return out + "\"";
}

struct Printer {
  Config* config;  // Read only; the accessors of the table are not const.
  const Field& field;

  std::string operator()(Text at) const { return Quoted(*at(*config)); }
  std::string operator()(Size at) const {
    const uint64_t bytes = *at(*config);
    return bytes == Config::kAuto ? "\"auto\"" : "\"" + ExactBytes(bytes) + "\"";
  }
  std::string operator()(Time at) const { return "\"" + ExactDuration(*at(*config)) + "\""; }
  std::string operator()(Count at) const { return std::to_string(*at(*config)); }
  std::string operator()(Flag at) const { return *at(*config) ? "true" : "false"; }
};

std::string Allowed(const Field& field) {
  if (!field.one_of.empty()) return " One of: " + Words(field.one_of) + ".";
  if (std::holds_alternative<Count>(field.at)) {
    return " " + std::to_string(field.min) + " to " + std::to_string(field.max) + ".";
  }
  return "";
}

// "# " lines of at most 100 columns.
std::string Comment(const std::string& text) {
  std::istringstream words(text);
  std::string out, line = "#";
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > 100) {
      out += line + "\n";
      line = "#";
    }
    line += " " + word;
  }
  return out + line + "\n";
}

std::string PrintQuota(const Config& config) {
  std::string out =
      "\n[" + std::string(kQuotaSection) + "]\n" +
      Comment(
          "Most bytes that a tenant's blocks may use, by the tenant salt of its manifest; "
          "a put beyond it is rejected. A tenant that is not listed has no quota.");
  if (config.quota_bytes.empty()) out += "# tenant-salt = \"10GiB\"\n";
  for (const auto& [tenant, bytes] : config.quota_bytes) {
    out += Quoted(tenant) + " = \"" + ExactBytes(bytes) + "\"\n";
  }
  return out;
}

}  // namespace

absl::StatusOr<Config> Config::Parse(const std::string& text, const std::string& name) {
  toml::table root;
  try {  // The door to toml++, which throws.
    root = toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    return InvalidArgument(name + ":" + std::to_string(error.source().begin.line) +
                           ": not TOML: " + std::string(error.description()));
  }
  Config config;
  for (const auto& [key, node] : root) {
    const std::string outer(key.str());
    if (const toml::table* section = node.as_table(); section != nullptr && IsSection(outer)) {
      RP_TRY(ReadSection(&config, name, outer, *section));
    } else if (section != nullptr && !section->empty()) {
      const auto first = section->begin();
      return UnknownKey({name, (*first).second, outer + "." + std::string((*first).first.str())});
    } else if (IsSection(outer)) {
      return BadValue({name, node, outer},
                      "is a section; write [" + outer + "] and its keys below");
    } else {
      RP_TRY(ReadField(&config, {name, node, outer}));
    }
  }
  return config;
}

absl::StatusOr<Config> Config::Load(const std::string& path) {
  static constexpr size_t kFileBytesMax = 1_MiB;
  std::ifstream file(path, std::ios::binary);
  std::string text(kFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.gcount() == 0 && !file.eof())) {
    return NotFound(
        "cannot read the configuration " + path +
        "; give --config the path of a TOML file, or leave it out to run with defaults");
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kFileBytesMax) {
    return InvalidArgument(path + ": larger than 1 MiB; this is not a configuration of reprised");
  }
  return Parse(text, path);
}

std::string Config::ToToml() const {
  std::string out = Comment("Configuration of reprised, every key with its meaning.");
  std::string section;
  Config copy = *this;
  for (const Field& field : kFields) {
    const size_t dot = field.key.find('.');
    const std::string in(dot == std::string_view::npos ? "" : field.key.substr(0, dot));
    out += "\n";
    if (in != section) out += "[" + in + "]\n";
    section = in;
    out += Comment(std::string(field.help) + Allowed(field));
    out += LastPart(field.key) + " = " + std::visit(Printer{&copy, field}, field.at) + "\n";
  }
  return out + PrintQuota(*this);
}

}  // namespace reprise::server
