#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/base/clock.h"
#include "protocol/base/status.h"
#include "protocol/base/types.h"
#include "protocol/identity/manifest.h"
#include "protocol/record/record.h"
#include "protocol/wire/messages.h"

namespace reprise {

class Client;
class RdmaLink;
namespace rdma {
class Memory;
class Verbs;
}  // namespace rdma

// Blocks that the daemon keeps in place until the lease ends: by Release, by destruction, or with
// the connection. On a local connection `record(i)` is the daemon's own memory, mapped read-only;
// on TCP it is the copy that arrived. Belongs to one client and its thread; must not outlive it.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();

  uint32_t size() const { return static_cast<uint32_t>(records_.size()); }
  // record_bytes long. REQUIRES: i < size().
  ConstBytes record(uint32_t i) const { return records_[i]; }
  // Copies record i, or as much of its front as `out` holds, and then proves, by its slot's
  // generation, that the bytes were the block's all along. kClosed when they were not (the lease
  // was lost).
  Outcome CopyTo(uint32_t i, Bytes out) const;
  uint32_t from_ssd() const { return from_ssd_; }
  // Why the run of keys ended; kOk when every key was granted.
  Outcome stopped_by() const { return stopped_by_; }
  void Release();

 private:
  friend class Client;
  Client* client_ = nullptr;
  uint64_t lease_id_ = 0;
  std::vector<ConstBytes> records_;
  std::vector<wire::SlotRef> slots_;  // Local connections.
  std::vector<Bytes> buffers_;        // TCP: the copies, on loan from the client.
  uint32_t from_ssd_ = 0;
  Outcome stopped_by_ = Outcome::kOk;
};

// The daemon's HBM pool, for an engine that runs on its GPU. Slot i lies at i * stride_bytes from
// where a device's handle leads; the devices have the same bytes. It stays as it is while the
// connection lasts. Of kind kCudaIpc, gpu/cuda/opened_pool.h maps it.
struct SlotPool {
  enum class HandleKind : uint8_t {
    kCudaIpc = 1,   // A cudaIpcMemHandle_t.
    kHostTest = 2,  // A daemon of tests: "PATH@OFFSET" of a file.
  };
  struct Device {
    std::array<std::byte, 16> uuid{};  // The GPU's, by which it is known in every process.
    std::string pci_bus_id;
    std::string handle;  // At most 64 bytes, not text.
  };
  HandleKind kind = HandleKind::kCudaIpc;
  uint32_t slots = 0;
  uint32_t slot_bytes = 0;  // A block's payload, as in a record; without header and tokens.
  uint64_t stride_bytes = 0;
  uint32_t record_layout = 0;     // Version of the payload's layout: storage/FORMAT.md.
  uint32_t leased_slots_max = 0;  // All clients together.
  std::vector<Device> devices;
};

// Blocks that stay in slots of the daemon's HBM pool, neither moved nor overwritten, until the
// lease ends: by Release, by destruction, or with the connection. Their bytes are whole. Whoever
// reads them in a kernel ends the lease when the kernel is done; what a kernel read is worthless
// when the connection ended before. Belongs to one client and its thread; must not outlive it.
class SlotLease {
 public:
  SlotLease() = default;
  SlotLease(SlotLease&& other) noexcept { *this = std::move(other); }
  SlotLease& operator=(SlotLease&& other) noexcept;
  ~SlotLease() { Release(); }

  uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }
  // Which slot, of which generation: the same two again, in another lease of the connection, are
  // the same bytes. flags: kReplayDerived. REQUIRES: i < size().
  const wire::HbmSlot& slot(uint32_t i) const { return slots_[i]; }
  // How many were read from SSD and copied from DRAM for this lease; the rest was in HBM.
  uint32_t from_ssd() const { return from_ssd_; }
  uint32_t from_dram() const { return from_dram_; }
  // Why the run of keys ended; kOk when every key was granted. kBusy: no more may be leased now.
  Outcome stopped_by() const { return stopped_by_; }
  void Release();

 private:
  friend class Client;
  Client* client_ = nullptr;
  uint64_t lease_id_ = 0;
  std::vector<wire::HbmSlot> slots_;
  uint32_t from_ssd_ = 0, from_dram_ = 0;
  Outcome stopped_by_ = Outcome::kOk;
};

