// A full disk and a disk that fails, on a small file system of the test's own: a loop device over
// an image, mounted in a mount namespace that ends with the test. Needs root; skipped without.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>

#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"

namespace reprise::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DiskTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    // Mounts are seen by this process and its children only, and go with the last of them.
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      GTEST_SKIP() << "needs root and a mount namespace";
    }
    fs::create_directories(data_dir());
  }
  void TearDown() override {
    EndDaemon();
    (void)umount2(data_dir().c_str(), MNT_DETACH);
    (void)umount2(Backing().c_str(), MNT_DETACH);
    DaemonTest::TearDown();
  }

  std::string Backing() const { return directory() + "/backing"; }

  // An ext4 of `bytes` over the image at `image`, on data_dir(). False where that cannot be done.
  [[nodiscard]] bool MountImage(const std::string& image, uint64_t bytes) {
    WriteText(image, "");
    fs::resize_file(image, bytes);
    const auto run = [this](std::vector<std::string> arguments) {
      return RunProgram(std::move(arguments), directory() + "/mount").exit_code == 0;
    };
    return run({"/usr/sbin/mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0", image}) &&
           run({"/usr/bin/mount", "-o", "loop,errors=continue", image, data_dir()});
  }

  // An ext4 of 96 MiB over an image on a tmpfs that has room for 40.
  [[nodiscard]] bool MountSmall() {
    fs::create_directories(Backing());
    return mount("none", Backing().c_str(), "tmpfs", 0, "size=40m") == 0 &&
           MountImage(Backing() + "/image", 96_MiB);
  }

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

  // Takes what is left of the file system.
  void FillUp(const std::string& path) const {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    const std::string piece(64 * 1024, 'f');
    for (size_t bytes = piece.size(); bytes >= 512; bytes /= 2) {
      while (write(fd, piece.data(), bytes) == static_cast<ssize_t>(bytes)) {
      }
    }
    (void)fsync(fd);
    close(fd);
  }
};

TEST_F(DiskTest, AFullDiskIsToldAtStartAndNothingIsLeftBehind) {
  if (!MountImage(directory() + "/image", 64_MiB)) GTEST_SKIP() << "no loop devices";
  std::string error = StartRefused({.ssd_bytes = "100MiB"});
  EXPECT_THAT(error, HasSubstr("ssd.bytes = 100.0 MiB"));
  EXPECT_THAT(error, HasSubstr("has room for"));
  FillUp(data_dir() + "/filler");
  error = StartRefused({.ssd_bytes = "16MiB"});
  EXPECT_THAT(error, HasSubstr("ssd.bytes"));
  fs::remove(data_dir() + "/filler");
  ASSERT_TRUE(Start({.ssd_bytes = "16MiB"}));
}

TEST_F(DiskTest, ADiskThatFillsUpLaterCostsNoBlock) {
  if (!MountImage(directory() + "/image", 96_MiB)) GTEST_SKIP() << "no loop devices";
  const DaemonConfig config{.ssd_bytes = "32MiB"};
  const Chain before(NanoManifest(), 1, 100), after(NanoManifest(), 2, 300);
  ASSERT_TRUE(Start(config));
  ASSERT_TRUE(PutChain(Connect().get(), before, wire::Durability::kDurable));
  FillUp(data_dir() + "/filler");
  // The shard's file was reserved at start; only meta/ has nowhere to write.
  ASSERT_TRUE(PutChain(Connect().get(), after, wire::Durability::kDurable));
  EXPECT_EQ(CountHeld(Connect().get(), before), 100u);
  Kill();
  fs::remove(data_dir() + "/filler");
  ASSERT_TRUE(Start(config));
  EXPECT_EQ(CountHeld(Connect().get(), before), 100u);
  EXPECT_EQ(CountHeld(Connect().get(), after), 300u);
}

// The image lies on a tmpfs without room: the loop device fails writes with EIO, as a dying disk
// does.
TEST_F(DiskTest, FailingWritesAreTold) {
  if (!MountSmall()) GTEST_SKIP() << "no tmpfs or no loop devices";
  const Chain good(NanoManifest(), 1, 100), bad(NanoManifest(), 2, 1000);
  ASSERT_TRUE(Start(failing_config_));
  ASSERT_TRUE(PutChain(Connect().get(), good, wire::Durability::kDurable));
  FillUp(Backing() + "/filler");
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
  if (!MountSmall()) GTEST_SKIP() << "no tmpfs or no loop devices";
  const Chain chain(NanoManifest(), 1, 100);
  ASSERT_TRUE(Start(failing_config_));
  ASSERT_TRUE(PutChain(Connect().get(), chain, wire::Durability::kDurable));
  Stop();
  ASSERT_TRUE(Start(failing_config_));
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_EQ(GetBlock(client.get(), chain, 0), Outcome::kOk);
  fs::resize_file(Backing() + "/image", 1_MiB);
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
