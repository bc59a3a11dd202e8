// The daemon's memory under mixed load: what it takes at start is what it has at the end.
#include <atomic>
#include <cstdio>
#include <thread>

#include "protocol/base/prng.h"
#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"

namespace reprise::test {
namespace {

// Beside the arena, which is touched at start. A sanitizer keeps freed memory for a while.
constexpr uint64_t kGrowthMax = kSanitized ? 512_MiB : 12_MiB;

class MemoryTest : public DaemonTest {
 protected:
  void LoadFor(Nanos duration_ns);
};

Manifest WithSalt(uint64_t number) {
  Manifest manifest = NanoManifest();
  manifest.tenant_salt = std::to_string(number);
  return manifest;
}

// Puts, lookups, gets, windows, evictions, new connections, in an order drawn from a seed. The
// number of calls that were answered.
uint64_t Load(const std::string& address, uint64_t seed, const std::atomic<bool>& stop) {
  Prng prng(seed);
  uint64_t calls = 0;
  while (!stop) {
    const auto client = Client::Connect({.address = address, .deadline_ns = kPatience});
    if (!client.ok()) break;
    for (uint32_t turn = 0; turn < 20 && !stop; ++turn, ++calls) {
      const Chain chain(WithSalt(prng.Below(3)), prng.Below(40), 48);
      const uint32_t id = *(*client)->OpenNamespace(chain.manifest());
      const wire::WindowKey window{.prefix = chain.keys().back(),
                                   .position = chain.tokens().size()};
      const auto durability =
          prng.Chance(300) ? wire::Durability::kDurable : wire::Durability::kRelaxed;
      (void)(*client)->Lookup(id, chain.keys(), {&window, 1});
      (void)GetRun(client->get(), chain);
      (void)PutBlocks(client->get(), chain, 0, chain.size(), durability);
      (void)(*client)->PutWindow(id, window, prng.Below(8),
                                 std::vector<std::byte>(1 + prng.Below(300'000)));
      (void)(*client)->GetWindow(id, window);
      if (prng.Chance(50)) (void)(*client)->Explain(id, chain.tokens());
      if (prng.Chance(50)) (void)(*client)->Evict(id, chain.keys());
      if (prng.Chance(50)) (void)(*client)->StatusJson();
    }
  }
  return calls;
}

void MemoryTest::LoadFor(Nanos duration_ns) {
  ASSERT_TRUE(Start({.ssd_bytes = "32MiB", .tcp = true, .http = "127.0.0.1:0"}));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> calls{0};
  std::vector<std::thread> clients;
  for (uint64_t i = 0; i < 3; ++i) {
    clients.emplace_back([&, i, address = i == 1 ? tcp_address() : address()] {
      calls += Load(address, i + 1, stop);
    });
  }
  const auto sleep_asking = [&](Nanos for_ns) {
    const Instant until = SystemClock().Now() + for_ns;
    while (SystemClock().Now() < until) {
      EXPECT_NE(HttpGet(daemon().http_port(), "/metrics").find("reprise_ready 1"),
                std::string::npos);
      SleepFor(200 * kMillisecond);
    }
  };
  sleep_asking(duration_ns / 3);  // Pools of operations and caches of the allocator fill up.
  const uint64_t before = ResidentBytes(daemon().pid());
  const uint64_t descriptors = DescriptorCount(daemon().pid());
  sleep_asking(duration_ns - duration_ns / 3);
  const uint64_t after = ResidentBytes(daemon().pid());
  stop = true;
  for (std::thread& client : clients) client.join();
  std::printf("resident %.1f MiB after a third, %.1f MiB at the end, %llu turns\n",
              static_cast<double>(before) / 1_MiB, static_cast<double>(after) / 1_MiB,
              static_cast<unsigned long long>(calls.load()));
  EXPECT_LE(after, before + kGrowthMax);
  EXPECT_LE(DescriptorCount(daemon().pid()), descriptors + 2);
  EXPECT_GT(calls, 0u);
  const auto at_rest = [this] {
    const Json status = Status();
    return status["clients"]["connections"] == 1 && status["clients"]["leases"] == 0 &&
           status["tiers"]["dram"]["pinned_blocks"] == 0 && status["window_pool"]["leased"] == 0;
  };
  EXPECT_TRUE(Eventually(at_rest)) << Status().dump(2);
  EXPECT_EQ(Status()["traffic"]["failed_checks"], 0);
}

TEST_F(MemoryTest, FlatForFiveSeconds) { LoadFor(5 * kSecond); }
TEST_F(MemoryTest, SlowFlatForAMinute) { LoadFor(60 * kSecond); }

}  // namespace
}  // namespace reprise::test
