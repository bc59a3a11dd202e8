#include "client/channel.h"

#include <algorithm>

#include "protocol/wire/control.pb.h"
#include "protocol/wire/messages.h"

namespace reprise {
namespace {

// The daemon's share of the time that is left: 1/16 less, at least 1 ms.
uint32_t DeadlineMs(Nanos left_ns) {
  const Nanos share_ns = left_ns - left_ns / 16;
  return static_cast<uint32_t>(std::clamp<Nanos>(share_ns / kMillisecond, 1, UINT32_MAX));
}

// What a daemon says before it closes a connection that it will not go on with: a hello reply with
// an error, whatever was asked.
absl::Status RefusalOf(const Reply& reply) {
  wire::HelloReply hello;
  const bool parsed = hello.ParseFromArray(reply.body.data(), static_cast<int>(reply.body.size()));
  const absl::Status status = StatusOf(reply.outcome(), "the daemon refused the connection");
  if (!parsed || hello.error().empty()) return status;
  return absl::Status(status.code(), "the daemon refused the connection: " + hello.error());
}

iovec PartOf(ConstBytes bytes) {
  return {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
}

}  // namespace

absl::Status Channel::CheckOpen() const {
  if (broken_by_.empty()) return absl::OkStatus();
  return Unavailable("the connection was closed (" + broken_by_ + "); connect again");
}

absl::Status Channel::Break(absl::Status why) {
  if (broken_by_.empty()) broken_by_ = Message(why);
  connection_->Close();
  return why;
}

std::string Channel::TakeReleaseBody() {
  std::string body;
  wire::Append(&body, wire::ReleaseRequest{.lease_count = static_cast<uint32_t>(releases_.size())});
  wire::AppendArray<uint64_t>(&body, releases_);
  releases_.clear();
  return body;
}

void Channel::Release(uint64_t lease_id) {
  if (!broken_by_.empty()) return;  // The leases ended with the connection.
  releases_.push_back(lease_id);
  if (releases_.size() >= kReleasesMax) FlushReleases();
}

void Channel::FlushReleases() {
  if (releases_.empty() || !broken_by_.empty()) return;
  const std::string body = TakeReleaseBody();
  wire::FrameHeader header{.opcode = static_cast<uint8_t>(wire::Opcode::kRelease),
                           .store_id = store_id_};
  wire::SealFrame(&header, AsBytes(body));
  std::array<iovec, 2> parts = {PartOf(AsBytes(header)), PartOf(AsBytes(body))};
  // A daemon that takes nothing for a second is gone for us; closing gives the leases back as well.
  const absl::Status sent = connection_->Send(parts, connection_->Now() + kSecond);
  if (!sent.ok()) (void)Break(sent);
}

absl::Status Channel::Send(wire::Opcode opcode, std::string_view body,
                           std::span<const ConstBytes> data, Instant deadline) {
  RP_TRY(CheckOpen());
  const Nanos left_ns = deadline - connection_->Now();
  if (left_ns <= 0) return DeadlineExceeded("the deadline passed before the request was sent");
  if (body.size() > wire::kBodyBytesMax) {
    return InvalidArgument("a request body of " + std::to_string(body.size()) +
                           " bytes is over the limit of 1 MiB; ask for less at a time");
  }
  std::vector<iovec> parts;
  parts.reserve(4 + data.size());
  wire::FrameHeader release{.opcode = static_cast<uint8_t>(wire::Opcode::kRelease),
                            .store_id = store_id_};
  std::string release_body;
  if (!releases_.empty()) {
    release_body = TakeReleaseBody();
    wire::SealFrame(&release, AsBytes(release_body));
    parts.push_back(PartOf(AsBytes(release)));
    parts.push_back(PartOf(AsBytes(release_body)));
  }
  opcode_ = opcode;
  wire::FrameHeader header{.opcode = static_cast<uint8_t>(opcode),
                           .request_id = ++request_id_,
                           .deadline_ms = DeadlineMs(left_ns),
                           .store_id = store_id_};
  for (const ConstBytes part : data) header.data_bytes += part.size();
  wire::SealFrame(&header, AsBytes(body));
  parts.push_back(PartOf(AsBytes(header)));
  parts.push_back(PartOf(AsBytes(body)));
  for (const ConstBytes part : data) parts.push_back(PartOf(part));
  const absl::Status sent = connection_->Send(parts, deadline);
  if (sent.ok()) return sent;
  if (sent.code() != absl::StatusCode::kUnavailable) return Break(sent);
  // A daemon that refuses the connection says why before it closes it: its words may lie here.
  const absl::StatusOr<Reply> last_words = Receive(0, deadline);
  return last_words.ok() ? Break(sent) : last_words.status();
}

absl::Status Channel::CheckReply(const wire::FrameHeader& header, uint64_t oldest_id) const {
  const auto opcode = static_cast<wire::Opcode>(header.opcode);
  const bool asked =
      header.request_id <= request_id_ && header.request_id >= std::min(oldest_id, request_id_);
  if ((header.flags & wire::kReply) == 0 || opcode != opcode_ || !asked) {
    return Internal("the daemon answered another request (id " + std::to_string(header.request_id) +
                    ", asked " + std::to_string(request_id_) + "); connect again");
  }
  if (opcode != wire::Opcode::kHello && header.store_id != store_id_) {
    return Unavailable("the store behind this address changed; connect again");
  }
  return absl::OkStatus();
}

absl::StatusOr<Reply> Channel::Receive(size_t body_bytes_expected, Instant deadline,
                                       uint64_t oldest_id) {
  RP_TRY(CheckOpen());
  frame_.resize(wire::kFrameHeaderBytes +
                std::min<size_t>(body_bytes_expected, wire::kBodyBytesMax));
  absl::StatusOr<size_t> received = connection_->Receive(frame_, wire::kFrameHeaderBytes, deadline);
  if (!received.ok()) return Break(received.status());
  Reply reply;
  const Outcome parsed =
      wire::ParseFrameHeader(ConstBytes(frame_).first(wire::kFrameHeaderBytes), &reply.header);
  if (parsed == Outcome::kUnsupported) {
    return Break(FailedPrecondition("the daemon speaks protocol version " +
                                    std::to_string(reply.header.version) + ", this client " +
                                    std::to_string(wire::kProtocolVersion) +
                                    "; use the same release on both sides"));
  }
  if (parsed != Outcome::kOk) {
    return Break(
        DataLoss("a reply's frame header is damaged or not of this protocol; check that "
                 "the address is a reprised daemon"));
  }
  const bool refusal = reply.header.opcode == static_cast<uint8_t>(wire::Opcode::kHello) &&
                       reply.outcome() != Outcome::kOk && reply.header.data_bytes == 0;
  if (absl::Status status = CheckReply(reply.header, oldest_id); !refusal && !status.ok()) {
    return Break(status);
  }
  const size_t frame_bytes = wire::kFrameHeaderBytes + size_t{reply.header.body_bytes};
  if (*received > frame_bytes) {
    return Break(DataLoss("a reply is followed by bytes that belong to no frame; connect again"));
  }
  frame_.resize(frame_bytes);
  const absl::Status rest = connection_->ReceiveAll(Bytes(frame_).subspan(*received), deadline);
  if (!rest.ok()) return Break(rest);
  reply.body = ConstBytes(frame_).subspan(wire::kFrameHeaderBytes);
  if (!wire::BodyMatches(reply.header, reply.body)) {
    return Break(DataLoss("a reply's body fails its checksum; connect again"));
  }
  if (refusal) return Break(RefusalOf(reply));
  return reply;
}

absl::Status Channel::ReceiveData(Bytes out, Instant deadline) {
  const absl::Status status = connection_->ReceiveAll(out, deadline);
  return status.ok() ? status : Break(status);
}

absl::StatusOr<Reply> Channel::Call(wire::Opcode opcode, std::string_view body,
                                    std::span<const ConstBytes> data, size_t body_bytes_expected,
                                    Instant deadline) {
  RP_TRY(Send(opcode, body, data, deadline));
  return ReceiveOnly(body_bytes_expected, deadline);
}

absl::StatusOr<Reply> Channel::ReceiveOnly(size_t body_bytes_expected, Instant deadline,
                                           uint64_t oldest_id) {
  RP_ASSIGN(Reply reply, Receive(body_bytes_expected, deadline, oldest_id));
  if (reply.header.data_bytes != 0 || reply.more()) {
    return Break(Internal("the daemon sent data that was not asked for; connect again"));
  }
  return reply;
}

absl::Status StatusOf(Outcome outcome, std::string_view what) {
  const std::string call(what);
  switch (outcome) {
    case Outcome::kOk:
    case Outcome::kExists:
      return absl::OkStatus();
    case Outcome::kNotFound:
      return NotFound(call + ": not stored");
    case Outcome::kPending:
      return ResourceExhausted(call + ": being written right now; try again");
    case Outcome::kBusy:
      return ResourceExhausted(call + ": the daemon is at a limit; try again later");
    case Outcome::kRejected:
      return FailedPrecondition(call + ": refused by policy or quota; see reprise status");
    case Outcome::kInvalid:
      return InvalidArgument(call + ": the daemon found the request malformed or out of range");
    case Outcome::kTimeout:
      return DeadlineExceeded(call + ": the deadline passed in the daemon");
    case Outcome::kClosed:
      return Unavailable(call + ": the daemon is going away; connect again");
    case Outcome::kCorrupt:
      return DataLoss(call + ": a check failed; the entry was withdrawn, compute it again");
    case Outcome::kIo:
      return DataLoss(call + ": the device failed; see the daemon's log");
    case Outcome::kWrongNamespace:
    case Outcome::kHashMismatch:
      return InvalidArgument(call + ": " + std::string(OutcomeName(outcome)) +
                             "; the record does not belong where it was sent");
    case Outcome::kUnsupported:
      return FailedPrecondition(call + ": the daemon does not support this; use the same release");
  }
  return Internal(call + ": unknown outcome");
}

}  // namespace reprise
