#include "protocol/transport/rdma_transport.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "protocol/base/check.h"
#include "protocol/transport/socket_transport.h"

namespace reprise {
namespace {

constexpr uint32_t kCompletionsMax = 65'536;
constexpr size_t kCompletionsPerPoll = 64;
constexpr int kPollsPerTurn = 8;

}  // namespace

// The socket of a connection: carries its hello, then tells when the peer is gone. Outlives its
// stream while a receive is in flight.
struct RdmaTransport::SocketWatch : ReceiveOp {
  std::unique_ptr<Stream> socket;
  RdmaStream* stream = nullptr;  // Null: it was destroyed.
  RdmaTransport* transport = nullptr;
  bool active = false;
  bool ended = false;
  int32_t end_result = 0;
  size_t begin = 0, end = 0;  // Received and not handed on.
  std::array<std::byte, 4096> bytes;
};

class RdmaTransport::RdmaStream final : public Stream {
 public:
  RdmaStream(RdmaTransport* transport, std::unique_ptr<Stream> socket, const rdma::Gid* local)
      : transport_(*transport), watch_(std::make_unique<SocketWatch>()) {
    if (local != nullptr) gid_ = *local;
    watch_->socket = std::move(socket);
    watch_->stream = this;
    watch_->transport = transport;
    watch_->done = &RdmaStream::OnSocket;
    sends_.reserve(kSendsMax);
  }
  ~RdmaStream() override {
    RP_CHECK(receive_ == nullptr && sends_.empty());
    transport_.Forget(this);
    DropEndpoint();
    if (!watch_->active) return;
    watch_->stream = nullptr;
    watch_->socket->Shutdown();
    transport_.Linger(std::move(watch_));
  }

  void Receive(ReceiveOp* op) override {
    RP_CHECK(receive_ == nullptr && !op->buffer.empty());
    if (mode_ == Mode::kSocket && watch_->begin == watch_->end && !watch_->active) {
      watch_->socket->Receive(op);
      return;
    }
    receive_ = op;
    transport_.MakeReady(this);
  }

  void Send(SendOp* op) override {
    if (mode_ != Mode::kRdma || hello_to_send_) {
      RP_CHECK(op->writes.empty());
      hello_to_send_ = false;
      watch_->socket->Send(op);
      return;
    }
    RP_CHECK(sends_.size() < kSendsMax);
    sends_.push_back({.op = op});
    transport_.MakeReady(this);
  }

  void Shutdown() override {
    watch_->socket->Shutdown();
    if (mode_ != Mode::kRdma) return;
    Break(rdma::WorkError::kFlushed, "shut down");
  }

  bool local() const override { return false; }
  bool rdma() const override { return mode_ == Mode::kRdma; }
  std::string peer() const override {
    if (mode_ != Mode::kRdma) return watch_->socket->peer();
    return watch_->socket->peer() + " rdma=" + lane_->port->device->port().device;
  }

  absl::StatusOr<RdmaGrant> AcceptRdma(const rdma::PeerAddress& peer, Bytes staging) override {
    RP_CHECK(mode_ == Mode::kUndecided);
    auto grant = Accept(peer, staging);
    if (grant.ok()) {
      ++transport_.counters_.accepted;
      mode_ = Mode::kRdma;
      hello_to_send_ = true;
      transport_.MakeReady(this);  // Starts to watch the socket.
    } else {
      DropEndpoint();
    }
    return grant;
  }
  void DeclineRdma() override {
    ++transport_.counters_.declined;
    mode_ = Mode::kSocket;
  }

  rdma::Endpoint* endpoint() { return endpoint_.get(); }

  void Break(rdma::WorkError error, const std::string& why) {
    if (endpoint_ != nullptr) endpoint_->Break(error, why);
    transport_.MakeReady(this);
  }

