#include "storage/file_device.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "protocol/base/prng.h"
#include "storage/page_buffer.h"
#include "tests/storage/log_fixture.h"
#include "tests/storage/temp_directory.h"

namespace reprise::storage {
namespace {

using Kind = DeviceOp::Kind;

struct TestOp : DeviceOp {
  bool finished = false;
  TestOp() {
    done = [](Completion* self, int32_t) { static_cast<TestOp*>(self)->finished = true; };
  }
};

class FileDeviceTest : public testing::Test {
 protected:
  void Open(uint64_t size_bytes, bool direct = true) {
    device_.reset();
    auto device = FileDevice::Open({.path = path(), .size_bytes = size_bytes, .direct = direct});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    ring_ = std::make_unique<Ring>();
    ASSERT_TRUE(ring_->Open(16).ok());
    const int fds[] = {device_->fd()};
    ASSERT_TRUE(ring_->RegisterFiles(fds).ok());
    device_->Attach(ring_.get(), 0);
  }
  ~FileDeviceTest() override {
    ring_.reset();
    device_.reset();
  }

  int32_t Run(TestOp* op) {
    op->finished = false;
    device_->Submit(op);
    EXPECT_FALSE(op->finished) << "completed inside Submit";
    while (!op->finished) EXPECT_TRUE(ring_->RunOnce(kSecond).ok());
    return op->result;
  }
  int32_t Transfer(Kind kind, uint64_t offset, Bytes bytes) {
    TestOp op;
    op.kind = kind;
    op.offset = offset;
    op.bytes = bytes;
    return Run(&op);
  }
  int32_t Erase(uint64_t offset, uint64_t bytes) {
    TestOp op;
    op.kind = Kind::kErase;
    op.offset = offset;
    op.erase_bytes = bytes;
    return Run(&op);
  }
  std::string path() const { return directory_ / "device"; }

