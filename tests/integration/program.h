#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "protocol/base/clock.h"

// Processes of a test: each ends with the test's own process, whatever ends that.
namespace reprise::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Longest wait for anything that must happen. For hangs; never what is asserted.
inline constexpr Nanos kPatience = 60 * kSecond;

struct ProgramOptions {
  std::vector<std::string> arguments;  // The program's path first.
  std::string out_path, err_path;      // Files for stdout and stderr.
  uint64_t descriptors_max = 0;        // RLIMIT_NOFILE; 0: the test's.
};

// The new process, or -1.
pid_t StartProgram(const ProgramOptions& options);

// Reaps: the exit code, or 128 + the signal that ended it; nothing when it runs on. A negative pid
// has ended.
std::optional<int> WaitForExit(pid_t pid, Nanos timeout_ns);

struct ProgramResult {
  int exit_code = -1;
  std::string out, err;
};

// Runs it to its end; killed, with exit code -1, after kPatience. The files are `scratch`.out and
// `scratch`.err.
ProgramResult RunProgram(std::vector<std::string> arguments, const std::string& scratch);

std::string ReadText(const std::string& path);
void WriteText(const std::string& path, const std::string& text);

void SleepFor(Nanos duration_ns);

// Asks until the answer is true; false when it never was.
template <typename Condition>
bool Eventually(Condition condition, Nanos timeout_ns = kPatience) {
  const SystemClock clock;
  const Instant deadline = clock.Now() + timeout_ns;
  while (!condition()) {
    if (clock.Now() > deadline) return false;
    SleepFor(5 * kMillisecond);
  }
  return true;
}

// Open descriptors and resident memory of a process, from /proc.
uint64_t DescriptorCount(pid_t pid);
uint64_t ResidentBytes(pid_t pid);

// Raises the soft limit of descriptors to the hard one; returns it.
uint64_t RaiseDescriptorLimit();

}  // namespace reprise::test
