// Status, evict and verify. (Explain and the HBM pool have files of their own.)
#include <algorithm>
#include <cerrno>

#include "protocol/record/record.h"
#include "protocol/wire/control.pb.h"
#include "server/dispatch.h"
#include "server/op_explain.h"
#include "server/operation.h"
#include "server/status.h"

namespace reprise::server {
namespace {

// Runs one call of type Call on every shard, then Done(). The calls are made by the operation.
template <typename Call>
class ControlOperation : public Operation {
 public:
  ControlOperation(Connection* connection, const wire::FrameHeader& request)
      : Operation(connection, request), calls_(connection->shard().shard_count()) {}

  void OnCall() {
    if (--pending_ == 0) Done();
  }

 protected:
  std::vector<Call>& calls() { return calls_; }

  void RunCalls() {
    pending_ = 1;
    for (uint32_t i = 0; i < calls_.size(); ++i) {
      calls_[i].operation = this;
      ++pending_;
      shard().Call(i, &calls_[i]);
    }
    OnCall();
  }
  // The same with keys, each by the shard that has it.
  void RunCalls(const std::vector<BlockKey>& keys) {
    for (const BlockKey& key : keys) {
      calls_[ShardOf(key, shard().shard_count())].keys.push_back(key);
    }
    RunCalls();
  }
  virtual void Done() = 0;

 private:
  std::vector<Call> calls_;
  uint32_t pending_ = 0;
};

// ---- Status -----------------------------------------------------------------------------------

struct StatusCall final : ShardCall {
  ControlOperation<StatusCall>* operation = nullptr;
  ShardMetrics metrics;
  std::vector<std::string> connections;

  void Execute(Shard& owner) override {
    metrics = owner.Metrics();
    connections = owner.ConnectionNames();
    owner.Reply(this);
  }
  void Finished() override { operation->OnCall(); }
};

class StatusOperation final : public ControlOperation<StatusCall> {
 public:
  using ControlOperation::ControlOperation;
  void Start() { RunCalls(); }

 private:
  void Done() override {
    const ServerFacts& facts = shard().facts();
    MetricsSnapshot snapshot = facts.base_snapshot ? facts.base_snapshot() : MetricsSnapshot{};
    std::vector<std::string> connections;
    for (StatusCall& call : calls()) {
      snapshot.shards.push_back(call.metrics);
      connections.insert(connections.end(), call.connections.begin(), call.connections.end());
    }
    wire::ControlReply reply;
    const auto ledger =
        facts.ledger ? facts.ledger() : std::vector<std::pair<std::string, uint64_t>>{};
    reply.mutable_status()->set_json(StatusJson(snapshot, ledger, connections));
    SendLast(Outcome::kOk, reply.SerializeAsString());
  }
};

// ---- Evict ------------------------------------------------------------------------------------

// Removes, and answers when no crash can undo it.
struct EvictCall final : ShardCall {
  ControlOperation<EvictCall>* operation = nullptr;
  std::vector<BlockKey> keys;
  bool whole_namespace = false;
  uint16_t name_space = 0;
  Instant deadline = 0;
  uint64_t evicted = 0;
  Outcome outcome = Outcome::kOk;

  void Execute(Shard& owner) override {
    evicted = whole_namespace ? owner.blocks().RemoveNamespace(name_space)
                              : owner.blocks().Remove(keys, name_space);
    if (whole_namespace) owner.windows().DropNamespace(name_space);
    erased.call = this;
    erased.done = [](Completion* self, int32_t) {
      EvictCall* call = static_cast<Erased*>(self)->call;
      if (self->result < 0) {
        call->outcome = self->result == -ETIMEDOUT ? Outcome::kTimeout : Outcome::kIo;
      }
      call->target->timers().Cancel(&call->timer);
      call->target->Reply(call);
    };
    timer.call = this;
    timer.fire = [](Timer* self, Instant) {
      EvictCall* call = static_cast<Deadline*>(self)->call;
      call->target->blocks().CancelWaitErased(&call->erased);
    };
    owner.timers().Arm(&timer, deadline);
    owner.blocks().WaitErased(&erased);
  }
  void Finished() override { operation->OnCall(); }

