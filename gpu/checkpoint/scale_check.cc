#include <algorithm>

#include "gpu/checkpoint/checkpoint_verifier.h"

namespace reprise::engine {
namespace {

// Read at a time, between reports of progress.
constexpr uint64_t kPieceBytes = 16_MiB;

bool IsChecked(DType type) { return type == DType::kF8E8m0 || type == DType::kF8E4m3; }

bool IsNan(DType type, std::byte code) {
  return type == DType::kF8E8m0 ? code == std::byte{0xFF}
                                : (code & std::byte{0x7F}) == std::byte{0x7F};
}

// Whether one of eight codes is NaN.
bool HoldsNan(DType type, uint64_t codes) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  constexpr uint64_t kTops = 0x8080808080808080;
  // Of UE8M0: a zero byte in the complement, which alone borrows from its own top bit.
  if (type == DType::kF8E8m0) return ((~codes - kOnes) & codes & kTops) != 0;
  // Of E4M3: 0x7F + 1 sets the top bit, anything less does not, and no byte carries.
  return (((codes & ~kTops) + kOnes) & kTops) != 0;
}

// Offset of the first NaN; codes.size() when there is none.
size_t FindNan(DType type, ConstBytes codes) {
  size_t at = 0;
  for (; at + 8 <= codes.size(); at += 8) {
    if (!HoldsNan(type, LoadLe<uint64_t>(codes.data() + at))) continue;
    for (size_t i = at; i < at + 8; ++i) {
      if (IsNan(type, codes[i])) return i;
    }
  }
  for (; at < codes.size(); ++at) {
    if (IsNan(type, codes[at])) return at;
  }
  return codes.size();
}

}  // namespace

uint64_t ScaleCheckBytes(const Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const std::string& name : checkpoint.Names()) {
    const Tensor& tensor = *checkpoint.Find(name);
    if (IsChecked(tensor.dtype)) bytes += tensor.bytes.size();
  }
  return bytes;
}

absl::Status CheckScales(const Checkpoint& checkpoint,
                         const std::function<void(uint64_t)>& progress) {
  uint64_t done = 0;
  for (const std::string& name : checkpoint.Names()) {
    const Tensor& tensor = *checkpoint.Find(name);
    if (!IsChecked(tensor.dtype)) continue;
    for (uint64_t begin = 0; begin < tensor.bytes.size(); begin += kPieceBytes) {
      const ConstBytes piece =
          tensor.bytes.subspan(begin, std::min<uint64_t>(kPieceBytes, tensor.bytes.size() - begin));
      if (const size_t at = FindNan(tensor.dtype, piece); at < piece.size()) {
        return DataLoss("tensor \"" + name + "\": byte " + std::to_string(begin + at) + " is 0x" +
                        ToHex(piece.subspan(at, 1)) + ", which is not a number in " +
                        std::string(DTypeName(tensor.dtype)) +
                        ": the shard is damaged; fetch it again");
      }
      done += piece.size();
      if (progress) progress(done);
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise::engine
