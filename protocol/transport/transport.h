#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "protocol/base/bytes.h"
#include "protocol/base/check.h"
#include "protocol/reactor/completion.h"

namespace reprise {

// The door to the network. A shard sees connections only through it: SocketTransport (io_uring,
// Unix and TCP sockets) in the daemon, SimTransport in tests/sim. RDMA verbs will be the third.
//
// Everything is asynchronous and belongs to one thread: operations are embedded in their owners,
// complete through `done` (never from inside the call that started them), and complete exactly
// once, also when the stream closes.

struct ReceiveOp : Completion {
  Bytes buffer;  // result: bytes received (1..buffer.size()), 0 when the peer closed, or -errno.
};

struct SendOp : Completion {
  static constexpr size_t kPartsMax = 130;  // A header, a body, and the records of one Get reply.
  std::array<iovec, kPartsMax> parts{};
  uint32_t part_count = 0;
  // Descriptors to pass along with the first byte (Unix sockets only). The caller keeps them open
  // until done.
  std::array<int, 2> fds{};
  uint32_t fd_count = 0;
  // result: 0 when every byte was sent, or -errno. The parts are consumed on the way.

  void AddPart(ConstBytes bytes);
};

// One connection. At most one receive and one send are in flight.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void Receive(ReceiveOp* op) = 0;
  virtual void Send(SendOp* op) = 0;
  // Stops both directions: operations in flight complete soon, with 0 or an error. The owner
  // destroys the stream after they did.
  virtual void Shutdown() = 0;
  // True when descriptors and memory can be shared with the peer (Unix socket).
  virtual bool local() const = 0;
  virtual std::string peer() const = 0;  // For logs and status: "unix:pid=12", "127.0.0.1:5000".
};

inline void SendOp::AddPart(ConstBytes bytes) {
  if (bytes.empty()) return;
  RP_CHECK(part_count < kPartsMax);
  parts[part_count++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace reprise
