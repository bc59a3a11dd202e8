#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "server/log.h"
#include "tests/sim/world.h"

// Runs seeds, each in a process of its own so that a check that stops it is a failure like any
// other, and shrinks what fails.
namespace {

using reprise::sim::Outcomes;
using reprise::sim::World;

constexpr uint64_t kSeedsToReachAll = 100;

struct Options {
  uint64_t seed = 1;
  uint64_t seeds = 1;
  uint64_t ops = 300;
  bool verbose = false;
};

constexpr const char* kUsage =
    "usage: reprise_sim [--seed=N] [--seeds=K] [--ops=N] [--verbose]\n"
    "  --seed=N    the first seed (1)\n"
    "  --seeds=K   how many seeds, one after the other (1); from 100 on, every outcome must occur\n"
    "  --ops=N     requests of a run, over all its clients (300)\n"
    "  --verbose   every request and fault of a run, and the daemon's log\n";

// "--name=value" or "--name value".
bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--verbose") {
      options->verbose = true;
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string_view name = arg.substr(0, equals);
    uint64_t* target = name == "--seed"    ? &options->seed
                       : name == "--seeds" ? &options->seeds
                       : name == "--ops"   ? &options->ops
                                           : nullptr;
    if (target == nullptr || (equals == std::string_view::npos && i + 1 == argc)) return false;
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view(argv[++i]) : arg.substr(equals + 1);
    const auto parsed = std::from_chars(value.data(), value.data() + value.size(), *target);
    if (parsed.ec != std::errc() || parsed.ptr != value.data() + value.size()) return false;
  }
  return true;
}

struct Result {
  bool passed = false;
  std::string failure;
  std::string description;
  Outcomes outcomes;
};

void WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

// In the child: description, failure, outcomes; a line each for the first two.
int RunChild(uint64_t seed, uint64_t ops, bool verbose, int fd) {
  // Not destroyed: its disks hold what was in flight when its daemons died.
  static auto* const world =
      new World({.seed = seed, .ops = static_cast<uint32_t>(ops), .verbose = verbose});
  WriteAll(fd, world->Describe() + "\n");
  const bool passed = world->Run();
  WriteAll(fd, world->failure() + "\n" + world->outcomes().ToText());
  close(fd);
  std::fflush(nullptr);
  if (!passed) _exit(1);  // With operations in flight, nothing can be destroyed in order.
  return 0;
}

Result RunSeed(uint64_t seed, uint64_t ops, bool verbose) {
  int fds[2];
  std::fflush(nullptr);
  if (pipe(fds) != 0) return {.failure = "pipe: " + std::string(std::strerror(errno))};
  const pid_t child = fork();
  if (child < 0) return {.failure = "fork: " + std::string(std::strerror(errno))};
  if (child == 0) {
    close(fds[0]);
    std::exit(RunChild(seed, ops, verbose, fds[1]));
  }
  close(fds[1]);
  std::string text = ReadAll(fds[0]);
  close(fds[0]);
  int status = 0;
  waitpid(child, &status, 0);
  Result result;
  const auto take_line = [&text] {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string line = text.substr(0, end);
    text.erase(0, end + 1);
    return line;
  };
  result.description = take_line();
  result.failure = take_line();
  result.outcomes = Outcomes::FromText(text);
  result.passed = WIFEXITED(status) && WEXITSTATUS(status) == 0 && result.failure.empty();
  if (!result.passed && result.failure.empty()) {
    result.failure = "the process ended with status " + std::to_string(status) +
                     "; what stopped it is printed above";
  }
  return result;
}

// Halves the workload as long as it still fails.
uint64_t Shrink(uint64_t seed, uint64_t ops) {
  while (ops > 1 && !RunSeed(seed, ops / 2, false).passed) ops /= 2;
  return ops;
}

bool ReachedAll(const Outcomes& outcomes) {
  bool all = true;
  for (const std::string_view name : Outcomes::Required()) {
    if (outcomes.count(name) > 0) continue;
    std::printf("never reached: %s\n", std::string(name).c_str());
    all = false;
  }
  return all;
}

int RunAll(const Options& options) {
  Outcomes outcomes;
  uint64_t failed = 0;
  for (uint64_t seed = options.seed; seed < options.seed + options.seeds; ++seed) {
    const Result result = RunSeed(seed, options.ops, options.verbose);
    outcomes.Add(result.outcomes);
    std::printf("seed %llu %s %s\n", static_cast<unsigned long long>(seed),
                result.passed ? "ok" : "FAILED", result.description.c_str());
    if (result.passed) continue;
    ++failed;
    const uint64_t ops = Shrink(seed, options.ops);
    std::printf("  %s\n  to reproduce: reprise_sim --seed=%llu --ops=%llu --verbose\n",
                result.failure.c_str(), static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(ops));
  }
  for (const auto& [name, count] : outcomes.all()) {
    std::printf("%12llu %s\n", static_cast<unsigned long long>(count), name.c_str());
  }
  const bool reached = options.seeds < kSeedsToReachAll || ReachedAll(outcomes);
  std::printf("%llu seeds, %llu failed\n", static_cast<unsigned long long>(options.seeds),
              static_cast<unsigned long long>(failed));
  return failed == 0 && reached ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // In step with the daemon's log.
  using reprise::server::LogLevel;
  reprise::server::LogStart({.level = options.verbose ? LogLevel::kDebug : LogLevel::kError});
  return RunAll(options);
}