  // Moves what can move. The last thing that it does may destroy the stream.
  void Pump() {
    ready_ = false;
    if (mode_ != Mode::kRdma) {
      PumpSocket();
      return;
    }
    if (!watch_->active && !watch_->ended) StartWatch();
    if (endpoint_ != nullptr && watch_->ended) {
      endpoint_->Break(rdma::WorkError::kFlushed, "the peer closed its socket");
    }
    if (endpoint_ != nullptr) PumpEndpoint();
    const bool broken = endpoint_ == nullptr || endpoint_->broken();
    if (broken) DropEndpoint();  // The device lets go of the memory that is being sent.
    ReceiveOp* received = nullptr;
    int32_t result = 0;
    if (receive_ != nullptr && (broken || endpoint_->readable() > 0)) {
      if (!broken) {
        result = static_cast<int32_t>(endpoint_->Receive(receive_->buffer));
        endpoint_->Flush();  // Returns credits.
      }
      received = receive_;
    }
    while (!sends_.empty() && (broken || IsDone(sends_.front()))) {
      SendOp* sent = sends_.front().op;
      sends_.erase(sends_.begin());
      sent->result = broken ? -EPIPE : 0;
      // While something else is in flight, its owner keeps the stream.
      const bool last = receive_ == nullptr && sends_.empty();
      sent->done(sent, sent->result);
      if (last) return;
    }
    if (received == nullptr) return;
    receive_ = nullptr;
    received->result = result;
    received->done(received, result);
  }

 private:
  friend class RdmaTransport;

  enum class Mode : uint8_t { kUndecided, kSocket, kRdma };

  absl::StatusOr<RdmaGrant> Accept(const rdma::PeerAddress& peer, Bytes staging) {
    if (watch_->begin < watch_->end) {
      return InvalidArgument("a request was sent behind the hello; wait for its answer");
    }
    RP_ASSIGN(lane_, transport_.LaneFor(gid_ ? &*gid_ : nullptr));
    rdma::Device* device = lane_->port->device.get();
    RP_ASSIGN(endpoint_, rdma::Endpoint::Create(device, lane_->queue.get(), {}));
    lane_->streams[endpoint_->number()] = this;
    ++transport_.counters_.queue_pairs;
    transport_.counters_.message_bytes += endpoint_->memory_bytes();
    RdmaGrant grant{.address = endpoint_->address()};
    if (!staging.empty()) {
      RP_ASSIGN(staging_, device->Register(staging, rdma::Access::kPeerWrites));
      staging_bytes_ = staging.size();
      transport_.counters_.staging_bytes += staging_bytes_;
      grant.staging_address = reinterpret_cast<uint64_t>(staging.data());
      grant.staging_key = staging_->remote_key();
    }
    RP_TRY(endpoint_->Connect(peer));
    return grant;
  }

  void DropEndpoint() {
    if (endpoint_ == nullptr) return;
    if (endpoint_->error() != rdma::WorkError::kNone) {
      ++transport_.counters_.errors[static_cast<size_t>(endpoint_->error())];
    }
    lane_->streams.erase(endpoint_->number());
    --transport_.counters_.queue_pairs;
    transport_.counters_.message_bytes -= endpoint_->memory_bytes();
    transport_.counters_.staging_bytes -= std::exchange(staging_bytes_, 0);
    endpoint_.reset();
    staging_.reset();  // The peer's key ends here.
  }

  void StartWatch() {
    watch_->buffer = watch_->bytes;
    watch_->active = true;
    watch_->socket->Receive(watch_.get());
  }

  static void OnSocket(Completion* self, int32_t result) {
    auto* watch = static_cast<SocketWatch*>(self);
    watch->active = false;
    if (watch->stream == nullptr) {
      watch->transport->EndLinger(watch);
      return;
    }
    if (result > 0) {
      watch->begin = 0;
      watch->end = static_cast<size_t>(result);
    } else {
      watch->ended = true;
      watch->end_result = result;
    }
    RdmaStream* stream = watch->stream;
    if (result > 0 && stream->mode_ == Mode::kRdma) {
      stream->Break(rdma::WorkError::kOther, "bytes on the socket of an RDMA connection");
      watch->ended = true;
    }
    stream->Pump();
  }

