#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "protocol/wire/messages.h"
#include "storage/block_index.h"
#include "tests/sim/corpus.h"
#include "tests/sim/outcomes.h"

namespace reprise::sim {

// What the store may answer, kept beside it from what clients sent and were told.
//
// A cache may forget, so the model is a set of rules and not a copy: what comes back was sent once
// under that name; what was acknowledged as durable, and has not left SSD since, survives a crash;
// what an administrator removed stays away until it is put again.
class Model {
 public:
  // The first thing that was wrong, and who said so.
  using Fail = std::function<void(const std::string&)>;
  // The store's own index, asked to learn what has left SSD. Null: not in the index.
  using Find = std::function<const storage::IndexEntry*(const BlockKey&)>;

  Model(Corpus* corpus, Outcomes* outcomes, Find find, Fail fail)
      : corpus_(corpus), outcomes_(outcomes), find_(std::move(find)), fail_(std::move(fail)) {}

  // ---- Blocks
  // A put on its way, until its answer. `number` tells it from others in PutAnswered.
  struct PutTicket {
    BlockKey key;
    uint64_t departures = 0;
    bool durable = false;
  };
  PutTicket PutSent(const BlockKey& key, uint32_t version, bool durable);
  // `stored`: the answer was kOk or kExists.
  void PutAnswered(const PutTicket& ticket, bool stored);
  void RecordReceived(const BlockKey& key, std::string_view record);

  // ---- Removal
  struct RemovalTicket {
    BlockKey key;
    uint64_t puts = 0;
    bool certain = false;  // No put was on its way.
  };
  RemovalTicket RemovalSent(const BlockKey& key);
  void RemovalAnswered(const RemovalTicket& ticket);

  // ---- Windows
  void WindowSent(const Corpus::WindowRef& window, uint32_t version);
  void WindowReceived(const Corpus::WindowRef& window, std::string_view snapshot);

  // ---- The simulation
  void Tick();  // Sees what has left SSD.
  // What was durable at the moment of the crash, and where: to be asked of it afterwards.
  struct Durable {
    BlockKey key;
    uint32_t location = 0;
  };
  std::vector<Durable> DurableNow() const;
  // The server died: puts that were on their way will not be executed any more.
  void ServerDied();
  // A bit of the medium was flipped: what was erased may come back, from an older copy.
  void Damaged() { damaged_ = true; }
  // The sync after a move to another region may fail, and the first copy goes all the same: a moved
  // block is then as good as any that was not synced.
  void SyncsMayFail() { syncs_may_fail_ = true; }
  void CheckRemoved(const char* when);

 private:
  struct Block {
    uint32_t versions_sent = 0;  // A bit for each.
    uint64_t puts = 0;           // Ever sent.
    uint32_t puts_open = 0;      // Sent and not answered.
    uint32_t watchers = 0;       // Durable ones of those.
    bool removed = false;
    bool durable = false;
    // As of the last tick; kept while watched or durable.
    bool on_ssd = false;
    uint32_t location = 0;
    uint64_t departures = 0;  // From SSD, as seen while watched or durable.
  };

  // storage::kNowhere when it is not on SSD.
  uint32_t LocationOf(const BlockKey& key) const;
  bool OnSsd(const BlockKey& key) const { return LocationOf(key) != storage::kNowhere; }

  Corpus* corpus_;
  Outcomes* outcomes_;
  Find find_;
  Fail fail_;
  std::map<BlockKey, Block> blocks_;
  std::map<std::pair<BlockKey, uint64_t>, uint32_t> windows_;  // Versions sent.
  bool damaged_ = false;
  bool syncs_may_fail_ = false;
};

}  // namespace reprise::sim
