#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "protocol/base/check.h"
#include "protocol/base/prng.h"
#include "storage/device.h"

namespace reprise::sim {

// A disk in memory with its own idea of time. Nothing completes inside Submit: Tick() moves time on
// and completes what is due, in random order. Everything follows from the seed.
//
// `view_` is what reads see; `durable_` is what a power cut leaves, give or take the writes that
// were not synced: each of those comes back old, new, or torn (some of its 512-byte sectors old,
// some new).
class SimDevice final : public storage::Device {
 public:
  static constexpr uint64_t kSectorBytes = 512;

  struct Options {
    uint64_t size_bytes = 0;
    uint32_t latency_ticks_max = 8;
    // Random faults, in thousandths of the operations of a kind. A failed write leaves old, new or
    // torn bytes behind, like a power cut does.
    uint32_t read_error_per_mille = 0;
    uint32_t write_error_per_mille = 0;
    uint32_t sync_error_per_mille = 0;
    uint32_t erase_error_per_mille = 0;
    uint32_t no_space_per_mille = 0;  // Of writes and erases: -ENOSPC, and nothing is changed.
  };

  struct Counts {
    uint64_t reads = 0, writes = 0, syncs = 0, erases = 0, errors = 0;
    // What power cuts and failed writes left of a write.
    uint64_t kept_old = 0, kept_new = 0, torn = 0;
  };

  SimDevice(const Options& options, uint64_t seed)
      : options_(options), prng_(seed), view_(options.size_bytes), durable_(options.size_bytes) {}

  uint64_t size_bytes() const override { return options_.size_bytes; }

  void Submit(storage::DeviceOp* op) override {
    using Kind = storage::DeviceOp::Kind;
    RP_CHECK(op->done != nullptr);
    if (op->kind == Kind::kRead || op->kind == Kind::kWrite) {
      RP_CHECK(op->offset % kPageBytes == 0 && op->bytes.size() % kPageBytes == 0);
      RP_CHECK(reinterpret_cast<uintptr_t>(op->bytes.data()) % kPageBytes == 0);
      RP_CHECK(!op->bytes.empty() && op->offset + op->bytes.size() <= options_.size_bytes);
    } else if (op->kind == Kind::kErase) {
      RP_CHECK(op->offset % kPageBytes == 0 && op->erase_bytes % kPageBytes == 0);
      RP_CHECK(op->erase_bytes > 0 && op->offset + op->erase_bytes <= options_.size_bytes);
    }
    const uint64_t latency =
        1 + (options_.latency_ticks_max == 0 ? 0 : prng_.Below(options_.latency_ticks_max));
    pending_.push_back({now_ + latency, next_change_, op});
  }

  // Moves time by one tick and completes what is due. Returns how many operations completed.
  uint32_t Tick() {
    ++now_;
    std::vector<Pending> due;
    for (size_t i = 0; i < pending_.size();) {
      if (pending_[i].due > now_) {
        ++i;
        continue;
      }
      due.push_back(pending_[i]);
      pending_[i] = pending_.back();
      pending_.pop_back();
    }
    for (size_t i = due.size(); i > 1; --i) std::swap(due[i - 1], due[prng_.Below(i)]);
    // All take effect before any callback runs, which may submit again, or cut the power.
    for (Pending& item : due) item.op->result = Execute(item);
    for (Pending& item : due) item.op->done(item.op, item.op->result);
    return static_cast<uint32_t>(due.size());
  }

  // Power cut: operations in flight never complete, and their owners may be destroyed afterwards.
  void Crash() {
    for (const Pending& item : pending_) {
      if (IsChange(*item.op)) changes_.push_back(ChangeOf(*item.op));
      abandoned_.push_back(item.op);
    }
    pending_.clear();
    for (const Change& change : changes_) Keep(change, &durable_);
    changes_.clear();
    view_ = durable_;
  }

  // The process is killed, the machine goes on: operations in flight take effect, and nobody is
  // told. Their owners may be destroyed afterwards.
  void Kill() {
    std::vector<Pending> orphans;
    std::swap(orphans, pending_);
    for (const Pending& item : orphans) {
      (void)Execute(item);
      abandoned_.push_back(item.op);
    }
  }

  // A damaged medium: flips one bit, now and for good.
  void FlipBit(uint64_t offset, uint32_t bit) {
    RP_CHECK(changes_.empty() || offset < options_.size_bytes);
    view_[offset] ^= std::byte{static_cast<uint8_t>(1u << bit)};
    durable_[offset] ^= std::byte{static_cast<uint8_t>(1u << bit)};
  }

  // The next `count` operations of `kind` fail with -`error`.
  void FailNext(storage::DeviceOp::Kind kind, uint32_t count, int error) {
    fail_next_[static_cast<size_t>(kind)] = {count, error};
  }
  // Operations of any kind that touch [offset, offset + bytes) fail with -EIO, until cleared with
  // 0.
  void FailRange(uint64_t offset, uint64_t bytes) {
    bad_offset_ = offset;
    bad_bytes_ = bytes;
  }
  void set_options(const Options& options) {
    RP_CHECK(options.size_bytes == options_.size_bytes);
    options_ = options;
  }

  ConstBytes view() const { return view_; }
  // For tests that write an image by hand.
  Bytes mutable_view() { return view_; }
  // What was written by hand, or not synced yet, becomes durable.
  void MakeDurable() {
    changes_.clear();
    durable_ = view_;
  }

  size_t in_flight() const { return pending_.size(); }
  const Counts& counts() const { return counts_; }

