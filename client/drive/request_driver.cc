#include "client/drive/request_driver.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <string>

#include "protocol/record/record.h"

namespace reprise {
namespace {

// Blocks leased at a time: 28 MiB of V4.1-Flash.
constexpr uint32_t kAcquireBlocks = 256;
constexpr uint32_t kReplayTokens = 128;
// A daemon that is busy is asked again after 1, 2, 4, ... 128 ms.
constexpr uint32_t kAttemptsMax = 8;
constexpr uint32_t kSnapshotsRemembered = wire::kWindowCandidatesMax;

std::string CodeName(const absl::Status& status) {
  std::string name = absl::StatusCodeToString(status.code());
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

}  // namespace

RequestDriver::RequestDriver(const RequestDriverOptions& options, const WaitingClock* clock)
    : options_(options),
      clock_(clock),
      chains_(options.name_space),
      snapshot_(options.window_bytes) {}

absl::Status RequestDriver::Drive(DriveStore* store, const Prompt& prompt) {
  store_ = store;
  ++figures_.requests;
  figures_.input_tokens += prompt.input_tokens();
  chain_ = chains_.Build(prompt);
  keys_.resize(chain_.size());
  std::transform(chain_.begin(), chain_.end(), keys_.begin(), KeyOf);

  RP_ASSIGN(const Verdict verdict, Lookup(prompt));
  RP_ASSIGN(const uint32_t loaded, Load(prompt, verdict.hit_blocks));
  figures_.hit_tokens += uint64_t{loaded} * kBlockTokens;
  for (uint32_t i = 0; i < loaded; ++i) {
    const auto tier = static_cast<size_t>(verdict.tiers[i]);
    figures_.hit_tokens_by_tier[tier < kTierCount ? tier : 0] += kBlockTokens;
  }
  bool exact = false;
  if (loaded > 0 && loaded == verdict.hit_blocks) {
    RP_ASSIGN(exact, LoadWindow(verdict));
  }
  if (loaded == 0) {
    ++figures_.misses;
  } else if (exact) {
    ++figures_.exact_hits;
  } else {
    ++figures_.replayed_hits;
    figures_.replayed_tokens += kReplayTokens;
  }
  const bool replayed = loaded > 0 && !exact;
  RP_TRY(PutMissing(prompt, loaded, replayed ? uint32_t{kReplayDerived} : 0u));
  return PutWindow(prompt);
}

absl::StatusOr<Verdict> RequestDriver::Lookup(const Prompt& prompt) {
  candidates_.clear();
  if (const auto known = snapshot_positions_.find(prompt.session());
      known != snapshot_positions_.end()) {
    for (const uint32_t position : known->second) {
      if (position > prompt.input_tokens()) continue;
      candidates_.push_back(WindowKeyAt(prompt, position));
    }
  }
  if (keys_.empty()) return Verdict();
  const Instant start = clock_->Now();
  absl::StatusOr<Verdict> verdict = store_->Lookup(keys_, candidates_);
  if (!verdict.ok()) {
    RP_TRY(Note("lookup", verdict.status()));
    return Verdict();
  }
  Time(DriveCall::kLookup, start);
  if (verdict->hit_blocks > keys_.size() || verdict->tiers.size() < verdict->hit_blocks) {
    Count("lookup", "malformed");
    return Verdict();
  }
  return verdict;
}

// The end of the hit first: the prefix's head is used last and outlives its tail, as within one
// lease.
absl::StatusOr<uint32_t> RequestDriver::Load(const Prompt& prompt, uint32_t hit_blocks) {
  uint32_t held = hit_blocks;
  for (uint32_t end = hit_blocks; end > 0;) {
    const uint32_t begin = (end - 1) / kAcquireBlocks * kAcquireBlocks;
    RP_ASSIGN(const uint32_t loaded, LoadRange(prompt, begin, end));
    if (loaded < end) held = loaded;
    end = begin;
  }
  figures_.lost_blocks += hit_blocks - held;
  return held;
}

// Blocks [begin, end), as far as they come: up to which one.
absl::StatusOr<uint32_t> RequestDriver::LoadRange(const Prompt& prompt, uint32_t begin,
                                                  uint32_t end) {
  uint32_t loaded = begin;
  for (uint32_t attempt = 0; loaded < end;) {
    RP_ASSIGN(const Batch batch, LoadBatch(prompt, loaded, end - loaded));
    loaded += batch.loaded;
    if (batch.loaded > 0) attempt = 0;
    if (loaded == end) break;
    if (batch.stopped_by == Outcome::kBusy && BackOff(attempt++)) continue;
    if (batch.stopped_by != Outcome::kOk) Count("acquire", OutcomeName(batch.stopped_by));
    break;
  }
  return loaded;
}

absl::StatusOr<RequestDriver::Batch> RequestDriver::LoadBatch(const Prompt& prompt, uint32_t first,
                                                              uint32_t count) {
  const Instant start = clock_->Now();
  const absl::StatusOr<DriveStore::Loaded> loaded =
      store_->Acquire(std::span(keys_).subspan(first, count));
  if (!loaded.ok()) {
    RP_TRY(Note("acquire", loaded.status()));
    return Batch();
  }
  Time(loaded->from_ssd > 0 ? DriveCall::kAcquireSsd : DriveCall::kAcquireDram, start);
  const uint32_t came = std::min(count, static_cast<uint32_t>(loaded->records.size()));
  for (uint32_t i = 0; i < came; ++i) {
    figures_.loaded_bytes += loaded->records[i].size();
    if (options_.verify) CheckRecord(prompt, first + i, loaded->records[i]);
  }
  store_->Release();
  return Batch{came, loaded->stopped_by};
}

absl::StatusOr<bool> RequestDriver::LoadWindow(const Verdict& verdict) {
  if (options_.window_bytes == 0 || verdict.window == wire::WindowState::kNone) return false;
  const Instant start = clock_->Now();
  const absl::StatusOr<Snapshot> snapshot = store_->GetWindow(verdict.window_key);
  if (!snapshot.ok()) {
    if (snapshot.status().code() != absl::StatusCode::kNotFound) {
      RP_TRY(Note("window_get", snapshot.status()));
    }
    ++figures_.lost_windows;
    return false;
  }
  Time(DriveCall::kWindowGet, start);
  figures_.window_loaded_bytes += snapshot->bytes.size();
  if (options_.verify) {
    const BlockKey& prefix = verdict.window_key.prefix;
    NoteWrong(snapshot->bytes.size() == options_.window_bytes
                  ? CountPatternErrors(PatternSeed(prefix), snapshot->bytes)
                  : std::max<uint64_t>(snapshot->bytes.size(), options_.window_bytes));
  }
  return true;
}

absl::Status RequestDriver::PutMissing(const Prompt& prompt, uint32_t first, uint32_t flags) {
  const uint32_t end = static_cast<uint32_t>(chain_.size());
  const uint32_t slots = std::min(store_->put_slots(), wire::kPutRecordsMax);
  while (first < end) {
    const uint32_t count = std::min(slots, end - first);
    for (uint32_t i = 0; i < count; ++i) {
      BuildRecord(IdentityOf(prompt, first + i), flags, clock_->WallMillis(), store_->put_slot(i));
    }
    RP_TRY(PutBatch(count));
    first += count;
  }
  return absl::OkStatus();
}

absl::Status RequestDriver::PutBatch(uint32_t count) {
  slots_.resize(count);
  std::iota(slots_.begin(), slots_.end(), 0u);
  for (uint32_t attempt = 0;; ++attempt) {
    outcomes_.assign(slots_.size(), Outcome::kOk);
    const Instant start = clock_->Now();
    const absl::Status status = store_->Put(slots_, options_.durable, outcomes_);
    if (!status.ok()) return Note("put", status);
    Time(DriveCall::kPut, start);
    SettlePut();
    if (slots_.empty()) return absl::OkStatus();
    if (BackOff(attempt)) continue;
    for (size_t i = 0; i < slots_.size(); ++i) Count("put", OutcomeName(Outcome::kBusy));
    return absl::OkStatus();
  }
}

void RequestDriver::SettlePut() {
  size_t busy_count = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    switch (outcomes_[i]) {
      case Outcome::kOk:
        ++figures_.blocks_put;
        figures_.put_bytes += RecordBytesFor(options_.payload_bytes);
        break;
      case Outcome::kExists:
        ++figures_.blocks_existing;
        break;
      case Outcome::kBusy:
        slots_[busy_count++] = slots_[i];
        break;
      default:
        Count("put", OutcomeName(outcomes_[i]));
    }
  }
  slots_.resize(busy_count);
}

absl::Status RequestDriver::PutWindow(const Prompt& prompt) {
  const uint32_t position = prompt.snapshot_position();
  if (options_.window_bytes == 0 || position == 0) return absl::OkStatus();
  const wire::WindowKey key = WindowKeyAt(prompt, position);
  FillPattern(PatternSeed(key.prefix), snapshot_);
  const uint64_t session_id =
      prompt.session() < 0 ? 0 : static_cast<uint64_t>(prompt.session()) + 1;
  const Instant start = clock_->Now();
  const absl::StatusOr<Outcome> outcome = store_->PutWindow(key, session_id, snapshot_);
  if (!outcome.ok()) return Note("window_put", outcome.status());
  Time(DriveCall::kWindowPut, start);
  if (*outcome != Outcome::kOk && *outcome != Outcome::kExists) {
    Count("window_put", OutcomeName(*outcome));
    return absl::OkStatus();
  }
  if (*outcome == Outcome::kOk) figures_.window_put_bytes += snapshot_.size();
  if (prompt.session() != kNoSession && position % kBlockTokens != 0) {
    std::vector<uint32_t>& known = snapshot_positions_[prompt.session()];
    std::erase(known, position);
    known.insert(known.begin(), position);
    if (known.size() > kSnapshotsRemembered) known.pop_back();
  }
  return absl::OkStatus();
}

void RequestDriver::CheckRecord(const Prompt& prompt, uint32_t block_index, ConstBytes record) {
  NoteWrong(CountRecordErrors(IdentityOf(prompt, block_index), record));
}

RecordIdentity RequestDriver::IdentityOf(const Prompt& prompt, uint32_t block_index) {
  prompt.Tokens(uint64_t{block_index} * kBlockTokens, tokens_);
  return {&options_.name_space, &chain_[block_index],   &chains_.Parent(block_index),
          block_index,          options_.payload_bytes, tokens_.data()};
}

wire::WindowKey RequestDriver::WindowKeyAt(const Prompt& prompt, uint32_t position) const {
  return {KeyOf(chains_.PrefixHash(prompt, position)), position};
}

void RequestDriver::NoteWrong(uint64_t wrong_bytes) {
  if (wrong_bytes == 0) return;
  figures_.wrong_bytes += wrong_bytes;
  ++figures_.wrong_records;
}

void RequestDriver::Count(std::string_view call, std::string_view outcome) {
  ++figures_.errors[std::string(call) + "/" + std::string(outcome)];
}

absl::Status RequestDriver::Note(std::string_view call, const absl::Status& status) {
  Count(call, CodeName(status));
  return status.code() == absl::StatusCode::kUnavailable ? status : absl::OkStatus();
}

void RequestDriver::Time(DriveCall call, Instant start) {
  figures_.latencies[static_cast<size_t>(call)].Add(clock_->Now() - start);
}

bool RequestDriver::BackOff(uint32_t attempt) {
  if (attempt >= kAttemptsMax) return false;
  ++figures_.retries;
  clock_->Sleep(kMillisecond << attempt);
  return true;
}

}  // namespace reprise
