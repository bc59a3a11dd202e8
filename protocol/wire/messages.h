#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "protocol/base/bytes.h"
#include "protocol/base/types.h"
#include "protocol/record/record_layout.h"
#include "protocol/wire/frame.h"

// Bodies of the data-path messages: a fixed part, then arrays whose lengths the fixed part states.
// Control messages are protobuf (control.proto). PROTOCOL.md is the prose twin.
namespace reprise::wire {

// Blocks in one Lookup, Acquire or Get: 64 Ki blocks are 8 Mi tokens, and their keys fit a body.
inline constexpr uint32_t kKeysMax = 65'000;
// Records in one Put, and in one reply frame of a Get (as many as fit kDataBytesMax).
inline constexpr uint32_t kPutRecordsMax = 256;
// Exact window positions that a Lookup may ask for beside the block boundary where the hit ends.
inline constexpr uint32_t kWindowCandidatesMax = 16;
inline constexpr uint32_t kNoSlot = UINT32_MAX;

// Identifies one snapshot: the exact prefix, by hash, and the position where it ends.
struct WindowKey {
  BlockKey prefix;        // First 16 bytes of the exact prefix hash.
  uint64_t position = 0;  // Tokens in the prefix.

  friend bool operator==(const WindowKey&, const WindowKey&) = default;
};
static_assert(sizeof(WindowKey) == 24);

// Why a hit stops. One byte; never renumbered. `explain` says more.
enum class StopReason : uint8_t {
  kNone = 0,       // Every block asked for hit.
  kNotStored = 1,  // Not in the index: never stored, evicted or expired; explain tells which.
  kPending = 2,    // Being written right now.
};

struct LookupRequest {  // Then BlockKey keys[key_count], WindowKey windows[window_count].
  uint32_t namespace_id = 0;
  uint32_t key_count = 0;
  uint32_t window_count = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(LookupRequest) == 16);

enum class WindowState : uint8_t {
  kNone = 0,      // Rebuild by replay.
  kBoundary = 1,  // Found at the block boundary where the hit ends.
  kExact = 2,     // Found at windows[window_index], beyond the last whole block.
};

// The verdict: the store decides once, every rank reads the same answer. Then Tier
// tiers[hit_blocks].
struct LookupReply {
  uint64_t hit_tokens = 0;  // hit_blocks * 128, or the exact position when window_state is kExact.
  uint32_t hit_blocks = 0;
  uint32_t window_bytes = 0;
  uint32_t window_index = 0;
  StopReason stop_reason = StopReason::kNone;
  WindowState window_state = WindowState::kNone;
  uint16_t reserved = 0;
};
static_assert(sizeof(LookupReply) == 24);

struct KeysRequest {  // Acquire and Get. Then BlockKey keys[key_count].
  uint32_t namespace_id = 0;
  uint32_t key_count = 0;
};
static_assert(sizeof(KeysRequest) == 8);

// Memory of the client that the daemon may write to: registered, and the client's for as long as
// the request lasts.
struct Landing {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t key = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Landing) == 24);

// Fetch, on RDMA connections. Then BlockKey keys[key_count]. Record i lands at
// landing.address + i * record_bytes, whole. Answered as Get is, with empty data parts; with the
// last record of a reply the client's device is told a tag, the low half of the request id.
struct FetchRequest {
  uint32_t namespace_id = 0;
  uint32_t key_count = 0;
  Landing landing;
};
static_assert(sizeof(FetchRequest) == 32);

// A place in the arena: bytes [slot * slot_bytes, + record_bytes). Valid while leased; the
// generation in the arena's table at [slot] is compared after every copy.
struct SlotRef {
  uint32_t slot = kNoSlot;
  uint32_t generation = 0;
};
static_assert(sizeof(SlotRef) == 8);

// The header's outcome says why the run ended (kOk: all granted). Then SlotRef slots[slot_count].
struct AcquireReply {
  uint64_t lease_id = 0;    // 0 when nothing was granted.
  uint32_t slot_count = 0;  // Leading run of the keys that is leased.
  uint32_t from_ssd = 0;    // How many of them were read from SSD for this request.
};
static_assert(sizeof(AcquireReply) == 16);

