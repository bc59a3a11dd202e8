#include <algorithm>
#include <cstring>
#include <utility>

#include "client/client_impl.h"

namespace reprise {
namespace {

// Records in one message by RDMA: while the daemon takes them over, the next are written.
constexpr size_t kRdmaBatch = 4;

// Cuts one Put into messages. With staging slots the records that lie in slots go first; then the
// others, copied into slots. Without, all go in the data part, in order. The next message's records
// are put into their slots while the daemon has the one before.
class PutCall {
 public:
  PutCall(Client::Impl* impl, uint32_t daemon_id, wire::Durability durability,
          std::span<const ConstBytes> records, std::span<Outcome> outcomes)
      : impl_(*impl), records_(records), outcomes_(outcomes), deadline_(impl->Deadline()) {
    request_.namespace_id = daemon_id;
    request_.durability = durability;
    request_.inline_data = impl->memory.staging_slots() == 0 ? 1 : 0;
  }

  absl::Status Run() {
    if (request_.inline_data != 0) {
      PlanInline();
    } else {
      PlanStaged();
    }
    for (size_t i = 0; i < batches_.size(); ++i) {
      if (i == 0) RP_TRY(Prepare(batches_[i]));
      RP_TRY(Send(batches_[i]));
      const bool last = i + 1 == batches_.size();
      const bool ahead = !last && Disjoint(batches_[i], batches_[i + 1]);
      if (ahead) RP_TRY(Prepare(batches_[i + 1]));
      RP_TRY(Receive(batches_[i]));
      if (!last && !ahead) RP_TRY(Prepare(batches_[i + 1]));
    }
    return absl::OkStatus();
  }

 private:
  // One message.
  struct Batch {
    std::vector<size_t> records;
    std::vector<uint32_t> slots;  // Of each record; empty: they go in the data part.
    bool copied = false;          // Not there yet.
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
    // Half of the slots each, so that one half is filled while the daemon reads the other.
    const auto half = static_cast<uint32_t>(std::clamp<size_t>(slot_count / 2, 1, limit));
    uint32_t slot = 0;
    for (const size_t i : others) {
      Batch* batch = BatchWithRoom(half, true);
      batch->records.push_back(i);
      batch->slots.push_back(slot);
      slot = slot + 1 >= std::min(2 * half, slot_count) ? 0 : slot + 1;
    }
  }

  Batch* BatchWithRoom(size_t records_max, bool copied) {
    if (batches_.empty() || batches_.back().records.size() >= records_max ||
        batches_.back().copied != copied) {
      batches_.push_back({.records = {}, .slots = {}, .copied = copied});
    }
    return &batches_.back();
  }

  static bool Disjoint(const Batch& a, const Batch& b) {
    return std::find_first_of(a.slots.begin(), a.slots.end(), b.slots.begin(), b.slots.end()) ==
           a.slots.end();
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

  absl::Status Send(const Batch& batch) {
    request_.record_count = static_cast<uint32_t>(batch.records.size());
    std::string body;
    wire::Append(&body, request_);
    wire::AppendArray<uint32_t>(&body, batch.slots);
    std::vector<ConstBytes> data;
    if (request_.inline_data != 0) {
      for (const size_t i : batch.records) data.push_back(records_[i]);
    }
    return impl_.channel.Send(wire::Opcode::kPut, body, data, deadline_);
  }

  absl::Status Receive(const Batch& batch) {
    const size_t count = batch.records.size();
    RP_ASSIGN(const Reply reply,
              impl_.channel.ReceiveOnly(sizeof(wire::PutReply) + count, deadline_));
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
    return reply.outcome() == Outcome::kInvalid || reply.outcome() == Outcome::kClosed
               ? StatusOf(reply.outcome(), "put")
               : absl::OkStatus();
  }

  Client::Impl& impl_;
  std::span<const ConstBytes> records_;
  std::span<Outcome> outcomes_;
  Instant deadline_;
  wire::PutRequest request_;
  std::vector<Batch> batches_;
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
