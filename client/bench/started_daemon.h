#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "protocol/base/status.h"

namespace reprise::bench {

// A `reprised` of our own, from the folder of this program, with its configuration, sockets and
// data in a new folder. Ends, and its folder goes, with this object or with this process.
class StartedDaemon {
 public:
  struct Options {
    std::string parent_dir = ".";  // Where the folder is made.
    std::string model = "v4.1-flash";
    uint64_t dram_bytes = 0;
  };

  // Returns once it accepts connections.
  static absl::StatusOr<std::unique_ptr<StartedDaemon>> Start(const Options& options);
  ~StartedDaemon();
  StartedDaemon(const StartedDaemon&) = delete;
  StartedDaemon& operator=(const StartedDaemon&) = delete;

  std::string unix_address() const { return "unix:" + dir_ + "/reprised.sock"; }
  std::string tcp_address() const { return "tcp:127.0.0.1:" + std::to_string(port_); }

 private:
  StartedDaemon() = default;
  absl::Status WriteConfig(const Options& options) const;
  absl::Status Spawn(const std::string& program);
  absl::Status WaitUntilReady();
  std::string LogTail() const;

  std::string dir_;
  uint16_t port_ = 0;
  pid_t pid_ = -1;
};

}  // namespace reprise::bench
