// Many connections, short ones, and more than allowed.
#include <gmock/gmock.h>

#include "protocol/wire/control.pb.h"
#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/raw_connection.h"

namespace reprise::test {
namespace {

using testing::HasSubstr;

// Descriptors that the test and the daemon need beside the connections.
constexpr uint64_t kOtherDescriptors = 200;

class ConnectionTest : public DaemonTest {
 protected:
  // 10,000, or as many as this machine lets one process have.
  static uint32_t Many() {
    constexpr uint64_t kWanted = 10'000;
    const uint64_t limit = RaiseDescriptorLimit();
    const uint64_t many = std::min(kWanted, limit - std::min(limit, kOtherDescriptors));
    std::printf("%s%u connections of 10000 (RLIMIT_NOFILE %llu)\n", many < kWanted ? "ONLY " : "",
                static_cast<unsigned>(many), static_cast<unsigned long long>(limit));
    return static_cast<uint32_t>(many);
  }
  uint64_t Connections() { return Status()["clients"].value("connections", uint64_t{0}); }

  void ExpectServing() {
    EXPECT_TRUE(Eventually([this] { return Connections() == 1; })) << Connections();
    const Chain chain(NanoManifest(), 1, 2);
    const auto client = Connect();
    ASSERT_NE(client, nullptr);
    EXPECT_TRUE(PutChain(client.get(), chain));
    EXPECT_EQ(GetRun(client.get(), chain), 2u);
  }
};

TEST_F(ConnectionTest, OneTooManyIsToldSoInOneFrame) {
  constexpr uint32_t kMax = 64;
  const uint32_t many = Many();
  ASSERT_TRUE(Start({.connections_max = kMax}));
  std::vector<RawConnection> connections;
  for (uint32_t i = 0; i < many; ++i) {
    connections.emplace_back(address());
    ASSERT_TRUE(connections.back().connected()) << i;
  }
  uint32_t greeted = 0, refused = 0;
  for (uint32_t i = 0; i < many; ++i) {
    // The first ones are waiting for a hello; the others were told no before they said anything.
    if (i < kMax) {
      greeted += connections[i].Hello() ? 1 : 0;
      continue;
    }
    const auto reply = connections[i].Receive(kPatience);
    ASSERT_TRUE(reply.has_value()) << i;
    wire::HelloReply refusal;
    ASSERT_TRUE(refusal.ParseFromString(reply->body));
    ASSERT_EQ(reply->outcome(), Outcome::kBusy);
    ASSERT_THAT(refusal.error(), HasSubstr("connections_max = 64"));
    ASSERT_TRUE(connections[i].ClosedWithin(kPatience));
    ++refused;
  }
  EXPECT_EQ(greeted, kMax);
  EXPECT_EQ(refused, many - kMax);
  // A client of ours passes the words on.
  const auto client = Client::Connect({.address = address(), .connect_timeout_ns = kPatience});
  EXPECT_FALSE(client.ok());
  EXPECT_THAT(Message(client.status()), HasSubstr("raise [listen] connections_max"));
  connections.clear();
  ExpectServing();
}

TEST_F(ConnectionTest, TenThousandAreServed) {
  const uint32_t many = Many();
  ASSERT_TRUE(Start({.tcp = true, .connections_max = 20'000, .idle_frame_timeout = "60s"}));
  std::vector<RawConnection> connections;
  const std::string tcp = tcp_address();
  for (uint32_t i = 0; i < many; ++i) {
    connections.emplace_back(i % 2 == 0 ? address() : tcp);
    ASSERT_TRUE(connections.back().Hello()) << i;
  }
  EXPECT_EQ(Connections(), many + 1);
  for (uint32_t i = 0; i < many; i += 97) {
    EXPECT_NE(connections[i].OpenNamespace(EncodeManifest(NanoManifest())), 0u) << i;
  }
  connections.clear();
  ExpectServing();
}

// The daemon runs out of descriptors before it reaches connections_max: it waits for some to be
// free.
TEST_F(ConnectionTest, WithoutDescriptorsItWaitsForSome) {
  ASSERT_TRUE(Start({.connections_max = 4096}, 160));
  std::vector<RawConnection> connections;
  for (uint32_t i = 0; i < 300; ++i) connections.emplace_back(address());
  ASSERT_TRUE(connections[0].Hello());
  SleepFor(300 * kMillisecond);
  EXPECT_TRUE(daemon().running()) << daemon().log();
  connections.clear();
  ExpectServing();
}

TEST_F(ConnectionTest, ChurnLeavesNothingBehind) {
  constexpr uint32_t kRounds = 2'000;
  constexpr uint64_t kGrowthMax = kSanitized ? 256_MiB : 8_MiB;
  ASSERT_TRUE(Start({.tcp = true}));
  const std::string tcp = tcp_address();
  const auto churn = [&](uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      if (i % 4 == 3) {  // Leaves before it has said anything, or in the middle of its hello.
        RawConnection rude(i % 8 == 3 ? address() : tcp);
        if (i % 16 > 7) rude.Send(rude.MakeFrame(wire::Opcode::kHello, HelloBody()).substr(0, 40));
        continue;
      }
      const auto client = ConnectTo(i % 2 == 0 ? address() : tcp);
      ASSERT_NE(client, nullptr);
      ASSERT_TRUE(client->OpenNamespace(NanoManifest()).ok());
    }
    ASSERT_TRUE(Eventually([this] { return Connections() == 1; }));
  };
  ASSERT_NO_FATAL_FAILURE(churn(200));
  const uint64_t descriptors = DescriptorCount(daemon().pid());
  const uint64_t resident = ResidentBytes(daemon().pid());
  ASSERT_NO_FATAL_FAILURE(churn(kRounds));
  EXPECT_LE(DescriptorCount(daemon().pid()), descriptors + 2);
  const uint64_t after = ResidentBytes(daemon().pid());
  std::printf("resident %.1f MiB before, %.1f MiB after %u connections\n",
              static_cast<double>(resident) / 1_MiB, static_cast<double>(after) / 1_MiB, kRounds);
  EXPECT_LE(after, resident + kGrowthMax);
  const Json status = Status();
  EXPECT_EQ(status["clients"]["leases"], 0);
  EXPECT_EQ(status["clients"]["operations"], 1) << "the status itself";
}

}  // namespace
}  // namespace reprise::test