// Get: one or more replies, kMore set on all but the last; each carries records
// [first_index, first_index + record_count) in its data part. The last reply's outcome says why the
// run ended. Records may be fewer than asked for, never out of order.
struct GetReply {
  uint32_t first_index = 0;
  uint32_t record_count = 0;
  uint32_t from_ssd = 0;  // Of these records.
  uint32_t reserved = 0;
};
static_assert(sizeof(GetReply) == 16);

struct ReleaseRequest {  // Then uint64_t lease_ids[lease_count].
  uint32_t lease_count = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(ReleaseRequest) == 8);

enum class Durability : uint8_t {
  kRelaxed = 0,  // Acknowledged when the block is found in DRAM; SSD follows by admission policy.
  kDurable = 1,  // Acknowledged when the block is on SSD and synced.
};

// Records come from staging slots (local clients: then uint32_t staging_slots[record_count]) or,
// with `inline_data` 1, from the data part (record_count whole records, no array).
struct PutRequest {
  uint32_t namespace_id = 0;
  uint32_t record_count = 0;
  Durability durability = Durability::kRelaxed;
  uint8_t inline_data = 0;
  uint16_t reserved = 0;
  uint32_t reserved2 = 0;
};
static_assert(sizeof(PutRequest) == 16);

struct PutReply {  // Then Outcome outcomes[record_count].
  uint32_t record_count = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(PutReply) == 8);

// A snapshot of any size up to kDataBytesMax. Staged: it fills the listed staging slots in order,
// slot_bytes in each but the last; inline: it is the data part.
struct WindowPutRequest {  // Then uint32_t staging_slots[...] unless inline.
  uint32_t namespace_id = 0;
  uint32_t snapshot_bytes = 0;
  uint32_t snapshot_crc = 0;  // CRC32C of the snapshot.
  uint8_t inline_data = 0;
  uint8_t reserved[3] = {};
  uint64_t session_id = 0;  // Only the newest few positions of a session are kept; 0: no session.
  WindowKey window;
};
static_assert(sizeof(WindowPutRequest) == 48);

struct WindowRequest {  // WindowAcquire and WindowGet.
  uint32_t namespace_id = 0;
  uint32_t reserved = 0;
  WindowKey window;
};
static_assert(sizeof(WindowRequest) == 32);

struct WindowFetchRequest {  // On RDMA connections; the tag comes with its end.
  WindowRequest request;
  Landing landing;
};
static_assert(sizeof(WindowFetchRequest) == 56);

// WindowAcquire: then SlotRef slots[slot_count]. WindowGet: lease_id and slot_count 0, data
// follows.
struct WindowReply {
  uint64_t lease_id = 0;
  uint32_t snapshot_bytes = 0;
  uint32_t snapshot_crc = 0;
  uint32_t slot_count = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(WindowReply) == 24);

// Blocks in the daemon's HBM pool (SlotPoolReply in control.proto), for engines on its GPU that
// come by its Unix socket. Then BlockKey keys[key_count].
struct SlotAcquireRequest {
  uint32_t namespace_id = 0;
  uint32_t key_count = 0;
  uint8_t held_only = 0;  // 1: those that HBM holds; 0: the others are copied there first.
  uint8_t reserved[7] = {};
};
static_assert(sizeof(SlotAcquireRequest) == 16);

// A block's payload: bytes [slot * stride_bytes, + slot_bytes) of the pool, the same on every
// device. Whole and quiet while leased. The generation changes before the bytes do.
struct HbmSlot {
  uint32_t slot = kNoSlot;
  uint32_t generation = 0;
  uint32_t flags = 0;  // kReplayDerived, as in the record's header.
  uint32_t reserved = 0;
};
static_assert(sizeof(HbmSlot) == 16);

// The header's outcome says why the run ended, as in AcquireReply. Then HbmSlot slots[slot_count].
struct SlotAcquireReply {
  uint64_t lease_id = 0;    // 0 when nothing was granted.
  uint32_t slot_count = 0;  // Leading run of the keys that is leased.
  uint32_t from_ssd = 0;    // How many of them were read from SSD,
  uint32_t from_dram = 0;   // and how many copied from DRAM, for this request.
  uint32_t reserved = 0;
};
static_assert(sizeof(SlotAcquireReply) == 24);
static_assert(sizeof(SlotAcquireReply) + uint64_t{kKeysMax} * sizeof(HbmSlot) <= kBodyBytesMax);

