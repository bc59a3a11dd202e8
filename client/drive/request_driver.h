#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/drive/chain_builder.h"
#include "client/drive/drive_store.h"
#include "client/drive/figures.h"
#include "client/drive/pattern.h"
#include "client/drive/prompt.h"

namespace reprise {

struct RequestDriverOptions {
  Hash256 name_space;
  uint32_t payload_bytes = 0;
  uint32_t window_bytes = 0;  // Of a snapshot; 0: no windows.
  bool durable = false;
  bool verify = true;
};

// Does for each request what an engine does: lookup, load of the hit, window or replay, put of the
// blocks that were missing, put of the window at the prompt's end. One connection, one thread.
class RequestDriver {
 public:
  RequestDriver(const RequestDriverOptions& options, const WaitingClock* clock);

  // Errors of calls are counted and degrade to misses. A status that is not OK means that the
  // connection is lost.
  absl::Status Drive(DriveStore* store, const Prompt& prompt);

  DriveFigures& figures() { return figures_; }

 private:
  absl::StatusOr<Verdict> Lookup(const Prompt& prompt);
  // Loads the first `hit_blocks` blocks; the number that came.
  absl::StatusOr<uint32_t> Load(const Prompt& prompt, uint32_t hit_blocks);
  absl::StatusOr<uint32_t> LoadRange(const Prompt& prompt, uint32_t begin, uint32_t end);
  struct Batch {
    uint32_t loaded = 0;
    Outcome stopped_by = Outcome::kOk;  // Why fewer came; kOk when that was counted already.
  };
  absl::StatusOr<Batch> LoadBatch(const Prompt& prompt, uint32_t first, uint32_t count);
  absl::StatusOr<bool> LoadWindow(const Verdict& verdict);
  absl::Status PutMissing(const Prompt& prompt, uint32_t first, uint32_t flags);
  // The records in slots [0, count). Those that the daemon is too busy for are tried again.
  absl::Status PutBatch(uint32_t count);
  // Counts what became of each record in slots_; keeps in slots_ those to try again.
  void SettlePut();
  absl::Status PutWindow(const Prompt& prompt);

  void CheckRecord(const Prompt& prompt, uint32_t block_index, ConstBytes record);
  RecordIdentity IdentityOf(const Prompt& prompt, uint32_t block_index);
  wire::WindowKey WindowKeyAt(const Prompt& prompt, uint32_t position) const;
  void NoteWrong(uint64_t wrong_bytes);
  void Count(std::string_view call, std::string_view outcome);
  // Counts an error; returns it only when the connection is lost.
  absl::Status Note(std::string_view call, const absl::Status& status);
  void Time(DriveCall call, Instant start);
  // False when it is enough of trying again.
  bool BackOff(uint32_t attempt);

  const RequestDriverOptions options_;
  const WaitingClock* const clock_;
  DriveStore* store_ = nullptr;  // During Drive.
  ChainBuilder chains_;
  DriveFigures figures_;

  // Of the request in work.
  std::span<const Hash256> chain_;
  std::vector<BlockKey> keys_;
  std::vector<wire::WindowKey> candidates_;
  std::vector<uint32_t> slots_;
  std::vector<Outcome> outcomes_;  // Of slots_.
  std::vector<std::byte> snapshot_;
  std::array<TokenId, kBlockTokens> tokens_;

  // Where each session's latest snapshots inside a block are, newest first.
  std::unordered_map<int64_t, std::vector<uint32_t>> snapshot_positions_;
};

}  // namespace reprise
