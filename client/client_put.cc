#include <algorithm>
#include <cstring>
#include <utility>

#include "client/client_impl.h"

namespace reprise {
namespace {

// Records in one message by RDMA, and messages under way: while the daemon takes one over, the next
// ones' records are written, and neither waits for an answer to travel.
constexpr size_t kRdmaBatch = 4;
constexpr size_t kRdmaUnderWay = 4;

// Cuts one Put into messages. With staging slots the records that lie in slots go first; then the
// others, copied into slots. Without, all go in the data part, in order, a message at a time. The
// next message's records are put into their slots while the daemon has the ones before.
class PutCall {
 public:
  PutCall(Client::Impl* impl, uint32_t daemon_id, wire::Durability durability,
          std::span<const ConstBytes> records, std::span<Outcome> outcomes)
      : impl_(*impl), records_(records), outcomes_(outcomes), deadline_(impl->Deadline()) {
    request_.namespace_id = daemon_id;
    request_.durability = durability;
    request_.inline_data = impl->memory.staging_slots() == 0 ? 1 : 0;
    if (request_.inline_data == 0) under_way_max_ = impl->rdma() != nullptr ? kRdmaUnderWay : 2;
  }

  absl::Status Run() {
    if (request_.inline_data != 0) {
      PlanInline();
    } else {
      PlanStaged();
    }
    for (Batch& batch : batches_) {
      while (MustWait(batch)) RP_TRY(Receive());
      if (!refused_.ok()) break;
      RP_TRY(Prepare(batch));
      RP_TRY(Send(&batch));
    }
    while (!under_way_.empty()) RP_TRY(Receive());
    return refused_;
  }

 private:
  // One message.
  struct Batch {
    std::vector<size_t> records;
    std::vector<uint32_t> slots;  // Of each record; empty: they go in the data part.
    bool copied = false;          // Not there yet.
    uint64_t request_id = 0;
  };

  void PlanInline() {
    const size_t batch_max =
        std::min<size_t>(wire::kPutRecordsMax, wire::kDataBytesMax / impl_.hello.record_bytes());
    for (size_t i = 0; i < records_.size(); ++i) {
      BatchWithRoom(batch_max, false)->records.push_back(i);
    }
  }

  void PlanStaged() {
    const uint32_t slot_count = impl_.memory.staging_slots();
    const size_t limit = impl_.rdma() != nullptr ? kRdmaBatch : wire::kPutRecordsMax;
    std::vector<size_t> others;
    for (size_t i = 0; i < records_.size(); ++i) {
      const uint32_t slot = impl_.memory.StagingSlotOf(records_[i]);
      if (slot == wire::kNoSlot) {
        others.push_back(i);
        continue;
      }
      Batch* batch = BatchWithRoom(limit, false);
      batch->records.push_back(i);
      batch->slots.push_back(slot);
    }
    // Half of the slots at most, so that one half is filled while the daemon reads the other.
    const auto half = static_cast<uint32_t>(std::clamp<size_t>(slot_count / 2, 1, limit));
    uint32_t slot = 0;
    for (const size_t i : others) {
      Batch* batch = BatchWithRoom(half, true);
      batch->records.push_back(i);
      batch->slots.push_back(slot);
      slot = slot + 1 >= std::min<size_t>(under_way_max_ * half, slot_count) ? 0 : slot + 1;
    }
  }

  Batch* BatchWithRoom(size_t records_max, bool copied) {
    if (batches_.empty() || batches_.back().records.size() >= records_max ||
        batches_.back().copied != copied) {
      batches_.push_back({.records = {}, .slots = {}, .copied = copied});
    }
    return &batches_.back();
  }

  // Too many are under way, or one that is has a slot of this.
  bool MustWait(const Batch& batch) const {
    const auto shares = [&batch](const Batch* other) {
      return std::find_first_of(other->slots.begin(), other->slots.end(), batch.slots.begin(),
                                batch.slots.end()) != other->slots.end();
    };
    return under_way_.size() >= under_way_max_ ||
           std::any_of(under_way_.begin(), under_way_.end(), shares);
  }

