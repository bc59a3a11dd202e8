#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "protocol/base/types.h"
#include "protocol/record/record_layout.h"

// The structs on disk, and nothing else. storage/FORMAT.md is the prose twin; tests/golden pins
// bytes.
//
// A data directory holds: LOCK, superblock, shard-<n>.data (one per shard), meta/ (RocksDB).
// A shard's file is cut into regions of equal size. A region: record slots, trailer entries, state
// page.
namespace reprise::storage {

inline constexpr uint64_t kSuperblockMagic = 0x5250555352504552;  // "REPRSUPR"
inline constexpr uint64_t kRegionMagic = 0x4e4f494745525052;      // "RPREGION"
inline constexpr uint32_t kStoreVersion = 1;

// One 4 KiB page, written twice in the file `superblock`: at 0 and at 4,096. The valid copy with
// the higher sequence counts.
struct Superblock {
  uint64_t magic = kSuperblockMagic;
  uint32_t version = kStoreVersion;
  uint32_t crc = 0;  // CRC32C of the struct without this field.
  uint64_t sequence = 0;
  std::byte uuid[16] = {};
  uint32_t shard_count = 0;
  uint32_t record_bytes = 0;
  uint64_t region_bytes = 0;
  int64_t created_ms = 0;
  std::byte reserved[64] = {};
};
static_assert(sizeof(Superblock) == 128);
static_assert(offsetof(Superblock, uuid) == 24);
static_assert(offsetof(Superblock, region_bytes) == 48);
static_assert(std::has_unique_object_representations_v<Superblock>);

enum class RegionState : uint32_t {
  kOpen = 1,    // Records are being appended: a scan reads the record tails.
  kSealed = 2,  // The trailer entries say what is in it.
};

enum RegionFlag : uint32_t {
  // Tails of records were zeroed after sealing: the entries list records that are gone, so recovery
  // compares them with the tails and seals the region anew.
  kTailsErased = 1u << 0,
};

// The last page of a region. All zeros: the region is free. Anything else that fails its check is
// damage, and the region is scanned.
struct RegionStatePage {
  uint64_t magic = kRegionMagic;
  uint32_t version = kStoreVersion;
  uint32_t crc = 0;         // CRC32C of the struct without this field.
  std::byte uuid[16] = {};  // The superblock's: a file copied in from elsewhere is refused.
  uint32_t shard = 0;
  uint32_t region = 0;
  uint64_t sequence = 0;  // Rises with every region that this shard opens; never reused.
  RegionState state = RegionState::kOpen;
  uint32_t entry_count = 0;
  uint32_t entries_crc = 0;  // CRC32C of the entries.
  uint32_t flags = 0;        // RegionFlag; a reader takes unknown ones for damage.
};
static_assert(sizeof(RegionStatePage) == 64);
static_assert(offsetof(RegionStatePage, sequence) == 40);
static_assert(std::has_unique_object_representations_v<RegionStatePage>);

enum TrailerFlag : uint32_t {
  kEntryDead = 1u << 31,  // The slot holds nothing that may be found: write failed, or withdrawn.
};

// One per record slot, in slot order.
struct TrailerEntry {
  BlockKey key;
  BlockKey name_space;  // First 16 bytes of the namespace.
  uint32_t flags = 0;   // RecordFlag, TrailerFlag.
  uint32_t block_index = 0;
  uint32_t payload_crc = 0;
  uint32_t header_crc = 0;  // Of the record: a record that was replaced in place does not match.
  int64_t created_ms = 0;
  uint64_t reserved = 0;
};
static_assert(sizeof(TrailerEntry) == 64);
static_assert(std::has_unique_object_representations_v<TrailerEntry>);

// How a region is cut, for one record size.
struct RegionGeometry {
  uint32_t record_bytes = 0;
  uint64_t region_bytes = 0;
  uint32_t slots = 0;
  uint64_t entries_offset = 0;  // From the region's start.
  uint64_t state_offset = 0;

  uint64_t RegionOffset(uint32_t region) const { return uint64_t{region} * region_bytes; }
  uint64_t SlotOffset(uint32_t region, uint32_t slot) const {
    return RegionOffset(region) + uint64_t{slot} * record_bytes;
  }
  uint64_t entries_bytes() const { return state_offset - entries_offset; }
};

// The most slots for which slots, entries (whole pages) and the state page fit. `region_bytes` is a
// multiple of 4 KiB; slots is 0 when not even one fits.
constexpr RegionGeometry CutRegion(uint32_t record_bytes, uint64_t region_bytes) {
  RegionGeometry cut{.record_bytes = record_bytes, .region_bytes = region_bytes};
  uint64_t slots = region_bytes / record_bytes;
  while (slots > 0 &&
         slots * record_bytes + AlignUp(slots * sizeof(TrailerEntry), kPageBytes) + kPageBytes >
             region_bytes) {
    --slots;
  }
  cut.slots = static_cast<uint32_t>(slots);
  cut.state_offset = region_bytes - kPageBytes;
  cut.entries_offset = cut.state_offset - AlignUp(slots * sizeof(TrailerEntry), kPageBytes);
  return cut;
}
static_assert(CutRegion(kV41RecordBytes, 64_MiB).slots == 584);

}  // namespace reprise::storage
