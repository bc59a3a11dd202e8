#include "storage/window_pool.h"

#include <algorithm>
#include <unordered_map>

#include "protocol/base/check.h"
#include "protocol/base/checksum.h"
#include "storage/id_list.h"
#include "storage/key_hash.h"

namespace reprise::storage {
namespace {

struct SnapshotKey {
  wire::WindowKey window;
  uint16_t name_space = 0;

  friend bool operator==(const SnapshotKey&, const SnapshotKey&) = default;
};

struct SessionKey {
  uint64_t session_id = 0;
  uint16_t name_space = 0;

  friend bool operator==(const SessionKey&, const SessionKey&) = default;
};

struct Hash {
  size_t operator()(const SnapshotKey& key) const {
    return HashOf({HashOf(key.window.prefix), MixBits(key.window.position) + key.name_space});
  }
  size_t operator()(const SessionKey& key) const {
    return HashOf({key.session_id, key.name_space});
  }
};

struct Snapshot {
  SnapshotKey key;
  uint64_t session_id = 0;
  Instant last_use = 0;
  uint32_t bytes = 0;
  uint32_t crc = 0;
  uint32_t leases = 0;
  uint32_t generation = 1;      // Of this place in the table; 1..kGenerationMax.
  bool set_aside = false;       // Has left the index; the last release frees it.
  std::vector<uint32_t> slots;  // Empty: this place is free.
};

struct Session {
  IdList snapshots;  // In the order of their puts.
  uint32_t snapshot_count = 0;
};

// A handle: the place in the table, and above it the generation, which is never 0.
constexpr uint32_t kIndexBits = 20;
constexpr uint32_t kGenerationMax = (1u << (32 - kIndexBits)) - 1;
static_assert(WindowPool::kSnapshotsMax == 1u << kIndexBits);

uint64_t TotalBytes(std::span<const ConstBytes> pieces) {
  uint64_t total = 0;
  for (const ConstBytes& piece : pieces) total += piece.size();
  return total;
}

}  // namespace

// Every snapshot is in one of three states: free; findable (in index_, by_use_ and, with a session,
// in the list of its session); or set aside (leased, in none of them).
class WindowPool::Impl {
 public:
  Impl(const Options& options, SlotPool* slots)
      : options_(options),
        slots_(slots),
        snapshots_(std::min({options.snapshots_max, slots->window_slots(), kSnapshotsMax})),
        use_links_(snapshots_.size()),
        session_links_(snapshots_.size()),
        by_use_(&use_links_),
        departed_(std::max<size_t>(snapshots_.size(), kDepartedMin)) {
    if (!snapshots_.empty()) slot_bytes_ = slots_->bytes(slots_->first_slot()).size();
    for (uint32_t id = static_cast<uint32_t>(snapshots_.size()); id > 0; --id) {
      free_.push_back(id - 1);
    }
  }

  Outcome Put(const SnapshotKey& key, uint64_t session_id, std::span<const ConstBytes> pieces,
              uint32_t bytes, uint32_t crc, Instant now, Nanos age_ns) {
    Expire(now);
    if (bytes == 0 || TotalBytes(pieces) != bytes) return Outcome::kInvalid;
    if (const uint32_t id = Find(key); id != kNoId) {
      Renew(id, now);
      if (session_id != 0) {
        LeaveSession(id);
        MakeRoomInSession({session_id, key.name_space});
        JoinSession(id, session_id);
      }
      return Outcome::kExists;
    }
    if (snapshots_.empty() || DivideUp(bytes, slot_bytes_) > slots_->window_slots()) {
      ++counts_.rejected;
      return Outcome::kRejected;
    }
    const auto slots_needed = static_cast<uint32_t>(DivideUp(bytes, slot_bytes_));
    // Nothing leaves for a snapshot that then doesn't fit.
    if (slots_needed > slots_->window_slots() - leased_slots_ ||
        counts_.leased == snapshots_.size()) {
      ++counts_.busy;
      return Outcome::kBusy;
    }
    if (session_id != 0) MakeRoomInSession({session_id, key.name_space});
    MakeRoom(slots_needed);
    const uint32_t id = free_.back();
    Snapshot& snapshot = snapshots_[id];
    for (uint32_t i = 0; i < slots_needed; ++i) {
      snapshot.slots.push_back(slots_->Allocate(SlotPool::Use::kWindow));
    }
    if (CopyIn(pieces, snapshot.slots) != crc) {
      FreeSlots(&snapshot);
      ++counts_.corrupt;
      return Outcome::kCorrupt;
    }
    snapshot.key = key;
    snapshot.bytes = bytes;
    snapshot.crc = crc;
    Publish(id, session_id, now - age_ns);
    return Outcome::kOk;
  }

