#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "gpu/engine/kv_slots.h"
#include "protocol/wire/control.pb.h"
#include "server/serving/hit_blocks.h"
#include "server/serving/task_queue.h"
#include "server/slot_lender.h"

namespace reprise::server {

struct ServingContext;

// Slots of the HBM tier for engines in other processes on this machine. A loan is a hit like a
// request's: the store says which blocks there are, those that HBM lacks are copied in, all of them
// stay pinned until the loan is returned. Loans reserve among themselves at most slots_max; beyond
// it a run ends with kBusy, and nobody waits. The engine's thread, but for what says otherwise.
class SlotLeases final : public SlotLender {
 public:
  struct Terms {
    uint32_t slots_max = 0;  // Of all loans at once; 0: nothing is lent.
    engine::SlotsExport slots;
  };

  // REQUIRES: the context has a tier.
  SlotLeases(ServingContext* context, TaskQueue* queue, const Terms& terms);
  ~SlotLeases() override;  // REQUIRES: idle.
  SlotLeases(const SlotLeases&) = delete;
  SlotLeases& operator=(const SlotLeases&) = delete;

  void Lend(SlotLoan* loan) override;
  void Return(uint64_t loan_id) override;
  const wire::SlotPoolReply& pool() const override { return pool_; }

  // Ends the loans, and lends no more. Those on their way come back refused; until then it is not
  // idle, and the queue has to run and the tier to be polled.
  void Close();
  bool idle() const { return asked_ == 0 && runs_.empty(); }
  uint32_t lent() const { return lent_; }  // Slots reserved.

 private:
  // Loans on their way: a client that does not wait for its answers cannot pile them up.
  static constexpr uint32_t kAskedMax = 256;

  struct Run {
    explicit Run(ServingContext* context) : blocks(context) {}
    HitBlocks blocks;
    uint32_t reserved = 0;
    SlotLoan* loan = nullptr;  // Until it is answered.
  };

  void Begin(SlotLoan* loan);
  void OnLookup(SlotLoan* loan, const std::vector<StorePort::Residency>& where);
  void OnLoaded(uint64_t id, const HitBlocks::Loaded& loaded);
  void Answer(SlotLoan* loan, Outcome stopped_by);
  // Only the first `slots` stay reserved.
  void CutReservation(Run* run, uint32_t slots);
  void End(uint64_t id);

  ServingContext& context_;
  TaskQueue& queue_;
  const uint32_t slots_max_;
  wire::SlotPoolReply pool_;
  std::map<uint64_t, std::unique_ptr<Run>> runs_;
  uint64_t next_id_ = 1;
  uint32_t lent_ = 0;
  std::atomic<uint32_t> asked_ = 0;  // Loans that have not been answered.
  std::atomic<bool> closed_ = false;
};

}  // namespace reprise::server
