// Acquire and Get, from frame to lease or records:
//   StartAcquire -> AcquireRun (pins the leading run over all shards) -> slots and generations
//   StartGet     -> the same for chunks of the keys, two at a time -> a reply for each chunk, its
//                   records sent from the arena; the pins end when the frame is out
//   StartFetch   -> as Get, but the records are written into the client's memory
#include <algorithm>
#include <array>
#include <optional>

#include "server/acquire_call.h"
#include "server/dispatch.h"

namespace reprise::server {
namespace {

// Records in one reply frame of a Get, and thereby what one Get pins at a time: twice that.
constexpr uint32_t kChunkBlocks = 64;
// Of a Fetch: fewer, so that the client checks one part while the next is written.
constexpr uint32_t kFetchChunkBlocks = 8;

void CountGiven(Shard* shard, TransportKind transport, uint32_t blocks, uint32_t from_ssd) {
  RequestCounters& counters = shard->counters();
  counters.blocks_from_ssd += from_ssd;
  counters.blocks_from_dram += blocks - std::min(blocks, from_ssd);
  counters.sent_bytes[static_cast<size_t>(transport)] +=
      uint64_t{blocks} * shard->facts().record_bytes;
}

class AcquireOperation final : public Operation {
 public:
  AcquireOperation(Connection* connection, const wire::FrameHeader& request)
      : Operation(connection, request) {}

  void Start(const wire::KeysView& view, uint16_t name_space) {
    run_.Start(
        &shard(), view.keys, view.fixed.key_count, name_space, deadline(),
        [](void* self) { static_cast<AcquireOperation*>(self)->OnAcquired(); }, this);
  }

 private:
  void OnAcquired() {
    AcquireRun::Result& result = run_.result();
    if (connection().closing()) {
      shard().ReleaseSlots(result.slots);
      SendLast(Outcome::kClosed);
      return;
    }
    std::vector<wire::SlotRef> slots;
    slots.reserve(result.slots.size());
    for (const uint32_t slot : result.slots) slots.push_back({slot, Generation(slot)});
    wire::AcquireReply reply{.slot_count = static_cast<uint32_t>(slots.size()),
                             .from_ssd = result.from_ssd};
    CountGiven(&shard(), TransportKind::kLocal, reply.slot_count, reply.from_ssd);
    if (!slots.empty()) reply.lease_id = connection().AddLease({.slots = std::move(result.slots)});
    std::string body;
    wire::Append(&body, reply);
    wire::AppendArray(&body, std::span<const wire::SlotRef>(slots));
    SendLast(result.stopped_by, std::move(body));
  }

  // A pinned slot keeps its generation, so any shard may read it.
  uint32_t Generation(uint32_t slot) {
    return shard().facts().arena->generation(slot).load(std::memory_order_relaxed);
  }

  AcquireRun run_;
};

// The keys in chunks of which two are under way: one is read while the other is sent. Every chunk
// is a reply; the last one says why the run ended, and carries no records when a chunk that was
// read ahead had to be waited for.
class GetOperation final : public Operation {
 public:
  // `landing`: of a Fetch; null: the records follow their frame.
  GetOperation(Connection* connection, const wire::FrameHeader& request, ConstBytes keys,
               const wire::Landing* landing, uint16_t name_space)
      : Operation(connection, request),
        name_space_(name_space),
        keys_(keys.begin(), keys.end()),
        key_count_(static_cast<uint32_t>(keys.size() / sizeof(BlockKey))),
        tag_(static_cast<uint32_t>(request.request_id)) {
    if (landing != nullptr) landing_ = *landing;
    for (Chunk& chunk : chunks_) chunk.operation = this;
  }

  // Starts what can start, sends what is ready, in order.
  void Advance() {
    if (advancing_) return;
    advancing_ = true;
    while (StartChunk() || SendChunk()) {
    }
    advancing_ = false;
    if (finished_ || MoreToStart() || sent_ < started_) return;
    finished_ = true;
    if (last_frame_ == nullptr) {
      last_frame_ = MakeFrame(stopped_by_);
      wire::Append(&last_frame_->body, wire::GetReply{.first_index = given_});
    }
    SendLast(std::move(last_frame_));
  }

 private:
  enum class State : uint8_t { kIdle, kAcquiring, kReady, kSending };
  struct Chunk {
    GetOperation* operation = nullptr;
    State state = State::kIdle;
    uint32_t first_key = 0;
    AcquireRun run;
  };

  bool MoreToStart() const { return !stopped_ && next_key_ < key_count_; }

  bool StartChunk() {
    Chunk& chunk = chunks_[started_ % chunks_.size()];
    if (!MoreToStart() || chunk.state != State::kIdle) return false;
    const uint32_t count =
        std::min(landing_ ? kFetchChunkBlocks : kChunkBlocks, key_count_ - next_key_);
    chunk.state = State::kAcquiring;
    chunk.first_key = next_key_;
    next_key_ += count;
    ++started_;
    const ConstBytes keys =
        ConstBytes(keys_).subspan(chunk.first_key * sizeof(BlockKey), count * sizeof(BlockKey));
    chunk.run.Start(
        &shard(), keys, count, name_space_, deadline(),
        [](void* self) {
          auto* ready = static_cast<Chunk*>(self);
          ready->state = State::kReady;
          ready->operation->Advance();
        },
        &chunk);
    return true;
  }