  void ForEach(Instant now, const std::function<void(const Stored&)>& visit) const {
    for (uint32_t id = by_use_.oldest(); id != kNoId; id = by_use_.NewerThan(id)) {
      const Snapshot& snapshot = snapshots_[id];
      if (IsExpired(id, now)) continue;
      visit({.name_space = snapshot.key.name_space,
             .key = snapshot.key.window,
             .session_id = snapshot.session_id,
             .age_ns = now - snapshot.last_use,
             .bytes = snapshot.bytes,
             .crc = snapshot.crc,
             .slots = snapshot.slots});
    }
  }

  uint32_t Probe(const SnapshotKey& key, Instant now) const {
    const uint32_t id = Find(key);
    return id == kNoId || IsExpired(id, now) ? 0 : snapshots_[id].bytes;
  }

  Outcome Acquire(const SnapshotKey& key, Instant now, View* view) {
    Expire(now);
    const uint32_t id = Find(key);
    if (id == kNoId) {
      ++counts_.absent;
      return Outcome::kNotFound;
    }
    ++counts_.found;
    Renew(id, now);
    Snapshot& snapshot = snapshots_[id];
    if (snapshot.leases++ == 0) {
      ++counts_.leased;
      leased_slots_ += static_cast<uint32_t>(snapshot.slots.size());
    }
    for (const uint32_t slot : snapshot.slots) slots_->Pin(slot);
    *view = {.handle = snapshot.generation << kIndexBits | id,
             .bytes = snapshot.bytes,
             .crc = snapshot.crc,
             .slots = snapshot.slots};
    return Outcome::kOk;
  }

  void Release(uint32_t handle) {
    const uint32_t id = handle & (kSnapshotsMax - 1);
    RP_CHECK(id < snapshots_.size());
    Snapshot& snapshot = snapshots_[id];
    RP_CHECK(snapshot.generation == handle >> kIndexBits && snapshot.leases > 0);
    for (const uint32_t slot : snapshot.slots) slots_->Unpin(slot);
    if (--snapshot.leases > 0) return;
    --counts_.leased;
    leased_slots_ -= static_cast<uint32_t>(snapshot.slots.size());
    if (snapshot.set_aside) Free(id);
  }

  Absence Explain(const SnapshotKey& key, Instant now) const {
    if (const uint32_t id = Find(key); id != kNoId) {
      return IsExpired(id, now) ? Absence::kExpired : Absence::kPresent;
    }
    const uint64_t hash = Hash()(key);
    const Departed& row = departed_[hash % departed_.size()];
    return row.hash == hash ? row.why : Absence::kNeverStored;
  }

  Instant Expire(Instant now) {
    while (!by_use_.empty() && IsExpired(by_use_.oldest(), now)) {
      Remove(by_use_.oldest(), Absence::kExpired);
      ++counts_.expired;
    }
    if (by_use_.empty()) return kNever;
    const Instant last_use = snapshots_[by_use_.oldest()].last_use;
    return options_.ttl_ns > kNever - last_use ? kNever : last_use + options_.ttl_ns;
  }

