#include "storage/economics/window_model.h"

#include <algorithm>

#include "protocol/base/checksum.h"

namespace reprise::economics {
namespace {

uint32_t SlotsOf(const WindowModel::Options& options) {
  return static_cast<uint32_t>(
      std::max<uint64_t>(1, DivideUp(options.snapshot_bytes, options.record_bytes)));
}

uint32_t PoolSlots(const WindowModel::Options& options) {
  const uint64_t slots = options.pool_bytes / options.record_bytes;
  const uint64_t useful = (uint64_t{options.snapshots_max} + 1) * SlotsOf(options);
  return static_cast<uint32_t>(std::min<uint64_t>({slots, useful, UINT32_MAX - 1}));
}

}  // namespace

WindowModel::WindowModel(const Options& options)
    : options_(options),
      snapshot_(SlotsOf(options)),
      crc_(Crc32c(snapshot_)),
      slots_(&memory_, 0, 0, PoolSlots(options)),
      pool_({.ttl_ns = options.ttl_ns, .positions_per_session = options.positions_per_session},
            &slots_) {}

bool WindowModel::Has(const Place& place, Nanos now) const {
  return pool_.Probe(0, KeyFor(place), now) != 0;
}

bool WindowModel::Use(const Place& place, Nanos now) {
  storage::WindowPool::View view;
  if (pool_.Acquire(0, KeyFor(place), now, &view) != Outcome::kOk) return false;
  pool_.Release(view.handle);
  return true;
}

void WindowModel::Put(const Place& place, uint64_t session_id, Nanos now) {
  const ConstBytes piece(snapshot_);
  (void)pool_.Put(0, KeyFor(place), session_id, {&piece, 1},
                  static_cast<uint32_t>(snapshot_.size()), crc_, now);
}

uint64_t WindowModel::bytes(Nanos now) {
  (void)pool_.Expire(now);
  return RealBytes(pool_.stats().bytes);
}

uint64_t WindowModel::bytes_peak() const { return RealBytes(pool_.stats().bytes_peak); }

}  // namespace reprise::economics
