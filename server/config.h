#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "protocol/base/bytes.h"
#include "protocol/base/clock.h"
#include "protocol/base/status.h"

namespace reprise::server {

// What the machine has: injected, so that tests of Validate need no particular machine.
struct MachineFacts {
  uint64_t memory_bytes = 0;       // The machine's, or less where a control group allows less.
  uint64_t disk_free_bytes = 0;    // On the file system of data_dir, for this user.
  uint64_t shard_files_bytes = 0;  // What shard files in data_dir use already: free for us as well.
  std::string data_dir_problem;    // Why data_dir cannot be used, and what to do; empty: it can.
};

// What an operator may set: one row of the table in config.cc for each field, from which the
// parser, deploy/reprised.toml and `reprised --print-config` follow. The initialisers below are the
// defaults.
struct Config {
  // A value that Validate works out: spelt "auto" in the file.
  static constexpr uint64_t kAuto = UINT64_MAX;
  static constexpr uint32_t kShardsMax = 64;
  static constexpr uint32_t kRegionsPerShardMin = 3;
  static constexpr uint32_t kSlotsPerShardMin = 4;

  std::string data_dir = "./reprise-data";
  std::string model = "v4.1-flash";
  uint64_t payload_bytes = kAuto;  // Of a block; auto: the model's.
  uint32_t shards = 1;

  struct Listen {
    std::string unix_path = "auto";  // auto: <data_dir>/reprised.sock
    std::string tcp;                 // Empty: off.
    std::string http = "127.0.0.1:7441";
    uint32_t connections_max = 4096;
    friend bool operator==(const Listen&, const Listen&) = default;
  } listen;

  struct Rdma {
    std::string device = "auto";
    uint32_t queue_pairs_max = 256;
    friend bool operator==(const Rdma&, const Rdma&) = default;
  } rdma;

  struct Dram {
    uint64_t bytes = 1_GiB;
    bool huge_pages = true;
    std::string eviction = "lru";
    friend bool operator==(const Dram&, const Dram&) = default;
  } dram;

  struct Ssd {
    uint64_t bytes = 4_GiB;  // 0: no SSD tier.
    uint64_t region_bytes = 64_MiB;
    std::string write = "through";
    std::string admission = "all";
    std::string eviction = "fifo";
    uint32_t reinsert_percent = 10;
    uint32_t queue_depth = 64;
    friend bool operator==(const Ssd&, const Ssd&) = default;
  } ssd;

  struct Window {
    uint64_t bytes =
        kAuto;  // auto: 10 % of the machine's DRAM. 0: no pool, every window is replayed.
    Nanos ttl_ns = 600 * kSecond;
    uint32_t positions_per_session = 3;
    friend bool operator==(const Window&, const Window&) = default;
  } window;

  struct Limits {
    uint32_t staging_slots_per_connection = 64;
    uint64_t staging_bytes_total = 512_MiB;
    uint32_t waiting_max = 4096;  // Per shard.
    Nanos idle_frame_timeout_ns = 10 * kSecond;
    Nanos deadline_default_ns = 5 * kSecond;
    friend bool operator==(const Limits&, const Limits&) = default;
  } limits;

  struct Engine {
    std::string model;  // nano, or a folder; empty: the daemon serves blocks alone.
    std::string device = "auto";
    uint64_t hbm_bytes = 0;        // 0: what is left.
    uint64_t hbm_lease_bytes = 0;  // Of it; 0: nothing is lent.
    uint32_t threads = 0;          // 0: one per core.
    uint32_t sequences_max = 8;
    uint32_t waiting_max = 64;
    uint64_t memory_bytes = 512_MiB;
    uint32_t tokens_max_default = 1024;
    uint32_t prefill_rows = 256;
    bool load_gate = true;
    bool durable = true;
    uint32_t shadow_permille = 0;
    friend bool operator==(const Engine&, const Engine&) = default;
  } engine;

  struct Api {
    std::string keys_file;
    uint64_t body_bytes_max = 16_MiB;
    friend bool operator==(const Api&, const Api&) = default;
  } api;

  struct Policy {
    bool replace_replay_derived = true;
    bool what_if = true;
    friend bool operator==(const Policy&, const Policy&) = default;
  } policy;

  struct Log {
    std::string level = "info";
    std::string format = "text";
    friend bool operator==(const Log&, const Log&) = default;
  } log;

  std::map<std::string, uint64_t> quota_bytes;  // By tenant salt.

  friend bool operator==(const Config&, const Config&) = default;

  static Config Defaults() { return {}; }
  // Reads a TOML file. An unknown key, a value of the wrong kind or out of its range is an error
  // that names the file, the line, the key and what would be right.
  static absl::StatusOr<Config> Load(const std::string& path);
  // The same for text; `name` stands for the file in errors.
  static absl::StatusOr<Config> Parse(const std::string& text, const std::string& name);

  // Replaces what is automatic, then checks what the fields mean together and on this machine.
  // Every error names the field, its value and the fix.
  absl::Status Validate(const MachineFacts& machine);

  // The configuration as a commented TOML file, which Parse reads back to an equal Config.
  std::string ToToml() const;

  // REQUIRES: Validate succeeded.
  uint32_t record_bytes() const;
};

// Facts for Validate from the machine and the file system of `data_dir`, which need not exist yet.
absl::StatusOr<MachineFacts> ReadMachineFacts(const std::string& data_dir);

// "127.0.0.1:7440", "[::1]:7440" or "localhost:0", taken apart. Used for listen addresses.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

}  // namespace reprise::server
