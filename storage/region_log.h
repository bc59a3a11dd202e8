#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol/base/clock.h"
#include "protocol/base/status.h"
#include "storage/device.h"
#include "storage/eviction_policy.h"
#include "storage/format.h"
#include "storage/meta_store.h"

namespace reprise::storage {

// The SSD tier of one shard: an append-only log of records in regions on one Device.
//
//   Free --open--> Open --full--> Sealing --> Sealed --victim--> Reclaiming --erased--> Free
//
// Opening a region writes its state page (kOpen); sealing writes the trailer entries and the state
// page again (kSealed) and tells the MetaStore. Reclaiming reads the entries back, moves the few
// live blocks that the listener calls hot to the open region, tells the listener of the others,
// waits for readers, and erases. Regions are the only unit of eviction; nothing is updated in place
// but the state page and the tails that Erase zeroes. storage/FORMAT.md is the format.
//
// It knows keys and places, not bytes or meaning: checking records is the caller's (BlockStore).
// Confined to the shard's thread; every operation completes exactly once, never from inside the
// call.
class RegionLog {
  class Impl;

 public:
  // A place: region * slots per region + slot.
  using Location = uint32_t;
  static constexpr Location kNoLocation = UINT32_MAX;
  // One that fills, one that is kept for re-insertion, one to reclaim.
  static constexpr uint32_t kRegionsMin = 3;
  // A reclaimed region must give back more than it takes.
  static constexpr uint32_t kReinsertPercentMax = 50;

  // What the log asks and tells its owner. Called from the log's completions, never from inside a
  // call.
  class Listener {
   public:
    virtual ~Listener() = default;
    // Is this place still the one that the index names for the key?
    virtual bool IsLive(const BlockKey& key, Location location) = 0;
    // Asked of live blocks in a region that is being reclaimed. At most `reinsert_max` of a
    // region's slots are moved, in slot order.
    virtual bool IsHot(const BlockKey& key) = 0;
    // The bytes are about to go: forget the place.
    virtual void OnReclaimed(const BlockKey& key, Location location) = 0;
    // The bytes are now at `to` as well, and `from` is about to go.
    virtual void OnMoved(const BlockKey& key, Location from, Location to) = 0;
    // The places [first, first + count) are about to go, and not all of their keys could be read:
    // forget whatever is still known to be there.
    virtual void OnRegionLost(Location /*first*/, uint32_t /*count*/) {}
  };

  struct Options {
    Device* device = nullptr;
    MetaStore* meta = nullptr;
    Listener* listener = nullptr;
    std::array<std::byte, 16> uuid{};
    uint32_t shard = 0;
    RegionGeometry geometry;
    uint32_t region_count = 0;           // device size / region_bytes.
    std::string eviction = "fifo";       // Of regions: fifo, lru or s3fifo.
    uint32_t reinsert_percent_max = 10;  // Of a reclaimed region's slots.
    uint32_t free_regions_min = 2;       // Reclaim starts when fewer are free.
    std::function<int64_t()> wall_ms;    // Wall clock, only written down. May be empty.
  };

  // What the device sees of an operation.
  template <typename Op>
  struct Io : DeviceOp {
    Impl* log = nullptr;
    Op* op = nullptr;
    uint32_t region = 0;
    uint32_t slot = 0;
    uint64_t ticket = 0;
  };

  struct AppendOp : Completion {
    ConstBytes record;                // Whole record, page-aligned, unchanged until done.
    TrailerEntry entry;               // Its key, namespace, flags, ... as the trailer will say.
    bool durable = false;             // Done when synced, else when written.
    Location location = kNoLocation;  // Set when result is 0.
    // Set when it failed after a write was begun: some of the record may be there, and a recovery
    // could find it. The caller erases it.
    Location leftover = kNoLocation;
    // result: 0, -ENOSPC when no region can be freed, or the device's -errno.
   private:
    friend class RegionLog;
    Io<AppendOp> io_;
  };

  struct ReadOp : Completion {
    Location location = kNoLocation;
    Bytes record;  // result: 0 or -errno. The caller checks the bytes.
   private:
    friend class RegionLog;
    Io<ReadOp> io_;
  };

  // Done when everything appended before is durable. result: 0 or -errno.
  struct SyncOp : Completion {
   private:
    friend class RegionLog;
    uint64_t ticket_ = 0;
  };

  struct EraseOp : Completion {
    // Zeroes the record's tail and syncs: no recovery can find it again. Tried a few times when the
    // device fails. result: 0 or -errno.
    Location location = kNoLocation;

   private:
    friend class RegionLog;
    Io<EraseOp> io_;
    uint32_t attempts_ = 0;
  };

  // Says what is wrong with `options`, and what to do. To be asked before constructing.
  static absl::Status Validate(const Options& options);
  // REQUIRES: Validate(options) is ok.
  explicit RegionLog(const Options& options);
  ~RegionLog();  // REQUIRES: nothing in flight that the device will still complete.

  // ---- Start ----------------------------------------------------------------------------------
  struct RecoveryStats {
    uint32_t regions_from_index = 0;    // Entries taken from the MetaStore's row.
    uint32_t regions_from_trailer = 0;  // Entries read from the region.
    uint32_t regions_scanned = 0;       // Open or damaged: record by record.
    uint32_t regions_free = 0;
    uint32_t records_torn = 0;  // Of scanned regions: begun, but not whole.
    uint64_t blocks = 0;
    uint64_t bytes_read = 0;
  };
  // Finds out what is on the device, before any other call. `rows` are the MetaStore's; `pump`
  // makes the device progress (Ring::RunOnce) and is called until all is read. `found` is called
  // for every record that may be loaded; where a key is found twice, the higher sequence comes
  // last. Scanned regions are sealed with what they hold. Fails on a device error or a foreign
  // region.
  absl::StatusOr<RecoveryStats> Recover(
      const std::vector<RegionRow>& rows, const std::function<absl::Status()>& pump,
      const std::function<void(const TrailerEntry&, Location)>& found);

  // ---- Steady state ---------------------------------------------------------------------------
  void Append(AppendOp* op);
  void Read(ReadOp* op);  // The region is not erased under it. REQUIRES: the place is live.
  void Sync(SyncOp* op);
  void Erase(EraseOp* op);
  // A hit, for region policies that care.
  void Touch(Location location);
  // Starts what is due (reclaim, group sync). Called once per turn of the shard's loop; appends of
  // one turn share a sync.
  void Poll();

  bool idle() const;  // Nothing queued or in flight.
  // Some region whose blocks were reclaimed is not erased yet: a crash may bring them back.
  bool OwesErase() const;

  struct Stats {  // Counted from state or monotonic.
    uint32_t regions_free = 0, regions_open = 0, regions_sealed = 0, regions_reclaiming = 0;
    uint64_t appended = 0, append_errors = 0, reads = 0, read_errors = 0, syncs = 0;
    uint64_t bytes_written = 0, bytes_read = 0, reclaimed_regions = 0, reinserted = 0;
    uint32_t appends_waiting = 0;
  };
  Stats stats() const;
  const RegionGeometry& geometry() const;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise::storage
