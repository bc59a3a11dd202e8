// Windows: a snapshot in (WindowPut), or out by lease (WindowAcquire) or by bytes (WindowGet). The
// shard that the prefix names owns it. WindowFetch writes the bytes into the client's memory.
#include <algorithm>
#include <optional>

#include "server/dispatch.h"
#include "server/operation.h"

namespace reprise::server {
namespace {

class WindowPutOperation final : public Operation, private DataSink {
 public:
  WindowPutOperation(Connection* connection, const wire::FrameHeader& request,
                     const wire::WindowPutRequest& fixed, uint16_t name_space)
      : Operation(connection, request) {
    call_.operation = this;
    call_.fixed = fixed;
    call_.name_space = name_space;
  }

  void StartStaged(ConstBytes staging_slots) {
    const uint32_t slot_bytes = shard().facts().record_bytes;
    uint64_t left = call_.fixed.snapshot_bytes;
    for (size_t i = 0; i * sizeof(uint32_t) < staging_slots.size(); ++i) {
      const ConstBytes slot = connection().staging()->slot(wire::At<uint32_t>(staging_slots, i));
      call_.pieces.push_back(slot.first(std::min<uint64_t>(slot_bytes, left)));
      left -= call_.pieces.back().size();
    }
    Put();
  }

  void StartInline() {
    snapshot_ = std::make_unique<std::byte[]>(call_.fixed.snapshot_bytes);
    connection().ReceiveData(this, call_.fixed.snapshot_bytes);
  }

 private:
  struct Call final : ShardCall {
    WindowPutOperation* operation = nullptr;
    wire::WindowPutRequest fixed;
    uint16_t name_space = 0;
    std::vector<ConstBytes> pieces;
    Outcome outcome = Outcome::kOk;

    void Execute(Shard& owner) override {
      outcome = owner.windows().Put(name_space, fixed.window, fixed.session_id, pieces,
                                    fixed.snapshot_bytes, fixed.snapshot_crc, owner.now());
      owner.ExpireWindowsSoon();
      owner.Reply(this);
    }
    void Finished() override { operation->OnPut(); }
  };

  Bytes NextBuffer(uint64_t) override { return {snapshot_.get(), call_.fixed.snapshot_bytes}; }
  void OnBufferFull(uint64_t) override {
    call_.pieces.push_back({snapshot_.get(), call_.fixed.snapshot_bytes});
    Put();
  }
  void OnDataLost() override { SendLast(Outcome::kClosed); }

  void Put() { shard().Call(ShardOf(call_.fixed.window.prefix, shard().shard_count()), &call_); }
  void OnPut() {
    if (call_.outcome == Outcome::kOk) {
      shard().counters().received_bytes[static_cast<size_t>(connection().transport())] +=
          call_.fixed.snapshot_bytes;
    }
    SendLast(call_.outcome);
  }

  Call call_;
  std::unique_ptr<std::byte[]> snapshot_;
};

class WindowReadOperation final : public Operation {
 public:
  WindowReadOperation(Connection* connection, const wire::FrameHeader& request,
                      const wire::WindowRequest& fixed, const wire::Landing* landing,
                      uint16_t name_space)
      : Operation(connection, request), tag_(static_cast<uint32_t>(request.request_id)) {
    if (landing != nullptr) landing_ = *landing;
    call_.operation = this;
    call_.key = fixed.window;
    call_.name_space = name_space;
  }

  void Start() {
    owner_ = ShardOf(call_.key.prefix, shard().shard_count());
    shard().Call(owner_, &call_);
  }

 private:
  struct Call final : ShardCall {
    WindowReadOperation* operation = nullptr;
    wire::WindowKey key;
    uint16_t name_space = 0;
    Outcome outcome = Outcome::kOk;
    storage::WindowPool::View view;
    std::vector<uint32_t> slots;

    void Execute(Shard& owner) override {
      outcome = owner.windows().Acquire(name_space, key, owner.now(), &view);
      if (outcome == Outcome::kOk) slots.assign(view.slots.begin(), view.slots.end());
      owner.Reply(this);
    }
    void Finished() override { operation->OnAcquired(); }
  };

  void OnAcquired() {
    if (call_.outcome != Outcome::kOk) {
      SendLast(call_.outcome);
      return;
    }
    held_ = true;
    if (connection().closing()) {
      SendLast(Outcome::kClosed);
      return;
    }
    if (landing_ && call_.view.bytes > landing_->bytes) {
      SendLast(Outcome::kInvalid);
      return;
    }
    shard().counters().sent_bytes[static_cast<size_t>(connection().transport())] +=
        call_.view.bytes;
    if (opcode() == wire::Opcode::kWindowAcquire) {
      SendLease();
    } else {
      SendBytes();
    }
  }