 private:
  struct Pending {
    uint64_t due;
    uint64_t changes_before;  // Changes that had completed when this was submitted.
    storage::DeviceOp* op;
  };
  struct Change {  // A write, or an erase when `bytes` is empty.
    uint64_t number;
    uint64_t offset;
    uint64_t erase_bytes;
    std::vector<std::byte> bytes;
  };
  struct Planned {
    uint32_t count = 0;
    int error = 0;
  };

  static bool IsChange(const storage::DeviceOp& op) {
    return op.kind == storage::DeviceOp::Kind::kWrite || op.kind == storage::DeviceOp::Kind::kErase;
  }

  Change ChangeOf(const storage::DeviceOp& op) {
    if (op.kind == storage::DeviceOp::Kind::kErase) {
      return {next_change_++, op.offset, op.erase_bytes, {}};
    }
    return {next_change_++, op.offset, 0, {op.bytes.begin(), op.bytes.end()}};
  }

  static void Apply(const Change& change, std::vector<std::byte>* to) {
    if (change.bytes.empty()) {
      std::memset(to->data() + change.offset, 0, change.erase_bytes);
    } else {
      std::memcpy(to->data() + change.offset, change.bytes.data(), change.bytes.size());
    }
  }

  // Keeps old, new or torn bytes, a third each.
  void Keep(const Change& change, std::vector<std::byte>* to) {
    const uint64_t outcome = prng_.Below(3);
    if (outcome == 0) {
      ++counts_.kept_old;
      return;
    }
    if (outcome == 1) {
      ++counts_.kept_new;
      Apply(change, to);
      return;
    }
    ++counts_.torn;
    const uint64_t bytes = change.bytes.empty() ? change.erase_bytes : change.bytes.size();
    for (uint64_t at = 0; at < bytes; at += kSectorBytes) {
      if (prng_.Below(2) == 0) continue;
      std::byte* target = to->data() + change.offset + at;
      if (change.bytes.empty()) {
        std::memset(target, 0, kSectorBytes);
      } else {
        std::memcpy(target, change.bytes.data() + at, kSectorBytes);
      }
    }
  }

  int PlannedError(const storage::DeviceOp& op) {
    using Kind = storage::DeviceOp::Kind;
    Planned& planned = fail_next_[static_cast<size_t>(op.kind)];
    if (planned.count > 0) {
      --planned.count;
      return planned.error;
    }
    const uint64_t bytes = op.kind == Kind::kErase ? op.erase_bytes : op.bytes.size();
    if (bad_bytes_ > 0 && op.offset < bad_offset_ + bad_bytes_ && bad_offset_ < op.offset + bytes) {
      return EIO;
    }
    if (IsChange(op) && prng_.Chance(options_.no_space_per_mille)) return ENOSPC;
    const uint32_t per_mille[] = {options_.read_error_per_mille, options_.write_error_per_mille,
                                  options_.sync_error_per_mille, options_.erase_error_per_mille};
    return prng_.Chance(per_mille[static_cast<size_t>(op.kind)]) ? EIO : 0;
  }

  int32_t Execute(const Pending& item) {
    using Kind = storage::DeviceOp::Kind;
    storage::DeviceOp& op = *item.op;
    const int error = PlannedError(op);
    if (error != 0) {
      ++counts_.errors;
      if (IsChange(op) && error != ENOSPC) FailChange(op);
      return -error;
    }
    switch (op.kind) {
      case Kind::kRead:
        ++counts_.reads;
        std::memcpy(op.bytes.data(), view_.data() + op.offset, op.bytes.size());
        return static_cast<int32_t>(op.bytes.size());
      case Kind::kWrite:
      case Kind::kErase:
        ++(op.kind == Kind::kWrite ? counts_.writes : counts_.erases);
        changes_.push_back(ChangeOf(op));
        Apply(changes_.back(), &view_);
        return static_cast<int32_t>(op.kind == Kind::kWrite ? op.bytes.size() : 0);
      case Kind::kSync:
        ++counts_.syncs;
        SyncUpTo(item.changes_before);
        return 0;
    }
    return -EINVAL;
  }

  // A failed write or erase changed something, nobody knows what.
  void FailChange(const storage::DeviceOp& op) {
    Change change = ChangeOf(op);
    Keep(change, &view_);
    const uint64_t bytes =
        op.kind == storage::DeviceOp::Kind::kErase ? op.erase_bytes : op.bytes.size();
    const std::byte* now = view_.data() + op.offset;
    change.bytes.assign(now, now + bytes);
    changes_.push_back(std::move(change));
  }

  void SyncUpTo(uint64_t number) {
    size_t kept = 0;
    for (Change& change : changes_) {
      if (change.number < number) {
        Apply(change, &durable_);
      } else {
        if (&changes_[kept] != &change) changes_[kept] = std::move(change);
        ++kept;
      }
    }
    changes_.resize(kept);
  }

  Options options_;
  Prng prng_;
  uint64_t now_ = 0;
  uint64_t next_change_ = 0;
  std::vector<std::byte> view_;
  std::vector<std::byte> durable_;
  std::vector<Pending> pending_;
  // Never used again: a dead process leaves its memory as it is, and a leak checker shall know it.
  std::vector<storage::DeviceOp*> abandoned_;
  std::vector<Change> changes_;  // Completed and not synced, in order of completion.
  Planned fail_next_[4];
  uint64_t bad_offset_ = 0;
  uint64_t bad_bytes_ = 0;
  Counts counts_;
};

}  // namespace reprise::sim
