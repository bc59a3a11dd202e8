#include <algorithm>
#include <cstring>
#include <utility>

#include "client/client_impl.h"

namespace reprise {
namespace {

// Cuts one Put into messages. On local connections the records that lie in staging slots go first,
// by number; then the others, copied into slots. Elsewhere all go in the data part, in order.
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
    if (request_.inline_data != 0) return RunInline();
    RP_TRY(RunStaged());
    return RunCopied();
  }

 private:
  absl::Status RunInline() {
    const size_t batch_max =
        std::min<size_t>(wire::kPutRecordsMax, wire::kDataBytesMax / impl_.hello.record_bytes());
    std::vector<ConstBytes> data;
    for (size_t i = 0; i < records_.size(); ++i) {
      batch_.push_back(i);
      data.push_back(records_[i]);
      if (batch_.size() < batch_max && i + 1 < records_.size()) continue;
      RP_TRY(Exchange({}, data));
      data.clear();
    }
    return absl::OkStatus();
  }

  absl::Status RunStaged() {
    std::vector<uint32_t> slots;
    for (size_t i = 0; i < records_.size(); ++i) {
      const uint32_t slot = impl_.memory.StagingSlotOf(records_[i]);
      if (slot == wire::kNoSlot) continue;
      batch_.push_back(i);
      slots.push_back(slot);
      if (batch_.size() < wire::kPutRecordsMax) continue;
      RP_TRY(Exchange(slots, {}));
      slots.clear();
    }
    return batch_.empty() ? absl::OkStatus() : Exchange(slots, {});
  }

  absl::Status RunCopied() {
    const size_t batch_max = std::min<size_t>(wire::kPutRecordsMax, impl_.memory.staging_slots());
    std::vector<uint32_t> slots;
    for (size_t i = 0; i < records_.size(); ++i) {
      if (impl_.memory.StagingSlotOf(records_[i]) != wire::kNoSlot) continue;
      slots.push_back(static_cast<uint32_t>(slots.size()));
      std::memcpy(impl_.memory.staging(slots.back()).data(), records_[i].data(),
                  records_[i].size());
      batch_.push_back(i);
      if (batch_.size() < batch_max) continue;
      RP_TRY(Exchange(slots, {}));
      slots.clear();
    }
    return batch_.empty() ? absl::OkStatus() : Exchange(slots, {});
  }

  // One message for the records of batch_, which is empty afterwards.
  absl::Status Exchange(std::span<const uint32_t> slots, std::span<const ConstBytes> data) {
    const std::vector<size_t> batch = std::exchange(batch_, {});
    request_.record_count = static_cast<uint32_t>(batch.size());
    std::string body;
    wire::Append(&body, request_);
    wire::AppendArray<uint32_t>(&body, slots);
    RP_ASSIGN(const Reply reply,
              impl_.channel.Call(wire::Opcode::kPut, body, data,
                                 sizeof(wire::PutReply) + batch.size(), deadline_));
    wire::PutReplyView view;
    if (!reply.body.empty() && wire::Decode(reply.body, &view) &&
        view.fixed.record_count == batch.size()) {
      for (size_t i = 0; i < batch.size(); ++i) {
        outcomes_[batch[i]] = wire::At<Outcome>(view.outcomes, i);
      }
      return absl::OkStatus();
    }
    if (reply.outcome() == Outcome::kOk || !reply.body.empty()) {
      return impl_.channel.Break(DataLoss("put: the reply makes no sense; connect again"));
    }
    for (const size_t i : batch) outcomes_[i] = reply.outcome();
    return reply.outcome() == Outcome::kInvalid || reply.outcome() == Outcome::kClosed
               ? StatusOf(reply.outcome(), "put")
               : absl::OkStatus();
  }

  Client::Impl& impl_;
  std::span<const ConstBytes> records_;
  std::span<Outcome> outcomes_;
  Instant deadline_;
  wire::PutRequest request_;
  std::vector<size_t> batch_;  // Indices of the records in the message being filled.
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
