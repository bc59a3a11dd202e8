// Clients that are killed, and one that does not read: what they held is given back.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/raw_connection.h"

namespace reprise::test {
namespace {

class ClientDeathTest : public DaemonTest {
 protected:
  // A process that runs `body` until it is killed; body must never return on purpose.
  template <typename Body>
  static pid_t Fork(Body body) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    body();
    _exit(1);
  }
  static void KillClient(pid_t pid) {
    kill(pid, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the client ended on its own";
  }

  // Nothing is held for clients that are gone, and all of DRAM can be used again.
  void ExpectGivenBack() {
    const auto quiet = [this] {
      const Json status = Status();
      return status["clients"]["connections"] == 1 && status["clients"]["leases"] == 0 &&
             status["tiers"]["dram"]["pinned_blocks"] == 0;
    };
    EXPECT_TRUE(Eventually(quiet)) << Status().dump(2);
    const auto client = Connect();
    ASSERT_NE(client, nullptr);
    const uint64_t evictions = Status()["tiers"]["dram"]["evictions"];
    const Chain more(NanoManifest(), ++seed_, 700);  // More than the 585 slots of 16 MiB.
    EXPECT_TRUE(PutChain(client.get(), more));
    EXPECT_GT(Status()["tiers"]["dram"]["evictions"], evictions);
    EXPECT_EQ(CountHeld(client.get(), more), 700u);
  }

  uint64_t seed_ = 1000;
};

void PutForEver(const std::string& address, wire::Durability durability) {
  const auto client = Client::Connect({.address = address});
  if (!client.ok()) return;
  for (uint64_t seed = 1;; ++seed) {
    if (!PutChain(client->get(), Chain(NanoManifest(), seed, 64), durability)) return;
  }
}

TEST_F(ClientDeathTest, KilledDuringPut) {
  ASSERT_TRUE(Start({.tcp = true}));
  for (const std::string& address : {this->address(), tcp_address()}) {
    for (const auto durability : {wire::Durability::kRelaxed, wire::Durability::kDurable}) {
      const uint64_t before = Status()["traffic"]["puts_stored"];
      const pid_t pid = Fork([&] { PutForEver(address, durability); });
      EXPECT_TRUE(Eventually([&] { return Status()["traffic"]["puts_stored"] > before + 100; }));
      ASSERT_NO_FATAL_FAILURE(KillClient(pid));
    }
  }
  const auto staging_given_back = [this] {
    const auto client = ConnectTcp();  // Has no staging of its own.
    const auto text = client->StatusJson();
    return text.ok() && Json::parse(*text)["clients"]["staging_bytes"] == 0;
  };
  EXPECT_TRUE(Eventually(staging_given_back));
  ExpectGivenBack();
}

TEST_F(ClientDeathTest, KilledDuringGetOverTcp) {
  ASSERT_TRUE(Start({.tcp = true}));
  const Chain chain(NanoManifest(), 1, 900);  // Some of it in DRAM, the rest on SSD.
  ASSERT_TRUE(PutChain(Connect().get(), chain, wire::Durability::kDurable));
  const auto served = [this] {
    const Json traffic = Status()["traffic"];
    return traffic.value("blocks_from_dram", uint64_t{0}) +
           traffic.value("blocks_from_ssd", uint64_t{0});
  };
  const std::string tcp = tcp_address();
  for (int round = 0; round < 3; ++round) {
    const uint64_t before = served();
    const pid_t pid = Fork([&] {
      const auto client = Client::Connect({.address = tcp, .deadline_ns = kPatience});
      while (client.ok() && GetRun(client->get(), chain) > 0) {
      }
    });
    EXPECT_TRUE(Eventually([&] { return served() > before + 500; }));
    ASSERT_NO_FATAL_FAILURE(KillClient(pid));
  }
  ExpectGivenBack();
}

TEST_F(ClientDeathTest, KilledWhileHoldingLeases) {
  ASSERT_TRUE(Start({}));
  const Chain chain(NanoManifest(), 1, 200);
  ASSERT_TRUE(PutChain(Connect().get(), chain));
  const std::string address = this->address();
  const pid_t pid = Fork([&] {
    const auto client = Client::Connect({.address = address});
    if (!client.ok()) return;
    const auto id = (*client)->OpenNamespace(NanoManifest());
    std::vector<Lease> leases;
    for (const BlockKey& key : chain.keys()) {
      leases.push_back((*client)->Acquire(*id, {&key, 1}).value());
    }
    const wire::WindowKey window{.prefix = chain.keys()[3], .position = 512};
    (void)(*client)->PutWindow(*id, window, 1, chain.Record(0));
    for (;;) pause();
  });
  const auto held = [this] {
    const Json status = Status();
    return status["clients"]["leases"] == 200 && status["tiers"]["dram"]["pinned_blocks"] == 200 &&
           status["window_pool"]["snapshots"] == 1;
  };
  EXPECT_TRUE(Eventually(held)) << Status().dump(2);
  ASSERT_NO_FATAL_FAILURE(KillClient(pid));
  ExpectGivenBack();
  EXPECT_EQ(Status()["clients"]["leases_revoked"], 200);
}

// Asks for 64 MB over TCP and does not read.
class SlowReader {
 public:
  SlowReader(const std::string& address, const Chain& chain) : connection_(address, 4096) {
    if (!connection_.Hello()) return;
    const uint32_t id = connection_.OpenNamespace(EncodeManifest(chain.manifest()));
    const auto repeats =
        static_cast<uint32_t>(64'000'000 / chain.record_bytes() / chain.size() + 1);
    std::string body;
    wire::Append(&body, wire::KeysRequest{id, repeats * chain.size()});
    for (uint32_t i = 0; i < repeats; ++i) {
      wire::AppendArray<BlockKey>(&body, chain.keys());
    }
    asked_ = connection_.Send(connection_.MakeFrame(wire::Opcode::kGet, body));
  }
  bool asked() const { return asked_; }
  RawConnection& connection() { return connection_; }

