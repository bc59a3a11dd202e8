#include "protocol/rdma/endpoint.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "protocol/base/check.h"

namespace reprise::rdma {
namespace {

constexpr size_t kTagsMax = 1024;

// Every endpoint's sequence of packets begins elsewhere, so that a late packet for an earlier queue
// pair of the same number is not taken for one of ours.
uint32_t FirstPacket(uint32_t queue_pair) { return (queue_pair * 0x9e3779b1u) >> 8; }

std::string Words(WorkError error) {
  switch (error) {
    case WorkError::kPeerSilent:
      return "the peer does not answer (its process or machine is gone, or the link is down)";
    case WorkError::kPeerRefused:
      return "the peer's device refused access to its memory (wrong key or range)";
    case WorkError::kNoReceive:
      return "the peer had no receive posted";
    case WorkError::kLocal:
      return "this side gave its device wrong memory";
    default:
      return "the device reported " + std::string(WorkErrorName(error));
  }
}

}  // namespace

void Endpoint::FreePages::operator()(std::byte* pages) const { std::free(pages); }

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::Create(Device* device, CompletionQueue* queue,
                                                           const Options& options) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint(device, options));
  RP_TRY(endpoint->Open(queue));
  return endpoint;
}

absl::Status Endpoint::Open(CompletionQueue* queue) {
  const size_t bytes = AlignUp(
      uint64_t{options_.receives + options_.sends} * options_.message_bytes, uint64_t{kPageBytes});
  pages_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes)));
  if (pages_ == nullptr) return ResourceExhausted("no memory for an RDMA connection's messages");
  memory_ = {pages_.get(), bytes};
  std::memset(memory_.data(), 0, memory_.size());
  RP_ASSIGN(region_, device_.Register(memory_, Access::kWriteHere));
  RP_ASSIGN(pair_, device_.MakeQueuePair(queue, {.sends = options_.queue_depth,
                                                 .receives = options_.receives,
                                                 .inline_bytes = options_.inline_bytes}));
  options_.inline_bytes = pair_->inline_bytes();
  buffer_work_.resize(options_.sends);
  for (uint32_t i = 0; i < options_.receives; ++i) PostReceive(i);
  PostFreedReceives();
  if (broken()) return Unavailable(why_);
  const Port& port = device_.port();
  address_ = {.gid = port.gid,
              .queue_pair = pair_->number(),
              .first_packet = FirstPacket(pair_->number()),
              .mtu_bytes = port.mtu_bytes,
              .receives = options_.receives,
              .message_bytes = options_.message_bytes,
              .lid = port.lid};
  return absl::OkStatus();
}

absl::Status Endpoint::Connect(const PeerAddress& peer) {
  constexpr uint32_t kReceivesMax = 1 << 16;
  if (peer.receives < 2 || peer.receives > kReceivesMax || peer.message_bytes < 64) {
    return InvalidArgument(
        "the peer's RDMA address makes no sense; use the same release on both sides");
  }
  RP_TRY(pair_->Connect(peer, address_.first_packet));
  credits_ = peer.receives;
  message_bytes_ = std::min(options_.message_bytes, peer.message_bytes);
  connected_ = true;
  return absl::OkStatus();
}

// ---- Out ---------------------------------------------------------------------------------------

size_t Endpoint::Send(ConstBytes bytes) {
  size_t taken = 0;
  while (taken < bytes.size() && !broken()) {
    // A new message leaves a credit and a place for one that only returns credits.
    if (open_bytes_ == 0 && (credits_ < 2 || room() < 2 || !finished(buffer_work_[next_buffer_]))) {
      break;
    }
    const size_t count = std::min<size_t>(bytes.size() - taken, message_bytes_ - open_bytes_);
    std::memcpy(send_buffer(next_buffer_) + open_bytes_, bytes.data() + taken, count);
    open_bytes_ += static_cast<uint32_t>(count);
    taken += count;
    if (open_bytes_ == message_bytes_) CloseMessage();
  }
  return taken;
}

void Endpoint::CloseMessage() {
  if (open_bytes_ == 0) return;
  const uint32_t bytes = std::exchange(open_bytes_, 0);
  Queue({.kind = SendWork::Kind::kSend,
         .inlined = bytes <= options_.inline_bytes,
         .bytes = bytes,
         .data = send_buffer(next_buffer_),
         .local_key = region_->local_key(),
         .immediate = std::exchange(owed_, 0)});
  buffer_work_[next_buffer_] = queued_;
  next_buffer_ = next_buffer_ + 1 == options_.sends ? 0 : next_buffer_ + 1;
  --credits_;
}

// For one piece of work behind the open message: for both, and for returned credits.
bool Endpoint::MakeRoom() {
  if (broken() || room() < 3) return false;
  CloseMessage();
  return true;
}

