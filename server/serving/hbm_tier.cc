#include "server/serving/hbm_tier.h"

#include <algorithm>
#include <string>

#include "protocol/base/check.h"
#include "protocol/base/units.h"

namespace reprise::server {
namespace {

constexpr uint32_t kSlotsMin = 4;
constexpr uint32_t kWindowsOfSequence = 2;  // The live one, and one that a step keeps.
constexpr uint64_t kReservePart = 20;

}  // namespace

absl::StatusOr<std::unique_ptr<HbmTier>> HbmTier::For(const engine::Engine& engine, uint64_t bytes,
                                                      uint32_t sequences_max) {
  engine::EngineMemory& memory = engine.memory();
  if (memory.host()) return nullptr;
  const uint64_t free = memory.free_bytes();
  const uint64_t reserve =
      uint64_t{sequences_max} * kWindowsOfSequence * engine.window_layout().bytes +
      free / kReservePart;
  const uint64_t left = free - std::min(free, reserve);
  const uint64_t slot_bytes = engine.geometry().record.payload_bytes;
  const uint64_t slots =
      std::min<uint64_t>((bytes == 0 ? left : bytes) / slot_bytes, UINT32_MAX / 2);
  const auto refuse = [&](const std::string& why) {
    return InvalidArgument("engine.hbm_bytes = " + std::to_string(bytes) + ": " + why + "; " +
                           FormatBytes(free) + " are free beside the weights, of which " +
                           FormatBytes(std::min(free, reserve)) +
                           " are wanted for windows and as a reserve");
  };
  if (slots < kSlotsMin) {
    return refuse("that is less than " + std::to_string(kSlotsMin) + " blocks of " +
                  FormatBytes(slot_bytes));
  }
  auto made = memory.MakeSlots(slot_bytes, static_cast<uint32_t>(slots));
  if (!made.ok()) return refuse(Message(made.status()));
  return std::make_unique<HbmTier>(*std::move(made));
}

absl::StatusOr<uint32_t> HbmTier::SlotsToLend(uint64_t bytes) const {
  const uint64_t wanted = bytes / slot_bytes();
  const auto refuse = [&](const std::string& why) {
    return InvalidArgument("engine.hbm_lease_bytes = " + std::to_string(bytes) + ": " + why);
  };
  if (wanted == 0) {
    return refuse("holds no block of " + FormatBytes(slot_bytes()) + "; raise it, or set it to 0B");
  }
  if (wanted + kSlotsMin > slots()) {
    return refuse("of " + std::to_string(slots()) + " blocks in HBM, " + std::to_string(kSlotsMin) +
                  " at least are requests'; lower it, or raise engine.hbm_bytes");
  }
  return static_cast<uint32_t>(wanted);
}

HbmTier::HbmTier(std::unique_ptr<engine::KvSlots> slots)
    : slots_(std::move(slots)), entries_(slots_->slots()) {
  for (uint32_t slot = slots_->slots(); slot > 0; --slot) free_.push_back(slot - 1);
}

HbmTier::~HbmTier() { RP_CHECK(pinned_ == 0 && !copying()); }

// ---- Slots -------------------------------------------------------------------------------------

std::byte* HbmTier::Pin(const BlockKey& key, bool exact_only) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  Entry& entry = entries_[found->second];
  if (exact_only && entry.replay_derived) return nullptr;
  if (entry.pins++ == 0) {
    Unlink(found->second);
    ++pinned_;
  }
  return slots_->data(found->second);
}

