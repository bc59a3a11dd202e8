#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "protocol/reactor/ring.h"
#include "protocol/reactor/wake_event.h"
#include "protocol/transport/listener.h"
#include "protocol/transport/rdma_transport.h"
#include "server/shard.h"
#include "storage/arena_memory.h"
#include "storage/file_device.h"

namespace reprise::server {

// A shard with its thread, its ring and its file. The ring is made on the thread that runs it.
//
//   Start -> (thread) ring, registration, shard, recovery -> WaitUntilSetUp
//   -> Go: the loop -> Drain: no more clients, then the end of the thread -> Join
class ShardThread {
 public:
  struct Options {
    Shard::Options shard;
    storage::Arena* arena = nullptr;
    std::unique_ptr<storage::FileDevice> device;  // Null: no SSD tier.
    storage::MetaStore* meta = nullptr;
    std::vector<const RdmaPort*> rdma;  // Empty: none.
    uint32_t queue_pairs_max = 0;
    Nanos spin_ns = 100 * kMicrosecond;  // Idle time before the thread sleeps.
    Nanos drain_ns = 5 * kSecond;        // Time that requests in progress get when draining.
  };

  ShardThread(Options options, ServerFacts* facts, const Clock* clock);
  ~ShardThread();  // REQUIRES: joined, or never started.
  ShardThread(const ShardThread&) = delete;
  ShardThread& operator=(const ShardThread&) = delete;

  void Start();
  // Blocks. An error means that the thread has ended.
  absl::Status WaitUntilSetUp();
  Shard* shard() { return shard_.get(); }
  // Accepts from these on this thread's ring, and deals the connections to all shards in turn.
  // Before Go, on one of the threads only.
  void Accept(std::vector<const Listener*> listeners) { listeners_ = std::move(listeners); }
  void Go(std::vector<Shard*> shards);
  void Drain();
  void Join();
  // Remarks of the set-up for the log: what was not as good as it could be.
  const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  enum class Phase : int { kSettingUp, kSetUp, kFailed, kRunning, kStopping };

  void Run();
  absl::Status SetUp();
  void Loop();
  void StartAccepting();
  bool TurnOnce();
  bool Stopped(Instant now);
  void MoveTo(Phase phase);
  static void OnAccepted(void* context, int fd);

  Options options_;
  ServerFacts* facts_;
  const Clock* clock_;
  storage::ArenaMemory memory_;
  std::thread thread_;
  std::atomic<Phase> phase_{Phase::kSettingUp};
  absl::Status status_;
  std::vector<std::string> remarks_;

  // Used by the thread alone once it runs.
  Ring ring_;
  WakeEvent wake_;
  std::unique_ptr<RdmaTransport> rdma_;
  std::unique_ptr<Shard> shard_;  // Its streams go before their transport.
  std::vector<Shard*> shards_;
  std::vector<const Listener*> listeners_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  uint32_t next_shard_ = 0;
  Instant active_at_ = 0;
  Instant drain_until_ = 0;
};

}  // namespace reprise::server