 private:
  struct Erased : Completion {
    EvictCall* call = nullptr;
  };
  struct Deadline : Timer {
    using Timer::Timer;
    EvictCall* call = nullptr;
  };

  Erased erased;
  Deadline timer;
};

class EvictOperation final : public ControlOperation<EvictCall> {
 public:
  using ControlOperation::ControlOperation;

  void Start(const std::vector<BlockKey>& keys, bool whole_namespace, uint16_t name_space) {
    for (EvictCall& call : calls()) {
      call.whole_namespace = whole_namespace;
      call.name_space = name_space;
      call.deadline = deadline();
    }
    RunCalls(keys);
  }

 private:
  void Done() override {
    wire::ControlReply reply;
    uint64_t evicted = 0;
    Outcome outcome = Outcome::kOk;
    for (const EvictCall& call : calls()) {
      evicted += call.evicted;
      if (outcome == Outcome::kOk) outcome = call.outcome;
    }
    reply.mutable_evict()->set_evicted_blocks(evicted);
    if (outcome == Outcome::kTimeout) {
      reply.set_error(
          "the blocks are gone, but the SSD has not erased them before the deadline: a crash may "
          "bring them back; evict again, with a longer deadline");
    } else if (outcome == Outcome::kIo) {
      reply.set_error(
          "the blocks are gone, but the SSD failed to erase them: a crash may bring them back; "
          "check the disk");
    }
    SendLast(outcome, reply.SerializeAsString());
  }
};

// ---- Verify -----------------------------------------------------------------------------------

// Reads and checks blocks a few at a time, so that it neither fills DRAM nor holds up others.
struct VerifyCall final : ShardCall {
  static constexpr size_t kBatch = 16;

  ControlOperation<VerifyCall>* operation = nullptr;
  std::vector<BlockKey> keys;
  bool all = false;
  uint16_t name_space = 0;
  Instant deadline = 0;
  uint64_t checked = 0;
  std::vector<BlockKey> failed;
  bool timed_out = false;

  void Execute(Shard& owner) override {
    if (all) keys = owner.blocks().Keys(name_space, /*any_namespace=*/false);
    op.call = this;
    op.done = [](Completion* self, int32_t) { static_cast<Op*>(self)->call->OnBatch(); };
    Next();
  }
  void Finished() override { operation->OnCall(); }

 private:
  struct Op : storage::BlockStore::AcquireOp {
    VerifyCall* call = nullptr;
  };

  void Next() {
    timed_out = at < keys.size() && target->now() > deadline;
    if (at == keys.size() || timed_out) {
      target->Reply(this);
      return;
    }
    const size_t count = std::min(kBatch, keys.size() - at);
    op.keys = std::span(keys).subspan(at, count);
    op.name_space = name_space;
    op.slots = std::span(slots).first(count);
    op.outcomes = std::span(outcomes).first(count);
    target->blocks().Acquire(&op);
  }

  void OnBatch() {
    size_t done = 0;
    for (; done < op.keys.size(); ++done) {
      const Outcome outcome = outcomes[done];
      if (outcome == Outcome::kOk) {
        Check(op.keys[done], slots[done]);
        continue;
      }
      if (outcome == Outcome::kCorrupt || outcome == Outcome::kIo) {
        ++checked;
        failed.push_back(op.keys[done]);
      }
      break;  // What follows the first failure may not have been tried.
    }
    for (size_t i = done; i < op.keys.size(); ++i) {
      if (outcomes[i] == Outcome::kOk) target->blocks().Release(slots[i]);
    }
    at += std::min(done + 1, op.keys.size());
    Next();
  }

  void Check(const BlockKey& key, uint32_t slot) {
    const ConstBytes record = target->SlotBytes(slot).first(target->facts().record_bytes);
    ++checked;
    const bool good = VerifyRecord(record, key) == Outcome::kOk;
    target->blocks().Release(slot);
    if (good) return;
    failed.push_back(key);
    target->blocks().Remove({&key, 1});
  }

  Op op;
  size_t at = 0;
  std::array<uint32_t, kBatch> slots{};
  std::array<Outcome, kBatch> outcomes{};
};

class VerifyOperation final : public ControlOperation<VerifyCall> {
 public:
  using ControlOperation::ControlOperation;

