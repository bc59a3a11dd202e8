#include "tests/gpu/arena_engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "protocol/base/bytes.h"
#include "protocol/base/check.h"

namespace reprise::engine::test {
namespace {

constexpr uint64_t kAlign = 256;
constexpr uint32_t kPollsUntilDone = 3;

class Arena {
 public:
  explicit Arena(uint64_t bytes) : bytes_(AlignUp(bytes, uint64_t{4096})) {
    fd_ = memfd_create("arena_engine", MFD_CLOEXEC);
    RP_CHECK(fd_ >= 0 && ftruncate(fd_, static_cast<off_t>(bytes_)) == 0);
    void* memory = mmap(nullptr, bytes_, PROT_NONE, MAP_SHARED, fd_, 0);
    RP_CHECK(memory != MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
  }
  ~Arena() {
    munmap(memory_, bytes_);
    close(fd_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  bool Holds(const std::byte* data, uint64_t bytes) const {
    return data >= memory_ && data + bytes <= memory_ + bytes_;
  }
  bool Outside(const std::byte* data, uint64_t bytes) const {
    return data + bytes <= memory_ || data >= memory_ + bytes_;
  }
  uint64_t free_bytes() {
    const std::lock_guard lock(mutex_);
    uint64_t bytes = bytes_ - used_;
    for (const auto& [size, list] : returned_) bytes += size * list.size();
    return bytes;
  }
  // *used: it was somebody's before; if not, it is zero.
  std::byte* Take(uint64_t bytes, bool* used) {
    bytes = AlignUp(bytes, kAlign);
    const std::lock_guard lock(mutex_);
    *used = false;
    if (auto& list = returned_[bytes]; !list.empty()) {
      *used = true;
      std::byte* data = list.back();
      list.pop_back();
      return data;
    }
    if (bytes > bytes_ - used_) return nullptr;
    std::byte* data = memory_ + used_;
    used_ += bytes;
    return data;
  }
  void Return(std::byte* data, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    returned_[AlignUp(bytes, kAlign)].push_back(data);
  }

  // Where other processes of this user find it: what is closed here is not closed to them.
  std::string FileAt(const std::byte* data) const {
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_) + "@" +
           std::to_string(data - memory_);
  }

  // While it lives, the memory can be used.
  class Open {
   public:
    explicit Open(Arena* arena) : arena_(*arena), lock_(arena->open_mutex_) {
      RP_CHECK(mprotect(arena_.memory_, arena_.bytes_, PROT_READ | PROT_WRITE) == 0);
    }
    ~Open() { RP_CHECK(mprotect(arena_.memory_, arena_.bytes_, PROT_NONE) == 0); }

   private:
    Arena& arena_;
    std::lock_guard<std::mutex> lock_;
  };

 private:
  uint64_t bytes_;
  int fd_ = -1;
  std::byte* memory_ = nullptr;
  std::mutex open_mutex_;
  std::mutex mutex_;  // Guards what follows.
  uint64_t used_ = 0;
  std::map<uint64_t, std::vector<std::byte*>> returned_;
};

struct Allocation {
  Arena* arena;
  uint64_t bytes;
};

absl::StatusOr<EngineBuffer> AllocateFrom(Arena* arena, uint64_t bytes) {
  bool used = false;
  std::byte* data = arena->Take(bytes, &used);
  if (data == nullptr) {
    return absl::ResourceExhaustedError("the arena has no " + std::to_string(bytes) +
                                        " bytes left");
  }
  if (used) {
    const Arena::Open open(arena);
    std::memset(data, 0, bytes);
  }
  return EngineBuffer(
      data, bytes,
      [](std::byte* memory, void* owner) {
        const std::unique_ptr<Allocation> of(static_cast<Allocation*>(owner));
        of->arena->Return(memory, of->bytes);
      },
      new Allocation{arena, bytes});
}

class ArenaSlots final : public KvSlots {
 public:
  ArenaSlots(Arena* arena, EngineBuffer buffer, uint64_t slot_bytes, uint32_t slots)
      : arena_(*arena),
        buffer_(std::move(buffer)),
        slot_bytes_(slot_bytes),
        stride_(AlignUp(slot_bytes, kAlign)),
        slots_(slots) {}

  uint64_t slot_bytes() const override { return slot_bytes_; }
  uint32_t slots() const override { return slots_; }
  std::byte* data(uint32_t slot) const override { return buffer_.data() + slot * stride_; }
  uint32_t SlotOf(const std::byte* data) const override {
    const auto offset = static_cast<uint64_t>(data - buffer_.data());
    RP_CHECK(offset % stride_ == 0 && offset / stride_ < slots_);
    return static_cast<uint32_t>(offset / stride_);
  }
  absl::StatusOr<uint64_t> Load(std::span<const SlotCopy> copies) override {
    const Arena::Open open(&arena_);
    for (const SlotCopy& copy : copies) {
      RP_CHECK(copy.slot < slots_ && arena_.Outside(copy.host, slot_bytes_));
      std::memset(data(copy.slot), 0xDD, slot_bytes_);
    }
    return loads_.Add(copies);
  }
  absl::StatusOr<uint64_t> Store(std::span<const SlotCopy> copies) override {
    for (const SlotCopy& copy : copies) {
      RP_CHECK(copy.slot < slots_ && arena_.Outside(copy.host, slot_bytes_));
    }
    return stores_.Add(copies);
  }
  absl::StatusOr<bool> LoadDone(uint64_t number) override {
    return loads_.Done(
        number,
        [this](const SlotCopy& copy) {
          std::memcpy(data(copy.slot) + copy.offset, copy.host, BytesOf(copy));
        },
        &arena_);
  }
  absl::StatusOr<bool> StoreDone(uint64_t number) override {
    return stores_.Done(
        number,
        [this](const SlotCopy& copy) {
          std::memcpy(copy.host, data(copy.slot) + copy.offset, BytesOf(copy));
        },
        &arena_);
  }
  absl::Status Clear(std::span<const uint32_t> slots) override {
    const Arena::Open open(&arena_);
    for (const uint32_t slot : slots) std::memset(data(slot), 0, slot_bytes_);
    return absl::OkStatus();
  }
  absl::StatusOr<SlotsExport> Export() const override {
    return SlotsExport{.kind = SlotsExport::Kind::kHostTest,
                       .stride_bytes = stride_,
                       .devices = {{.handle = arena_.FileAt(buffer_.data())}}};
  }

 private:
  uint64_t BytesOf(const SlotCopy& copy) const {
    return copy.bytes == 0 ? slot_bytes_ : copy.bytes;
  }

  // Copies of one direction, in order.
  class Queue {
   public:
    uint64_t Add(std::span<const SlotCopy> copies) {
      waiting_.push_back({{copies.begin(), copies.end()}, 0});
      return ++queued_;
    }
    template <typename Run>
    bool Done(uint64_t number, Run&& run, Arena* arena) {
      RP_CHECK(number <= queued_);
      while (done_ < number) {
        if (++waiting_.front().polls < kPollsUntilDone) return false;
        const Arena::Open open(arena);
        for (const SlotCopy& copy : waiting_.front().copies) run(copy);
        waiting_.pop_front();
        ++done_;
      }
      return true;
    }

   private:
    struct Batch {
      std::vector<SlotCopy> copies;
      uint32_t polls;
    };
    uint64_t queued_ = 0, done_ = 0;
    std::deque<Batch> waiting_;
  };

  Arena& arena_;
  EngineBuffer buffer_;
  uint64_t slot_bytes_, stride_;
  uint32_t slots_;
  Queue loads_, stores_;
};

class ArenaMemory final : public EngineMemory {
 public:
  explicit ArenaMemory(Arena* arena) : arena_(*arena) {}

  bool host() const override { return false; }
  uint64_t free_bytes() const override { return arena_.free_bytes(); }
  absl::StatusOr<EngineBuffer> Allocate(uint64_t bytes) override {
    return AllocateFrom(&arena_, bytes);
  }
  absl::Status Copy(std::span<const MemoryCopy> copies) override {
    const Arena::Open open(&arena_);
    for (const MemoryCopy& copy : copies) {
      if (copy.bytes == 0) continue;
      for (const std::byte* side : {static_cast<const std::byte*>(copy.to), copy.from}) {
        RP_CHECK(arena_.Holds(side, copy.bytes) || arena_.Outside(side, copy.bytes));
      }
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<EngineBuffer> Pin(std::span<std::byte> host) override {
    RP_CHECK(arena_.Outside(host.data(), host.size()));
    return EngineBuffer();
  }
  absl::StatusOr<std::unique_ptr<KvSlots>> MakeSlots(uint64_t slot_bytes, uint32_t slots) override {
    RP_ASSIGN(EngineBuffer buffer, AllocateFrom(&arena_, AlignUp(slot_bytes, kAlign) * slots));
    return std::unique_ptr<KvSlots>(
        std::make_unique<ArenaSlots>(&arena_, std::move(buffer), slot_bytes, slots));
  }

 private:
  Arena& arena_;
};

class ArenaEngine final : public Engine {
 public:
  ArenaEngine(std::unique_ptr<Engine> inner, uint64_t arena_bytes)
      : inner_(std::move(inner)),
        backend_("arena+" + std::string(inner_->backend())),
        arena_(arena_bytes),
        memory_(&arena_) {}

  const ModelGeometry& geometry() const override { return inner_->geometry(); }
  const LiveWindowLayout& window_layout() const override { return inner_->window_layout(); }
  std::string_view backend() const override { return backend_; }
  uint32_t rows_max() const override { return inner_->rows_max(); }
  EngineMemory& memory() const override { return memory_; }
  EngineCounters counters() const override { return inner_->counters(); }

  absl::Status ForwardRows(std::span<const Segment> batch, std::span<LogitRow> rows) override {
    for (const Segment& segment : batch) {
      const size_t blocks = DivideUp(segment.tokens.size(), kBlockTokens);
      RP_CHECK(segment.memory.blocks.size() >= blocks);
      for (size_t i = 0; i < blocks; ++i) {
        RP_CHECK(arena_.Holds(segment.memory.blocks[i], geometry().record.payload_bytes));
      }
      RP_CHECK(arena_.Holds(segment.memory.window, window_layout().bytes));
    }
    const Arena::Open open(&arena_);
    return inner_->ForwardRows(batch, rows);
  }
  absl::Status Draft(std::span<const DraftRequest> requests,
                     std::span<DraftResult> results) override {
    for (const DraftRequest& request : requests) {
      RP_CHECK(arena_.Holds(request.memory.window, window_layout().bytes));
    }
    const Arena::Open open(&arena_);
    return inner_->Draft(requests, results);
  }

 private:
  std::unique_ptr<Engine> inner_;
  std::string backend_;
  mutable Arena arena_;
  mutable ArenaMemory memory_;
};

}  // namespace

std::unique_ptr<Engine> MakeArenaEngine(std::unique_ptr<Engine> inner, uint64_t arena_bytes) {
  return std::make_unique<ArenaEngine>(std::move(inner), arena_bytes);
}

EngineMaker ArenaEngineMaker(uint64_t arena_bytes) {
  return [arena_bytes](const ModelGeometry& geometry, const Checkpoint& checkpoint,
                       std::vector<uint32_t> engram_map, const EngineOptions& options,
                       std::string* note) -> absl::StatusOr<std::unique_ptr<Engine>> {
    EngineOptions of_cpu = options;
    of_cpu.device = "cpu";
    RP_ASSIGN(std::unique_ptr<Engine> inner,
              MakeEngine(geometry, checkpoint, std::move(engram_map), of_cpu, note));
    return MakeArenaEngine(std::move(inner), arena_bytes);
  };
}

}  // namespace reprise::engine::test
