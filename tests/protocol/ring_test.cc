#include "protocol/reactor/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "protocol/base/bytes.h"
#include "protocol/base/clock.h"

namespace reprise {
namespace {

struct Op : Completion {
  uint32_t calls = 0;
  Op() {
    done = [](Completion* self, int32_t) { ++static_cast<Op*>(self)->calls; };
  }
};

class RingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(pipe2(pipe_, O_CLOEXEC), 0);
    file_ = memfd_create("ring_test", MFD_CLOEXEC);
    ASSERT_GE(file_, 0);
  }
  void TearDown() override {
    for (const int fd : {pipe_[0], pipe_[1], file_}) close(fd);
  }

  // Turns the ring until `op` is done.
  void Finish(Ring* ring, const Op& op, uint32_t calls = 1) {
    for (int turn = 0; turn < 5000 && op.calls < calls; ++turn) {
      const auto count = ring->RunOnce(10 * kMillisecond);
      ASSERT_TRUE(count.ok()) << count.status();
    }
    ASSERT_EQ(op.calls, calls);
  }

  SystemClock clock_;
  int pipe_[2] = {-1, -1};
  int file_ = -1;
};

TEST_F(RingTest, FilesByIndexInRegisteredMemoryAndOutOfIt) {
  Ring ring;
  ASSERT_TRUE(ring.Open(8).ok());
  ASSERT_TRUE(ring.RegisterFiles(std::vector<int>{file_}).ok());
  constexpr size_t kBytes = 64_KiB;
  auto* memory = static_cast<std::byte*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_FALSE(ring.memory_registered());
  ASSERT_TRUE(ring.RegisterMemory({memory, kBytes}).ok());
  ASSERT_TRUE(ring.memory_registered());

  std::vector<std::byte> outside(kPageBytes);
  for (size_t i = 0; i < kBytes; ++i) memory[i] = static_cast<std::byte>(i * 7);
  struct Case {
    const char* name;
    Bytes from;
    Bytes to;
  };
  const Case cases[] = {
      {"inside to outside", {memory, kPageBytes}, outside},
      {"outside to inside", outside, {memory + kPageBytes, kPageBytes}},
      {"last page", {memory + kBytes - kPageBytes, kPageBytes}, {memory, kPageBytes}},
      {"one byte", {memory + 5, 1}, {memory + 9, 1}},
      {"all", {memory, kBytes}, {memory, kBytes}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::vector<std::byte> expected(c.from.begin(), c.from.end());
    Op op;
    ring.PrepareAllocateFile(&op, 0, 0, 0, c.from.size());
    Finish(&ring, op);
    ASSERT_EQ(op.result, 0);
    ring.PrepareWriteFile(&op, 0, c.from, 8192);
    Finish(&ring, op, 2);
    ASSERT_EQ(op.result, static_cast<int32_t>(c.from.size()));
    ring.PrepareSyncFile(&op, 0);
    Finish(&ring, op, 3);
    ASSERT_EQ(op.result, 0);
    std::fill(c.to.begin(), c.to.end(), std::byte{0});
    ring.PrepareReadFile(&op, 0, c.to, 8192);
    Finish(&ring, op, 4);
    ASSERT_EQ(op.result, static_cast<int32_t>(c.to.size()));
    EXPECT_TRUE(std::equal(c.to.begin(), c.to.end(), expected.begin()));
  }
  munmap(memory, kBytes);
}

// Memory is registered in slices, of 1 GiB outside this test. A transfer over the border of two
// goes unregistered, and works.
TEST_F(RingTest, TransfersOverTheBorderOfTwoSlices) {
  Ring ring;
  ASSERT_TRUE(ring.Open(8).ok());
  constexpr size_t kBytes = 40_KiB;
  constexpr size_t kSliceBytes = 16_KiB;  // The third slice has only 8 KiB.
  auto* memory = static_cast<std::byte*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_TRUE(ring.RegisterMemory({memory, kBytes}, kSliceBytes).ok());
  ASSERT_TRUE(ring.RegisterFiles(std::vector<int>{file_}).ok());
  for (size_t at = 0; at + kPageBytes <= kBytes; at += kPageBytes) {
    for (size_t bytes = kPageBytes; at + bytes <= kBytes; bytes += kPageBytes) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes at " << at);
      const Bytes data{memory + at, bytes};
      std::fill(data.begin(), data.end(), static_cast<std::byte>(1 + at / kPageBytes));
      Op op;
      ring.PrepareWriteFile(&op, 0, data, 0);
      Finish(&ring, op);
      ASSERT_EQ(op.result, static_cast<int32_t>(bytes));
      std::fill(data.begin(), data.end(), std::byte{0});
      ring.PrepareReadFile(&op, 0, data, 0);
      Finish(&ring, op, 2);
      ASSERT_EQ(op.result, static_cast<int32_t>(bytes));
      EXPECT_EQ(data.front(), static_cast<std::byte>(1 + at / kPageBytes));
      EXPECT_EQ(data.back(), static_cast<std::byte>(1 + at / kPageBytes));
    }
  }
  munmap(memory, kBytes);
}

