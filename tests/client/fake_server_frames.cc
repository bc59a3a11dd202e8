// The fake's frames: what it reads, what it sends, and what it sends wrong on purpose.
#include <sys/socket.h>

#include <array>
#include <cstring>

#include "protocol/base/check.h"
#include "tests/client/fake_server.h"

namespace reprise::test {

bool FakeServer::ReceiveAll(void* out, size_t bytes) {
  auto* at = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t received = recv(connection_, at, bytes, 0);
    if (received <= 0) return false;
    at += received;
    bytes -= static_cast<size_t>(received);
  }
  return true;
}

bool FakeServer::SendAll(const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t sent = send(connection_, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool FakeServer::ReadRequest(Request* request) {
  std::array<std::byte, wire::kFrameHeaderBytes> bytes;
  if (!ReceiveAll(bytes.data(), bytes.size())) return false;
  RP_CHECK(wire::ParseFrameHeader(bytes, &request->header) == Outcome::kOk);
  request->body.resize(request->header.body_bytes);
  request->data.resize(request->header.data_bytes);
  if (!ReceiveAll(request->body.data(), request->body.size())) return false;
  if (!ReceiveAll(request->data.data(), request->data.size())) return false;
  RP_CHECK(wire::BodyMatches(request->header, AsBytes(request->body)));
  const bool hello = request->header.opcode == static_cast<uint8_t>(wire::Opcode::kHello);
  RP_CHECK(request->header.store_id == (hello ? 0 : StoreId()));
  return true;
}

bool FakeServer::Reply(const Request& request, Outcome outcome, std::string body, ConstBytes data,
                       bool more, std::vector<int> fds) {
  const bool strike = faults_.opcode == request.header.opcode;
  if (strike && faults_.no_reply) return true;
  if (strike && faults_.cut_body && !body.empty()) body.pop_back();
  wire::FrameHeader header{.opcode = request.header.opcode,
                           .outcome = static_cast<uint8_t>(outcome),
                           .request_id = request.header.request_id,
                           .data_bytes = data.size(),
                           .store_id = StoreId(),
                           .flags = static_cast<uint16_t>(wire::kReply | (more ? wire::kMore : 0))};
  if (strike && faults_.bad_magic) header.magic ^= 1;
  if (strike && faults_.other_version) header.version = wire::kProtocolVersion + 1;
  if (strike && faults_.other_request_id) header.request_id += 1;
  if (strike && faults_.other_store_id) header.store_id += 1;
  wire::SealFrame(&header, AsBytes(body));
  if (strike && faults_.bad_header_crc) header.header_crc ^= 1;
  if (strike && faults_.bad_body && !body.empty()) body[0] = static_cast<char>(body[0] ^ 1);
  std::string frame(AsText(AsBytes(header)));
  frame += body;
  if (strike && faults_.trailing_bytes) frame += "stray";
  if (strike && faults_.close_midway) {
    SendAll(frame.data(), frame.size() / 2);
    return false;
  }
  if (!fds.empty()) {
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(2 * sizeof(int))> control{};
    iovec part = {.iov_base = frame.data(), .iov_len = 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(2 * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds.data(), 2 * sizeof(int));
    if (sendmsg(connection_, &message, MSG_NOSIGNAL) != 1) return false;
    frame.erase(0, 1);
  }
  return SendAll(frame.data(), frame.size()) && SendAll(data.data(), data.size());
}

// As the daemon does: a hello reply that says why, then the end of the connection.
bool FakeServer::Refuse() {
  wire::HelloReply reply;
  reply.set_error("the fake is told to refuse");
  const std::string body = reply.SerializeAsString();
  wire::FrameHeader header{.opcode = static_cast<uint8_t>(wire::Opcode::kHello),
                           .outcome = static_cast<uint8_t>(Outcome::kUnsupported),
                           .flags = wire::kReply};
  wire::SealFrame(&header, AsBytes(body));
  SendAll(&header, sizeof(header));
  SendAll(body.data(), body.size());
  return false;
}

}  // namespace reprise::test
