#include "client/rdma_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <set>
#include <string>
#include <string_view>

#include "client/rdma_pacing.h"
#include "tests/protocol/fake_verbs.h"

namespace reprise {
namespace {

using testing::HasSubstr;

constexpr uint32_t kSlotBytes = 4096;
constexpr uint32_t kSlots = 4;
constexpr uint32_t kFirstKey = 7;  // The daemon's staging area begins with this byte.

// A client's link, and the daemon's end of it: an endpoint, a staging area and a socket. On one
// fabric that does all work as it is posted.
class RdmaLinkTest : public testing::Test {
 protected:
  RdmaLinkTest()
      : device_(*fabric_.Open((*fabric_.Ports())[0])),
        queue_(*device_->MakeCompletionQueue(rdma::Endpoint::CompletionsMax({}))),
        endpoint_(*rdma::Endpoint::Create(device_.get(), queue_.get(), {})) {
    fabric_.set_immediate(true);
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    client_socket_ = ends[0];
    daemon_socket_ = ends[1];
    daemon_staging_.assign(kSlots * kSlotBytes, std::byte{kFirstKey});
    staging_.assign(kSlots * kSlotBytes, std::byte{0});
    region_ = *device_->Register(daemon_staging_, rdma::Access::kPeerWrites);
  }
  ~RdmaLinkTest() override {
    close(client_socket_);
    CloseDaemonSocket();
  }
  void CloseDaemonSocket() {
    if (daemon_socket_ >= 0) close(daemon_socket_);
    daemon_socket_ = -1;
  }