  void DropNamespace(uint16_t name_space) {
    for (uint32_t id = by_use_.oldest(); id != kNoId;) {
      const uint32_t newer = by_use_.NewerThan(id);
      if (snapshots_[id].key.name_space == name_space) Remove(id, Absence::kNeverStored);
      id = newer;
    }
  }

  Stats stats() const {
    Stats stats = counts_;
    stats.snapshots = static_cast<uint32_t>(snapshots_.size() - free_.size());
    return stats;
  }

 private:
  static constexpr size_t kDepartedMin = 1024;

  struct Departed {  // Direct-mapped by hash: a newer departure overwrites an older one.
    uint64_t hash = 0;
    Absence why = Absence::kNeverStored;
  };

  uint32_t Find(const SnapshotKey& key) const {
    const auto found = index_.find(key);
    return found == index_.end() ? kNoId : found->second;
  }
  bool IsExpired(uint32_t id, Instant now) const {
    return now - snapshots_[id].last_use >= options_.ttl_ns;
  }
  void Renew(uint32_t id, Instant now) {
    snapshots_[id].last_use = now;
    by_use_.Remove(id);
    by_use_.AddNewest(id);
  }

  // Fills each slot before the next; returns the checksum of what is in the slots now. The source
  // may be memory that a client is still writing to, so only the copy is ever checked.
  uint32_t CopyIn(std::span<const ConstBytes> pieces, std::span<const uint32_t> slots) {
    uint32_t crc = 0;
    uint64_t copied = 0;
    for (ConstBytes rest : pieces) {
      while (!rest.empty()) {
        const Bytes room = slots_->bytes(slots[copied / slot_bytes_]).subspan(copied % slot_bytes_);
        const size_t count = std::min(room.size(), rest.size());
        crc = CopyCrc32c(rest.first(count), room, crc);
        rest = rest.subspan(count);
        copied += count;
      }
    }
    return crc;
  }

  // REQUIRES: `id` is free_.back(), filled and checked.
  void Publish(uint32_t id, uint64_t session_id, Instant now) {
    free_.pop_back();
    Snapshot& snapshot = snapshots_[id];
    snapshot.last_use = now;
    index_.emplace(snapshot.key, id);
    by_use_.AddNewest(id);
    JoinSession(id, session_id);
    ++counts_.puts;
    counts_.bytes += snapshot.bytes;
    counts_.bytes_peak = std::max(counts_.bytes_peak, counts_.bytes);
  }

  void JoinSession(uint32_t id, uint64_t session_id) {
    Snapshot& snapshot = snapshots_[id];
    snapshot.session_id = session_id;
    if (session_id == 0) return;
    const auto [found, inserted] = sessions_.try_emplace(
        SessionKey{session_id, snapshot.key.name_space}, Session{IdList(&session_links_)});
    found->second.snapshots.AddNewest(id);
    ++found->second.snapshot_count;
  }

  void LeaveSession(uint32_t id) {
    Snapshot& snapshot = snapshots_[id];
    if (snapshot.session_id == 0) return;
    const auto found = sessions_.find({snapshot.session_id, snapshot.key.name_space});
    found->second.snapshots.Remove(id);
    if (--found->second.snapshot_count == 0) sessions_.erase(found);
    snapshot.session_id = 0;
  }

  // Supersedes a session's oldest positions until one more is within its limit.
  void MakeRoomInSession(const SessionKey& key) {
    if (options_.positions_per_session == 0) return;
    for (auto found = sessions_.find(key);
         found != sessions_.end() && found->second.snapshot_count >= options_.positions_per_session;
         found = sessions_.find(key)) {
      Remove(found->second.snapshots.oldest(), Absence::kSuperseded);
      ++counts_.superseded;
    }
  }

