// WindowPool against a naive model of its contract: one list, searched from the front.

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <string>
#include <vector>

#include "protocol/base/checksum.h"
#include "protocol/base/prng.h"
#include "storage/window_pool.h"
#include "tests/storage/vector_memory.h"

namespace reprise::storage {
namespace {

constexpr uint32_t kModelFirst = 1000;
constexpr uint32_t kModelSlotBytes = 64;

struct Limits {
  const char* name;
  uint32_t window_slots;
  uint32_t snapshots_max;
  uint32_t positions_per_session;
};

struct Name {
  uint16_t name_space = 0;
  uint64_t position = 0;
  friend bool operator==(const Name&, const Name&) = default;
};

wire::WindowKey KeyOf(const Name& name) {
  return {.prefix = {.low = name.position % 5, .high = 1}, .position = name.position};
}

// The model. `snapshots` holds findable ones by last use, oldest first; `set_aside` the others.
struct Model {
  struct Snapshot {
    Name name;
    uint64_t session = 0;
    uint64_t put_order = 0;
    Instant last_use = 0;
    std::vector<std::byte> contents;
    std::vector<WindowPool::View> leases;
    uint32_t slots() const {
      return static_cast<uint32_t>(DivideUp(contents.size(), kModelSlotBytes));
    }
  };
  using List = std::list<Snapshot>;

  Limits limits;
  Nanos ttl_ns = 0;
  List snapshots, set_aside;
  uint64_t puts_in_order = 0;
  WindowPool::Stats stats;

  List::iterator Find(const Name& name) {
    return std::find_if(snapshots.begin(), snapshots.end(),
                        [&](const Snapshot& s) { return s.name == name; });
  }
  void Leave(List::iterator snapshot) {
    if (snapshot->leases.empty()) {
      snapshots.erase(snapshot);
    } else {
      set_aside.splice(set_aside.end(), snapshots, snapshot);
    }
  }
  void Use(List::iterator snapshot, Instant now) {
    snapshot->last_use = now;
    snapshots.splice(snapshots.end(), snapshots, snapshot);
  }
  void Expire(Instant now) {
    while (!snapshots.empty() && snapshots.front().last_use + ttl_ns <= now) {
      Leave(snapshots.begin());
      ++stats.expired;
    }
  }
  // All but `limit` of a session's, oldest put first.
  void Supersede(uint16_t name_space, uint64_t session, const Name& except) {
    if (session == 0 || limits.positions_per_session == 0) return;
    for (;;) {
      uint32_t count = 0;
      auto oldest = snapshots.end();
      for (auto it = snapshots.begin(); it != snapshots.end(); ++it) {
        if (it->name.name_space != name_space || it->session != session || it->name == except) {
          continue;
        }
        ++count;
        if (oldest == snapshots.end() || it->put_order < oldest->put_order) oldest = it;
      }
      if (count < limits.positions_per_session) return;
      Leave(oldest);
      ++stats.superseded;
    }
  }
  uint32_t SlotsUsed(bool leased_only) const {
    uint32_t used = 0;
    for (const List* list : {&snapshots, &set_aside}) {
      for (const Snapshot& s : *list) used += leased_only && s.leases.empty() ? 0 : s.slots();
    }
    return used;
  }
  uint32_t Count(bool leased_only) const {
    uint32_t count = 0;
    for (const List* list : {&snapshots, &set_aside}) {
      for (const Snapshot& s : *list) count += leased_only && s.leases.empty() ? 0 : 1;
    }
    return count;
  }
  uint64_t BytesHeld() const {
    uint64_t bytes = 0;
    for (const List* list : {&snapshots, &set_aside}) {
      for (const Snapshot& s : *list) bytes += s.contents.size();
    }
    return bytes;
  }

  Outcome Put(const Name& name, uint64_t session, std::vector<std::byte> contents, bool damaged,
              Instant now) {
    Expire(now);
    if (const auto found = Find(name); found != snapshots.end()) {
      Use(found, now);
      if (session != 0) {
        Supersede(name.name_space, session, name);
        found->session = session;
        found->put_order = ++puts_in_order;
      }
      return Outcome::kExists;
    }
    Snapshot snapshot{name, session, 0, now, std::move(contents), {}};
    const uint32_t places = std::min(limits.snapshots_max, limits.window_slots);
    if (places == 0 || snapshot.slots() > limits.window_slots) {
      ++stats.rejected;
      return Outcome::kRejected;
    }
    if (SlotsUsed(true) + snapshot.slots() > limits.window_slots || Count(true) == places) {
      ++stats.busy;
      return Outcome::kBusy;
    }
    Supersede(name.name_space, session, name);
    while (SlotsUsed(false) + snapshot.slots() > limits.window_slots || Count(false) == places) {
      Leave(std::find_if(snapshots.begin(), snapshots.end(),
                         [](const Snapshot& s) { return s.leases.empty(); }));
      ++stats.evicted;
    }
    if (damaged) {
      ++stats.corrupt;
      return Outcome::kCorrupt;
    }
    snapshot.put_order = ++puts_in_order;
    snapshots.push_back(std::move(snapshot));
    ++stats.puts;
    stats.bytes_peak = std::max(stats.bytes_peak, BytesHeld());
    return Outcome::kOk;
  }
};

class WindowPoolModel : public testing::TestWithParam<Limits> {
 protected:
  static constexpr uint64_t kSeed = 20'251'105;
  static constexpr Nanos kTtl = 500;

