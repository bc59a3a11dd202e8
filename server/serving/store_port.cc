#include "server/serving/store_port.h"

#include <memory>
#include <utility>

#include "protocol/base/checksum.h"
#include "server/acquire_call.h"
#include "server/lookup_run.h"
#include "server/put_call.h"

namespace reprise::server {
namespace {

// Work that starts on the entry shard and comes back to the queue. Deletes itself.
class Job : public ShardCall {
 public:
  // Comes back without having been sent.
  void Refuse() {
    SayNothing();
    Tell();
    delete this;
  }
  void Send(Shard* entry, TaskQueue* queue, std::atomic<uint32_t>* outstanding) {
    queue_ = queue;
    outstanding_ = outstanding;
    ++*outstanding;
    entry->CallFromOutside(this);
  }

 protected:
  void Done() { target->Reply(this); }

 private:
  void Execute(Shard& entry) final { Run(entry); }
  void Finished() final {
    queue_->Post([job = std::shared_ptr<Job>(this)] {
      job->Tell();
      --*job->outstanding_;
    });
  }
  virtual void Run(Shard& entry) = 0;  // Ends with Done.
  virtual void SayNothing() {}         // Results as of a store that has nothing and takes nothing.
  virtual void Tell() = 0;             // On the queue's thread.

  TaskQueue* queue_ = nullptr;
  std::atomic<uint32_t>* outstanding_ = nullptr;
};

struct LookupJob final : Job {
  uint16_t name_space = 0;
  std::vector<BlockKey> keys;
  LookupFor purpose = LookupFor::kRequest;
  std::function<void(std::vector<StorePort::Residency>)> done;
  LookupRun run_;
  std::vector<StorePort::Residency> residency;

  void Run(Shard& entry) override {
    run_.Start(
        &entry, std::as_bytes(std::span(keys)), static_cast<uint32_t>(keys.size()), name_space,
        purpose, [](void* self) { static_cast<LookupJob*>(self)->OnBlocks(); }, this);
  }
  void SayNothing() override { residency.assign(keys.size(), StorePort::Residency::kAbsent); }
  void OnBlocks() {
    run_.ForEach([this](StorePort::Residency where) {
      residency.push_back(where);
      return true;
    });
    Done();
  }
  void Tell() override { done(std::move(residency)); }
};

struct ProbeJob final : Job {
  struct Call final : ShardCall {
    ProbeJob* job = nullptr;
    std::vector<uint32_t> indices;

    void Execute(Shard& owner) override {
      for (const uint32_t i : indices) {
        job->bytes[i] = owner.windows().Probe(job->name_space, job->windows[i], owner.now());
      }
      owner.Reply(this);
    }
    void Finished() override { job->OnCall(); }
  };

  uint16_t name_space = 0;
  std::vector<wire::WindowKey> windows;
  std::function<void(std::vector<uint32_t>)> done;
  std::vector<uint32_t> bytes;
  std::vector<Call> calls;
  uint32_t pending = 0;

  void Run(Shard& entry) override {
    bytes.resize(windows.size());
    calls = std::vector<Call>(entry.shard_count());
    for (uint32_t i = 0; i < windows.size(); ++i) {
      calls[ShardOf(windows[i].prefix, entry.shard_count())].indices.push_back(i);
    }
    pending = 1;
    for (uint32_t shard = 0; shard < calls.size(); ++shard) {
      if (calls[shard].indices.empty()) continue;
      calls[shard].job = this;
      ++pending;
      entry.Call(shard, &calls[shard]);
    }
    OnCall();
  }
  void SayNothing() override { bytes.assign(windows.size(), 0); }
  void OnCall() {
    if (--pending == 0) Done();
  }
  void Tell() override { done(std::move(bytes)); }
};

struct AcquireJob final : Job {
  uint16_t name_space = 0;
  std::vector<BlockKey> keys;
  Nanos limit_ns = 0;
  std::function<void(StorePort::Acquired)> done;
  AcquireRun run_;

