#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "storage/device.h"
#include "storage/format.h"
#include "storage/page_buffer.h"

namespace reprise::storage {

// Finds out what a region holds from the records alone: reads each slot's tail page and, when
// asked, the whole records whose tails are good. One region at a time, `depth` slots at once.
class RegionScan {
 public:
  struct Counts {
    uint32_t live = 0;    // Slots whose record passed every check that was asked for.
    uint32_t torn = 0;    // Something is in the tail page, but not a whole record.
    uint32_t unread = 0;  // The device failed.
    uint64_t bytes_read = 0;
  };
  // Runs from a completion of the device.
  using Done = std::function<void(const Counts& counts)>;

  RegionScan(Device* device, const RegionGeometry& geometry, uint32_t depth);

  // Fills `entries`, one per slot; slots that hold nothing good get kEntryDead. The payloads are
  // read and checked if `whole_records`, else only the tails. REQUIRES: not running.
  void Start(uint32_t region, bool whole_records, std::span<TrailerEntry> entries, Done done);
  bool running() const { return lanes_busy_ > 0; }

 private:
  struct Lane : DeviceOp {
    RegionScan* scan = nullptr;
    uint32_t slot = 0;
    bool whole = false;  // The transfer in flight is of the whole record.
    PageBuffer buffer;   // A page, and a record once one was needed.
  };

  void NextSlot(Lane* lane);
  void Read(Lane* lane, bool whole);
  void OnRead(Lane* lane, int32_t result);
  // True when the slot needs no further read.
  bool Judge(Lane* lane, int32_t result);

  Device* device_;
  RegionGeometry geometry_;
  std::vector<Lane> lanes_;
  uint32_t lanes_busy_ = 0;
  uint32_t region_ = 0;
  uint32_t next_slot_ = 0;
  bool whole_records_ = false;
  std::span<TrailerEntry> entries_;
  Counts counts_;
  Done done_;
};

}  // namespace reprise::storage
