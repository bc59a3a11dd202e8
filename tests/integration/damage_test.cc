// What is on disk and should not be, or should be and is not: never wrong bytes, and every block
// that the damage did not touch.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "protocol/base/prng.h"
#include "protocol/record/record.h"
#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/data_files.h"

namespace reprise::test {
namespace {

namespace fs = std::filesystem;

// Four regions of 36 records, of which the last stays open.
constexpr uint32_t kBlocks = 3 * 36 + 10;

class DamageTest : public DaemonTest {
 protected:
  // Leaves a stopped daemon's directory with every block of the chain on SSD.
  void Fill() {
    ASSERT_TRUE(Start(config_));
    ASSERT_TRUE(PutChain(Connect().get(), chain_, wire::Durability::kDurable));
  }
  ShardFile File() const {
    return ShardFile(data_dir() + "/shard-0.data", chain_.record_bytes(), 1_MiB);
  }
  ShardFile::Place PlaceOf(uint32_t block) const {
    return File().Find(chain_.keys()[block]).value();
  }
  uint64_t TailOf(uint32_t block) const {
    return PlaceOf(block).offset + chain_.record_bytes() - kRecordTailBytes;
  }
  void RemoveMeta() const { fs::remove_all(data_dir() + "/meta"); }
  uint64_t FailedChecks() { return Status()["traffic"]["failed_checks"]; }