  void Run(Shard& entry) override {
    run_.Start(
        &entry, std::as_bytes(std::span(keys)), static_cast<uint32_t>(keys.size()), name_space,
        entry.now() + limit_ns, [](void* self) { static_cast<AcquireJob*>(self)->Done(); }, this);
  }
  void SayNothing() override { run_.result().stopped_by = Outcome::kClosed; }
  void Tell() override {
    AcquireRun::Result& result = run_.result();
    done({std::move(result.slots), result.stopped_by, result.from_ssd});
  }
};

struct ReleaseJob final : Job {
  std::vector<uint32_t> slots;

  void Run(Shard& entry) override {
    entry.ReleaseSlots(slots);
    Done();
  }
  void Tell() override {}
};

// Work for the shard that owns a window. The entry hands it on.
struct WindowJob : Job {
  struct Call final : ShardCall {
    WindowJob* job = nullptr;
    void Execute(Shard& owner) override {
      job->OnOwner(owner);
      owner.Reply(this);
    }
    void Finished() override { job->Done(); }
  };

  uint16_t name_space = 0;
  wire::WindowKey window;
  Call call;

  void Run(Shard& entry) override {
    call.job = this;
    entry.Call(ShardOf(window.prefix, entry.shard_count()), &call);
  }
  virtual void OnOwner(Shard& owner) = 0;
};

struct TakeWindowJob final : WindowJob {
  std::function<void(std::vector<std::byte>)> done;
  std::vector<std::byte> snapshot;

  void OnOwner(Shard& owner) override {
    storage::WindowPool::View view;
    if (owner.windows().Acquire(name_space, window, owner.now(), &view) != Outcome::kOk) return;
    snapshot.reserve(view.bytes);
    for (const uint32_t slot : view.slots) {
      const ConstBytes bytes = owner.SlotBytes(slot);
      const size_t left = view.bytes - snapshot.size();
      snapshot.insert(snapshot.end(), bytes.begin(),
                      bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), left)));
    }
    if (Crc32c(snapshot) != view.crc) snapshot.clear();
    owner.windows().Release(view.handle);
  }
  void Tell() override { done(std::move(snapshot)); }
};

struct PutWindowJob final : WindowJob {
  uint64_t session_id = 0;
  std::vector<std::byte> snapshot;
  uint32_t crc = 0;
  std::function<void(Outcome)> done;
  Outcome outcome = Outcome::kOk;

  void OnOwner(Shard& owner) override {
    const ConstBytes piece(snapshot);
    outcome = owner.windows().Put(name_space, window, session_id, {&piece, 1},
                                  static_cast<uint32_t>(snapshot.size()), crc, owner.now());
    owner.ExpireWindowsSoon();
  }
  void SayNothing() override { outcome = Outcome::kClosed; }
  void Tell() override { done(outcome); }
};

struct PutJob final : Job {
  StorePort::Namespace name_space;
  std::vector<ConstBytes> records;
  wire::Durability durability = wire::Durability::kRelaxed;
  Nanos limit_ns = 0;
  std::function<void(std::vector<Outcome>)> done;
  std::vector<PutCall> calls;
  std::vector<Outcome> outcomes;
  uint32_t pending = 0;

  void Run(Shard& entry) override {
    outcomes.assign(records.size(), Outcome::kTimeout);
    calls = std::vector<PutCall>(entry.shard_count());
    for (uint32_t i = 0; i < records.size(); ++i) {
      const BlockKey key = PeekKey(records[i]);
      calls[ShardOf(key, entry.shard_count())].Add(i, records[i], key, name_space, durability);
    }
    pending = 1;
    for (uint32_t shard = 0; shard < calls.size(); ++shard) {
      if (calls[shard].empty()) continue;
      ++pending;
      calls[shard].Prepare(
          entry.now() + limit_ns,
          [](PutCall* call, void* self) { static_cast<PutJob*>(self)->OnCall(*call); }, this);
      entry.Call(shard, &calls[shard]);
    }
    Finish();
  }
  void SayNothing() override { outcomes.assign(records.size(), Outcome::kClosed); }
  void OnCall(const PutCall& call) {
    call.ForEachOutcome([this](uint32_t index, Outcome outcome) { outcomes[index] = outcome; });
    Finish();
  }
  void Finish() {
    if (--pending == 0) Done();
  }
  void Tell() override { done(std::move(outcomes)); }
};

