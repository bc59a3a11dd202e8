#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "client/drive/drive_store.h"
#include "client/trace/trace.h"
#include "protocol/record/record.h"

namespace reprise {

inline constexpr uint32_t kPayloadBytes =
    3'000;  // Not a multiple of the pattern's stride; record of 4 KiB.
inline constexpr uint32_t kWindowBytes = 5'001;

inline Hash256 TestNamespace() {
  Hash256 hash;
  hash.bytes.fill(std::byte{7});
  return hash;
}

// Time that passes by sleeping only. Thread-safe.
class TestClock final : public WaitingClock {
 public:
  Instant Now() const override { return now_.load(); }
  int64_t WallMillis() const override { return 1'700'000'000'000; }
  void Sleep(Nanos duration_ns) const override { now_ += duration_ns; }

 private:
  mutable std::atomic<Instant> now_{kSecond};
};

// A store in memory, shared by its connections. Faults are fields.
class FakeStore {
 public:
  std::mutex mutex;
  std::map<BlockKey, std::vector<std::byte>> blocks;
  std::map<std::pair<BlockKey, uint64_t>, std::vector<std::byte>> windows;
  std::map<BlockKey, Tier> tiers;  // Dram when absent.
  std::vector<uint64_t> window_sessions;
  uint32_t connects = 0;
  uint32_t refuse_connects_from = UINT32_MAX;
  uint32_t busy_puts = 0;      // The first record of this many puts.
  uint32_t busy_acquires = 0;  // This many acquires give nothing.
  uint32_t lookups_until_lost = UINT32_MAX;
  uint32_t lookups_until_timeout = UINT32_MAX;
  Outcome put_outcome = Outcome::kOk;  // Of every new record.
  bool forget_after_lookup = false;    // Acquire finds one block less than the verdict said.
  bool forget_windows = false;
  bool bend_records = false, bend_windows = false;
};

class FakeConnection final : public DriveStore {
 public:
  explicit FakeConnection(FakeStore* store) : store_(*store), slots_(kSlots * kRecordBytes) {}

  absl::StatusOr<Verdict> Lookup(std::span<const BlockKey> keys,
                                 std::span<const wire::WindowKey> windows) override {
    const std::lock_guard lock(store_.mutex);
    if (store_.lookups_until_lost-- == 0) return Unavailable("gone");
    if (store_.lookups_until_timeout-- == 0) return DeadlineExceeded("late");
    EXPECT_LE(windows.size(), wire::kWindowCandidatesMax);
    Verdict verdict;
    while (verdict.hit_blocks < keys.size() && store_.blocks.contains(keys[verdict.hit_blocks])) {
      const auto tier = store_.tiers.find(keys[verdict.hit_blocks++]);
      verdict.tiers.push_back(tier == store_.tiers.end() ? Tier::kDram : tier->second);
    }
    const uint64_t end = uint64_t{verdict.hit_blocks} * kBlockTokens;
    verdict.hit_tokens = end;
    const auto offer = [&](const wire::WindowKey& key, wire::WindowState state) {
      const auto found = store_.windows.find({key.prefix, key.position});
      if (found == store_.windows.end()) return;
      verdict.window = state;
      verdict.window_key = key;
      verdict.window_bytes = static_cast<uint32_t>(found->second.size());
    };
    if (end > 0) offer({keys[verdict.hit_blocks - 1], end}, wire::WindowState::kBoundary);
    for (const wire::WindowKey& key : windows) {
      if (key.position > end && key.position < end + kBlockTokens) {
        offer(key, wire::WindowState::kExact);
      }
    }
    return verdict;
  }

  absl::StatusOr<Loaded> Acquire(std::span<const BlockKey> keys) override {
    const std::lock_guard lock(store_.mutex);
    Loaded loaded;
    if (store_.busy_acquires > 0) {
      --store_.busy_acquires;
      loaded.stopped_by = Outcome::kBusy;
      return loaded;
    }
    const size_t granted = keys.size() - (store_.forget_after_lookup ? 1 : 0);
    for (size_t i = 0; i < granted; ++i) {
      loaded.records.push_back(store_.blocks.at(keys[i]));
      loaded.from_ssd += store_.tiers.contains(keys[i]) ? 1 : 0;
    }
    if (granted < keys.size()) loaded.stopped_by = Outcome::kNotFound;
    return loaded;
  }
  void Release() override {}

