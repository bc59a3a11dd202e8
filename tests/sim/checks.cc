#include <algorithm>
#include <cstring>

#include "tests/sim/world.h"

// What must hold, whatever happens.
namespace reprise::sim {
namespace {

std::string At(uint32_t shard, const BlockKey& key) {
  return "shard " + std::to_string(shard) + ", block " + ToHex(key) + ": ";
}

}  // namespace

const storage::IndexEntry* World::Find(const BlockKey& key) const {
  return daemon_->shards[ShardOf(key, limits_.shards)]->blocks().Find(key);
}

// ---- Budgets: at every tick
// ------------------------------------------------------------------------

void World::CheckBudgets() {
  for (const auto& shard : daemon_->shards) CheckShardBudgets(shard.get());
  const server::ServerFacts& facts = daemon_->facts;
  if (facts.body_bytes > facts.body_bytes_max) Fail("bodies exceed their budget");
  if (facts.staging_bytes != 0) Fail("staging for clients that are not local");
}

void World::CheckShardBudgets(server::Shard* shard) {
  using Use = storage::SlotPool::Use;
  const storage::BlockStore::Stats blocks = shard->blocks().stats();
  const storage::WindowPool::Stats windows = shard->windows().stats();
  const uint64_t ssd_blocks_max = uint64_t{limits_.region_count} * geometry_.slots;
  const struct {
    const char* what;
    uint64_t used, budget;
  } rows[] = {
      {"DRAM slots of blocks", shard->slots().used(Use::kBlock), limits_.block_slots},
      {"DRAM slots of windows", shard->slots().used(Use::kWindow), limits_.window_slots},
      {"bytes of windows", windows.bytes, uint64_t{limits_.window_slots} * Corpus::kRecordBytes},
      {"snapshots", windows.snapshots, std::max(limits_.snapshots_max, 1u)},
      {"blocks on SSD", blocks.ssd_blocks, ssd_blocks_max},
      {"blocks", blocks.blocks, limits_.block_slots + ssd_blocks_max},
      {"loads", blocks.loads_in_flight, limits_.loads_max},
      {"appends", blocks.appends_in_flight, limits_.appends_max},
      {"waiting operations", blocks.waiting, limits_.waiting_max},
  };
  for (const auto& row : rows) {
    if (row.used <= row.budget) continue;
    Fail("shard " + std::to_string(shard->index()) + ": " + row.what + ": " +
         std::to_string(row.used) + " exceed the budget of " + std::to_string(row.budget));
  }
}

// ---- The index: now and then
// -----------------------------------------------------------------------

// A block is in the index if and only if it can be read.
void World::CheckIndex() {
  for (uint32_t i = 0; i < limits_.shards; ++i) {
    server::Shard& shard = *daemon_->shards[i];
    std::set<uint32_t> locations;
    uint64_t on_ssd = 0;
    uint64_t in_dram = 0;
    shard.blocks().index().ForEach([&](const storage::IndexEntry& entry) {
      CheckEntry(i, entry, &locations);
      on_ssd += entry.ssd_location != storage::kNowhere ? 1 : 0;
      in_dram += entry.dram_slot != storage::kNowhere ? 1 : 0;
    });
    const storage::BlockStore::Stats stats = shard.blocks().stats();
    if (on_ssd != stats.ssd_blocks) {
      Fail("shard " + std::to_string(i) + " counts " + std::to_string(stats.ssd_blocks) +
           " blocks on SSD, and its index has " + std::to_string(on_ssd));
    }
    if (in_dram > shard.slots().used(storage::SlotPool::Use::kBlock)) {
      Fail("shard " + std::to_string(i) + " has more blocks in DRAM than slots in use");
    }
    uint64_t by_namespace = 0;
    for (uint16_t n = 0; n < daemon_->namespaces->size(); ++n) {
      by_namespace += shard.blocks().namespace_blocks(n);
    }
    if (by_namespace != stats.blocks) {
      Fail("shard " + std::to_string(i) + " counts " + std::to_string(by_namespace) +
           " blocks of all namespaces, and its index has " + std::to_string(stats.blocks));
    }
  }
}

void World::CheckEntry(uint32_t shard, const storage::IndexEntry& entry,
                       std::set<uint32_t>* locations) {
  const BlockKey& key = entry.key;
  if (ShardOf(key, limits_.shards) != shard) Fail(At(shard, key) + "of another shard");
  if (entry.dram_slot != storage::kNowhere) {
    const storage::SlotPool& slots = daemon_->shards[shard]->slots();
    if (slots.use(entry.dram_slot) != storage::SlotPool::Use::kBlock ||
        slots.key(entry.dram_slot) != key) {
      Fail(At(shard, key) + "its slot holds another block");
    } else if (VerifyRecord(slots.bytes(entry.dram_slot), key) != Outcome::kOk) {
      Fail(At(shard, key) + "its slot holds other bytes");
    }
  }
  if (entry.ssd_location == storage::kNowhere) return;
  if (!locations->insert(entry.ssd_location).second) {
    Fail(At(shard, key) + "two blocks at one place on SSD");
  }
  const uint32_t region = entry.ssd_location / geometry_.slots;
  if (damaged_regions_.contains({shard, region})) return;
  const ConstBytes record = devices_[shard]->view().subspan(
      geometry_.SlotOffset(region, entry.ssd_location % geometry_.slots), Corpus::kRecordBytes);
  // A copy that was moved out of a damaged region is damaged as well.
  if (VerifyRecord(record, key) != Outcome::kOk && !context_.damaged) {
    Fail(At(shard, key) + "its place on SSD (region " + std::to_string(region) + ", slot " +
         std::to_string(entry.ssd_location % geometry_.slots) + ") holds block " +
         ToHex(KeyOf(LoadRecordHeader(record).block_hash)) + ", " +
         std::string(OutcomeName(VerifyRecord(record, key))));
  }
}

// ---- At rest
// ---------------------------------------------------------------------------------------

void World::CheckPoolsFull() {
  using Use = storage::SlotPool::Use;
  CheckIndex();
  const server::ServerFacts& facts = daemon_->facts;
  if (facts.body_bytes != 0) Fail("at rest, memory of message bodies is still reserved");
  if (facts.connections != 0) Fail("at rest, connections are still counted");
  for (const auto& shard : daemon_->shards) {
    const std::string name = "at rest, shard " + std::to_string(shard->index()) + " ";
    if (shard->slots().pinned() != 0) Fail(name + "has pinned slots");
    if (shard->windows().stats().leased != 0) Fail(name + "has leased windows");
    if (shard->timers().size() != 0) Fail(name + "has armed timers");
    uint32_t in_dram = 0;
    shard->blocks().index().ForEach([&in_dram](const storage::IndexEntry& entry) {
      in_dram += entry.dram_slot != storage::kNowhere ? 1 : 0;
      if ((entry.flags & (storage::kEntryLoading | storage::kEntryAppending)) != 0) ++in_dram;
    });
    if (in_dram != shard->slots().used(Use::kBlock)) {
      Fail(name + "uses " + std::to_string(shard->slots().used(Use::kBlock)) + " slots for the " +
           std::to_string(in_dram) + " blocks in DRAM");
    }
    uint32_t bytes_max = shard->slots().used(Use::kWindow) * Corpus::kRecordBytes;
    if (shard->windows().stats().bytes > bytes_max) Fail(name + "has windows outside of slots");
    if (shard->windows().stats().snapshots == 0 && bytes_max != 0) {
      Fail(name + "has slots in use by no window");
    }
  }
}

// ---- After a crash
// ---------------------------------------------------------------------------------

void World::CheckDurable(const std::vector<Model::Durable>& durable) {
  for (const Model::Durable& block : durable) {
    const uint32_t shard = ShardOf(block.key, limits_.shards);
    const uint32_t region = block.location / geometry_.slots;
    if (damaged_regions_.contains({shard, region})) continue;
    const storage::IndexEntry* entry = Find(block.key);
    if (entry == nullptr || entry->ssd_location == storage::kNowhere) {
      Fail(At(shard, block.key) + "acknowledged as durable, in region " + std::to_string(region) +
           " before the crash, and not found after it");
      continue;
    }
    outcomes_.Count("durable_found_again");
  }
}

// ---- Verdicts
// --------------------------------------------------------------------------------------

// One request on a quiet daemon: the whole answer, headers included.
std::string World::Ask(Link* link, wire::Opcode opcode, std::string body, uint64_t id) {
  wire::FrameHeader header{.opcode = static_cast<uint8_t>(opcode),
                           .request_id = id,
                           .deadline_ms = 20'000,
                           .store_id = opcode == wire::Opcode::kHello ? 0 : context_.store_id};
  wire::SealFrame(&header, AsBytes(body));
  link->Write(AsText(AsBytes(header)));
  link->Write(body);
  std::string answer;
  const Instant until = clock_.Now() + 40 * kSecond;
  while (failure_.empty()) {
    Tick();
    answer += link->Read(1_MiB);
    size_t at = 0;
    while (answer.size() - at >= wire::kFrameHeaderBytes) {
      const auto reply = LoadLe<wire::FrameHeader>(answer.data() + at);
      const size_t bytes = wire::kFrameHeaderBytes + reply.body_bytes + reply.data_bytes;
      if (answer.size() - at < bytes) break;
      at += bytes;
      if ((reply.flags & wire::kMore) == 0) return answer;
    }
    if (clock_.Now() > until) Fail("a quiet daemon does not answer");
  }
  return answer;
}

// Nothing else happens now, so the verdict is exact: it names the leading run that the index has,
// and a get delivers what of it needs no slot.
void World::CheckVerdicts() {
  Link* link = Connect();
  wire::HelloRequest hello;
  hello.set_protocol_version(wire::kProtocolVersion);
  Ask(link, wire::Opcode::kHello, hello.SerializeAsString(), 1);
  for (uint32_t n = 0; n < Corpus::kNamespaces; ++n) {
    wire::OpenNamespaceRequest open;
    open.set_manifest(EncodeManifest(corpus_.manifest(n)));
    Ask(link, wire::Opcode::kOpenNamespace, open.SerializeAsString(), 2 + n);
  }
  for (uint32_t n = 0; n < Corpus::kNamespaces; ++n) {
    for (uint32_t chain = 0; chain < corpus_.chain_count(); ++chain) {
      if (failure_.empty()) CheckVerdict(link, n, chain);
    }
  }
  link->Close();
}

void World::SettleStores() {
  const Instant until = clock_.Now() + 60 * kSecond;
  const auto settled = [this] {
    return std::all_of(daemon_->shards.begin(), daemon_->shards.end(),
                       [](const auto& shard) {
                         return shard->blocks().idle() &&
                                shard->Metrics().log.regions_reclaiming == 0;
                       }) &&
           std::all_of(devices_.begin(), devices_.end(),
                       [](const auto& device) { return device->in_flight() == 0; });
  };
  while (failure_.empty() && !settled()) {
    if (clock_.Now() > until) return Fail("the stores do not come to rest");
    Tick();
  }
}

void World::CheckVerdict(Link* link, uint32_t name_space, uint32_t chain) {
  SettleStores();
  const std::vector<BlockKey> keys = corpus_.Keys(name_space, chain, 0, corpus_.depth(chain));
  uint32_t hit = 0;
  std::vector<uint32_t> on_ssd(limits_.shards);
  // Leading run that a get cannot fail to deliver: no slot must be freed for it, for a block that
  // is pushed out may be written, and another reclaimed for it.
  uint32_t sure = 0;
  for (bool plain = true; hit < keys.size(); ++hit) {
    const storage::IndexEntry* entry = Find(keys[hit]);
    if (entry == nullptr) break;
    const uint32_t shard = ShardOf(keys[hit], limits_.shards);
    const storage::SlotPool& slots = daemon_->shards[shard]->slots();
    const uint32_t free = limits_.block_slots - slots.used(storage::SlotPool::Use::kBlock);
    if (entry->dram_slot == storage::kNowhere) plain = plain && ++on_ssd[shard] <= free;
    if (plain) ++sure;
  }
  if (context_.damaged) sure = 0;

  std::string body;
  wire::Append(&body, wire::LookupRequest{.namespace_id = name_space + 1,
                                          .key_count = static_cast<uint32_t>(keys.size())});
  wire::AppendArray(&body, std::span<const BlockKey>(keys));
  const std::string verdict = Ask(link, wire::Opcode::kLookup, body, 10);
  if (!failure_.empty()) return;
  const auto reply = LoadLe<wire::LookupReply>(verdict.data() + wire::kFrameHeaderBytes);
  if (reply.hit_blocks != hit) {
    return Fail("the verdict on chain " + std::to_string(chain) + " is " +
                std::to_string(reply.hit_blocks) + " blocks, and the index has " +
                std::to_string(hit));
  }
  body.clear();
  wire::Append(&body, wire::KeysRequest{name_space + 1, static_cast<uint32_t>(keys.size())});
  wire::AppendArray(&body, std::span<const BlockKey>(keys));
  const std::string records = Ask(link, wire::Opcode::kGet, body, 11);
  uint32_t delivered = 0;
  auto outcome = Outcome::kOk;
  for (size_t at = 0; at < records.size() && failure_.empty();) {
    const auto header = LoadLe<wire::FrameHeader>(records.data() + at);
    outcome = static_cast<Outcome>(header.outcome);
    at += wire::kFrameHeaderBytes + header.body_bytes;
    for (uint64_t i = 0; i < header.data_bytes / Corpus::kRecordBytes; ++i) {
      model_.RecordReceived(keys[delivered++],
                            std::string_view(records).substr(at, Corpus::kRecordBytes));
      at += Corpus::kRecordBytes;
    }
  }
  if (delivered < sure || delivered > hit) {
    Fail("a verdict of " + std::to_string(hit) + " blocks on chain " + std::to_string(chain) +
         ", of which " + std::to_string(delivered) + " were delivered and " + std::to_string(sure) +
         " had to be; the get ended with " + std::string(OutcomeName(outcome)));
  }
}

}  // namespace reprise::sim
