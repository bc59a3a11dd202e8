#include "client/bench/ssd_bench.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "client/drive/pattern.h"
#include "protocol/base/prng.h"
#include "protocol/base/units.h"
#include "protocol/identity/block_hash.h"
#include "protocol/reactor/ring.h"
#include "protocol/record/record.h"
#include "storage/arena.h"
#include "storage/file_device.h"
#include "storage/format_check.h"
#include "storage/memory_meta_store.h"
#include "storage/region_log.h"

namespace reprise::bench {
namespace {

namespace fs = std::filesystem;
using storage::RegionLog;

constexpr uint32_t kRegionsMin = 8;
// Regions that do not hold records for the reads: the open one, and those that reclaiming works on.
constexpr uint32_t kRegionsSpare = 4;
constexpr Nanos kTurnWait = 10 * kMillisecond;

// The records on the device, by place and as a list to draw from.
class RecordTable {
 public:
  explicit RecordTable(uint32_t places) : keys_(places), positions_(places) {}

  void Add(const BlockKey& key, RegionLog::Location place) {
    if (Holds(keys_[place], place)) Remove(place);
    keys_[place] = key;
    positions_[place] = static_cast<uint32_t>(live_.size());
    live_.push_back(place);
  }
  void Remove(RegionLog::Location place) {
    const uint32_t position = positions_[place];
    live_[position] = live_.back();
    positions_[live_[position]] = position;
    live_.pop_back();
    keys_[place] = {};
  }
  bool Holds(const BlockKey& key, RegionLog::Location place) const {
    return keys_[place] == key && key != BlockKey{};
  }
  const BlockKey& key(RegionLog::Location place) const { return keys_[place]; }
  RegionLog::Location Draw(Prng* prng) const { return live_[prng->Below(live_.size())]; }
  size_t size() const { return live_.size(); }

 private:
  std::vector<BlockKey> keys_;
  std::vector<uint32_t> positions_;
  std::vector<RegionLog::Location> live_;
};

class SsdBench final : private RegionLog::Listener {
 public:
  SsdBench(const SsdBenchOptions& options, const Clock& clock)
      : options_(options),
        clock_(clock),
        geometry_(storage::CutRegion(options.record_bytes, options.region_bytes)),
        region_count_(static_cast<uint32_t>(options.size_bytes / options.region_bytes)),
        table_(region_count_ * geometry_.slots),
        prng_(options.seed) {}

  absl::Status Open() {
    RP_ASSIGN(device_, storage::FileDevice::Open(
                           {.path = SsdBenchFile(options_), .size_bytes = options_.size_bytes}));
    RP_TRY(ring_.Open(2 * options_.queue_depth + 64));
    const int fd = device_->fd();
    RP_TRY(ring_.RegisterFiles({&fd, 1}));
    device_->Attach(&ring_, 0);
    RP_ASSIGN(arena_, storage::Arena::Create({.slot_bytes = options_.record_bytes,
                                              .slot_count = options_.queue_depth}));
    figures_.direct = device_->direct();
    figures_.pages = arena_->pages_name();
    figures_.remarks = device_->remark();
    const absl::Status registered = ring_.RegisterMemory(arena_->slots());
    figures_.registered_memory = registered.ok();
    if (!registered.ok()) figures_.remarks += " " + Message(registered);
    return OpenLog();
  }

  absl::StatusOr<SsdBenchFigures> Run() {
    if (options_.append) RP_TRY(RunPhase(Phase::kAppend, &figures_.append));
    if (options_.append_durable) {
      const uint64_t syncs = log_->stats().syncs;
      RP_TRY(RunPhase(Phase::kAppendDurable, &figures_.append_durable));
      figures_.syncs = log_->stats().syncs - syncs;
    }
    Measured ignored;
    RP_TRY(RunPhase(Phase::kLayOut, &ignored));
    if (options_.read) RP_TRY(RunPhase(Phase::kRead, &figures_.read));
    return std::move(figures_);
  }

 private:
  enum class Phase { kLayOut, kAppend, kAppendDurable, kRead };

  // One of the `queue_depth` operations, with its buffer.
  struct Lane {
    struct Append : RegionLog::AppendOp {
      Lane* lane = nullptr;
    };
    struct Read : RegionLog::ReadOp {
      Lane* lane = nullptr;
    };
    SsdBench* bench = nullptr;
    Bytes record;
    RecordHeader header;
    Instant started = 0;
    Append append;
    Read read;
  };

