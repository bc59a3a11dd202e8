// slot_reader ADDRESS SESSION-FILE: a local engine in small. Leases a session's blocks in the HBM
// of the daemon at this address, maps the pool, and compares every slot, on every device, with the
// record that the daemon has in DRAM. Exit code 0: all are equal.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "client/client.h"
#include "gpu/cuda/device.h"
#include "gpu/cuda/opened_pool.h"
#include "protocol/base/clock.h"
#include "protocol/identity/block_hash.h"
#include "tests/integration/data_files.h"

namespace reprise {
namespace {

constexpr int kRounds = 200;

absl::StatusOr<uint32_t> CountEqual(const SlotPool& pool, const SlotPool::Device& device,
                                    const SlotLease& slots, const Lease& records) {
  RP_ASSIGN(const engine::cuda::OpenedPool opened,
            engine::cuda::OpenedPool::Open({.uuid = device.uuid,
                                            .handle = AsBytes(device.handle),
                                            .slots = pool.slots,
                                            .stride_bytes = pool.stride_bytes}));
  RP_TRY(engine::cuda::UseDevice(opened.device()).status());
  std::vector<std::byte> payload(pool.slot_bytes);
  uint32_t equal = 0;
  for (uint32_t i = 0; i < slots.size(); ++i) {
    RP_CUDA_TRY(cudaMemcpy(payload.data(), opened.slot(slots.slot(i).slot), payload.size(),
                           cudaMemcpyDeviceToHost));
    equal += std::memcmp(payload.data(), records.record(i).data(), payload.size()) == 0 ? 1 : 0;
  }
  return equal;
}

absl::Status Run(const char* address, const char* path) {
  std::stringstream file;
  file << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string text = file.str();
  const Manifest manifest = test::ManifestOfSessionFile(text);
  const auto tokens = test::HeaderOfSessionFile(text)["tokens"].get<std::vector<TokenId>>();
  std::vector<BlockKey> keys;
  for (const Hash256& hash : PrefixChain(NamespaceOf(manifest), tokens)) {
    keys.push_back(KeyOf(hash));
  }
  RP_ASSIGN(const auto client, Client::Connect({.address = address, .name = "slot_reader"}));
  RP_ASSIGN(const uint32_t id, client->OpenNamespace(manifest));
  RP_ASSIGN(const SlotPool* pool, client->HbmPool());
  RP_ASSIGN(SlotLease slots, client->AcquireSlots(id, keys));
  RP_ASSIGN(const Lease records, client->Acquire(id, keys));
  if (slots.size() == 0 || records.size() < slots.size()) {
    return NotFound("of " + std::to_string(keys.size()) + " blocks " +
                    std::to_string(slots.size()) + " were leased in HBM");
  }
  for (const SlotPool::Device& device : pool->devices) {
    RP_ASSIGN(const uint32_t equal, CountEqual(*pool, device, slots, records));
    std::printf("%s: %u of %u slots equal the records; %u from dram, %u from ssd\n",
                device.pci_bus_id.c_str(), equal, slots.size(), slots.from_dram(),
                slots.from_ssd());
    if (equal != slots.size()) return DataLoss("a slot has other bytes");
  }
  const SystemClock clock;
  const Instant begin = clock.Now();
  for (int round = 0; round < kRounds; ++round) {
    RP_ASSIGN(const SlotLease again, client->AcquireSlots(id, keys, SlotsFrom::kHbmOnly));
    if (again.size() != slots.size()) return Internal("a second lease has other blocks");
  }
  std::printf("%u blocks in HBM leased and released in %.1f us\n", slots.size(),
              static_cast<double>(clock.Now() - begin) / kRounds / kMicrosecond);
  return absl::OkStatus();
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s ADDRESS SESSION-FILE\n", argv[0]);
    return 2;
  }
  const absl::Status status = reprise::Run(argv[1], argv[2]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "slot_reader: %s\n", reprise::Message(status).c_str());
  return 1;
}
