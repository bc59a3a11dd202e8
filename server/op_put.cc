// One put, from frame to acknowledgement:
//   StartPut -> the records' keys are read and dealt to their shards -> PutCall: BlockStore::Put
//   for each
//   -> outcomes in the order of the records.
// Staged records are taken from the connection's staging area all at once; inline records are
// received one by one, at most kInlineRecords in memory, and each is put as soon as it is whole.
#include <algorithm>
#include <list>

#include "server/dispatch.h"
#include "server/operation.h"

namespace reprise::server {
namespace {

constexpr size_t kInlineRecords = 8;

// Puts some records on the shard that owns them, within a deadline.
class PutCall final : public ShardCall {
 public:
  void Prepare(Instant deadline, void (*finished)(PutCall* call, void* context), void* context) {
    deadline_ = deadline;
    finished_ = finished;
    context_ = context;
  }
  // `index` is the record's place in the request.
  void Add(uint32_t index, ConstBytes record, const BlockKey& key,
           const Connection::OpenNamespace& name_space, wire::Durability durability) {
    ops_.emplace_back();
    Op& op = ops_.back();
    op.call = this;
    op.index = index;
    op.record = record;
    op.key = key;
    op.name_space = name_space.name_space;
    op.name_space_index = name_space.index;
    op.durability = durability;
  }
  bool empty() const { return ops_.empty(); }
  void Clear() { ops_.clear(); }

  template <typename Visit>
  void ForEachOutcome(Visit visit) const {
    for (const Op& op : ops_) visit(op.index, op.outcome);
  }

 private:
  struct Op : storage::BlockStore::PutOp {
    PutCall* call = nullptr;
    uint32_t index = 0;
  };
  struct Deadline : Timer {
    using Timer::Timer;
    PutCall* call = nullptr;
  };

  void Execute(Shard& owner) override {
    pending_ = static_cast<uint32_t>(ops_.size());
    timer_.call = this;
    timer_.fire = [](Timer* self, Instant) {
      PutCall* call = static_cast<Deadline*>(self)->call;
      for (Op& op : call->ops_) call->target->blocks().Cancel(&op);
    };
    owner.timers().Arm(&timer_, deadline_);
    // Last to first: a chain's head is then newer than its tail, and outlives it.
    for (auto op = ops_.rbegin(); op != ops_.rend(); ++op) {
      op->done = [](Completion* self, int32_t) { static_cast<Op*>(self)->call->OnDone(); };
      owner.blocks().Put(&*op);
    }
  }
  void OnDone() {
    if (--pending_ > 0) return;
    target->timers().Cancel(&timer_);
    target->Reply(this);
  }
  void Finished() override { finished_(this, context_); }

  std::list<Op> ops_;  // Operations must not move; each carries a kilobyte of record tail.
  uint32_t pending_ = 0;
  Instant deadline_ = 0;
  void (*finished_)(PutCall* call, void* context) = nullptr;
  void* context_ = nullptr;
  Deadline timer_;
};

// What the router reads of a record; the store checks it again on its own copy.
BlockKey PeekKey(ConstBytes record) { return KeyOf(LoadRecordHeader(record).block_hash); }

class PutOperation : public Operation {
 protected:
  PutOperation(Connection* connection, const wire::FrameHeader& request, const wire::PutView& view,
               const Connection::OpenNamespace& name_space)
      : Operation(connection, request),
        name_space_(name_space),
        durability_(view.fixed.durability),
        outcomes_(view.fixed.record_count, Outcome::kTimeout) {}

  void Collect(const PutCall& call) {
    call.ForEachOutcome([this](uint32_t index, Outcome outcome) { outcomes_[index] = outcome; });
  }
  void SendOutcomes() {
    uint64_t stored = 0;
    for (const Outcome outcome : outcomes_) stored += outcome == Outcome::kOk ? 1 : 0;
    shard().counters().received_bytes[static_cast<size_t>(connection().transport())] +=
        stored * shard().facts().record_bytes;
    std::string body;
    wire::Append(&body, wire::PutReply{.record_count = static_cast<uint32_t>(outcomes_.size())});
    wire::AppendArray(&body, std::span<const Outcome>(outcomes_));
    SendLast(Outcome::kOk, std::move(body));
  }

  Connection::OpenNamespace name_space_;
  wire::Durability durability_;
  std::vector<Outcome> outcomes_;
};

class StagedPut final : public PutOperation {
 public:
  StagedPut(Connection* connection, const wire::FrameHeader& request, const wire::PutView& view,
            const Connection::OpenNamespace& name_space)
      : PutOperation(connection, request, view, name_space) {}

