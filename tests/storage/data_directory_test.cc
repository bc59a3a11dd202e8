#include "storage/data_directory.h"

#include <unistd.h>

#include <fstream>
#include <set>

#include "gmock/gmock.h"
#include "storage/format_check.h"
#include "tests/storage/temp_directory.h"

namespace reprise::storage {
namespace {

using testing::HasSubstr;

class DataDirectoryTest : public testing::Test {
 protected:
  DataDirectory::Options options() const {
    return {.path = directory_ / "data",
            .shard_count = 2,
            .record_bytes = 114'688,
            .region_bytes = 64_MiB,
            .created_ms = 1'700'000'000'000};
  }
  std::string file(const std::string& name) const { return directory_ / ("data/" + name); }
  static void Touch(const std::string& path) { std::ofstream(path) << "x"; }
  void Flip(uint64_t offset) const {
    std::fstream f(file("superblock"), std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(f.get() ^ 1);
    f.seekp(static_cast<std::streamoff>(offset));
    f.put(byte);
  }
  void Put(uint64_t offset, Superblock superblock) const {
    superblock.crc = CrcOf(superblock);
    std::fstream f(file("superblock"), std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(static_cast<std::streamoff>(offset));
    f.write(reinterpret_cast<const char*>(&superblock), sizeof(superblock));
  }

  TempDirectory directory_;
};

TEST_F(DataDirectoryTest, FormatsOnceAndKeepsItsIdentity) {
  std::array<std::byte, 16> uuid{};
  for (int i = 0; i < 3; ++i) {
    const auto directory = DataDirectory::Open(options());
    ASSERT_TRUE(directory.ok()) << directory.status();
    EXPECT_EQ((*directory)->formatted(), i == 0);
    EXPECT_FALSE((*directory)->repaired());
    if (i == 0) uuid = (*directory)->uuid();
    EXPECT_EQ((*directory)->uuid(), uuid);
    EXPECT_EQ((*directory)->geometry().slots, 584u);
    EXPECT_EQ((*directory)->shard_path(1), file("shard-1.data"));
    EXPECT_EQ((*directory)->meta_path(), file("meta"));
  }
  EXPECT_EQ(uuid[6] & std::byte{0xf0}, std::byte{0x40}) << "version 4";
  EXPECT_EQ(uuid[8] & std::byte{0xc0}, std::byte{0x80}) << "RFC 9562 variant";
}

TEST_F(DataDirectoryTest, EachDirectoryHasItsOwnIdentity) {
  std::set<std::string> uuids;
  for (int i = 0; i < 8; ++i) {
    DataDirectory::Options o = options();
    o.path = directory_ / ("d" + std::to_string(i));
    uuids.insert((*DataDirectory::Open(o))->uuid_text());
  }
  EXPECT_EQ(uuids.size(), 8u);
}

TEST_F(DataDirectoryTest, MissingParentIsNamed) {
  DataDirectory::Options o = options();
  o.path = directory_ / "not/there";
  const auto status = DataDirectory::Open(o).status();
  EXPECT_THAT(Message(status), HasSubstr(directory_ / "not"));
  EXPECT_THAT(Message(status), HasSubstr("does not exist"));
}

TEST_F(DataDirectoryTest, AFileInItsPlaceIsNamed) {
  Touch(directory_ / "data");
  EXPECT_THAT(Message(DataDirectory::Open(options()).status()), HasSubstr("not a directory"));
}

TEST_F(DataDirectoryTest, SecondOwnerIsRefusedWithThePid) {
  auto first = DataDirectory::Open(options());
  ASSERT_TRUE(first.ok());
  const auto second = DataDirectory::Open(options());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(Message(second.status()), HasSubstr("in use by process " + std::to_string(getpid())));
  first->reset();
  EXPECT_TRUE(DataDirectory::Open(options()).ok());
}

TEST_F(DataDirectoryTest, DamagedCopyIsRepaired) {
  const std::string uuid = (*DataDirectory::Open(options()))->uuid_text();
  for (const uint64_t copy : {0u, 1u}) {
    for (uint64_t at = 0; at < sizeof(Superblock); at += 7) {
      Flip(copy * kPageBytes + at);
      {
        const auto directory = DataDirectory::Open(options());
        ASSERT_TRUE(directory.ok()) << copy << " " << at << directory.status();
        EXPECT_TRUE((*directory)->repaired()) << at;
        EXPECT_EQ((*directory)->uuid_text(), uuid);
      }
      EXPECT_FALSE((*DataDirectory::Open(options()))->repaired());
    }
  }
}

TEST_F(DataDirectoryTest, NewestValidCopyCounts) {
  Superblock superblock = (*DataDirectory::Open(options()))->superblock();
  superblock.sequence = 7;
  superblock.created_ms = 77;
  Put(kPageBytes, superblock);
  EXPECT_EQ((*DataDirectory::Open(options()))->superblock().created_ms, 77);
  superblock.sequence = 6;  // The first copy was brought up to 7 as well.
  Put(kPageBytes, superblock);
  EXPECT_EQ((*DataDirectory::Open(options()))->superblock().sequence, 7u);
}

TEST_F(DataDirectoryTest, NeverFormatsOverData) {
  (void)DataDirectory::Open(options());
  Flip(0);
  Flip(kPageBytes + 20);
  Touch(file("shard-0.data"));
  const auto status = DataDirectory::Open(options()).status();
  EXPECT_THAT(Message(status), HasSubstr("left alone"));
  EXPECT_THAT(Message(status), HasSubstr("magic"));
  std::filesystem::remove(file("superblock"));
  EXPECT_THAT(Message(DataDirectory::Open(options()).status()), HasSubstr("left alone"));
  std::filesystem::remove(file("shard-0.data"));
  const auto fresh = DataDirectory::Open(options());
  ASSERT_TRUE(fresh.ok());
  EXPECT_TRUE((*fresh)->formatted());
}

TEST_F(DataDirectoryTest, OtherVersionIsNamed) {
  Superblock superblock = (*DataDirectory::Open(options()))->superblock();
  superblock.version = 9;
  Put(0, superblock);
  Put(kPageBytes, superblock);
  EXPECT_THAT(Message(DataDirectory::Open(options()).status()), HasSubstr("format version 9"));
}

TEST_F(DataDirectoryTest, MismatchesSayFoundAndAsked) {
  (void)DataDirectory::Open(options());
  struct Case {
    void (*change)(DataDirectory::Options*);
    const char* found;
    const char* asked;
  };
  const Case cases[] = {
      {[](auto* o) { o->shard_count = 4; }, "shard count of 2", "asks for 4"},
      {[](auto* o) { o->record_bytes = 28'672; }, "records of 112.0 KiB", "28.0 KiB"},
      {[](auto* o) { o->region_bytes = 32_MiB; }, "regions of 64.0 MiB", "32.0 MiB"},
  };
  for (const Case& c : cases) {
    DataDirectory::Options o = options();
    c.change(&o);
    const auto status = DataDirectory::Open(o).status();
    EXPECT_THAT(Message(status), testing::AllOf(HasSubstr(c.found), HasSubstr(c.asked),
                                                HasSubstr("change the configuration back")));
  }
  for (const uint64_t region_bytes : {4096u, 1'000'000u}) {
    DataDirectory::Options o = options();
    o.region_bytes = region_bytes;
    EXPECT_FALSE(DataDirectory::Open(o).ok());
  }
}

}  // namespace
}  // namespace reprise::storage
