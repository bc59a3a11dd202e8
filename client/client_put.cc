#include <algorithm>
#include <cstring>

#include "client/client_impl.h"

namespace reprise {
namespace {

// Cuts one Put into messages. Records in staging slots go by number; on local connections others
// are copied into slots that no record of the call names, or no longer; elsewhere they go in the
// data part.
class PutCall {
 public:
  PutCall(Client::Impl* impl, uint32_t daemon_id, wire::Durability durability,
          std::span<const ConstBytes> records, std::span<Outcome> outcomes)
      : impl_(*impl), records_(records), outcomes_(outcomes), deadline_(impl->Deadline()) {
    request_.namespace_id = daemon_id;
    request_.durability = durability;
    request_.inline_data = impl->memory.staging_slots() == 0 ? 1 : 0;
  }

  absl::Status Run() { return request_.inline_data != 0 ? RunInline() : RunStaged(); }

 private:
  absl::Status RunInline() {
    const size_t batch =
        std::min<size_t>(wire::kPutRecordsMax, wire::kDataBytesMax / impl_.hello.record_bytes());
    for (size_t first = 0; first < records_.size(); first += batch) {
      RP_TRY(Exchange(first, std::min(batch, records_.size() - first)));
    }
    return absl::OkStatus();
  }

  absl::Status RunStaged() {
    std::vector<uint32_t> uses(impl_.memory.staging_slots(), 0);
    for (const ConstBytes record : records_) {
      const uint32_t slot = impl_.memory.StagingSlotOf(record);
      if (slot != wire::kNoSlot) ++uses[slot];
    }
    std::vector<uint32_t> free;
    for (uint32_t slot = 0; slot < uses.size(); ++slot) {
      if (uses[slot] == 0) free.push_back(slot);
    }
    const auto flush = [&](size_t end) -> absl::Status {
      const size_t first = end - slots_.size();
      RP_TRY(Exchange(first, slots_.size()));
      for (const uint32_t slot : slots_) {
        if (uses[slot] == 0 || --uses[slot] == 0) free.push_back(slot);
      }
      slots_.clear();
      return absl::OkStatus();
    };
    for (size_t i = 0; i < records_.size(); ++i) {
      uint32_t slot = impl_.memory.StagingSlotOf(records_[i]);
      if (slots_.size() == wire::kPutRecordsMax || (slot == wire::kNoSlot && free.empty())) {
        RP_TRY(flush(i));
      }
      if (slot == wire::kNoSlot) {
        slot = free.back();
        free.pop_back();
        std::memcpy(impl_.memory.staging(slot).data(), records_[i].data(), records_[i].size());
      }
      slots_.push_back(slot);
    }
    return slots_.empty() ? absl::OkStatus() : flush(records_.size());
  }

  // One message for records [first, first + count).
  absl::Status Exchange(size_t first, size_t count) {
    request_.record_count = static_cast<uint32_t>(count);
    std::string body;
    wire::Append(&body, request_);
    wire::AppendArray<uint32_t>(&body, slots_);
    const auto data =
        request_.inline_data != 0 ? records_.subspan(first, count) : std::span<const ConstBytes>();
    RP_ASSIGN(const Reply reply, impl_.channel.Call(wire::Opcode::kPut, body, data,
                                                    sizeof(wire::PutReply) + count, deadline_));
    const std::span<Outcome> outcomes = outcomes_.subspan(first, count);
    wire::PutReplyView view;
    if (!reply.body.empty() && wire::Decode(reply.body, &view) &&
        view.fixed.record_count == count) {
      for (size_t i = 0; i < count; ++i) outcomes[i] = wire::At<Outcome>(view.outcomes, i);
      return absl::OkStatus();
    }
    if (reply.outcome() == Outcome::kOk || !reply.body.empty()) {
      return impl_.channel.Break(DataLoss("put: the reply makes no sense; connect again"));
    }
    std::fill(outcomes.begin(), outcomes.end(), reply.outcome());
    return reply.outcome() == Outcome::kInvalid || reply.outcome() == Outcome::kClosed
               ? StatusOf(reply.outcome(), "put")
               : absl::OkStatus();
  }

  Client::Impl& impl_;
  std::span<const ConstBytes> records_;
  std::span<Outcome> outcomes_;
  Instant deadline_;
  wire::PutRequest request_;
  std::vector<uint32_t> slots_;  // Of the message being filled; empty when inline.
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
