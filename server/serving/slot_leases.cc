#include "server/serving/slot_leases.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "protocol/base/check.h"
#include "protocol/record/record.h"
#include "server/serving/serving_context.h"

namespace reprise::server {
namespace {

using Kind = engine::SlotsExport::Kind;
static_assert(static_cast<int>(Kind::kCudaIpc) == wire::SLOT_HANDLE_CUDA_IPC &&
              static_cast<int>(Kind::kHostTest) == wire::SLOT_HANDLE_HOST_TEST);

}  // namespace

SlotLeases::SlotLeases(ServingContext* context, TaskQueue* queue, const Terms& terms)
    : context_(*context), queue_(*queue), slots_max_(terms.slots_max) {
  RP_CHECK(context->tier != nullptr);
  pool_.set_handle_kind(static_cast<wire::SlotHandleKind>(terms.slots.kind));
  pool_.set_slots(context->tier->slots());
  pool_.set_slot_bytes(static_cast<uint32_t>(context->tier->slot_bytes()));
  pool_.set_stride_bytes(terms.slots.stride_bytes);
  pool_.set_record_layout(kRecordLayoutVersion);
  pool_.set_leased_slots_max(terms.slots_max);
  for (const engine::SlotsExport::Device& device : terms.slots.devices) {
    wire::SlotPoolDevice* out = pool_.add_devices();
    out->set_uuid(device.uuid.data(), device.uuid.size());
    out->set_pci_bus_id(device.pci_bus_id);
    out->set_handle(device.handle);
  }
}

SlotLeases::~SlotLeases() { RP_CHECK(idle()); }

// ---- Any thread --------------------------------------------------------------------------------

void SlotLeases::Lend(SlotLoan* loan) {
  // Counted first: Close's thread goes on until nothing is counted.
  const uint32_t others = asked_.fetch_add(1);
  if (closed_) return Answer(loan, Outcome::kClosed);
  if (others >= kAskedMax) return Answer(loan, Outcome::kBusy);
  queue_.Post([this, loan] { Begin(loan); });
}

void SlotLeases::Return(uint64_t loan_id) {
  queue_.Post([this, loan_id] { End(loan_id); });
}

void SlotLeases::Answer(SlotLoan* loan, Outcome stopped_by) {
  loan->stopped_by = stopped_by;
  loan->home->mailbox().Post(loan);
  --asked_;
}

// ---- The engine's thread -----------------------------------------------------------------------

void SlotLeases::Begin(SlotLoan* loan) {
  if (closed_) return Answer(loan, Outcome::kClosed);
  if (context_.clock.Now() >= loan->deadline) return Answer(loan, Outcome::kTimeout);
  context_.store.Lookup(
      loan->name_space, loan->keys, LookupFor::kInspection,
      [this, loan](const std::vector<StorePort::Residency>& where) { OnLookup(loan, where); });
}

void SlotLeases::OnLookup(SlotLoan* loan, const std::vector<StorePort::Residency>& where) {
  using Residency = StorePort::Residency;
  HbmTier& tier = *context_.tier;
  const Nanos left = loan->deadline - context_.clock.Now();
  if (closed_) return Answer(loan, Outcome::kClosed);
  if (left <= 0) return Answer(loan, Outcome::kTimeout);
  uint32_t blocks = 0;
  loan->stopped_by = Outcome::kOk;
  for (; blocks < where.size(); ++blocks) {
    const bool stored = where[blocks] == Residency::kDram || where[blocks] == Residency::kSsd;
    if (stored && (!loan->held_only || tier.Has(loan->keys[blocks]))) continue;
    loan->stopped_by =
        stored || where[blocks] == Residency::kAbsent ? Outcome::kNotFound : Outcome::kPending;
    break;
  }
  const uint32_t room = std::min(slots_max_ - lent_, tier.slots() - tier.reserved());
  if (blocks > room) {
    blocks = room;
    loan->stopped_by = Outcome::kBusy;
  }
  if (blocks == 0) return Answer(loan, loan->stopped_by);
  RP_CHECK(tier.Reserve(blocks));
  lent_ += blocks;
  const uint64_t id = next_id_++;
  Run* run = (runs_[id] = std::make_unique<Run>(&context_)).get();
  run->reserved = blocks;
  run->loan = loan;
  run->blocks.Load(loan->name_space, {loan->keys.begin(), loan->keys.begin() + blocks},
                   /*exact_only=*/false, left,
                   [this, id](const HitBlocks::Loaded& loaded) { OnLoaded(id, loaded); });
}

// Every copy into the slots is done: HitBlocks has waited for their events.
void SlotLeases::OnLoaded(uint64_t id, const HitBlocks::Loaded& loaded) {
  Run& run = *runs_[id];
  const HbmTier& tier = *context_.tier;
  SlotLoan* loan = std::exchange(run.loan, nullptr);
  const uint32_t granted = run.blocks.size();
  Outcome stopped_by = loan->stopped_by;
  if (granted < run.reserved) {
    stopped_by = loaded.stopped_by == Outcome::kOk ? Outcome::kIo : loaded.stopped_by;
  }
  CutReservation(&run, granted);
  if (granted == 0 || closed_) {
    queue_.Post([this, id] { End(id); });  // Its blocks are still at work here.
    return Answer(loan, closed_ ? Outcome::kClosed : stopped_by);
  }
  loan->loan_id = id;
  loan->slots.reserve(granted);
  for (uint32_t i = 0; i < granted; ++i) {
    const std::byte* data = run.blocks.data(i);
    loan->slots.push_back({.slot = tier.SlotOf(data),
                           .generation = tier.generation(data),
                           .flags = run.blocks.replay_derived(i) ? uint32_t{kReplayDerived} : 0});
  }
  const uint32_t copied = granted - run.blocks.FromHbm(granted);
  loan->from_ssd = std::min(loaded.from_ssd, copied);
  loan->from_dram = copied - loan->from_ssd;
  Answer(loan, stopped_by);
}

void SlotLeases::CutReservation(Run* run, uint32_t slots) {
  context_.tier->Unreserve(run->reserved - slots);
  lent_ -= run->reserved - slots;
  run->reserved = slots;
}

void SlotLeases::End(uint64_t id) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;  // It ended with the engine.
  found->second->blocks.CutTo(0);
  CutReservation(found->second.get(), 0);
  runs_.erase(found);
}

void SlotLeases::Close() {
  closed_ = true;
  std::vector<uint64_t> granted;
  for (const auto& [id, run] : runs_) {
    if (run->loan == nullptr) granted.push_back(id);
  }
  for (const uint64_t id : granted) End(id);
}

}  // namespace reprise::server
