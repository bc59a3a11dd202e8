#include "protocol/record/geometry.h"

namespace reprise {

uint32_t RowFormat::code_bytes() const {
  if (codes == "e2m1") return values / 2;
  if (codes == "e4m3") return values;
  if (codes == "bf16") return values * 2;
  return 0;
}

uint32_t RowFormat::scale_bytes() const {
  if (group == 0 || (scales != "e4m3" && scales != "ue8m0")) return 0;
  return values / group;
}

KvGeometry KvGeometry::V41Flash() {
  return {.model = "v4.1-flash",
          .sources = {{2, 2}, {8, 2}, {14, 2}, {20, 1}},
          .main = {.codes = "e2m1", .scales = "e4m3", .values = 512, .group = 16},
          .indexer = {.codes = "e2m1", .scales = "ue8m0", .values = 128, .group = 32}};
}

KvGeometry KvGeometry::Nano() {
  return {.model = "nano",
          .sources = {{2, 2}, {4, 2}, {6, 1}},
          .main = {.codes = "e2m1", .scales = "e4m3", .values = 128, .group = 16},
          .indexer = {.codes = "e2m1", .scales = "ue8m0", .values = 64, .group = 32}};
}

absl::StatusOr<KvGeometry> KvGeometry::Preset(const std::string& name) {
  if (name == "v4.1-flash") return V41Flash();
  if (name == "nano") return Nano();
  return InvalidArgument("unknown model \"" + name + "\": known are v4.1-flash and nano");
}

}  // namespace reprise
