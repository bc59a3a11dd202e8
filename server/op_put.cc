// One put, from frame to acknowledgement:
//   StartPut -> the records' keys are read and dealt to their shards -> PutCall: BlockStore::Put
//   for each
//   -> outcomes in the order of the records.
// Staged records are taken from the connection's staging area all at once; inline records are
// received one by one, at most kInlineRecords in memory, and each is put as soon as it is whole.
#include <algorithm>

#include "server/dispatch.h"
#include "server/operation.h"
#include "server/put_call.h"

namespace reprise::server {
namespace {

constexpr size_t kInlineRecords = 8;

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
  const Connection::OpenNamespace* opened =
      NamespaceOf(connection, header, view.fixed.namespace_id);
  if (opened == nullptr) return;
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
