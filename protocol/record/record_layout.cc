#include "protocol/record/record_layout.h"

#include <string>

namespace reprise {
namespace {

constexpr uint64_t kPayloadBytesMax = 64_MiB;

absl::Status CheckFormat(const RowFormat& format, const char* name) {
  const bool scales_known = format.scales == "none"
                                ? format.group == 0
                                : format.scale_bytes() != 0 && format.values % format.group == 0;
  if (format.values == 0 || format.values > 65536 || format.code_bytes() == 0 || !scales_known) {
    return InvalidArgument(std::string("geometry: the ") + name + " row format (codes \"" +
                           format.codes + "\", scales \"" + format.scales + "\", " +
                           std::to_string(format.values) + " values in groups of " +
                           std::to_string(format.group) + ") is not known");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RecordLayout> RecordLayout::For(const KvGeometry& geometry) {
  RP_TRY(CheckFormat(geometry.main, "main KV"));
  RP_TRY(CheckFormat(geometry.indexer, "indexer K"));
  if (geometry.sources.empty()) return InvalidArgument("geometry: no source layer");

  RecordLayout layout;
  uint64_t offset = 0;
  const auto take = [&offset](uint32_t rows, uint32_t row_bytes) {
    const auto start = static_cast<uint32_t>(offset);
    offset += uint64_t{rows} * row_bytes;
    return start;
  };
  for (const KvSource& source : geometry.sources) {
    if (source.ratio == 0 || kBlockTokens % source.ratio != 0) {
      return InvalidArgument("geometry: source layer " + std::to_string(source.layer) +
                             " has ratio " + std::to_string(source.ratio) +
                             ", which does not divide a block of 128 tokens");
    }
    SourcePlanes planes{.layer = source.layer, .rows = kBlockTokens / source.ratio};
    planes.main_codes = take(planes.rows, geometry.main.code_bytes());
    planes.main_scales = take(planes.rows, geometry.main.scale_bytes());
    planes.indexer_codes = take(planes.rows, geometry.indexer.code_bytes());
    planes.indexer_scales = take(planes.rows, geometry.indexer.scale_bytes());
    planes.end = static_cast<uint32_t>(offset);
    if (offset > kPayloadBytesMax) return InvalidArgument("geometry: a block exceeds 64 MiB");
    layout.sources.push_back(planes);
  }
  layout.payload_bytes = static_cast<uint32_t>(offset);
  layout.record_bytes = RecordBytesFor(layout.payload_bytes);
  return layout;
}

}  // namespace reprise
