#include "storage/region_recovery.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "protocol/base/check.h"
#include "protocol/base/checksum.h"
#include "storage/format_check.h"

// What is on the device, at start. storage/FORMAT.md, "Recovery", is the prose twin.
namespace reprise::storage {
namespace {

constexpr uint32_t kPagesAtOnce = 64;
constexpr uint32_t kTrailersAtOnce = 32;
constexpr uint64_t kTrailerBytesAtOnce = 64_MiB;

// A sequence that no shard reaches: a higher one in a row is nonsense.
constexpr uint64_t kSequenceMax = uint64_t{1} << 62;

}  // namespace

// ---- Transfers ---------------------------------------------------------------------------------

void RegionLog::Impl::Recovery::Start(Transfer* transfer, DeviceOp::Kind kind, uint64_t offset,
                                      Bytes bytes) {
  transfer->recovery = this;
  transfer->kind = kind;
  transfer->offset = offset;
  transfer->bytes = bytes;
  transfer->done = [](Completion* self, int32_t result) {
    auto* done = static_cast<Transfer*>(self);
    done->status = result;
    --done->recovery->pending;
  };
  if (kind == DeviceOp::Kind::kRead) stats.bytes_read += bytes.size();
  ++pending;
  log->device_->Submit(transfer);
}

absl::Status RegionLog::Impl::Recovery::Wait() {
  while (pending > 0) RP_TRY(pump());
  return absl::OkStatus();
}

absl::Status RegionLog::Impl::Recovery::Sync() {
  Start(&single, DeviceOp::Kind::kSync, 0, {});
  RP_TRY(Wait());
  if (single.status >= 0) return absl::OkStatus();
  return ErrnoStatus(-single.status, "syncing the data of shard " +
                                         std::to_string(log->options_.shard) +
                                         " during recovery; check the disk");
}

// ---- State pages -------------------------------------------------------------------------------

absl::Status RegionLog::Impl::Recovery::Run(const std::vector<RegionRow>& region_rows) {
  for (const RegionRow& row : region_rows) {
    if (row.shard != log->options_.shard || row.region >= log->regions_.size()) continue;
    if (row.sequence >= kSequenceMax) continue;
    rows[row.region] = &row;
    log->next_sequence_ = std::max(log->next_sequence_, row.sequence + 1);
  }
  transfers = std::vector<Transfer>(kPagesAtOnce);
  RP_TRY(ReadPages());
  std::sort(regions.begin(), regions.end(), [](const Found& a, const Found& b) {
    return std::pair(a.sequence, a.region) < std::pair(b.sequence, b.region);
  });
  log->dirty_.clear();
  RP_TRY(LoadRegions());
  std::sort(log->dirty_.begin(), log->dirty_.end());
  stats.regions_free = static_cast<uint32_t>(log->dirty_.size());
  return absl::OkStatus();
}

absl::Status RegionLog::Impl::Recovery::ReadPages() {
  const auto count = static_cast<uint32_t>(log->regions_.size());
  for (Transfer& transfer : transfers) transfer.buffer = PageBuffer(kPageBytes);
  for (uint32_t first = 0; first < count; first += kPagesAtOnce) {
    const uint32_t batch = std::min(kPagesAtOnce, count - first);
    for (uint32_t i = 0; i < batch; ++i) {
      Start(&transfers[i], DeviceOp::Kind::kRead,
            log->geometry_.RegionOffset(first + i) + log->geometry_.state_offset,
            transfers[i].buffer.bytes());
    }
    RP_TRY(Wait());
    for (uint32_t i = 0; i < batch; ++i) {
      if (transfers[i].status < 0) {
        return ErrnoStatus(-transfers[i].status,
                           "reading the state page of region " + std::to_string(first + i) +
                               " of shard " + std::to_string(log->options_.shard) + " at byte " +
                               std::to_string(transfers[i].offset) +
                               "; check the disk, or remove the shard's file to start it empty");
      }
      const Bytes page = transfers[i].buffer.bytes();
      RP_TRY(Classify(first + i, LoadLe<RegionStatePage>(page.data()), IsZero(page)));
    }
  }
  return absl::OkStatus();
}

absl::Status RegionLog::Impl::Recovery::Classify(uint32_t region, const RegionStatePage& page,
                                                 bool blank) {
  Found item{.region = region, .page = page};
  const FormatCheck check = Check(page);
  if (check == FormatCheck::kWrongVersion) {
    return FailedPrecondition("region " + std::to_string(region) + " of shard " +
                              std::to_string(log->options_.shard) + " has format version " +
                              std::to_string(page.version) + ", and this program knows version " +
                              std::to_string(kStoreVersion) +
                              "; use the release that wrote it, or an empty directory");
  }
  if (blank) {
    item.holds = Holds::kNothing;
  } else if (check != FormatCheck::kOk) {
    item.holds = Holds::kRecordsAndDamage;
  } else {
    RP_TRY(CheckOwner(page, region));
    item.sequence = page.sequence;
    const bool sealed = page.state == RegionState::kSealed;
    const bool sane = (sealed || page.state == RegionState::kOpen) &&
                      page.entry_count <= log->geometry_.slots && (page.flags & ~kTailsErased) == 0;
    const bool entries = sane && sealed && (page.flags & kTailsErased) == 0;
    item.holds = entries ? Holds::kEntries : Holds::kRecords;
    log->next_sequence_ = std::max(log->next_sequence_, page.sequence + 1);
  }
  regions.push_back(item);
  return absl::OkStatus();
}

absl::Status RegionLog::Impl::Recovery::CheckOwner(const RegionStatePage& page,
                                                   uint32_t region) const {
  const Options& options = log->options_;
  const std::string here =
      "region " + std::to_string(region) + " of shard " + std::to_string(options.shard);
  if (std::memcmp(page.uuid, options.uuid.data(), options.uuid.size()) != 0) {
    return FailedPrecondition(here + " belongs to the store " + UuidText(page.uuid) +
                              ", and this directory is " + UuidText(options.uuid) +
                              "; put the right shard file back, or remove it to start it empty");
  }
  if (page.shard == options.shard && page.region == region) return absl::OkStatus();
  return FailedPrecondition(here + " says that it is region " + std::to_string(page.region) +
                            " of shard " + std::to_string(page.shard) +
                            "; put the right shard file back, or remove it to start it empty");
}

// ---- Contents ----------------------------------------------------------------------------------

const RegionRow* RegionLog::Impl::Recovery::RowFor(const Found& region) const {
  const auto at = rows.find(region.region);
  if (at == rows.end()) return nullptr;
  const RegionRow& row = *at->second;
  const bool same = row.sequence == region.page.sequence &&
                    row.entries.size() == region.page.entry_count * sizeof(TrailerEntry) &&
                    Crc32c(AsBytes(row.entries)) == region.page.entries_crc;
  return same ? &row : nullptr;
}

absl::Status RegionLog::Impl::Recovery::LoadRegions() {
  const uint64_t trailer_bytes = log->geometry_.entries_bytes();
  const auto depth = static_cast<uint32_t>(
      std::clamp<uint64_t>(kTrailerBytesAtOnce / trailer_bytes, 1, kTrailersAtOnce));
  transfers = std::vector<Transfer>(depth);
  for (Transfer& transfer : transfers) transfer.buffer = PageBuffer(trailer_bytes);
  rescued = PageBuffer(trailer_bytes + kPageBytes);
  for (size_t first = 0; first < regions.size(); first += depth) {
    const size_t batch = std::min<size_t>(depth, regions.size() - first);
    for (size_t i = 0; i < batch; ++i) {
      const Found& region = regions[first + i];
      if (region.holds != Holds::kEntries || RowFor(region) != nullptr) continue;
      Start(&transfers[i], DeviceOp::Kind::kRead,
            log->geometry_.RegionOffset(region.region) + log->geometry_.entries_offset,
            transfers[i].buffer.bytes());
    }
    RP_TRY(Wait());
    for (size_t i = 0; i < batch; ++i) {
      const Found& region = regions[first + i];
      if (region.holds == Holds::kNothing) {
        log->dirty_.push_back(region.region);
      } else if (region.holds == Holds::kEntries) {
        RP_TRY(LoadSealed(region, &transfers[i]));
      } else {
        RP_TRY(LoadByScan(region));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RegionLog::Impl::Recovery::LoadSealed(const Found& region, Transfer* transfer) {
  const RegionStatePage& page = region.page;
  if (const RegionRow* row = RowFor(region); row != nullptr) {
    ++stats.regions_from_index;
    std::memcpy(transfer->buffer.data(), row->entries.data(), row->entries.size());
  } else {
    const ConstBytes entries =
        transfer->buffer.bytes().first(page.entry_count * sizeof(TrailerEntry));
    if (transfer->status < 0 || Crc32c(entries) != page.entries_crc) return LoadByScan(region);
    ++stats.regions_from_trailer;
    log->options_.meta->PutRegion(
        {log->options_.shard, region.region, page.sequence, std::string(AsText(entries))});
  }
  Adopt(region.region, page.sequence, page.entry_count, page.entries_crc);
  Report(region.region, reinterpret_cast<const TrailerEntry*>(transfer->buffer.data()),
         page.entry_count);
  return absl::OkStatus();
}

void RegionLog::Impl::Recovery::Report(uint32_t region, const TrailerEntry* entries,
                                       uint32_t count) {
  for (uint32_t slot = 0; slot < count; ++slot) {
    if ((entries[slot].flags & kEntryDead) != 0) continue;
    ++stats.blocks;
    found(entries[slot], log->LocationOf(region, slot));
  }
}

void RegionLog::Impl::Recovery::Adopt(uint32_t region, uint64_t sequence, uint32_t entry_count,
                                      uint32_t entries_crc) {
  log->regions_[region] = {.state = State::kSealed,
                           .trailer_written = true,
                           .entry_count = entry_count,
                           .entries_crc = entries_crc,
                           .sequence = sequence};
  log->Track(region);
}

// Only regions that were sealed and marked are spared the reading of payloads: their records were
// whole when they were sealed, but for those that the entries call dead.
absl::Status RegionLog::Impl::Recovery::LoadByScan(const Found& region) {
  ++stats.regions_scanned;
  const bool was_sealed =
      region.holds == Holds::kRecords && region.page.state == RegionState::kSealed &&
      region.page.flags == kTailsErased && region.page.entry_count <= log->geometry_.slots;
  PageBuffer sealed_buffer;
  const TrailerEntry* sealed = nullptr;
  if (was_sealed) {
    sealed_buffer = PageBuffer(log->geometry_.entries_bytes());
    Start(&single, DeviceOp::Kind::kRead,
          log->geometry_.RegionOffset(region.region) + log->geometry_.entries_offset,
          sealed_buffer.bytes());
    RP_TRY(Wait());
    const size_t entry_bytes = region.page.entry_count * sizeof(TrailerEntry);
    const bool good = single.status >= 0 &&
                      Crc32c(sealed_buffer.bytes().first(entry_bytes)) == region.page.entries_crc;
    if (good) sealed = reinterpret_cast<const TrailerEntry*>(sealed_buffer.data());
  }
  rescued.Clear();
  auto* entries = reinterpret_cast<TrailerEntry*>(rescued.data());
  ++pending;
  scan.Start(region.region, sealed == nullptr, {entries, log->geometry_.slots},
             [this](const RegionScan::Counts& counts) {
               scan_counts = counts;
               --pending;
             });
  RP_TRY(Wait());
  stats.records_torn += scan_counts.torn;
  stats.bytes_read += scan_counts.bytes_read;
  uint32_t live = 0;
  for (uint32_t slot = 0; slot < log->geometry_.slots; ++slot) {
    const bool dead = sealed != nullptr &&
                      (slot >= region.page.entry_count || (sealed[slot].flags & kEntryDead) != 0);
    if (dead) entries[slot].flags |= kEntryDead;
    live += (entries[slot].flags & kEntryDead) == 0 ? 1 : 0;
  }
  if (live == 0) {
    log->dirty_.push_back(region.region);
    return absl::OkStatus();
  }
  RP_TRY(Reseal(region.region, region.sequence));
  Report(region.region, entries, log->regions_[region.region].entry_count);
  return absl::OkStatus();
}

absl::Status RegionLog::Impl::Recovery::Reseal(uint32_t region, uint64_t sequence) {
  const auto* entries = reinterpret_cast<const TrailerEntry*>(rescued.data());
  uint32_t count = log->geometry_.slots;
  while ((entries[count - 1].flags & kEntryDead) != 0) --count;
  const Bytes sealed = rescued.bytes();
  const size_t entry_bytes = count * sizeof(TrailerEntry);
  std::memset(sealed.data() + entry_bytes, 0, sealed.size() - entry_bytes);
  Adopt(region, sequence, count, Crc32c(sealed.first(entry_bytes)));
  StoreLe(sealed.data() + log->geometry_.entries_bytes(),
          log->StatePageOf(region, RegionState::kSealed));
  // The records before the trailer that vouches for them, and all of it before the first use.
  RP_TRY(Sync());
  Start(&single, DeviceOp::Kind::kWrite,
        log->geometry_.RegionOffset(region) + log->geometry_.entries_offset, sealed);
  RP_TRY(Wait());
  if (single.status < 0) {
    return ErrnoStatus(-single.status, "sealing region " + std::to_string(region) + " of shard " +
                                           std::to_string(log->options_.shard) +
                                           " during recovery; check the disk");
  }
  log->options_.meta->PutRegion(
      {log->options_.shard, region, sequence, std::string(AsText(sealed.first(entry_bytes)))});
  return Sync();
}

absl::StatusOr<RegionLog::RecoveryStats> RegionLog::Impl::Recover(
    const std::vector<RegionRow>& rows, const std::function<absl::Status()>& pump,
    const std::function<void(const TrailerEntry&, Location)>& found) {
  RP_CHECK(recovery_ == nullptr && in_flight_ == 0 && open_ == nullptr);
  recovery_ = std::make_unique<Recovery>(this, pump, found);
  RP_TRY(recovery_->Run(rows));
  const RecoveryStats stats = recovery_->stats;
  recovery_.reset();
  return stats;
}

absl::StatusOr<RegionLog::RecoveryStats> RegionLog::Recover(
    const std::vector<RegionRow>& rows, const std::function<absl::Status()>& pump,
    const std::function<void(const TrailerEntry&, Location)>& found) {
  return impl_->Recover(rows, pump, found);
}

}  // namespace reprise::storage
