#pragma once

#include <memory>
#include <string>
#include <vector>

#include "protocol/transport/rdma_transport.h"

namespace reprise::server {

// The devices that the daemon uses, as `setting` says (rdma.device), with `memory` registered at
// each. "auto" takes every port that is active, and is content with none: *why_none says why. A
// device that is named and cannot be used is an error.
absl::StatusOr<std::vector<std::unique_ptr<RdmaPort>>> OpenRdmaPorts(rdma::Verbs* verbs,
                                                                     const std::string& setting,
                                                                     Bytes memory,
                                                                     uint64_t slot_bytes,
                                                                     std::string* why_none);

}  // namespace reprise::server