  void PumpSocket() {
    if (receive_ == nullptr) return;
    ReceiveOp* op = receive_;
    const size_t count = std::min(op->buffer.size(), watch_->end - watch_->begin);
    if (count > 0) {
      std::memcpy(op->buffer.data(), watch_->bytes.data() + watch_->begin, count);
      watch_->begin += count;
    } else if (!watch_->ended) {
      if (!watch_->active) StartWatch();
      return;
    }
    receive_ = nullptr;
    op->result = count > 0 ? static_cast<int32_t>(count) : watch_->end_result;
    op->done(op, op->result);
  }

  // A send on its way: what of it is queued, and under which number its end is.
  struct Sending {
    SendOp* op = nullptr;
    size_t next_write = 0;
    uint32_t next_part = 0;
    uint64_t work = 0;  // 0: not all of it is queued.
  };

  void PumpEndpoint() {
    for (Sending& sending : sends_) {
      if (sending.work != 0) continue;
      const bool whole = QueueWrites(&sending) && QueueParts(&sending);
      const uint64_t work = endpoint_->Flush();
      if (!whole) return;
      sending.work = work;
    }
    endpoint_->Flush();
  }

  // Both: false when there was no room for all.
  bool QueueWrites(Sending* sending) {
    for (; sending->next_write < sending->op->writes.size(); ++sending->next_write) {
      const RemoteWrite& write = sending->op->writes[sending->next_write];
      uint32_t key = 0;
      if (!lane_->port->memory.Find(write.data, &key)) {
        endpoint_->Break(rdma::WorkError::kLocal, "a record lies outside the registered memory");
      }
      if (!endpoint_->Write(write, key)) return false;
      ++transport_.counters_.writes;
    }
    return true;
  }

  bool QueueParts(Sending* sending) {
    for (; sending->next_part < sending->op->part_count; ++sending->next_part) {
      iovec& part = sending->op->parts[sending->next_part];
      const ConstBytes bytes(static_cast<const std::byte*>(part.iov_base), part.iov_len);
      const size_t taken = endpoint_->Send(bytes);
      part = {const_cast<std::byte*>(bytes.data()) + taken, bytes.size() - taken};
      if (part.iov_len > 0) return false;
    }
    return true;
  }

  // The device has read all of it, and the peer's has it.
  bool IsDone(const Sending& sending) const {
    return sending.work != 0 && endpoint_->finished(sending.work);
  }

  RdmaTransport& transport_;
  std::unique_ptr<SocketWatch> watch_;
  std::optional<rdma::Gid> gid_;
  Mode mode_ = Mode::kUndecided;
  bool hello_to_send_ = false;
  bool ready_ = false;

  Lane* lane_ = nullptr;
  std::unique_ptr<rdma::Memory> staging_;
  uint64_t staging_bytes_ = 0;
  std::unique_ptr<rdma::Endpoint> endpoint_;

