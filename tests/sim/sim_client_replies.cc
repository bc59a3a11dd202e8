#include <algorithm>

#include "protocol/base/checksum.h"
#include "tests/sim/sim_client.h"

// What a simulated client may be told. Anything else is a failure of the run.
namespace reprise::sim {

void SimClient::OnReply(const wire::FrameHeader& header, Request* request, ConstBytes body,
                        ConstBytes data) {
  const auto outcome = static_cast<Outcome>(header.outcome);
  const bool more = (header.flags & wire::kMore) != 0;
  const bool several =
      request->opcode == wire::Opcode::kGet || request->opcode == wire::Opcode::kFetch;
  if (more && !several) Fail("several replies to " + request->name);
  if (request->expected.has_value()) {
    if (more && data.empty()) return;
    if (outcome != *request->expected || more) {
      Fail(request->name + " answered " + std::string(OutcomeName(outcome)) + " instead of " +
           std::string(OutcomeName(*request->expected)));
    }
    return;
  }
  switch (request->opcode) {
    case wire::Opcode::kPut:
      return OnPut(header, request, body);
    case wire::Opcode::kGet:
    case wire::Opcode::kFetch:
      OnGet(request, body, data);
      return more ? void() : OnGetEnd(header, *request);
    case wire::Opcode::kLookup:
      return OnLookup(header, request, body);
    case wire::Opcode::kWindowPut:
      return OnWindowPut(header, *request);
    case wire::Opcode::kWindowGet:
      return OnWindowGet(header, *request, body, data);
    case wire::Opcode::kControl:
      return OnControl(header, request, body);
    default:
      return Fail("a reply of a kind that was never asked for");
  }
}

// ---- Blocks
// ----------------------------------------------------------------------------------------

void SimClient::OnPut(const wire::FrameHeader& header, Request* request, ConstBytes body) {
  wire::PutReplyView view;
  if (header.outcome != 0 || !wire::Decode(body, &view)) return Fail("a put without outcomes");
  if (view.fixed.record_count != request->puts.size()) return Fail("a put's outcomes are too few");
  for (size_t i = 0; i < request->puts.size(); ++i) {
    OnPutOutcome(*request, request->puts[i], wire::At<Outcome>(view.outcomes, i));
  }
}

void SimClient::OnPutOutcome(const Request& request, const PutItem& item, Outcome outcome) {
  const std::string name(OutcomeName(outcome));
  context_->outcomes->Count("put_" + name);
  const bool stored = outcome == Outcome::kOk || outcome == Outcome::kExists;
  if (outcome == Outcome::kOk && request.durable) context_->outcomes->Count("put_ok_durable");
  // What any put may be told.
  bool fine =
      outcome == Outcome::kBusy || outcome == Outcome::kTimeout || outcome == Outcome::kExists;
  if (outcome == Outcome::kIo) fine = context_->disk_failed;
  if (outcome == Outcome::kRejected) {
    fine = context_->limits->quota_blocks > 0 && request.name_space == 1;
  }
  if (outcome == Outcome::kUnsupported)
    fine = request.durable && context_->limits->region_count == 0;
  switch (item.spoil) {
    case Spoil::kNone:
      context_->model->PutAnswered(item.ticket, stored);
      fine = fine || outcome == Outcome::kOk;
      break;
    case Spoil::kPayload:
      fine = fine || outcome == Outcome::kCorrupt;
      break;
    case Spoil::kHeader:  // The key that it was routed by may be what was damaged.
      fine = outcome == Outcome::kCorrupt || outcome == Outcome::kInvalid;
      break;
    case Spoil::kNamespace:
      fine = outcome == Outcome::kWrongNamespace;
      break;
    case Spoil::kTokens:
      fine = outcome == Outcome::kHashMismatch;
      break;
  }
  if (!fine) {
    Fail("a put (spoiled: " + std::to_string(static_cast<int>(item.spoil)) + ") was answered " +
         name);
  }
}

void SimClient::OnGet(Request* request, ConstBytes body, ConstBytes data) {
  wire::GetReply reply;
  if (!wire::Decode(body, &reply)) return Fail("a damaged get reply");
  if (reply.first_index != request->records_received ||
      data.size() != uint64_t{reply.record_count} * Corpus::kRecordBytes ||
      reply.first_index + reply.record_count > request->keys.size()) {
    return Fail("a get reply with records out of order");
  }
  for (uint32_t i = 0; i < reply.record_count; ++i) {
    const ConstBytes record = data.subspan(size_t{i} * Corpus::kRecordBytes, Corpus::kRecordBytes);
    const BlockKey& key = request->keys[request->records_received++];
    context_->model->RecordReceived(key, AsText(record));
    if (LoadRecordHeader(record).name_space !=
        context_->corpus->name_space_hash(request->name_space)) {
      Fail("a record of another namespace");
    }
  }
  const uint32_t from_ssd = std::min(reply.from_ssd, reply.record_count);
  context_->outcomes->Count("get_from_ssd", from_ssd);
  context_->outcomes->Count("get_from_dram", reply.record_count - from_ssd);
}

void SimClient::OnGetEnd(const wire::FrameHeader& header, const Request& request) {
  const auto outcome = static_cast<Outcome>(header.outcome);
  context_->outcomes->Count("get_" + std::string(OutcomeName(outcome)));
  const bool all = request.records_received == request.keys.size();
  if (all != (outcome == Outcome::kOk)) {
    Fail("a get ended with " + std::string(OutcomeName(outcome)) + " after " +
         std::to_string(request.records_received) + " of " + std::to_string(request.keys.size()));
  }
  bool fine = outcome == Outcome::kOk || outcome == Outcome::kNotFound ||
              outcome == Outcome::kBusy || outcome == Outcome::kTimeout;
  if (outcome == Outcome::kCorrupt) fine = context_->damaged;
  if (outcome == Outcome::kIo) fine = context_->disk_failed;
  if (!fine) Fail("a get was answered " + std::string(OutcomeName(outcome)));
}

void SimClient::OnLookup(const wire::FrameHeader& header, Request* request, ConstBytes body) {
  wire::LookupReplyView view;
  if (header.outcome != 0 || !wire::Decode(body, &view)) return Fail("a lookup without a verdict");
  const wire::LookupReply& verdict = view.fixed;
  const size_t asked = request->keys.size();
  Outcomes& outcomes = *context_->outcomes;
  outcomes.Count(verdict.hit_blocks == asked ? "lookup_full"
                 : verdict.hit_blocks > 0    ? "lookup_partial"
                                             : "lookup_miss");
  if (verdict.stop_reason == wire::StopReason::kPending) outcomes.Count("lookup_pending");
  if (verdict.hit_blocks > asked ||
      (verdict.hit_blocks == asked) != (verdict.stop_reason == wire::StopReason::kNone)) {
    return Fail("a verdict whose reason does not fit its blocks");
  }
  for (uint32_t i = 0; i < verdict.hit_blocks; ++i) {
    const auto tier = wire::At<Tier>(view.tiers, i);
    if (tier != Tier::kDram && tier != Tier::kSsd) Fail("a verdict with an unknown tier");
  }
  uint64_t tokens = uint64_t{verdict.hit_blocks} * kBlockTokens;
  if (verdict.window_state == wire::WindowState::kExact) {
    outcomes.Count("lookup_window_exact");
    if (verdict.window_index >= request->candidates.size()) return Fail("a window never asked for");
    const uint64_t position = request->candidates[verdict.window_index].position;
    if (position / kBlockTokens != verdict.hit_blocks) Fail("a window that does not fit the hit");
    tokens = position;
  }
  if (verdict.window_state == wire::WindowState::kBoundary) {
    outcomes.Count("lookup_window_boundary");
    if (verdict.hit_blocks == 0) Fail("a window at the boundary of no block");
  }
  if ((verdict.window_state == wire::WindowState::kNone) != (verdict.window_bytes == 0)) {
    Fail("a verdict whose window has no bytes, or bytes without a window");
  }
  if (verdict.hit_tokens != tokens) Fail("a verdict whose tokens do not fit its blocks");
}

// ---- Windows
// ---------------------------------------------------------------------------------------

void SimClient::OnWindowPut(const wire::FrameHeader& header, const Request& request) {
  const auto outcome = static_cast<Outcome>(header.outcome);
  const std::string name(OutcomeName(outcome));
  context_->outcomes->Count("window_put_" + name);
  bool fine =
      outcome == Outcome::kExists || outcome == Outcome::kRejected || outcome == Outcome::kBusy;
  fine = fine || outcome == (request.spoil == Spoil::kNone ? Outcome::kOk : Outcome::kCorrupt);
  if (!fine) Fail("a window put was answered " + name);
}

void SimClient::OnWindowGet(const wire::FrameHeader& header, const Request& request,
                            ConstBytes body, ConstBytes data) {
  const auto outcome = static_cast<Outcome>(header.outcome);
  if (outcome == Outcome::kNotFound) return context_->outcomes->Count("window_absent");
  wire::WindowReplyView view;
  if (outcome != Outcome::kOk || !wire::Decode(body, &view)) {
    return Fail("a window get was answered " + std::string(OutcomeName(outcome)));
  }
  context_->outcomes->Count("window_found");
  if (view.fixed.snapshot_bytes != data.size() || view.fixed.snapshot_crc != Crc32c(data)) {
    Fail("a window whose size or checksum is wrong");
  }
  context_->model->WindowReceived(request.window, AsText(data));
}

// ---- Administration
// --------------------------------------------------------------------------------

void SimClient::OnControl(const wire::FrameHeader& header, Request* request, ConstBytes body) {
  using Case = wire::ControlRequest::RequestCase;
  const auto outcome = static_cast<Outcome>(header.outcome);
  wire::ControlReply reply;
  if (!reply.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return Fail("a damaged control reply");
  }
  const bool late = outcome == Outcome::kTimeout &&
                    (request->control == Case::kVerify || request->control == Case::kEvict);
  const bool unsure =
      outcome == Outcome::kIo && request->control == Case::kEvict && context_->disk_failed;
  if (late || unsure) return;
  if (outcome != Outcome::kOk || !reply.error().empty()) {
    return Fail("control was answered " + std::string(OutcomeName(outcome)) + " " + reply.error());
  }
  switch (request->control) {
    case Case::kStatus:
      if (reply.status().json().empty()) Fail("an empty status");
      return;
    case Case::kExplain:
      return OnExplain(reply.explain());
    case Case::kEvict:
      context_->outcomes->Count("evicted_by_admin", reply.evict().evicted_blocks());
      for (const Model::RemovalTicket& ticket : request->removals) {
        context_->model->RemovalAnswered(ticket);
      }
      return;
    default:
      context_->outcomes->Count("verified", reply.verify().checked_blocks());
      context_->outcomes->Count("verify_failed", reply.verify().failed_blocks());
      if (reply.verify().failed_blocks() > 0 && !context_->damaged && !context_->disk_failed) {
        Fail("verify found a damaged block on a sound disk: " + reply.verify().failed(0));
      }
  }
}

void SimClient::OnExplain(const wire::ExplainReply& explain) {
  constexpr std::string_view kReasons[] = {"hit",     "too_short",    "never_stored",   "evicted",
                                           "pending", "failed_check", "other_namespace"};
  if (std::find(std::begin(kReasons), std::end(kReasons), explain.reason()) == std::end(kReasons)) {
    return Fail("explain gave an unknown reason: " + explain.reason());
  }
  context_->outcomes->Count("explain_" + explain.reason());
  if (explain.detail().empty()) Fail("explain gave no detail");
  if ((explain.reason() == "hit") != (explain.hit_blocks() == explain.asked_blocks())) {
    Fail("explain's reason does not fit its blocks");
  }
}

}  // namespace reprise::sim
