#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "storage/page_buffer.h"
#include "storage/region_log.h"
#include "storage/region_scan.h"

// The inside of RegionLog, by job: region_log.cc appends, seals and syncs; region_erase.cc zeroes
// single records; region_reclaim.cc frees regions; region_recovery.cc runs at start. Nobody else
// includes this.
namespace reprise::storage {

class RegionLog::Impl {
 public:
  explicit Impl(const Options& options);

  absl::StatusOr<RecoveryStats> Recover(
      const std::vector<RegionRow>& rows, const std::function<absl::Status()>& pump,
      const std::function<void(const TrailerEntry&, Location)>& found);

  void Append(AppendOp* op);
  void Read(ReadOp* op);
  void Sync(SyncOp* op);
  void Erase(EraseOp* op);
  void Touch(Location location);
  void Poll();
  bool idle() const;
  bool OwesErase() const;
  Stats stats() const;
  const RegionGeometry& geometry() const { return geometry_; }

 private:
  enum class State : uint8_t {
    kDirty,    // Holds nothing of ours, but must be erased before it is opened.
    kFree,     // Erased and synced.
    kOpen,     // Takes appends.
    kSealing,  // Full, or closed by an error: its trailer is on the way.
    kSealed,
    kReclaiming,  // Victim: until its erase is durable.
  };

  struct Region {
    State state = State::kDirty;
    bool trailer_written = false;  // The entries on the device are those of this life.
    bool undead = false;           // Reclaimed, and the erase failed.
    bool moves_unsynced = false;  // Reclaimed, and the copies of its hot blocks may not be durable.
    bool tails_erased = false;    // The state page on the device has kTailsErased.
    uint32_t users = 0;           // Reads and erases of records in flight; hold back the erase.
    uint32_t entry_count = 0;
    uint32_t entries_crc = 0;
    uint64_t sequence = 0;
  };

  // A region from its opening to its seal, with the memory for its entries and state page.
  struct Trailer {
    enum class Page : uint8_t { kWriting, kWritten, kFailed };

    Impl* log = nullptr;
    bool in_use = false;
    bool closed = false;   // Takes no more appends.
    bool sealing = false;  // The sync before the trailer, then the trailer, is on the way.
    Page page = Page::kWriting;
    int32_t page_error = 0;
    uint32_t region = 0;
    uint32_t next_slot = 0;
    uint32_t writes_in_flight = 0;
    uint64_t page_ticket = 0;
    PageBuffer buffer;                // Entries, then the state page: as on the device.
    FifoList<AppendOp> waiting_page;  // Written durable appends that wait for the opening page.
    Io<Trailer> io;
    struct BeforeSeal : SyncOp {
      Trailer* trailer = nullptr;
    } before_seal;

    TrailerEntry* entries() { return reinterpret_cast<TrailerEntry*>(buffer.data()); }
  };

  // What one fdatasync acknowledges.
  struct SyncBatch {
    FifoList<AppendOp> appends;
    FifoList<SyncOp> syncs;
    FifoList<EraseOp> erases;
    bool empty() const { return appends.empty() && syncs.empty() && erases.empty(); }
  };

  // Tickets number the writes that a Sync covers: records and opening pages.
  class TicketWindow {
   public:
    uint64_t Start() {
      done_.push_back(false);
      return first_ + done_.size() - 1;
    }
    void Finish(uint64_t ticket) {
      done_[ticket - first_] = true;
      while (!done_.empty() && done_.front()) {
        done_.pop_front();
        ++first_;
      }
    }
    uint64_t next() const { return first_ + done_.size(); }
    uint64_t oldest() const { return first_; }  // All before are finished.

   private:
    uint64_t first_ = 0;
    std::deque<bool> done_;
  };

  // A hot block on its way from the region that is being reclaimed to the open one.
  struct Move {
    Impl* log = nullptr;
    bool busy = false;
    bool waiting = false;  // Read, and no slot to write to yet.
    BlockKey key;
    Location from = kNoLocation;
    PageBuffer record;
    Io<Move> read;
    struct Write : AppendOp {
      Move* move = nullptr;
    } write;
    struct Undo : EraseOp {
      Move* move = nullptr;
    } undo;  // The block was withdrawn while it moved.
  };

  struct Reclaim {
    enum class Step : uint8_t {
      kNone,
      kEntries,  // Reading what the region holds.
      kMoves,    // Telling the listener, moving hot blocks.
      kSync,     // The moved copies become durable before their source goes.
      kReaders,  // Waiting for reads of the region.
      kDisown,   // The state page is zeroed.
      kDisownSync,
      kErase,
      kEraseSync,
    };

