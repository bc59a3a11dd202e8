#include "server/connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "protocol/wire/control.pb.h"
#include "server/dispatch.h"
#include "server/log.h"
#include "server/shard.h"

namespace reprise::server {
namespace {

// Takes the data part of a frame that was refused.
class DiscardSink final : public DataSink {
 public:
  Bytes NextBuffer(uint64_t) override { return scratch_; }
  void OnBufferFull(uint64_t) override {}
  void OnDataLost() override {}

 private:
  std::array<std::byte, 16384> scratch_;
};

DataSink* Discard() {
  static thread_local DiscardSink sink;  // Has no state that two connections could mix.
  return &sink;
}

}  // namespace

Connection::Connection(Shard* shard, std::unique_ptr<Stream> stream, uint64_t id)
    : shard_(shard),
      stream_(std::move(stream)),
      id_(id),
      buffer_(std::make_unique<std::byte[]>(kBufferBytes)),
      receive_timer_([](Timer* self, Instant) {
        static_cast<OwnedTimer*>(self)->connection->Close("a frame stood half-sent for too long");
      }),
      send_timer_([](Timer* self, Instant) {
        static_cast<OwnedTimer*>(self)->connection->Close("the client does not read its replies");
      }) {
  receiving_.connection = this;
  receiving_.done = [](Completion* self, int32_t result) {
    static_cast<Receiving*>(self)->connection->OnReceived(result);
  };
  for (Sending& sending : sendings_) {
    sending.connection = this;
    sending.done = [](Completion* self, int32_t result) {
      auto* sent = static_cast<Sending*>(self);
      sent->connection->OnSent(sent, result);
    };
  }
  receive_timer_.connection = this;
  send_timer_.connection = this;
}

Connection::~Connection() {
  shard_->timers().Cancel(&receive_timer_);
  shard_->timers().Cancel(&send_timer_);
  shard_->facts().staging_bytes.fetch_sub(staging_bytes_, std::memory_order_relaxed);
  ReleaseBody();
}

void Connection::Start() {
  ArmReceiveTimer();  // A client that never says hello is not kept.
  Advance();
}

TransportKind Connection::transport() const {
  if (stream_->rdma()) return TransportKind::kRdma;
  if (!stream_->local()) return TransportKind::kTcp;
  return staging_ != nullptr ? TransportKind::kLocal : TransportKind::kUnix;
}

std::string Connection::Describe() const {
  return "#" + std::to_string(id_) + " " + name_ + " " + stream_->peer() +
         " operations=" + std::to_string(operations_) + " leases=" + std::to_string(leases_.size());
}

// ---- Receiving --------------------------------------------------------------------------------

void Connection::ReceiveMore() {
  if (receiving_.active || closing_) return;
  receiving_.direct = true;
  if (parse_ == Parse::kBody && body_filled_ > 0) {
    receiving_.buffer = Bytes(body_).subspan(body_filled_);
  } else if (parse_ == Parse::kData && !sink_buffer_.empty()) {
    receiving_.buffer = sink_buffer_.subspan(sink_filled_);
  } else {
    receiving_.direct = false;
    if (begin_ > 0) {
      std::memmove(buffer_.get(), buffer_.get() + begin_, buffered());
      end_ -= begin_;
      begin_ = 0;
    }
    receiving_.buffer = {buffer_.get() + end_, kBufferBytes - end_};
  }
  RP_CHECK(!receiving_.buffer.empty());
  receiving_.active = true;
  stream_->Receive(&receiving_);
}

void Connection::OnReceived(int32_t result) {
  receiving_.active = false;
  if (result <= 0 || closing_) {
    if (!closing_) Close(result == 0 ? "the client left" : "receiving failed");
    LoseData();
    FinishClose();
    return;
  }
  const auto count = static_cast<size_t>(result);
  if (!receiving_.direct) {
    end_ += count;
  } else if (parse_ == Parse::kBody) {
    body_filled_ += count;
  } else {
    sink_filled_ += count;
    data_left_ -= count;
  }
  ArmReceiveTimer();
  Advance();
}

void Connection::ResumeReceiving() { Advance(); }

void Connection::Advance() {
  if (advancing_ || closing_) return;
  advancing_ = true;
  while (!closing_ && ParseOne()) {
  }
  advancing_ = false;
  if (closing_) {
    FinishClose();
    return;
  }
  const bool between_frames = parse_ == Parse::kHeader && buffered() == 0;
  const bool full = parse_ == Parse::kHeader && operations_ >= kOperationsMax;
  const bool sink_waits = parse_ == Parse::kData && sink_buffer_.empty();
  // Silence counts against a client only when it owes us the rest of something.
  if ((between_frames && greeted_) || full || sink_waits) shard_->timers().Cancel(&receive_timer_);
  if (!full && !sink_waits && parse_ != Parse::kStopped) ReceiveMore();
}

bool Connection::ParseOne() {
  if (receiving_.active) return false;
  switch (parse_) {
    case Parse::kHeader:
      return TakeHeader();
    case Parse::kBody:
      return TakeBody();
    case Parse::kData:
      return TakeData();
    case Parse::kStopped:
      return false;
  }
  return false;
}

bool Connection::TakeHeader() {
  if (operations_ >= kOperationsMax || buffered() < wire::kFrameHeaderBytes) return false;
  const ConstBytes bytes(buffer_.get() + begin_, wire::kFrameHeaderBytes);
  if (const Outcome outcome = wire::ParseFrameHeader(bytes, &header_); outcome != Outcome::kOk) {
    Refuse(outcome, outcome == Outcome::kUnsupported
                        ? "this daemon speaks protocol version " +
                              std::to_string(wire::kProtocolVersion) +
                              "; use a client of that version"
                        : std::string("the frame header is damaged or not ours; the connection is "
                                      "closed, open a new one"));
    return false;
  }
  Consume(wire::kFrameHeaderBytes);
  const bool hello = header_.opcode == static_cast<uint8_t>(wire::Opcode::kHello);
  if (greeted_ == hello || (!hello && header_.store_id != shard_->facts().store_id())) {
    Refuse(Outcome::kInvalid,
           greeted_ == hello ? "a connection begins with exactly one hello"
                             : "the frame is for another store: reconnect and say hello again");
    return false;
  }
  body_filled_ = 0;
  parse_ = Parse::kBody;
  return true;
}

bool Connection::TakeBody() {
  if (body_filled_ == 0 && buffered() >= header_.body_bytes) {  // The usual case: it is all here.
    const ConstBytes body(buffer_.get() + begin_, header_.body_bytes);
    Consume(header_.body_bytes);
    Dispatch(body);
    return true;
  }
  if (body_filled_ == 0) {
    if (buffered() == 0) return false;  // Reserves once, when the first byte is there.
    // The length passed the header's checksum and limit, so it may be allocated.
    if (!ReserveBody(header_.body_bytes)) {
      Refuse(Outcome::kBusy, "too many large requests at once; try again later");
      return false;
    }
    body_.resize(header_.body_bytes);
    body_filled_ = buffered();
    std::memcpy(body_.data(), buffer_.get() + begin_, body_filled_);
    Consume(body_filled_);
  }
  if (body_filled_ < header_.body_bytes) return false;
  const std::vector<std::byte> body = std::move(body_);
  body_ = {};
  Dispatch(body);
  ReleaseBody();
  return true;
}

bool Connection::ReserveBody(uint32_t bytes) {
  ServerFacts& facts = shard_->facts();
  if (facts.body_bytes.fetch_add(bytes) + bytes > facts.body_bytes_max) {
    facts.body_bytes.fetch_sub(bytes);
    return false;
  }
  body_reserved_ = bytes;
  return true;
}

void Connection::ReleaseBody() {
  shard_->facts().body_bytes.fetch_sub(std::exchange(body_reserved_, 0));
}

void Connection::Dispatch(ConstBytes body) {
  parse_ = Parse::kHeader;
  data_left_ = 0;
  if (!wire::BodyMatches(header_, body)) {
    Refuse(Outcome::kInvalid, "a frame body is damaged; the connection is closed, open a new one");
    return;
  }
  DispatchFrame(this, header_, body);
  if (closing_) return;
  if (header_.data_bytes > 0 && data_left_ == 0) ReceiveData(Discard(), header_.data_bytes);
}

void Connection::ReceiveData(DataSink* sink, uint64_t bytes) {
  RP_CHECK(bytes > 0);
  sink_ = sink;
  sink_buffer_ = {};
  sink_filled_ = 0;
  data_left_ = bytes;
  parse_ = Parse::kData;
}

bool Connection::TakeData() {
  if (sink_buffer_.empty()) {
    sink_buffer_ = sink_->NextBuffer(data_left_);
    if (sink_buffer_.empty()) return false;
    if (sink_buffer_.size() > data_left_) sink_buffer_ = sink_buffer_.first(data_left_);
    sink_filled_ = 0;
  }
  const size_t take = std::min(buffered(), sink_buffer_.size() - sink_filled_);
  std::memcpy(sink_buffer_.data() + sink_filled_, buffer_.get() + begin_, take);
  Consume(take);
  sink_filled_ += take;
  data_left_ -= take;
  if (sink_filled_ < sink_buffer_.size()) return false;
  sink_buffer_ = {};
  DataSink* sink = sink_;
  if (data_left_ == 0) {
    sink_ = nullptr;
    parse_ = Parse::kHeader;
  }
  sink->OnBufferFull(data_left_);
  return true;
}

void Connection::ArmReceiveTimer() {
  shard_->timers().Arm(&receive_timer_, shard_->now() + shard_->facts().idle_frame_timeout_ns);
}

// ---- Sending ----------------------------------------------------------------------------------

void Connection::Send(std::unique_ptr<OutFrame> frame) {
  if (closing_) {
    if (frame->sent != nullptr) frame->sent(frame->operation, frame->tag, false);
    return;
  }
  frame->header.store_id = shard_->facts().store_id();
  frame->header.flags |= wire::kReply;
  uint64_t data_bytes = 0;
  for (const ConstBytes part : frame->data) data_bytes += part.size();
  frame->header.data_bytes = data_bytes;
  wire::SealFrame(&frame->header, AsBytes(frame->body));
  queue_.push_back(std::move(frame));
  StartSend();
}

// As many queued frames as fit one system call. Descriptors go with the first byte, so a frame that
// carries some is sent alone.
void Connection::StartSend() {
  while (!closing_ && frames_in_flight_ < queue_.size()) {
    Sending& sending = sendings_[next_sending_ % stream_->sends_max()];
    if (sending.frames > 0) return;
    ++next_sending_;
    FillSending(&sending);
    shard_->timers().Arm(&send_timer_, shard_->now() + shard_->facts().send_timeout_ns);
    stream_->Send(&sending);
  }
}

void Connection::FillSending(Sending* sending) {
  sending->part_count = 0;
  sending->fd_count = 0;
  sending->copies.clear();
  for (size_t i = frames_in_flight_; i < queue_.size(); ++i) {
    const OutFrame& frame = *queue_[i];
    const size_t parts = 2 + frame.data.size();
    RP_CHECK(parts <= SendOp::kPartsMax);
    if (sending->part_count + parts > SendOp::kPartsMax) break;
    if (frame.fd_count > 0 && sending->frames > 0) break;
    sending->AddPart(AsBytes(frame.header));
    sending->AddPart(AsBytes(frame.body));
    for (const ConstBytes part : frame.data) sending->AddPart(part);
    sending->copies.insert(sending->copies.end(), frame.writes.begin(), frame.writes.end());
    ++sending->frames;
    // What is written goes out at once; what comes later would have to wait for it.
    if (!frame.writes.empty()) break;
    if (frame.fd_count > 0) {
      sending->fds = frame.fds;
      sending->fd_count = frame.fd_count;
      break;
    }
  }
  sending->writes = sending->copies;
  frames_in_flight_ += sending->frames;
}

void Connection::OnSent(Sending* sending, int32_t result) {
  const uint32_t frames = std::exchange(sending->frames, 0);
  frames_in_flight_ -= frames;
  if (this->sending()) {  // Progress: the next gets its own time.
    shard_->timers().Arm(&send_timer_, shard_->now() + shard_->facts().send_timeout_ns);
  } else {
    shard_->timers().Cancel(&send_timer_);
  }
  std::vector<std::unique_ptr<OutFrame>> sent;
  const auto end = queue_.begin() + frames;
  sent.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
  queue_.erase(queue_.begin(), end);
  for (const auto& frame : sent) {
    if (frame->sent != nullptr) frame->sent(frame->operation, frame->tag, result == 0);
  }
  if (closing_ && !this->sending()) DropQueue();
  if (result < 0 && !closing_) Close("sending failed");
  if (close_when_sent_ && queue_.empty() && !closing_) Close("refused");
  StartSend();
  FinishClose();
}

// ---- The end ----------------------------------------------------------------------------------

void Connection::Refuse(Outcome outcome, std::string error) {
  LogDebug("connection_refused", {{"peer", stream_->peer()}, {"why", error}});
  wire::HelloReply reply;
  reply.set_protocol_version(wire::kProtocolVersion);
  reply.set_error(error);
  auto frame = std::make_unique<OutFrame>();
  frame->header.opcode = static_cast<uint8_t>(wire::Opcode::kHello);
  frame->header.outcome = static_cast<uint8_t>(outcome);
  frame->body = reply.SerializeAsString();
  close_when_sent_ = true;
  Send(std::move(frame));
  shard_->timers().Cancel(&receive_timer_);
  parse_ = Parse::kStopped;
}

void Connection::Close(std::string_view why) {
  if (closing_) return;
  closing_ = true;
  LogDebug("connection_closed",
           {{"connection", id_}, {"client", name_}, {"peer", stream_->peer()}, {"why", why}});
  shard_->timers().Cancel(&receive_timer_);
  shard_->timers().Cancel(&send_timer_);
  stream_->Shutdown();
  LoseData();
  for (auto& [lease_id, lease] : leases_) {
    ++shard_->leases_revoked_;
    GiveBack(lease);
  }
  leases_.clear();
  if (!sending()) DropQueue();  // Else in OnSent: frames end in their order.
  FinishClose();
}

// The sink's buffer is the kernel's as long as a receive is in flight.
void Connection::LoseData() {
  if (sink_ != nullptr && !receiving_.active) std::exchange(sink_, nullptr)->OnDataLost();
}

void Connection::DropQueue() {
  std::vector<std::unique_ptr<OutFrame>> dropped;
  std::swap(dropped, queue_);
  for (const auto& frame : dropped) {
    if (frame->sent != nullptr) frame->sent(frame->operation, frame->tag, false);
  }
}

void Connection::FinishClose() {
  if (!closing_ || retired_ || receiving_.active || sending() || operations_ > 0 || advancing_) {
    return;
  }
  retired_ = true;
  shard_->Retire(this);
}

void Connection::OperationDone() {
  RP_CHECK(operations_ > 0);
  --operations_;
  if (closing_) {
    FinishClose();
  } else if (operations_ + 1 == kOperationsMax) {
    Advance();
  }
}

// ---- Leases, namespaces, staging --------------------------------------------------------------

uint64_t Connection::AddLease(LeaseRecord lease) {
  const uint64_t lease_id = next_lease_id_++;
  leases_.emplace(lease_id, std::move(lease));
  return lease_id;
}

void Connection::EndLease(uint64_t lease_id) {
  const auto found = leases_.find(lease_id);
  if (found == leases_.end()) return;  // Ended before: nothing to do, and no harm.
  const LeaseRecord lease = std::move(found->second);
  leases_.erase(found);
  GiveBack(lease);
}

void Connection::GiveBack(const LeaseRecord& lease) {
  if (lease.window) shard_->ReleaseWindow(lease.window_shard, lease.window_handle);
  if (lease.loan_id != 0) shard_->ReturnLoan(lease.loan_id);
  shard_->ReleaseSlots(lease.slots);
}

uint32_t Connection::AddNamespace(const OpenNamespace& name_space) {
  for (size_t i = 0; i < namespaces_.size(); ++i) {
    if (namespaces_[i].index == name_space.index) return static_cast<uint32_t>(i + 1);
  }
  namespaces_.push_back(name_space);
  return static_cast<uint32_t>(namespaces_.size());
}

const Connection::OpenNamespace* Connection::FindNamespace(uint32_t id) const {
  return id == 0 || id > namespaces_.size() ? nullptr : &namespaces_[id - 1];
}

const storage::StagingArea* Connection::MakeStaging(uint32_t slots) {
  ServerFacts& facts = shard_->facts();
  slots = std::min(slots, facts.staging_slots_max);
  const uint64_t bytes = uint64_t{slots} * facts.record_bytes;
  if (bytes == 0) return nullptr;
  if (facts.staging_bytes.fetch_add(bytes) + bytes > facts.staging_bytes_max) {
    facts.staging_bytes.fetch_sub(bytes);
    return nullptr;
  }
  staging_bytes_ = bytes;
  auto staging = storage::StagingArea::Create(facts.record_bytes, slots);
  if (!staging.ok()) {
    LogWarning("staging_failed", {{"client", name_}, {"error", staging.status()}});
    return nullptr;
  }
  staging_ = *std::move(staging);
  return staging_.get();
}

void Connection::DropStaging() {
  staging_.reset();
  shard_->facts().staging_bytes.fetch_sub(std::exchange(staging_bytes_, 0),
                                          std::memory_order_relaxed);
}

}  // namespace reprise::server
