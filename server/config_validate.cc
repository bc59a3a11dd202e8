#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "protocol/base/units.h"
#include "protocol/record/record_layout.h"
#include "server/config.h"
#include "storage/format.h"

// What fields mean together and on this machine. Parsing, with what a field means alone, is
// config.cc.
namespace reprise::server {
namespace {

constexpr uint64_t kPayloadBytesMax = 64_MiB;
constexpr uint64_t kRegionBytesMax = 4_GiB;

absl::Status Bad(const std::string& key, const std::string& value, const std::string& what) {
  return InvalidArgument(key + " = " + value + ": " + what);
}

absl::Status BadSize(const std::string& key, uint64_t bytes, const std::string& what) {
  return Bad(key, FormatBytes(bytes), what);
}

absl::Status ResolvePayload(Config* config) {
  const auto geometry = KvGeometry::Preset(config->model);
  if (!geometry.ok()) {
    if (config->payload_bytes == Config::kAuto) {
      return Bad("model", "\"" + config->model + "\"",
                 "not known here; use v4.1-flash or nano, or set payload_bytes to the bytes of its "
                 "blocks");
    }
  } else {
    RP_ASSIGN(const RecordLayout layout, RecordLayout::For(*geometry));
    if (config->payload_bytes == Config::kAuto) config->payload_bytes = layout.payload_bytes;
    if (config->payload_bytes < layout.payload_bytes) {
      return BadSize(
          "payload_bytes", config->payload_bytes,
          "blocks of model " + config->model + " have " + std::to_string(layout.payload_bytes) +
              " bytes; leave it at \"auto\", or set model to the name of your own model");
    }
  }
  if (config->payload_bytes == 0 || config->payload_bytes > kPayloadBytesMax) {
    return BadSize("payload_bytes", config->payload_bytes,
                   "must be from 1B to " + FormatBytes(kPayloadBytesMax));
  }
  return absl::OkStatus();
}

absl::Status ResolveAddresses(Config* config) {
  Config::Listen& listen = config->listen;
  if (listen.unix_path == "auto") listen.unix_path = config->data_dir + "/reprised.sock";
  constexpr size_t kPathMax = sizeof(sockaddr_un::sun_path) - 1;
  if (listen.unix_path.empty() || listen.unix_path.size() > kPathMax) {
    return Bad("listen.unix", "\"" + listen.unix_path + "\"",
               "a socket's path has 1 to " + std::to_string(kPathMax) +
                   " bytes; set listen.unix to a shorter path, such as /run/reprise/reprised.sock");
  }
  for (const auto& [key, address] :
       {std::pair{"listen.tcp", &listen.tcp}, {"listen.http", &listen.http}}) {
    if (address->empty()) continue;
    if (auto parsed = ParseHostPort(*address); !parsed.ok()) {
      return Bad(key, "\"" + *address + "\"", Message(parsed.status()));
    }
  }
  if (!listen.tcp.empty() && listen.tcp == listen.http && ParseHostPort(listen.tcp)->port != 0) {
    return Bad("listen.http", "\"" + listen.http + "\"",
               "listen.tcp has the same address; give one of them another port");
  }
  return absl::OkStatus();
}

absl::Status CheckPool(const Config& config, const std::string& key, uint64_t bytes) {
  const uint64_t smallest =
      uint64_t{config.shards} * Config::kSlotsPerShardMin * config.record_bytes();
  if (bytes < smallest) {
    return BadSize(key, bytes,
                   std::to_string(config.shards) + " shards need " +
                       std::to_string(Config::kSlotsPerShardMin) + " records of " +
                       FormatBytes(config.record_bytes()) + " each; set it to " +
                       FormatBytes(smallest) + " or more");
  }
  if (bytes / config.record_bytes() >= UINT32_MAX) {
    return BadSize(key, bytes,
                   "holds more records than an arena can number; set it to less than " +
                       FormatBytes(uint64_t{UINT32_MAX} * config.record_bytes()));
  }
  return absl::OkStatus();
}

absl::Status CheckSsd(const Config& config) {
  const Config::Ssd& ssd = config.ssd;
  if (ssd.bytes == 0) return absl::OkStatus();
  if (ssd.region_bytes % kPageBytes != 0 || ssd.region_bytes > kRegionBytesMax) {
    return BadSize("ssd.region_bytes", ssd.region_bytes,
                   "must be a multiple of 4KiB and at most " + FormatBytes(kRegionBytesMax));
  }
  const storage::RegionGeometry cut = storage::CutRegion(config.record_bytes(), ssd.region_bytes);
  if (cut.slots == 0) {
    return BadSize("ssd.region_bytes", ssd.region_bytes,
                   "not one record fits: a record has " + FormatBytes(config.record_bytes()) +
                       ", its trailer and state page 8 KiB; set it to 64MiB or more");
  }
  const uint64_t regions = ssd.bytes / config.shards / ssd.region_bytes;
  if (regions < Config::kRegionsPerShardMin) {
    const uint64_t needed =
        uint64_t{config.shards} * Config::kRegionsPerShardMin * ssd.region_bytes;
    return BadSize("ssd.bytes", ssd.bytes,
                   "each of " + std::to_string(config.shards) + " shards needs " +
                       std::to_string(Config::kRegionsPerShardMin) + " regions of " +
                       FormatBytes(ssd.region_bytes) + "; set it to " + FormatBytes(needed) +
                       " or more, lower ssd.region_bytes, or set it to 0B for no SSD tier");
  }
  if (regions > (UINT32_MAX - 1) / cut.slots) {
    return BadSize("ssd.bytes", ssd.bytes,
                   "holds more records in a shard than 2^32 - 1; raise shards or lower it");
  }
  return absl::OkStatus();
}

absl::Status CheckStaging(const Config& config) {
  const uint64_t one = uint64_t{config.limits.staging_slots_per_connection} * config.record_bytes();
  if (config.limits.staging_bytes_total < one) {
    return BadSize("limits.staging_bytes_total", config.limits.staging_bytes_total,
                   "less than one connection's " +
                       std::to_string(config.limits.staging_slots_per_connection) +
                       " slots; set it to " + FormatBytes(one) +
                       " or more, or lower limits.staging_slots_per_connection");
  }
  return absl::OkStatus();
}

absl::Status CheckEngine(const Config& config) {
  if (config.engine.model.empty() && config.engine.hbm_lease_bytes > 0) {
    return BadSize(
        "engine.hbm_lease_bytes", config.engine.hbm_lease_bytes,
        "there is no engine whose memory could be lent; set engine.model, or this to 0B");
  }
  if (config.engine.model.empty()) return absl::OkStatus();
  if (config.listen.http.empty()) {
    return Bad("engine.model", "\"" + config.engine.model + "\"",
               "is served over HTTP; set listen.http to an address, such as 127.0.0.1:7441");
  }
  const std::string& device = config.engine.device;
  // One number, or several with commas between.
  const bool numbered = device.substr(0, 5) == "cuda:" && device.size() > 5 && device.size() < 40 &&
                        device.find_first_not_of("0123456789,", 5) == std::string::npos &&
                        device[5] != ',' && device.back() != ',' &&
                        device.find(",,") == std::string::npos;
  if (device != "cpu" && device != "cuda" && device != "auto" && !numbered) {
    return Bad("engine.device", "\"" + device + "\"",
               "is no device; set it to cpu, cuda, cuda:<number of the GPU>, several of them as "
               "cuda:0,1, or auto");
  }
  if (device == "cpu" && config.engine.hbm_bytes > 0) {
    return BadSize("engine.hbm_bytes", config.engine.hbm_bytes,
                   "is of a GPU, and engine.device is cpu; set it to 0B, or engine.device to cuda");
  }
  const uint64_t lease_bytes = config.engine.hbm_lease_bytes;
  if (device == "cpu" && lease_bytes > 0) {
    return BadSize("engine.hbm_lease_bytes", lease_bytes,
                   "is of a GPU, and engine.device is cpu; set it to 0B, or engine.device to cuda");
  }
  if (config.engine.hbm_bytes > 0 && lease_bytes >= config.engine.hbm_bytes) {
    return BadSize("engine.hbm_lease_bytes", lease_bytes,
                   "leaves nothing of engine.hbm_bytes = " + FormatBytes(config.engine.hbm_bytes) +
                       " to requests; lower it, or raise that");
  }
  if (config.engine.memory_bytes < 4 * uint64_t{config.record_bytes()}) {
    return BadSize("engine.memory", config.engine.memory_bytes,
                   "holds fewer than 4 blocks of " + FormatBytes(config.record_bytes()) +
                       "; set it to 64MiB or more");
  }
  if (config.api.body_bytes_max < 1024) {
    return BadSize("api.body_bytes_max", config.api.body_bytes_max,
                   "no request fits; set it to 1MiB or more");
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(const Config& config, const MachineFacts& machine) {
  const uint64_t parts[] = {config.dram.bytes, config.window.bytes,
                            config.limits.staging_bytes_total,
                            config.engine.model.empty() ? 0 : config.engine.memory_bytes};
  uint64_t left = machine.memory_bytes;
  for (const uint64_t part : parts) {
    if (part > left) {
      return BadSize("dram.bytes", config.dram.bytes,
                     "with window.bytes = " + FormatBytes(config.window.bytes) +
                         " and limits.staging_bytes_total = " +
                         FormatBytes(config.limits.staging_bytes_total) +
                         " it exceeds this machine's " + FormatBytes(machine.memory_bytes) +
                         " of memory; lower one of them");
    }
    left -= part;
  }
  return absl::OkStatus();
}

absl::Status CheckDisk(const Config& config, const MachineFacts& machine) {
  if (!machine.data_dir_problem.empty()) {
    return Bad("data_dir", "\"" + config.data_dir + "\"", machine.data_dir_problem);
  }
  const uint64_t room = machine.disk_free_bytes + machine.shard_files_bytes;
  if (config.ssd.bytes > room) {
    return BadSize("ssd.bytes", config.ssd.bytes,
                   "the file system of data_dir = \"" + config.data_dir + "\" has room for " +
                       FormatBytes(room) + "; lower it, or set data_dir to a larger file system");
  }
  return absl::OkStatus();
}

absl::Status CheckQuotas(const Config& config) {
  const uint64_t smallest = uint64_t{config.shards} * config.record_bytes();
  for (const auto& [tenant, bytes] : config.quota_bytes) {
    if (bytes < smallest) {
      return BadSize("quota." + tenant, bytes,
                     "less than one record in each shard; set it to " + FormatBytes(smallest) +
                         " or more, or leave the tenant out");
    }
  }
  return absl::OkStatus();
}

// "MemTotal:   24117248 kB" of /proc/meminfo, in bytes; 0 when there is no such line.
uint64_t MemTotalBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string word;
  while (meminfo >> word) {
    uint64_t kib = 0;
    if (word == "MemTotal:" && meminfo >> kib) return kib * 1024;
  }
  return 0;
}

// The memory limit of the control group that a container shows as its root; UINT64_MAX: none.
uint64_t GroupLimitBytes() {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    uint64_t bytes = 0;
    if (file >> bytes && bytes > 0) return bytes;
  }
  return UINT64_MAX;
}

uint64_t ShardFilesBytes(const std::string& data_dir) {
  uint64_t sum = 0;
  for (uint32_t shard = 0; shard < Config::kShardsMax; ++shard) {
    struct stat info {};
    const std::string path = data_dir + "/shard-" + std::to_string(shard) + ".data";
    if (::stat(path.c_str(), &info) == 0) sum += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return sum;
}

}  // namespace

absl::Status Config::Validate(const MachineFacts& machine) {
  if (data_dir.empty())
    return Bad("data_dir", "\"\"", "must name a directory, such as ./reprise-data");
  if (shards < 1 || shards > kShardsMax) {
    return Bad("shards", std::to_string(shards), "must be from 1 to " + std::to_string(kShardsMax));
  }
  RP_TRY(ResolvePayload(this));
  RP_TRY(ResolveAddresses(this));
  if (window.bytes == kAuto) window.bytes = machine.memory_bytes / 10 / 1_MiB * 1_MiB;
  RP_TRY(CheckPool(*this, "dram.bytes", dram.bytes));
  if (window.bytes != 0) RP_TRY(CheckPool(*this, "window.bytes", window.bytes));
  RP_TRY(CheckSsd(*this));
  RP_TRY(CheckStaging(*this));
  RP_TRY(CheckEngine(*this));
  RP_TRY(CheckQuotas(*this));
  RP_TRY(CheckMemory(*this, machine));
  return CheckDisk(*this, machine);
}

uint32_t Config::record_bytes() const {
  RP_CHECK(payload_bytes != kAuto);
  return RecordBytesFor(static_cast<uint32_t>(payload_bytes));
}

absl::StatusOr<MachineFacts> ReadMachineFacts(const std::string& data_dir) {
  namespace fs = std::filesystem;
  MachineFacts facts;
  facts.memory_bytes = std::min(MemTotalBytes(), GroupLimitBytes());
  if (facts.memory_bytes == 0) {
    return FailedPrecondition("/proc/meminfo does not say how much memory there is; mount /proc");
  }
  std::error_code error;
  fs::path existing = fs::absolute(data_dir, error).lexically_normal();
  if (!existing.has_filename()) existing = existing.parent_path();  // "dir/"
  if (!fs::exists(existing, error)) {
    existing = existing.parent_path();
    if (!fs::is_directory(existing, error)) {
      facts.data_dir_problem =
          "its parent " + existing.string() + " is not a directory; create it first";
      return facts;
    }
  } else if (!fs::is_directory(existing, error)) {
    facts.data_dir_problem = "exists and is not a directory; name another one";
    return facts;
  }
  if (::access(existing.c_str(), R_OK | W_OK | X_OK) != 0) {
    facts.data_dir_problem = "this user may not write to " + existing.string() +
                             "; change its owner, or name another one";
    return facts;
  }
  struct statvfs space {};
  if (::statvfs(existing.c_str(), &space) != 0)
    return ErrnoStatus(errno, "statvfs " + existing.string());
  facts.disk_free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  facts.shard_files_bytes = ShardFilesBytes(data_dir);
  return facts;
}

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const absl::Status error =
      InvalidArgument("not an address; write host:port, such as 127.0.0.1:7440 or [::1]:7440");
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return error;
  HostPort address;
  address.host = text.substr(0, colon);
  if (address.host.front() == '[') {
    if (address.host.size() < 4 || address.host.back() != ']') return error;
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return error;  // An IPv6 address without brackets: where would its port begin?
  }
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data() + colon + 1, end, address.port);
  if (problem != std::errc() || rest != end) return error;
  return address;
}

}  // namespace reprise::server
