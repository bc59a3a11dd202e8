// The HBM pool, for engines on the daemon's GPU: what it is (a control message), and SlotAcquire.
//   StartSlotAcquire -> SlotLoan to the engine's thread, which pins, and copies in what is missing
//                    -> back through the mailbox -> a lease of the connection
#include <memory>
#include <string_view>

#include "protocol/wire/control.pb.h"
#include "server/dispatch.h"
#include "server/operation.h"
#include "server/slot_lender.h"

namespace reprise::server {
namespace {

struct Found {
  SlotLender* lender = nullptr;  // Null: why not.
  Outcome outcome = Outcome::kOk;
  std::string_view error;
};

Found FindLender(Connection* connection) {
  const ServerFacts& facts = connection->shard().facts();
  if (!connection->local()) {
    return {nullptr, Outcome::kUnsupported,
            "slots in HBM are leased on the daemon's Unix socket alone, to processes on its "
            "machine; connect to unix:<listen.unix of its configuration>"};
  }
  if (!facts.lends_slots) {
    return {nullptr, Outcome::kUnsupported,
            "this daemon lends no slots in HBM: it needs an engine on a GPU, and leave to lend; "
            "set [engine] model, device = \"cuda\", hbm_bytes and hbm_lease_bytes"};
  }
  SlotLender* lender = facts.slot_lender.load(std::memory_order_acquire);
  if (lender != nullptr) return {lender, Outcome::kOk, {}};
  return {nullptr, Outcome::kBusy, "the daemon's engine is starting or stopping; try again later"};
}

class SlotPoolOperation final : public Operation {
 public:
  static void Start(Connection* connection, const wire::FrameHeader& request) {
    const Found found = FindLender(connection);
    wire::ControlReply reply;
    if (found.lender != nullptr) {
      *reply.mutable_slot_pool() = found.lender->pool();
    } else {
      reply.set_error(std::string(found.error));
    }
    (new SlotPoolOperation(connection, request))
        ->SendLast(found.outcome, reply.SerializeAsString());
  }

 private:
  using Operation::Operation;
};

class SlotAcquireOperation final : public Operation {
 public:
  SlotAcquireOperation(Connection* connection, const wire::FrameHeader& request)
      : Operation(connection, request) {
    timer_.operation = this;
    timer_.fire = [](Timer* self, Instant) {
      SlotAcquireOperation* late = static_cast<Deadline*>(self)->operation;
      late->loan_->operation = nullptr;  // What it brings is given back when it comes.
      late->SendLast(Outcome::kTimeout);
    };
  }

  void Start(SlotLender* lender, const wire::SlotAcquireView& view,
             const Connection::OpenNamespace& name_space) {
    loan_ = new Loan;
    loan_->operation = this;
    loan_->home = &shard();
    loan_->name_space = name_space;
    loan_->held_only = view.fixed.held_only != 0;
    loan_->deadline = deadline();
    loan_->keys.resize(view.fixed.key_count);
    if (!view.keys.empty()) std::memcpy(loan_->keys.data(), view.keys.data(), view.keys.size());
    loan_->run = [](Task* self, void* home) {
      const std::unique_ptr<Loan> back(static_cast<Loan*>(self));
      if (back->operation != nullptr) return back->operation->OnLent(*back);
      static_cast<Shard*>(home)->ReturnLoan(back->loan_id);
    };
    shard().timers().Arm(&timer_, deadline());
    lender->Lend(loan_);
  }

 private:
  struct Loan final : SlotLoan {
    SlotAcquireOperation* operation = nullptr;  // Null: it did not wait.
  };
  struct Deadline : Timer {
    using Timer::Timer;
    SlotAcquireOperation* operation = nullptr;
  };

  void OnLent(const Loan& loan) {
    shard().timers().Cancel(&timer_);
    if (connection().closing()) {
      shard().ReturnLoan(loan.loan_id);
      SendLast(Outcome::kClosed);
      return;
    }
    wire::SlotAcquireReply reply{.slot_count = static_cast<uint32_t>(loan.slots.size()),
                                 .from_ssd = loan.from_ssd,
                                 .from_dram = loan.from_dram};
    RequestCounters& counters = shard().counters();
    counters.blocks_from_ssd += loan.from_ssd;
    counters.blocks_from_dram += loan.from_dram;
    counters.blocks_from_hbm += reply.slot_count - loan.from_ssd - loan.from_dram;
    if (loan.loan_id != 0) reply.lease_id = connection().AddLease({.loan_id = loan.loan_id});
    std::string body;
    wire::Append(&body, reply);
    wire::AppendArray(&body, std::span<const wire::HbmSlot>(loan.slots));
    SendLast(loan.stopped_by, std::move(body));
  }

  Deadline timer_;
  Loan* loan_ = nullptr;  // Deletes itself when it is back.
};

}  // namespace

void StartSlotPool(Connection* connection, const wire::FrameHeader& header) {
  SlotPoolOperation::Start(connection, header);
}

void StartSlotAcquire(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  wire::SlotAcquireView view;
  if (!wire::Decode(body, &view)) {
    FailedOperation::Start(connection, header, Outcome::kInvalid);
    return;
  }
  const Connection::OpenNamespace* opened =
      NamespaceOf(connection, header, view.fixed.namespace_id);
  if (opened == nullptr) return;
  const Found found = FindLender(connection);
  if (found.lender == nullptr) {
    FailedOperation::Start(connection, header, found.outcome);
    return;
  }
  if (opened->payload_bytes != found.lender->pool().slot_bytes()) {
    FailedOperation::Start(connection, header, Outcome::kInvalid);
    return;
  }
  (new SlotAcquireOperation(connection, header))->Start(found.lender, view, *opened);
}

}  // namespace reprise::server
