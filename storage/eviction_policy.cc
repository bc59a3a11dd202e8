#include "storage/eviction_policy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <vector>

#include "protocol/base/check.h"
#include "storage/id_list.h"
#include "storage/key_hash.h"

namespace reprise::storage {
namespace {

// Never 0, which marks an empty place in the ghost memory.
uint32_t FingerprintOf(const BlockKey& key) {
  return std::max(static_cast<uint32_t>(HashOf(key) >> 32), 1u);
}

// What all policies here share: ids in queues, and ids that are set aside.
//
// An id that is set aside stays in its queue, so that it keeps its place for nothing. When a search
// for a victim meets it, it leaves the queue and is overdue; tracked again, it is put back at the
// old end. Each such step is paid by an Untrack, which keeps Evict at O(1) amortised.
class QueuePolicy : public EvictionPolicy {
 public:
  explicit QueuePolicy(uint32_t capacity)
      : links_(capacity), nodes_(capacity), queues_{IdList(&links_), IdList(&links_)} {}

  void Track(uint32_t id, const BlockKey& key, uint32_t parent) final {
    Node& node = At(id);
    RP_CHECK(node.standing != Standing::kTracked);
    if (node.standing == Standing::kAside) queues_[node.queue].Remove(id);
    node = {.fingerprint = FingerprintOf(key)};
    if (follows_parent() && parent != kNoParent && InQueue(At(parent))) {
      node.standing = Standing::kTracked;
      queues_[0].AddOlderThan(parent, id);
      ++tracked_[0];
    } else {
      Enter(id, QueueForNewcomer(node.fingerprint));
    }
  }

  void TrackAgain(uint32_t id, const BlockKey& key) final {
    Node& node = At(id);
    RP_CHECK(node.standing != Standing::kTracked);
    if (node.standing == Standing::kNone || node.fingerprint != FingerprintOf(key)) {
      Track(id, key, kNoParent);
      return;
    }
    if (node.standing == Standing::kOverdue) queues_[node.queue].AddOldest(id);
    node.standing = Standing::kTracked;
    ++tracked_[node.queue];
  }

  void Untrack(uint32_t id) final {
    Node& node = At(id);
    RP_CHECK(node.standing == Standing::kTracked);
    node.standing = Standing::kAside;
    --tracked_[node.queue];
  }

  void Restore(uint32_t id) final {
    Node& node = At(id);
    RP_CHECK(node.standing == Standing::kNone);
    node.standing = Standing::kTracked;
    queues_[node.queue].AddOldest(id);
    ++tracked_[node.queue];
  }

  uint32_t tracked() const final { return tracked_[0] + tracked_[1]; }

 protected:
  enum class Standing : uint8_t {
    kNone,     // In no queue; nothing is known of it.
    kTracked,  // In its queue; may be evicted.
    kAside,    // In its queue; may not.
    kOverdue,  // Set aside and out of its queue: its turn to leave came.
  };
  struct Node {
    uint32_t fingerprint = 0;
    Standing standing = Standing::kNone;
    uint8_t queue = 0;
    uint8_t frequency = 0;
  };
  static_assert(sizeof(Node) == 8);

  virtual uint8_t QueueForNewcomer(uint32_t fingerprint) = 0;

  Node& At(uint32_t id) {
    RP_CHECK(id < nodes_.size());
    return nodes_[id];
  }
  Node& AtKnown(uint32_t id) {
    Node& node = At(id);
    RP_CHECK(node.standing != Standing::kNone);
    return node;
  }
  static bool InQueue(const Node& node) {
    return node.standing == Standing::kTracked || node.standing == Standing::kAside;
  }
  uint32_t tracked_in(uint8_t queue) const { return tracked_[queue]; }

  void Enter(uint32_t id, uint8_t queue) {
    Node& node = At(id);
    node.standing = Standing::kTracked;
    node.queue = queue;
    queues_[queue].AddNewest(id);
    ++tracked_[queue];
  }

  // The oldest tracked id of a queue, which it leaves. REQUIRES: tracked_in(queue) > 0.
  uint32_t PopOldest(uint8_t queue) {
    for (;;) {
      const uint32_t id = queues_[queue].oldest();
      Node& node = At(id);
      queues_[queue].Remove(id);
      if (node.standing == Standing::kTracked) {
        node.standing = Standing::kNone;
        --tracked_[queue];
        return id;
      }
      node.standing = Standing::kOverdue;
    }
  }

  // Makes an id the newest of its queue, whatever its standing.
  void Renew(uint32_t id) {
    Node& node = AtKnown(id);
    if (node.standing == Standing::kOverdue) {
      node.standing = Standing::kAside;
    } else {
      queues_[node.queue].Remove(id);
    }
    queues_[node.queue].AddNewest(id);
  }