  ReceiveOp* receive_ = nullptr;
  std::vector<Sending> sends_;  // In order.
};

// ---- The transport -----------------------------------------------------------------------------

RdmaTransport::RdmaTransport(Ring* ring, std::vector<const RdmaPort*> ports,
                             uint32_t queue_pairs_max)
    : ring_(ring), ports_(std::move(ports)), queue_pairs_max_(queue_pairs_max) {}

RdmaTransport::~RdmaTransport() {
  for (const auto& lane : lanes_) RP_CHECK(lane->streams.empty());
}

absl::Status RdmaTransport::Open() {
  const uint32_t each = rdma::Endpoint::CompletionsMax({});
  for (const RdmaPort* port : ports_) {
    auto lane = std::make_unique<Lane>();
    lane->port = port;
    const uint32_t entries =
        std::min({port->device->port().completions_max, kCompletionsMax, queue_pairs_max_ * each});
    RP_ASSIGN(lane->queue, port->device->MakeCompletionQueue(entries));
    lane->streams_max = std::min(queue_pairs_max_, entries / each);
    lane->watch.done = [](Completion* self, int32_t) {
      static_cast<EventWatch*>(self)->active = false;
    };
    lanes_.push_back(std::move(lane));
  }
  return absl::OkStatus();
}

std::unique_ptr<Stream> RdmaTransport::Wrap(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  rdma::Gid gid;
  const bool known = getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
                     rdma::GidOf(address, &gid);
  return Wrap(MakeSocketStream(ring_, fd), known ? &gid : nullptr);
}

std::unique_ptr<Stream> RdmaTransport::Wrap(std::unique_ptr<Stream> socket,
                                            const rdma::Gid* local) {
  return std::make_unique<RdmaStream>(this, std::move(socket), local);
}

// The lane whose address the socket has, or the first: devices of one machine reach the same peers.
absl::StatusOr<RdmaTransport::Lane*> RdmaTransport::LaneFor(const rdma::Gid* local) {
  Lane* best = nullptr;
  for (const auto& lane : lanes_) {
    if (lane->failed) continue;
    const bool same = local != nullptr && lane->port->device->port().gid == *local;
    if (best == nullptr || same) best = lane.get();
    if (same) break;
  }
  if (best == nullptr) return FailedPrecondition("no RDMA device of the daemon works");
  if (best->streams.size() >= best->streams_max) {
    return ResourceExhausted("the daemon has " + std::to_string(best->streams_max) +
                             " RDMA connections a shard, its limit (rdma.queue_pairs_max)");
  }
  return best;
}

bool RdmaTransport::Poll() {
  bool did = false;
  for (const auto& lane : lanes_) did = PollLane(lane.get()) || did;
  while (!ready_.empty()) {
    did = true;
    std::swap(ready_, running_);
    for (size_t i = 0; i < running_.size(); ++i) {
      if (running_[i] != nullptr) running_[i]->Pump();
    }
    running_.clear();
  }
  return did;
}

bool RdmaTransport::PollLane(Lane* lane) {
  if (lane->streams.empty() || lane->failed) return false;
  std::array<rdma::Completed, kCompletionsPerPoll> completed;
  bool did = false;
  for (int i = 0; i < kPollsPerTurn; ++i) {
    const absl::StatusOr<size_t> count = lane->queue->Poll(completed);
    if (!count.ok()) {
      FailLane(lane, count.status());
      return true;
    }
    for (const rdma::Completed& one : std::span(completed).first(*count)) {
      const auto found = lane->streams.find(one.queue_pair);
      if (found == lane->streams.end()) continue;  // Of a queue pair that is gone.
      found->second->endpoint()->OnCompleted(one);
      MakeReady(found->second);
    }
    did = did || *count > 0;
    if (*count < completed.size()) break;
  }
  return did;
}

void RdmaTransport::FailLane(Lane* lane, const absl::Status& why) {
  lane->failed = true;
  for (const auto& [number, stream] : lane->streams) {
    stream->Break(rdma::WorkError::kOther, Message(why));
  }
}

bool RdmaTransport::PrepareSleep() {
  for (const auto& lane : lanes_) {
    if (lane->streams.empty() || lane->failed) continue;
    if (!lane->watch.active) {
      lane->queue->TakeEvents();
      lane->armed = false;
      lane->watch.active = true;
      ring_->PreparePoll(&lane->watch, lane->queue->event_fd(), POLLIN);
    }
    if (!lane->armed) {
      if (const absl::Status armed = lane->queue->Arm(); !armed.ok()) FailLane(lane.get(), armed);
      lane->armed = true;
      if (PollLane(lane.get())) return false;
    }
  }
  return ready_.empty();
}

void RdmaTransport::MakeReady(RdmaStream* stream) {
  if (std::exchange(stream->ready_, true)) return;
  ready_.push_back(stream);
}

void RdmaTransport::Forget(RdmaStream* stream) {
  std::erase(ready_, stream);
  std::replace(running_.begin(), running_.end(), stream, static_cast<RdmaStream*>(nullptr));
}

void RdmaTransport::Linger(std::unique_ptr<SocketWatch> watch) {
  lingering_.push_back(std::move(watch));
}

void RdmaTransport::EndLinger(SocketWatch* watch) {
  std::erase_if(lingering_, [watch](const auto& owned) { return owned.get() == watch; });
}

}  // namespace reprise
