#pragma once

#include <cstdint>

#include "protocol/base/bytes.h"

namespace reprise {

// CRC32C (Castagnoli, reflected, initial and final inversion; RFC 3720 B.4: "123456789" gives
// 0xE3069283). Computed by ISA-L, which picks a kernel for the processor, or by tables where these
// are quicker; the first call measures both, which takes some 30 us.
// `previous` continues a checksum: Crc32c(ab) == Crc32c(b, Crc32c(a)).
uint32_t Crc32c(ConstBytes bytes, uint32_t previous = 0);

// Copies, and gives the checksum of the copy: that of what `to` holds, even when `from` changes
// meanwhile. Page by page, each summed while it is in the first-level cache; they do not overlap.
uint32_t CopyCrc32c(ConstBytes from, Bytes to, uint32_t previous = 0);

}  // namespace reprise
