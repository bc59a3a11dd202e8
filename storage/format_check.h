#pragma once

#include <string>

#include "protocol/base/bytes.h"
#include "protocol/record/record.h"
#include "storage/format.h"

// Checksums and texts of the structs in format.h.
namespace reprise::storage {

// CRC32C of the struct without its crc field.
uint32_t CrcOf(const Superblock& superblock);
uint32_t CrcOf(const RegionStatePage& page);

// What a copy of a struct on disk is. Never trusts a field before the checksum.
enum class FormatCheck { kOk, kBlank, kWrongMagic, kWrongVersion, kDamaged };
FormatCheck Check(const Superblock& superblock);
FormatCheck Check(const RegionStatePage& page);

bool IsZero(ConstBytes bytes);

// "8-4-4-4-12" hexadecimal digits.
std::string UuidText(ConstBytes uuid);

// What the trailer says of a sealed record whose tail is `header`.
TrailerEntry EntryOf(const RecordHeader& header);

}  // namespace reprise::storage
