#pragma once

#include <string>
#include <string_view>

#include "protocol/base/status.h"

namespace reprise::rdma {

// Which device, port and address to use, as people write it: "auto", "off", "mlx5_0", "mlx5_0:2",
// "mlx5_0:2/3" (GID index 3).
struct PortWish {
  bool off = false;
  std::string device;  // Empty: any. With the port's number if it was given.
  int gid_index = -1;  // -1: any.
};
absl::StatusOr<PortWish> ParsePortWish(std::string_view text);

}  // namespace reprise::rdma
