// reprised_arena: the daemon with an engine whose memory is not the host's
// (tests/gpu/arena_engine.h).
#include <csignal>
#include <cstdio>
#include <cstring>

#include "server/config.h"
#include "server/log.h"
#include "server/server.h"
#include "tests/gpu/arena_engine.h"

namespace {

using namespace reprise::server;

constexpr uint64_t kArenaBytes = uint64_t{96} << 20;

absl::Status Serve(const char* path) {
  RP_ASSIGN(Config config, Config::Load(path));
  RP_ASSIGN(const MachineFacts machine, ReadMachineFacts(config.data_dir));
  RP_TRY(config.Validate(machine));
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  LogStart({.level = LogLevel::kInfo, .json = false});
  RP_ASSIGN(const auto server,
            Server::Start(config, reprise::engine::test::ArenaEngineMaker(kArenaBytes)));
  server->Run();
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "--config") != 0) {
    std::fprintf(stderr, "usage: reprised_arena --config FILE\n");
    return 2;
  }
  const absl::Status status = Serve(argv[2]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "reprised_arena: %s\n", reprise::Message(status).c_str());
  return 1;
}
