#include "tests/sim/world.h"

#include <algorithm>
#include <cstdio>

namespace reprise::sim {
namespace {

// What a run may take from the end of its faults to the end of its last request, and from there to
// rest. In time, because every wait of the daemon is bounded in time.
constexpr Nanos kEndWithinNs = 60 * kSecond;
constexpr uint64_t kFaultTicksMax = 30'000;

}  // namespace

World::World(const Options& options)
    : options_(options),
      prng_(options.seed),
      limits_(Limits::Draw(&prng_)),
      faults_(Faults::Draw(&prng_)),
      faults_drawn_(faults_),
      corpus_(&prng_),
      model_(
          &corpus_, &outcomes_, [this](const BlockKey& key) { return Find(key); },
          [this](const std::string& what) { Fail(what); }),
      meta_(std::make_unique<storage::MemoryMetaStore>()),
      meta_before_(std::make_unique<storage::MemoryMetaStore>()),
      fabric_(options.seed) {
  uuid_.fill(std::byte{0x5a});
  const uint64_t slots = std::max(1u, limits_.region_slots);
  geometry_ = storage::CutRegion(Corpus::kRecordBytes,
                                 slots * Corpus::kRecordBytes +
                                     AlignUp(slots * sizeof(storage::TrailerEntry), kPageBytes) +
                                     kPageBytes);
  for (uint32_t i = 0; i < limits_.shards && limits_.region_count > 0; ++i) {
    devices_.push_back(std::make_unique<SimDevice>(DeviceOptions(false), prng_.Next()));
  }
  context_ = {.limits = &limits_,
              .faults = &faults_,
              .corpus = &corpus_,
              .model = &model_,
              .outcomes = &outcomes_,
              .store_id = LoadLe<uint64_t>(uuid_.data()),
              .ops_left = options.ops,
              .disk_failed = faults_.disk_errors(),
              .fail = [this](const std::string& what) { Fail(what); },
              .connect = [this] { return Connect(); }};
  if (limits_.rdma) {
    client_device_ = *fabric_.Open((*fabric_.Ports())[0]);
    context_.rdma_device = client_device_.get();
  }
  if (options.verbose) context_.trace = [this](const std::string& what) { Trace(what); };
  if (faults_.sync_errors) model_.SyncsMayFail();
  for (uint32_t i = 0; i < limits_.clients; ++i) {
    clients_.push_back(std::make_unique<SimClient>(&context_, i, prng_.Next()));
  }
}

std::string World::Describe() const {
  return limits_.Describe() + "; faults: " + faults_drawn_.Describe();
}

void World::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = "tick " + std::to_string(tick_) + ": " + what;
}

void World::Trace(const std::string& what) {
  if (options_.verbose) {
    std::printf("%8llu %s\n", static_cast<unsigned long long>(tick_), what.c_str());
  }
}

