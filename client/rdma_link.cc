#include "client/rdma_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "client/rdma_pacing.h"
#include "protocol/base/check.h"

namespace reprise {
namespace {

// Enough for all staging slots of a usual connection at once.
constexpr rdma::Endpoint::Options kEndpoint = {};

}  // namespace

absl::StatusOr<std::unique_ptr<RdmaLink>> RdmaLink::Create(rdma::Verbs* verbs,
                                                           const Options& options) {
  if (options.wish.off) return FailedPrecondition("RDMA is off");
  if (!RdmaPacing::Global().Allowed(options.daemon, SystemClock().Now())) {
    return Unavailable("RDMA to " + options.daemon +
                       " failed a moment ago; it is tried again within a minute");
  }
  RP_ASSIGN(const std::vector<rdma::Port> ports, verbs->Ports());
  std::string why;
  const rdma::Port* port =
      rdma::ChoosePort(ports, options.wish.device, options.wish.gid_index, options.local, &why);
  if (port == nullptr) return FailedPrecondition(why);
  std::unique_ptr<RdmaLink> link(new RdmaLink);
  link->daemon_ = options.daemon;
  link->spin_ns_ = options.spin_ns;
  RP_ASSIGN(link->device_, verbs->Open(*port));
  RP_ASSIGN(link->queue_,
            link->device_->MakeCompletionQueue(rdma::Endpoint::CompletionsMax(kEndpoint)));
  RP_ASSIGN(link->endpoint_,
            rdma::Endpoint::Create(link->device_.get(), link->queue_.get(), kEndpoint));
  if (port->windows) {
    RP_ASSIGN(link->window_, link->device_->MakeWindow());
  }
  return link;
}

RdmaLink::~RdmaLink() {
  if (endpoint_ == nullptr || !endpoint_->connected()) return;
  const bool failed = endpoint_->broken() && endpoint_->error() != rdma::WorkError::kFlushed;
  if (failed || !proven_) RdmaPacing::Global().Failed(daemon_, clock_.Now());
}

absl::Status RdmaLink::Connect(const rdma::PeerAddress& peer, int socket, Bytes staging,
                               uint32_t slot_bytes, uint64_t address, uint32_t key) {
  socket_ = socket;
  staging_ = staging;
  slot_bytes_ = slot_bytes;
  staging_address_ = address;
  staging_key_ = key;
  if (!staging.empty()) {
    const auto access = window_ != nullptr ? rdma::Access::kWindows : rdma::Access::kReadHere;
    RP_ASSIGN(staging_region_, device_->Register(staging, access));
  }
  return endpoint_->Connect(peer);
}

absl::Status RdmaLink::Prove(Instant deadline) {
  const uint32_t first = 0;
  if (!staging_.empty()) {
    if (window_ != nullptr) {  // That it opens and closes is not known either.
      RP_TRY(OpenWindow(*staging_region_, staging_.first(slot_bytes_), deadline));
      RP_TRY(CloseLanding(deadline));
    }
    RP_TRY(WriteSlots({&first, 1}, deadline));
  }
  const uint64_t work = endpoint_->Flush();
  while (!endpoint_->finished(work)) RP_TRY(Wait(deadline));
  proven_ = true;
  RdmaPacing::Global().Worked(daemon_);
  return absl::OkStatus();
}

absl::Status RdmaLink::Broken() const {
  return Unavailable("the RDMA connection broke: " + endpoint_->why());
}

absl::StatusOr<bool> RdmaLink::Poll() {
  std::array<rdma::Completed, 32> completed;
  RP_ASSIGN(const size_t count, queue_->Poll(completed));
  for (const rdma::Completed& one : std::span(completed).first(count)) endpoint_->OnCompleted(one);
  if (endpoint_->broken()) return Broken();
  return count > 0;
}

// Until something has completed.
absl::Status RdmaLink::Wait(Instant deadline) {
  endpoint_->Flush();
  const Instant spin_until = clock_.Now() + spin_ns_;
  do {
    RP_ASSIGN(const bool found, Poll());
    if (found) return absl::OkStatus();
  } while (clock_.Now() < std::min(spin_until, deadline));
  while (true) {
    RP_TRY(queue_->Arm());
    RP_ASSIGN(const bool found, Poll());
    if (found) return absl::OkStatus();
    const Nanos left_ns = deadline - clock_.Now();
    if (left_ns <= 0) return DeadlineExceeded("the daemon did not answer before the deadline");
    const timespec timeout = {.tv_sec = left_ns / kSecond, .tv_nsec = left_ns % kSecond};
    std::array<pollfd, 2> wait = {pollfd{queue_->event_fd(), POLLIN, 0},
                                  pollfd{socket_, POLLIN, 0}};
    if (ppoll(wait.data(), wait.size(), &timeout, nullptr) < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "poll");
    }
    queue_->TakeEvents();
    if (wait[1].revents == 0) continue;
    // What came before the end may still lie in the queue: a last word.
    RP_ASSIGN(const bool last, Poll());
    if (last) return absl::OkStatus();
    CheckSocket();
    if (endpoint_->broken()) return Broken();
  }
}