  absl::Status OpenLog() {
    constexpr std::string_view kUuid = "reprise bench ..";
    RegionLog::Options log_options{.device = device_.get(),
                                   .meta = &meta_,
                                   .listener = this,
                                   .geometry = geometry_,
                                   .region_count = region_count_};
    std::memcpy(log_options.uuid.data(), kUuid.data(), log_options.uuid.size());
    RP_TRY(RegionLog::Validate(log_options));
    log_ = std::make_unique<RegionLog>(log_options);
    RP_ASSIGN(const auto recovered,
              log_->Recover(
                  {}, [this] { return ring_.RunOnce(kTurnWait).status(); },
                  [this](const storage::TrailerEntry& entry, RegionLog::Location place) {
                    table_.Add(entry.key, place);
                  }));
    figures_.recovered_records = recovered.blocks;
    MakeLanes();
    return absl::OkStatus();
  }

  void MakeLanes() {
    lanes_ = std::vector<Lane>(options_.queue_depth);
    for (uint32_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[i];
      lane.bench = this;
      lane.record = arena_->slot(i);
      lane.append.lane = lane.read.lane = &lane;
      lane.append.done = [](Completion* self, int32_t result) {
        Lane* done = static_cast<Lane::Append*>(self)->lane;
        done->bench->OnAppended(done, result);
      };
      lane.read.done = [](Completion* self, int32_t result) {
        Lane* done = static_cast<Lane::Read*>(self)->lane;
        done->bench->OnRead(done, result);
      };
    }
  }

  absl::Status RunPhase(Phase phase, Measured* measured) {
    phase_ = phase;
    measured_ = measured;
    if (phase != Phase::kRead) FillPayloads();
    const Instant begin = clock_.Now();
    measure_from_ = begin + options_.warm_up_ns;
    measure_until_ = measure_from_ + options_.duration_ns;
    for (Lane& lane : lanes_) StartNext(&lane);
    while (in_flight_ > 0 || !log_->idle()) {
      log_->Poll();
      RP_TRY(ring_.RunOnce(kTurnWait).status());
    }
    if (failed_ != 0) return ErrnoStatus(-failed_, "the device of " + SsdBenchFile(options_));
    return absl::OkStatus();
  }

  void FillPayloads() {
    for (Lane& lane : lanes_) {
      FillPattern(prng_.Next(), lane.record.first(lane.record.size() - kRecordTailBytes));
    }
  }

  // A new record in the lane's buffer: new tokens, so a new key; the payload stays.
  void Renew(Lane* lane) {
    const Bytes tokens = lane->record.last(kRecordTokenBytes);
    for (uint32_t at = 0; at < kRecordTokenBytes; at += sizeof(uint64_t)) {
      StoreLe(tokens.data() + at, prng_.Next());
    }
    std::vector<TokenId>& ids = token_ids_;
    ids.resize(kBlockTokens);
    std::memcpy(ids.data(), tokens.data(), kRecordTokenBytes);
    lane->header = {.block_hash = BlockHash(Hash256{}, ids),
                    .payload_bytes = options_.record_bytes - kRecordTailBytes,
                    .record_bytes = options_.record_bytes,
                    .token_count = kBlockTokens,
                    .created_ms = clock_.WallMillis()};
    SealRecord(lane->record, lane->header);
    lane->append.record = lane->record;
    lane->append.entry = storage::EntryOf(LoadRecordHeader(lane->record));
  }

  bool WantsMore(Instant now) const {
    if (failed_ != 0) return false;
    if (phase_ == Phase::kLayOut) {
      return table_.size() + in_flight_ < (region_count_ - kRegionsSpare) * geometry_.slots;
    }
    return Measures(now);
  }
  // However slow the disk is, something is measured.
  bool Measures(Instant now) const { return now < measure_until_ || measured_->records == 0; }

  void StartNext(Lane* lane) {
    const Instant now = clock_.Now();
    if (!WantsMore(now)) return;
    ++in_flight_;
    if (phase_ == Phase::kRead) {
      lane->started = now;
      lane->read.location = table_.Draw(&prng_);
      lane->read.record = lane->record;
      log_->Read(&lane->read);
      return;
    }
    Renew(lane);
    lane->started = clock_.Now();
    lane->append.durable = phase_ == Phase::kAppendDurable;
    log_->Append(&lane->append);
  }

