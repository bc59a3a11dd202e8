#pragma once

#include "protocol/wire/control.pb.h"
#include "server/connection.h"

namespace reprise::server {

// Names the first block that stops a hit, and why.
void StartExplain(Connection* connection, const wire::FrameHeader& header,
                  const Connection::OpenNamespace& name_space, const wire::ExplainRequest& request);

}  // namespace reprise::server