  TempDirectory directory_;
  std::unique_ptr<FileDevice> device_;
  std::unique_ptr<Ring> ring_;
};

PageBuffer Random(size_t bytes, uint64_t seed) {
  PageBuffer buffer(bytes);
  Prng prng(seed);
  for (size_t at = 0; at < bytes; at += 8) StoreLe(buffer.data() + at, prng.Next());
  return buffer;
}

TEST_F(FileDeviceTest, WritesReadsAndSyncs) {
  for (const bool direct : {true, false}) {
    Open(4_MiB, direct);
    if (!direct) {
      EXPECT_FALSE(device_->direct());
    }
    for (const size_t bytes : {4096, 8192, 28672, 114688, 1 << 20}) {
      const PageBuffer written = Random(bytes, bytes);
      PageBuffer read(bytes);
      EXPECT_EQ(Transfer(Kind::kWrite, 8192, written.bytes()), static_cast<int32_t>(bytes));
      EXPECT_EQ(Transfer(Kind::kSync, 0, {}), 0);
      EXPECT_EQ(Transfer(Kind::kRead, 8192, read.bytes()), static_cast<int32_t>(bytes));
      EXPECT_EQ(std::memcmp(written.data(), read.data(), bytes), 0);
    }
    EXPECT_EQ(device_->in_flight(), 0u);
  }
}

TEST_F(FileDeviceTest, ManyInFlight) {
  Open(8_MiB);
  constexpr size_t kOps = 200;  // More than the ring's entries.
  std::vector<PageBuffer> buffers;
  std::vector<TestOp> ops(kOps);
  for (size_t i = 0; i < kOps; ++i) {
    buffers.push_back(Random(8192, i));
    ops[i].kind = Kind::kWrite;
    ops[i].offset = i * 8192;
    ops[i].bytes = buffers[i].bytes();
    device_->Submit(&ops[i]);
  }
  while (device_->in_flight() > 0) ASSERT_TRUE(ring_->RunOnce(kSecond).ok());
  PageBuffer all(kOps * 8192);
  EXPECT_EQ(Transfer(Kind::kRead, 0, all.bytes()), static_cast<int32_t>(all.size()));
  for (size_t i = 0; i < kOps; ++i) {
    EXPECT_EQ(ops[i].result, 8192);
    EXPECT_EQ(std::memcmp(all.data() + i * 8192, buffers[i].data(), 8192), 0) << i;
  }
}

TEST_F(FileDeviceTest, EveryWayOfErasingZeroesExactlyTheRange) {
  for (const auto way : {FileDevice::EraseBy::kZeroRange, FileDevice::EraseBy::kPunchHole,
                         FileDevice::EraseBy::kWriteZeros}) {
    Open(8_MiB);
    device_->set_erase_by(way);
    for (const uint64_t bytes : {uint64_t{4096}, 1_MiB, 2_MiB + 4096, 3_MiB}) {
      const PageBuffer written = Random(8_MiB, bytes);
      PageBuffer read(8_MiB);
      ASSERT_EQ(Transfer(Kind::kWrite, 0, written.bytes()), static_cast<int32_t>(8_MiB));
      ASSERT_EQ(Erase(1_MiB + 4096, bytes), 0);
      ASSERT_EQ(Transfer(Kind::kRead, 0, read.bytes()), static_cast<int32_t>(8_MiB));
      PageBuffer expected = Random(8_MiB, bytes);
      std::memset(expected.data() + 1_MiB + 4096, 0, bytes);
      EXPECT_EQ(std::memcmp(read.data(), expected.data(), 8_MiB), 0) << bytes;
    }
    struct stat file {};
    ASSERT_EQ(stat(path().c_str(), &file), 0);
    EXPECT_EQ(file.st_size, static_cast<off_t>(8_MiB));
  }
}

TEST_F(FileDeviceTest, ReservesExtendsAndCuts) {
  for (const uint64_t bytes : {1_MiB, 4_MiB, 2_MiB}) {
    Open(bytes);
    struct stat file {};
    ASSERT_EQ(stat(path().c_str(), &file), 0);
    EXPECT_EQ(static_cast<uint64_t>(file.st_size), bytes);
    EXPECT_GE(static_cast<uint64_t>(file.st_blocks) * 512, bytes) << "space is not reserved";
  }
}

TEST_F(FileDeviceTest, FileCutUnderneathIsAnErrorNotALoop) {
  Open(1_MiB);
  PageBuffer buffer(64_KiB);
  for (const off_t left : {off_t{0}, off_t{100}, off_t{4096}, off_t{5000}}) {
    ASSERT_EQ(truncate(path().c_str(), left), 0);
    EXPECT_EQ(Transfer(Kind::kRead, 0, buffer.bytes()), -EIO) << left;
  }
}

TEST_F(FileDeviceTest, OpeningErrorsSayWhat) {
  const auto open = [&](const std::string& path, uint64_t bytes) {
    return Message(FileDevice::Open({.path = path, .size_bytes = bytes}).status());
  };
  EXPECT_THAT(open(path(), 5000), testing::HasSubstr("multiple of 4096"));
  EXPECT_THAT(open(path(), 0), testing::HasSubstr("multiple of 4096"));
  EXPECT_THAT(open(directory_ / "none/x", 4096), testing::HasSubstr("none/x"));
  EXPECT_NE(open(directory_.path(), 4096), "");
  // More than this disk has, and more than any. Nothing is reserved on the way.
  for (const uint64_t bytes : {uint64_t{1} << 46, uint64_t{1} << 55}) {
    const std::string full = open(path(), bytes);
    struct stat file {};
    EXPECT_TRUE(stat(path().c_str(), &file) != 0 || file.st_blocks == 0);
    EXPECT_THAT(full,
                testing::AllOf(testing::HasSubstr("cannot reserve"), testing::HasSubstr("free"),
                               testing::HasSubstr("smaller SSD size")));
  }
}

// The log over a real ring and file: fills, reclaims, restarts.
TEST_F(FileDeviceTest, CarriesARegionLog) {
  constexpr uint32_t kSlots = 8;
  constexpr uint32_t kRegions = 5;
  const RegionGeometry geometry = CutRegion(
      kTestRecordBytes, kSlots * kTestRecordBytes + AlignUp(kSlots * 64, kPageBytes) + kPageBytes);
  MemoryMetaStore meta;
  struct Listener : RegionLog::Listener {
    bool IsLive(const BlockKey& key, RegionLog::Location location) override {
      const auto at = index.find(key);
      return at != index.end() && at->second == location;
    }
    bool IsHot(const BlockKey& key) override { return key == TestKey(0); }
    void OnReclaimed(const BlockKey& key, RegionLog::Location) override { index.erase(key); }
    void OnMoved(const BlockKey& key, RegionLog::Location, RegionLog::Location to) override {
      index[key] = to;
    }
    std::map<BlockKey, RegionLog::Location> index;
  } listener;
  for (uint32_t life = 0; life < 2; ++life) {
    Open(geometry.region_bytes * kRegions);
    RegionLog log({.device = device_.get(),
                   .meta = &meta,
                   .listener = &listener,
                   .shard = 0,
                   .geometry = geometry,
                   .region_count = kRegions});
    listener.index.clear();
    const auto stats = log.Recover(
        {}, [&] { return ring_->RunOnce(kSecond).status(); },
        [&](const TrailerEntry& entry, RegionLog::Location at) { listener.index[entry.key] = at; });
    ASSERT_TRUE(stats.ok()) << stats.status();
    const auto turn = [&] {
      log.Poll();
      ASSERT_TRUE(ring_->RunOnce(kMillisecond).ok());
    };
    struct Append : RegionLog::AppendOp {
      bool finished = false;
    };
    const uint32_t first = life * 100;
    if (life == 1) {
      EXPECT_TRUE(listener.index.contains(TestKey(99)));
    }
    if (life == 1) {
      EXPECT_TRUE(listener.index.contains(TestKey(0)));
    }
    for (uint32_t i = first; i < first + 100; ++i) {
      const PageBuffer record = MakeTestRecord(i);
      Append op;
      op.RegionLog::AppendOp::record = record.bytes();
      op.entry = EntryOf(LoadRecordHeader(record.bytes()));
      op.durable = true;
      op.done = [](Completion* self, int32_t) { static_cast<Append*>(self)->finished = true; };
      log.Append(&op);
      while (!op.finished) turn();
      ASSERT_EQ(op.result, 0);
      listener.index[op.entry.key] = op.location;
    }
    while (!log.idle()) turn();
    EXPECT_TRUE(listener.index.contains(TestKey(first + 99)));
    EXPECT_GT(log.stats().reclaimed_regions, 5u);
  }
}

}  // namespace
}  // namespace reprise::storage
