#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "protocol/base/types.h"
#include "protocol/wire/control.pb.h"
#include "protocol/wire/messages.h"

namespace reprise::test {

// What the fake does wrong on purpose. Set by the test's thread, read by the server's.
struct Faults {
  std::atomic<uint8_t> opcode{0};  // The faults below strike replies to this opcode; 0: none.
  std::atomic<bool> bad_magic{false};
  std::atomic<bool> bad_header_crc{false};
  std::atomic<bool> bad_body{false};
  std::atomic<bool> other_version{false};
  std::atomic<bool> other_request_id{false};
  std::atomic<bool> other_store_id{false};
  std::atomic<bool> cut_body{false};  // The body lacks its last byte, under a right checksum.
  std::atomic<bool> no_reply{false};
  std::atomic<bool> close_midway{false};
  std::atomic<bool> trailing_bytes{false};
  std::atomic<bool> refuse{false};  // A hello reply with an error, then the end.
  std::atomic<uint8_t> outcome{0};  // Instead of the true answer: this outcome, no body.
  // Strike in any reply.
  std::atomic<int> damage_record{-1};  // Get: flips a payload byte of record i.
  std::atomic<int> swap_record{-1};    // Get, Acquire: record i is another, valid one.
  std::atomic<bool> stale_generation{false};
  std::atomic<bool> damage_snapshot{false};
  std::atomic<bool> slot_outside{false};  // SlotAcquire: one that the pool has not.
};

// A daemon for tests: one thread, one connection after another, everything in memory, no eviction.
class FakeServer {
 public:
  struct Options {
    uint32_t record_bytes = 28'672;
    uint32_t payload_bytes = 27'136;
    std::string model = "nano";
    uint32_t arena_slots = 64;
    uint32_t get_records_per_frame = 3;
    bool tcp = false;
    bool local_memory = true;
    bool arena_too_small = false;  // The file is shorter than the hello says.
    uint32_t hbm_slots = 64;       // 0: the fake lends none.
  };

  FakeServer();
  explicit FakeServer(const Options& options);
  ~FakeServer();
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  const std::string& address() const { return address_; }
  Faults& faults() { return faults_; }

  // Counters, for what the client should have sent.
  std::atomic<uint32_t> requests{0};
  std::atomic<uint32_t> release_frames{0};
  std::atomic<uint32_t> released_leases{0};
  std::atomic<uint32_t> put_frames{0};
  std::atomic<uint32_t> inline_records{0};
  std::atomic<uint32_t> staged_records{0};
  std::atomic<uint32_t> last_deadline_ms{0};
  std::atomic<uint32_t> durable_puts{0};

  size_t stored() const;
  // Changes the generation of a stored block's slot, as an eviction would.
  void BumpGeneration(const BlockKey& key);

 private:
  struct Snapshot {
    uint32_t first_slot;
    uint32_t bytes;
    uint32_t crc;
  };
  struct Request {
    wire::FrameHeader header;
    std::string body;
    std::vector<std::byte> data;
  };

  static constexpr char kStoreUuid[] = "fake-store-uuid!";
  static uint64_t StoreId() { return LoadLe<uint64_t>(kStoreUuid); }

  void Serve();
  void ServeConnection();
  bool ReadRequest(Request* request);
  bool ReceiveAll(void* out, size_t bytes);
  bool SendAll(const void* from, size_t bytes);
  bool Reply(const Request& request, Outcome outcome, std::string body, ConstBytes data = {},
             bool more = false, std::vector<int> fds = {});
  bool Refuse();
  bool Handle(const Request& request);
  bool OnHello(const Request& request);
  bool OnOpenNamespace(const Request& request);
  bool OnLookup(const Request& request);
  bool OnAcquire(const Request& request);
  bool OnSlotAcquire(const Request& request);
  bool OnGet(const Request& request);
  bool OnPut(const Request& request);
  bool OnWindowPut(const Request& request);
  bool OnWindow(const Request& request, bool get);
  bool OnControl(const Request& request);
  void FillControl(const wire::ControlRequest& request, wire::ControlReply* reply);
  Outcome Store(ConstBytes record);

  Bytes slot(uint32_t index) {
    return {arena_ + uint64_t{index} * options_.record_bytes, options_.record_bytes};
  }
  std::atomic<uint32_t>& generation(uint32_t index) {
    return reinterpret_cast<std::atomic<uint32_t>*>(arena_ + uint64_t{options_.arena_slots} *
                                                                 options_.record_bytes)[index];
  }

  Options options_;
  Faults faults_;
  std::string directory_;
  std::string address_;
  int listener_ = -1;
  std::atomic<int> connection_{-1};
  std::atomic<bool> stop_{false};
  int arena_fd_ = -1;
  std::byte* arena_ = nullptr;
  uint64_t arena_bytes_ = 0;
  int staging_fd_ = -1;
  std::byte* staging_ = nullptr;
  uint32_t staging_slots_ = 0;
  mutable std::mutex mutex_;  // Guards blocks_.
  std::map<BlockKey, uint32_t> blocks_;
  std::map<std::pair<BlockKey, uint64_t>, Snapshot> snapshots_;
  uint32_t next_slot_ = 0;
  uint64_t next_lease_ = 1;
  std::vector<Hash256> namespaces_;
  std::thread thread_;
};

}  // namespace reprise::test