  uint32_t put_slots() const override { return kSlots; }
  Bytes put_slot(uint32_t slot) override {
    return Bytes(slots_).subspan(size_t{slot} * kRecordBytes, kRecordBytes);
  }
  absl::Status Put(std::span<const uint32_t> slots, bool, std::span<Outcome> outcomes) override {
    const std::lock_guard lock(store_.mutex);
    for (size_t i = 0; i < slots.size(); ++i) {
      const Bytes record = put_slot(slots[i]);
      const RecordHeader header = LoadRecordHeader(record);
      const BlockKey key = KeyOf(header.block_hash);
      EXPECT_EQ(VerifyRecord(record, key), Outcome::kOk);
      if (i == 0 && store_.busy_puts > 0) {
        --store_.busy_puts;
        outcomes[i] = Outcome::kBusy;
      } else if (store_.blocks.contains(key)) {
        outcomes[i] = Outcome::kExists;
      } else {
        outcomes[i] = store_.put_outcome;
        if (outcomes[i] != Outcome::kOk) continue;
        std::vector<std::byte>& kept = store_.blocks[key];
        kept.assign(record.begin(), record.end());
        if (store_.bend_records) kept[17] ^= std::byte{1};
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Snapshot> GetWindow(const wire::WindowKey& key) override {
    const std::lock_guard lock(store_.mutex);
    if (store_.forget_windows) return NotFound("expired");
    return Snapshot{store_.windows.at({key.prefix, key.position})};
  }
  absl::StatusOr<Outcome> PutWindow(const wire::WindowKey& key, uint64_t session_id,
                                    ConstBytes snapshot) override {
    const std::lock_guard lock(store_.mutex);
    EXPECT_EQ(key.position % 2, 0u);
    store_.window_sessions.push_back(session_id);
    std::vector<std::byte>& kept = store_.windows[{key.prefix, key.position}];
    kept.assign(snapshot.begin(), snapshot.end());
    if (store_.bend_windows) kept.back() ^= std::byte{0x80};
    return Outcome::kOk;
  }
  absl::StatusOr<StoreCounters> Counters() override { return StoreCounters(); }

 private:
  static constexpr uint32_t kSlots = 3;
  static constexpr uint32_t kRecordBytes = RecordBytesFor(kPayloadBytes);

  FakeStore& store_;
  std::vector<std::byte> slots_;
};

class FakeMaker final : public DriveStoreMaker {
 public:
  explicit FakeMaker(FakeStore* store) : store_(store) {}
  absl::StatusOr<std::unique_ptr<DriveStore>> Connect() override {
    const std::lock_guard lock(store_->mutex);
    if (store_->connects++ >= store_->refuse_connects_from) return Unavailable("refused");
    return std::unique_ptr<DriveStore>(std::make_unique<FakeConnection>(store_));
  }

 private:
  FakeStore* store_;
};

// Requests from memory.
class ListTrace final : public TraceReader {
 public:
  struct Row {
    double time_s;
    int64_t session;
    uint32_t input_tokens;
    std::vector<uint64_t> ids;
  };
  ListTrace(uint32_t block_tokens, std::vector<Row> rows)
      : block_tokens_(block_tokens), rows_(std::move(rows)) {}

  absl::StatusOr<bool> Next(TraceRequest* request) override {
    if (next_ == rows_.size()) return false;
    const Row& row = rows_[next_++];
    *request = TraceRequest();
    request->time_ns = static_cast<Nanos>(row.time_s * kSecond);
    request->session = row.session;
    request->input_tokens = row.input_tokens;
    request->block_tokens = block_tokens_;
    request->hash_ids = row.ids;
    return true;
  }
  TraceFormat format() const override { return TraceFormat::kMooncake; }

 private:
  const uint32_t block_tokens_;
  const std::vector<Row> rows_;
  size_t next_ = 0;
};

}  // namespace reprise