  bool SendChunk() {
    Chunk& chunk = chunks_[sent_ % chunks_.size()];
    if (sent_ == started_ || chunk.state != State::kReady) return false;
    ++sent_;
    AcquireRun::Result& result = chunk.run.result();
    if (stopped_) {  // It was read ahead of the end.
      Release(&chunk);
      return true;
    }
    stopped_by_ = connection().closing() ? Outcome::kClosed : result.stopped_by;
    stopped_ = stopped_by_ != Outcome::kOk;
    const uint32_t first = given_;
    given_ += static_cast<uint32_t>(result.slots.size());

    const bool last = !MoreToStart() && sent_ == started_;
    auto frame = MakeFrame(last ? stopped_by_ : Outcome::kOk);
    wire::Append(&frame->body,
                 wire::GetReply{.first_index = chunk.first_key,
                                .record_count = static_cast<uint32_t>(result.slots.size()),
                                .from_ssd = result.from_ssd});
    AddRecords(result.slots, first, frame.get());
    CountGiven(&shard(), connection().transport(), static_cast<uint32_t>(result.slots.size()),
               result.from_ssd);
    chunk.state = State::kSending;
    if (last) {
      last_chunk_ = &chunk;
      last_frame_ = std::move(frame);  // Advance sends it: after that, nothing of this may be used.
      return false;
    }
    frame->header.flags |= wire::kMore;
    frame->operation = this;
    frame->tag = reinterpret_cast<uint64_t>(&chunk);
    frame->sent = [](Operation* operation, uint64_t tag, bool) {
      auto* self = static_cast<GetOperation*>(operation);
      self->Release(reinterpret_cast<Chunk*>(tag));
      self->Advance();
    };
    connection().Send(std::move(frame));
    return true;
  }

  void AddRecords(std::span<const uint32_t> slots, uint32_t first, OutFrame* frame) {
    const uint64_t record_bytes = shard().facts().record_bytes;
    for (size_t i = 0; i < slots.size(); ++i) {
      const ConstBytes record = shard().SlotBytes(slots[i]).first(record_bytes);
      if (!landing_) {
        frame->data.push_back(record);
        continue;
      }
      frame->writes.push_back({.data = record,
                               .address = landing_->address + (first + i) * record_bytes,
                               .key = landing_->key,
                               .told = i + 1 == slots.size(),
                               .tag = tag_});
    }
  }

  void OnLastSent() override {
    if (last_chunk_ != nullptr) Release(last_chunk_);
  }

  void Release(Chunk* chunk) {
    shard().ReleaseSlots(chunk->run.result().slots);
    chunk->run.result().slots.clear();
    chunk->state = State::kIdle;
  }

  uint16_t name_space_;
  std::vector<std::byte> keys_;
  uint32_t key_count_;
  uint32_t tag_;
  std::optional<wire::Landing> landing_;
  uint32_t next_key_ = 0;
  std::array<Chunk, 2> chunks_;
  Chunk* last_chunk_ = nullptr;  // Its records are in the last reply; null: nobody's are.
  std::unique_ptr<OutFrame> last_frame_;
  uint32_t started_ = 0;  // Chunks.
  uint32_t sent_ = 0;     // Chunks handed to the connection, or dropped.
  uint32_t given_ = 0;    // Records in them.
  bool advancing_ = false;
  bool stopped_ = false;
  bool finished_ = false;
  Outcome stopped_by_ = Outcome::kOk;
};

// What Acquire, Get and Fetch check alike. The namespace that the keys are of, or null.
template <typename View>
const Connection::OpenNamespace* Accept(Connection* connection, const wire::FrameHeader& header,
                                        ConstBytes body, View* view) {
  if (!wire::Decode(body, view)) {
    FailedOperation::Start(connection, header, Outcome::kInvalid);
    return nullptr;
  }
  return NamespaceOf(connection, header, view->fixed.namespace_id);
}

}  // namespace

void StartAcquire(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  wire::KeysView view;
  const Connection::OpenNamespace* opened = Accept(connection, header, body, &view);
  if (opened == nullptr) return;
  if (connection->shard().facts().arena == nullptr || !connection->local()) {
    FailedOperation::Start(connection, header, Outcome::kUnsupported);
    return;
  }
  (new AcquireOperation(connection, header))->Start(view, opened->index);
}

void StartGet(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  wire::KeysView view;
  const Connection::OpenNamespace* opened = Accept(connection, header, body, &view);
  if (opened == nullptr) return;
  (new GetOperation(connection, header, view.keys, nullptr, opened->index))->Advance();
}

void StartFetch(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  wire::FetchView view;
  const Connection::OpenNamespace* opened = Accept(connection, header, body, &view);
  if (opened == nullptr) return;
  const wire::Landing& landing = view.fixed.landing;
  if (!connection->stream().rdma()) {
    FailedOperation::Start(connection, header, Outcome::kUnsupported);
    return;
  }
  if (uint64_t{view.fixed.key_count} * connection->shard().facts().record_bytes > landing.bytes) {
    FailedOperation::Start(connection, header, Outcome::kInvalid);
    return;
  }
  (new GetOperation(connection, header, view.keys, &landing, opened->index))->Advance();
}

}  // namespace reprise::server
