#include "tests/integration/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace reprise::test {
namespace {

// Between fork and exec: only what a signal handler may call.
[[noreturn]] void Become(char* const* arguments, int out, int err, uint64_t descriptors_max,
                         pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // It died before the line above.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (descriptors_max != 0) {
    const rlimit limit{descriptors_max, descriptors_max};
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  execv(arguments[0], arguments);
  _exit(127);
}

}  // namespace

pid_t StartProgram(const ProgramOptions& options) {
  std::vector<char*> arguments;
  for (const std::string& argument : options.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  const int out = open(options.out_path.c_str(), kFlags, 0640);
  const int err = open(options.err_path.c_str(), kFlags, 0640);
  if (out < 0 || err < 0) return -1;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(arguments.data(), out, err, options.descriptors_max, parent);
  close(out);
  close(err);
  return pid;
}

std::optional<int> WaitForExit(pid_t pid, Nanos timeout_ns) {
  if (pid < 0) return 127;
  int status = 0;
  const auto ended = [&] {
    const pid_t got = waitpid(pid, &status, WNOHANG);
    return got == pid || (got < 0 && errno == ECHILD);
  };
  if (!Eventually(ended, timeout_ns)) return std::nullopt;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

ProgramResult RunProgram(std::vector<std::string> arguments, const std::string& scratch) {
  const std::string out_path = scratch + ".out", err_path = scratch + ".err";
  std::filesystem::remove(out_path);
  std::filesystem::remove(err_path);
  const pid_t pid =
      StartProgram({.arguments = std::move(arguments), .out_path = out_path, .err_path = err_path});
  std::optional<int> exit_code = WaitForExit(pid, kPatience);
  if (!exit_code.has_value()) {
    kill(pid, SIGKILL);
    (void)WaitForExit(pid, kPatience);
  }
  return {
      .exit_code = exit_code.value_or(-1), .out = ReadText(out_path), .err = ReadText(err_path)};
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

void SleepFor(Nanos duration_ns) {
  const timespec duration{.tv_sec = duration_ns / kSecond, .tv_nsec = duration_ns % kSecond};
  nanosleep(&duration, nullptr);
}

uint64_t DescriptorCount(pid_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator first("/proc/" + std::to_string(pid) + "/fd", error);
  return error ? 0 : static_cast<uint64_t>(std::distance(begin(first), end(first)));
}

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream statm("/proc/" + std::to_string(pid) + "/statm");
  uint64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t RaiseDescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

}  // namespace reprise::test