  absl::StatusOr<std::unique_ptr<RdmaLink>> Create() {
    return RdmaLink::Create(&fabric_, {.daemon = Daemon()});
  }
  // Every test has a daemon of its own: pauses after failures are the process's.
  static std::string Daemon() {
    return testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  std::unique_ptr<RdmaLink> Connected() {
    auto link = *Create();
    EXPECT_TRUE(endpoint_->Connect(link->address()).ok());
    EXPECT_TRUE(link->Connect(endpoint_->address(), client_socket_, staging_, kSlotBytes,
                              reinterpret_cast<uint64_t>(daemon_staging_.data()),
                              region_->remote_key())
                    .ok());
    return link;
  }
  std::unique_ptr<RdmaLink> Proven() {
    auto link = Connected();
    EXPECT_TRUE(link->Prove(Soon()).ok());
    return link;
  }

  void PollDaemon() {
    std::array<rdma::Completed, 32> completed;
    const size_t count = *queue_->Poll(completed);
    for (size_t i = 0; i < count; ++i) endpoint_->OnCompleted(completed[i]);
  }
  void DaemonSends(std::string_view text) {
    ASSERT_EQ(endpoint_->Send(AsBytes(text)), text.size());
    endpoint_->Flush();
  }
  // What the daemon is told comes behind the window that it is told of.
  static bool Ask(RdmaLink* link) {
    std::string text = "get";
    iovec part = {text.data(), text.size()};
    return link->Send({&part, 1}, Soon()).ok();
  }
  // A slot of `byte`, `offset` bytes into the landing; then polls for what became of it.
  void DaemonWrites(const wire::Landing& landing, uint64_t offset, std::byte byte, uint32_t tag) {
    std::vector<std::byte> slot(kSlotBytes, byte);
    const auto local = *device_->Register(slot, rdma::Access::kReadHere);
    PollDaemon();
    ASSERT_TRUE(endpoint_->Write({.data = slot,
                                  .address = landing.address + offset,
                                  .key = landing.key,
                                  .told = true,
                                  .tag = tag},
                                 local->local_key()));
    endpoint_->Flush();
    PollDaemon();
  }
  std::string DaemonReceives() {
    PollDaemon();
    std::string text(endpoint_->readable(), '\0');
    endpoint_->Receive({reinterpret_cast<std::byte*>(text.data()), text.size()});
    endpoint_->Flush();
    return text;
  }

  static Instant Soon() { return SystemClock().Now() + 5 * kSecond; }
  static Instant AtOnce() { return SystemClock().Now() + 10 * kMillisecond; }

  rdma::test::FakeFabric fabric_;
  std::unique_ptr<rdma::Device> device_;
  std::unique_ptr<rdma::CompletionQueue> queue_;
  std::vector<std::byte> daemon_staging_, staging_;
  std::unique_ptr<rdma::Memory> region_;
  std::unique_ptr<rdma::Endpoint> endpoint_;
  int client_socket_ = -1, daemon_socket_ = -1;
};

TEST_F(RdmaLinkTest, TheProofIsAWriteOfTheFirstSlot) {
  staging_[0] = std::byte{42};
  const auto link = Proven();
  EXPECT_EQ(daemon_staging_[0], std::byte{42});
  EXPECT_EQ(daemon_staging_[kSlotBytes], std::byte{kFirstKey});
}

TEST_F(RdmaLinkTest, BytesGoBothWaysAndSlotsLandBeforeWhatFollowsThem) {
  const auto link = Proven();
  staging_[3 * kSlotBytes] = std::byte{9};
  const uint32_t slot = 3;
  ASSERT_TRUE(link->WriteSlots({&slot, 1}, Soon()).ok());
  std::string first = "take ", second = "slot 3";
  std::array<iovec, 2> parts = {iovec{first.data(), first.size()},
                                iovec{second.data(), second.size()}};
  ASSERT_TRUE(link->Send(parts, Soon()).ok());
  EXPECT_EQ(DaemonReceives(), "take slot 3");
  EXPECT_EQ(daemon_staging_[3 * kSlotBytes], std::byte{9});

  DaemonSends("taken");
  std::array<std::byte, 16> reply;
  const auto received = link->Receive(reply, 5, Soon());
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(std::memcmp(reply.data(), "taken", 5), 0);
}

TEST_F(RdmaLinkTest, ALandingIsRegisteredOnceAndForgotten) {
  const auto link = Proven();
  const uint32_t before = fabric_.regions();
  std::vector<std::byte> memory(2 * kSlotBytes);
  ASSERT_TRUE(link->Register(memory).ok());
  ASSERT_TRUE(link->Register(memory).ok());
  const auto landing = link->OpenLanding(memory, memory, Soon());
  ASSERT_TRUE(landing.ok());
  EXPECT_EQ(fabric_.regions(), before + 1);
  ASSERT_TRUE(Ask(link.get()));

  DaemonWrites(*landing, kSlotBytes, std::byte{5}, 77);
  DaemonSends("done");
  std::array<std::byte, 4> reply;
  ASSERT_TRUE(link->Receive(reply, 4, Soon()).ok());
  EXPECT_FALSE(link->Landed(76));
  EXPECT_EQ(memory[kSlotBytes], std::byte{5});
  ASSERT_TRUE(link->CloseLanding(Soon()).ok());
  link->Forget(memory);
  EXPECT_EQ(fabric_.regions(), before);
}

TEST_F(RdmaLinkTest, AKeyEndsWithItsRequest) {
  const auto link = Proven();
  std::vector<std::byte> memory(4 * kSlotBytes, std::byte{1});
  const Bytes part = Bytes(memory).subspan(kSlotBytes, kSlotBytes);
  std::array<std::byte, 4> reply;
  std::set<uint32_t> keys;
  for (int i = 0; i < 20; ++i) {
    const auto landing = link->OpenLanding(memory, part, Soon());
    ASSERT_TRUE(landing.ok());
    EXPECT_TRUE(keys.insert(landing->key).second);
    EXPECT_EQ(landing->address, reinterpret_cast<uint64_t>(part.data()));
    EXPECT_EQ(landing->bytes, part.size());
    ASSERT_TRUE(Ask(link.get()));
    DaemonWrites(*landing, 0, std::byte{2}, 1);
    DaemonSends("done");
    ASSERT_TRUE(link->Receive(reply, 4, Soon()).ok());
    ASSERT_TRUE(link->CloseLanding(Soon()).ok());
    EXPECT_EQ(fabric_.open_windows(), 0u);
  }
  // The same again, too late: the memory is still registered, and does not change.
  const wire::Landing landing = *link->OpenLanding(memory, part, Soon());
  ASSERT_TRUE(Ask(link.get()));
  ASSERT_TRUE(link->CloseLanding(Soon()).ok());
  DaemonWrites(landing, 0, std::byte{3}, 2);
  EXPECT_EQ(part[0], std::byte{2});
  EXPECT_EQ(endpoint_->error(), rdma::WorkError::kPeerRefused);
}

TEST_F(RdmaLinkTest, AKeyShowsNoMoreThanItsPart) {
  const auto link = Proven();
  std::vector<std::byte> memory(4 * kSlotBytes, std::byte{1});
  wire::Landing landing =
      *link->OpenLanding(memory, Bytes(memory).subspan(kSlotBytes, kSlotBytes), Soon());
  ASSERT_TRUE(Ask(link.get()));
  DaemonWrites(landing, kSlotBytes, std::byte{2}, 1);
  EXPECT_EQ(memory[2 * kSlotBytes], std::byte{1});
  EXPECT_EQ(endpoint_->error(), rdma::WorkError::kPeerRefused);
}

TEST_F(RdmaLinkTest, WithoutWindowsTheKeyIsTheRegistrations) {
  fabric_.set_windows(false);
  const auto link = Proven();
  EXPECT_EQ(fabric_.windows(), 0u);
  std::vector<std::byte> memory(2 * kSlotBytes);
  const wire::Landing first = *link->OpenLanding(memory, memory, Soon());
  ASSERT_TRUE(link->CloseLanding(Soon()).ok());
  const Bytes part = Bytes(memory).subspan(kSlotBytes);
  const wire::Landing second = *link->OpenLanding(memory, part, Soon());
  EXPECT_EQ(first.key, second.key);
  EXPECT_EQ(second.address, first.address + kSlotBytes);
  EXPECT_EQ(second.bytes, kSlotBytes);
  DaemonWrites(second, 0, std::byte{4}, 1);
  EXPECT_EQ(part[0], std::byte{4});
  ASSERT_TRUE(link->CloseLanding(Soon()).ok());
}

// A request that is given up ends with its link.
TEST_F(RdmaLinkTest, AnOpenLandingEndsWithTheLink) {
  const uint32_t before = fabric_.regions();
  auto link = Proven();
  std::vector<std::byte> memory(kSlotBytes);
  ASSERT_TRUE(link->OpenLanding(memory, memory, Soon()).ok());
  ASSERT_TRUE(Ask(link.get()));
  EXPECT_EQ(fabric_.open_windows(), 1u);
  link.reset();
  EXPECT_EQ(fabric_.open_windows() + fabric_.windows(), 0u);
  EXPECT_LE(fabric_.regions(), before);
}

TEST_F(RdmaLinkTest, SilenceEndsByTheDeadline) {
  const auto link = Proven();
  std::array<std::byte, 4> reply;
  const absl::Status status = link->Receive(reply, 4, AtOnce()).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
}

TEST_F(RdmaLinkTest, AClosedSocketIsTheEnd) {
  const auto link = Proven();
  DaemonSends("last");  // A last word before the end is still read.
  CloseDaemonSocket();
  std::array<std::byte, 8> reply;
  EXPECT_TRUE(link->Receive(reply, 4, Soon()).ok());
  const absl::Status status = link->Receive(reply, 4, Soon()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the daemon closed the connection"));
}

TEST_F(RdmaLinkTest, BytesOnTheSocketAreTheEndToo) {
  const auto link = Proven();
  ASSERT_EQ(send(daemon_socket_, "x", 1, 0), 1);
  std::array<std::byte, 8> reply;
  EXPECT_THAT(std::string(link->Receive(reply, 4, Soon()).status().message()),
              HasSubstr("sent bytes on the socket"));
}

TEST_F(RdmaLinkTest, AWrongKeyFailsTheProofAndTheNextTryWaits) {
  auto link = *Create();
  ASSERT_TRUE(endpoint_->Connect(link->address()).ok());
  ASSERT_TRUE(link->Connect(endpoint_->address(), client_socket_, staging_, kSlotBytes,
                            reinterpret_cast<uint64_t>(daemon_staging_.data()),
                            region_->remote_key() + 1)
                  .ok());
  EXPECT_TRUE(absl::IsUnavailable(link->Prove(Soon())));
  EXPECT_EQ(daemon_staging_[0], std::byte{kFirstKey});
  link.reset();
  const auto again = Create();
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("failed a moment ago"));
  EXPECT_TRUE(RdmaPacing::Global().Allowed(Daemon(), SystemClock().Now() + 2 * kSecond));
}

TEST_F(RdmaLinkTest, AFailedWriteIsFinal) {
  const auto link = Proven();
  fabric_.set_link(false);
  const uint32_t slot = 1;
  absl::Status status = link->WriteSlots({&slot, 1}, Soon());
  if (status.ok()) {
    std::array<std::byte, 4> reply;
    status = link->Receive(reply, 4, Soon()).status();
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  fabric_.set_link(true);
  EXPECT_FALSE(link->WriteSlots({&slot, 1}, Soon()).ok());
}

TEST_F(RdmaLinkTest, OffAndUnknownDevicesSayWhy) {
  EXPECT_THAT(std::string(RdmaLink::Create(&fabric_, {.wish = {.off = true}, .daemon = Daemon()})
                              .status()
                              .message()),
              HasSubstr("off"));
  EXPECT_THAT(
      std::string(RdmaLink::Create(&fabric_, {.wish = {.device = "none9"}, .daemon = Daemon()})
                      .status()
                      .message()),
      HasSubstr("none9"));
}

TEST_F(RdmaLinkTest, NothingIsLeftBehind) {
  const uint32_t regions = fabric_.regions(), pairs = fabric_.queue_pairs();
  for (uint32_t fault = 0; fault < 9; ++fault) {
    fabric_.FailCall(fault);
    auto link = Create();
    if (link.ok()) {
      (void)(*link)->Connect(endpoint_->address(), client_socket_, staging_, kSlotBytes, 0, 0);
    }
    fabric_.FailCall(0);
    link = absl::CancelledError();
    EXPECT_EQ(fabric_.regions(), regions);
    EXPECT_EQ(fabric_.queue_pairs(), pairs);
    EXPECT_EQ(fabric_.windows(), 0u);
  }
}

}  // namespace
}  // namespace reprise
