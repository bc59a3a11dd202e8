#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/base/status.h"
#include "protocol/base/types.h"

namespace reprise {

// One layer that writes global KV: `ratio` tokens share an entry, and an entry is one main KV row
// and one indexer K row (model-facts section 2.1).
struct KvSource {
  uint32_t layer = 0;
  uint32_t ratio = 1;

  friend bool operator==(const KvSource&, const KvSource&) = default;
};

// How a row of values is stored: packed codes, then one scale per `group` values.
struct RowFormat {
  std::string codes = "e2m1";   // e2m1 (4 bits), e4m3 (8 bits), bf16 (16 bits).
  std::string scales = "none";  // e4m3 or ue8m0 (1 byte each), none.
  uint32_t values = 0;          // Values in a row.
  uint32_t group = 0;           // Values that share a scale; 0 with scales "none".

  friend bool operator==(const RowFormat&, const RowFormat&) = default;

  // Zero when the format is not one of the above.
  uint32_t code_bytes() const;
  uint32_t scale_bytes() const;
  uint32_t row_bytes() const { return code_bytes() + scale_bytes(); }
};

// What decides the bytes of a block's payload. V4.1-Flash: FourSources below.
struct KvGeometry {
  std::string model;
  std::vector<KvSource> sources;
  RowFormat main;
  RowFormat indexer;

  friend bool operator==(const KvGeometry&, const KvGeometry&) = default;

  // DeepSeek-V4.1-Flash: layers 2, 8, 14 at ratio 2 and layer 20 at ratio 1; main rows of 512 E2M1
  // with an E4M3 scale per 16; indexer rows of 128 E2M1 with a UE8M0 scale per 32.
  static KvGeometry V41Flash();
  // The small trained model of the same topology: 212 bytes a token.
  static KvGeometry Nano();
  // "v4.1-flash" or "nano".
  static absl::StatusOr<KvGeometry> Preset(const std::string& name);
};

}  // namespace reprise
