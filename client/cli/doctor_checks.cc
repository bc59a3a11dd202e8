#include "client/cli/doctor_checks.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "gpu/backends/make_engine.h"
#include "protocol/base/bytes.h"
#include "protocol/base/units.h"
#include "protocol/rdma/lib_verbs.h"

namespace reprise::cli {
namespace {

using Level = Check::Level;

constexpr uint64_t kMemlockWanted = 1_GiB;  // One registered buffer of an arena.

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "HugePages_Free:      12" of /proc/meminfo.
unsigned long long MemInfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":"))
      return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10);
  }
  return 0;
}

// Bit 14 (CAP_IPC_LOCK) of the effective capabilities.
bool MayLockAll() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("CapEff:"))
      return (std::strtoull(line.c_str() + 7, nullptr, 16) >> 14) & 1;
  }
  return false;
}

// The first of cubic and reno that a socket of ours may use; empty when neither.
std::string ChosenCongestionControl() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  std::string chosen;
  for (const char* name : {"reno", "cubic"}) {
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name,
                   static_cast<socklen_t>(std::strlen(name))) == 0) {
      chosen = name;
    }
  }
  close(fd);
  return chosen;
}

// A write of one aligned page to an unnamed file. The error number, 0 when it worked.
int TryDirectWrite(const std::string& directory) {
  const int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(kPageBytes, kPageBytes),
                                                         &std::free);
  std::memset(page.get(), 0, kPageBytes);
  const int error = pwrite(fd, page.get(), kPageBytes, 0) == kPageBytes ? 0 : errno;
  close(fd);
  return error;
}

}  // namespace

const char* LevelName(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarn:
      return "warn";
    case Level::kFail:
      return "fail";
  }
  return "";
}

Check CheckIoUring() {
  io_uring_params params{};
  const auto fd = static_cast<int>(syscall(__NR_io_uring_setup, 4, &params));
  if (fd < 0) {
    return {"io_uring", Level::kFail, std::string("cannot be set up: ") + std::strerror(errno),
            "set kernel.io_uring_disabled to 0, and allow io_uring in the container's seccomp "
            "profile; the daemon needs Linux 5.15 or newer"};
  }
  close(fd);
  return {"io_uring", Level::kOk, "usable", ""};
}

Check CheckMemlock() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return JudgeMemlock(MayLockAll(), limit.rlim_cur);
}

Check JudgeMemlock(bool may_lock_all, unsigned long long limit_bytes) {
  if (may_lock_all) return {"memlock", Level::kOk, "not limited (CAP_IPC_LOCK)", ""};
  if (limit_bytes == RLIM_INFINITY) return {"memlock", Level::kOk, "not limited", ""};
  const std::string found = FormatBytes(limit_bytes) + " may be locked";
  if (limit_bytes >= kMemlockWanted) return {"memlock", Level::kOk, found, ""};
  return {"memlock", Level::kWarn,
          found + "; the arena's buffers cannot be registered with io_uring",
          "raise it: LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited; the daemon works "
          "without, with more processor time per read"};
}

