#include "storage/region_scan.h"

#include <utility>

#include "protocol/base/check.h"
#include "protocol/record/record.h"
#include "storage/format_check.h"

namespace reprise::storage {

RegionScan::RegionScan(Device* device, const RegionGeometry& geometry, uint32_t depth)
    : device_(device), geometry_(geometry), lanes_(depth) {
  for (Lane& lane : lanes_) {
    lane.scan = this;
    lane.kind = DeviceOp::Kind::kRead;
    lane.done = [](Completion* self, int32_t result) {
      auto* self_lane = static_cast<Lane*>(self);
      self_lane->scan->OnRead(self_lane, result);
    };
  }
}

void RegionScan::Start(uint32_t region, bool whole_records, std::span<TrailerEntry> entries,
                       Done done) {
  RP_CHECK(!running() && entries.size() == geometry_.slots);
  region_ = region;
  whole_records_ = whole_records;
  entries_ = entries;
  done_ = std::move(done);
  counts_ = {};
  next_slot_ = 0;
  for (TrailerEntry& entry : entries_) entry = {.flags = kEntryDead};
  for (Lane& lane : lanes_) NextSlot(&lane);
}

void RegionScan::NextSlot(Lane* lane) {
  if (next_slot_ == geometry_.slots) return;
  lane->slot = next_slot_++;
  ++lanes_busy_;
  Read(lane, false);
}

void RegionScan::Read(Lane* lane, bool whole) {
  const uint64_t bytes = whole ? geometry_.record_bytes : kPageBytes;
  if (lane->buffer.size() < bytes) lane->buffer = PageBuffer(bytes);
  lane->whole = whole;
  lane->bytes = lane->buffer.bytes().first(bytes);
  lane->offset = geometry_.SlotOffset(region_, lane->slot) + geometry_.record_bytes - bytes;
  counts_.bytes_read += bytes;
  device_->Submit(lane);
}

void RegionScan::OnRead(Lane* lane, int32_t result) {
  if (!Judge(lane, result)) return Read(lane, true);
  --lanes_busy_;
  NextSlot(lane);
  if (lanes_busy_ > 0) return;
  const Done done = std::move(done_);
  done(counts_);
}

bool RegionScan::Judge(Lane* lane, int32_t result) {
  if (result < 0) {
    ++counts_.unread;
    return true;
  }
  const ConstBytes bytes = lane->bytes;
  if (!lane->whole && IsZero(bytes)) return true;
  const ConstBytes tail = bytes.last(kRecordTailBytes);
  if (VerifyHeader(tail, geometry_.record_bytes) != Outcome::kOk) {
    ++counts_.torn;
    return true;
  }
  if (whole_records_ && !lane->whole) return false;
  if (whole_records_ && VerifyPayload(bytes) != Outcome::kOk) {
    ++counts_.torn;
    return true;
  }
  ++counts_.live;
  entries_[lane->slot] = EntryOf(LoadRecordHeader(tail));
  return true;
}

}  // namespace reprise::storage
