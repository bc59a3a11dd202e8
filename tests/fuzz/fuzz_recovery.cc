#include <map>
#include <memory>
#include <vector>

#include "protocol/base/check.h"
#include "protocol/base/checksum.h"
#include "protocol/record/record.h"
#include "storage/format_check.h"
#include "storage/memory_meta_store.h"
#include "storage/page_buffer.h"
#include "storage/region_log.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/sim/sim_device.h"

// Recovery of a shard's file that the input has damaged: patches over a small file of zeros, of
// state pages and of entries with right checksums, and rows of the MetaStore. It may refuse the
// file with words; it may not stop, hang, or name a place that does not exist; and the log must
// work afterwards.
namespace {

using reprise::BlockKey;
using reprise::ConstBytes;
using reprise::storage::RegionLog;
using reprise::storage::RegionStatePage;
using reprise::storage::TrailerEntry;
using Device = reprise::sim::SimDevice;

constexpr uint32_t kRecordBytes = 4'096;
constexpr uint32_t kSlots = 3;
constexpr uint32_t kRegions = 4;
constexpr uint64_t kRegionBytes = kSlots * kRecordBytes + 2 * reprise::kPageBytes;
constexpr reprise::storage::RegionGeometry kGeometry =
    reprise::storage::CutRegion(kRecordBytes, kRegionBytes);
static_assert(kGeometry.slots == kSlots);

class Index final : public RegionLog::Listener {
 public:
  bool IsLive(const BlockKey& key, RegionLog::Location location) override {
    const auto at = places_.find(key);
    return at != places_.end() && at->second == location;
  }
  bool IsHot(const BlockKey& key) override { return key.low % 2 == 0; }
  void OnReclaimed(const BlockKey& key, RegionLog::Location location) override {
    RP_CHECK(IsLive(key, location));
    places_.erase(key);
  }
  void OnMoved(const BlockKey& key, RegionLog::Location from, RegionLog::Location to) override {
    RP_CHECK(IsLive(key, from));
    places_[key] = to;
  }

  std::map<BlockKey, RegionLog::Location> places_;
};

enum class Patch : uint8_t { kBytes, kStatePage, kEntries, kRecord, kRow, kCount };

// Entries of the input, at most a region's, and the bytes that they make.
std::string TakeEntries(reprise::fuzz::Input* input) {
  const uint32_t count = input->Take<uint8_t>() % (kSlots + 1);
  std::string entries;
  for (uint32_t i = 0; i < count; ++i) {
    const auto entry = input->Take<TrailerEntry>();
    entries += reprise::AsText(reprise::AsBytes(entry));
  }
  return entries;
}

void ApplyPatch(reprise::fuzz::Input* input, reprise::Bytes file,
                std::vector<reprise::storage::RegionRow>* rows) {
  const auto patch = static_cast<Patch>(input->Take<uint8_t>() % static_cast<int>(Patch::kCount));
  const uint32_t region = input->Take<uint8_t>() % kRegions;
  std::byte* const state = file.data() + kGeometry.RegionOffset(region) + kGeometry.state_offset;
  switch (patch) {
    case Patch::kBytes: {
      const uint64_t offset = input->Take<uint32_t>() % file.size();
      const ConstBytes bytes =
          input->TakeBytes(std::min<uint64_t>(input->Take<uint8_t>(), file.size() - offset));
      std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<ptrdiff_t>(offset));
      break;
    }
    case Patch::kStatePage: {  // Of this store and this region, unless a bit says otherwise.
      const auto foreign = input->Take<uint8_t>();
      auto page = input->Take<RegionStatePage>();
      page.magic = reprise::storage::kRegionMagic;
      page.version = reprise::storage::kStoreVersion;
      if ((foreign & 1) == 0) std::memset(page.uuid, 0, sizeof(page.uuid));
      if ((foreign & 2) == 0) page.shard = 0;
      if ((foreign & 4) == 0) page.region = region;
      page.crc = CrcOf(page);
      reprise::StoreLe(state, page);
      break;
    }
    case Patch::kEntries: {  // With the checksum that makes the state page vouch for them.
      const std::string entries = TakeEntries(input);
      std::memcpy(file.data() + kGeometry.RegionOffset(region) + kGeometry.entries_offset,
                  entries.data(), entries.size());
      auto page = reprise::LoadLe<RegionStatePage>(state);
      page.entry_count = static_cast<uint32_t>(entries.size() / sizeof(TrailerEntry));
      page.entries_crc = reprise::Crc32c(reprise::AsBytes(entries));
      page.crc = CrcOf(page);
      reprise::StoreLe(state, page);
      break;
    }
    case Patch::kRecord: {  // Whole, with a right checksum.
      const uint32_t slot = input->Take<uint8_t>() % kSlots;
      auto header = input->Take<reprise::RecordHeader>();
      header.record_bytes = kRecordBytes;
      reprise::SealRecord(file.subspan(kGeometry.SlotOffset(region, slot), kRecordBytes), header);
      break;
    }
    default:
      rows->push_back({.shard = input->Take<uint8_t>(),
                       .region = region,
                       .sequence = input->Take<uint64_t>(),
                       .entries = TakeEntries(input)});
      break;
  }
}

// The log goes on: a block is appended, read and erased, through as many regions as there are.
void Use(RegionLog* log, Device* device, Index* index) {
  struct Append : RegionLog::AppendOp {
    bool finished = false;
  };
  const auto settle = [log, device](const auto& done) {
    for (int turn = 0; turn < 5'000 && !done(); ++turn) {
      log->Poll();
      device->Tick();
    }
    RP_CHECK(done());
  };
  reprise::storage::PageBuffer record(kRecordBytes);
  for (uint64_t i = 0; i < kSlots * kRegions + 2; ++i) {
    Append op;
    op.record = record.bytes();
    op.entry.key = {i, 77};
    op.durable = i % 3 == 0;
    op.done = [](reprise::Completion* self, int32_t) {
      static_cast<Append*>(self)->finished = true;
    };
    log->Append(&op);
    settle([&op] { return op.finished; });
    if (op.result == 0) index->places_[op.entry.key] = op.location;
  }
  settle([log, device] { return log->idle() && device->in_flight() == 0; });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  reprise::fuzz::Input input(data, size);
  Device device({.size_bytes = kRegions * kRegionBytes, .latency_ticks_max = 1}, 1);
  std::vector<reprise::storage::RegionRow> rows;
  for (int patches = 0; !input.empty() && patches < 64; ++patches) {
    ApplyPatch(&input, device.mutable_view(), &rows);
  }
  device.MakeDurable();
  reprise::storage::MemoryMetaStore meta;
  Index index;
  RegionLog log({.device = &device,
                 .meta = &meta,
                 .listener = &index,
                 .geometry = kGeometry,
                 .region_count = kRegions,
                 .reinsert_percent_max = 34});
  const auto recovered = log.Recover(
      rows,
      [&device] {
        device.Tick();
        return absl::OkStatus();
      },
      [&index](const TrailerEntry& entry, RegionLog::Location location) {
        RP_CHECK(location < kSlots * kRegions);
        index.places_[entry.key] = location;
      });
  if (!recovered.ok()) {
    RP_CHECK(!reprise::Message(recovered.status()).empty());
    return 0;
  }
  RP_CHECK(recovered->blocks >= index.places_.size());
  Use(&log, &device, &index);
  return 0;
}
