#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "protocol/base/bytes.h"
#include "protocol/base/checksum.h"
#include "protocol/base/clock.h"
#include "protocol/base/prng.h"
#include "protocol/base/sha256.h"
#include "protocol/base/slicing_crc32c.h"
#include "protocol/base/status.h"
#include "protocol/base/types.h"
#include "protocol/base/units.h"

namespace reprise {
namespace {

TEST(BytesTest, Arithmetic) {
  EXPECT_EQ(AlignUp(0, 4096), 0u);
  EXPECT_EQ(AlignUp(1, 4096), 4096u);
  EXPECT_EQ(AlignUp(4096, 4096), 4096u);
  EXPECT_EQ(AlignUp(4097, 4096), 8192u);
  EXPECT_EQ(DivideUp(0, 3), 0u);
  EXPECT_EQ(DivideUp(3, 3), 1u);
  EXPECT_EQ(DivideUp(4, 3), 2u);
  EXPECT_EQ(2_MiB, 2097152u);
}

TEST(BytesTest, Hex) {
  const std::array<std::byte, 3> bytes = {std::byte{0}, std::byte{0xab}, std::byte{0xff}};
  EXPECT_EQ(ToHex(bytes), "00abff");
  std::array<std::byte, 3> out{};
  EXPECT_TRUE(FromHex("00ABff", out));
  EXPECT_EQ(out, bytes);
  for (const char* bad : {"", "00abf", "00abff0", "00abfg", "0x00ab", " 0abff"}) {
    EXPECT_FALSE(FromHex(bad, out)) << bad;
  }
}

TEST(BytesTest, LoadAndStoreAnywhere) {
  std::array<std::byte, 9> bytes{};
  StoreLe<uint64_t>(&bytes[1], 0x0102030405060708);
  EXPECT_EQ(bytes[1], std::byte{8});
  EXPECT_EQ(LoadLe<uint64_t>(&bytes[1]), 0x0102030405060708u);
  EXPECT_EQ(LoadLe<uint32_t>(&bytes[3]), 0x03040506u);
}

TEST(ChecksumTest, Vectors) {
  EXPECT_EQ(Crc32c(AsBytes("123456789")), 0xE3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
  const std::vector<std::byte> zeros(32);
  EXPECT_EQ(Crc32c(zeros), 0x8A9136AAu);  // RFC 3720 B.4.
  const std::vector<std::byte> ones(32, std::byte{0xff});
  EXPECT_EQ(Crc32c(ones), 0x62A8AB43u);
}

TEST(ChecksumTest, ContinuesAtEveryCut) {
  std::string text(300, '\0');
  Prng prng(1);
  for (char& c : text) c = static_cast<char>(prng.Next());
  const ConstBytes bytes = AsBytes(text);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    EXPECT_EQ(Crc32c(bytes.subspan(cut), Crc32c(bytes.first(cut))), Crc32c(bytes)) << cut;
  }
}

TEST(ChecksumTest, CopiesAreSummed) {
  std::vector<std::byte> from(10'000), to(10'001);
  Prng prng(3);
  for (std::byte& byte : from) byte = static_cast<std::byte>(prng.Next());
  for (const size_t bytes : {0u, 1u, 4095u, 4096u, 4097u, 8192u, 10'000u}) {
    std::fill(to.begin(), to.end(), std::byte{0x55});
    const ConstBytes part = ConstBytes(from).first(bytes);
    EXPECT_EQ(CopyCrc32c(part, to, 7), Crc32c(part, 7)) << bytes;
    EXPECT_TRUE(std::equal(part.begin(), part.end(), to.begin())) << bytes;
    EXPECT_EQ(to[bytes], std::byte{0x55}) << bytes;
  }
}

// Which of the two computes a checksum is decided by time: they have to agree.
TEST(ChecksumTest, TablesGiveTheSame) {
  std::string text(5000, '\0');
  Prng prng(2);
  for (char& c : text) c = static_cast<char>(prng.Next());
  for (int i = 0; i < 1000; ++i) {
    const size_t begin = prng.Below(100);
    const ConstBytes bytes = AsBytes(text).subspan(begin, prng.Below(i < 500 ? 64 : 4900));
    const auto previous = static_cast<uint32_t>(prng.Next());
    EXPECT_EQ(~SlicingCrc32c(~previous, bytes), Crc32c(bytes, previous)) << i;
  }
  EXPECT_EQ(~SlicingCrc32c(~0u, AsBytes("123456789")), 0xE3069283u);
}

TEST(Sha256Test, Vectors) {
  EXPECT_EQ(ToHex(Sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const auto abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  EXPECT_EQ(ToHex(Sha256({AsBytes("abc")})), abc);
  EXPECT_EQ(ToHex(Sha256({AsBytes("a"), {}, AsBytes("bc")})), abc);
}

struct QuantityCase {
  const char* text;
  uint64_t value;
};

TEST(UnitsTest, Bytes) {
  const QuantityCase cases[] = {{"0B", 0},
                                {"4096B", 4096},
                                {"64GiB", 64_GiB},
                                {"1.5 MiB", 1572864},
                                {"500MB", 500'000'000},
                                {"2KB", 2000},
                                {"1TiB", 1024_GiB},
                                {"0.5KiB", 512},
                                {"1e3B", 1000}};
  for (const QuantityCase& c : cases) {
    const auto bytes = ParseBytes(c.text);
    ASSERT_TRUE(bytes.ok()) << c.text;
    EXPECT_EQ(*bytes, c.value) << c.text;
  }
  for (const char* bad : {"", "64", "GiB", "-1B", "1 gib", "1GiBs", "1 G", "0x10B", "nanB", "infB",
                          "1e30TiB", "B1", "1..5B", "9300000TiB"}) {
    const auto status = ParseBytes(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(Message(status), testing::HasSubstr("64GiB")) << "says what to write instead";
  }
}

TEST(UnitsTest, Durations) {
  const std::pair<const char*, Nanos> cases[] = {{"250ms", 250 * kMillisecond},
                                                 {"30s", 30 * kSecond},
                                                 {"10m", 600 * kSecond},
                                                 {"2h", 7200 * kSecond},
                                                 {"7d", 7 * 86400 * kSecond},
                                                 {"500us", 500 * kMicrosecond},
                                                 {"1ns", 1},
                                                 {"0s", 0},
                                                 {"1.5 s", 1500 * kMillisecond}};
  for (const auto& [text, value] : cases) EXPECT_EQ(ParseDuration(text).value(), value) << text;
  for (const char* bad : {"", "5", "5 seconds", "-1s", "1S", "s", "1000000d"}) {
    EXPECT_FALSE(ParseDuration(bad).ok()) << bad;
  }
}

TEST(UnitsTest, Formatting) {
  const std::pair<uint64_t, const char*> bytes[] = {
      {0, "0 B"},           {1023, "1023 B"},       {1024, "1.00 KiB"},
      {10'240, "10.0 KiB"}, {114'688, "112.0 KiB"}, {3_GiB / 2, "1.50 GiB"}};
  for (const auto& [value, text] : bytes) EXPECT_EQ(FormatBytes(value), text);
  const std::pair<Nanos, const char*> durations[] = {{0, "0 ns"},
                                                     {999, "999 ns"},
                                                     {1500, "1.5 us"},
                                                     {1'200'000, "1.20 ms"},
                                                     {3400 * kMillisecond, "3.40 s"},
                                                     {600 * kSecond, "10.0 m"},
                                                     {7200 * kSecond, "2.0 h"}};
  for (const auto& [value, text] : durations) EXPECT_EQ(FormatDuration(value), text);
}

TEST(ClockTest, ManualClockMovesOnlyWhenTold) {
  ManualClock clock;
  const Instant start = clock.Now();
  const int64_t wall = clock.WallMillis();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(1500 * kMillisecond);
  EXPECT_EQ(clock.Now() - start, 1500 * kMillisecond);
  EXPECT_EQ(clock.WallMillis() - wall, 1500);
  clock.JumpWall(-10'000);
  EXPECT_EQ(clock.WallMillis() - wall, -8500);
  EXPECT_EQ(clock.Now() - start, 1500 * kMillisecond) << "a jump of the wall clock moves no timer";
}

TEST(ClockTest, SystemClockNeverGoesBack) {
  const SystemClock clock;
  Instant last = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    const Instant now = clock.Now();
    EXPECT_GE(now, last);
    last = now;
  }
  EXPECT_GT(clock.WallMillis(), 1'600'000'000'000);
}

TEST(PrngTest, IsSplitmix64) {
  Prng prng(0);
  EXPECT_EQ(prng.Next(), 0xe220a8397b1dcdafu);
  EXPECT_EQ(prng.Next(), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(prng.Next(), 0x06c45d188009454fu);
}

TEST(PrngTest, Ranges) {
  Prng prng(2);
  std::set<uint64_t> seen;
  uint32_t hits = 0;
  for (int i = 0; i < 10'000; ++i) {
    seen.insert(prng.Below(7));
    const double unit = prng.Unit();
    EXPECT_TRUE(unit >= 0 && unit < 1);
    hits += prng.Chance(250) ? 1 : 0;
    EXPECT_FALSE(prng.Chance(0));
    EXPECT_TRUE(prng.Chance(1000));
  }
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(*seen.rbegin(), 6u);
  EXPECT_NEAR(hits, 2500, 200);
}

TEST(StatusTest, OutcomesHaveNames) {
  std::set<std::string_view> names;
  for (uint8_t i = 0; i < kOutcomeCount; ++i) names.insert(OutcomeName(static_cast<Outcome>(i)));
  EXPECT_EQ(names.size(), kOutcomeCount);
  EXPECT_EQ(OutcomeName(Outcome::kNotFound), "not_found");
  EXPECT_EQ(OutcomeName(static_cast<Outcome>(kOutcomeCount)), "unknown");
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgument("odd");
  return value / 2;
}
absl::StatusOr<int> Quarter(int value) {
  RP_ASSIGN(const int half, Half(value));
  RP_TRY(Half(half).status());
  return Half(half);
}

TEST(StatusTest, Macros) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Message(Quarter(7).status()), "odd");
  EXPECT_EQ(Message(Quarter(6).status()), "odd");
  const absl::Status status = ErrnoStatus(ENOENT, "open /x");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(status), "open /x: No such file or directory");
}

TEST(TypesTest, KeysOfHashes) {
  Hash256 hash;
  for (size_t i = 0; i < 32; ++i) hash.bytes[i] = static_cast<std::byte>(i);
  const BlockKey key = KeyOf(hash);
  EXPECT_EQ(key.low, 0x0706050403020100u);
  EXPECT_EQ(key.high, 0x0f0e0d0c0b0a0908u);
  EXPECT_EQ(ToHex(key), "000102030405060708090a0b0c0d0e0f");
  EXPECT_EQ(ShardOf(key, 1), 0u);
  EXPECT_EQ(ShardOf(key, 7), key.high % 7);
  EXPECT_STREQ(TierName(Tier::kShared), "shared");
  EXPECT_STREQ(TierName(static_cast<Tier>(99)), "unknown");
}

}  // namespace
}  // namespace reprise
