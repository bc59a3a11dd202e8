#include "storage/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise::storage {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Arena> MakeArena(uint32_t slot_bytes, uint32_t slot_count, bool huge = false) {
  auto arena =
      Arena::Create({.slot_bytes = slot_bytes, .slot_count = slot_count, .huge_pages = huge});
  EXPECT_TRUE(arena.ok()) << arena.status();
  return arena.ok() ? *std::move(arena) : nullptr;
}

// What a client does with the descriptor that it was passed.
class ClientView {
 public:
  ClientView(int fd, uint64_t bytes, int protection)
      : bytes_(bytes),
        memory_(mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0)),
        error_(errno) {}
  ~ClientView() {
    if (ok()) munmap(memory_, bytes_);
  }
  bool ok() const { return memory_ != MAP_FAILED; }
  int error() const { return error_; }
  std::byte* at(uint64_t offset) const { return static_cast<std::byte*>(memory_) + offset; }

 private:
  uint64_t bytes_;
  void* memory_;
  int error_;
};

TEST(ArenaTest, SlotsAndGenerationsAreSharedWithReaders) {
  auto arena = MakeArena(8192, 100);
  ASSERT_NE(arena, nullptr);
  EXPECT_EQ(arena->generations_offset(), 819'200u);
  EXPECT_EQ(arena->slots().size(), 819'200u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->slots().data()) % 2_MiB, 0u);
  ClientView client(arena->read_only_fd(), arena->bytes(), PROT_READ);
  ASSERT_TRUE(client.ok());
  const auto* generations =
      reinterpret_cast<const std::atomic<uint32_t>*>(client.at(arena->generations_offset()));
  for (uint32_t slot = 0; slot < 100; ++slot) {
    ASSERT_EQ(arena->generation(slot), 0u);
    ASSERT_EQ(generations[slot], 0u);
    ASSERT_EQ(arena->slot(slot).size(), 8192u);
    arena->slot(slot).front() = static_cast<std::byte>(slot + 1);
    arena->slot(slot).back() = static_cast<std::byte>(slot + 2);
    arena->generation(slot).fetch_add(slot, std::memory_order_release);
  }
  for (uint32_t slot = 0; slot < 100; ++slot) {
    ASSERT_EQ(generations[slot].load(std::memory_order_acquire), slot);
    ASSERT_EQ(*client.at(slot * 8192u), static_cast<std::byte>(slot + 1));
    ASSERT_EQ(*client.at(slot * 8192u + 8191), static_cast<std::byte>(slot + 2));
  }
}

TEST(ArenaTest, NobodyElseCanWrite) {
  auto arena = MakeArena(4096, 4);
  ASSERT_NE(arena, nullptr);
  const int fd = arena->read_only_fd();
  ClientView writable(fd, 4096, PROT_READ | PROT_WRITE);
  EXPECT_FALSE(writable.ok());
  EXPECT_EQ(writable.error(), EACCES);
  {
    ClientView readable(fd, 4096, PROT_READ);
    ASSERT_TRUE(readable.ok());
    EXPECT_NE(mprotect(readable.at(0), 4096, PROT_READ | PROT_WRITE), 0);
  }
  EXPECT_NE(ftruncate(fd, 0), 0);
  EXPECT_NE(pwrite(fd, "x", 1, 0), 1);
  EXPECT_EQ(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);

  // Opened anew for writing: the mode stops other users, and the seals stop also root.
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const int again = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (again >= 0) {
    ClientView sneaky(again, 4096, PROT_READ | PROT_WRITE);
    EXPECT_FALSE(sneaky.ok());
    EXPECT_NE(pwrite(again, "x", 1, 0), 1);
    EXPECT_NE(ftruncate(again, 0), 0);
    EXPECT_NE(ftruncate(again, 1 << 30), 0);
    EXPECT_NE(fallocate(again, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
    close(again);
  } else {
    EXPECT_EQ(errno, EACCES);
  }
  arena->slot(0).front() = std::byte{7};  // The owner still can.
  EXPECT_EQ(arena->slot(0).front(), std::byte{7});
}

TEST(ArenaTest, SizesAroundPages) {
  struct Case {
    uint32_t slot_bytes;
    uint32_t slot_count;
    uint64_t bytes;  // With 4 KiB pages.
  };
  const Case cases[] = {
      {4096, 1, 8192},
      {4096, 1023, 1024 * 4096},
      {4096, 1024, 1025 * 4096},           // The table of generations is exactly one page...
      {4096, 1025, 1027 * 4096},           // ...and one entry more.
      {114'688, 18, 18 * 114'688 + 4096},  // One record under 2 MiB, and one over.
      {114'688, 19, 19 * 114'688 + 4096},
      {2 << 20, 1, (2 << 20) + 4096},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.slot_count << " slots of " << c.slot_bytes);
    for (const bool huge : {false, true}) {
      auto arena = MakeArena(c.slot_bytes, c.slot_count, huge);
      ASSERT_NE(arena, nullptr);
      if (arena->pages() == Arena::Pages::kSmall) {
        EXPECT_EQ(arena->bytes(), c.bytes);
        EXPECT_STREQ(arena->pages_name(), "4 KiB");
      } else {
        EXPECT_TRUE(huge);
        EXPECT_EQ(arena->bytes(), AlignUp(c.bytes, 2_MiB));
      }
      struct stat info {};
      ASSERT_EQ(fstat(arena->read_only_fd(), &info), 0);
      EXPECT_EQ(static_cast<uint64_t>(info.st_size), arena->bytes());
      arena->slot(c.slot_count - 1).back() = std::byte{1};
      EXPECT_EQ(arena->generation(c.slot_count - 1), 0u);
    }
  }
}

TEST(ArenaTest, TouchingMakesEveryPageResident) {
  for (const bool touch : {false, true}) {
    auto arena = Arena::Create(
        {.slot_bytes = 4096, .slot_count = 1000, .huge_pages = false, .touch = touch});
    ASSERT_TRUE(arena.ok()) << arena.status();
    struct stat info {};
    ASSERT_EQ(fstat((*arena)->read_only_fd(), &info), 0);
    EXPECT_EQ(static_cast<uint64_t>(info.st_blocks) * 512, touch ? (*arena)->bytes() : 0u);
  }
}

// Huge pages that cannot be had must not cost another thread what it maps meanwhile.
TEST(ArenaTest, MemoryOfOtherThreadsStaysTheirs) {
  constexpr size_t kBytes = 256 << 10;
  std::atomic<bool> done = false;
  std::thread other([&done] {
    while (!done.load()) {
      void* memory =
          mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(memory, MAP_FAILED);
      std::memset(memory, 1, kBytes);
      munmap(memory, kBytes);
    }
  });
  for (int i = 0; i < 600; ++i) MakeArena(4096, 512, true);
  done = true;
  other.join();
}

TEST(ArenaTest, ImpossibleSizesAreErrorsWithNames) {
  struct Case {
    Arena::Options options;
    const char* says;
  };
  const Case cases[] = {
      {{.slot_bytes = 0, .slot_count = 1}, "multiple of 4096"},
      {{.slot_bytes = 4095, .slot_count = 1}, "4095 bytes"},
      {{.slot_bytes = 4097, .slot_count = 1}, "4097 bytes"},
      {{.slot_bytes = 4096, .slot_count = 0}, "no slots"},
      // 4 PiB: more than any machine of today has.
      {{.slot_bytes = 1 << 20, .slot_count = UINT32_MAX}, "make the dram tier"},
  };
  for (const Case& c : cases) {
    const auto arena = Arena::Create(c.options);
    ASSERT_FALSE(arena.ok());
    EXPECT_THAT(Message(arena.status()), HasSubstr(c.says));
  }
}

TEST(StagingAreaTest, ClientWritesAndCannotTruncate) {
  auto created = StagingArea::Create(8192, 3);
  ASSERT_TRUE(created.ok()) << created.status();
  const StagingArea& area = **created;
  EXPECT_EQ(area.slot_count(), 3u);
  ClientView client(area.fd(), 3 * 8192, PROT_READ | PROT_WRITE);
  ASSERT_TRUE(client.ok());
  for (uint32_t slot = 0; slot < 3; ++slot) {
    ASSERT_EQ(area.slot(slot).size(), 8192u);
    EXPECT_EQ(area.slot(slot).front(), std::byte{0});
    *client.at(slot * 8192) = static_cast<std::byte>(slot + 5);
    *client.at(slot * 8192 + 8191) = static_cast<std::byte>(slot + 6);
    EXPECT_EQ(area.slot(slot).front(), static_cast<std::byte>(slot + 5));
    EXPECT_EQ(area.slot(slot).back(), static_cast<std::byte>(slot + 6));
  }
  for (const off_t size : {0, 4096, 3 * 8192 - 1, 3 * 8192 + 1, 1 << 20}) {
    EXPECT_NE(ftruncate(area.fd(), size), 0) << size;
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_NE(fcntl(area.fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  // A hole is only zeros: the daemon's reads go on.
  ASSERT_EQ(fallocate(area.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 3 * 8192), 0);
  EXPECT_EQ(area.slot(2).back(), std::byte{0});
}

TEST(StagingAreaTest, ImpossibleSizes) {
  EXPECT_FALSE(StagingArea::Create(0, 1).ok());
  EXPECT_FALSE(StagingArea::Create(100, 1).ok());
  EXPECT_FALSE(StagingArea::Create(4096, 0).ok());
}

}  // namespace
}  // namespace reprise::storage
