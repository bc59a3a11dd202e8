#include <cstring>

#include "client/c_api.h"

namespace {

using reprise::SlotPool;
using reprise::c_api::Fail;
using reprise::c_api::FromC;

static_assert(static_cast<uint32_t>(SlotPool::HandleKind::kCudaIpc) == RP_SLOT_HANDLE_CUDA_IPC &&
              static_cast<uint32_t>(SlotPool::HandleKind::kHostTest) == RP_SLOT_HANDLE_HOST_TEST);
static_assert(uint32_t{reprise::kReplayDerived} == uint32_t{RP_SLOT_REPLAY_DERIVED});

}  // namespace

extern "C" {

rp_status rp_get_slot_pool(rp_client* client, rp_slot_pool* pool) {
  if (client == nullptr || pool == nullptr || pool->struct_bytes != sizeof(rp_slot_pool)) {
    return RP_INVALID;
  }
  const auto found = client->client->HbmPool();
  if (!found.ok()) return Fail(client, found.status());
  *pool = {.struct_bytes = sizeof(rp_slot_pool),
           .handle_kind = static_cast<uint32_t>((*found)->kind),
           .slots = (*found)->slots,
           .slot_bytes = (*found)->slot_bytes,
           .stride_bytes = (*found)->stride_bytes,
           .record_layout = (*found)->record_layout,
           .leased_slots_max = (*found)->leased_slots_max,
           .device_count = static_cast<uint32_t>((*found)->devices.size()),
           .reserved = 0};
  return RP_OK;
}

rp_status rp_get_slot_device(rp_client* client, uint32_t index, rp_slot_device* device) {
  if (client == nullptr || device == nullptr || device->struct_bytes != sizeof(rp_slot_device)) {
    return RP_INVALID;
  }
  const auto pool = client->client->HbmPool();
  if (!pool.ok()) return Fail(client, pool.status());
  if (index >= (*pool)->devices.size()) {
    return Fail(client,
                reprise::InvalidArgument("the pool has " + std::to_string((*pool)->devices.size()) +
                                         " devices"));
  }
  const SlotPool::Device& found = (*pool)->devices[index];
  *device = {.struct_bytes = sizeof(rp_slot_device),
             .handle_bytes = static_cast<uint32_t>(found.handle.size()),
             .uuid = {},
             .handle = {},
             .pci_bus_id = found.pci_bus_id.c_str()};
  std::memcpy(device->uuid, found.uuid.data(), sizeof(device->uuid));
  std::memcpy(device->handle, found.handle.data(), found.handle.size());
  return RP_OK;
}

rp_status rp_acquire_slots(rp_client* client, uint32_t namespace_id, const rp_key* keys,
                           size_t key_count, uint32_t flags, rp_slot_lease** lease) {
  if (client == nullptr || lease == nullptr || (keys == nullptr && key_count > 0)) {
    return RP_INVALID;
  }
  *lease = nullptr;
  if ((flags & ~uint32_t{RP_SLOTS_HBM_ONLY}) != 0) {
    return Fail(client, reprise::InvalidArgument("unknown RP_SLOTS_* flag"));
  }
  const auto from = (flags & RP_SLOTS_HBM_ONLY) != 0 ? reprise::SlotsFrom::kHbmOnly
                                                     : reprise::SlotsFrom::kAnyTier;
  auto acquired = client->client->AcquireSlots(namespace_id, FromC(keys, key_count), from);
  if (!acquired.ok()) return Fail(client, acquired.status());
  *lease = new rp_slot_lease{.lease = *std::move(acquired), .slots = {}};
  for (uint32_t i = 0; i < (*lease)->lease.size(); ++i) {
    const reprise::wire::HbmSlot& slot = (*lease)->lease.slot(i);
    (*lease)->slots.push_back(
        {.slot = slot.slot, .generation = slot.generation, .flags = slot.flags, .reserved = 0});
  }
  return RP_OK;
}

void rp_slot_lease_release(rp_slot_lease* lease) { delete lease; }

uint32_t rp_slot_lease_size(const rp_slot_lease* lease) {
  return lease == nullptr ? 0 : lease->lease.size();
}

const rp_slot* rp_slot_lease_slots(const rp_slot_lease* lease) {
  return lease == nullptr ? nullptr : lease->slots.data();
}

uint32_t rp_slot_lease_from_ssd(const rp_slot_lease* lease) {
  return lease == nullptr ? 0 : lease->lease.from_ssd();
}

uint32_t rp_slot_lease_from_dram(const rp_slot_lease* lease) {
  return lease == nullptr ? 0 : lease->lease.from_dram();
}

rp_outcome rp_slot_lease_stopped_by(const rp_slot_lease* lease) {
  const auto outcome = lease == nullptr ? reprise::Outcome::kClosed : lease->lease.stopped_by();
  return static_cast<rp_outcome>(outcome);
}

}  // extern "C"
