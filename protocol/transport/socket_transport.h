#pragma once

#include <memory>

#include "protocol/reactor/ring.h"
#include "protocol/transport/transport.h"

namespace reprise {

// A connected Unix or TCP stream socket as a Stream over `ring`. Takes the descriptor, and closes
// it. Everything about it happens on the ring's thread. REQUIRES, when it is destroyed: nothing in
// flight, so after Shutdown() the owner waits for its two operations first; either may destroy the
// stream from its `done` when the other is not in flight.
std::unique_ptr<Stream> MakeSocketStream(Ring* ring, int fd);

}  // namespace reprise
