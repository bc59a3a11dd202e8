#include "storage/region_log.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "protocol/base/check.h"
#include "protocol/base/checksum.h"
#include "protocol/base/units.h"
#include "storage/format_check.h"
#include "storage/region_recovery.h"

namespace reprise::storage {

absl::Status RegionLog::Validate(const Options& options) {
  const RegionGeometry& geometry = options.geometry;
  const std::string shard = "shard " + std::to_string(options.shard) + ": ";
  RP_CHECK(options.device != nullptr && options.meta != nullptr && options.listener != nullptr);
  if (geometry.slots == 0) {
    return InvalidArgument(shard + "a region of " + FormatBytes(geometry.region_bytes) +
                           " has no room for a record of " + FormatBytes(geometry.record_bytes) +
                           "; configure larger regions");
  }
  if (options.region_count < kRegionsMin) {
    return InvalidArgument(shard + std::to_string(options.region_count) + " regions of " +
                           FormatBytes(geometry.region_bytes) + " are fewer than the " +
                           std::to_string(kRegionsMin) +
                           " that the log needs; configure a larger SSD size, fewer shards or "
                           "smaller regions");
  }
  if (uint64_t{options.region_count} * geometry.slots >= kNoLocation) {
    return InvalidArgument(shard +
                           "more than 4,294,967,294 records in one shard; configure more "
                           "shards or a smaller SSD size");
  }
  if (geometry.RegionOffset(options.region_count) > options.device->size_bytes()) {
    return InvalidArgument(shard + std::to_string(options.region_count) + " regions of " +
                           FormatBytes(geometry.region_bytes) + " do not fit into the " +
                           FormatBytes(options.device->size_bytes()) + " of its device");
  }
  if (geometry.record_bytes > 1_GiB || geometry.entries_bytes() + kPageBytes > 1_GiB) {
    return InvalidArgument(shard +
                           "records and region trailers are at most 1 GiB; configure "
                           "smaller regions");
  }
  if (options.reinsert_percent_max > kReinsertPercentMax) {
    return InvalidArgument(shard + "re-inserting " + std::to_string(options.reinsert_percent_max) +
                           " % of a region is more than the " +
                           std::to_string(kReinsertPercentMax) + " % that lets reclaim gain space");
  }
  if (options.eviction == "fifo") return absl::OkStatus();
  return MakeEvictionPolicy(options.eviction, options.region_count).status();
}

RegionLog::RegionLog(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
RegionLog::~RegionLog() = default;

void RegionLog::Append(AppendOp* op) { impl_->Append(op); }
void RegionLog::Read(ReadOp* op) { impl_->Read(op); }
void RegionLog::Sync(SyncOp* op) { impl_->Sync(op); }
void RegionLog::Erase(EraseOp* op) { impl_->Erase(op); }
void RegionLog::Touch(Location location) { impl_->Touch(location); }
void RegionLog::Poll() { impl_->Poll(); }
bool RegionLog::idle() const { return impl_->idle(); }
bool RegionLog::OwesErase() const { return impl_->OwesErase(); }
RegionLog::Stats RegionLog::stats() const { return impl_->stats(); }
const RegionGeometry& RegionLog::geometry() const { return impl_->geometry(); }

// ---- Set-up ------------------------------------------------------------------------------------

RegionLog::Impl::Impl(const Options& options)
    : options_(options),
      geometry_(options.geometry),
      device_(options.device),
      regions_(options.region_count),
      zero_page_(kPageBytes),
      mark_page_(kPageBytes) {
  const absl::Status valid = Validate(options);
  RP_CHECK(valid.ok());
  if (options_.eviction != "fifo") {
    policy_ = *MakeEvictionPolicy(options_.eviction, options_.region_count);
  }
  for (uint32_t region = 0; region < options_.region_count; ++region) dirty_.push_back(region);
  const size_t trailer_bytes = geometry_.entries_bytes() + kPageBytes;
  for (Trailer& trailer : trailers_) {
    trailer.log = this;
    trailer.buffer = PageBuffer(trailer_bytes);
    trailer.io.log = this;
    trailer.io.op = &trailer;
    trailer.before_seal.trailer = &trailer;
    trailer.before_seal.done = [](Completion* self, int32_t result) {
      Trailer* due = static_cast<Trailer::BeforeSeal*>(self)->trailer;
      due->log->WriteTrailer(due, result);
    };
  }
  reclaim_.entries = PageBuffer(trailer_bytes);
  reclaim_.io.log = this;
  reclaim_.io.op = &reclaim_;
  reclaim_.sync.log = this;
  sync_io_.log = this;
  mark_io_.log = this;
  for (Move& move : moves_) {
    move.log = this;
    move.read.log = this;
    move.read.op = &move;
    move.write.move = &move;
    move.undo.move = &move;
  }
}

bool RegionLog::Impl::idle() const {
  const bool trailers = std::any_of(trailers_.begin(), trailers_.end(), [](const Trailer& trailer) {
    return trailer.in_use && (trailer.closed || trailer.page == Trailer::Page::kWriting);
  });
  return in_flight_ == 0 && appends_waiting_ == 0 && !syncing_ && next_sync_.empty() &&
         sync_barriers_.empty() && waiting_mark_.empty() && !marking_ && !trailers &&
         reclaim_.step == Reclaim::Step::kNone;
}

RegionLog::Stats RegionLog::Impl::stats() const {
  Stats stats = counts_;
  for (const Region& region : regions_) {
    switch (region.state) {
      case State::kDirty:
      case State::kFree:
        ++stats.regions_free;
        break;
      case State::kOpen:
      case State::kSealing:
        ++stats.regions_open;
        break;
      case State::kSealed:
        ++stats.regions_sealed;
        break;
      case State::kReclaiming:
        ++stats.regions_reclaiming;
        break;
    }
  }
  stats.appends_waiting = appends_waiting_;
  return stats;
}

void RegionLog::Impl::Poll() {
  StartReclaimIfDue();
  PumpAppends();
  MarkNextRegion();
  StartSync();
}

void RegionLog::Impl::Touch(Location location) {
  const uint32_t region = RegionOf(location);
  RP_CHECK(region < regions_.size());
  if (policy_ != nullptr && regions_[region].state == State::kSealed) policy_->Touch(region);
}

void RegionLog::Impl::Track(uint32_t region) {
  // A region's life is never seen twice, so its key is its sequence.
  if (policy_ != nullptr)
    policy_->Track(region, {.low = regions_[region].sequence, .high = region});
}

// ---- Opening -----------------------------------------------------------------------------------

// Reclaim may need slots for the blocks that it re-inserts, before it gives any back. So that it
// never waits for itself: users open a region only while another stays free, and while reclaim has
// moves left they leave it as many slots. Re-insertion may open the last free region; a region has
// more slots than one reclaim may move (kReinsertPercentMax), and its end makes the next last free
// region. Where errors close regions early and that was not enough, hot blocks are dropped instead
// of waited for.
RegionLog::Impl::Trailer* RegionLog::Impl::UserTrailer() {
  if (open_ != nullptr) {
    const uint32_t kept_slots = reclaim_.budget + reclaim_.unwritten;
    return !free_.empty() || FreeSlots(*open_) > kept_slots ? open_ : nullptr;
  }
  return free_.size() >= 2 ? OpenRegion() : nullptr;
}

RegionLog::Impl::Trailer* RegionLog::Impl::MoveTrailer() {
  if (open_ != nullptr) return open_;
  return free_.empty() ? nullptr : OpenRegion();
}

RegionStatePage RegionLog::Impl::StatePageOf(uint32_t region, RegionState state) const {
  RegionStatePage page{.shard = options_.shard,
                       .region = region,
                       .sequence = regions_[region].sequence,
                       .state = state};
  std::memcpy(page.uuid, options_.uuid.data(), options_.uuid.size());
  if (state == RegionState::kSealed) {
    page.entry_count = regions_[region].entry_count;
    page.entries_crc = regions_[region].entries_crc;
    page.flags = regions_[region].tails_erased ? uint32_t{kTailsErased} : 0;
  }
  page.crc = CrcOf(page);
  return page;
}

RegionLog::Impl::Trailer* RegionLog::Impl::OpenRegion() {
  const auto unused = std::find_if(trailers_.begin(), trailers_.end(),
                                   [](const Trailer& trailer) { return !trailer.in_use; });
  if (unused == trailers_.end()) return nullptr;
  const auto unread = std::find_if(free_.begin(), free_.end(), [this](uint32_t free_region) {
    return regions_[free_region].users == 0;
  });
  if (unread == free_.end()) return nullptr;
  Trailer* trailer = &*unused;
  const uint32_t index = *unread;
  free_.erase(unread);
  Region& region = regions_[index];
  RP_CHECK(region.state == State::kFree);
  region = {.state = State::kOpen, .sequence = next_sequence_++};
  trailer->in_use = true;
  trailer->closed = trailer->sealing = false;
  trailer->page = Trailer::Page::kWriting;
  trailer->page_error = 0;
  trailer->region = index;
  trailer->next_slot = trailer->writes_in_flight = 0;
  trailer->page_ticket = tickets_.Start();
  trailer->buffer.Clear();
  const Bytes page = trailer->buffer.bytes().last(kPageBytes);
  StoreLe(page.data(), StatePageOf(index, RegionState::kOpen));
  trailer->io.kind = DeviceOp::Kind::kWrite;
  trailer->io.offset = geometry_.RegionOffset(index) + geometry_.state_offset;
  trailer->io.bytes = page;
  trailer->io.done = [](Completion* self, int32_t result) {
    Trailer* opened = static_cast<Io<Trailer>*>(self)->op;
    opened->log->OnOpeningPage(opened, result);
  };
  ++in_flight_;
  device_->Submit(&trailer->io);
  open_ = trailer;
  return trailer;
}

void RegionLog::Impl::OnOpeningPage(Trailer* trailer, int32_t result) {
  --in_flight_;
  tickets_.Finish(trailer->page_ticket);
  if (result < 0) {
    // Sealing tries the page once more; until then nothing in this region can become durable.
    trailer->page = Trailer::Page::kFailed;
    trailer->page_error = result;
    Close(trailer);
  } else {
    counts_.bytes_written += kPageBytes;
    trailer->page = Trailer::Page::kWritten;
  }
  FifoList<AppendOp> waiting;
  std::swap(waiting, trailer->waiting_page);
  SealIfDue(trailer);
  while (AppendOp* op = waiting.Pop()) {
    if (result < 0) {
      FinishAppend(op, result);
    } else {
      next_sync_.appends.Push(op);
    }
  }
}

// ---- Append ------------------------------------------------------------------------------------

void RegionLog::Impl::Append(AppendOp* op) {
  RP_CHECK(op->done != nullptr && op->record.size() == geometry_.record_bytes);
  op->location = kNoLocation;
  op->leftover = kNoLocation;
  op->io_.log = this;
  op->io_.op = op;
  Trailer* trailer = waiting_appends_.empty() ? UserTrailer() : nullptr;
  if (trailer != nullptr) return WriteSlot(trailer, op);
  waiting_appends_.Push(op);
  ++appends_waiting_;
}

void RegionLog::Impl::PumpAppends() {
  while (!waiting_appends_.empty()) {
    Trailer* trailer = UserTrailer();
    if (trailer == nullptr) return;
    --appends_waiting_;
    WriteSlot(trailer, waiting_appends_.Pop());
  }
}

void RegionLog::Impl::FailAppends(int32_t result) {
  FifoList<AppendOp> waiting;
  std::swap(waiting, waiting_appends_);
  appends_waiting_ = 0;
  while (AppendOp* op = waiting.Pop()) {
    ++counts_.append_errors;
    op->result = result;
    op->done(op, result);
  }
}

void RegionLog::Impl::WriteSlot(Trailer* trailer, AppendOp* op) {
  auto& io = op->io_;
  io.region = trailer->region;
  io.slot = trailer->next_slot++;
  io.ticket = tickets_.Start();
  trailer->entries()[io.slot] = op->entry;
  ++trailer->writes_in_flight;
  if (FreeSlots(*trailer) == 0) Close(trailer);
  io.kind = DeviceOp::Kind::kWrite;
  io.offset = geometry_.SlotOffset(io.region, io.slot);
  io.bytes = {const_cast<std::byte*>(op->record.data()), op->record.size()};
  io.done = [](Completion* self, int32_t result) {
    auto* written = static_cast<Io<AppendOp>*>(self);
    written->log->OnSlotWritten(written->op, result);
  };
  ++in_flight_;
  device_->Submit(&io);
}

void RegionLog::Impl::OnSlotWritten(AppendOp* op, int32_t result) {
  --in_flight_;
  tickets_.Finish(op->io_.ticket);
  const auto found = std::find_if(trailers_.begin(), trailers_.end(), [&](const Trailer& trailer) {
    return trailer.in_use && trailer.region == op->io_.region;
  });
  RP_CHECK(found != trailers_.end());  // A region is not sealed before its writes are done.
  Trailer* trailer = &*found;
  --trailer->writes_in_flight;
  const bool pageless = op->durable && trailer->page == Trailer::Page::kFailed;
  if (result < 0 || pageless) {
    if (result >= 0) result = trailer->page_error;
    trailer->entries()[op->io_.slot].flags |= kEntryDead;
    ++counts_.append_errors;
    Close(trailer);
  } else {
    ++counts_.appended;
    counts_.bytes_written += geometry_.record_bytes;
    if (op->durable && trailer->page == Trailer::Page::kWriting) {
      trailer->waiting_page.Push(op);
      op = nullptr;
    } else if (op->durable) {
      next_sync_.appends.Push(op);
      op = nullptr;
    }
  }
  SealIfDue(trailer);
  if (op != nullptr) FinishAppend(op, std::min(result, 0));
}

void RegionLog::Impl::FinishAppend(AppendOp* op, int32_t result) {
  (result == 0 ? op->location : op->leftover) = LocationOf(op->io_.region, op->io_.slot);
  op->result = result;
  op->done(op, result);
}

// ---- Sealing -----------------------------------------------------------------------------------

void RegionLog::Impl::Close(Trailer* trailer) {
  if (trailer->closed) return;
  trailer->closed = true;
  regions_[trailer->region].state = State::kSealing;
  if (open_ == trailer) open_ = nullptr;
}

// The trailer vouches for the records, so they are synced before it is written: what a power cut
// leaves of a sealed region is whole.
void RegionLog::Impl::SealIfDue(Trailer* trailer) {
  if (!trailer->closed || trailer->sealing || trailer->writes_in_flight > 0 ||
      trailer->page == Trailer::Page::kWriting) {
    return;
  }
  trailer->sealing = true;
  Sync(&trailer->before_seal);
}

void RegionLog::Impl::WriteTrailer(Trailer* trailer, int32_t sync_result) {
  if (sync_result < 0) return FinishSeal(trailer, false);
  Region& region = regions_[trailer->region];
  region.entry_count = trailer->next_slot;
  region.entries_crc =
      Crc32c(trailer->buffer.bytes().first(region.entry_count * sizeof(TrailerEntry)));
  StoreLe(trailer->buffer.data() + geometry_.entries_bytes(),
          StatePageOf(trailer->region, RegionState::kSealed));
  trailer->io.offset = geometry_.RegionOffset(trailer->region) + geometry_.entries_offset;
  trailer->io.bytes = trailer->buffer.bytes();
  trailer->io.done = [](Completion* self, int32_t result) {
    Trailer* sealed = static_cast<Io<Trailer>*>(self)->op;
    --sealed->log->in_flight_;
    sealed->log->FinishSeal(sealed, result >= 0);
  };
  ++in_flight_;
  device_->Submit(&trailer->io);
}

// A region whose trailer could not be written stays readable, and recovery scans it.
void RegionLog::Impl::FinishSeal(Trailer* trailer, bool written) {
  Region& region = regions_[trailer->region];
  region.state = State::kSealed;
  region.trailer_written = written;
  region.entry_count = trailer->next_slot;
  if (written) {
    counts_.bytes_written += trailer->buffer.size();
    options_.meta->PutRegion({options_.shard, trailer->region, region.sequence,
                              std::string(AsText(trailer->buffer.bytes().first(
                                  region.entry_count * sizeof(TrailerEntry))))});
  }
  Track(trailer->region);
  trailer->in_use = false;
  PumpAppends();
  if (reclaim_.step == Reclaim::Step::kMoves) StepMoves();
}

// ---- Read --------------------------------------------------------------------------------------

void RegionLog::Impl::Read(ReadOp* op) {
  auto& io = op->io_;
  RP_CHECK(op->done != nullptr && op->record.size() == geometry_.record_bytes);
  RP_CHECK(RegionOf(op->location) < regions_.size());
  io.log = this;
  io.op = op;
  io.region = RegionOf(op->location);
  io.kind = DeviceOp::Kind::kRead;
  io.offset = geometry_.SlotOffset(io.region, SlotOf(op->location));
  io.bytes = op->record;
  io.done = [](Completion* self, int32_t result) {
    auto* read = static_cast<Io<ReadOp>*>(self);
    Impl* log = read->log;
    --log->in_flight_;
    ++(result < 0 ? log->counts_.read_errors : log->counts_.reads);
    if (result >= 0) log->counts_.bytes_read += log->geometry_.record_bytes;
    log->Release(read->region);
    read->op->result = std::min(result, 0);
    read->op->done(read->op, read->op->result);
  };
  ++regions_[io.region].users;
  ++in_flight_;
  device_->Submit(&io);
}

void RegionLog::Impl::Release(uint32_t region) {
  RP_CHECK(regions_[region].users > 0);
  --regions_[region].users;
  if (reclaim_.region == region) EraseRegionIfUnused();
  if (reclaim_.unwritten > 0) StepMoves();  // A free region may have waited for its last reader.
}

// ---- Sync --------------------------------------------------------------------------------------

void RegionLog::Impl::Sync(SyncOp* op) {
  RP_CHECK(op->done != nullptr);
  op->ticket_ = tickets_.next();
  sync_barriers_.Push(op);
}

void RegionLog::Impl::StartSync() {
  while (!sync_barriers_.empty() && sync_barriers_.front()->ticket_ <= tickets_.oldest()) {
    next_sync_.syncs.Push(sync_barriers_.Pop());
  }
  if (syncing_ || next_sync_.empty()) return;
  syncing_ = true;
  std::swap(current_sync_, next_sync_);
  sync_io_.kind = DeviceOp::Kind::kSync;
  sync_io_.done = [](Completion* self, int32_t result) {
    static_cast<Io<Impl>*>(self)->log->OnSynced(result);
  };
  device_->Submit(&sync_io_);
}

void RegionLog::Impl::OnSynced(int32_t result) {
  result = std::min(result, 0);
  ++counts_.syncs;
  SyncBatch batch;
  std::swap(batch, current_sync_);
  syncing_ = false;
  while (SyncOp* op = batch.syncs.Pop()) {
    op->result = result;
    op->done(op, result);
  }
  while (AppendOp* op = batch.appends.Pop()) {
    if (result < 0) ++counts_.append_errors;
    FinishAppend(op, result);
  }
  while (EraseOp* op = batch.erases.Pop()) FinishErase(op, result);
}

}  // namespace reprise::storage