  void Start(const std::vector<BlockKey>& keys, bool all, uint16_t name_space) {
    for (VerifyCall& call : calls()) {
      call.all = all;
      call.name_space = name_space;
      call.deadline = deadline();
    }
    RunCalls(keys);
  }

 private:
  void Done() override {
    constexpr int kNamesMax = 100;
    wire::ControlReply reply;
    wire::VerifyReply* verify = reply.mutable_verify();
    bool timed_out = false;
    for (const VerifyCall& call : calls()) {
      timed_out = timed_out || call.timed_out;
      verify->set_checked_blocks(verify->checked_blocks() + call.checked);
      verify->set_failed_blocks(verify->failed_blocks() + call.failed.size());
      for (const BlockKey& key : call.failed) {
        if (verify->failed_size() < kNamesMax) verify->add_failed(ToHex(key));
      }
    }
    if (timed_out) reply.set_error("the deadline passed before every block was checked; raise it");
    SendLast(timed_out ? Outcome::kTimeout : Outcome::kOk, reply.SerializeAsString());
  }
};

// ---- Dispatch ---------------------------------------------------------------------------------

class ControlError final : public Operation {
 public:
  static void Start(Connection* connection, const wire::FrameHeader& request, Outcome outcome,
                    std::string_view error) {
    wire::ControlReply reply;
    reply.set_error(std::string(error));
    (new ControlError(connection, request))->SendLast(outcome, reply.SerializeAsString());
  }

 private:
  using Operation::Operation;
};

bool ReadKeys(const google::protobuf::RepeatedPtrField<std::string>& from,
              std::vector<BlockKey>* keys) {
  for (const std::string& key : from) {
    if (key.size() != sizeof(BlockKey)) return false;
    keys->push_back(LoadLe<BlockKey>(key.data()));
  }
  return true;
}

}  // namespace

void StartControl(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  wire::ControlRequest request;
  if (!request.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    ControlError::Start(connection, header, Outcome::kInvalid, "the control message is damaged");
    return;
  }
  using Case = wire::ControlRequest::RequestCase;
  if (request.request_case() == Case::kStatus) {
    (new StatusOperation(connection, header))->Start();
    return;
  }
  if (request.request_case() == Case::kSlotPool) return StartSlotPool(connection, header);
  const uint32_t id = request.request_case() == Case::kExplain ? request.explain().namespace_id()
                      : request.request_case() == Case::kEvict ? request.evict().namespace_id()
                                                               : request.verify().namespace_id();
  const Connection::OpenNamespace* opened = connection->FindNamespace(id);
  std::vector<BlockKey> keys;
  const bool keys_good = ReadKeys(request.explain().keys(), &keys) &&
                         ReadKeys(request.evict().keys(), &keys) &&
                         ReadKeys(request.verify().keys(), &keys);
  if (request.request_case() == Case::REQUEST_NOT_SET || !keys_good) {
    ControlError::Start(connection, header, Outcome::kInvalid,
                        "the control message asks for nothing that this daemon knows");
  } else if (opened == nullptr) {
    ControlError::Start(connection, header, Outcome::kWrongNamespace,
                        "open the namespace on this connection first");
  } else if (request.request_case() == Case::kExplain) {
    const wire::ExplainRequest& explain = request.explain();
    const uint64_t first_tokens = std::min<uint64_t>(explain.token_count(), kBlockTokens);
    if (keys.size() != explain.token_count() / kBlockTokens ||
        static_cast<uint64_t>(explain.tokens_size()) != first_tokens) {
      ControlError::Start(
          connection, header, Outcome::kInvalid,
          "explain needs a key for every whole block, and the first block's tokens");
      return;
    }
    StartExplain(connection, header, *opened, explain, std::move(keys));
  } else if (request.request_case() == Case::kEvict) {
    (new EvictOperation(connection, header))
        ->Start(keys, request.evict().whole_namespace(), opened->index);
  } else {
    (new VerifyOperation(connection, header))->Start(keys, request.verify().all(), opened->index);
  }
}

}  // namespace reprise::server
