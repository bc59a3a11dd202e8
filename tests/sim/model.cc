#include "tests/sim/model.h"

namespace reprise::sim {

uint32_t Model::LocationOf(const BlockKey& key) const {
  const storage::IndexEntry* entry = find_(key);
  return entry == nullptr ? storage::kNowhere : entry->ssd_location;
}

// ---- Blocks
// ----------------------------------------------------------------------------------------

Model::PutTicket Model::PutSent(const BlockKey& key, uint32_t version, bool durable) {
  Block& block = blocks_[key];
  block.versions_sent |= 1u << version;
  ++block.puts;
  ++block.puts_open;
  block.removed = false;
  if (durable && block.watchers++ == 0 && !block.durable) block.on_ssd = OnSsd(key);
  return {key, block.departures, durable};
}

void Model::PutAnswered(const PutTicket& ticket, bool stored) {
  Block& block = blocks_[ticket.key];
  --block.puts_open;
  if (!ticket.durable) return;
  --block.watchers;
  // It may have left SSD again before the answer arrived.
  const bool stayed = OnSsd(ticket.key) && block.departures == ticket.departures;
  if (!stored || !stayed) return;
  block.durable = block.on_ssd = true;
  block.location = LocationOf(ticket.key);
}

void Model::RecordReceived(const BlockKey& key, std::string_view record) {
  const auto found = blocks_.find(key);
  const Corpus::BlockRef* ref = corpus_->Find(key);
  if (found == blocks_.end() || ref == nullptr) {
    fail_("received block " + ToHex(key) + ", which nobody put");
    return;
  }
  for (uint32_t version = 0; version < Corpus::kVersions; ++version) {
    const bool sent = (found->second.versions_sent >> version & 1) != 0;
    if (sent && corpus_->Record(*ref, version) == record) return;
  }
  fail_("received wrong bytes for block " + ToHex(key) + " (chain " + std::to_string(ref->chain) +
        ", block " + std::to_string(ref->index) + ")");
}

// ---- Removal
// ---------------------------------------------------------------------------------------

Model::RemovalTicket Model::RemovalSent(const BlockKey& key) {
  const Block& block = blocks_[key];
  return {key, block.puts, block.puts_open == 0};
}

void Model::RemovalAnswered(const RemovalTicket& ticket) {
  Block& block = blocks_[ticket.key];
  if (!ticket.certain || block.puts != ticket.puts) return;
  block.removed = true;
  if (find_(ticket.key) != nullptr) {
    fail_("block " + ToHex(ticket.key) + " is there after its removal was acknowledged");
  }
}

void Model::CheckRemoved(const char* when) {
  for (const auto& [key, block] : blocks_) {
    if (!block.removed || damaged_) continue;
    if (find_(key) != nullptr) {
      fail_("block " + ToHex(key) + ", removed and acknowledged, is back " + when);
    }
    outcomes_->Count("removed_stayed_away");
  }
}

// ---- Windows
// ---------------------------------------------------------------------------------------

void Model::WindowSent(const Corpus::WindowRef& window, uint32_t version) {
  windows_[{window.key.prefix, window.key.position}] |= 1u << version;
}

void Model::WindowReceived(const Corpus::WindowRef& window, std::string_view snapshot) {
  const auto found = windows_.find({window.key.prefix, window.key.position});
  const uint32_t sent = found == windows_.end() ? 0 : found->second;
  for (uint32_t version = 0; version < Corpus::kVersions; ++version) {
    if ((sent >> version & 1) != 0 && Corpus::Snapshot(window, version) == snapshot) return;
  }
  fail_("received wrong bytes for the window at " + std::to_string(window.key.position) + " of " +
        ToHex(window.key.prefix));
}

// ---- The simulation
// --------------------------------------------------------------------------------

void Model::Tick() {
  for (auto& [key, block] : blocks_) {
    if (block.watchers == 0 && !block.durable) continue;
    const uint32_t location = LocationOf(key);
    const bool on_ssd = location != storage::kNowhere;
    if (block.on_ssd && !on_ssd) {
      ++block.departures;
      block.durable = false;
    }
    if (syncs_may_fail_ && location != block.location) block.durable = false;
    block.on_ssd = on_ssd;
    block.location = location;
  }
}

std::vector<Model::Durable> Model::DurableNow() const {
  std::vector<Durable> durable;
  for (const auto& [key, block] : blocks_) {
    if (block.durable && OnSsd(key)) durable.push_back({key, LocationOf(key)});
  }
  return durable;
}

void Model::ServerDied() {
  for (auto& [key, block] : blocks_) {
    block.puts_open = 0;
    block.watchers = 0;
  }
}

}  // namespace reprise::sim
