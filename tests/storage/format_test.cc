#include "storage/format.h"

#include <fstream>
#include <sstream>

#include "gtest/gtest.h"
#include "protocol/base/checksum.h"
#include "protocol/identity/block_hash.h"
#include "storage/format_check.h"
#include "storage/page_buffer.h"
#include "tests/storage/log_fixture.h"

// Frozen bytes of the structs on disk. When one of these fails, readers of older directories fail
// too: a change needs a new version, and a line in FORMAT.md, "History".
namespace reprise::storage {
namespace {

// As `hexdump -C` prints it, without the last line.
std::string Hexdump(ConstBytes bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 16) {
    char line[128];
    int n = std::snprintf(line, sizeof(line), "%08zx ", at);
    std::string ascii;
    for (size_t i = at; i < std::min(at + 16, bytes.size()); ++i) {
      const auto c = static_cast<unsigned char>(bytes[i]);
      n += std::snprintf(line + n, sizeof(line) - static_cast<size_t>(n), "%s%02x",
                         i == at + 8 ? "  " : " ", c);
      ascii.push_back(c >= 0x20 && c < 0x7f ? static_cast<char>(c) : '.');
    }
    text += std::string(line) + "  |" + ascii + "|\n";
  }
  return text;
}

void ExpectGolden(const std::string& name, ConstBytes bytes) {
  std::ifstream file(RP_SOURCE_DIR "/tests/golden/" + name);
  std::stringstream expected;
  expected << file.rdbuf();
  const std::string found = Hexdump(bytes);
  EXPECT_TRUE(expected.str() == found) << "tests/golden/" << name << " is\n"
                                       << expected.str() << "and the code writes\n"
                                       << found;
}

std::array<std::byte, 16> GoldenUuid() {
  std::array<std::byte, 16> uuid{};
  for (uint8_t i = 0; i < 16; ++i) uuid[i] = std::byte{static_cast<uint8_t>(0xa0 + i)};
  uuid[6] = std::byte{0x46};
  uuid[8] = std::byte{0x88};
  return uuid;
}

// Payload: 4,000 bytes 0, 1, 2, ... modulo 251. Tokens: 0 to 127. Namespace: 32 bytes of 0x4e.
// Block 0.
PageBuffer GoldenRecord() {
  PageBuffer record(kTestRecordBytes);
  for (uint32_t i = 0; i < kTestPayloadBytes; ++i) {
    record.bytes()[i] = std::byte{static_cast<uint8_t>(i % 251)};
  }
  std::array<TokenId, kBlockTokens> tokens{};
  for (uint32_t i = 0; i < kBlockTokens; ++i) tokens[i] = static_cast<TokenId>(i);
  RecordHeader header{.payload_bytes = kTestPayloadBytes,
                      .record_bytes = kTestRecordBytes,
                      .token_count = kBlockTokens,
                      .created_ms = 1'700'000'000'000};
  header.name_space.bytes.fill(std::byte{0x4e});
  header.parent_hash = header.name_space;
  header.block_hash = BlockHash(header.parent_hash, tokens);
  std::memcpy(record.data() + kTestRecordBytes - kRecordTokenBytes, tokens.data(),
              kRecordTokenBytes);
  SealRecord(record.bytes(), header);
  return record;
}

TEST(Format, GoldenSuperblock) {
  Superblock superblock{.sequence = 1,
                        .shard_count = 2,
                        .record_bytes = 114'688,
                        .region_bytes = 64_MiB,
                        .created_ms = 1'700'000'000'000};
  std::memcpy(superblock.uuid, GoldenUuid().data(), 16);
  superblock.crc = CrcOf(superblock);
  ExpectGolden("superblock.hex", AsBytes(superblock));
  EXPECT_EQ(Check(superblock), FormatCheck::kOk);
}

TEST(Format, GoldenStatePageAndEntry) {
  const TrailerEntry entry = EntryOf(LoadRecordHeader(GoldenRecord().bytes()));
  ExpectGolden("trailer_entry.hex", AsBytes(entry));
  RegionStatePage page{.shard = 1,
                       .region = 5,
                       .sequence = 42,
                       .state = RegionState::kSealed,
                       .entry_count = 1,
                       .entries_crc = Crc32c(AsBytes(entry))};
  std::memcpy(page.uuid, GoldenUuid().data(), 16);
  page.crc = CrcOf(page);
  ExpectGolden("state_page.hex", AsBytes(page));
  EXPECT_EQ(Check(page), FormatCheck::kOk);
}

TEST(Format, GoldenRecordTail) {
  const PageBuffer record = GoldenRecord();
  ExpectGolden("record_tail.hex", ConstBytes(record.bytes()).last(kRecordTailBytes));
  EXPECT_EQ(VerifyRecord(record.bytes(), KeyOf(LoadRecordHeader(record.bytes()).block_hash)),
            Outcome::kOk);
}

// What the log itself puts on a device: the page and the entry are at the places that FORMAT.md
// gives.
TEST(Format, RegionsAreCutAsWritten) {
  LogFixture f({.slots = 4, .region_count = 4});
  for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(f.Put(i, true), 0);
  ASSERT_TRUE(f.Settle());
  const RegionLog::Location location = f.index_.at(TestKey(2));
  const uint64_t region = uint64_t{location / 4} * f.geometry_.region_bytes;
  const ConstBytes view = f.device_->view();
  const auto page = LoadLe<RegionStatePage>(view.data() + region + f.geometry_.state_offset);
  EXPECT_EQ(Check(page), FormatCheck::kOk);
  EXPECT_EQ(page.state, RegionState::kSealed);
  EXPECT_EQ(page.entry_count, 4u);
  EXPECT_EQ(page.shard, 3u);
  const ConstBytes entries = view.subspan(region + f.geometry_.entries_offset, 4 * 64);
  EXPECT_EQ(page.entries_crc, Crc32c(entries));
  EXPECT_EQ(LoadLe<TrailerEntry>(entries.data() + (location % 4) * 64).key, TestKey(2));
  const ConstBytes record =
      view.subspan(region + (location % 4) * kTestRecordBytes, kTestRecordBytes);
  EXPECT_EQ(VerifyRecord(record, TestKey(2)), Outcome::kOk);
}

TEST(Format, CutRegionAlwaysFitsAndWastesLessThanARecord) {
  for (const uint32_t record_bytes : {4096u, 8192u, 28'672u, 114'688u, 1u << 20}) {
    for (uint64_t region_bytes = 4096; region_bytes <= 300 * 4096; region_bytes += 4096) {
      const RegionGeometry cut = CutRegion(record_bytes, region_bytes);
      if (cut.slots == 0) {
        EXPECT_LT(region_bytes, record_bytes + 2 * uint64_t{kPageBytes});
        continue;
      }
      EXPECT_LE(uint64_t{cut.slots} * record_bytes, cut.entries_offset);
      EXPECT_GE(cut.entries_bytes(), cut.slots * sizeof(TrailerEntry));
      EXPECT_EQ(cut.state_offset + kPageBytes, region_bytes);
      EXPECT_EQ(cut.entries_offset % kPageBytes, 0u);
      EXPECT_LT(cut.entries_offset - uint64_t{cut.slots} * record_bytes,
                record_bytes + uint64_t{kPageBytes});
    }
  }
}

TEST(Format, EveryFlippedBitOfAStructIsSeen) {
  Superblock superblock{.sequence = 3};
  superblock.crc = CrcOf(superblock);
  for (size_t bit = 0; bit < 8 * sizeof(superblock); ++bit) {
    Superblock flipped = superblock;
    reinterpret_cast<uint8_t*>(&flipped)[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    EXPECT_NE(Check(flipped), FormatCheck::kOk) << bit;
    EXPECT_NE(Check(flipped), FormatCheck::kWrongVersion) << bit;
  }
  EXPECT_EQ(Check(LoadLe<Superblock>(std::array<std::byte, 128>{}.data())), FormatCheck::kBlank);
}

}  // namespace
}  // namespace reprise::storage
