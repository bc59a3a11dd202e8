#include <atomic>
#include <cstring>
#include <numeric>

#include "client/client_impl.h"
#include "protocol/base/checksum.h"

namespace reprise {
namespace {

// Of a snapshot that is fetched by RDMA; V4.1-Flash's have 2.7 MB.
constexpr uint64_t kLandingBytes = 8_MiB;

std::string BodyOf(const wire::WindowRequest& request) {
  std::string body;
  wire::Append(&body, request);
  return body;
}

absl::Status CheckSnapshot(const Snapshot& snapshot, uint32_t crc) {
  if (Crc32c(snapshot.bytes) == crc) return absl::OkStatus();
  return DataLoss("window: the snapshot fails its checksum; rebuild it by replay");
}

}  // namespace

absl::StatusOr<Outcome> Client::PutWindow(uint32_t namespace_id, const wire::WindowKey& key,
                                          uint64_t session_id, ConstBytes snapshot) {
  RP_ASSIGN(const auto* name_space, impl_->Find(namespace_id));
  if (snapshot.empty() || snapshot.size() > wire::kDataBytesMax) {
    return InvalidArgument("window put: a snapshot has 1 byte to 64 MiB, not " +
                           std::to_string(snapshot.size()));
  }
  const LocalMemory& memory = impl_->memory;
  wire::WindowPutRequest request{.namespace_id = name_space->daemon_id,
                                 .snapshot_bytes = static_cast<uint32_t>(snapshot.size()),
                                 .snapshot_crc = Crc32c(snapshot),
                                 .session_id = session_id,
                                 .window = key};
  std::vector<uint32_t> slots(DivideUp(snapshot.size(), record_bytes()));
  request.inline_data = slots.size() > memory.staging_slots() ? 1 : 0;
  std::string body;
  wire::Append(&body, request);
  std::span<const ConstBytes> data;
  if (request.inline_data != 0) {
    data = {&snapshot, 1};
  } else {
    uint32_t first = memory.StagingSlotOf(snapshot);
    if (first == wire::kNoSlot) {
      first = 0;
      std::memmove(memory.staging(0).data(), snapshot.data(), snapshot.size());
    }
    std::iota(slots.begin(), slots.end(), first);
    if (impl_->rdma() != nullptr) {
      const absl::Status written = impl_->rdma()->WriteSlots(slots, impl_->Deadline());
      if (!written.ok()) return impl_->channel.Break(written);
    }
    wire::AppendArray<uint32_t>(&body, slots);
  }
  RP_ASSIGN(const Reply reply,
            impl_->channel.Call(wire::Opcode::kWindowPut, body, data, 0, impl_->Deadline()));
  return reply.outcome();
}

absl::StatusOr<Snapshot> Client::GetWindow(uint32_t namespace_id, const wire::WindowKey& key) {
  RP_ASSIGN(const auto* name_space, impl_->Find(namespace_id));
  const wire::WindowRequest request{.namespace_id = name_space->daemon_id, .window = key};
  if (local()) return impl_->GetWindowLocal(request);
  return impl_->rdma() != nullptr ? impl_->GetWindowByRdma(request)
                                  : impl_->GetWindowRemote(request);
}

absl::StatusOr<Snapshot> Client::Impl::GetWindowByRdma(const wire::WindowRequest& request) {
  const Instant deadline = Deadline();
  const Bytes buffer = buffers.Take(kLandingBytes);
  if (buffer.empty()) return ResourceExhausted("window: no memory for the snapshot");
  const auto give_back = [this](const Bytes* taken) { buffers.Return(*taken); };
  const std::unique_ptr<const Bytes, decltype(give_back)> owner(&buffer, give_back);
  RP_TRY(rdma()->Register(buffer));
  const absl::StatusOr<wire::Landing> landing = rdma()->OpenLanding(buffer, buffer, deadline);
  if (!landing.ok()) return channel.Break(landing.status());
  std::string body;
  wire::Append(&body, wire::WindowFetchRequest{.request = request, .landing = *landing});
  RP_ASSIGN(const Reply reply, CloseLanding(channel.Call(wire::Opcode::kWindowFetch, body, {},
                                                         sizeof(wire::WindowReply), deadline),
                                            deadline));
  // Larger than the landing: the bytes come behind their frame.
  if (reply.outcome() == Outcome::kInvalid) return GetWindowRemote(request);
  if (reply.outcome() != Outcome::kOk) return StatusOf(reply.outcome(), "window");
  wire::WindowReplyView view;
  if (!wire::Decode(reply.body, &view) || view.fixed.snapshot_bytes > buffer.size() ||
      !rdma()->Landed(static_cast<uint32_t>(channel.request_id()))) {
    return channel.Break(DataLoss("window: the reply makes no sense; connect again"));
  }
  Snapshot snapshot;
  snapshot.bytes.assign(buffer.begin(), buffer.begin() + view.fixed.snapshot_bytes);
  RP_TRY(CheckSnapshot(snapshot, view.fixed.snapshot_crc));
  return snapshot;
}

absl::StatusOr<Snapshot> Client::Impl::GetWindowLocal(const wire::WindowRequest& request) {
  const uint32_t slot_bytes = hello.record_bytes();
  const size_t slots_max = DivideUp(wire::kDataBytesMax, slot_bytes);
  RP_ASSIGN(
      const Reply reply,
      channel.Call(wire::Opcode::kWindowAcquire, BodyOf(request), {},
                   sizeof(wire::WindowReply) + slots_max * sizeof(wire::SlotRef), Deadline()));
  if (reply.outcome() != Outcome::kOk) return StatusOf(reply.outcome(), "window");
  wire::WindowReplyView view;
  if (!wire::Decode(reply.body, &view) || view.fixed.snapshot_bytes > wire::kDataBytesMax ||
      view.fixed.slot_count != DivideUp(view.fixed.snapshot_bytes, slot_bytes)) {
    return channel.Break(DataLoss("window: the reply makes no sense; connect again"));
  }
  Snapshot snapshot;
  snapshot.bytes.resize(view.fixed.snapshot_bytes);
  Bytes rest = snapshot.bytes;
  bool current = true;
  for (uint32_t i = 0; i < view.fixed.slot_count && current; ++i) {
    const auto ref = wire::At<wire::SlotRef>(view.slots, i);
    if (ref.slot >= memory.arena_slots()) {
      return channel.Break(DataLoss("window: a slot outside the arena; connect again"));
    }
    const size_t count = std::min<size_t>(rest.size(), slot_bytes);
    std::memcpy(rest.data(), memory.slot(ref.slot).data(), count);
    std::atomic_thread_fence(std::memory_order_acquire);
    current = memory.Current(ref);
    rest = rest.subspan(count);
  }
  if (view.fixed.lease_id != 0) channel.Release(view.fixed.lease_id);
  if (!current)
    return DataLoss("window: the snapshot left while it was copied; rebuild it by replay");
  RP_TRY(CheckSnapshot(snapshot, view.fixed.snapshot_crc));
  return snapshot;
}

absl::StatusOr<Snapshot> Client::Impl::GetWindowRemote(const wire::WindowRequest& request) {
  const Instant deadline = Deadline();
  RP_TRY(channel.Send(wire::Opcode::kWindowGet, BodyOf(request), {}, deadline));
  RP_ASSIGN(const Reply reply, channel.Receive(sizeof(wire::WindowReply), deadline));
  if (reply.outcome() != Outcome::kOk && reply.header.data_bytes == 0 && !reply.more()) {
    return StatusOf(reply.outcome(), "window");
  }
  wire::WindowReplyView view;
  if (!wire::Decode(reply.body, &view) || reply.more() ||
      view.fixed.snapshot_bytes != reply.header.data_bytes) {
    return channel.Break(DataLoss("window: the reply makes no sense; connect again"));
  }
  Snapshot snapshot;
  snapshot.bytes.resize(view.fixed.snapshot_bytes);
  RP_TRY(channel.ReceiveData(snapshot.bytes, deadline));
  RP_TRY(CheckSnapshot(snapshot, view.fixed.snapshot_crc));
  return snapshot;
}

}  // namespace reprise
