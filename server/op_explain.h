#pragma once

#include <vector>

#include "protocol/wire/control.pb.h"
#include "server/connection.h"

namespace reprise::server {

// Names the first block that stops a hit, and why. `keys`: the request's, one for each whole block.
void StartExplain(Connection* connection, const wire::FrameHeader& header,
                  const Connection::OpenNamespace& name_space, const wire::ExplainRequest& request,
                  std::vector<BlockKey> keys);

}  // namespace reprise::server
