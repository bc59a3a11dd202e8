#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/connection.h"
#include "protocol/wire/frame.h"

namespace reprise {

// One reply frame. `body` lives until the channel receives again; header.data_bytes are still to be
// received.
struct Reply {
  wire::FrameHeader header;
  ConstBytes body;

  Outcome outcome() const { return static_cast<Outcome>(header.outcome); }
  bool more() const { return (header.flags & wire::kMore) != 0; }
};

// Frames over a connection: request ids, store id, frame checks, and releases that wait for
// company. Whatever leaves the two sides out of step (a damaged frame, a stranger's, an expired
// call whose reply may still come) closes the connection; every later call then fails with
// UNAVAILABLE and says why.
class Channel {
 public:
  explicit Channel(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}
  ~Channel() { FlushReleases(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Sends one request; `data` follows the body. The daemon is told a deadline a little before the
  // real one, so that its own timeout reply still arrives and the connection lives on.
  absl::Status Send(wire::Opcode opcode, std::string_view body, std::span<const ConstBytes> data,
                    Instant deadline);
  // The next reply to the request sent last. `body_bytes_expected` sizes the first read: more than
  // the frame has is an error when bytes follow it, so it is exact where replies have a data part,
  // and 0 where several requests are under way: those of one kind since `oldest_id`.
  absl::StatusOr<Reply> Receive(size_t body_bytes_expected, Instant deadline,
                                uint64_t oldest_id = UINT64_MAX);
  absl::Status ReceiveData(Bytes out, Instant deadline);
  // A reply that is the only one and has no data part.
  absl::StatusOr<Reply> ReceiveOnly(size_t body_bytes_expected, Instant deadline,
                                    uint64_t oldest_id = UINT64_MAX);
  // Send, then ReceiveOnly.
  absl::StatusOr<Reply> Call(wire::Opcode opcode, std::string_view body,
                             std::span<const ConstBytes> data, size_t body_bytes_expected,
                             Instant deadline);

  // Joins the next request, or leaves when kReleasesMax wait.
  void Release(uint64_t lease_id);
  void FlushReleases();

  // Closes the connection and returns the error to give to the caller.
  absl::Status Break(absl::Status why);

  void set_store_id(uint64_t store_id) { store_id_ = store_id; }
  Connection& connection() const { return *connection_; }
  uint64_t request_id() const { return request_id_; }  // Of the request sent last.

  static constexpr size_t kReleasesMax = 256;

 private:
  absl::Status CheckOpen() const;
  std::string TakeReleaseBody();
  absl::Status CheckReply(const wire::FrameHeader& header, uint64_t oldest_id) const;

  std::unique_ptr<Connection> connection_;
  std::string broken_by_;  // Empty while the connection is good.
  uint64_t request_id_ = 0;
  wire::Opcode opcode_ = wire::Opcode::kHello;
  uint64_t store_id_ = 0;
  std::vector<uint64_t> releases_;
  std::vector<std::byte> frame_;  // The reply being read: header, then body.
};

// The status for a reply whose outcome leaves nothing to return. `what` names the call.
absl::Status StatusOf(Outcome outcome, std::string_view what);

}  // namespace reprise
