#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "protocol/wire/messages.h"
#include "server/connection.h"
#include "server/lookup_run.h"
#include "server/serving/task_queue.h"
#include "server/shard.h"

namespace reprise::server {

// The store, for threads that are no shards. Each call is work for the shards, from any thread; its
// `done` is posted to the queue, exactly once. The shards must run until everything has come back.
class StorePort {
 public:
  // `entry` is any shard: it deals the work to the others.
  StorePort(Shard* entry, TaskQueue* queue) : entry_(entry), queue_(queue) {}

  using Namespace = Connection::OpenNamespace;
  using Residency = storage::BlockStore::Residency;

  // Where each block is. Pins nothing.
  void Lookup(const Namespace& name_space, std::vector<BlockKey> keys, LookupFor purpose,
              std::function<void(std::vector<Residency>)> done);
  // Bytes of each snapshot, 0 where there is none. Pins nothing.
  void ProbeWindows(const Namespace& name_space, std::vector<wire::WindowKey> windows,
                    std::function<void(std::vector<uint32_t>)> done);

  // Pins the leading run of `keys` in DRAM, reading from SSD what is not there.
  struct Acquired {
    std::vector<uint32_t> slots;  // Until Release.
    Outcome stopped_by = Outcome::kOk;
    uint32_t from_ssd = 0;
  };
  void Acquire(const Namespace& name_space, std::vector<BlockKey> keys, Nanos limit_ns,
               std::function<void(Acquired)> done);
  void Release(std::vector<uint32_t> slots);
  // The record in a slot that is pinned.
  Bytes slot(uint32_t slot) const { return entry_->SlotBytes(slot).first(record_bytes()); }

  // A copy of the snapshot; empty when it is not there (any more).
  void TakeWindow(const Namespace& name_space, const wire::WindowKey& window,
                  std::function<void(std::vector<std::byte>)> done);
  void PutWindow(const Namespace& name_space, const wire::WindowKey& window, uint64_t session_id,
                 std::vector<std::byte> snapshot, std::function<void(Outcome)> done);

  // Whole sealed records, which must stay until `done` has their outcomes.
  void Put(const Namespace& name_space, std::vector<ConstBytes> records,
           wire::Durability durability, Nanos limit_ns,
           std::function<void(std::vector<Outcome>)> done);
  void Remove(const Namespace& name_space, std::vector<BlockKey> keys,
              std::function<void(uint64_t removed)> done);

  // From now on calls come back at once, from the caller's thread, with nothing done.
  void Close() { closed_ = true; }
  uint32_t outstanding() const { return outstanding_; }  // Calls that have not come back.
  uint32_t record_bytes() const { return entry_->facts().record_bytes; }
  Shard& entry() { return *entry_; }

 private:
  template <typename Work>
  void Send(Work* job);

  Shard* entry_;
  TaskQueue* queue_;
  std::atomic<uint32_t> outstanding_ = 0;
  std::atomic<bool> closed_ = false;
};

}  // namespace reprise::server
