#include "gpu/model/cache_formats.h"

namespace reprise::engine {
namespace {

// Published for the generation before (model-facts section 2.2).
constexpr uint32_t kV4FlashBytesPerToken = 3514;

uint32_t BytesPerToken(const KvGeometry& kv) {
  double bytes = 0;
  for (const KvSource& source : kv.sources) bytes += SourceBytesPerToken(kv, source);
  return static_cast<uint32_t>(bytes);
}

uint32_t BytesPerTokenIn(KvGeometry kv, const char* codes, const char* scales, uint32_t group) {
  for (RowFormat* row : {&kv.main, &kv.indexer}) {
    row->codes = codes;
    row->scales = scales;
    row->group = group;
  }
  return BytesPerToken(kv);
}

}  // namespace

double SourceBytesPerToken(const KvGeometry& kv, const KvSource& source) {
  return static_cast<double>(kv.main.row_bytes() + kv.indexer.row_bytes()) / source.ratio;
}

std::vector<CacheFormat> CacheFormats(const ModelGeometry& geometry) {
  const KvGeometry& kv = geometry.kv;
  return {{"fp4", "FP4, the model's own", BytesPerToken(kv)},
          {"fp8", "FP8: E4M3, a UE8M0 scale per 32", BytesPerTokenIn(kv, "e4m3", "ue8m0", 32)},
          {"bf16", "BF16", BytesPerTokenIn(kv, "bf16", "none", 0)},
          {"v4_flash", "DeepSeek-V4-Flash, for comparison", kV4FlashBytesPerToken}};
}

}  // namespace reprise::engine
