#include "protocol/rdma/registered_memory.h"

#include <algorithm>
#include <utility>

#include "protocol/base/check.h"

namespace reprise::rdma {
namespace {

// Below this the device is out of something else than the size of a region.
constexpr uint64_t kPieceBytesMin = 4_MiB;

absl::StatusOr<std::vector<std::unique_ptr<Memory>>> RegisterPieces(Device* device, Bytes memory,
                                                                    Access access,
                                                                    uint64_t piece_bytes) {
  std::vector<std::unique_ptr<Memory>> pieces;
  while (!memory.empty()) {
    const uint64_t bytes = std::min<uint64_t>(piece_bytes, memory.size());
    RP_ASSIGN(auto piece, device->Register(memory.first(bytes), access));
    pieces.push_back(std::move(piece));
    memory = memory.subspan(bytes);
  }
  return pieces;
}

}  // namespace

absl::StatusOr<RegisteredMemory> RegisteredMemory::Register(Device* device, Bytes memory,
                                                            Access access, uint64_t unit_bytes) {
  RP_CHECK(unit_bytes > 0 && memory.size() >= unit_bytes);
  RegisteredMemory registered;
  registered.memory_ = memory;
  const uint64_t limit = std::max(device->port().region_bytes_max, unit_bytes);
  uint64_t piece_bytes = std::min<uint64_t>(memory.size(), limit / unit_bytes * unit_bytes);
  for (;;) {
    auto pieces = RegisterPieces(device, memory, access, piece_bytes);
    if (pieces.ok()) {
      registered.piece_bytes_ = piece_bytes;
      registered.pieces_ = *std::move(pieces);
      return registered;
    }
    piece_bytes = DivideUp(piece_bytes / 2, unit_bytes) * unit_bytes;
    if (piece_bytes < std::max(kPieceBytesMin, unit_bytes)) return pieces.status();
  }
}

bool RegisteredMemory::Find(ConstBytes part, uint32_t* local_key) const {
  if (part.data() < memory_.data() || part.data() + part.size() > memory_.data() + memory_.size()) {
    return false;
  }
  const auto offset = static_cast<uint64_t>(part.data() - memory_.data());
  const uint64_t piece = offset / piece_bytes_;
  if (offset + part.size() > (piece + 1) * piece_bytes_) return false;
  *local_key = pieces_[piece]->local_key();
  return true;
}

}  // namespace reprise::rdma