Check CheckHugePages() {
  return JudgeHugePages(MemInfo("HugePages_Free"),
                        FirstLine("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
}

Check JudgeHugePages(unsigned long long free_pages, const std::string& shmem_enabled) {
  if (free_pages > 0) {
    return {"huge pages", Level::kOk, std::to_string(free_pages) + " free of 2 MiB", ""};
  }
  for (const char* usable : {"[always]", "[advise]", "[within_size]", "[force]"}) {
    if (shmem_enabled.find(usable) != std::string::npos) {
      return {"huge pages", Level::kOk, "transparent for shared memory", ""};
    }
  }
  return {"huge pages", Level::kWarn, "none free, and not transparent for shared memory",
          "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, or reserve some: "
          "sysctl vm.nr_hugepages=N with N = DRAM budget / 2 MiB"};
}

Check CheckCongestionControl() {
  return JudgeCongestionControl(FirstLine("/proc/sys/net/ipv4/tcp_congestion_control"),
                                ChosenCongestionControl());
}

Check JudgeCongestionControl(const std::string& default_name, const std::string& chosen_name) {
  if (default_name != "bbr") {
    return {"loopback TCP", Level::kOk, "congestion control is " + default_name, ""};
  }
  if (!chosen_name.empty()) {
    return {"loopback TCP", Level::kOk,
            "the default bbr paces loopback; our sockets there use " + chosen_name, ""};
  }
  return {"loopback TCP", Level::kWarn,
          "bbr paces loopback to less than half, and no other is allowed",
          "add reno: sysctl net.ipv4.tcp_allowed_congestion_control='reno bbr'; or use the Unix "
          "socket"};
}

Check CheckRdma() {
  const auto verbs = rdma::MakeLibVerbs();
  const absl::StatusOr<std::vector<rdma::Port>> ports = verbs->Ports();
  if (!ports.ok()) {
    return {"rdma", Level::kOk, "none: " + Message(ports.status()) + "; records travel by TCP", ""};
  }
  std::error_code error;
  const bool driver = std::filesystem::is_directory("/sys/class/infiniband", error);
  return JudgeRdma(*ports, driver);
}

Check JudgeRdma(const std::vector<rdma::Port>& ports, bool driver) {
  std::string why, found;
  const rdma::Port* used = rdma::ChoosePort(ports, "", -1, nullptr, &why);
  if (ports.empty()) {
    return {"rdma", Level::kOk,
            driver
                ? "none: the RDMA driver found no device; records travel by TCP"
                : "none: no RDMA driver is loaded (/sys/class/infiniband does not exist); records "
                  "travel by TCP",
            ""};
  }
  for (const rdma::Port& port : ports) {
    found += (found.empty() ? "" : "; ") + port.device + ":" + std::to_string(port.number);
    if (!port.active) {
      found += " is down";
      continue;
    }
    found += port.ethernet ? " RoCE" : " InfiniBand";
    if (port.gid_index >= 0) {
      found += std::string(port.gid_kind == rdma::GidKind::kRoceV2 ? "v2" : "") + " gid " +
               std::to_string(port.gid_index) + " " + rdma::GidText(port.gid);
    }
    if (&port == used) {
      found += " (chosen: mtu " + std::to_string(port.mtu_bytes) + ", " +
               std::to_string(port.queue_pairs_max) + " queue pairs, " +
               std::to_string(port.regions_max) + " regions of up to " +
               FormatBytes(port.region_bytes_max) +
               (port.windows ? ", memory windows: keys end with their request)"
                             : ", no memory windows: keys end with their memory's registration)");
    }
  }
  if (used != nullptr) return {"rdma", Level::kOk, found, ""};
  return {"rdma", Level::kWarn, found + ": not used, " + why + "; records travel by TCP",
          "bring the link up (ip link, ibstat), or give its interface an address"};
}

Check CheckGpu() {
  const auto gpu = engine::DescribeGpu();
  if (gpu.ok()) return {"gpu", Level::kOk, *gpu + ": for engine.device = \"cuda\"", ""};
  return {"gpu", Level::kOk, "none, engines run on the CPU: " + Message(gpu.status()), ""};
}

Check CheckDirectIo(const std::string& directory) {
  const int error = TryDirectWrite(directory);
  if (error == 0) return {"disk", Level::kOk, directory + " takes O_DIRECT", ""};
  const std::string found = directory + ": " + std::strerror(error);
  if (error == ENOENT || error == ENOTDIR) {
    return {"disk", Level::kWarn, found, "create it, or name the data directory with --data-dir"};
  }
  if (error == EINVAL || error == EOPNOTSUPP) {
    return {
        "disk", Level::kFail, directory + " does not take O_DIRECT",
        "put the data directory on a disk file system such as XFS or ext4, not tmpfs or overlay"};
  }
  return {"disk", Level::kFail, found, "give the daemon's user write access, and free space"};
}

}  // namespace reprise::cli