  void Put() {
    const Name name = RandomName();
    const uint64_t session = random_.Below(4);
    std::vector<std::byte> contents(1 + random_.Below(4 * kModelSlotBytes));
    for (std::byte& byte : contents) byte = static_cast<std::byte>(random_.Next());
    const bool damaged = random_.Chance(50);
    const ConstBytes whole = contents;
    const uint64_t cut = random_.Below(contents.size() + 1);
    const ConstBytes pieces[] = {whole.first(cut), whole.subspan(cut)};
    const Outcome outcome = pool_->Put(name.name_space, KeyOf(name), session, pieces,
                                       static_cast<uint32_t>(contents.size()),
                                       Crc32c(contents) ^ (damaged ? 1 : 0), now_);
    ASSERT_EQ(outcome, model_.Put(name, session, std::move(contents), damaged, now_));
    ++outcomes_[static_cast<size_t>(outcome)];
  }

  void Acquire() {
    const Name name = RandomName();
    WindowPool::View view;
    const Outcome outcome = pool_->Acquire(name.name_space, KeyOf(name), now_, &view);
    model_.Expire(now_);
    const auto found = model_.Find(name);
    ASSERT_EQ(outcome, found == model_.snapshots.end() ? Outcome::kNotFound : Outcome::kOk);
    ++(outcome == Outcome::kOk ? model_.stats.found : model_.stats.absent);
    if (outcome != Outcome::kOk) return;
    model_.Use(found, now_);
    found->leases.push_back(view);
    ++leases_;
    if (leases_ > 8) Release();
  }

  void Release() {
    if (leases_ == 0) return;
    uint64_t pick = random_.Below(leases_);
    for (Model::List* list : {&model_.snapshots, &model_.set_aside}) {
      for (auto it = list->begin(); it != list->end(); ++it) {
        if (pick >= it->leases.size()) {
          pick -= it->leases.size();
          continue;
        }
        ExpectReadable(*it);
        pool_->Release(it->leases[pick].handle);
        it->leases.erase(it->leases.begin() + static_cast<int64_t>(pick));
        --leases_;
        if (list == &model_.set_aside && it->leases.empty()) list->erase(it);
        return;
      }
    }
  }

  void DropNamespace() {
    const auto name_space = static_cast<uint16_t>(random_.Below(2));
    pool_->DropNamespace(name_space);
    for (auto it = model_.snapshots.begin(); it != model_.snapshots.end();) {
      const auto here = it++;
      if (here->name.name_space == name_space) model_.Leave(here);
    }
  }

  void Expire() {
    const Instant next = pool_->Expire(now_);
    model_.Expire(now_);
    ASSERT_EQ(next, model_.snapshots.empty() ? kNever : model_.snapshots.front().last_use + kTtl);
  }

  void ExpectReadable(const Model::Snapshot& snapshot) {
    for (const WindowPool::View& view : snapshot.leases) {
      std::vector<std::byte> contents;
      for (const uint32_t slot : view.slots) {
        const Bytes bytes = slots_->bytes(slot);
        contents.insert(contents.end(), bytes.begin(), bytes.end());
      }
      ASSERT_LE(view.bytes, contents.size());
      contents.resize(view.bytes);
      ASSERT_EQ(contents, snapshot.contents);
      ASSERT_EQ(view.crc, Crc32c(contents));
    }
  }

