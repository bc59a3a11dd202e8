#include "protocol/reactor/mailbox.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "protocol/base/prng.h"
#include "protocol/reactor/ring.h"
#include "protocol/reactor/wake_event.h"

namespace reprise {
namespace {

struct Numbered : Task {
  uint32_t sender = 0;
  uint32_t number = 0;
};

struct Receiver {
  std::vector<std::vector<uint32_t>> seen = std::vector<std::vector<uint32_t>>(8);
  static void Run(Task* self, void* receiver) {
    auto* task = static_cast<Numbered*>(self);
    static_cast<Receiver*>(receiver)->seen[task->sender].push_back(task->number);
  }
};

struct CountingWaker final : Waker {
  int calls = 0;
  void Wake() override { ++calls; }
};

std::vector<Numbered> MakeTasks(uint32_t sender, uint32_t count) {
  std::vector<Numbered> tasks(count);
  for (uint32_t i = 0; i < count; ++i) {
    tasks[i].run = &Receiver::Run;
    tasks[i].sender = sender;
    tasks[i].number = i;
  }
  return tasks;
}

TEST(MailboxTest, RunsInOrderOfPostingAndAtMostMax) {
  Mailbox mailbox;
  Receiver receiver;
  std::vector<Numbered> tasks = MakeTasks(0, 10);
  EXPECT_EQ(mailbox.Drain(&receiver, 100), 0u);
  for (int i = 0; i < 6; ++i) mailbox.Post(&tasks[i]);
  EXPECT_FALSE(mailbox.empty());
  EXPECT_EQ(mailbox.Drain(&receiver, 0), 0u);
  EXPECT_EQ(mailbox.Drain(&receiver, 4), 4u);
  // What is posted now comes after what is left.
  for (int i = 6; i < 10; ++i) mailbox.Post(&tasks[i]);
  EXPECT_EQ(mailbox.Drain(&receiver, 3), 3u);
  EXPECT_EQ(mailbox.Drain(&receiver, 100), 3u);
  EXPECT_TRUE(mailbox.empty());
  EXPECT_EQ(receiver.seen[0], (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(MailboxTest, OnlyThePostToASleeperWakes) {
  CountingWaker waker;
  Mailbox mailbox(&waker);
  Receiver receiver;
  std::vector<Numbered> tasks = MakeTasks(0, 8);
  mailbox.Post(&tasks[0]);
  EXPECT_EQ(waker.calls, 0);
  EXPECT_FALSE(mailbox.PrepareSleep());  // Work arrived meanwhile.
  mailbox.Post(&tasks[1]);
  EXPECT_EQ(mailbox.Drain(&receiver, 1), 1u);
  EXPECT_FALSE(mailbox.PrepareSleep());  // Work is left over.
  EXPECT_EQ(mailbox.Drain(&receiver, 1), 1u);
  EXPECT_TRUE(mailbox.PrepareSleep());
  EXPECT_TRUE(mailbox.PrepareSleep());  // Twice is once.
  EXPECT_TRUE(mailbox.empty());
  EXPECT_EQ(waker.calls, 0);
  mailbox.Post(&tasks[2]);
  mailbox.Post(&tasks[3]);
  EXPECT_EQ(waker.calls, 1);
  EXPECT_EQ(mailbox.Drain(&receiver, 9), 2u);
  mailbox.Post(&tasks[4]);
  EXPECT_EQ(waker.calls, 1);
  EXPECT_EQ(mailbox.Drain(&receiver, 9), 1u);
  // Woken by something else: Drain ends the sleep, and posts need not wake.
  EXPECT_TRUE(mailbox.PrepareSleep());
  EXPECT_EQ(mailbox.Drain(&receiver, 9), 0u);
  mailbox.Post(&tasks[5]);
  EXPECT_EQ(waker.calls, 1);
  EXPECT_EQ(mailbox.Drain(&receiver, 9), 1u);
  EXPECT_EQ(receiver.seen[0], (std::vector<uint32_t>{0, 1, 2, 3, 4, 5}));
}

TEST(MailboxTest, ATaskMayPostItselfAgainWithoutHoldingTheReceiver) {
  struct Bouncing : Task {
    Mailbox* mailbox = nullptr;
    int runs = 0;
  };
  Mailbox mailbox;
  Bouncing task;
  task.mailbox = &mailbox;
  task.run = [](Task* self, void*) {
    auto* bouncing = static_cast<Bouncing*>(self);
    ++bouncing->runs;
    bouncing->mailbox->Post(bouncing);
  };
  mailbox.Post(&task);
  for (int turn = 1; turn <= 3; ++turn) {
    EXPECT_EQ(mailbox.Drain(nullptr, 1000), 1u);
    EXPECT_EQ(task.runs, turn);
  }
}

// Many senders, one receiver that sleeps in its ring whenever it can: nothing is lost, and the
// tasks of each sender arrive in order.
TEST(MailboxTest, ManySendersOneSleepingReceiver) {
  constexpr uint32_t kSenders = 4;
  constexpr uint32_t kTasks = 20'000;
  WakeEvent event;
  ASSERT_TRUE(event.Open().ok());
  Mailbox mailbox(&event);
  Receiver receiver;
  uint64_t sleeps = 0;

  std::thread owner([&] {
    Ring ring;
    ASSERT_TRUE(ring.Open(16).ok());
    event.Arm(&ring);
    uint32_t drained = 0;
    while (drained < kSenders * kTasks) {
      const uint32_t count = mailbox.Drain(&receiver, 64);
      drained += count;
      if (count > 0 || !mailbox.PrepareSleep()) continue;
      ++sleeps;
      // A lost wake-up shows as a test that takes minutes, and here.
      const auto woken = ring.RunOnce(20 * kSecond);
      ASSERT_TRUE(woken.ok()) << woken.status();
      ASSERT_GT(*woken, 0u) << "slept for 20 s: a wake-up was lost";
    }
  });
  std::vector<std::vector<Numbered>> tasks;
  for (uint32_t sender = 0; sender < kSenders; ++sender) {
    tasks.push_back(MakeTasks(sender, kTasks));
  }
  std::vector<std::thread> senders;
  for (uint32_t sender = 0; sender < kSenders; ++sender) {
    senders.emplace_back([&, sender] {
      Prng prng(sender);
      for (Numbered& task : tasks[sender]) {
        mailbox.Post(&task);
        if (prng.Chance(10)) std::this_thread::yield();
      }
    });
  }
  for (auto& sender : senders) sender.join();
  owner.join();
  for (uint32_t sender = 0; sender < kSenders; ++sender) {
    ASSERT_EQ(receiver.seen[sender].size(), kTasks);
    for (uint32_t i = 0; i < kTasks; ++i) ASSERT_EQ(receiver.seen[sender][i], i);
  }
  RecordProperty("sleeps", std::to_string(sleeps));
}

// Two shards hand one task to and fro, each asleep while the other has it: a wake-up at every step.
TEST(MailboxTest, PingPongBetweenTwoSleepers) {
  constexpr uint32_t kRounds = 2'000;
  struct Shard {
    WakeEvent event;
    Mailbox mailbox{&event};
  };
  struct Ball : Task {
    Shard* shards = nullptr;
    uint32_t at = 0;
    uint32_t bounces = 0;
  };
  Shard shards[2];
  Ball ball;
  std::atomic<bool> over{false};
  for (Shard& shard : shards) ASSERT_TRUE(shard.event.Open().ok());
  ball.shards = shards;
  ball.run = [](Task* self, void* receiver) {
    auto* b = static_cast<Ball*>(self);
    if (++b->bounces >= 2 * kRounds) {
      *static_cast<std::atomic<bool>*>(receiver) = true;
      b->shards[b->at ^ 1].event.Wake();
      return;
    }
    b->at ^= 1;
    b->shards[b->at].mailbox.Post(b);
  };
  const auto loop = [&](Shard* shard) {
    Ring ring;
    ASSERT_TRUE(ring.Open(16).ok());
    shard->event.Arm(&ring);
    while (!over) {
      if (shard->mailbox.Drain(&over, 16) > 0 || !shard->mailbox.PrepareSleep()) continue;
      const auto woken = ring.RunOnce(20 * kSecond);
      ASSERT_TRUE(woken.ok() && *woken > 0);
    }
  };
  shards[0].mailbox.Post(&ball);
  std::thread first(loop, &shards[0]);
  std::thread second(loop, &shards[1]);
  first.join();
  second.join();
  EXPECT_EQ(ball.bounces, 2 * kRounds);
}

}  // namespace
}  // namespace reprise