void RdmaLink::CheckSocket() {
  std::byte byte;
  const ssize_t count = recv(socket_, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  endpoint_->Break(rdma::WorkError::kFlushed, count > 0 ? "the daemon sent bytes on the socket"
                                                        : "the daemon closed the connection");
}

absl::Status RdmaLink::Send(std::span<iovec> parts, Instant deadline) {
  for (iovec& part : parts) {
    while (part.iov_len > 0) {
      const size_t taken =
          endpoint_->Send({static_cast<const std::byte*>(part.iov_base), part.iov_len});
      part.iov_base = static_cast<std::byte*>(part.iov_base) + taken;
      part.iov_len -= taken;
      if (part.iov_len > 0) RP_TRY(Wait(deadline));
    }
  }
  endpoint_->Flush();
  return endpoint_->broken() ? Broken() : absl::OkStatus();
}

absl::StatusOr<size_t> RdmaLink::Receive(Bytes out, size_t bytes_min, Instant deadline) {
  size_t filled = endpoint_->Receive(out);
  while (filled < bytes_min) {
    RP_TRY(Wait(deadline));
    filled += endpoint_->Receive(out.subspan(filled));
  }
  endpoint_->Flush();  // Returns credits.
  return filled;
}

absl::Status RdmaLink::WriteSlots(std::span<const uint32_t> slots, Instant deadline) {
  for (const uint32_t slot : slots) {
    const uint64_t offset = uint64_t{slot} * slot_bytes_;
    const RemoteWrite write = {.data = staging_.subspan(offset, slot_bytes_),
                               .address = staging_address_ + offset,
                               .key = staging_key_};
    while (!endpoint_->Write(write, staging_region_->local_key())) RP_TRY(Wait(deadline));
  }
  endpoint_->Flush();
  return endpoint_->broken() ? Broken() : absl::OkStatus();
}

absl::StatusOr<const rdma::Memory*> RdmaLink::Registration(Bytes memory) {
  for (const Registered& one : landings_) {
    if (one.memory.data() == memory.data() && one.memory.size() == memory.size()) {
      return one.region.get();
    }
  }
  const auto access = window_ != nullptr ? rdma::Access::kWindows : rdma::Access::kPeerWrites;
  RP_ASSIGN(auto made, device_->Register(memory, access));
  landings_.push_back({memory, std::move(made)});
  return landings_.back().region.get();
}

absl::Status RdmaLink::Register(Bytes memory) { return Registration(memory).status(); }

absl::StatusOr<wire::Landing> RdmaLink::OpenLanding(Bytes memory, Bytes part, Instant deadline) {
  RP_ASSIGN(const rdma::Memory* region, Registration(memory));
  wire::Landing landing = {.address = reinterpret_cast<uint64_t>(part.data()),
                           .bytes = part.size(),
                           .key = region->remote_key()};
  if (window_ == nullptr) return landing;
  RP_TRY(OpenWindow(*region, part, deadline));
  landing.key = window_->key();
  return landing;
}

absl::Status RdmaLink::OpenWindow(const rdma::Memory& memory, ConstBytes part, Instant deadline) {
  RP_CHECK(!open_);
  while (!endpoint_->OpenWindow(window_.get(), memory, part)) RP_TRY(Wait(deadline));
  open_ = true;
  return absl::OkStatus();
}

absl::Status RdmaLink::CloseLanding(Instant deadline) {
  if (!std::exchange(open_, false)) return absl::OkStatus();
  while (!endpoint_->CloseWindow(*window_)) RP_TRY(Wait(deadline));
  const uint64_t work = endpoint_->Flush();
  while (!endpoint_->finished(work)) RP_TRY(Wait(deadline));
  return endpoint_->broken() ? Broken() : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<rdma::Memory>> RdmaLink::RegisterDmabuf(int fd, uint64_t offset,
                                                                       uint64_t bytes,
                                                                       uint64_t address) {
  return device_->RegisterDmabuf(fd, offset, bytes, address);
}

void RdmaLink::Forget(Bytes memory) {
  std::erase_if(landings_,
                [memory](const Registered& one) { return one.memory.data() == memory.data(); });
}

bool RdmaLink::Landed(uint32_t tag) {
  for (uint32_t told = 0; endpoint_->TakeTag(&told);) {
    if (told == tag) return true;
  }
  return false;
}

}  // namespace reprise