TEST_F(RingTest, MemoryThatCannotBeRegisteredIsAnErrorAndTransfersStillWork) {
  Ring ring;
  ASSERT_TRUE(ring.Open(8).ok());
  ASSERT_TRUE(ring.RegisterFiles(std::vector<int>{file_}).ok());
  std::vector<std::byte> memory(kPageBytes);
  auto* hole = static_cast<std::byte*>(
      mmap(nullptr, kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const absl::Status status = ring.RegisterMemory({hole, kPageBytes});
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(Message(status), ::testing::HasSubstr("registering 4096 bytes"));
  EXPECT_FALSE(ring.memory_registered());
  Op op;
  ring.PrepareWriteFile(&op, 0, memory, 0);
  Finish(&ring, op);
  EXPECT_EQ(op.result, 4096);
  ring.PrepareWriteFile(&op, 0, {hole, kPageBytes}, 0);
  Finish(&ring, op, 2);
  EXPECT_EQ(op.result, -EFAULT);
  ring.PrepareWriteFile(&op, 7, memory, 0);  // No such file.
  Finish(&ring, op, 3);
  EXPECT_EQ(op.result, -EBADF);
  munmap(hole, kPageBytes);
}

// More operations between two RunOnce than the submission queue and the completion queue hold.
TEST_F(RingTest, MoreOperationsThanBothQueuesHold) {
  Ring ring;
  ASSERT_TRUE(ring.Open(4).ok());  // 4 submissions, 16 completions.
  ASSERT_TRUE(ring.RegisterFiles(std::vector<int>{file_}).ok());
  std::vector<std::byte> page(kPageBytes, std::byte{1});
  std::vector<Op> ops(1000);
  for (size_t i = 0; i < ops.size(); ++i) ring.PrepareWriteFile(&ops[i], 0, page, i * kPageBytes);
  for (const Op& op : ops) ASSERT_EQ(op.calls, 0u);  // `done` never runs from inside a Prepare.
  uint32_t ran = 0;
  for (int turn = 0; turn < 1000 && ran < ops.size(); ++turn) {
    const auto count = ring.RunOnce(kSecond);
    ASSERT_TRUE(count.ok()) << count.status();
    ran += *count;
  }
  EXPECT_EQ(ran, ops.size());
  for (const Op& op : ops) {
    ASSERT_EQ(op.calls, 1u);
    ASSERT_EQ(op.result, 4096);
  }
  EXPECT_EQ(ring.in_kernel(), 0u);
}

// Completions that pile up in the kernel, far over the completion queue, are all delivered.
TEST_F(RingTest, CompletionQueueOverflow) {
  Ring ring;
  ASSERT_TRUE(ring.Open(4).ok());
  constexpr size_t kReads = 300;
  std::vector<Op> ops(kReads);
  std::vector<std::byte> buffer(kReads);
  for (size_t i = 0; i < kReads; ++i) ring.PrepareRead(&ops[i], pipe_[0], {&buffer[i], 1});
  ASSERT_TRUE(ring.RunOnce(0).ok());
  ASSERT_EQ(ring.in_kernel(), kReads);
  const std::vector<std::byte> bytes(kReads);
  ASSERT_EQ(write(pipe_[1], bytes.data(), kReads), static_cast<ssize_t>(kReads));
  uint32_t ran = 0;
  for (int turn = 0; turn < 1000 && ran < kReads; ++turn) {
    const auto count = ring.RunOnce(kSecond);
    ASSERT_TRUE(count.ok()) << count.status();
    ran += *count;
  }
  EXPECT_EQ(ran, kReads);
  for (const Op& op : ops) ASSERT_EQ(op.result, 1);
}

// What a full submission queue reaped on the way must not wait for something else to complete.
TEST_F(RingTest, ReapedCompletionsDoNotWait) {
  Ring ring;
  ASSERT_TRUE(ring.Open(1).ok());
  ASSERT_EQ(write(pipe_[1], "x", 1), 1);
  std::byte bytes[2] = {};
  Op first;
  Op second;
  ring.PrepareRead(&first, pipe_[0], {&bytes[0], 1});  // Completes in the kernel at once...
  ring.PrepareRead(&second, pipe_[0],
                   {&bytes[1], 1});  // ...where this one pushes it; it never does.
  const Instant start = clock_.Now();
  const auto count = ring.RunOnce(5 * kSecond);
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(*count, 1u);
  EXPECT_LT(clock_.Now() - start, 4 * kSecond);
  EXPECT_EQ(first.result, 1);
  EXPECT_EQ(second.calls, 0u);
}

TEST_F(RingTest, WaitsAtMostTheTimeout) {
  Ring ring;
  ASSERT_TRUE(ring.Open(4).ok());
  std::byte byte{};
  Op op;
  ring.PrepareRead(&op, pipe_[0], {&byte, 1});
  for (const Nanos wait_ns : {Nanos{0}, kMillisecond, 30 * kMillisecond}) {
    const Instant start = clock_.Now();
    const auto count = ring.RunOnce(wait_ns);
    ASSERT_TRUE(count.ok()) << count.status();
    EXPECT_EQ(*count, 0u);
    EXPECT_GE(clock_.Now() - start, wait_ns);
  }
  // An endless wait ends with a completion from another thread's doing.
  std::thread writer([this] { EXPECT_EQ(write(pipe_[1], "x", 1), 1); });
  const auto count = ring.RunOnce(kNever);
  writer.join();
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(*count, 1u);
  EXPECT_EQ(op.result, 1);
}

TEST_F(RingTest, CancelAndTimeout) {
  Ring ring;
  ASSERT_TRUE(ring.Open(4).ok());
  std::byte byte{};
  Op read_op;
  Op cancel_op;
  ring.PrepareRead(&read_op, pipe_[0], {&byte, 1});
  ring.PrepareCancel(&cancel_op, &read_op);
  Finish(&ring, read_op);
  Finish(&ring, cancel_op);
  EXPECT_EQ(read_op.result, -ECANCELED);
  EXPECT_EQ(cancel_op.result, 0);
  ring.PrepareCancel(&cancel_op, &read_op);  // It is over already.
  Finish(&ring, cancel_op, 2);
  EXPECT_EQ(cancel_op.result, -ENOENT);
  EXPECT_EQ(read_op.calls, 1u);

  Op timeout_op;
  const __kernel_timespec wait = {.tv_sec = 0, .tv_nsec = 5 * kMillisecond};
  const Instant start = clock_.Now();
  ring.PrepareTimeout(&timeout_op, &wait);
  Finish(&ring, timeout_op);
  EXPECT_EQ(timeout_op.result, -ETIME);
  EXPECT_GE(clock_.Now() - start, 5 * kMillisecond);
}

TEST_F(RingTest, CallbackMaySubmitTheSameOperationWithoutRecursion) {
  struct Repeating : Op {
    Ring* ring = nullptr;
    std::vector<std::byte> page = std::vector<std::byte>(kPageBytes);
    int depth = 0;
  };
  Ring ring;
  ASSERT_TRUE(ring.Open(1).ok());
  ASSERT_TRUE(ring.RegisterFiles(std::vector<int>{file_}).ok());
  Repeating op;
  op.ring = &ring;
  op.done = [](Completion* self, int32_t) {
    auto* repeating = static_cast<Repeating*>(self);
    ASSERT_EQ(++repeating->depth, 1);
    if (++repeating->calls < 500)
      repeating->ring->PrepareWriteFile(repeating, 0, repeating->page, 0);
    --repeating->depth;
  };
  ring.PrepareWriteFile(&op, 0, op.page, 0);
  Finish(&ring, op, 500);
}

TEST_F(RingTest, AnotherThreadIsRefused) {
  Ring ring;
  ASSERT_TRUE(ring.Open(4).ok());
  absl::Status status;
  std::thread stranger([&] { status = ring.RunOnce(0).status(); });
  stranger.join();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(Message(status), ::testing::HasSubstr("did not open this ring"));
  EXPECT_TRUE(ring.RunOnce(0).ok());  // Unharmed.
}

// The kernel must not write to memory of a ring that is gone.
TEST_F(RingTest, DestructorCancelsAndCallsNobody) {
  std::vector<std::byte> buffer(8);
  Op op;
  Op never;
  const __kernel_timespec hour = {.tv_sec = 3600, .tv_nsec = 0};
  {
    Ring ring;
    ASSERT_TRUE(ring.Open(4).ok());
    ring.PrepareRead(&op, pipe_[0], buffer);
    ring.PrepareTimeout(&never, &hour);
    ASSERT_TRUE(ring.RunOnce(0).ok());
    EXPECT_EQ(ring.in_kernel(), 2u);
  }
  EXPECT_EQ(op.calls + never.calls, 0u);
  ASSERT_EQ(write(pipe_[1], "late", 4), 4);
  char back[8] = {};
  EXPECT_EQ(read(pipe_[0], back, sizeof(back)), 4);  // Nobody took it.
  EXPECT_EQ(buffer, std::vector<std::byte>(8));
}

}  // namespace
}  // namespace reprise