  void Start(const wire::PutView& view) {
    const uint32_t shard_count = shard().shard_count();
    calls_ = std::vector<PutCall>(shard_count);
    for (uint32_t i = 0; i < view.fixed.record_count; ++i) {
      const ConstBytes record =
          connection().staging()->slot(wire::At<uint32_t>(view.staging_slots, i));
      const BlockKey key = PeekKey(record);
      calls_[ShardOf(key, shard_count)].Add(i, record, key, name_space_, durability_);
    }
    pending_ = 1;
    for (uint32_t i = 0; i < shard_count; ++i) {
      if (calls_[i].empty()) continue;
      ++pending_;
      calls_[i].Prepare(
          deadline(),
          [](PutCall* call, void* self) { static_cast<StagedPut*>(self)->OnCall(*call); }, this);
      shard().Call(i, &calls_[i]);
    }
    Finish();
  }

 private:
  void OnCall(const PutCall& call) {
    Collect(call);
    Finish();
  }
  void Finish() {
    if (--pending_ == 0) SendOutcomes();
  }

  std::vector<PutCall> calls_;
  uint32_t pending_ = 0;
};

class InlinePut final : public PutOperation, private DataSink {
 public:
  InlinePut(Connection* connection, const wire::FrameHeader& request, const wire::PutView& view,
            const Connection::OpenNamespace& name_space)
      : PutOperation(connection, request, view, name_space) {}

  void Start() {
    const size_t buffers = std::min(kInlineRecords, outcomes_.size());
    for (size_t i = 0; i < buffers; ++i) {
      buffers_.push_back(std::make_unique<Buffer>());
      buffers_.back()->bytes = std::make_unique<std::byte[]>(RecordBytes());
      free_.push_back(buffers_.back().get());
    }
    if (outcomes_.empty()) {
      SendOutcomes();
      return;
    }
    connection().ReceiveData(this, outcomes_.size() * uint64_t{RecordBytes()});
  }

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> bytes;
    PutCall call;
  };

  uint32_t RecordBytes() { return shard().facts().record_bytes; }

  Bytes NextBuffer(uint64_t) override {
    if (filling_ == nullptr && !free_.empty()) {
      filling_ = free_.back();
      free_.pop_back();
    }
    if (filling_ == nullptr) return {};
    return {filling_->bytes.get(), RecordBytes()};
  }

  void OnBufferFull(uint64_t left) override {
    Buffer* buffer = std::exchange(filling_, nullptr);
    const ConstBytes record(buffer->bytes.get(), RecordBytes());
    const BlockKey key = PeekKey(record);
    all_received_ = left == 0;
    ++in_flight_;
    buffer->call.Clear();
    buffer->call.Add(next_index_++, record, key, name_space_, durability_);
    buffer->call.Prepare(
        deadline(), [](PutCall* call, void* self) { static_cast<InlinePut*>(self)->OnCall(*call); },
        this);
    shard().Call(ShardOf(key, shard().shard_count()), &buffer->call);
  }

  void OnDataLost() override {
    lost_ = true;
    FinishIfDone();
  }

  void OnCall(const PutCall& call) {
    Collect(call);
    for (const auto& buffer : buffers_) {
      if (&buffer->call == &call) free_.push_back(buffer.get());
    }
    --in_flight_;
    const bool waiting = !all_received_ && !lost_ && free_.size() == 1;
    if (waiting) connection().ResumeReceiving();
    FinishIfDone();
  }

  void FinishIfDone() {
    if (in_flight_ > 0 || finished_ || (!all_received_ && !lost_)) return;
    finished_ = true;
    SendOutcomes();
  }

  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Buffer*> free_;
  Buffer* filling_ = nullptr;
  uint32_t next_index_ = 0;
  uint32_t in_flight_ = 0;
  bool all_received_ = false;
  bool lost_ = false;
  bool finished_ = false;
};

bool StagingSlotsExist(const Connection& connection, const wire::PutView& view) {
  if (view.fixed.record_count > 0 && connection.staging() == nullptr) return false;
  for (uint32_t i = 0; i < view.fixed.record_count; ++i) {
    const auto slot = wire::At<uint32_t>(view.staging_slots, i);
    if (slot >= connection.staging()->slot_count()) return false;
  }
  return true;
}

}  // namespace

void StartPut(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  wire::PutView view;
  const bool well_formed = wire::Decode(body, &view);
  const uint64_t inline_bytes =
      uint64_t{view.fixed.record_count} * connection->shard().facts().record_bytes;
  if (!well_formed || header.data_bytes != (view.fixed.inline_data != 0 ? inline_bytes : 0)) {
    FailedOperation::Start(connection, header, Outcome::kInvalid);
    return;
  }
  const Connection::OpenNamespace* opened = connection->FindNamespace(view.fixed.namespace_id);
  if (opened == nullptr) {
    FailedOperation::Start(connection, header, Outcome::kWrongNamespace);
    return;
  }
  if (view.fixed.inline_data != 0) {
    (new InlinePut(connection, header, view, *opened))->Start();
    return;
  }
  if (!StagingSlotsExist(*connection, view)) {
    FailedOperation::Start(connection, header, Outcome::kInvalid);
    return;
  }
  (new StagedPut(connection, header, view, *opened))->Start(view);
}

}  // namespace reprise::server
