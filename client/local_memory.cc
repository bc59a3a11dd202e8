#include "client/local_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <functional>

#include "protocol/base/check.h"

namespace reprise {
namespace {

absl::Status CheckFileHolds(int fd, uint64_t bytes, const char* what) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, what);
  if (info.st_size < 0 || static_cast<uint64_t>(info.st_size) < bytes) {
    return DataLoss(std::string(what) + " has " + std::to_string(info.st_size) +
                    " bytes, not the " + std::to_string(bytes) +
                    " of the daemon's hello; use the same release on both sides");
  }
  return absl::OkStatus();
}

bool ShapeIsSane(const LocalMemory::Shape& shape) {
  const uint64_t slots_bytes = uint64_t{shape.arena_slots} * shape.slot_bytes;
  const uint64_t table_bytes = uint64_t{shape.arena_slots} * sizeof(uint32_t);
  return shape.slot_bytes != 0 && shape.arena_slots != 0 &&
         shape.generations_offset % sizeof(uint32_t) == 0 &&
         shape.generations_offset >= slots_bytes && shape.arena_bytes >= table_bytes &&
         shape.generations_offset <= shape.arena_bytes - table_bytes;
}

}  // namespace

LocalMemory::~LocalMemory() {
  if (!arena_.empty()) munmap(const_cast<std::byte*>(arena_.data()), arena_.size());
  if (!staging_.empty()) munmap(staging_.data(), staging_.size());
}

absl::Status LocalMemory::Map(int arena_fd, int staging_fd, const Shape& shape) {
  RP_CHECK(!mapped());
  if (!ShapeIsSane(shape)) {
    return DataLoss("the daemon's hello describes an arena that cannot be; use the same release");
  }
  const uint64_t staging_bytes = uint64_t{shape.staging_slots} * shape.slot_bytes;
  RP_TRY(CheckFileHolds(arena_fd, shape.arena_bytes, "the arena"));
  // Populated now: a page fault costs more than copying the page.
  void* arena = mmap(nullptr, shape.arena_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, arena_fd, 0);
  if (arena == MAP_FAILED) return ErrnoStatus(errno, "mapping the arena (connect by TCP instead)");
  arena_ = {static_cast<const std::byte*>(arena), shape.arena_bytes};
  shape_ = shape;
  if (staging_bytes == 0) return absl::OkStatus();
  RP_TRY(CheckFileHolds(staging_fd, staging_bytes, "the staging area"));
  void* staging = mmap(nullptr, staging_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                       staging_fd, 0);
  if (staging == MAP_FAILED) {
    return ErrnoStatus(errno, "mapping the staging area (connect by TCP instead)");
  }
  staging_ = {static_cast<std::byte*>(staging), staging_bytes};
  return absl::OkStatus();
}

absl::Status LocalMemory::MakeStaging(uint32_t slot_bytes, uint32_t slots) {
  RP_CHECK(staging_.empty());
  const uint64_t bytes = uint64_t{slots} * slot_bytes;
  if (bytes == 0) return absl::OkStatus();
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "no memory for staging slots");
  staging_ = {static_cast<std::byte*>(memory), bytes};
  shape_.slot_bytes = slot_bytes;
  shape_.staging_slots = slots;
  return absl::OkStatus();
}

bool LocalMemory::Current(const wire::SlotRef& ref) const {
  if (ref.slot >= shape_.arena_slots) return false;
  const std::byte* at = arena_.data() + shape_.generations_offset + ref.slot * sizeof(uint32_t);
  const auto* generation = reinterpret_cast<const std::atomic<uint32_t>*>(at);
  return generation->load(std::memory_order_acquire) == ref.generation;
}

ConstBytes LocalMemory::slot(uint32_t index) const {
  RP_CHECK(index < shape_.arena_slots);
  return arena_.subspan(uint64_t{index} * shape_.slot_bytes, shape_.slot_bytes);
}

Bytes LocalMemory::staging(uint32_t index) const {
  RP_CHECK(index < shape_.staging_slots);
  return staging_.subspan(uint64_t{index} * shape_.slot_bytes, shape_.slot_bytes);
}

uint32_t LocalMemory::StagingSlotOf(ConstBytes bytes) const {
  const std::less_equal<const std::byte*> not_after;
  if (staging_.empty() || !not_after(staging_.data(), bytes.data()) ||
      !not_after(bytes.data() + bytes.size(), staging_.data() + staging_.size())) {
    return wire::kNoSlot;
  }
  const auto offset = static_cast<uint64_t>(bytes.data() - staging_.data());
  return offset % shape_.slot_bytes == 0 ? static_cast<uint32_t>(offset / shape_.slot_bytes)
                                         : wire::kNoSlot;
}

}  // namespace reprise