bool Endpoint::Write(const RemoteWrite& write, uint32_t local_key) {
  if (write.told && credits_ < 2) return false;  // One is kept for returned credits.
  if (!MakeRoom()) return false;
  Queue({.kind = write.told ? SendWork::Kind::kWriteTold : SendWork::Kind::kWrite,
         .bytes = static_cast<uint32_t>(write.data.size()),
         .data = write.data.data(),
         .local_key = local_key,
         .immediate = write.tag,
         .remote_address = write.address,
         .remote_key = write.key});
  if (write.told) --credits_;
  return true;
}

bool Endpoint::OpenWindow(Window* window, const Memory& memory, ConstBytes part) {
  RP_CHECK(!part.empty() && part.size() <= kWindowBytesMax);
  if (!MakeRoom()) return false;
  Queue({.kind = SendWork::Kind::kOpenWindow,
         .bytes = static_cast<uint32_t>(part.size()),
         .data = part.data(),
         .remote_key = window->NextKey(),
         .window = window,
         .memory = &memory});
  return true;
}

bool Endpoint::CloseWindow(const Window& window) {
  if (!MakeRoom()) return false;
  Queue({.kind = SendWork::Kind::kCloseWindow, .remote_key = window.key()});
  return true;
}

void Endpoint::Queue(SendWork work) {
  work.id = ++queued_;
  batch_.push_back(work);
}

uint64_t Endpoint::Flush() {
  PostFreedReceives();
  CloseMessage();
  if (connected_ && !broken() && owed_ >= options_.receives / 2 && credits_ > 0 && room() > 0) {
    --credits_;
    Queue({.kind = SendWork::Kind::kSend, .immediate = std::exchange(owed_, 0)});
  }
  if (!batch_.empty() && !broken()) {
    batch_.back().signaled = true;
    if (const absl::Status posted = pair_->PostSends(batch_); !posted.ok()) {
      Break(WorkError::kLocal, Message(posted));
    }
  }
  batch_.clear();
  return queued_;
}

// ---- In ----------------------------------------------------------------------------------------

size_t Endpoint::Receive(Bytes out) {
  size_t filled = 0;
  while (filled < out.size() && first_arrived_ < arrived_.size()) {
    Arrived& message = arrived_[first_arrived_];
    const size_t count = std::min<size_t>(out.size() - filled, message.bytes - message.taken);
    std::memcpy(out.data() + filled, receive_buffer(message.buffer) + message.taken, count);
    filled += count;
    message.taken += static_cast<uint32_t>(count);
    if (message.taken < message.bytes) break;
    PostReceive(message.buffer);
    ++first_arrived_;
  }
  if (first_arrived_ == arrived_.size() || first_arrived_ > options_.receives) {
    arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<ptrdiff_t>(first_arrived_));
    first_arrived_ = 0;
  }
  readable_ -= filled;
  return filled;
}

bool Endpoint::TakeTag(uint32_t* tag) {
  if (first_tag_ == tags_.size()) return false;
  *tag = tags_[first_tag_++];
  if (first_tag_ == tags_.size()) {
    tags_.clear();
    first_tag_ = 0;
  }
  return true;
}

void Endpoint::PostReceive(uint32_t buffer) {
  freed_.push_back({.id = kReceiveBit | buffer,
                    .data = receive_buffer(buffer),
                    .bytes = options_.message_bytes,
                    .local_key = region_->local_key()});
  if (connected_) ++owed_;
}

void Endpoint::PostFreedReceives() {
  if (freed_.empty() || broken()) return;
  if (const absl::Status posted = pair_->PostReceives(freed_); !posted.ok()) {
    Break(WorkError::kLocal, Message(posted));
  }
  freed_.clear();
}

void Endpoint::OnCompleted(const Completed& completed) {
  if (broken()) return;
  if (completed.error != WorkError::kNone) {
    Break(completed.error, Words(completed.error));
    return;
  }
  if ((completed.id & kReceiveBit) != 0) {
    OnReceive(completed);
    return;
  }
  RP_CHECK(completed.id > done_ && completed.id <= queued_);
  done_ = completed.id;
}

void Endpoint::OnReceive(const Completed& completed) {
  const auto buffer = static_cast<uint32_t>(completed.id & ~kReceiveBit);
  if (completed.told) {
    if (tags_.size() - first_tag_ >= kTagsMax) {
      return Break(WorkError::kOther, "the peer tells of writes that nobody asked for");
    }
    tags_.push_back(completed.immediate);
    PostReceive(buffer);
    return;
  }
  // A peer that returns more than it took would make us flood it: no count of its own is believed
  // beyond what it can have posted.
  constexpr uint32_t kCreditsMax = 1 << 16;
  credits_ = std::min(credits_ + std::min(completed.immediate, kCreditsMax), kCreditsMax);
  if (completed.bytes == 0) {
    PostReceive(buffer);
    return;
  }
  arrived_.push_back({.buffer = buffer, .bytes = completed.bytes});
  readable_ += completed.bytes;
}

void Endpoint::Break(WorkError error, std::string why) {
  if (broken()) return;
  error_ = error;
  why_ = why.empty() ? "shut down" : std::move(why);
}

}  // namespace reprise::rdma
