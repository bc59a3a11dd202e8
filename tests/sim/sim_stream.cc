#include "tests/sim/sim_stream.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace reprise::sim {

void Pipe::Push(std::string bytes, uint64_t due_tick) {
  if (bytes.empty()) return;
  bytes_ += bytes.size();
  pieces_.push_back({due_tick, std::move(bytes)});
}

size_t Pipe::Take(uint64_t now_tick, Bytes out) {
  size_t copied = 0;
  while (copied < out.size() && arrived(now_tick)) {
    Piece& piece = pieces_.front();
    const size_t take = std::min(out.size() - copied, piece.bytes.size() - piece.taken);
    std::memcpy(out.data() + copied, piece.bytes.data() + piece.taken, take);
    piece.taken += take;
    copied += take;
    if (piece.taken == piece.bytes.size()) pieces_.pop_front();
  }
  bytes_ -= copied;
  return copied;
}

class Link::ServerEnd final : public Stream {
 public:
  explicit ServerEnd(Link* link) : link_(link) {}
  ~ServerEnd() override {
    RP_CHECK(link_->receive_ == nullptr && link_->send_ == nullptr);
    link_->server_gone_ = true;
  }

  void Receive(ReceiveOp* op) override {
    RP_CHECK(link_->receive_ == nullptr && op->done != nullptr && !op->buffer.empty());
    link_->receive_ = op;
  }
  void Send(SendOp* op) override {
    RP_CHECK(link_->send_ == nullptr && op->done != nullptr && op->fd_count == 0);
    link_->send_ = op;
    link_->send_part_ = 0;
    link_->send_offset_ = 0;
  }
  void Shutdown() override { link_->shut_ = true; }
  bool local() const override { return false; }
  std::string peer() const override { return "sim:" + std::to_string(link_->number_); }

 private:
  Link* link_;
};

std::unique_ptr<Stream> Link::MakeStream() { return std::make_unique<ServerEnd>(this); }

void Link::Transmit(Pipe* pipe, std::string_view bytes, uint64_t* last_due) {
  *last_due = std::max(*last_due, now_ + 1);
  while (!bytes.empty()) {
    // Any size is as likely as any other of its order of magnitude: 1 byte to 128 KiB.
    size_t piece = bytes.size();
    if (options_.fragments) {
      piece = std::min<size_t>(piece, 1 + prng_.Below(uint64_t{1} << prng_.Below(18)));
      if (prng_.Chance(300)) *last_due += prng_.Below(4);
    }
    pipe->Push(std::string(bytes.substr(0, piece)), *last_due);
    bytes.remove_prefix(piece);
  }
}

// ---- The client's end
// ------------------------------------------------------------------------------

void Link::Write(std::string_view bytes) {
  if (!client_closed_) Transmit(&to_server_, bytes, &to_server_due_);
}

std::string Link::Read(size_t bytes_max) {
  std::string bytes(std::min(bytes_max, to_client_.bytes()), '\0');
  bytes.resize(to_client_.Take(now_, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}));
  return bytes;
}

void Link::Close() {
  client_closed_ = true;
  client_gone_ = true;
  to_client_.Clear();
}

void Link::Reset() {
  Close();
  to_server_.Clear();
}

// ---- The simulation
// --------------------------------------------------------------------------------

void Link::Tick() {
  ++now_;
  // A stream may be destroyed by what a completion leads to, but not before the end of a turn.
  TickReceive();
  TickSend();
}

void Link::KillServer() {
  receive_ = nullptr;
  send_ = nullptr;
  shut_ = true;
  server_gone_ = true;
}

void Link::CompleteReceive(int32_t result) {
  ReceiveOp* op = std::exchange(receive_, nullptr);
  op->result = result;
  op->done(op, result);
}

void Link::CompleteSend(int32_t result) {
  SendOp* op = std::exchange(send_, nullptr);
  op->result = result;
  op->done(op, result);
}

void Link::TickReceive() {
  for (uint64_t again = 1 + prng_.Below(4); again > 0 && receive_ != nullptr; --again) {
    // After a shutdown the kernel may still hand over what had arrived before.
    const bool take = to_server_.arrived(now_) && (!shut_ || prng_.Chance(500));
    if (take) {
      Bytes buffer = receive_->buffer;
      if (options_.fragments && prng_.Chance(200)) {
        buffer = buffer.first(1 + prng_.Below(buffer.size()));
      }
      CompleteReceive(static_cast<int32_t>(to_server_.Take(now_, buffer)));
    } else if (shut_ || (client_closed_ && to_server_.bytes() == 0)) {
      CompleteReceive(shut_ || prng_.Chance(500) ? 0 : -ECONNRESET);
    } else {
      return;
    }
  }
}

void Link::TickSend() {
  if (send_ == nullptr) return;
  if (shut_ || client_gone_) return CompleteSend(-EPIPE);
  size_t budget = options_.fragments ? 1 + prng_.Below(uint64_t{1} << prng_.Below(18)) : SIZE_MAX;
  while (send_part_ < send_->part_count && budget > 0) {
    if (to_client_.bytes() >= options_.window_bytes) return;
    const iovec& part = send_->parts[send_part_];
    const size_t room = options_.window_bytes - to_client_.bytes();
    const size_t take = std::min({part.iov_len - send_offset_, budget, room});
    Transmit(&to_client_, {static_cast<const char*>(part.iov_base) + send_offset_, take},
             &to_client_due_);
    budget -= take;
    send_offset_ += take;
    if (send_offset_ < part.iov_len) continue;
    ++send_part_;
    send_offset_ = 0;
  }
  if (send_part_ == send_->part_count) CompleteSend(0);
}

}  // namespace reprise::sim
