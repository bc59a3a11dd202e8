#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "protocol/base/check.h"
#include "protocol/base/prng.h"
#include "protocol/identity/block_hash.h"
#include "protocol/record/record.h"
#include "storage/format_check.h"
#include "storage/memory_meta_store.h"
#include "storage/page_buffer.h"
#include "storage/region_log.h"
#include "tests/sim/sim_device.h"

namespace reprise::storage {

inline constexpr uint32_t kTestPayloadBytes = 4'000;
inline constexpr uint32_t kTestRecordBytes = RecordBytesFor(kTestPayloadBytes);
static_assert(kTestRecordBytes == 8'192);

// A whole record that `number` determines.
inline PageBuffer MakeTestRecord(uint32_t number) {
  PageBuffer record(kTestRecordBytes);
  Prng prng(number);
  for (uint32_t at = 0; at < kTestPayloadBytes; at += 8) StoreLe(record.data() + at, prng.Next());
  RecordHeader header{.block_index = 0,
                      .payload_bytes = kTestPayloadBytes,
                      .record_bytes = kTestRecordBytes,
                      .token_count = kBlockTokens,
                      .created_ms = 1'700'000'000'000};
  header.name_space.bytes.fill(std::byte{0x4e});
  header.parent_hash = header.name_space;
  std::vector<TokenId> tokens(kBlockTokens);
  for (uint32_t i = 0; i < kBlockTokens; ++i) tokens[i] = static_cast<TokenId>(number * 1'000 + i);
  header.block_hash = BlockHash(header.parent_hash, tokens);
  std::memcpy(record.data() + kTestRecordBytes - kRecordTokenBytes, tokens.data(),
              kRecordTokenBytes);
  SealRecord(record.bytes(), header);
  return record;
}

inline BlockKey TestKey(uint32_t number) {
  return KeyOf(LoadRecordHeader(MakeTestRecord(number).bytes()).block_hash);
}

// A log on a simulated disk, with an index of one place per key.
class LogFixture : public RegionLog::Listener {
 public:
  struct Setup {
    uint32_t slots = 8;
    uint32_t region_count = 4;
    uint64_t seed = 1;
    std::string eviction = "fifo";
    uint32_t reinsert_percent_max = 25;
    sim::SimDevice::Options faults = {};
  };

  struct Append : RegionLog::AppendOp {
    PageBuffer buffer;
    uint32_t number = 0;
    bool finished = false;
    LogFixture* fixture = nullptr;
  };

  explicit LogFixture(const Setup& setup) : setup_(setup) {
    const uint64_t region_bytes = uint64_t{setup.slots} * kTestRecordBytes +
                                  AlignUp(setup.slots * sizeof(TrailerEntry), kPageBytes) +
                                  kPageBytes;
    geometry_ = CutRegion(kTestRecordBytes, region_bytes);
    RP_CHECK(geometry_.slots == setup.slots);
    sim::SimDevice::Options options = setup.faults;
    options.size_bytes = region_bytes * setup.region_count;
    device_ = std::make_unique<sim::SimDevice>(options, setup.seed);
    uuid_.fill(std::byte{0x11});
    meta_ = std::make_unique<MemoryMetaStore>();
    NewLog();
  }

  RegionLog::Options options() {
    return {.device = device_.get(),
            .meta = meta_.get(),
            .listener = this,
            .uuid = uuid_,
            .shard = 3,
            .geometry = geometry_,
            .region_count = setup_.region_count,
            .eviction = setup_.eviction,
            .reinsert_percent_max = setup_.reinsert_percent_max};
  }

  void NewLog() {
    device_->Kill();
    log_ = std::make_unique<RegionLog>(options());
    index_.clear();
    found_.clear();
  }

  std::vector<RegionRow> Rows() { return *meta_->LoadRegions(3); }

  // What a restart does: a new log on the same device.
  absl::StatusOr<RegionLog::RecoveryStats> Restart() {
    NewLog();
    return log_->Recover(
        Rows(),
        [this] {
          device_->Tick();
          return absl::OkStatus();
        },
        [this](const TrailerEntry& entry, RegionLog::Location location) {
          index_[entry.key] = location;
          found_.push_back(entry.key);
        });
  }
  // Power off, then a restart. Operations in flight are forgotten.
  absl::StatusOr<RegionLog::RecoveryStats> CrashAndRestart() {
    device_->Crash();
    return Restart();
  }

  void Turn() {
    log_->Poll();
    device_->Tick();
  }
  // False when it did not come to rest.
  bool Settle(uint32_t turns_max = 100'000) {
    for (uint32_t i = 0; i < turns_max; ++i) {
      Turn();
      if (log_->idle() && device_->in_flight() == 0) return true;
    }
    return false;
  }

  Append* Start(uint32_t number, bool durable) {
    appends_.push_back(std::make_unique<Append>());
    Append* op = appends_.back().get();
    op->buffer = MakeTestRecord(number);
    op->number = number;
    op->fixture = this;
    op->record = op->buffer.bytes();
    op->entry = EntryOf(LoadRecordHeader(op->record));
    op->durable = durable;
    op->done = [](Completion* self, int32_t result) {
      auto* done = static_cast<Append*>(self);
      RP_CHECK(!done->finished);
      done->finished = true;
      RP_CHECK((result == 0) == (done->location != RegionLog::kNoLocation));
      if (result == 0) done->fixture->index_[done->entry.key] = done->location;
    };
    log_->Append(op);
    return op;
  }

  int32_t Put(uint32_t number, bool durable = false) {
    Append* op = Start(number, durable);
    for (uint32_t i = 0; i < 100'000 && !op->finished; ++i) Turn();
    RP_CHECK(op->finished);
    return op->result;
  }

  // Reads the block at the indexed place: kNotFound, or what the check of the bytes says.
  Outcome Load(uint32_t number) {
    const BlockKey key = TestKey(number);
    const auto at = index_.find(key);
    if (at == index_.end()) return Outcome::kNotFound;
    struct Read : RegionLog::ReadOp {
      bool finished = false;
    } op;
    PageBuffer buffer(kTestRecordBytes);
    op.location = at->second;
    op.RegionLog::ReadOp::record = buffer.bytes();
    op.done = [](Completion* self, int32_t) { static_cast<Read*>(self)->finished = true; };
    log_->Read(&op);
    for (uint32_t i = 0; i < 100'000 && !op.finished; ++i) Turn();
    RP_CHECK(op.finished);
    if (op.result < 0) return Outcome::kIo;
    const Outcome outcome = VerifyRecord(buffer.bytes(), key);
    if (outcome != Outcome::kOk) return outcome;
    const PageBuffer expected = MakeTestRecord(number);
    RP_CHECK(std::memcmp(buffer.data(), expected.data(), kTestRecordBytes) ==
             0);  // Never wrong bytes.
    return Outcome::kOk;
  }

  int32_t Remove(uint32_t number) {
    struct Erase : RegionLog::EraseOp {
      bool finished = false;
    } op;
    op.location = index_.at(TestKey(number));
    index_.erase(TestKey(number));
    op.done = [](Completion* self, int32_t) { static_cast<Erase*>(self)->finished = true; };
    log_->Erase(&op);
    for (uint32_t i = 0; i < 100'000 && !op.finished; ++i) Turn();
    RP_CHECK(op.finished);
    return op.result;
  }

  // RegionLog::Listener
  bool IsLive(const BlockKey& key, RegionLog::Location location) override {
    const auto at = index_.find(key);
    return at != index_.end() && at->second == location;
  }
  bool IsHot(const BlockKey& key) override { return hot_.contains(key); }
  void OnReclaimed(const BlockKey& key, RegionLog::Location location) override {
    RP_CHECK(IsLive(key, location));
    index_.erase(key);
    ++reclaimed_;
  }
  void OnMoved(const BlockKey& key, RegionLog::Location from, RegionLog::Location to) override {
    RP_CHECK(IsLive(key, from) && from != to);
    index_[key] = to;
    ++moved_;
  }

  Setup setup_;
  RegionGeometry geometry_;
  std::array<std::byte, 16> uuid_{};
  std::unique_ptr<sim::SimDevice> device_;
  std::unique_ptr<MemoryMetaStore> meta_;
  std::vector<std::unique_ptr<Append>> appends_;
  std::unique_ptr<RegionLog> log_;
  std::map<BlockKey, RegionLog::Location> index_;
  std::map<BlockKey, bool> hot_;
  std::vector<BlockKey> found_;
  uint32_t reclaimed_ = 0;
  uint32_t moved_ = 0;
};

}  // namespace reprise::storage
