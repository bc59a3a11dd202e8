#include "protocol/reactor/timers.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "protocol/base/prng.h"

namespace reprise {
namespace {

struct Logged : Timer {
  Logged(int timer_id, std::vector<int>* fired_log)
      : Timer([](Timer* self, Instant) {
          auto* timer = static_cast<Logged*>(self);
          timer->log->push_back(timer->id);
        }),
        id(timer_id),
        log(fired_log) {}
  int id;
  std::vector<int>* log;
};

TEST(TimersTest, FireInOrderOfDeadlineThenOfArming) {
  std::vector<int> log;
  Timers timers;
  Logged a(0, &log), b(1, &log), c(2, &log), d(3, &log);
  EXPECT_EQ(timers.next_deadline(), kNever);
  timers.Arm(&a, 300);
  timers.Arm(&b, 100);
  timers.Arm(&c, 300);
  timers.Arm(&d, 100);
  EXPECT_EQ(timers.next_deadline(), 100);
  EXPECT_EQ(timers.RunDue(99), 0u);
  EXPECT_EQ(timers.RunDue(100), 2u);
  EXPECT_EQ(timers.next_deadline(), 300);
  EXPECT_EQ(timers.RunDue(1000), 2u);
  EXPECT_EQ(log, (std::vector<int>{1, 3, 0, 2}));
  EXPECT_EQ(timers.next_deadline(), kNever);
}

TEST(TimersTest, ArmMovesAndCancelForgets) {
  std::vector<int> log;
  Timers timers;
  Logged a(0, &log), b(1, &log);
  timers.Arm(&a, 100);
  timers.Arm(&b, 200);
  timers.Arm(&a, 300);  // Later.
  EXPECT_EQ(timers.size(), 2u);
  EXPECT_EQ(timers.next_deadline(), 200);
  timers.Arm(&a, 50);  // Earlier.
  EXPECT_EQ(timers.next_deadline(), 50);
  EXPECT_TRUE(timers.Cancel(&a));
  EXPECT_FALSE(timers.Cancel(&a));
  EXPECT_FALSE(a.armed());
  EXPECT_EQ(timers.RunDue(1000), 1u);
  EXPECT_EQ(log, (std::vector<int>{1}));
  EXPECT_FALSE(timers.Cancel(&b));  // It fired.
}

TEST(TimersTest, CallbackMayArmItselfAndWaitsForTheNextRun) {
  struct Periodic : Timer {
    explicit Periodic(Timers* owner)
        : Timer([](Timer* self, Instant now) {
            auto* timer = static_cast<Periodic*>(self);
            EXPECT_FALSE(timer->armed());
            ++timer->fired;
            timer->timers->Arm(timer, now);  // Due at once, for ever.
          }),
          timers(owner) {}
    Timers* timers;
    int fired = 0;
  };
  Timers timers;
  Periodic periodic(&timers);
  timers.Arm(&periodic, 10);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(timers.RunDue(10), 1u);
    EXPECT_EQ(periodic.fired, i);
  }
  timers.Cancel(&periodic);
}

// One timer's callback cancels, moves and destroys others of the same batch.
TEST(TimersTest, CallbackMayTouchTimersThatAreDueToo) {
  std::vector<int> log;
  Timers timers;
  Logged cancelled(1, &log), moved(2, &log), later(4, &log);
  auto destroyed = std::make_unique<Logged>(3, &log);
  struct Meddler : Timer {
    using Timer::Timer;
    Timers* timers = nullptr;
    Timer* cancel = nullptr;
    Timer* move = nullptr;
    Timer* cancel_later = nullptr;
    std::unique_ptr<Logged>* destroy = nullptr;
  };
  Meddler meddler([](Timer* self, Instant now) {
    auto* m = static_cast<Meddler*>(self);
    EXPECT_TRUE(m->timers->Cancel(m->cancel));
    m->timers->Arm(m->move, now + 5);
    EXPECT_TRUE(m->timers->Cancel(m->destroy->get()));
    m->destroy->reset();
    EXPECT_TRUE(m->timers->Cancel(m->cancel_later));
  });
  meddler.timers = &timers;
  meddler.cancel = &cancelled;
  meddler.move = &moved;
  meddler.destroy = &destroyed;
  meddler.cancel_later = &later;
  timers.Arm(&meddler, 10);
  timers.Arm(&cancelled, 11);
  timers.Arm(&moved, 12);
  timers.Arm(destroyed.get(), 13);
  timers.Arm(&later, 1000);
  EXPECT_EQ(timers.RunDue(20), 1u);
  EXPECT_TRUE(log.empty());
  EXPECT_EQ(timers.next_deadline(), 25);
  EXPECT_EQ(timers.RunDue(25), 1u);
  EXPECT_EQ(log, (std::vector<int>{2}));
}

// Against a sorted map, with random arming, moving, cancelling and running.
TEST(TimersTest, RandomModel) {
  constexpr int kTimers = 200;
  constexpr uint64_t kSeed = 20'240'607;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Prng prng(kSeed);
  std::vector<int> log;
  Timers timers;
  std::vector<std::unique_ptr<Logged>> all;
  for (int i = 0; i < kTimers; ++i) all.push_back(std::make_unique<Logged>(i, &log));
  using Key = std::pair<Instant, uint64_t>;  // Deadline, order of arming.
  std::map<Key, int> model;
  std::vector<Key> keys(kTimers, {-1, 0});
  Instant now = 0;
  uint64_t sequence = 0;
  uint64_t fired = 0;
  for (int step = 0; step < 100'000; ++step) {
    const int id = static_cast<int>(prng.Below(kTimers));
    Logged* timer = all[id].get();
    ASSERT_EQ(timer->armed(), model.count(keys[id]) > 0);
    switch (prng.Below(8)) {
      case 0:
        ASSERT_EQ(timers.Cancel(timer), model.count(keys[id]) > 0);
        model.erase(keys[id]);
        break;
      case 1: {
        now += static_cast<Instant>(prng.Below(40));
        std::vector<int> expected;
        while (!model.empty() && model.begin()->first.first <= now) {
          expected.push_back(model.begin()->second);
          model.erase(model.begin());
        }
        log.clear();
        ASSERT_EQ(timers.RunDue(now), expected.size());
        ASSERT_EQ(log, expected);
        fired += expected.size();
        break;
      }
      default:
        if (timer->armed()) model.erase(keys[id]);
        keys[id] = {now - 10 + static_cast<Instant>(prng.Below(100)), sequence++};
        model[keys[id]] = id;
        timers.Arm(timer, keys[id].first);
    }
    ASSERT_EQ(timers.size(), model.size());
    ASSERT_EQ(timers.next_deadline(), model.empty() ? kNever : model.begin()->first.first);
  }
  EXPECT_GT(fired, 10'000u);
  for (auto& timer : all) timers.Cancel(timer.get());
}

TEST(TimersTest, DestroyingAnArmedTimerIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Timers timers;
        Timer timer([](Timer*, Instant) {});
        timers.Arm(&timer, 1);
      },
      "check failed: !armed");
}

}  // namespace
}  // namespace reprise
