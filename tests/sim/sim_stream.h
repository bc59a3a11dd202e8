#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "protocol/base/prng.h"
#include "protocol/transport/transport.h"

namespace reprise::sim {

// One direction of a connection: bytes that are on their way, in pieces with their time of arrival.
class Pipe {
 public:
  // Later bytes never arrive before earlier ones.
  void Push(std::string bytes, uint64_t due_tick);
  // Copies what has arrived, at most out.size(); returns how much.
  size_t Take(uint64_t now_tick, Bytes out);
  bool arrived(uint64_t now_tick) const {
    return !pieces_.empty() && pieces_.front().due_tick <= now_tick;
  }
  size_t bytes() const { return bytes_; }
  void Clear() {
    pieces_.clear();
    bytes_ = 0;
  }

 private:
  struct Piece {
    uint64_t due_tick;
    std::string bytes;
    size_t taken = 0;
  };

  std::deque<Piece> pieces_;
  size_t bytes_ = 0;
};

// A connection between a simulated client and a shard: the client holds the Link, the shard the
// Stream that it made. Bytes are cut and delayed by seed; nothing completes inside Receive or Send,
// only in Tick. Either end may go away at any time.
class Link {
 public:
  struct Options {
    bool fragments = false;        // Random pieces and delays; else whole, and at once.
    size_t window_bytes = 64_KiB;  // Bytes on their way to the client before the server must wait.
  };

  Link(const Options& options, uint64_t number, uint64_t seed)
      : options_(options), number_(number), prng_(seed) {}

  // The server's end. Once.
  std::unique_ptr<Stream> MakeStream();

  // ---- The client's end
  void Write(std::string_view bytes);
  // What has arrived, at most `bytes_max`.
  std::string Read(size_t bytes_max);
  void Close();  // After what was written: the server reads it, then the end.
  void Reset();  // At once: what is on its way is lost.
  // The server has ended the connection, and everything that it sent was read.
  bool AtEnd() const { return (server_gone_ || shut_) && to_client_.bytes() == 0; }

  // ---- The simulation
  void Tick();
  // The process died: its operations are never completed.
  void KillServer();
  // Both ends are gone.
  bool finished() const { return client_gone_ && server_gone_; }

 private:
  class ServerEnd;

  void TickReceive();
  void TickSend();
  void CompleteReceive(int32_t result);
  void CompleteSend(int32_t result);
  void Transmit(Pipe* pipe, std::string_view bytes, uint64_t* last_due);

  Options options_;
  uint64_t number_;
  Prng prng_;
  uint64_t now_ = 0;
  Pipe to_server_;
  Pipe to_client_;
  uint64_t to_server_due_ = 0;
  uint64_t to_client_due_ = 0;
  ReceiveOp* receive_ = nullptr;
  SendOp* send_ = nullptr;
  uint32_t send_part_ = 0;
  size_t send_offset_ = 0;
  bool shut_ = false;           // By the server.
  bool client_closed_ = false;  // Sends no more.
  bool client_gone_ = false;    // Nor reads.
  bool server_gone_ = false;
};

}  // namespace reprise::sim
