#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "protocol/base/bytes.h"
#include "protocol/rdma/verbs.h"

namespace reprise::rdma {

// A large range registered with one device: in one piece, or in as few as the device allows. Does
// not change once it is made: any thread may ask.
class RegisteredMemory {
 public:
  // Pieces are cut at multiples of `unit_bytes`, so that no unit lies in two.
  static absl::StatusOr<RegisteredMemory> Register(Device* device, Bytes memory, Access access,
                                                   uint64_t unit_bytes);
  // False: `part` is not inside one piece.
  bool Find(ConstBytes part, uint32_t* local_key) const;
  size_t pieces() const { return pieces_.size(); }

 private:
  Bytes memory_;
  uint64_t piece_bytes_ = 0;  // Of every piece but the last.
  std::vector<std::unique_ptr<Memory>> pieces_;
};

}  // namespace reprise::rdma
