#include "protocol/rdma/port_wish.h"

#include <charconv>

namespace reprise::rdma {
namespace {

bool IsNumber(std::string_view text, int max, int* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && *value >= 0 && *value <= max;
}

}  // namespace

absl::StatusOr<PortWish> ParsePortWish(std::string_view text) {
  PortWish wish;
  if (text == "auto") return wish;
  if (text == "off") {
    wish.off = true;
    return wish;
  }
  const absl::Status wrong = InvalidArgument("\"" + std::string(text) +
                                             "\" is no RDMA device: write auto, off, a device such "
                                             "as mlx5_0, mlx5_0:1 for a port of it, or "
                                             "mlx5_0:1/3 for a GID index");
  if (const size_t slash = text.find('/'); slash != std::string_view::npos) {
    if (!IsNumber(text.substr(slash + 1), 65'535, &wish.gid_index)) return wrong;
    text = text.substr(0, slash);
  }
  if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    int port = 0;
    if (!IsNumber(text.substr(colon + 1), 255, &port) || port == 0) return wrong;
  }
  if (text.empty() || text.front() == ':') return wrong;
  wish.device = text;
  return wish;
}

}  // namespace reprise::rdma
