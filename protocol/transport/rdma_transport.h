#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "protocol/rdma/endpoint.h"
#include "protocol/rdma/registered_memory.h"
#include "protocol/reactor/ring.h"
#include "protocol/transport/transport.h"

namespace reprise {

// A device of the machine, and the memory that it writes from. Shared by all threads.
struct RdmaPort {
  std::unique_ptr<rdma::Device> device;
  rdma::RegisteredMemory memory;
};

// Streams that may go on by RDMA, of one thread and its ring. A connection begins on its socket;
// once its peer's offer is taken (Stream::AcceptRdma) the bytes go through a queue pair, and the
// socket only tells when the peer is gone.
//
// Completions of all queue pairs of a port come by one queue. Poll takes them; a thread that wants
// to sleep in its ring calls PrepareSleep, and the queue's event wakes the ring.
class RdmaTransport {
 public:
  struct Counters {
    uint64_t accepted = 0, declined = 0;
    uint64_t writes = 0;
    std::array<uint64_t, rdma::kWorkErrors> errors{};  // Of connections that broke, by WorkError.
    uint32_t queue_pairs = 0;                          // There now, as are the next two.
    uint64_t message_bytes = 0;                        // Of registered memory for messages,
    uint64_t staging_bytes = 0;                        // and of the peers' staging areas.
  };

  // `ring`: of sockets and sleep; null where there are neither (simulation).
  RdmaTransport(Ring* ring, std::vector<const RdmaPort*> ports, uint32_t queue_pairs_max);
  ~RdmaTransport();
  RdmaTransport(const RdmaTransport&) = delete;
  RdmaTransport& operator=(const RdmaTransport&) = delete;

  absl::Status Open();

  // A connected TCP socket as a stream; takes the descriptor.
  std::unique_ptr<Stream> Wrap(int fd);
  // The same over any stream; `local`: this end's address, null where it has none.
  std::unique_ptr<Stream> Wrap(std::unique_ptr<Stream> socket, const rdma::Gid* local);

  // Runs what is due, callbacks of streams included. True when there was something.
  bool Poll();
  // False: something is there to be polled. Else the ring wakes when something comes.
  bool PrepareSleep();
  // No socket is left that a stream has let go of.
  bool idle() const { return lingering_.empty(); }
  const Counters& counters() const { return counters_; }

 private:
  class RdmaStream;
  struct SocketWatch;
  struct EventWatch : Completion {
    bool active = false;
  };
  // A port as this thread uses it.
  struct Lane {
    const RdmaPort* port = nullptr;
    std::unique_ptr<rdma::CompletionQueue> queue;
    absl::flat_hash_map<uint32_t, RdmaStream*> streams;  // By queue pair.
    EventWatch watch;
    uint32_t streams_max = 0;
    bool armed = false;
    bool failed = false;
  };

  absl::StatusOr<Lane*> LaneFor(const rdma::Gid* local);
  bool PollLane(Lane* lane);
  void FailLane(Lane* lane, const absl::Status& why);
  void MakeReady(RdmaStream* stream);
  void Forget(RdmaStream* stream);
  void Linger(std::unique_ptr<SocketWatch> watch);
  void EndLinger(SocketWatch* watch);

  Ring* ring_;
  std::vector<const RdmaPort*> ports_;
  uint32_t queue_pairs_max_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<RdmaStream*> ready_, running_;
  std::vector<std::unique_ptr<SocketWatch>> lingering_;
  Counters counters_;
};

}  // namespace reprise