  const DaemonConfig config_{.ssd_bytes = "12MiB", .http = "127.0.0.1:0"};
  const Chain chain_{NanoManifest(), 42, kBlocks};
};

// A bit of a sealed region's record flips: the start does not read it, the load finds it.
TEST_F(DamageTest, AFlippedBitInARecordIsAMissAndSaidSo) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  Stop();
  constexpr uint32_t kPayload = 7, kHeader = 20, kTokens = 50, kByVerify = 60;
  const ShardFile file = File();
  ASSERT_TRUE(file.IsSealed(PlaceOf(kPayload).region));
  file.FlipBit(PlaceOf(kPayload).offset + 12'345);
  file.FlipBit(TailOf(kHeader) + 120);
  file.FlipBit(TailOf(kTokens) + kRecordHeaderBytes + 8);
  file.FlipBit(PlaceOf(kByVerify).offset);
  ASSERT_TRUE(Start(config_));
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  uint64_t failed = 0;
  for (const uint32_t block : {kPayload, kHeader, kTokens}) {
    const Outcome outcome = GetBlock(client.get(), chain_, block);
    EXPECT_TRUE(outcome == Outcome::kCorrupt || outcome == Outcome::kNotFound)
        << block << ": " << OutcomeName(outcome);
    EXPECT_EQ(GetBlock(client.get(), chain_, block), Outcome::kNotFound) << "withdrawn";
    EXPECT_EQ(FailedChecks(), ++failed);
    EXPECT_NE(daemon().log().find(ToHex(chain_.keys()[block])), std::string::npos)
        << "the log names the block";
  }
  const uint32_t id = *client->OpenNamespace(chain_.manifest());
  const auto verified = client->Verify(id, {});
  ASSERT_TRUE(verified.ok()) << Message(verified.status());
  EXPECT_EQ(verified->failed, 1u);
  EXPECT_EQ(verified->failed_keys, std::vector<std::string>{ToHex(chain_.keys()[kByVerify])});
  EXPECT_EQ(verified->checked, kBlocks - 3);
  EXPECT_EQ(FailedChecks(), 4u);
  EXPECT_EQ(GetRun(client.get(), chain_), kPayload) << "the run ends before the damage";
  const auto why = client->Explain(id, chain_.tokens());
  ASSERT_TRUE(why.ok()) << Message(why.status());
  EXPECT_EQ(why->reason, "failed_check");
  EXPECT_EQ(why->block_index, kPayload);
  EXPECT_NE(
      HttpGet(daemon().http_port(), "/metrics").find("reprise_failed_checks_total{shard=\"0\"} 4"),
      std::string::npos);
  EXPECT_EQ(CountHeld(client.get(), chain_), kBlocks - 4);
  // What was withdrawn can be put again.
  ASSERT_TRUE(PutChain(client.get(), chain_, wire::Durability::kDurable));
  EXPECT_EQ(GetRun(client.get(), chain_), kBlocks);
}

// Region metadata: another of the copies says the same.
TEST_F(DamageTest, FlippedBitsInTrailersAndStatePagesCostNoBlock) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  Stop();
  uint64_t flip = 0;  // Another bit each time: flipped twice it would be right again.
  for (const bool without_meta : {false, true}) {
    for (const bool trailer : {true, false}) {
      SCOPED_TRACE(std::string(trailer ? "trailer" : "state page") +
                   (without_meta ? ", no meta" : ""));
      const uint64_t region = PlaceOf(trailer ? 40 : 5).region;
      const ShardFile file = File();
      file.FlipBit(trailer ? file.TrailerOffset(region) + 70 + flip
                           : file.StatePageOffset(region) + 42 + flip);
      ++flip;
      if (without_meta) RemoveMeta();
      ASSERT_TRUE(Start(config_));
      const Json recovery = Status()["recovery"];
      if (without_meta || !trailer) {
        EXPECT_GE(recovery["regions_scanned"], 1) << recovery;
      }
      EXPECT_EQ(CountHeld(Connect().get(), chain_), kBlocks);
      EXPECT_EQ(FailedChecks(), 0u);
      Stop();
    }
  }
}

// The open region's last record was being written when the machine died.
TEST_F(DamageTest, ATornRecordIsNotFoundAndTheOthersAre) {
  constexpr uint32_t kLast = kBlocks - 1;
  const uint64_t half = chain_.record_bytes() / 2;
  for (const bool tail_written : {true, false}) {
    fs::remove_all(data_dir());
    ASSERT_NO_FATAL_FAILURE(Fill());
    Kill();
    const ShardFile::Place place = PlaceOf(kLast);
    ASSERT_FALSE(File().IsSealed(place.region));
    File().Zero(place.offset + (tail_written ? 0 : half), half);
    ASSERT_TRUE(Start(config_));
    const Json recovery = Status()["recovery"];
    EXPECT_EQ(recovery["records_torn"], tail_written ? 1 : 0) << recovery;
    EXPECT_EQ(recovery["blocks"], kBlocks - 1);
    const auto client = Connect();
    EXPECT_EQ(GetBlock(client.get(), chain_, kLast), Outcome::kNotFound);
    EXPECT_EQ(CountHeld(client.get(), chain_), kBlocks - 1);
    EXPECT_EQ(client->Explain(*client->OpenNamespace(chain_.manifest()), chain_.tokens())->reason,
              "never_stored");
    Stop();
  }
}

TEST_F(DamageTest, AFlippedBitInAnOpenRegionIsTornToo) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  Kill();
  File().FlipBit(PlaceOf(kBlocks - 3).offset + 100);
  File().FlipBit(TailOf(kBlocks - 5) + 60);
  ASSERT_TRUE(Start(config_));
  EXPECT_EQ(Status()["recovery"]["records_torn"], 2);
  EXPECT_EQ(CountHeld(Connect().get(), chain_), kBlocks - 2);
  EXPECT_EQ(FailedChecks(), 0u) << "found at start, not at the load";
}

TEST_F(DamageTest, ATruncatedFileLosesOnlyWhatWasCutOff) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  Kill();
  const ShardFile file = File();
  const uint64_t cut = file.Find(chain_.keys()[100])->region;
  uint32_t before = 0;
  for (const BlockKey& key : chain_.keys()) before += file.Find(key)->region < cut ? 1 : 0;
  file.Truncate(cut * 1_MiB + 12'000);
  ASSERT_TRUE(Start(config_));
  EXPECT_EQ(CountHeld(Connect().get(), chain_), before);
  EXPECT_EQ(FailedChecks(), 0u);
  ASSERT_TRUE(PutChain(Connect().get(), chain_, wire::Durability::kDurable));
  EXPECT_EQ(GetRun(Connect().get(), chain_), kBlocks);
}

// ---- meta/ ------------------------------------------------------------------------------------

