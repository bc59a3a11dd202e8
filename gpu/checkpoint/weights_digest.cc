#include "gpu/checkpoint/weights_digest.h"

#include <algorithm>

namespace reprise::engine {
namespace {

constexpr size_t kSampleBytes = 64;

}  // namespace

Hash256 WeightsDigest(const Checkpoint& checkpoint) {
  const bool whole = checkpoint.total_bytes() <= 1_GiB;
  Hash256 digest = checkpoint.Digest();
  for (const std::string& name : checkpoint.Names()) {
    const ConstBytes bytes = checkpoint.Find(name)->bytes;
    if (whole || bytes.size() <= 3 * kSampleBytes) {
      digest = Sha256({AsBytes(digest), AsBytes(std::string_view(name)), bytes});
      continue;
    }
    digest = Sha256({AsBytes(digest), AsBytes(std::string_view(name)), bytes.first(kSampleBytes),
                     bytes.subspan(bytes.size() / 2, kSampleBytes), bytes.last(kSampleBytes)});
  }
  return digest;
}

}  // namespace reprise::engine
