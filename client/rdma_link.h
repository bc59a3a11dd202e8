#pragma once

#include <sys/uio.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/local_memory.h"
#include "protocol/base/clock.h"
#include "protocol/rdma/endpoint.h"
#include "protocol/rdma/port_wish.h"
#include "protocol/wire/messages.h"

namespace reprise {

// The RDMA way of a connection, used as its socket is, without blocking beyond a deadline; the
// socket stays and tells when the daemon is gone. Whatever breaks it is final: the connection is
// closed. One thread.
class RdmaLink {
 public:
  struct Options {
    rdma::PortWish wish;
    const rdma::Gid* local =
        nullptr;         // Among all devices, the one with this address; null: unknown.
    std::string daemon;  // Its address: after a failure it is let alone for a while.
    Nanos spin_ns = 0;
  };
  static absl::StatusOr<std::unique_ptr<RdmaLink>> Create(rdma::Verbs* verbs,
                                                          const Options& options);
  ~RdmaLink();
  RdmaLink(const RdmaLink&) = delete;
  RdmaLink& operator=(const RdmaLink&) = delete;

  const rdma::PeerAddress& address() const { return endpoint_->address(); }
  const std::string& device_name() const { return device_->port().device; }
  // `socket` is watched from now on. `staging`: this side of the daemon's staging slots at
  // `address`.
  absl::Status Connect(const rdma::PeerAddress& peer, int socket, Bytes staging,
                       uint32_t slot_bytes, uint64_t address, uint32_t key);

  // Waits until a first write has arrived: that the two devices reach each other is not known
  // before.
  absl::Status Prove(Instant deadline);

  absl::Status Send(std::span<iovec> parts, Instant deadline);
  absl::StatusOr<size_t> Receive(Bytes out, size_t bytes_min, Instant deadline);

  // Queues the slots for the daemon's staging area; they land before what is sent afterwards.
  absl::Status WriteSlots(std::span<const uint32_t> slots, Instant deadline);

  // Registers `memory` with the device, until Forget or the end of the link; once, however often it
  // is asked for.
  absl::Status Register(Bytes memory);
  // The daemon may write to `part` of `memory`, which is registered, until CloseLanding: what is
  // sent next may tell it how. One at a time, of kWindowBytesMax at most. On a device without
  // memory windows the key is that of `memory`, and lives as long as its registration.
  absl::StatusOr<wire::Landing> OpenLanding(Bytes memory, Bytes part, Instant deadline);
  // Nothing lands any more once it returns.
  absl::Status CloseLanding(Instant deadline);
  absl::StatusOr<std::unique_ptr<rdma::Memory>> RegisterDmabuf(int fd, uint64_t offset,
                                                               uint64_t bytes, uint64_t address);
  void Forget(Bytes memory);
  // True when what the daemon tells of by `tag` has landed; with its reply it has.
  bool Landed(uint32_t tag);

 private:
  struct Registered {
    Bytes memory;
    std::unique_ptr<rdma::Memory> region;
  };

  RdmaLink() = default;
  absl::StatusOr<const rdma::Memory*> Registration(Bytes memory);
  absl::Status OpenWindow(const rdma::Memory& memory, ConstBytes part, Instant deadline);
  absl::Status Broken() const;
  absl::StatusOr<bool> Poll();
  absl::Status Wait(Instant deadline);
  void CheckSocket();

  SystemClock clock_;
  std::string daemon_;
  Nanos spin_ns_ = 0;
  bool proven_ = false;
  int socket_ = -1;
  std::unique_ptr<rdma::Device> device_;
  std::unique_ptr<rdma::CompletionQueue> queue_;
  std::vector<Registered> landings_;
  std::unique_ptr<rdma::Memory> staging_region_;
  std::unique_ptr<rdma::Endpoint> endpoint_;  // Goes before the memory: nothing lands afterwards.
  std::unique_ptr<rdma::Window> window_;      // Null: the device has none.
  bool open_ = false;                         // The window.
  Bytes staging_;
  uint32_t slot_bytes_ = 0;
  uint64_t staging_address_ = 0;
  uint32_t staging_key_ = 0;
};

}  // namespace reprise
