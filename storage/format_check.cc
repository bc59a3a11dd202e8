#include "storage/format_check.h"

#include <algorithm>

#include "protocol/base/checksum.h"

namespace reprise::storage {
namespace {

template <typename T>
uint32_t CrcWithoutField(const T& value) {
  const ConstBytes bytes = AsBytes(value);
  const uint32_t crc = Crc32c(bytes.first(offsetof(T, crc)));
  return Crc32c(bytes.subspan(offsetof(T, crc) + sizeof(value.crc)), crc);
}

// The checksum comes first: a flipped bit in the version is damage, not another version.
template <typename T>
FormatCheck CheckStruct(const T& value, uint64_t magic) {
  if (IsZero(AsBytes(value))) return FormatCheck::kBlank;
  if (value.magic != magic) return FormatCheck::kWrongMagic;
  if (value.crc != CrcOf(value)) return FormatCheck::kDamaged;
  return value.version == kStoreVersion ? FormatCheck::kOk : FormatCheck::kWrongVersion;
}

}  // namespace

uint32_t CrcOf(const Superblock& superblock) { return CrcWithoutField(superblock); }
uint32_t CrcOf(const RegionStatePage& page) { return CrcWithoutField(page); }

FormatCheck Check(const Superblock& superblock) {
  return CheckStruct(superblock, kSuperblockMagic);
}
FormatCheck Check(const RegionStatePage& page) { return CheckStruct(page, kRegionMagic); }

bool IsZero(ConstBytes bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

std::string UuidText(ConstBytes uuid) {
  std::string text = ToHex(uuid);
  for (const size_t at : {8, 13, 18, 23}) text.insert(at, "-");
  return text;
}

TrailerEntry EntryOf(const RecordHeader& header) {
  return {.key = KeyOf(header.block_hash),
          .name_space = KeyOf(header.name_space),
          .flags = header.flags,
          .block_index = header.block_index,
          .payload_crc = header.payload_crc,
          .header_crc = header.header_crc,
          .created_ms = header.created_ms};
}

}  // namespace reprise::storage
