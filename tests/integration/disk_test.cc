// A full disk and a disk that fails. Needs root; skipped without.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>

#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/small_disk.h"

namespace reprise::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DiskTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    disk_ = std::make_unique<SmallDisk>(directory(), data_dir());
    if (!disk_->EnterNamespace()) GTEST_SKIP() << "needs root and a mount namespace";
  }
  void TearDown() override {
    EndDaemon();
    disk_->Unmount();
    DaemonTest::TearDown();
  }
  SmallDisk& disk() { return *disk_; }

  static void ExpectNoWrongBytes(Client* client, const Chain& chain) {
    for (uint32_t i = 0; i < chain.size(); ++i) {
      const Outcome outcome = GetBlock(client, chain, i);  // Compares the bytes.
      EXPECT_TRUE(outcome == Outcome::kOk || outcome == Outcome::kIo ||
                  outcome == Outcome::kNotFound || outcome == Outcome::kCorrupt)
          << i << ": " << OutcomeName(outcome);
    }
  }
  // In some way, and soon: its last writes fail.
  void ExpectEnds() {
    EXPECT_TRUE(daemon().running()) << daemon().log();
    daemon().Signal(SIGTERM);
    const std::optional<int> exit_code = daemon().Wait();
    EXPECT_EQ(exit_code.value_or(-1), 0) << daemon().log();
  }

  const DaemonConfig failing_config_{.ssd_bytes = "64MiB"};

 private:
  std::unique_ptr<SmallDisk> disk_;
};

TEST_F(DiskTest, AFullDiskIsToldAtStartAndNothingIsLeftBehind) {
  if (!disk().Mount(64_MiB)) GTEST_SKIP() << "no loop devices";
  std::string error = StartRefused({.ssd_bytes = "100MiB"});
  EXPECT_THAT(error, HasSubstr("ssd.bytes = 100.0 MiB"));
  EXPECT_THAT(error, HasSubstr("has room for"));
  SmallDisk::FillUp(data_dir() + "/filler");
  error = StartRefused({.ssd_bytes = "16MiB"});
  EXPECT_THAT(error, HasSubstr("ssd.bytes"));
  fs::remove(data_dir() + "/filler");
  ASSERT_TRUE(Start({.ssd_bytes = "16MiB"}));
}

TEST_F(DiskTest, ADiskThatFillsUpLaterCostsNoBlock) {
  if (!disk().Mount(96_MiB)) GTEST_SKIP() << "no loop devices";
  const DaemonConfig config{.ssd_bytes = "32MiB"};
  const Chain before(NanoManifest(), 1, 100), after(NanoManifest(), 2, 300);
  ASSERT_TRUE(Start(config));
  ASSERT_TRUE(PutChain(Connect().get(), before, wire::Durability::kDurable));
  SmallDisk::FillUp(data_dir() + "/filler");
  // The shard's file was reserved at start; only meta/ has nowhere to write.
  ASSERT_TRUE(PutChain(Connect().get(), after, wire::Durability::kDurable));
  EXPECT_EQ(CountHeld(Connect().get(), before), 100u);
  Kill();
  fs::remove(data_dir() + "/filler");
  ASSERT_TRUE(Start(config));
  EXPECT_EQ(CountHeld(Connect().get(), before), 100u);
  EXPECT_EQ(CountHeld(Connect().get(), after), 300u);
}

TEST_F(DiskTest, FailingWritesAreTold) {
  if (!disk().MountFailing()) GTEST_SKIP() << "no tmpfs or no loop devices";
  const Chain good(NanoManifest(), 1, 100), bad(NanoManifest(), 2, 1000);
  ASSERT_TRUE(Start(failing_config_));
  ASSERT_TRUE(PutChain(Connect().get(), good, wire::Durability::kDurable));
  disk().FailWrites();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  const auto outcomes = PutBlocks(client.get(), bad, 0, bad.size(), wire::Durability::kDurable);
  uint32_t failed = 0;
  for (const Outcome outcome : outcomes) {
    failed += outcome != Outcome::kOk ? 1 : 0;
    EXPECT_TRUE(outcome == Outcome::kOk || outcome == Outcome::kIo || outcome == Outcome::kBusy)
        << OutcomeName(outcome);
  }
  EXPECT_GT(failed, 0u) << "no write failed: this test proves nothing";
  EXPECT_GT(Status()["tiers"]["ssd"]["write_errors"], 0);
  std::printf("%u of %u writes failed\n", failed, bad.size());
  ExpectNoWrongBytes(client.get(), good);
  ExpectNoWrongBytes(client.get(), bad);
  ExpectEnds();
}

// The image is cut off under the daemon: what lies beyond cannot be read.
TEST_F(DiskTest, FailingReadsAreNotHits) {
  if (!disk().MountFailing()) GTEST_SKIP() << "no tmpfs or no loop devices";
  const Chain chain(NanoManifest(), 1, 100);
  ASSERT_TRUE(Start(failing_config_));
  ASSERT_TRUE(PutChain(Connect().get(), chain, wire::Durability::kDurable));
  Stop();
  ASSERT_TRUE(Start(failing_config_));
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_EQ(GetBlock(client.get(), chain, 0), Outcome::kOk);
  fs::resize_file(disk().backing() + "/image", 1_MiB);
  ExpectNoWrongBytes(client.get(), chain);
  // The kernel fails such a read, or gives zeros: either is caught.
  const Json status = Status();
  const uint64_t errors = status["tiers"]["ssd"]["read_errors"];
  const uint64_t failed_checks = status["traffic"]["failed_checks"];
  std::printf("%llu reads failed, %llu checks\n", static_cast<unsigned long long>(errors),
              static_cast<unsigned long long>(failed_checks));
  EXPECT_GT(errors + failed_checks, 50u) << "no read failed: this test proves nothing";
  EXPECT_EQ(GetBlock(client.get(), chain, 0), Outcome::kOk) << "it is in DRAM";
  ExpectEnds();
}

}  // namespace
}  // namespace reprise::test
