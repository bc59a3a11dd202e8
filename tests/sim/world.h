#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "protocol/base/clock.h"
#include "protocol/base/prng.h"
#include "protocol/transport/rdma_transport.h"
#include "server/namespaces.h"
#include "server/shard.h"
#include "storage/memory_meta_store.h"
#include "storage/page_buffer.h"
#include "tests/protocol/fake_verbs.h"
#include "tests/sim/corpus.h"
#include "tests/sim/limits.h"
#include "tests/sim/model.h"
#include "tests/sim/outcomes.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_device.h"
#include "tests/sim/sim_stream.h"

namespace reprise::sim {

// The slots of all shards, with no memfd beneath.
class PlainMemory final : public storage::SlotPool::Memory {
 public:
  PlainMemory(uint32_t slots, uint32_t slot_bytes)
      : slot_bytes_(slot_bytes), bytes_(size_t{slots} * slot_bytes), generations_(slots) {}

  Bytes slots() { return bytes_.bytes(); }
  Bytes slot(uint32_t slot) override {
    return bytes_.bytes().subspan(size_t{slot} * slot_bytes_, slot_bytes_);
  }
  uint32_t generation(uint32_t slot) const override { return generations_[slot]; }
  void BumpGeneration(uint32_t slot) override { ++generations_[slot]; }

 private:
  uint32_t slot_bytes_;
  storage::PageBuffer bytes_;
  std::vector<uint32_t> generations_;
};

// The daemon as the simulation runs it: its shards and what they stand on. A crash leaves it behind
// as it is, for a killed process runs no destructors.
struct Daemon {
  server::ServerFacts facts;
  std::unique_ptr<server::NamespaceTable> namespaces;
  std::unique_ptr<PlainMemory> memory;
  RdmaPort rdma_port;                                // Without a device: no RDMA.
  std::vector<std::unique_ptr<RdmaTransport>> rdma;  // By shard.
  std::vector<std::unique_ptr<server::Shard>> shards;
};

// One run: a daemon above simulated disks, network and clock, its clients, and the model of what it
// may do. Everything follows from the seed.
class World {
 public:
  struct Options {
    uint64_t seed = 1;
    uint32_t ops = 300;
    bool verbose = false;
  };

  explicit World(const Options& options);

  // False: failure() says what was wrong.
  bool Run();
  const std::string& failure() const { return failure_; }
  const Outcomes& outcomes() const { return outcomes_; }
  std::string Describe() const;

 private:
  // world.cc: what a run does.
  void Tick();
  void TickShard(uint32_t shard);
  void MakeTrouble();
  void StopFaults();
  void RunUntilClientsEnd();
  void RunUntilDrained();
  void Fail(const std::string& what);
  void Trace(const std::string& what);
  Link* Connect();

  // daemon.cc: birth and death of the daemon.
  std::unique_ptr<Daemon> MakeDaemon();
  server::Shard::Options ShardOptions(uint32_t index);
  void OpenRdma(Daemon* daemon);
  void StartDaemon();
  void Restart(bool power_cut);
  void LoseMeta();
  void CollectStats();
  SimDevice::Options DeviceOptions(bool faults) const;
  void SetDeviceFaults(bool on);

  // checks.cc: what must hold.
  const storage::IndexEntry* Find(const BlockKey& key) const;
  void CheckBudgets();
  void CheckShardBudgets(server::Shard* shard);
  void CheckIndex();
  void CheckEntry(uint32_t shard, const storage::IndexEntry& entry, std::set<uint32_t>* locations);
  void CheckPoolsFull();
  void CheckDurable(const std::vector<Model::Durable>& durable);
  void CheckVerdicts();
  void SettleStores();
  void CheckVerdict(Link* link, uint32_t name_space, uint32_t chain);
  std::string Ask(Link* link, wire::Opcode opcode, std::string body, uint64_t id);

  Options options_;
  Prng prng_;
  Limits limits_;
  Faults faults_;
  Faults faults_drawn_;
  Corpus corpus_;
  Outcomes outcomes_;
  Model model_;
  ClientContext context_;
  ManualClock clock_;
  storage::RegionGeometry geometry_;
  std::array<std::byte, 16> uuid_{};
  std::vector<std::unique_ptr<SimDevice>> devices_;
  std::unique_ptr<storage::MemoryMetaStore> meta_;
  std::unique_ptr<storage::MemoryMetaStore> meta_before_;  // As it was some time ago.
  rdma::test::FakeFabric fabric_;
  std::unique_ptr<rdma::Device> client_device_;
  std::unique_ptr<Daemon> daemon_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::unique_ptr<SimClient>> clients_;
  std::set<std::pair<uint32_t, uint32_t>> damaged_regions_;  // Shard and region.
  uint64_t tick_ = 0;
  uint64_t link_number_ = 0;
  uint32_t crashes_left_ = 3;
  std::string failure_;
};

}  // namespace reprise::sim
