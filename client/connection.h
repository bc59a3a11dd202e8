#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "client/rdma_link.h"
#include "protocol/base/bytes.h"
#include "protocol/base/clock.h"
#include "protocol/base/status.h"

namespace reprise {

// The client's door to the network: one stream socket, and RDMA where it was agreed on, used
// without blocking beyond a deadline. Knows bytes and descriptors, not frames. One thread at a
// time.
class Connection {
 public:
  // "unix:/path" or "tcp:host:port" ("tcp:[::1]:port" for IPv6). Waits for a reply by spinning
  // `spin_ns` before it sleeps. Resolving a host name is not bounded by the deadline.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const std::string& address, Nanos spin_ns,
                                                          Instant deadline);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool is_unix() const { return is_unix_; }
  // This end's address as a GID; false: it is not an IP socket.
  bool LocalGid(rdma::Gid* gid) const;
  Instant Now() const { return clock_.Now(); }

  // Sends all parts, in order, with as few system calls as the socket's buffer allows. Consumes
  // `parts`.
  absl::Status Send(std::span<iovec> parts, Instant deadline);

  // From now on everything goes by `link`, which is connected to the same daemon.
  void UseRdma(std::unique_ptr<RdmaLink> link) { rdma_ = std::move(link); }
  RdmaLink* rdma() const { return rdma_.get(); }
  int descriptor() const { return fd_; }

  // Receives at least `bytes_min` and at most out.size() bytes; returns how many.
  absl::StatusOr<size_t> Receive(Bytes out, size_t bytes_min, Instant deadline);
  absl::Status ReceiveAll(Bytes out, Instant deadline) {
    return Receive(out, out.size(), deadline).status();
  }

  // From now on descriptors that come with the bytes are kept, two at most, until TakeDescriptors
  // hands them to the caller, who closes them, and ends the keeping. -1 where none came.
  void KeepDescriptors() { keep_descriptors_ = true; }
  std::array<int, 2> TakeDescriptors();

  void Close();

 private:
  Connection(Nanos spin_ns, bool is_unix) : spin_ns_(spin_ns), is_unix_(is_unix) {}
  absl::Status ConnectUnix(const std::string& path, Instant deadline);
  absl::Status ConnectTcp(const std::string& host, const std::string& port, Instant deadline);
  absl::Status WaitFor(short events, Instant deadline);
  ssize_t ReceiveOnce(Bytes out);
  void StoreDescriptors(msghdr* message);

  SystemClock clock_;
  Nanos spin_ns_;
  int fd_ = -1;
  std::unique_ptr<RdmaLink> rdma_;  // Null: the socket carries all.
  bool is_unix_;
  bool keep_descriptors_ = false;
  std::array<int, 2> descriptors_ = {-1, -1};
};

}  // namespace reprise
