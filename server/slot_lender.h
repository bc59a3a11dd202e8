#pragma once

#include <cstdint>
#include <vector>

#include "protocol/base/clock.h"
#include "protocol/reactor/mailbox.h"
#include "protocol/wire/messages.h"
#include "server/connection.h"

namespace reprise::wire {
class SlotPoolReply;
}  // namespace reprise::wire

namespace reprise::server {

// Blocks that a client wants in slots of the engine's HBM tier, and the answer. The lender's from
// Lend until `run`, which it posts to the mailbox of `home`.
struct SlotLoan : Task {
  virtual ~SlotLoan() = default;

  Shard* home = nullptr;
  Connection::OpenNamespace name_space;
  std::vector<BlockKey> keys;
  bool held_only = false;  // Nothing is copied into HBM.
  Instant deadline = 0;

  uint64_t loan_id = 0;              // For Return; 0: nothing was lent.
  std::vector<wire::HbmSlot> slots;  // The leading run of the keys, pinned, their bytes whole.
  Outcome stopped_by = Outcome::kOk;
  uint32_t from_ssd = 0, from_dram = 0;
};

// Who lends slots of HBM to the clients of the shards: the engine's thread, behind this door.
class SlotLender {
 public:
  virtual ~SlotLender() = default;

  // Any thread. The loan comes back exactly once: with kClosed when the engine is stopping.
  virtual void Lend(SlotLoan* loan) = 0;
  // Any thread. The slots are for others again; nothing happens when they are already.
  virtual void Return(uint64_t loan_id) = 0;
  // What a client needs to map the slots. Any thread; never changes.
  virtual const wire::SlotPoolReply& pool() const = 0;
};

}  // namespace reprise::server