  void Count(const Lane& lane) {
    const Instant now = clock_.Now();
    if (now < measure_from_ || !Measures(now)) return;
    ++measured_->records;
    measured_->elapsed_ns = std::max(options_.duration_ns, now - measure_from_);
    measured_->bytes += options_.record_bytes;
    measured_->latency.Add(now - lane.started);
  }

  void OnAppended(Lane* lane, int32_t result) {
    --in_flight_;
    if (result < 0) {
      failed_ = result;
    } else {
      table_.Add(lane->append.entry.key, lane->append.location);
      Count(*lane);
    }
    StartNext(lane);
  }

  void OnRead(Lane* lane, int32_t result) {
    --in_flight_;
    if (result < 0) {
      failed_ = result;
    } else {
      if (options_.check &&
          VerifyRecord(lane->record, table_.key(lane->read.location)) != Outcome::kOk) {
        ++figures_.wrong_records;
      }
      Count(*lane);
    }
    StartNext(lane);
  }

  // RegionLog::Listener
  bool IsLive(const BlockKey& key, RegionLog::Location place) override {
    return table_.Holds(key, place);
  }
  bool IsHot(const BlockKey&) override { return false; }
  void OnReclaimed(const BlockKey&, RegionLog::Location place) override { table_.Remove(place); }
  void OnMoved(const BlockKey& key, RegionLog::Location from, RegionLog::Location to) override {
    table_.Remove(from);
    table_.Add(key, to);
  }

  const SsdBenchOptions options_;
  const Clock& clock_;
  const storage::RegionGeometry geometry_;
  const uint32_t region_count_;
  RecordTable table_;
  Prng prng_;
  std::vector<TokenId> token_ids_;
  std::unique_ptr<storage::FileDevice> device_;
  std::unique_ptr<storage::Arena> arena_;
  storage::MemoryMetaStore meta_;
  std::unique_ptr<RegionLog> log_;
  std::vector<Lane> lanes_;
  Ring ring_;  // After what it works on: destroyed first.

  Phase phase_ = Phase::kLayOut;
  Measured* measured_ = nullptr;
  Instant measure_from_ = 0, measure_until_ = 0;
  uint32_t in_flight_ = 0;
  int32_t failed_ = 0;
  SsdBenchFigures figures_;
};

absl::Status CheckOptions(const SsdBenchOptions& options) {
  if (options.record_bytes % kPageBytes != 0 || options.record_bytes < 2 * kPageBytes) {
    return InvalidArgument("--record-bytes " + std::to_string(options.record_bytes) +
                           ": records are two or more pages of 4096 bytes; V4.1-Flash has 114688");
  }
  if (options.region_bytes % kPageBytes != 0 || options.region_bytes < options.record_bytes * 2) {
    return InvalidArgument("--region-size " + FormatBytes(options.region_bytes) +
                           ": regions are whole pages and hold at least one record");
  }
  if (options.size_bytes / options.region_bytes < kRegionsMin) {
    return InvalidArgument("--size " + FormatBytes(options.size_bytes) + " is fewer than " +
                           std::to_string(kRegionsMin) + " regions of " +
                           FormatBytes(options.region_bytes) + "; give a larger size");
  }
  if (options.queue_depth == 0 || options.queue_depth > 1024) {
    return InvalidArgument("--queue-depth " + std::to_string(options.queue_depth) +
                           ": give 1 to 1024");
  }
  std::error_code ignored;
  if (!options.keep && fs::exists(SsdBenchFile(options), ignored)) {
    return FailedPrecondition(SsdBenchFile(options) +
                              " is there already; use it with --keep, or remove it");
  }
  return absl::OkStatus();
}

}  // namespace

std::string SsdBenchFile(const SsdBenchOptions& options) {
  return options.dir + "/reprise-bench.data";
}

absl::StatusOr<SsdBenchFigures> RunSsdBench(const SsdBenchOptions& options, const Clock& clock) {
  RP_TRY(CheckOptions(options));
  SsdBenchOptions rounded = options;
  rounded.size_bytes -= rounded.size_bytes % rounded.region_bytes;
  absl::StatusOr<SsdBenchFigures> figures = SsdBenchFigures{};
  {
    SsdBench bench(rounded, clock);
    const absl::Status opened = bench.Open();
    figures = opened.ok() ? bench.Run() : absl::StatusOr<SsdBenchFigures>(opened);
  }
  std::error_code ignored;
  if (!options.keep) fs::remove(SsdBenchFile(options), ignored);
  return figures;
}

}  // namespace reprise::bench