  // Evicts until `slots_needed` slots and a place in the table are free. REQUIRES: leases leave
  // that many. Passes over leased snapshots on the way; those are few and mostly new.
  void MakeRoom(uint32_t slots_needed) {
    uint32_t id = by_use_.oldest();
    while (free_.empty() ||
           slots_->used(SlotPool::Use::kWindow) + slots_needed > slots_->window_slots()) {
      RP_CHECK(id != kNoId);
      const uint32_t newer = by_use_.NewerThan(id);
      if (snapshots_[id].leases == 0) {
        Remove(id, Absence::kEvicted);
        ++counts_.evicted;
      }
      id = newer;
    }
  }

  // Takes a findable snapshot out of the index; frees it unless it is leased.
  void Remove(uint32_t id, Absence why) {
    Snapshot& snapshot = snapshots_[id];
    LeaveSession(id);
    by_use_.Remove(id);
    index_.erase(snapshot.key);
    const uint64_t hash = Hash()(snapshot.key);
    departed_[hash % departed_.size()] = {hash, why};
    if (snapshot.leases > 0) {
      snapshot.set_aside = true;
    } else {
      Free(id);
    }
  }

  void Free(uint32_t id) {
    Snapshot& snapshot = snapshots_[id];
    counts_.bytes -= snapshot.bytes;
    FreeSlots(&snapshot);
    snapshot.set_aside = false;
    snapshot.generation = snapshot.generation == kGenerationMax ? 1 : snapshot.generation + 1;
    free_.push_back(id);
  }
  void FreeSlots(Snapshot* snapshot) {
    for (const uint32_t slot : snapshot->slots) slots_->Free(slot);
    snapshot->slots.clear();
  }

  Options options_;
  SlotPool* slots_;
  uint64_t slot_bytes_ = 0;

  std::vector<Snapshot> snapshots_;  // Never resized: views and handles point into it.
  std::vector<uint32_t> free_;
  std::unordered_map<SnapshotKey, uint32_t, Hash> index_;
  std::vector<IdLinks> use_links_;
  std::vector<IdLinks> session_links_;
  IdList by_use_;  // Findable snapshots by last use, which is also the order in which they expire.
  std::unordered_map<SessionKey, Session, Hash> sessions_;
  std::vector<Departed> departed_;

  uint32_t leased_slots_ = 0;
  Stats counts_;
};

WindowPool::WindowPool(const Options& options, SlotPool* slots)
    : impl_(std::make_unique<Impl>(options, slots)) {}
WindowPool::~WindowPool() = default;

Outcome WindowPool::Put(uint16_t name_space, const wire::WindowKey& key, uint64_t session_id,
                        std::span<const ConstBytes> pieces, uint32_t bytes, uint32_t crc,
                        Instant now, Nanos age_ns) {
  return impl_->Put({key, name_space}, session_id, pieces, bytes, crc, now, age_ns);
}
void WindowPool::ForEach(Instant now, const std::function<void(const Stored&)>& visit) const {
  impl_->ForEach(now, visit);
}
uint32_t WindowPool::Probe(uint16_t name_space, const wire::WindowKey& key, Instant now) const {
  return impl_->Probe({key, name_space}, now);
}
Outcome WindowPool::Acquire(uint16_t name_space, const wire::WindowKey& key, Instant now,
                            View* view) {
  return impl_->Acquire({key, name_space}, now, view);
}
void WindowPool::Release(uint32_t handle) { impl_->Release(handle); }
WindowPool::Absence WindowPool::Explain(uint16_t name_space, const wire::WindowKey& key,
                                        Instant now) const {
  return impl_->Explain({key, name_space}, now);
}
Instant WindowPool::Expire(Instant now) { return impl_->Expire(now); }
void WindowPool::DropNamespace(uint16_t name_space) { impl_->DropNamespace(name_space); }
WindowPool::Stats WindowPool::stats() const { return impl_->stats(); }

}  // namespace reprise::storage
