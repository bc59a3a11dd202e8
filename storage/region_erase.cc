#include <algorithm>

#include "protocol/base/check.h"
#include "storage/region_log_impl.h"

// Erasing single records. The tail is zeroed in place, so that a scan cannot find the record. Where
// the region is sealed its entries still list the record, so its state page is marked kTailsErased
// before, once in the region's life: recovery then believes the tails and not the entries. The mark
// is synced before a tail is touched, so that no crash leaves entries that list a record without
// one; the tail is synced before the erase is acknowledged.
namespace reprise::storage {

void RegionLog::Impl::Erase(EraseOp* op) {
  auto& io = op->io_;
  RP_CHECK(op->done != nullptr && RegionOf(op->location) < regions_.size());
  io.log = this;
  io.op = op;
  io.region = RegionOf(op->location);
  io.slot = SlotOf(op->location);
  op->attempts_ = 0;
  ++regions_[io.region].users;
  ++in_flight_;
  if (regions_[io.region].state != State::kOpen) {
    waiting_mark_.Push(op);
    return;
  }
  RP_CHECK(open_ != nullptr && open_->region == io.region);
  open_->entries()[io.slot].flags |= kEntryDead;
  ZeroTail(op);
}

void RegionLog::Impl::ZeroTail(EraseOp* op) {
  auto& io = op->io_;
  io.kind = DeviceOp::Kind::kWrite;
  io.offset = geometry_.SlotOffset(io.region, io.slot) + geometry_.record_bytes - kPageBytes;
  io.bytes = zero_page_.bytes();
  io.done = [](Completion* self, int32_t result) {
    auto* zeroed = static_cast<Io<EraseOp>*>(self);
    zeroed->log->OnTailZeroed(zeroed->op, result);
  };
  device_->Submit(&io);
}

void RegionLog::Impl::OnTailZeroed(EraseOp* op, int32_t result) {
  if (result < 0) return FinishErase(op, result);
  counts_.bytes_written += kPageBytes;
  next_sync_.erases.Push(op);
}

// One page at a time: marks the region of the first erase that waits, for all that wait for it.
void RegionLog::Impl::MarkNextRegion() {
  if (marking_) return;
  FifoList<EraseOp> later;
  uint32_t chosen = UINT32_MAX;
  while (EraseOp* op = waiting_mark_.Pop()) {
    const uint32_t index = op->io_.region;
    const Region& region = regions_[index];
    const bool sealed = region.state == State::kSealed || region.state == State::kReclaiming;
    if (region.state == State::kSealing) {
      later.Push(op);
    } else if (!sealed || region.tails_erased) {
      ZeroTail(op);
    } else if (chosen == UINT32_MAX || chosen == index) {
      chosen = index;
      current_mark_.Push(op);
    } else {
      later.Push(op);
    }
  }
  waiting_mark_ = later;
  if (chosen == UINT32_MAX) return;
  marking_ = true;
  Region& region = regions_[chosen];
  region.tails_erased = true;
  // Without a trailer the page must go on saying that the region is to be scanned.
  const auto state = region.trailer_written ? RegionState::kSealed : RegionState::kOpen;
  StoreLe(mark_page_.data(), StatePageOf(chosen, state));
  region.tails_erased = false;  // Until it is written.
  mark_io_.kind = DeviceOp::Kind::kWrite;
  mark_io_.region = chosen;
  mark_io_.offset = geometry_.RegionOffset(chosen) + geometry_.state_offset;
  mark_io_.bytes = mark_page_.bytes();
  mark_io_.done = [](Completion* self, int32_t result) {
    static_cast<Io<Impl>*>(self)->log->OnRegionMarked(result);
  };
  device_->Submit(&mark_io_);
}

void RegionLog::Impl::OnRegionMarked(int32_t result) {
  if (result < 0) return OnMarkSynced(result);
  counts_.bytes_written += kPageBytes;
  mark_sync_.log = this;
  mark_sync_.done = [](Completion* self, int32_t synced) {
    static_cast<MarkSync*>(self)->log->OnMarkSynced(synced);
  };
  Sync(&mark_sync_);
}

void RegionLog::Impl::OnMarkSynced(int32_t result) {
  marking_ = false;
  FifoList<EraseOp> marked;
  std::swap(marked, current_mark_);
  if (result >= 0) regions_[mark_io_.region].tails_erased = true;
  while (EraseOp* op = marked.Pop()) {
    if (result < 0) {
      FinishErase(op, result);
    } else {
      ZeroTail(op);
    }
  }
}

void RegionLog::Impl::FinishErase(EraseOp* op, int32_t result) {
  if (result < 0 && ++op->attempts_ < kEraseAttemptsMax) {
    waiting_mark_.Push(op);
    return;
  }
  --in_flight_;
  Release(op->io_.region);
  op->result = std::min(result, 0);
  op->done(op, op->result);
}

}  // namespace reprise::storage