Link* World::Connect() {
  links_.push_back(
      std::make_unique<Link>(Link::Options{.fragments = faults_.fragments,
                                           .window_bytes = uint64_t{16'384} << prng_.Below(4)},
                             link_number_++, prng_.Next()));
  const size_t shard = prng_.Below(limits_.shards);
  std::unique_ptr<Stream> stream = links_.back()->MakeStream();
  if (limits_.rdma) stream = daemon_->rdma[shard]->Wrap(std::move(stream), nullptr);
  daemon_->shards[shard]->Adopt(std::move(stream));
  return links_.back().get();
}

// ---- A run
// -----------------------------------------------------------------------------------------

bool World::Run() {
  StartDaemon();
  SetDeviceFaults(true);
  while (context_.ops_left > 0 && tick_ < kFaultTicksMax && failure_.empty()) {
    MakeTrouble();
    Tick();
  }
  StopFaults();
  RunUntilClientsEnd();
  RunUntilDrained();
  if (failure_.empty()) CheckPoolsFull();
  if (failure_.empty()) CheckVerdicts();
  RunUntilDrained();
  if (failure_.empty() && prng_.Chance(500)) {
    Restart(prng_.Chance(500));
    if (failure_.empty()) CheckVerdicts();
    RunUntilDrained();
  }
  if (!failure_.empty()) return false;
  CheckPoolsFull();
  CollectStats();
  if (failure_.empty()) daemon_.reset();  // Its destructors have checks of their own.
  return failure_.empty();
}

void World::Tick() {
  ++tick_;
  clock_.Advance(limits_.tick_ns);
  enum class Kind : uint8_t { kShard, kDevice, kLink, kClient };
  struct Actor {
    Kind kind;
    uint32_t index;
  };
  std::vector<Actor> actors;
  for (uint32_t i = 0; i < limits_.shards; ++i) actors.push_back({Kind::kShard, i});
  for (uint32_t i = 0; i < devices_.size(); ++i) actors.push_back({Kind::kDevice, i});
  for (uint32_t i = 0; i < links_.size(); ++i) actors.push_back({Kind::kLink, i});
  for (uint32_t i = 0; i < clients_.size(); ++i) actors.push_back({Kind::kClient, i});
  for (size_t i = actors.size(); i > 1; --i) std::swap(actors[i - 1], actors[prng_.Below(i)]);
  for (const Actor& actor : actors) {
    switch (actor.kind) {
      case Kind::kShard:
        TickShard(actor.index);
        break;
      case Kind::kDevice:
        devices_[actor.index]->Tick();
        break;
      case Kind::kLink:
        links_[actor.index]->Tick();
        break;
      case Kind::kClient:
        clients_[actor.index]->Tick();
        break;
    }
  }
  // Devices work between the turns of threads, now more and now less.
  for (uint64_t steps = limits_.rdma ? prng_.Below(400) : 0; steps > 0 && fabric_.Step(); --steps) {
  }
  std::erase_if(links_, [](const auto& link) { return link->finished(); });
  model_.Tick();
  CheckBudgets();
  if (tick_ % 64 == 0) CheckIndex();
}

void World::TickShard(uint32_t shard) {
  if (faults_.stalled_turns && prng_.Chance(400)) return;
  for (uint64_t turns = 1 + prng_.Below(3); turns > 0; --turns) {
    daemon_->shards[shard]->Turn(clock_.Now());
  }
}

void World::MakeTrouble() {
  if (faults_.clock_jumps && prng_.Chance(20)) {
    outcomes_.Count("clock_jump");
    clock_.JumpWall(static_cast<int64_t>(prng_.Below(20'000'000)) - 10'000'000);
  }
  if (limits_.rdma && faults_.rdma_errors && prng_.Chance(20)) {
    outcomes_.Count("rdma_fault");
    context_.rdma_failed = true;
    fabric_.FailCall(static_cast<uint32_t>(1 + prng_.Below(30)));
  }
  if (devices_.empty()) return;
  if (faults_.damage && prng_.Chance(4)) {
    const auto shard = static_cast<uint32_t>(prng_.Below(limits_.shards));
    const uint64_t offset = prng_.Below(devices_[shard]->size_bytes());
    outcomes_.Count("bit_flipped");
    Trace("bit flipped: shard " + std::to_string(shard) + " byte " + std::to_string(offset));
    devices_[shard]->FlipBit(offset, static_cast<uint32_t>(prng_.Below(8)));
    damaged_regions_.insert({shard, static_cast<uint32_t>(offset / geometry_.region_bytes)});
    context_.damaged = true;
    model_.Damaged();
  }
  if (prng_.Chance(30)) {  // What a MetaStore that is behind will say after a crash.
    meta_before_ = std::make_unique<storage::MemoryMetaStore>();
    for (uint32_t i = 0; i < limits_.shards; ++i) {
      const std::vector<storage::RegionRow> rows = *meta_->LoadRegions(i);
      for (const storage::RegionRow& row : rows) meta_before_->PutRegion(row);
    }
    const std::vector<storage::NamespaceRow> rows = *meta_->LoadNamespaces();
    for (const storage::NamespaceRow& row : rows) meta_before_->PutNamespace(row);
  }
  const bool power_cut = faults_.power_cuts && prng_.Chance(5);
  const bool kill = !power_cut && faults_.kills && prng_.Chance(5);
  if ((power_cut || kill) && crashes_left_ > 0) {
    --crashes_left_;
    Restart(power_cut);
  }
}

void World::StopFaults() {
  Trace("faults stop");
  faults_ = {};
  fabric_.FailCall(0);
  SetDeviceFaults(false);
  context_.ops_left = 0;
}

void World::RunUntilClientsEnd() {
  const Instant until = clock_.Now() + kEndWithinNs;
  const auto all_idle = [this] {
    return std::all_of(clients_.begin(), clients_.end(),
                       [](const auto& client) { return client->idle(); });
  };
  while (failure_.empty() && !all_idle()) {
    if (clock_.Now() > until) return Fail("a client still waits, long after the faults stopped");
    Tick();
  }
}

void World::RunUntilDrained() {
  const Instant until = clock_.Now() + kEndWithinNs;
  const auto drained = [this] {
    return std::all_of(daemon_->shards.begin(), daemon_->shards.end(),
                       [](const auto& shard) { return shard->drained(); }) &&
           std::all_of(devices_.begin(), devices_.end(),
                       [](const auto& device) { return device->in_flight() == 0; });
  };
  while (failure_.empty() && !drained()) {
    if (clock_.Now() > until) return Fail("the daemon does not come to rest");
    Tick();
  }
}

}  // namespace reprise::sim
