#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "protocol/base/bytes.h"
#include "protocol/base/check.h"
#include "protocol/base/status.h"
#include "protocol/rdma/verbs.h"
#include "protocol/reactor/completion.h"
#include "protocol/transport/remote_write.h"

namespace reprise {

// The door to the network. A shard sees connections only through it: SocketTransport (io_uring,
// Unix and TCP sockets) and RdmaTransport in the daemon, SimTransport in tests/sim.
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
  // Streams by RDMA only: they land before the first byte of the parts arrives.
  std::span<const RemoteWrite> writes;
  // result: 0 when every byte was sent, or -errno. The parts are consumed on the way.

  void AddPart(ConstBytes bytes);
};

// What a peer is told that goes on by RDMA.
struct RdmaGrant {
  rdma::PeerAddress address;
  uint64_t staging_address = 0;
  uint32_t staging_key = 0;
};

// One connection. At most one receive and sends_max() sends are in flight; sends complete in order.
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

  // ---- RDMA, decided once, when the first request is there and before anything is sent
  // The peer's offer is taken: after one more send, and for all that is received, bytes go by RDMA.
  // The peer may write to `staging`, which outlives the stream.
  virtual absl::StatusOr<RdmaGrant> AcceptRdma(const rdma::PeerAddress& peer, Bytes staging);
  virtual void DeclineRdma() {}
  virtual bool rdma() const { return false; }
  // By RDMA a send is done when the peer's device has it: another may be posted meanwhile.
  uint32_t sends_max() const { return rdma() ? kSendsMax : 1; }
  static constexpr uint32_t kSendsMax = 2;
};

inline absl::StatusOr<RdmaGrant> Stream::AcceptRdma(const rdma::PeerAddress&, Bytes) {
  return FailedPrecondition("this daemon does not use RDMA here");
}

inline void SendOp::AddPart(ConstBytes bytes) {
  if (bytes.empty()) return;
  RP_CHECK(part_count < kPartsMax);
  parts[part_count++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace reprise