 private:
  std::vector<IdLinks> links_;
  std::vector<Node> nodes_;
  std::array<IdList, 2> queues_;
  std::array<uint32_t, 2> tracked_{};
};

class FifoPolicy final : public QueuePolicy {
 public:
  using QueuePolicy::QueuePolicy;
  void Touch(uint32_t id) override { AtKnown(id); }
  uint32_t Evict() override { return tracked() == 0 ? kNoVictim : PopOldest(0); }

 private:
  uint8_t QueueForNewcomer(uint32_t) override { return 0; }
};

class LruPolicy final : public QueuePolicy {
 public:
  using QueuePolicy::QueuePolicy;
  void Touch(uint32_t id) override { Renew(id); }
  uint32_t Evict() override { return tracked() == 0 ? kNoVictim : PopOldest(0); }

 private:
  uint8_t QueueForNewcomer(uint32_t) override { return 0; }
  bool follows_parent() const override { return true; }
};

// The newest `size` fingerprints: a ring in order of arrival, and a table of places in the ring
// (linear probing at a load of at most 1/2, deletion shifts back).
class GhostMemory {
 public:
  explicit GhostMemory(uint32_t size)
      : ring_(size), table_(std::bit_ceil(uint64_t{size} * 2 + 1), kNoId) {}

  void Remember(uint32_t fingerprint) {
    if (ring_.empty()) return;
    Take(fingerprint);
    if (ring_[next_] != 0) Take(ring_[next_]);
    ring_[next_] = fingerprint;
    table_[Find(fingerprint)] = next_;
    next_ = next_ + 1 == ring_.size() ? 0 : next_ + 1;
  }

  // Forgets it. False when it was not there.
  bool Take(uint32_t fingerprint) {
    uint64_t hole = Find(fingerprint);
    const uint32_t place = table_[hole];
    if (place == kNoId) return false;
    for (uint64_t at = Next(hole); table_[at] != kNoId; at = Next(at)) {
      // Entries between their home and `at` only: moving one over its home would lose it.
      const uint64_t home = Home(ring_[table_[at]]);
      if (((at - home) & mask()) < ((at - hole) & mask())) continue;
      table_[hole] = table_[at];
      hole = at;
    }
    table_[hole] = kNoId;
    ring_[place] = 0;
    return true;
  }

 private:
  uint64_t mask() const { return table_.size() - 1; }
  uint64_t Home(uint32_t fingerprint) const { return fingerprint & mask(); }
  uint64_t Next(uint64_t bucket) const { return (bucket + 1) & mask(); }
  // The bucket that holds it, or the empty one where it belongs.
  uint64_t Find(uint32_t fingerprint) const {
    uint64_t bucket = Home(fingerprint);
    while (table_[bucket] != kNoId && ring_[table_[bucket]] != fingerprint) bucket = Next(bucket);
    return bucket;
  }

  std::vector<uint32_t> ring_;  // Fingerprints; 0: none.
  std::vector<uint32_t> table_;
  uint32_t next_ = 0;
};

class S3FifoPolicy final : public QueuePolicy {
 public:
  explicit S3FifoPolicy(uint32_t capacity)
      : QueuePolicy(capacity),
        small_target_(std::max(capacity / 10, 1u)),
        ghost_(capacity - std::min(capacity, small_target_)) {}

  void Touch(uint32_t id) override {
    Node& node = AtKnown(id);
    if (node.frequency < kFrequencyMax) ++node.frequency;
  }

  uint32_t Evict() override {
    while (tracked() > 0) {
      const bool from_small = tracked_in(kMain) == 0 || tracked_in(kSmall) >= small_target_;
      const uint32_t id = PopOldest(from_small ? kSmall : kMain);
      Node& node = At(id);
      if (from_small && node.frequency >= kPromoteFrequency) {
        node.frequency = 0;
        Enter(id, kMain);
      } else if (from_small) {
        ghost_.Remember(node.fingerprint);
        return id;
      } else if (node.frequency > 0) {
        --node.frequency;
        Enter(id, kMain);
      } else {
        return id;
      }
    }
    return kNoVictim;
  }

 private:
  static constexpr uint8_t kSmall = 0;
  static constexpr uint8_t kMain = 1;
  static constexpr uint8_t kFrequencyMax = 3;
  // Hits in the small queue that earn a place in the main queue.
  static constexpr uint8_t kPromoteFrequency = 2;

  uint8_t QueueForNewcomer(uint32_t fingerprint) override {
    return ghost_.Take(fingerprint) ? kMain : kSmall;
  }

  uint32_t small_target_;
  GhostMemory ghost_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name,
                                                                   uint32_t capacity) {
  std::unique_ptr<EvictionPolicy> policy;
  if (name == "fifo") policy = std::make_unique<FifoPolicy>(capacity);
  if (name == "lru") policy = std::make_unique<LruPolicy>(capacity);
  if (name == "s3fifo") policy = std::make_unique<S3FifoPolicy>(capacity);
  if (policy == nullptr) {
    return InvalidArgument("unknown eviction policy \"" + std::string(name) +
                           "\": use fifo, lru or s3fifo");
  }
  return policy;
}

}  // namespace reprise::storage