TEST_F(DamageTest, WithoutMetaEveryDurableBlockIsFound) {
  for (const bool killed : {false, true}) {
    fs::remove_all(data_dir());
    ASSERT_NO_FATAL_FAILURE(Fill());
    if (killed) {
      Kill();
    } else {
      Stop();
    }
    RemoveMeta();
    ASSERT_TRUE(Start(config_));
    EXPECT_NE(daemon().log().find("warning meta_rebuilt"), std::string::npos) << daemon().log();
    const Json recovery = Status()["recovery"];
    EXPECT_EQ(recovery["regions_from_index"], 0);
    EXPECT_EQ(recovery["blocks"], kBlocks);
    EXPECT_EQ(CountHeld(Connect().get(), chain_), kBlocks);
    Stop();
  }
}

TEST_F(DamageTest, WithAnOlderMetaEveryDurableBlockIsFound) {
  const Chain later(NanoManifest(), 43, 60);  // Fits beside the first: nothing is evicted.
  ASSERT_NO_FATAL_FAILURE(Fill());
  Stop();
  const std::string old = directory() + "/old-meta";
  fs::copy(data_dir() + "/meta", old, fs::copy_options::recursive);
  ASSERT_TRUE(Start(config_));
  ASSERT_TRUE(PutChain(Connect().get(), later, wire::Durability::kDurable));
  Kill();
  RemoveMeta();
  fs::copy(old, data_dir() + "/meta", fs::copy_options::recursive);
  ASSERT_TRUE(Start(config_));
  EXPECT_EQ(CountHeld(Connect().get(), chain_), kBlocks);
  EXPECT_EQ(CountHeld(Connect().get(), later), 60u);
}

// An old row must not name what a region holds now: the log went round in the meantime.
TEST_F(DamageTest, AMetaFromBeforeTheLogWentRoundGivesNoWrongBytes) {
  const DaemonConfig small{.ssd_bytes = "6MiB"};
  ASSERT_TRUE(Start(small));
  ASSERT_TRUE(PutChain(Connect().get(), chain_, wire::Durability::kDurable));
  Stop();
  const std::string old = directory() + "/old-meta";
  fs::copy(data_dir() + "/meta", old, fs::copy_options::recursive);
  ASSERT_TRUE(Start(small));
  const Chain later(NanoManifest(), 44, 300);
  ASSERT_TRUE(PutChain(Connect().get(), later, wire::Durability::kDurable));
  EXPECT_GT(Status()["tiers"]["ssd"]["evictions"], 100);
  Stop();
  RemoveMeta();
  fs::copy(old, data_dir() + "/meta", fs::copy_options::recursive);
  ASSERT_TRUE(Start(small));
  EXPECT_EQ(FailedChecks(), 0u);
  const auto client = Connect();
  const uint64_t held = CountHeld(client.get(), chain_) + CountHeld(client.get(), later);
  EXPECT_EQ(held, Status()["recovery"]["blocks"]);
  EXPECT_GE(held, 3 * 36u);
  EXPECT_EQ(FailedChecks(), 0u) << "an old row was believed";
}

TEST_F(DamageTest, ADamagedMetaIsSetAsideWithAWarning) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  Stop();
  Prng prng(5);
  for (const auto& file : fs::directory_iterator(data_dir() + "/meta")) {
    std::string garbage(fs::file_size(file.path()), '\0');
    for (char& c : garbage) c = static_cast<char>(prng.Next());
    WriteText(file.path().string(), garbage);
  }
  ASSERT_TRUE(Start(config_));
  EXPECT_NE(daemon().log().find("warning meta_rebuilt"), std::string::npos) << daemon().log();
  EXPECT_TRUE(fs::exists(data_dir() + "/meta.damaged"));
  EXPECT_EQ(CountHeld(Connect().get(), chain_), kBlocks);
  Stop();
  ASSERT_TRUE(Start(config_));
  EXPECT_EQ(daemon().log().find("meta_rebuilt"), std::string::npos) << "once";
  EXPECT_EQ(CountHeld(Connect().get(), chain_), kBlocks);
}

}  // namespace
}  // namespace reprise::test