 private:
  RawConnection connection_;
  bool asked_ = false;
};

class SlowReaderTest : public ClientDeathTest {
 protected:
  // The daemon has sent what the socket holds, and keeps the pins of what it cannot send.
  void StartWithSlowReader(const DaemonConfig& config) {
    ASSERT_TRUE(Start(config));
    ASSERT_TRUE(PutChain(Connect().get(), chain_, wire::Durability::kDurable));
    slow_.emplace(tcp_address(), chain_);
    ASSERT_TRUE(slow_->asked());
    ASSERT_TRUE(Eventually([this] { return Status()["tiers"]["dram"]["pinned_blocks"] > 0; }));
    SleepFor(300 * kMillisecond);
    ASSERT_GT(Status()["tiers"]["dram"]["pinned_blocks"], 0) << "the socket took all 64 MB";
  }

  const Chain chain_{NanoManifest(), 1, 300};
  std::optional<SlowReader> slow_;
};

TEST_F(SlowReaderTest, OthersKeepTheirLatency) {
  ASSERT_NO_FATAL_FAILURE(StartWithSlowReader({.tcp = true}));
  const SystemClock clock;
  for (const std::string& address : {this->address(), tcp_address()}) {
    const auto client = ConnectTo(address);
    ASSERT_NE(client, nullptr);
    std::vector<Nanos> latencies;
    for (uint32_t i = 0; i < 300; ++i) {
      const Instant began = clock.Now();
      EXPECT_EQ(GetBlock(client.get(), chain_, i % chain_.size()), Outcome::kOk);
      latencies.push_back(clock.Now() - began);
    }
    std::sort(latencies.begin(), latencies.end());
    std::printf("%s beside a slow reader: p50 %.2f ms, p99 %.2f ms\n", address.c_str(),
                static_cast<double>(latencies[150]) / kMillisecond,
                static_cast<double>(latencies[297]) / kMillisecond);
    EXPECT_LT(latencies[150], kSecond) << "waited for the slow one, whose timeout is 30 s";
  }
  slow_.reset();
  ExpectGivenBack();
}

TEST_F(SlowReaderTest, ShutdownDoesNotWaitForIt) {
  ASSERT_NO_FATAL_FAILURE(StartWithSlowReader({.tcp = true, .http = "127.0.0.1:0"}));
  const uint16_t port = daemon().http_port();
  EXPECT_NE(HttpGet(port, "/readyz").find("200"), std::string::npos);
  const Instant began = SystemClock().Now();
  daemon().Signal(SIGTERM);
  // Draining waits five seconds for requests in progress; all the while it says so.
  const auto not_ready = [&] {
    const std::string answer = HttpGet(port, "/readyz");
    return answer.find(" 503 ") != std::string::npos &&
           answer.find("draining") != std::string::npos;
  };
  EXPECT_TRUE(Eventually(not_ready, 3 * kSecond));
  Stop();
  EXPECT_LT(SystemClock().Now() - began, 25 * kSecond) << "waited for the send timeout";
  EXPECT_EQ(HttpGet(port, "/readyz"), "");
}

TEST_F(SlowReaderTest, SlowSendTimeoutClosesIt) {
  ASSERT_NO_FATAL_FAILURE(StartWithSlowReader({.tcp = true}));
  // 30 s after its last progress.
  EXPECT_TRUE(
      Eventually([this] { return Status()["clients"]["connections"] == 1; }, 2 * kPatience));
  EXPECT_TRUE(slow_->connection().ClosedWithin(kPatience));
  ExpectGivenBack();
}

}  // namespace
}  // namespace reprise::test