  void SendLease() {
    held_ = false;  // The lease holds it from here.
    const uint64_t lease_id = connection().AddLease(
        {.window_shard = owner_, .window_handle = call_.view.handle, .window = true});
    std::string body;
    wire::Append(&body, wire::WindowReply{.lease_id = lease_id,
                                          .snapshot_bytes = call_.view.bytes,
                                          .snapshot_crc = call_.view.crc,
                                          .slot_count = static_cast<uint32_t>(call_.slots.size())});
    for (const uint32_t slot : call_.slots) {
      const auto& generation = shard().facts().arena->generation(slot);
      wire::Append(&body, wire::SlotRef{slot, generation.load(std::memory_order_relaxed)});
    }
    SendLast(Outcome::kOk, std::move(body));
  }

  void SendBytes() {
    auto frame = MakeFrame(Outcome::kOk);
    wire::Append(&frame->body, wire::WindowReply{.snapshot_bytes = call_.view.bytes,
                                                 .snapshot_crc = call_.view.crc});
    if (landing_) {
      AddWrites(frame.get());
    } else if (call_.slots.size() + 2 > SendOp::kPartsMax) {  // Too many slots for one system call.
      copy_.reserve(call_.view.bytes);
      ForEachPiece(
          [this](ConstBytes piece) { copy_.insert(copy_.end(), piece.begin(), piece.end()); });
      frame->data.push_back(copy_);
    } else {
      ForEachPiece([&frame](ConstBytes piece) { frame->data.push_back(piece); });
    }
    SendLast(std::move(frame));
  }

  void AddWrites(OutFrame* frame) {
    uint64_t address = landing_->address;
    ForEachPiece([&](ConstBytes piece) {
      frame->writes.push_back(
          {.data = piece, .address = address, .key = landing_->key, .tag = tag_});
      address += piece.size();
    });
    frame->writes.back().told = true;
  }

  template <typename Visit>
  void ForEachPiece(Visit visit) {
    uint64_t left = call_.view.bytes;
    for (const uint32_t slot : call_.slots) {
      const ConstBytes bytes = shard().SlotBytes(slot);
      const ConstBytes piece = bytes.first(std::min<uint64_t>(bytes.size(), left));
      visit(piece);
      left -= piece.size();
    }
  }

  void OnLastSent() override {
    if (held_) shard().ReleaseWindow(owner_, call_.view.handle);
  }

  Call call_;
  uint32_t tag_;
  std::optional<wire::Landing> landing_;
  uint32_t owner_ = 0;
  bool held_ = false;
  std::vector<std::byte> copy_;
};

bool StagingSlotsFit(const Connection& connection, const wire::WindowPutView& view,
                     uint32_t slot_bytes) {
  const size_t count = view.staging_slots.size() / sizeof(uint32_t);
  if (connection.staging() == nullptr || count != DivideUp(view.fixed.snapshot_bytes, slot_bytes)) {
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    if (wire::At<uint32_t>(view.staging_slots, i) >= connection.staging()->slot_count())
      return false;
  }
  return true;
}

}  // namespace

void StartWindowPut(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  wire::WindowPutView view;
  const bool well_formed = wire::Decode(body, &view);
  const bool in_frame = view.fixed.inline_data != 0;
  if (!well_formed || header.data_bytes != (in_frame ? view.fixed.snapshot_bytes : 0)) {
    FailedOperation::Start(connection, header, Outcome::kInvalid);
    return;
  }
  const Connection::OpenNamespace* opened =
      NamespaceOf(connection, header, view.fixed.namespace_id);
  if (opened == nullptr) return;
  if (!in_frame && !StagingSlotsFit(*connection, view, connection->shard().facts().record_bytes)) {
    FailedOperation::Start(connection, header, Outcome::kInvalid);
    return;
  }
  auto* operation = new WindowPutOperation(connection, header, view.fixed, opened->index);
  if (in_frame) {
    operation->StartInline();
  } else {
    operation->StartStaged(view.staging_slots);
  }
}

void StartWindowRead(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  wire::WindowRequest fixed;
  if (!wire::Decode(body, &fixed)) {
    FailedOperation::Start(connection, header, Outcome::kInvalid);
    return;
  }
  const Connection::OpenNamespace* opened = NamespaceOf(connection, header, fixed.namespace_id);
  if (opened == nullptr) return;
  const bool lease = static_cast<wire::Opcode>(header.opcode) == wire::Opcode::kWindowAcquire;
  if (lease && (connection->shard().facts().arena == nullptr || !connection->local())) {
    FailedOperation::Start(connection, header, Outcome::kUnsupported);
    return;
  }
  (new WindowReadOperation(connection, header, fixed, nullptr, opened->index))->Start();
}

void StartWindowFetch(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  wire::WindowFetchRequest fixed;
  if (!wire::Decode(body, &fixed)) {
    FailedOperation::Start(connection, header, Outcome::kInvalid);
    return;
  }
  const Connection::OpenNamespace* opened =
      NamespaceOf(connection, header, fixed.request.namespace_id);
  if (opened == nullptr) return;
  if (!connection->stream().rdma()) {
    FailedOperation::Start(connection, header, Outcome::kUnsupported);
    return;
  }
  (new WindowReadOperation(connection, header, fixed.request, &fixed.landing, opened->index))
      ->Start();
}

}  // namespace reprise::server