struct RemoveJob final : Job {
  struct Call final : ShardCall {
    RemoveJob* job = nullptr;
    std::vector<BlockKey> keys;
    uint64_t removed = 0;

    void Execute(Shard& owner) override {
      removed = owner.blocks().Remove(keys, job->name_space);
      owner.Reply(this);
    }
    void Finished() override {
      job->removed += removed;
      job->Finish();
    }
  };

  uint16_t name_space = 0;
  std::vector<BlockKey> keys;
  std::function<void(uint64_t)> done;
  std::vector<Call> calls;
  uint64_t removed = 0;
  uint32_t pending = 0;

  void Run(Shard& entry) override {
    calls = std::vector<Call>(entry.shard_count());
    for (const BlockKey& key : keys) calls[ShardOf(key, entry.shard_count())].keys.push_back(key);
    pending = 1;
    for (uint32_t shard = 0; shard < calls.size(); ++shard) {
      calls[shard].job = this;
      ++pending;
      entry.Call(shard, &calls[shard]);
    }
    Finish();
  }
  void Finish() {
    if (--pending == 0) Done();
  }
  void Tell() override { done(removed); }
};

}  // namespace

template <typename Work>
void StorePort::Send(Work* job) {
  if (closed_) return static_cast<Job*>(job)->Refuse();
  static_cast<Job*>(job)->Send(entry_, queue_, &outstanding_);
}

void StorePort::Lookup(const Namespace& name_space, std::vector<BlockKey> keys, LookupFor purpose,
                       std::function<void(std::vector<Residency>)> done) {
  auto* job = new LookupJob;
  job->purpose = purpose;
  job->name_space = name_space.index;
  job->keys = std::move(keys);
  job->done = std::move(done);
  Send(job);
}

void StorePort::ProbeWindows(const Namespace& name_space, std::vector<wire::WindowKey> windows,
                             std::function<void(std::vector<uint32_t>)> done) {
  auto* job = new ProbeJob;
  job->name_space = name_space.index;
  job->windows = std::move(windows);
  job->done = std::move(done);
  Send(job);
}

void StorePort::Acquire(const Namespace& name_space, std::vector<BlockKey> keys, Nanos limit_ns,
                        std::function<void(Acquired)> done) {
  auto* job = new AcquireJob;
  job->name_space = name_space.index;
  job->keys = std::move(keys);
  job->limit_ns = limit_ns;
  job->done = std::move(done);
  Send(job);
}

void StorePort::Release(std::vector<uint32_t> slots) {
  if (slots.empty()) return;
  auto* job = new ReleaseJob;
  job->slots = std::move(slots);
  Send(job);
}

void StorePort::TakeWindow(const Namespace& name_space, const wire::WindowKey& window,
                           std::function<void(std::vector<std::byte>)> done) {
  auto* job = new TakeWindowJob;
  job->name_space = name_space.index;
  job->window = window;
  job->done = std::move(done);
  Send(job);
}

void StorePort::PutWindow(const Namespace& name_space, const wire::WindowKey& window,
                          uint64_t session_id, std::vector<std::byte> snapshot,
                          std::function<void(Outcome)> done) {
  auto* job = new PutWindowJob;
  job->name_space = name_space.index;
  job->window = window;
  job->session_id = session_id;
  job->crc = Crc32c(snapshot);
  job->snapshot = std::move(snapshot);
  job->done = std::move(done);
  Send(job);
}

void StorePort::Put(const Namespace& name_space, std::vector<ConstBytes> records,
                    wire::Durability durability, Nanos limit_ns,
                    std::function<void(std::vector<Outcome>)> done) {
  auto* job = new PutJob;
  job->name_space = name_space;
  job->records = std::move(records);
  job->durability = durability;
  job->limit_ns = limit_ns;
  job->done = std::move(done);
  Send(job);
}

void StorePort::Remove(const Namespace& name_space, std::vector<BlockKey> keys,
                       std::function<void(uint64_t removed)> done) {
  auto* job = new RemoveJob;
  job->name_space = name_space.index;
  job->keys = std::move(keys);
  job->done = std::move(done);
  Send(job);
}

}  // namespace reprise::server