// Reads a body front to back. Every Take fails, once and for all, when the body is too short, so a
// decoder checks Done() once at its end. Never allocates for a count that it has not checked.
class BodyReader {
 public:
  explicit BodyReader(ConstBytes body) : rest_(body) {}

  template <typename T>
  T Take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const ConstBytes bytes = TakeBytes(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  // A view into the body; copy with LoadLe when T needs alignment that the body does not have.
  ConstBytes TakeBytes(uint64_t count) {
    if (failed_ || rest_.size() < count) {
      failed_ = true;
      return {};
    }
    const ConstBytes bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }
  bool failed() const { return failed_; }
  bool Done() const { return !failed_ && rest_.empty(); }

 private:
  ConstBytes rest_;
  bool failed_ = false;
};

// Element i of an array of T inside a body.
template <typename T>
T At(ConstBytes array, size_t i) {
  return LoadLe<T>(array.data() + i * sizeof(T));
}

template <typename T>
void Append(std::string* body, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  body->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
void AppendArray(std::string* body, std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (values.empty()) return;
  body->append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

// Decoders of requests: false when the body is not exactly one well-formed message. The views point
// into `body`.
struct LookupView {
  LookupRequest fixed;
  ConstBytes keys;     // BlockKey[key_count]
  ConstBytes windows;  // WindowKey[window_count]
};
[[nodiscard]] bool Decode(ConstBytes body, LookupView* out);

struct KeysView {
  KeysRequest fixed;
  ConstBytes keys;  // BlockKey[key_count]
};
[[nodiscard]] bool Decode(ConstBytes body, KeysView* out);

struct FetchView {
  FetchRequest fixed;
  ConstBytes keys;  // BlockKey[key_count]
};
[[nodiscard]] bool Decode(ConstBytes body, FetchView* out);
[[nodiscard]] bool Decode(ConstBytes body, WindowFetchRequest* out);

struct ReleaseView {
  ReleaseRequest fixed;
  ConstBytes lease_ids;  // uint64_t[lease_count]
};
[[nodiscard]] bool Decode(ConstBytes body, ReleaseView* out);

struct PutView {
  PutRequest fixed;
  ConstBytes staging_slots;  // uint32_t[record_count], empty when inline.
};
[[nodiscard]] bool Decode(ConstBytes body, PutView* out);

struct WindowPutView {
  WindowPutRequest fixed;
  ConstBytes staging_slots;  // uint32_t[...], empty when inline.
};
[[nodiscard]] bool Decode(ConstBytes body, WindowPutView* out);
[[nodiscard]] bool Decode(ConstBytes body, WindowRequest* out);

struct SlotAcquireView {
  SlotAcquireRequest fixed;
  ConstBytes keys;  // BlockKey[key_count]
};
[[nodiscard]] bool Decode(ConstBytes body, SlotAcquireView* out);

// Decoders of replies, for clients: the same contract.
struct LookupReplyView {
  LookupReply fixed;
  ConstBytes tiers;  // Tier[hit_blocks]
};
[[nodiscard]] bool Decode(ConstBytes body, LookupReplyView* out);
struct AcquireReplyView {
  AcquireReply fixed;
  ConstBytes slots;  // SlotRef[slot_count]
};
[[nodiscard]] bool Decode(ConstBytes body, AcquireReplyView* out);
[[nodiscard]] bool Decode(ConstBytes body, GetReply* out);
struct PutReplyView {
  PutReply fixed;
  ConstBytes outcomes;  // Outcome[record_count]
};
[[nodiscard]] bool Decode(ConstBytes body, PutReplyView* out);
struct WindowReplyView {
  WindowReply fixed;
  ConstBytes slots;  // SlotRef[slot_count]
};
[[nodiscard]] bool Decode(ConstBytes body, WindowReplyView* out);
struct SlotAcquireReplyView {
  SlotAcquireReply fixed;
  ConstBytes slots;  // HbmSlot[slot_count]
};
[[nodiscard]] bool Decode(ConstBytes body, SlotAcquireReplyView* out);

}  // namespace reprise::wire
