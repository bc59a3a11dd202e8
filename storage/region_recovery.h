#pragma once

#include <functional>
#include <map>
#include <vector>

#include "storage/region_log_impl.h"

namespace reprise::storage {

// Lives as long as its log: a pump that fails leaves reads in flight, which still own these
// buffers.
struct RegionLog::Impl::Recovery {
  enum class Holds : uint8_t { kNothing, kEntries, kRecords, kRecordsAndDamage };

  struct Found {
    uint32_t region = 0;
    uint64_t sequence = 0;
    Holds holds = Holds::kNothing;
    RegionStatePage page;
  };

  struct Transfer : DeviceOp {
    Recovery* recovery = nullptr;
    PageBuffer buffer;
    int32_t status = 0;
  };

  Recovery(Impl* owner, const std::function<absl::Status()>& pump_device,
           const std::function<void(const TrailerEntry&, Location)>& on_found)
      : log(owner),
        pump(pump_device),
        found(on_found),
        scan(owner->device_, owner->geometry_, kScanDepth) {}

  absl::Status Run(const std::vector<RegionRow>& region_rows);
  absl::Status ReadPages();
  absl::Status Classify(uint32_t region, const RegionStatePage& page, bool blank);
  absl::Status CheckOwner(const RegionStatePage& page, uint32_t region) const;
  absl::Status LoadRegions();
  absl::Status LoadSealed(const Found& region, Transfer* transfer);
  absl::Status LoadByScan(const Found& region);
  absl::Status Reseal(uint32_t region, uint64_t sequence);
  void Report(uint32_t region, const TrailerEntry* entries, uint32_t count);
  void Adopt(uint32_t region, uint64_t sequence, uint32_t entry_count, uint32_t entries_crc);
  const RegionRow* RowFor(const Found& region) const;

  void Start(Transfer* transfer, DeviceOp::Kind kind, uint64_t offset, Bytes bytes);
  absl::Status Wait();
  absl::Status Sync();

  Impl* log;
  std::function<absl::Status()> pump;
  std::function<void(const TrailerEntry&, Location)> found;
  RegionScan scan;
  RegionScan::Counts scan_counts;
  std::map<uint32_t, const RegionRow*> rows;
  std::vector<Found> regions;
  std::vector<Transfer> transfers;
  Transfer single;
  PageBuffer rescued;  // Entries and state page of a scanned region.
  uint32_t pending = 0;
  RecoveryStats stats;
};

}  // namespace reprise::storage
