#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "protocol/base/bytes.h"
#include "protocol/base/status.h"

namespace reprise::storage {

// The DRAM tier's memory: one memfd cut into record slots, followed by a table of one generation a
// slot. Local clients map it read-only from the descriptor that they are passed. Allocated and
// touched once, at start, and never grown.
class Arena {
 public:
  struct Options {
    uint32_t slot_bytes = 0;  // Multiple of 4 KiB.
    uint32_t slot_count = 0;
    bool huge_pages = true;  // Try 2 MiB pages: hugetlb, then transparent; fall back to 4 KiB.
    bool touch = true;       // Fault every page in now. A page fault later costs 16 us and more.
  };

  // What backs the memory; told in the start-up log and in status.
  enum class Pages { kHugetlb, kTransparentHuge, kSmall };

  // Blocks while it touches memory. Fails with the sizes named when the machine has not enough.
  static absl::StatusOr<std::unique_ptr<Arena>> Create(const Options& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint32_t slot_bytes() const { return options_.slot_bytes; }
  uint32_t slot_count() const { return options_.slot_count; }
  Bytes slot(uint32_t index) const {
    return {memory_.data() + uint64_t{index} * options_.slot_bytes, options_.slot_bytes};
  }
  Bytes slots() const { return memory_.first(generations_offset()); }
  // Slots, then generations, rounded up to the page size in use.
  uint64_t bytes() const { return memory_.size(); }
  uint64_t generations_offset() const { return uint64_t{slot_count()} * slot_bytes(); }
  std::atomic<uint32_t>& generation(uint32_t index) const {
    return reinterpret_cast<std::atomic<uint32_t>*>(memory_.data() + generations_offset())[index];
  }
  // A descriptor that can be mapped read-only and not otherwise. Owned by the arena.
  int read_only_fd() const { return read_only_fd_; }
  Pages pages() const { return pages_; }
  const char* pages_name() const;

 private:
  Arena() = default;

  Options options_;
  Bytes memory_;
  int fd_ = -1;
  int read_only_fd_ = -1;
  Pages pages_ = Pages::kSmall;
};

// A writable memfd of `bytes`, for a connection's staging slots: mapped here and passed to the
// client.
class StagingArea {
 public:
  static absl::StatusOr<std::unique_ptr<StagingArea>> Create(uint32_t slot_bytes, uint32_t slots);
  ~StagingArea();
  StagingArea(const StagingArea&) = delete;
  StagingArea& operator=(const StagingArea&) = delete;

  ConstBytes slot(uint32_t index) const {
    return {memory_.data() + uint64_t{index} * slot_bytes_, slot_bytes_};
  }
  Bytes memory() const { return memory_; }
  uint32_t slot_count() const { return slots_; }
  int fd() const { return fd_; }

 private:
  StagingArea() = default;

  Bytes memory_;
  uint32_t slot_bytes_ = 0;
  uint32_t slots_ = 0;
  int fd_ = -1;
};

}  // namespace reprise::storage
