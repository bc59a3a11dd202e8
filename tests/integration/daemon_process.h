#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/integration/program.h"

// A real reprised on files and sockets of its own, driven from outside.
namespace reprise::test {

using Json = nlohmann::json;

// What tests vary; the rest is small. nano: a record is 28 KiB, a region of 1 MiB holds 36.
struct DaemonConfig {
  std::string model = "nano";
  std::string payload_bytes = "auto";
  uint32_t shards = 1;
  std::string dram_bytes = "16MiB";
  std::string ssd_bytes = "64MiB";
  std::string region_bytes = "1MiB";
  std::string ssd_admission = "all";
  std::string ssd_write = "through";
  std::string dram_eviction = "lru";
  std::string window_bytes = "8MiB";
  std::string window_ttl = "600s";
  std::string unix_path = "auto";
  bool tcp = false;
  std::string tcp_host = "127.0.0.1";
  std::string http;  // Empty: off.
  uint32_t connections_max = 256;
  uint32_t staging_slots = 16;
  std::string idle_frame_timeout = "10s";
  std::map<std::string, std::string> quota;
  // reprised; or reprised_arena, whose engine has memory of its own, as a GPU has. RP_DAEMON in the
  // environment names another for all tests of a program.
  std::string program;
  std::string engine;  // Model to serve; empty: none. Needs http.
  std::string more;    // Lines of [engine], and sections after it.

  std::string ToToml(const std::string& data_dir) const;
};

// One run of the daemon, from exec to its reaped end.
class DaemonProcess {
 public:
  DaemonProcess(const std::string& program, const std::string& config_path, std::string log_path,
                uint64_t descriptors_max = 0);
  ~DaemonProcess();  // Kills what still runs.
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // False when it ended instead, or never said that it is ready.
  bool WaitUntilReady();
  void Signal(int signal) const;
  // See WaitForExit; remembers the answer.
  std::optional<int> Wait(Nanos timeout_ns = kPatience);
  bool running() { return !Wait(0).has_value(); }

  pid_t pid() const { return pid_; }
  std::string log() const { return ReadText(log_path_); }
  // From the line that says "ready".
  std::string tcp_address() const;
  uint16_t http_port() const;

 private:
  std::string log_path_;
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
};

// A test with a directory of its own under the build folder, and at most one daemon at a time in
// it. Whatever the test did to the daemon, it must have left no word of a sanitizer or of a broken
// invariant, and end in order.
class DaemonTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  // The first half of TearDown; once.
  void EndDaemon();

  const std::string& directory() const { return directory_; }
  std::string data_dir() const { return directory_ + "/d"; }
  std::string socket_path() const { return data_dir() + "/reprised.sock"; }
  std::string config_path() const { return directory_ + "/c.toml"; }

  // Writes the configuration and starts a daemon; false, with its log shown, when it does not get
  // ready.
  [[nodiscard]] bool Start(const DaemonConfig& config, uint64_t descriptors_max = 0);
  // Starts one that must refuse: returns its stderr.
  std::string StartRefused(const DaemonConfig& config);
  void Stop();  // SIGTERM; expects exit code 0.
  void Kill();  // SIGKILL.
  DaemonProcess& daemon() { return *daemon_; }

  std::string address() const { return "unix:" + socket_path(); }
  std::string tcp_address() { return "tcp:" + daemon_->tcp_address(); }
  // Null, and a failure, when there is no daemon.
  std::unique_ptr<Client> Connect() { return ConnectTo(address()); }
  std::unique_ptr<Client> ConnectTcp() { return ConnectTo(tcp_address()); }
  static std::unique_ptr<Client> ConnectTo(const std::string& address);
  // The daemon's own account, over a connection of its own (which it counts).
  Json Status();

  ProgramResult RunReprised(std::vector<std::string> arguments) const;
  // The command line tool, with --address of this daemon, or another.
  // What it prints goes through files named `scratch`: two that run at once need two names.
  ProgramResult RunReprise(std::vector<std::string> arguments, std::string address = "",
                           const std::string& scratch = "reprise") const;

 private:
  void ExpectCleanLog();

  std::string directory_;
  std::unique_ptr<DaemonProcess> daemon_;
};

// One HTTP request; "" when the connection is refused.
std::string HttpGet(uint16_t port, const std::string& path);

}  // namespace reprise::test
