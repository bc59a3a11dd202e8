#include "client/bench/started_daemon.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "client/client.h"

namespace reprise::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kPollMicros = 10'000;
constexpr uint32_t kReadyPolls = 12'000;  // Two minutes: memory is touched before it is ready.
constexpr uint32_t kStopPolls = 1'500;

// A port that nobody listens on now. Between this and the daemon's bind another may take it, which
// the daemon then says.
absl::StatusOr<uint16_t> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoStatus(errno, "opening a TCP socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool ok = bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  close(fd);
  if (!ok) return ErrnoStatus(error, "looking for a free TCP port on 127.0.0.1");
  return ntohs(address.sin_port);
}

absl::StatusOr<std::string> DaemonProgram() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path program = self.parent_path() / "reprised";
  if (error || !fs::exists(program, error)) {
    return FailedPrecondition(program.string() +
                              " is not there; build it, or start a daemon and give --address");
  }
  return program.string();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StartedDaemon>> StartedDaemon::Start(const Options& options) {
  RP_ASSIGN(const std::string program, DaemonProgram());
  std::string name = options.parent_dir + "/reprise-bench-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) {
    return ErrnoStatus(errno, "making a folder for the daemon in " + options.parent_dir);
  }
  std::unique_ptr<StartedDaemon> daemon(new StartedDaemon);
  daemon->dir_ = name;
  RP_ASSIGN(daemon->port_, FreePort());
  RP_TRY(daemon->WriteConfig(options));
  RP_TRY(daemon->Spawn(program));
  RP_TRY(daemon->WaitUntilReady());
  return daemon;
}

StartedDaemon::~StartedDaemon() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    uint32_t polls = 0;
    while (waitpid(pid_, nullptr, WNOHANG) == 0) {
      if (++polls == kStopPolls) kill(pid_, SIGKILL);
      usleep(kPollMicros);
    }
  }
  std::error_code ignored;
  if (!dir_.empty()) fs::remove_all(dir_, ignored);
}

absl::Status StartedDaemon::WriteConfig(const Options& options) const {
  std::ofstream file(dir_ + "/reprised.toml");
  file << "data_dir = \"" << dir_ << "/data\"\n"
       << "model = \"" << options.model << "\"\n"
       << "[listen]\nunix = \"" << dir_ << "/reprised.sock\"\n"
       << "tcp = \"127.0.0.1:" << port_ << "\"\nhttp = \"\"\n"
       << "[dram]\nbytes = \"" << options.dram_bytes << "B\"\n"
       << "[ssd]\nbytes = \"0B\"\n[window]\nbytes = \"0B\"\n";
  file.close();
  return file ? absl::OkStatus()
              : Internal("cannot write " + dir_ + "/reprised.toml; is the disk full?");
}

absl::Status StartedDaemon::Spawn(const std::string& program) {
  const std::string config = dir_ + "/reprised.toml";
  const std::string log = dir_ + "/reprised.log";
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) return ErrnoStatus(errno, "starting " + program);
  if (pid_ > 0) return absl::OkStatus();
  // The child: it must not outlive us, even if we are killed.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0) _exit(1);
  execl(program.c_str(), program.c_str(), "--config", config.c_str(), nullptr);
  _exit(127);
}

absl::Status StartedDaemon::WaitUntilReady() {
  ClientOptions options;
  options.address = unix_address();
  options.name = "bench: is it ready?";
  options.local_memory = false;
  for (uint32_t polls = 0; polls < kReadyPolls; ++polls) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return FailedPrecondition("the daemon did not start:\n" + LogTail());
    }
    if (Client::Connect(options).ok()) return absl::OkStatus();
    usleep(kPollMicros);
  }
  return DeadlineExceeded("the daemon was not ready within two minutes:\n" + LogTail());
}

std::string StartedDaemon::LogTail() const {
  std::ifstream file(dir_ + "/reprised.log");
  std::stringstream text;
  text << file.rdbuf();
  const std::string log = text.str();
  constexpr size_t kTail = 2'000;
  return log.size() <= kTail ? log : log.substr(log.size() - kTail);
}

}  // namespace reprise::bench
