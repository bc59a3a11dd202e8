// What was acknowledged as durable survives kill -9; what was put survives SIGTERM.
#include <signal.h>

#include <array>
#include <mutex>
#include <thread>

#include "protocol/base/prng.h"
#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"

namespace reprise::test {
namespace {

class DurabilityTest : public DaemonTest {
 protected:
  void KillInALoop(uint32_t rounds);
};

// Blocks of one chain that a daemon acknowledged as durable before it was killed.
struct Acknowledged {
  Chain chain;
  std::vector<uint32_t> blocks;
};

// Puts durable blocks, some at a time, until the daemon goes away.
void PutUntilKilled(const std::string& address, Acknowledged* acknowledged, uint64_t seed) {
  const auto client = Client::Connect({.address = address});
  if (!client.ok()) return;
  const auto id = (*client)->OpenNamespace(NanoManifest());
  if (!id.ok()) return;
  Prng prng(seed);
  const Chain& chain = acknowledged->chain;
  for (uint32_t first = 0; first < chain.size();) {
    const auto count =
        static_cast<uint32_t>(std::min<uint64_t>(1 + prng.Below(12), chain.size() - first));
    std::vector<std::vector<std::byte>> bytes;
    std::vector<ConstBytes> records;
    for (uint32_t i = 0; i < count; ++i) bytes.push_back(chain.Record(first + i));
    for (const auto& record : bytes) records.emplace_back(record);
    std::vector<Outcome> outcomes(count, Outcome::kClosed);
    const bool alive = (*client)->Put(*id, records, wire::Durability::kDurable, outcomes).ok();
    for (uint32_t i = 0; i < count; ++i) {
      if (outcomes[i] == Outcome::kOk) acknowledged->blocks.push_back(first + i);
    }
    if (!alive) return;
    first += count;
  }
}

void DurabilityTest::KillInALoop(uint32_t rounds) {
  constexpr uint32_t kBlocksPerClient = 60;  // All rounds together fit the SSD tier.
  const DaemonConfig config{.ssd_bytes = "128MiB", .tcp = true};
  const uint64_t seed = static_cast<uint64_t>(SystemClock().WallMillis());
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Prng prng(seed);
  std::vector<Acknowledged> all;
  uint64_t acknowledged_count = 0;
  for (uint32_t round = 0; round < rounds; ++round) {
    ASSERT_TRUE(Start(config));
    std::array<Acknowledged, 2> now = {
        Acknowledged{{NanoManifest(), prng.Next(), kBlocksPerClient}, {}},
        Acknowledged{{NanoManifest(), prng.Next(), kBlocksPerClient}, {}}};
    const std::array<std::string, 2> addresses = {address(), tcp_address()};
    std::array<std::thread, 2> clients;
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i] = std::thread(PutUntilKilled, addresses[i], &now[i], prng.Next());
    }
    SleepFor(static_cast<Nanos>(prng.Below(kSanitized ? 600 : 200)) * kMillisecond);
    Kill();
    for (std::thread& client : clients) client.join();
    for (Acknowledged& one : now) {
      acknowledged_count += one.blocks.size();
      all.push_back(std::move(one));
    }
    ASSERT_TRUE(Start(config));
    const auto client = Connect();
    ASSERT_NE(client, nullptr);
    for (const Acknowledged& one : all) {
      for (const uint32_t block : one.blocks) {
        const Outcome outcome = GetBlock(client.get(), one.chain, block);
        ASSERT_EQ(outcome, Outcome::kOk)
            << "round " << round << ": block " << block << " was acknowledged as durable, and is "
            << OutcomeName(outcome);
      }
    }
    ASSERT_EQ(Status()["traffic"]["failed_checks"], 0);
    Kill();
  }
  std::printf("%llu durable blocks over %u kills\n",
              static_cast<unsigned long long>(acknowledged_count), 2 * rounds);
  EXPECT_GT(acknowledged_count, 0u);
}

TEST_F(DurabilityTest, KilledFiveTimes) { KillInALoop(5); }
TEST_F(DurabilityTest, SlowKilledTwentyFiveTimes) { KillInALoop(25); }

TEST_F(DurabilityTest, SigtermWritesWhatWasPut) {
  const Chain chain(NanoManifest(), 1, 300);
  for (const int signal : {SIGTERM, SIGINT}) {
    ASSERT_TRUE(Start({}));
    ASSERT_TRUE(PutChain(Connect().get(), chain));  // Relaxed: acknowledged in DRAM.
    daemon().Signal(signal);
    EXPECT_EQ(daemon().Wait().value_or(-1), 0) << daemon().log();
    EXPECT_NE(daemon().log().find("stopped"), std::string::npos);
    ASSERT_TRUE(Start({}));
    const Json status = Status();
    EXPECT_EQ(status["tiers"]["dram"]["blocks"], 0);
    EXPECT_EQ(status["recovery"]["blocks"], 300);
    EXPECT_EQ(CountHeld(Connect().get(), chain), 300u);
    EXPECT_EQ(Status()["tiers"]["dram"]["blocks"], 300);
    Stop();
  }
}

// Signals while clients are at work: exit code 0, and what they were told holds.
TEST_F(DurabilityTest, SigtermUnderLoad) {
  ASSERT_TRUE(Start({.tcp = true}));
  Acknowledged local{{NanoManifest(), 7, 600}, {}}, remote{{NanoManifest(), 8, 600}, {}};
  std::thread first(PutUntilKilled, address(), &local, 1);
  std::thread second(PutUntilKilled, tcp_address(), &remote, 2);
  EXPECT_TRUE(Eventually([this] { return Status()["traffic"]["puts_stored"] > 50; }));
  Stop();
  first.join();
  second.join();
  ASSERT_TRUE(Start({.tcp = true}));
  const auto client = Connect();
  for (const Acknowledged* one : {&local, &remote}) {
    for (const uint32_t block : one->blocks) {
      EXPECT_EQ(GetBlock(client.get(), one->chain, block), Outcome::kOk) << block;
    }
  }
}

}  // namespace
}  // namespace reprise::test