    Step step = Step::kNone;
    uint32_t region = 0;
    uint32_t entry_count = 0;
    uint32_t next_slot = 0;
    uint32_t moves_busy = 0;
    uint32_t budget = 0;     // Moves that may still start.
    uint32_t unwritten = 0;  // Moves that have started and have no slot yet.
    bool moved = false;
    bool was_sealed = false;
    bool scanned = false;  // By tails, of which some may be unreadable.
    PageBuffer entries;
    Io<Reclaim> io;
    struct AfterMoves : SyncOp {
      Impl* log = nullptr;
    } sync;
  };

  struct Recovery;

  static constexpr uint32_t kTrailers = 3;  // One open, two that seal.
  static constexpr uint32_t kMovesMax = 4;
  static constexpr uint32_t kEraseAttemptsMax = 4;
  static constexpr uint32_t kScanDepth = 32;

  // ---- region_log.cc
  Location LocationOf(uint32_t region, uint32_t slot) const {
    return region * geometry_.slots + slot;
  }
  uint32_t RegionOf(Location location) const { return location / geometry_.slots; }
  uint32_t SlotOf(Location location) const { return location % geometry_.slots; }
  uint32_t FreeSlots(const Trailer& trailer) const { return geometry_.slots - trailer.next_slot; }

  RegionStatePage StatePageOf(uint32_t region, RegionState state) const;
  Trailer* UserTrailer();
  Trailer* MoveTrailer();
  Trailer* OpenRegion();
  void OnOpeningPage(Trailer* trailer, int32_t result);
  void WriteSlot(Trailer* trailer, AppendOp* op);
  void OnSlotWritten(AppendOp* op, int32_t result);
  void FinishAppend(AppendOp* op, int32_t result);
  void PumpAppends();
  void FailAppends(int32_t result);
  void Close(Trailer* trailer);
  void SealIfDue(Trailer* trailer);
  void WriteTrailer(Trailer* trailer, int32_t sync_result);
  void FinishSeal(Trailer* trailer, bool written);
  void StartSync();
  void OnSynced(int32_t result);
  void Release(uint32_t region);
  void Track(uint32_t region);

  // ---- region_erase.cc
  void ZeroTail(EraseOp* op);
  void OnTailZeroed(EraseOp* op, int32_t result);
  void MarkNextRegion();
  void OnRegionMarked(int32_t result);
  void OnMarkSynced(int32_t result);
  void FinishErase(EraseOp* op, int32_t result);

  // ---- region_reclaim.cc
  bool CanReclaim() const;
  void StartReclaimIfDue();
  uint32_t Victim();
  void ReadEntries();
  void OnEntriesRead(int32_t result);
  void StepMoves();
  void SyncMoves();
  void TellReclaimed(const BlockKey& key, Location location);
  void StartMove(const TrailerEntry& entry, Location from);
  void OnMoveRead(Move* move, int32_t result);
  void WriteMove(Move* move);
  void OnMoveWritten(Move* move, int32_t result);
  void FinishMove(Move* move);
  void EraseRegionIfUnused();
  void StepErase(int32_t result);
  void FinishReclaim(int32_t result);

  Options options_;
  RegionGeometry geometry_;
  Device* device_;
  std::unique_ptr<EvictionPolicy> policy_;  // Null for "fifo": the lowest sequence leaves first.
  std::vector<Region> regions_;
  std::deque<uint32_t> free_;
  std::deque<uint32_t> dirty_;
  uint64_t next_sequence_ = 1;  // 0: a region whose age was lost with its state page.

  std::array<Trailer, kTrailers> trailers_;
  Trailer* open_ = nullptr;
  FifoList<AppendOp> waiting_appends_;
  uint32_t appends_waiting_ = 0;
  TicketWindow tickets_;
  uint32_t in_flight_ = 0;  // Operations of users and of this log that the device holds.

  Io<Impl> sync_io_;
  bool syncing_ = false;
  SyncBatch next_sync_;
  SyncBatch current_sync_;
  FifoList<SyncOp> sync_barriers_;  // Wait for older writes.

  PageBuffer zero_page_;
  PageBuffer mark_page_;
  Io<Impl> mark_io_;
  struct MarkSync : SyncOp {
    Impl* log = nullptr;
  } mark_sync_;
  bool marking_ = false;
  FifoList<EraseOp> waiting_mark_;  // Tails are to be zeroed; the region's state page must say so.
  FifoList<EraseOp> current_mark_;

  Reclaim reclaim_;
  std::array<Move, kMovesMax> moves_;
  std::unique_ptr<RegionScan> reclaim_scan_;
  uint32_t erase_failures_ = 0;  // In a row.
  bool reclaim_on_demand_ =
      false;  // The last erase failed: try again only for an append that waits.

  std::unique_ptr<Recovery> recovery_;
  Stats counts_;
};

}  // namespace reprise::storage