std::byte* HbmTier::Take() {
  RP_CHECK(pinned_ < reserved_);
  uint32_t slot = kNone;
  if (free_.empty()) {
    slot = Evict();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  const uint32_t generation = entries_[slot].generation + 1;
  entries_[slot] = {};
  entries_[slot].generation = generation;
  entries_[slot].pins = 1;
  ++pinned_;
  return slots_->data(slot);
}

uint32_t HbmTier::Evict() {
  const uint32_t slot = oldest_;
  RP_CHECK(slot != kNone);  // What is pinned is reserved, and less than all slots.
  Entry& entry = entries_[slot];
  ++counters_.evictions;
  if (entry.unstored != nullptr && store_out_ != nullptr) {
    ++counters_.stored_out;
    store_out_(slots_->data(slot), std::move(*entry.unstored));
  }
  Unlink(slot);
  DropKey(slot);
  return slot;
}

void HbmTier::Name(std::byte* data, const BlockKey& key, bool replay_derived,
                   std::optional<Unstored> unstored) {
  const uint32_t slot = slots_->SlotOf(data);
  Entry& entry = entries_[slot];
  RP_CHECK(entry.pins > 0 && !entry.has_key);
  entry.replay_derived = replay_derived;
  if (const auto other = by_key_.find(key); other != by_key_.end()) {
    const uint32_t old = other->second;
    if (replay_derived || !entries_[old].replay_derived) return;
    DropKey(old);
    if (entries_[old].pins == 0) {
      Unlink(old);
      free_.push_back(old);
    }
  }
  by_key_[key] = slot;
  entry.key = key;
  entry.has_key = true;
  if (unstored.has_value()) entry.unstored = std::make_unique<Unstored>(*std::move(unstored));
}

void HbmTier::Unpin(std::byte* data) {
  const uint32_t slot = slots_->SlotOf(data);
  Entry& entry = entries_[slot];
  RP_CHECK(entry.pins > 0);
  if (--entry.pins > 0) return;
  --pinned_;
  if (entry.has_key) {
    Link(slot);
  } else {
    free_.push_back(slot);
  }
}

void HbmTier::Forget(const BlockKey& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end() || entries_[found->second].unstored != nullptr) return;
  const uint32_t slot = found->second;
  DropKey(slot);
  if (entries_[slot].pins > 0) return;
  Unlink(slot);
  free_.push_back(slot);
}

void HbmTier::DropKey(uint32_t slot) {
  by_key_.erase(entries_[slot].key);
  entries_[slot].has_key = false;
  entries_[slot].unstored.reset();
}

void HbmTier::Link(uint32_t slot) {
  entries_[slot].newer = kNone;
  entries_[slot].older = newest_;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = slot;
  newest_ = slot;
}

void HbmTier::Unlink(uint32_t slot) {
  Entry& entry = entries_[slot];
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
  entry.newer = entry.older = kNone;
}

// ---- Copies ------------------------------------------------------------------------------------

std::vector<engine::SlotCopy> HbmTier::CopiesOf(std::span<const Copy> copies) const {
  std::vector<engine::SlotCopy> out;
  out.reserve(copies.size());
  for (const Copy& copy : copies) {
    out.push_back({.slot = slots_->SlotOf(copy.data), .host = copy.host});
    RP_CHECK(entries_[out.back().slot].pins > 0);
  }
  return out;
}

void HbmTier::Load(std::span<const Copy> copies, Then then) {
  const auto number = slots_->Load(CopiesOf(copies));
  if (!number.ok()) return then(number.status());
  for (const Copy& copy : copies) entries_[slots_->SlotOf(copy.data)].load = *number;
  counters_.loads += copies.size();
  counters_.loaded_bytes += copies.size() * slot_bytes();
  loads_.push_back({*number, std::move(then)});
}

void HbmTier::Store(std::span<const Copy> copies, Then then) {
  const auto number = slots_->Store(CopiesOf(copies));
  if (!number.ok()) return then(number.status());
  stores_.push_back({*number, std::move(then)});
}

void HbmTier::AfterLoads(std::span<std::byte* const> slots, Then then) {
  uint64_t number = 0;
  for (const std::byte* data : slots) {
    number = std::max(number, entries_[slots_->SlotOf(data)].load);
  }
  const auto done = slots_->LoadDone(number);
  if (!done.ok() || *done) return then(done.status());
  const auto place = std::upper_bound(
      loads_.begin(), loads_.end(), number,
      [](uint64_t value, const Waiting& waiting) { return value < waiting.number; });
  loads_.insert(place, {number, std::move(then)});
}

absl::Status HbmTier::Clear(std::span<std::byte* const> slots) {
  std::vector<uint32_t> numbers;
  numbers.reserve(slots.size());
  for (const std::byte* data : slots) numbers.push_back(slots_->SlotOf(data));
  return slots_->Clear(numbers);
}

void HbmTier::PollQueue(std::deque<Waiting>* queue, bool loads) {
  while (!queue->empty()) {
    const uint64_t number = queue->front().number;
    const auto done = loads ? slots_->LoadDone(number) : slots_->StoreDone(number);
    if (done.ok() && !*done) return;
    const Then then = std::move(queue->front().then);
    queue->pop_front();
    then(done.status());
  }
}

void HbmTier::Poll() {
  PollQueue(&loads_, true);
  PollQueue(&stores_, false);
}

}  // namespace reprise::server
