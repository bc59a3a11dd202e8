#pragma once

#include <cstdint>
#include <span>

#include "gpu/engine/engine.h"
#include "gpu/engine/prefill_plan.h"

namespace reprise::engine {

// A snapshot of windows at an exact position, as the window pool keeps it. Little-endian:
//
//   offset  bytes
//   0       4      magic "RPWS"
//   4       4      version: 1
//   8       4      flags: 1 decoder and draft windows follow, 2 tails follow, 4 derived from an
//                  encoder replay, 8 from a decoder replay
//   12      4      window: rows of a layer
//   16      8      position: tokens before it
//   24      8      bytes of the whole snapshot
//   32      4      CRC32C of all other bytes, in order
//   36      28     zeros
//   64             encoder layers: for each, [window] rows of codes in order of position mod
//   window,
//                  then their scales; decoder layers and draft stages, alike, when flagged; fp32 a,
//                  then g, of every ratio-2 source, when flagged: at odd positions
//
// Rows before the text are zero. V4.1-Flash: 64 + 1,351,680 bytes for the encoder.
struct SnapshotInfo {
  uint32_t position = 0;
  bool decoder = false;
  bool encoder_replayed = false;
  bool decoder_replayed = false;
};

inline constexpr uint32_t kSnapshotHeaderBytes = 64;

uint64_t SnapshotBytes(const ModelGeometry& geometry, uint32_t position, bool decoder);

// `out` has SnapshotBytes. The live window holds positions up to info.position.
void SaveSnapshot(const ModelGeometry& geometry, const LiveWindowLayout& layout,
                  const std::byte* window, const SnapshotInfo& info, Bytes out);

// Checks everything before it touches the window; DataLoss says what does not fit. What the window
// holds then starts at max(0, position - window).
absl::StatusOr<SnapshotInfo> RestoreSnapshot(const ModelGeometry& geometry,
                                             const LiveWindowLayout& layout, ConstBytes snapshot,
                                             std::byte* window);

}  // namespace reprise::engine