// Which blocks a SlotLease may have.
enum class SlotsFrom : uint8_t {
  kAnyTier,  // Those that HBM lacks are copied there first.
  kHbmOnly,  // The run ends with kNotFound before the first that is not in HBM.
};

// A snapshot of window state.
struct Snapshot {
  std::vector<std::byte> bytes;
};

// The store's answer to "how much of this token sequence do you hold?".
struct Verdict {
  uint64_t hit_tokens = 0;
  uint32_t hit_blocks = 0;
  std::vector<Tier> tiers;  // hit_blocks of them.
  wire::StopReason stop_reason = wire::StopReason::kNone;
  wire::WindowState window = wire::WindowState::kNone;
  uint32_t window_bytes = 0;
  wire::WindowKey window_key;  // Which snapshot, when window is not kNone.
};

// How records travel. Shared memory needs a Unix socket, the others a tcp: address.
enum class Transport : uint8_t {
  kAuto,  // Shared memory by a Unix socket; by TCP, RDMA where both sides can, else TCP alone.
  kShared,
  kRdma,  // Or an error.
  kTcp,
};

struct ClientOptions {
  // "unix:/path/to/socket" or "tcp:host:port".
  std::string address = "unix:./reprise-data/reprised.sock";
  std::string name = "client";      // Shown by the daemon's status.
  Nanos deadline_ns = 5 * kSecond;  // Of each call. An expired call ends with DEADLINE_EXCEEDED.
  Nanos connect_timeout_ns = 2 * kSecond;
  Transport transport = Transport::kAuto;
  std::string rdma_device = "auto";  // Or "off", "mlx5_0", "mlx5_0:1", "mlx5_0:1/3" (GID index).
  rdma::Verbs* verbs = nullptr;      // Null: libibverbs. Outlives the client.
  // Shared memory and RDMA: records that can be put without waiting.
  uint32_t staging_slots = 64;
  bool local_memory = true;  // Map the arena when the socket is a Unix socket.
  // Wait for a reply by spinning this long before sleeping. A wake-up costs about 20 us.
  Nanos spin_ns = 50 * kMicrosecond;
  // Compare payload checksums of records from local memory too (they were checked when they entered
  // it; records from TCP always are).
  bool verify_local = false;
};

// Memory of the caller that records are put into: by RDMA straight from the daemon's arena, else by
// a copy. Belongs to one client and its thread; ends before the client and before its memory.
class LandingZone {
 public:
  ~LandingZone();
  LandingZone(const LandingZone&) = delete;
  LandingZone& operator=(const LandingZone&) = delete;

  uint64_t bytes() const { return bytes_; }

 private:
  friend class Client;
  LandingZone() = default;
  Client* client_ = nullptr;
  Bytes host_;  // Empty: device memory.
  uint64_t bytes_ = 0;
  uint64_t address_ = 0;
  std::unique_ptr<rdma::Memory> device_;
};

struct Landed {
  uint32_t records = 0;  // The leading run of the keys.
  uint32_t from_ssd = 0;
  Outcome stopped_by = Outcome::kOk;
};

// A connection to a reprised daemon. Calls block, for at most the deadline; one thread at a time.
// After a connection error (an expired deadline too, when the daemon's own timeout reply did not
// come either) every call fails with UNAVAILABLE, and the leases of a local connection have ended:
// make a new client.
class Client {
 public:
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Facts from the daemon's hello.
  uint32_t record_bytes() const;
  uint32_t payload_bytes_max() const;
  std::string model() const;
  bool local() const;  // Records are read in place.
  std::string server_version() const;
  std::string transport() const;  // "shared memory", "unix", "rdma", "tcp".
  // With Transport::kAuto: why it is not RDMA, where that was tried. Empty: it was not.
  const std::string& transport_note() const;

  // A namespace on this connection. The id is small and belongs to this client; opening the same
  // manifest again gives the same id.
  absl::StatusOr<uint32_t> OpenNamespace(const Manifest& manifest);
  const Hash256& name_space(uint32_t namespace_id) const;

  // ---- Lookup ----

  // `keys`: the prefix chain. `windows`: exact positions beyond a block boundary where a snapshot
  // may be.
  absl::StatusOr<Verdict> Lookup(uint32_t namespace_id, std::span<const BlockKey> keys,
                                 std::span<const wire::WindowKey> windows = {});