  // Puts the records where the daemon will find them.
  absl::Status Prepare(const Batch& batch) {
    for (size_t i = 0; batch.copied && i < batch.slots.size(); ++i) {
      const ConstBytes record = records_[batch.records[i]];
      std::memcpy(impl_.memory.staging(batch.slots[i]).data(), record.data(), record.size());
    }
    if (impl_.rdma() == nullptr || batch.slots.empty()) return absl::OkStatus();
    const absl::Status written = impl_.rdma()->WriteSlots(batch.slots, deadline_);
    return written.ok() ? written : impl_.channel.Break(written);
  }

  absl::Status Send(Batch* batch) {
    request_.record_count = static_cast<uint32_t>(batch->records.size());
    std::string body;
    wire::Append(&body, request_);
    wire::AppendArray<uint32_t>(&body, batch->slots);
    std::vector<ConstBytes> data;
    if (request_.inline_data != 0) {
      for (const size_t i : batch->records) data.push_back(records_[i]);
    }
    const absl::Status sent = impl_.channel.Send(wire::Opcode::kPut, body, data, deadline_);
    // Nobody is left to take the answers of those before.
    if (!sent.ok()) return under_way_.empty() ? sent : impl_.channel.Break(sent);
    batch->request_id = impl_.channel.request_id();
    under_way_.push_back(batch);
    return absl::OkStatus();
  }

  // One answer, of any message that is under way.
  absl::Status Receive() {
    // Of several, any may come first, and a refusal has no body.
    const Batch& oldest = *under_way_.front();
    const size_t body_bytes =
        under_way_.size() == 1 ? sizeof(wire::PutReply) + oldest.records.size() : 0;
    RP_ASSIGN(const Reply reply,
              impl_.channel.ReceiveOnly(body_bytes, deadline_, oldest.request_id));
    const auto answered = std::find_if(
        under_way_.begin(), under_way_.end(),
        [&reply](const Batch* batch) { return batch->request_id == reply.header.request_id; });
    if (answered == under_way_.end()) {
      return impl_.channel.Break(DataLoss("put: a request was answered twice; connect again"));
    }
    const Batch& batch = **answered;
    under_way_.erase(answered);
    return TakeOutcomes(batch, reply);
  }

  absl::Status TakeOutcomes(const Batch& batch, const Reply& reply) {
    const size_t count = batch.records.size();
    wire::PutReplyView view;
    if (!reply.body.empty() && wire::Decode(reply.body, &view) &&
        view.fixed.record_count == count) {
      for (size_t i = 0; i < count; ++i) {
        outcomes_[batch.records[i]] = wire::At<Outcome>(view.outcomes, i);
      }
      return absl::OkStatus();
    }
    if (reply.outcome() == Outcome::kOk || !reply.body.empty()) {
      return impl_.channel.Break(DataLoss("put: the reply makes no sense; connect again"));
    }
    for (const size_t i : batch.records) outcomes_[i] = reply.outcome();
    if (reply.outcome() == Outcome::kInvalid || reply.outcome() == Outcome::kClosed) {
      refused_ = StatusOf(reply.outcome(), "put");
    }
    return absl::OkStatus();
  }

  Client::Impl& impl_;
  std::span<const ConstBytes> records_;
  std::span<Outcome> outcomes_;
  Instant deadline_;
  wire::PutRequest request_;
  std::vector<Batch> batches_;
  size_t under_way_max_ = 1;
  std::vector<Batch*> under_way_;  // In the order of their requests.
  absl::Status refused_;           // The rest is not sent.
};

}  // namespace

absl::Status Client::Put(uint32_t namespace_id, std::span<const ConstBytes> records,
                         wire::Durability durability, std::span<Outcome> outcomes) {
  RP_ASSIGN(const auto* name_space, impl_->Find(namespace_id));
  if (outcomes.size() != records.size()) {
    return InvalidArgument("put: as many outcomes as records are needed");
  }
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i].size() == record_bytes()) continue;
    return InvalidArgument("put: record " + std::to_string(i) + " has " +
                           std::to_string(records[i].size()) +
                           " bytes; this store keeps records of " + std::to_string(record_bytes()));
  }
  std::fill(outcomes.begin(), outcomes.end(), Outcome::kClosed);  // Until told otherwise.
  return PutCall(impl_.get(), name_space->daemon_id, durability, records, outcomes).Run();
}

uint32_t Client::staging_slots() const { return impl_->memory.staging_slots(); }
Bytes Client::staging(uint32_t slot) { return impl_->memory.staging(slot); }

}  // namespace reprise