  void ExpectSame() {
    ASSERT_EQ(slots_->used(SlotPool::Use::kWindow), model_.SlotsUsed(false));
    ASSERT_LE(slots_->used(SlotPool::Use::kWindow), GetParam().window_slots);
    for (uint16_t name_space = 0; name_space < 2; ++name_space) {
      for (uint64_t position = 0; position < kPositions; ++position) {
        const auto found = model_.Find({name_space, position});
        const bool live = found != model_.snapshots.end() && found->last_use + kTtl > now_;
        const wire::WindowKey key = KeyOf({name_space, position});
        ASSERT_EQ(pool_->Probe(name_space, key, now_), live ? found->contents.size() : 0u);
        ASSERT_EQ(pool_->Explain(name_space, key, now_) == WindowPool::Absence::kPresent, live);
      }
    }
    const WindowPool::Stats stats = pool_->stats();
    ASSERT_EQ(stats.snapshots, model_.Count(false));
    ASSERT_LE(stats.snapshots, GetParam().snapshots_max);
    ASSERT_EQ(stats.leased, model_.Count(true));
    ASSERT_EQ(stats.bytes, model_.BytesHeld());
    ASSERT_EQ(stats.bytes_peak, model_.stats.bytes_peak);
    ASSERT_EQ(stats.puts, model_.stats.puts);
    ASSERT_EQ(stats.found, model_.stats.found);
    ASSERT_EQ(stats.absent, model_.stats.absent);
    ASSERT_EQ(stats.expired, model_.stats.expired);
    ASSERT_EQ(stats.evicted, model_.stats.evicted);
    ASSERT_EQ(stats.superseded, model_.stats.superseded);
    ASSERT_EQ(stats.rejected, model_.stats.rejected);
    ASSERT_EQ(stats.busy, model_.stats.busy);
    ASSERT_EQ(stats.corrupt, model_.stats.corrupt);
  }

  Name RandomName() { return {static_cast<uint16_t>(random_.Below(2)), random_.Below(kPositions)}; }

  static constexpr uint64_t kPositions = 12;
  Prng random_{kSeed};
  std::unique_ptr<VectorMemory> memory_;
  std::unique_ptr<SlotPool> slots_;
  std::unique_ptr<WindowPool> pool_;
  Model model_;
  Instant now_ = 1'000'000;
  uint64_t leases_ = 0;
  uint64_t outcomes_[kOutcomeCount] = {};
};

INSTANTIATE_TEST_SUITE_P(
    , WindowPoolModel,
    testing::Values(Limits{"slots_bind", 7, 100, 3}, Limits{"places_bind", 40, 2, 3},
                    Limits{"sessions_bind", 40, 100, 1}, Limits{"no_session_limit", 16, 9, 0},
                    Limits{"one_slot", 1, 100, 2}, Limits{"no_slots", 0, 100, 3}),
    [](const auto& param) { return std::string(param.param.name); });

TEST_P(WindowPoolModel, RandomCallsAgreeWithTheModel) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  memory_ =
      std::make_unique<VectorMemory>(kModelFirst, GetParam().window_slots + 1, kModelSlotBytes);
  slots_ = std::make_unique<SlotPool>(memory_.get(), kModelFirst, 1, GetParam().window_slots);
  pool_ = std::make_unique<WindowPool>(
      WindowPool::Options{.ttl_ns = kTtl,
                          .positions_per_session = GetParam().positions_per_session,
                          .snapshots_max = GetParam().snapshots_max},
      slots_.get());
  model_.limits = GetParam();
  model_.ttl_ns = kTtl;
  for (int step = 0; step < 20'000; ++step) {
    SCOPED_TRACE(step);
    // The clock stands still for half of the steps, and now and then jumps.
    if (random_.Chance(500)) now_ += static_cast<Nanos>(random_.Below(40));
    if (random_.Chance(3)) now_ += kTtl;
    const uint64_t what = random_.Below(1000);
    if (what < 400) {
      ASSERT_NO_FATAL_FAILURE(Put());
    } else if (what < 750) {
      ASSERT_NO_FATAL_FAILURE(Acquire());
    } else if (what < 900) {
      ASSERT_NO_FATAL_FAILURE(Release());
    } else if (what < 997) {
      ASSERT_NO_FATAL_FAILURE(Expire());
    } else {
      DropNamespace();
    }
    ASSERT_NO_FATAL_FAILURE(ExpectSame());
  }
  while (leases_ > 0) Release();
  EXPECT_EQ(slots_->pinned(), 0u);
  now_ += kTtl;
  Expire();
  EXPECT_EQ(slots_->used(SlotPool::Use::kWindow), 0u);
  // The run has been where its limits should lead it.
  const std::string name = GetParam().name;
  if (name == "slots_bind" || name == "places_bind") {
    for (const Outcome outcome :
         {Outcome::kOk, Outcome::kExists, Outcome::kBusy, Outcome::kCorrupt}) {
      EXPECT_GT(outcomes_[static_cast<size_t>(outcome)], 100u) << OutcomeName(outcome);
    }
    EXPECT_GT(model_.stats.expired, 100u);
    EXPECT_GT(model_.stats.evicted, 100u);
  }
  EXPECT_GE(model_.stats.superseded, name == "sessions_bind" ? 100u : 0u);
  EXPECT_GE(model_.stats.rejected, name == "no_slots" ? 100u : 0u);
}

}  // namespace
}  // namespace reprise::storage