  // ---- Load ----

  // The leading run of `keys` that the store holds, leased (local) or copied here (TCP). Every
  // record is checked to be the block asked for; those that crossed the wire also by their
  // checksums. A miss is a shorter lease, not an error; a record that fails a check ends the run
  // with kCorrupt.
  absl::StatusOr<Lease> Acquire(uint32_t namespace_id, std::span<const BlockKey> keys);
  // The same into the caller's memory, record i at offset + i * record_bytes(), checked there; what
  // lies behind the run may have been written to. Records in device memory cannot be checked here.
  absl::StatusOr<std::unique_ptr<LandingZone>> RegisterLanding(Bytes memory);
  // Device memory behind a dma-buf, RDMA alone: FAILED_PRECONDITION where the device or its driver
  // cannot. `fd` stays the caller's.
  absl::StatusOr<std::unique_ptr<LandingZone>> RegisterDeviceLanding(int fd, uint64_t offset,
                                                                     uint64_t bytes);
  absl::StatusOr<Landed> Fetch(uint32_t namespace_id, std::span<const BlockKey> keys,
                               LandingZone* zone, uint64_t offset);
  // Unix sockets alone. Asks the daemon once. FAILED_PRECONDITION, with what to do, where it has no
  // HBM or lends none of it; RESOURCE_EXHAUSTED while its engine starts.
  absl::StatusOr<const SlotPool*> HbmPool();
  // The leading run of `keys` that the store holds, leased in slots of that pool. The namespace's
  // blocks have the payload that the daemon's engine has. A miss is a shorter lease, not an error.
  absl::StatusOr<SlotLease> AcquireSlots(uint32_t namespace_id, std::span<const BlockKey> keys,
                                         SlotsFrom from = SlotsFrom::kAnyTier);
  // Token ids of a loaded record against those asked for: the last guard against a hash collision.
  static bool TokensMatch(ConstBytes record, std::span<const TokenId> tokens);

  // ---- Put ----

  // Whole records, sealed (SealRecord). outcomes[i]: kOk, kExists, or why record i was not stored.
  // Splits into messages as needed. On an error, records that no reply spoke of have kClosed.
  absl::Status Put(uint32_t namespace_id, std::span<const ConstBytes> records,
                   wire::Durability durability, std::span<Outcome> outcomes);
  // Shared memory and RDMA: record-sized memory that Put sends without a copy when records[i]
  // points to it. Slot i in [0, staging_slots()); the bytes are the caller's between two calls of
  // Put or PutWindow. A Put that copies records from elsewhere, and a PutWindow, may overwrite
  // slots that they don't name.
  uint32_t staging_slots() const;
  Bytes staging(uint32_t slot);

  // ---- Windows ----

  absl::StatusOr<Outcome> PutWindow(uint32_t namespace_id, const wire::WindowKey& key,
                                    uint64_t session_id, ConstBytes snapshot);
  // NOT_FOUND when it is not in the pool: rebuild by replay.
  absl::StatusOr<Snapshot> GetWindow(uint32_t namespace_id, const wire::WindowKey& key);

  // ---- Administration ----

  absl::StatusOr<std::string> StatusJson();
  struct Explanation {
    uint64_t tokens = 0;
    uint32_t asked_blocks = 0, hit_blocks = 0, block_index = 0;
    std::string reason, detail, block, window;
    std::vector<std::string> differing_fields, tiers;
  };
  absl::StatusOr<Explanation> Explain(uint32_t namespace_id, std::span<const TokenId> tokens);
  absl::StatusOr<uint64_t> Evict(uint32_t namespace_id, std::span<const BlockKey> keys);
  absl::StatusOr<uint64_t> EvictNamespace(uint32_t namespace_id);
  struct Verification {
    uint64_t checked = 0, failed = 0;
    std::vector<std::string> failed_keys;
  };
  // Reads and checks stored blocks; an empty `keys` means all. May take long: set the deadline.
  absl::StatusOr<Verification> Verify(uint32_t namespace_id, std::span<const BlockKey> keys);

  void set_deadline(Nanos deadline_ns);

  class Impl;  // client_impl.h; of no use outside client/.

 private:
  friend class Lease;
  friend class SlotLease;
  friend class LandingZone;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
