#include <cstring>

#include "client/client_impl.h"

namespace reprise {
namespace {

constexpr size_t kHandleBytesMax = 64;

// False: no daemon of this protocol says this.
bool ReadPool(const wire::SlotPoolReply& reply, SlotPool* pool) {
  switch (reply.handle_kind()) {
    case wire::SLOT_HANDLE_CUDA_IPC:
      pool->kind = SlotPool::HandleKind::kCudaIpc;
      break;
    case wire::SLOT_HANDLE_HOST_TEST:
      pool->kind = SlotPool::HandleKind::kHostTest;
      break;
    default:
      return false;
  }
  pool->slots = reply.slots();
  pool->slot_bytes = reply.slot_bytes();
  pool->stride_bytes = reply.stride_bytes();
  pool->record_layout = reply.record_layout();
  pool->leased_slots_max = reply.leased_slots_max();
  for (const wire::SlotPoolDevice& device : reply.devices()) {
    SlotPool::Device& out = pool->devices.emplace_back();
    if (device.uuid().size() != out.uuid.size() || device.handle().size() > kHandleBytesMax) {
      return false;
    }
    std::memcpy(out.uuid.data(), device.uuid().data(), out.uuid.size());
    out.pci_bus_id = device.pci_bus_id();
    out.handle = device.handle();
  }
  return !pool->devices.empty() && pool->slot_bytes > 0 && pool->stride_bytes >= pool->slot_bytes;
}

}  // namespace

absl::StatusOr<const SlotPool*> Client::HbmPool() {
  if (impl_->slot_pool.has_value()) return &*impl_->slot_pool;
  if (!impl_->channel.connection().is_unix()) {
    return FailedPrecondition(
        "slots in HBM are leased on the daemon's Unix socket alone, to processes on its machine; "
        "connect to its unix: address");
  }
  wire::ControlRequest request;
  request.mutable_slot_pool();
  RP_ASSIGN(const wire::ControlReply reply, impl_->Control(request));
  SlotPool pool;
  if (!ReadPool(reply.slot_pool(), &pool)) {
    return DataLoss("the daemon's HBM pool makes no sense; use the same release on both sides");
  }
  impl_->slot_pool = std::move(pool);
  return &*impl_->slot_pool;
}

absl::StatusOr<SlotLease> Client::AcquireSlots(uint32_t namespace_id,
                                               std::span<const BlockKey> keys, SlotsFrom from) {
  RP_ASSIGN(const auto* name_space, impl_->Find(namespace_id));
  RP_TRY(CheckKeyCount(keys.size(), "acquire slots"));
  RP_ASSIGN(const SlotPool* pool, HbmPool());  // A daemon that answers knows the opcode.
  if (name_space->payload_bytes != pool->slot_bytes) {
    return InvalidArgument("acquire slots: the namespace's blocks have " +
                           std::to_string(name_space->payload_bytes) +
                           " bytes, the slots in the daemon's HBM " +
                           std::to_string(pool->slot_bytes) + "; it serves another model");
  }
  std::string body;
  wire::Append(&body, wire::SlotAcquireRequest{
                          .namespace_id = name_space->daemon_id,
                          .key_count = static_cast<uint32_t>(keys.size()),
                          .held_only = from == SlotsFrom::kHbmOnly ? uint8_t{1} : uint8_t{0}});
  wire::AppendArray<BlockKey>(&body, keys);
  RP_ASSIGN(const Reply reply, impl_->channel.Call(wire::Opcode::kSlotAcquire, body, {},
                                                   sizeof(wire::SlotAcquireReply) +
                                                       keys.size() * sizeof(wire::HbmSlot),
                                                   impl_->Deadline()));
  if (!EndsRun(reply.outcome())) return StatusOf(reply.outcome(), "acquire slots");
  SlotLease lease;
  lease.stopped_by_ = reply.outcome();
  if (reply.body.empty() && reply.outcome() != Outcome::kOk) return lease;
  wire::SlotAcquireReplyView view;
  if (!wire::Decode(reply.body, &view) || view.fixed.slot_count > keys.size()) {
    return impl_->channel.Break(DataLoss("acquire slots: the reply makes no sense; connect again"));
  }
  lease.client_ = this;
  lease.lease_id_ = view.fixed.lease_id;
  lease.from_ssd_ = view.fixed.from_ssd;
  lease.from_dram_ = view.fixed.from_dram;
  lease.slots_.resize(view.fixed.slot_count);
  for (uint32_t i = 0; i < view.fixed.slot_count; ++i) {
    lease.slots_[i] = wire::At<wire::HbmSlot>(view.slots, i);
    if (lease.slots_[i].slot >= pool->slots) {
      return impl_->channel.Break(
          DataLoss("acquire slots: a slot outside the pool; connect again"));
    }
  }
  return lease;
}

SlotLease& SlotLease::operator=(SlotLease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  client_ = std::exchange(other.client_, nullptr);
  lease_id_ = std::exchange(other.lease_id_, 0);
  slots_ = std::exchange(other.slots_, {});
  from_ssd_ = other.from_ssd_;
  from_dram_ = other.from_dram_;
  stopped_by_ = other.stopped_by_;
  return *this;
}

void SlotLease::Release() {
  if (client_ == nullptr) return;
  if (lease_id_ != 0) {
    client_->impl_->channel.Release(lease_id_);
    client_->impl_->channel.FlushReleases();  // HBM is scarce, and the next request may be far.
  }
  client_ = nullptr;
  lease_id_ = 0;
  slots_.clear();
}

}  // namespace reprise
