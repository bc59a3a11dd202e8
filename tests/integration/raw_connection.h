#pragma once

#include <functional>
#include <optional>
#include <string>

#include "protocol/base/bytes.h"
#include "protocol/base/clock.h"
#include "protocol/wire/frame.h"

namespace reprise::test {

// A socket to a daemon on which a test says whatever it likes.
class RawConnection {
 public:
  // "unix:/path" or "tcp:127.0.0.1:port". connected() tells whether it worked.
  explicit RawConnection(const std::string& address, int receive_buffer_bytes = 0);
  ~RawConnection() { Close(); }
  RawConnection(RawConnection&& other) noexcept;
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  bool connected() const { return fd_ >= 0; }
  void Close();

  // All of it, or false: the daemon closed, or reads nothing for a minute.
  bool Send(std::string_view bytes);

  struct Frame {
    wire::FrameHeader header;
    std::string body;
    uint64_t data_bytes = 0;  // Received and dropped.
    Outcome outcome() const { return static_cast<Outcome>(header.outcome); }
  };
  std::optional<Frame> Receive(Nanos timeout_ns);
  // True when the daemon closes within that time; what it still says is dropped.
  bool ClosedWithin(Nanos timeout_ns);

  // Says hello without local memory; frames made later carry the store's id.
  bool Hello();
  // A frame as a client would send it, after `change` had its way with the sealed header. Reseal
  // makes the header's checksum right again.
  std::string MakeFrame(wire::Opcode opcode, std::string_view body, uint64_t data_bytes = 0,
                        const std::function<void(wire::FrameHeader*)>& change = {});
  static void Reseal(wire::FrameHeader* header);
  std::optional<Frame> Call(wire::Opcode opcode, std::string_view body);

  // A namespace's id on this connection, or 0.
  uint32_t OpenNamespace(const std::string& manifest_bytes);

 private:
  bool ReceiveExactly(char* out, size_t count, Instant deadline);

  int fd_ = -1;
  uint64_t store_id_ = 0;
  uint64_t next_request_id_ = 1;
};

// The body of a hello, without and with what a test wants wrong.
std::string HelloBody(uint32_t version = wire::kProtocolVersion);

}  // namespace reprise::test
