#include <algorithm>
#include <cerrno>

#include "protocol/base/check.h"
#include "protocol/base/checksum.h"
#include "storage/region_log_impl.h"

// Freeing regions, one at a time. The listener is told of each block before its bytes go, hot ones
// are copied to the open region and synced there, and the region is free when its erase is durable:
// a power cut cannot bring records of an earlier life back into an open region.
namespace reprise::storage {

bool RegionLog::Impl::CanReclaim() const {
  if (erase_failures_ >= kEraseAttemptsMax) return false;
  if (erase_failures_ < dirty_.size()) return true;
  return std::any_of(regions_.begin(), regions_.end(),
                     [](const Region& region) { return region.state == State::kSealed; });
}

void RegionLog::Impl::StartReclaimIfDue() {
  if (reclaim_.step != Reclaim::Step::kNone) return;
  PumpAppends();
  const bool wanted = !waiting_appends_.empty();
  const uint32_t count = static_cast<uint32_t>(regions_.size());
  const uint32_t target = std::clamp(options_.free_regions_min, 1u, std::max(1u, count / 4));
  const bool due = free_.size() < target && !reclaim_on_demand_;
  if (!wanted && !due) return;
  if (!CanReclaim()) {
    // What is still to be sealed can be reclaimed later; otherwise nothing changes by waiting.
    const bool sealing = std::any_of(trailers_.begin(), trailers_.end(),
                                     [](const Trailer& trailer) { return trailer.in_use; });
    if (!wanted || (sealing && erase_failures_ < kEraseAttemptsMax)) return;
    erase_failures_ = 0;
    return FailAppends(-ENOSPC);
  }
  const bool dirty = erase_failures_ < dirty_.size();
  reclaim_.region = dirty ? dirty_.front() : Victim();
  if (dirty) dirty_.pop_front();
  reclaim_.moved = false;
  reclaim_.was_sealed = !dirty;
  regions_[reclaim_.region].state = State::kReclaiming;
  if (!dirty) return ReadEntries();
  if (regions_[reclaim_.region].moves_unsynced) return SyncMoves();
  reclaim_.step = Reclaim::Step::kReaders;
  EraseRegionIfUnused();
}

uint32_t RegionLog::Impl::Victim() {
  uint32_t victim = EvictionPolicy::kNoVictim;
  if (policy_ != nullptr) {
    victim = policy_->Evict();
  } else {
    for (uint32_t i = 0; i < regions_.size(); ++i) {
      if (regions_[i].state != State::kSealed) continue;
      if (victim == EvictionPolicy::kNoVictim || regions_[i].sequence < regions_[victim].sequence) {
        victim = i;
      }
    }
  }
  RP_CHECK(victim < regions_.size() && regions_[victim].state == State::kSealed);
  return victim;
}

// ---- What the region holds ---------------------------------------------------------------------

void RegionLog::Impl::ReadEntries() {
  const Region& region = regions_[reclaim_.region];
  reclaim_.step = Reclaim::Step::kEntries;
  reclaim_.budget = geometry_.slots * options_.reinsert_percent_max / 100;
  const bool rounds_to_none = reclaim_.budget == 0 && options_.reinsert_percent_max > 0;
  if (rounds_to_none && geometry_.slots > 1) reclaim_.budget = 1;
  reclaim_.next_slot = 0;
  reclaim_.scanned = false;
  reclaim_.entry_count = region.entry_count;
  reclaim_.io.kind = DeviceOp::Kind::kRead;
  reclaim_.io.offset = geometry_.RegionOffset(reclaim_.region) + geometry_.entries_offset;
  reclaim_.io.bytes = reclaim_.entries.bytes().first(geometry_.entries_bytes());
  reclaim_.io.done = [](Completion* self, int32_t result) {
    static_cast<Io<Reclaim>*>(self)->log->OnEntriesRead(result);
  };
  ++in_flight_;
  device_->Submit(&reclaim_.io);
}

void RegionLog::Impl::OnEntriesRead(int32_t result) {
  --in_flight_;
  const Region& region = regions_[reclaim_.region];
  const ConstBytes entries =
      reclaim_.entries.bytes().first(region.entry_count * sizeof(TrailerEntry));
  if (result >= 0) counts_.bytes_read += geometry_.entries_bytes();
  if (result >= 0 && region.trailer_written && Crc32c(entries) == region.entries_crc) {
    reclaim_.step = Reclaim::Step::kMoves;
    return StepMoves();
  }
  // The trailer is damaged or was never written: the records' tails say the same.
  if (reclaim_scan_ == nullptr) {
    reclaim_scan_ = std::make_unique<RegionScan>(device_, geometry_, kMovesMax);
  }
  reclaim_.entry_count = geometry_.slots;
  reclaim_.scanned = true;
  ++in_flight_;
  auto* slots = reinterpret_cast<TrailerEntry*>(reclaim_.entries.data());
  reclaim_scan_->Start(reclaim_.region, false, {slots, geometry_.slots},
                       [this](const RegionScan::Counts& counts) {
                         --in_flight_;
                         counts_.bytes_read += counts.bytes_read;
                         reclaim_.step = Reclaim::Step::kMoves;
                         StepMoves();
                       });
}

// ---- Re-insertion ------------------------------------------------------------------------------

void RegionLog::Impl::StepMoves() {
  for (Move& move : moves_) {
    if (move.waiting) WriteMove(&move);
  }
  const auto* entries = reinterpret_cast<const TrailerEntry*>(reclaim_.entries.data());
  while (reclaim_.next_slot < reclaim_.entry_count && reclaim_.moves_busy < kMovesMax) {
    const uint32_t slot = reclaim_.next_slot++;
    const TrailerEntry& entry = entries[slot];
    const Location location = LocationOf(reclaim_.region, slot);
    if ((entry.flags & kEntryDead) != 0 || !options_.listener->IsLive(entry.key, location))
      continue;
    if (reclaim_.budget > 0 && options_.listener->IsHot(entry.key)) {
      StartMove(entry, location);
    } else {
      options_.listener->OnReclaimed(entry.key, location);
    }
  }
  if (reclaim_.next_slot < reclaim_.entry_count || reclaim_.moves_busy > 0) return;
  reclaim_.budget = 0;
  if (reclaim_.scanned) {
    options_.listener->OnRegionLost(LocationOf(reclaim_.region, 0), geometry_.slots);
  }
  if (!reclaim_.moved) {
    reclaim_.step = Reclaim::Step::kReaders;
    return EraseRegionIfUnused();
  }
  SyncMoves();
}

// A region is not erased before the copies of its hot blocks are durable: when the sync fails it
// keeps its bytes, which recovery would find, and the sync is tried again before its next erase.
void RegionLog::Impl::SyncMoves() {
  reclaim_.step = Reclaim::Step::kSync;
  reclaim_.sync.done = [](Completion* self, int32_t result) {
    Impl* log = static_cast<Reclaim::AfterMoves*>(self)->log;
    log->regions_[log->reclaim_.region].moves_unsynced = result < 0;
    if (result < 0) return log->FinishReclaim(result);
    log->reclaim_.step = Reclaim::Step::kReaders;
    log->EraseRegionIfUnused();
  };
  Sync(&reclaim_.sync);
}

void RegionLog::Impl::TellReclaimed(const BlockKey& key, Location location) {
  if (options_.listener->IsLive(key, location)) options_.listener->OnReclaimed(key, location);
}

void RegionLog::Impl::StartMove(const TrailerEntry& entry, Location from) {
  Move* move = std::find_if(moves_.begin(), moves_.end(), [](const Move& m) { return !m.busy; });
  RP_CHECK(move != moves_.end());
  if (move->record.size() == 0) move->record = PageBuffer(geometry_.record_bytes);
  move->busy = true;
  ++reclaim_.moves_busy;
  ++reclaim_.unwritten;
  --reclaim_.budget;
  move->key = entry.key;
  move->from = from;
  move->write.entry = entry;
  move->write.record = move->record.bytes();
  move->read.kind = DeviceOp::Kind::kRead;
  move->read.offset = geometry_.SlotOffset(RegionOf(from), SlotOf(from));
  move->read.bytes = move->record.bytes();
  move->read.done = [](Completion* self, int32_t result) {
    Move* read = static_cast<Io<Move>*>(self)->op;
    read->log->OnMoveRead(read, result);
  };
  ++in_flight_;
  device_->Submit(&move->read);
}

void RegionLog::Impl::OnMoveRead(Move* move, int32_t result) {
  --in_flight_;
  if (result < 0) {
    --reclaim_.unwritten;
    TellReclaimed(move->key, move->from);
    return FinishMove(move);
  }
  counts_.bytes_read += geometry_.record_bytes;
  move->waiting = true;
  StepMoves();
}

void RegionLog::Impl::WriteMove(Move* move) {
  move->waiting = false;
  Trailer* trailer = MoveTrailer();
  if (trailer == nullptr && !free_.empty()) {
    move->waiting = true;  // A region that seals gives its trailer back, and steps us again.
    return;
  }
  --reclaim_.unwritten;
  if (trailer == nullptr) {
    TellReclaimed(move->key, move->from);
    move->busy = false;
    --reclaim_.moves_busy;
    return;
  }
  move->write.location = kNoLocation;
  move->write.leftover = kNoLocation;
  move->write.io_.log = this;
  move->write.io_.op = &move->write;
  move->write.done = [](Completion* self, int32_t written) {
    Move* moved = static_cast<Move::Write*>(self)->move;
    moved->log->OnMoveWritten(moved, written);
  };
  WriteSlot(trailer, &move->write);
}

void RegionLog::Impl::OnMoveWritten(Move* move, int32_t result) {
  reclaim_.moved = true;
  if (result < 0) {
    TellReclaimed(move->key, move->from);
  } else if (options_.listener->IsLive(move->key, move->from)) {
    ++counts_.reinserted;
    options_.listener->OnMoved(move->key, move->from, move->write.location);
    return FinishMove(move);
  }
  // Failed, or withdrawn while it moved: the copy must not be found by a later recovery.
  move->undo.location = result < 0 ? move->write.leftover : move->write.location;
  move->undo.done = [](Completion* self, int32_t) {
    Move* undone = static_cast<Move::Undo*>(self)->move;
    undone->log->FinishMove(undone);
  };
  Erase(&move->undo);
}

void RegionLog::Impl::FinishMove(Move* move) {
  move->busy = false;
  --reclaim_.moves_busy;
  StepMoves();
}

// ---- Erasing the region ------------------------------------------------------------------------

// First the state page, synced, so that a power cut in the middle leaves a free region and not
// entries whose records are half gone; then all of it.
void RegionLog::Impl::EraseRegionIfUnused() {
  if (reclaim_.step != Reclaim::Step::kReaders || regions_[reclaim_.region].users > 0) return;
  reclaim_.io.done = [](Completion* self, int32_t result) {
    auto* io = static_cast<Io<Reclaim>*>(self);
    --io->log->in_flight_;
    io->log->StepErase(result);
  };
  StepErase(0);
}

void RegionLog::Impl::StepErase(int32_t result) {
  if (result < 0) return FinishReclaim(result);
  auto& io = reclaim_.io;
  switch (reclaim_.step) {
    case Reclaim::Step::kReaders:
      reclaim_.step = Reclaim::Step::kDisown;
      io.kind = DeviceOp::Kind::kWrite;
      io.offset = geometry_.RegionOffset(reclaim_.region) + geometry_.state_offset;
      io.bytes = zero_page_.bytes();
      break;
    case Reclaim::Step::kDisown:
      reclaim_.step = Reclaim::Step::kDisownSync;
      io.kind = DeviceOp::Kind::kSync;
      break;
    case Reclaim::Step::kDisownSync:
      reclaim_.step = Reclaim::Step::kErase;
      io.kind = DeviceOp::Kind::kErase;
      io.offset = geometry_.RegionOffset(reclaim_.region);
      io.erase_bytes = geometry_.region_bytes;
      break;
    case Reclaim::Step::kErase:
      reclaim_.step = Reclaim::Step::kEraseSync;
      io.kind = DeviceOp::Kind::kSync;
      break;
    default:
      return FinishReclaim(result);
  }
  ++in_flight_;
  device_->Submit(&io);
}

bool RegionLog::Impl::OwesErase() const {
  if (reclaim_.step != Reclaim::Step::kNone && reclaim_.was_sealed) return true;
  return std::any_of(regions_.begin(), regions_.end(),
                     [](const Region& region) { return region.undead; });
}

void RegionLog::Impl::FinishReclaim(int32_t result) {
  const uint32_t index = reclaim_.region;
  Region& region = regions_[index];
  if (result >= 0 && region.users > 0) {  // Somebody came late: once more, after them.
    reclaim_.step = Reclaim::Step::kReaders;
    return;
  }
  reclaim_.step = Reclaim::Step::kNone;
  const bool undead = result < 0 && (reclaim_.was_sealed || region.undead);
  const bool moves_unsynced = result < 0 && region.moves_unsynced;
  region = {.undead = undead, .moves_unsynced = moves_unsynced, .users = region.users};
  if (result < 0) {
    ++erase_failures_;
    reclaim_on_demand_ = true;
    dirty_.push_back(index);
    return;
  }
  erase_failures_ = 0;
  reclaim_on_demand_ = false;
  region.state = State::kFree;
  free_.push_back(index);
  if (reclaim_.was_sealed) ++counts_.reclaimed_regions;
  options_.meta->DeleteRegion(options_.shard, index);
  PumpAppends();
}

}  // namespace reprise::storage
