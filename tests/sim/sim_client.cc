#include "tests/sim/sim_client.h"

#include <algorithm>
#include <utility>

namespace reprise::sim {
namespace {

ConstBytes Part(std::string_view text, size_t offset, size_t count) {
  return AsBytes(text.substr(offset, count));
}

template <typename Message>
bool Parse(ConstBytes body, Message* message) {
  return message->ParseFromArray(body.data(), static_cast<int>(body.size()));
}

}  // namespace

void SimClient::Fail(const std::string& what) {
  context_->fail("client " + std::to_string(number_) + ": " + what);
}

void SimClient::Tick() {
  ++now_;
  if (state_ == State::kAway) {
    if (now_ >= back_at_ && context_->ops_left > 0) Connect();
    return;
  }
  if (now_ >= reads_from_) ReadFrames();
  if (link_ == nullptr) return;
  if (link_->AtEnd() || (rdma_ != nullptr && rdma_->endpoint->broken())) return OnEnd();
  if (state_ == State::kSilent) return;
  const bool over = context_->ops_left <= 0 || requests_left_ == 0;
  if (state_ == State::kReady && over) state_ = State::kLeaving;
  if (state_ == State::kLeaving && requests_.empty()) return Leave();
  if (state_ != State::kReady) return;
  MakeTrouble();
  if (state_ != State::kReady || requests_.size() >= context_->limits->pipeline) return;
  if (prng_.Chance(600)) StartRequest();
}

// ---- The connection
// --------------------------------------------------------------------------------

void SimClient::Connect() {
  link_ = context_->connect();
  state_ = State::kHello;
  provoked_ = refused_ = false;
  inbox_.clear();
  requests_left_ = static_cast<uint32_t>(3 + prng_.Below(60));
  namespace_ids_ = {};
  open_ids_ = {};
  hello_id_ = next_request_id_++;
  if (context_->faults->silence && prng_.Chance(50)) {  // Says nothing at all.
    context_->outcomes->Count("client_silent");
    provoked_ = true;
    state_ = State::kSilent;
    return;
  }
  wire::HelloRequest hello;
  hello.set_protocol_version(wire::kProtocolVersion);
  hello.set_client_name("sim-" + std::to_string(number_));
  OfferRdma(&hello);
  const std::string body = hello.SerializeAsString();
  wire::FrameHeader header{.opcode = static_cast<uint8_t>(wire::Opcode::kHello),
                           .request_id = hello_id_};
  wire::SealFrame(&header, AsBytes(body));
  link_->Write(AsText(AsBytes(header)));
  link_->Write(body);
}

void SimClient::Drop() {
  requests_.clear();
  offered_.reset();
  rdma_.reset();
  link_ = nullptr;
  state_ = State::kAway;
  back_at_ = now_ + 1 + prng_.Below(20);
}

void SimClient::Leave() {
  link_->Close();
  Drop();
}

void SimClient::ServerDied() {
  if (link_ != nullptr) link_->Reset();
  Drop();
}

void SimClient::OnEnd() {
  context_->outcomes->Count("closed_by_server");
  const bool by_fault = rdma_ != nullptr && context_->rdma_failed;
  if (!provoked_ && !refused_ && !by_fault) Fail("the server ended an innocent connection");
  link_->Close();
  Drop();
}

void SimClient::MakeTrouble() {
  const Faults& faults = *context_->faults;
  if (faults.disconnects && prng_.Chance(10)) {
    context_->outcomes->Count("client_reset");
    link_->Reset();
    return Drop();
  }
  if (faults.slow_readers && prng_.Chance(10)) {
    context_->outcomes->Count("client_slow");
    provoked_ = true;
    const auto timeout_ticks =
        static_cast<uint64_t>(context_->limits->send_timeout_ns / context_->limits->tick_ns);
    reads_from_ = now_ + prng_.Below(2 * timeout_ticks);
  }
  if (faults.silence && prng_.Chance(10)) {  // Part of a frame, and no more.
    context_->outcomes->Count("client_silent");
    provoked_ = true;
    state_ = State::kSilent;
    wire::PutRequest put{.namespace_id = namespace_ids_[0], .record_count = 3, .inline_data = 1};
    std::string bytes = Frame(wire::Opcode::kPut, AsText(AsBytes(put)),
                              3 * uint64_t{Corpus::kRecordBytes}, next_request_id_++);
    for (uint32_t i = 0; i < 3; ++i) bytes += context_->corpus->Record({0, 0, 0}, 0);
    context_->model->PutSent(context_->corpus->key({0, 0, 0}), 0, false);
    Write(std::string_view(bytes).substr(0, 1 + prng_.Below(bytes.size() - 1)));
  } else if (faults.hostile && prng_.Chance(10)) {
    context_->outcomes->Count("client_hostile");
    provoked_ = true;
    state_ = State::kSilent;
    SendRudeBytes();
  }
}

std::string SimClient::Frame(wire::Opcode opcode, std::string_view body, uint64_t data_bytes,
                             uint64_t id) {
  wire::FrameHeader header{.opcode = static_cast<uint8_t>(opcode),
                           .request_id = id,
                           .data_bytes = data_bytes,
                           .store_id = context_->store_id};
  if (prng_.Chance(300)) header.deadline_ms = static_cast<uint32_t>(1 + prng_.Below(400));
  wire::SealFrame(&header, AsBytes(body));
  return std::string(AsText(AsBytes(header))) + std::string(body);
}

void SimClient::Send(Request request, std::string body, std::string_view data) {
  const uint64_t id = next_request_id_++;
  Write(Frame(request.opcode, body, data.size(), id));
  Write(data);
  if (context_->trace) {
    context_->trace("client " + std::to_string(number_) + " #" + std::to_string(id) + " " +
                    request.name + " ns=" + std::to_string(request.name_space) +
                    " keys=" + std::to_string(request.keys.size() + request.puts.size()));
  }
  requests_.emplace(id, std::move(request));
}

// ---- Frames
// ----------------------------------------------------------------------------------------

void SimClient::ReadFrames() {
  inbox_ += Read(256_KiB);
  while (link_ != nullptr && TakeFrame()) {
  }
}

bool SimClient::TakeFrame() {
  if (inbox_.size() < wire::kFrameHeaderBytes) return false;
  wire::FrameHeader header;
  const Outcome parsed = wire::ParseFrameHeader(Part(inbox_, 0, wire::kFrameHeaderBytes), &header);
  if (parsed != Outcome::kOk) {
    Fail("the server sent a damaged frame header");
    return false;
  }
  const size_t bytes = wire::kFrameHeaderBytes + header.body_bytes + header.data_bytes;
  if (inbox_.size() < bytes) return false;
  const ConstBytes body = Part(inbox_, wire::kFrameHeaderBytes, header.body_bytes);
  if (!wire::BodyMatches(header, body)) Fail("the server sent a damaged frame body");
  if ((header.flags & wire::kReply) == 0) Fail("the server sent a frame that is no reply");
  if (header.store_id != context_->store_id) Fail("the server sent another store's id");
  OnFrame(header, body, Part(inbox_, wire::kFrameHeaderBytes + header.body_bytes, SIZE_MAX));
  if (link_ == nullptr) return false;
  inbox_.erase(0, bytes);
  return true;
}

void SimClient::OnFrame(const wire::FrameHeader& header, ConstBytes body, ConstBytes data) {
  data = data.first(header.data_bytes);
  const auto outcome = static_cast<Outcome>(header.outcome);
  if (header.request_id == 0) {  // A refusal; the connection ends.
    wire::HelloReply reply;
    if (!Parse(body, &reply) || reply.error().empty()) Fail("a refusal without its reason");
    if (outcome == Outcome::kBusy) context_->outcomes->Count("refused_at_limit");
    if (outcome != Outcome::kBusy && !provoked_) Fail("refused: " + reply.error());
    refused_ = true;
    return;
  }
  if (header.request_id == hello_id_) return OnHello(header, body);
  for (const uint64_t id : open_ids_) {
    if (id == header.request_id) return OnOpened(header, body);
  }
  const auto found = requests_.find(header.request_id);
  if (found == requests_.end()) {
    Fail("a reply to request " + std::to_string(header.request_id) +
         ", which was answered already or never asked");
    return;
  }
  if (header.opcode != static_cast<uint8_t>(found->second.opcode)) Fail("a reply of another kind");
  const bool more = (header.flags & wire::kMore) != 0;
  if (context_->trace && !more) {
    context_->trace("client " + std::to_string(number_) + " #" + std::to_string(header.request_id) +
                    " " + found->second.name + " -> " + std::string(OutcomeName(outcome)));
  }
  if (found->second.opcode == wire::Opcode::kFetch) {
    if (!data.empty()) Fail("a fetch's reply with data");
    data = Landed(header, found->second, body);
  }
  OnReply(header, &found->second, body, data);
  if (more) return;
  if (found->second.key != nullptr) EndFetch(std::move(found->second));
  requests_.erase(found);
}

void SimClient::OnHello(const wire::FrameHeader& header, ConstBytes body) {
  wire::HelloReply reply;
  if (header.outcome != 0 || !Parse(body, &reply)) return Fail("hello was refused");
  if (reply.record_bytes() != Corpus::kRecordBytes) Fail("hello: wrong record size");
  if (reply.local_memory()) Fail("hello: memory was offered to a client that is not local");
  hello_id_ = 0;
  StartRdma(reply);
  for (uint32_t i = 0; i < Corpus::kNamespaces; ++i) {
    open_ids_[i] = next_request_id_++;
    wire::OpenNamespaceRequest open;
    open.set_manifest(EncodeManifest(context_->corpus->manifest(i)));
    Write(Frame(wire::Opcode::kOpenNamespace, open.SerializeAsString(), 0, open_ids_[i]));
  }
}

void SimClient::OnOpened(const wire::FrameHeader& header, ConstBytes body) {
  wire::OpenNamespaceReply reply;
  if (header.outcome != 0 || !Parse(body, &reply)) return Fail("a namespace was refused");
  for (uint32_t i = 0; i < Corpus::kNamespaces; ++i) {
    if (open_ids_[i] != header.request_id) continue;
    open_ids_[i] = 0;
    namespace_ids_[i] = reply.namespace_id();
    const Hash256& hash = context_->corpus->name_space_hash(i);
    if (AsBytes(reply.name_space()).size() != hash.bytes.size() ||
        !std::equal(hash.bytes.begin(), hash.bytes.end(), AsBytes(reply.name_space()).begin())) {
      Fail("a namespace was opened under another hash");
    }
  }
  const bool all = std::all_of(namespace_ids_.begin(), namespace_ids_.end(),
                               [](uint32_t id) { return id != 0; });
  if (all && state_ == State::kHello) state_ = State::kReady;
}

}  // namespace reprise::sim
