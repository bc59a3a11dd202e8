#include "protocol/base/check.h"
#include "protocol/wire/messages.h"
#include "tests/fuzz/fuzz_input.h"

// Every decoder on the same body. What a decoder accepts must lie inside the
// body and have the length that it states.
namespace {

using reprise::ConstBytes;
namespace wire = reprise::wire;

void Inside(ConstBytes body, ConstBytes array, uint64_t bytes) {
  RP_CHECK(array.size() == bytes);
  if (array.empty()) return;
  RP_CHECK(array.data() >= body.data() && array.data() + bytes <= body.data() + body.size());
}

void TryRequests(ConstBytes body) {
  if (wire::LookupView view; wire::Decode(body, &view)) {
    RP_CHECK(view.fixed.key_count <= wire::kKeysMax);
    Inside(body, view.keys, uint64_t{view.fixed.key_count} * sizeof(reprise::BlockKey));
    Inside(body, view.windows, uint64_t{view.fixed.window_count} * sizeof(wire::WindowKey));
  }
  if (wire::KeysView view; wire::Decode(body, &view)) {
    Inside(body, view.keys, uint64_t{view.fixed.key_count} * sizeof(reprise::BlockKey));
  }
  if (wire::ReleaseView view; wire::Decode(body, &view)) {
    Inside(body, view.lease_ids, uint64_t{view.fixed.lease_count} * sizeof(uint64_t));
  }
  if (wire::PutView view; wire::Decode(body, &view)) {
    RP_CHECK(view.fixed.record_count <= wire::kPutRecordsMax);
    const uint64_t staged = view.fixed.inline_data != 0 ? 0 : view.fixed.record_count;
    Inside(body, view.staging_slots, staged * sizeof(uint32_t));
  }
  if (wire::WindowPutView view; wire::Decode(body, &view)) {
    RP_CHECK(view.fixed.snapshot_bytes > 0 && view.fixed.snapshot_bytes <= wire::kDataBytesMax);
    Inside(body, view.staging_slots, body.size() - sizeof(wire::WindowPutRequest));
  }
  if (wire::SlotAcquireView view; wire::Decode(body, &view)) {
    RP_CHECK(view.fixed.key_count <= wire::kKeysMax && view.fixed.held_only <= 1);
    Inside(body, view.keys, uint64_t{view.fixed.key_count} * sizeof(reprise::BlockKey));
  }
  if (wire::WindowRequest request; wire::Decode(body, &request)) {
    RP_CHECK(body.size() == sizeof(request));
  }
}

void TryReplies(ConstBytes body) {
  if (wire::LookupReplyView view; wire::Decode(body, &view)) {
    Inside(body, view.tiers, view.fixed.hit_blocks);
  }
  if (wire::AcquireReplyView view; wire::Decode(body, &view)) {
    Inside(body, view.slots, uint64_t{view.fixed.slot_count} * sizeof(wire::SlotRef));
  }
  if (wire::GetReply reply; wire::Decode(body, &reply)) RP_CHECK(body.size() == sizeof(reply));
  if (wire::PutReplyView view; wire::Decode(body, &view)) {
    Inside(body, view.outcomes, view.fixed.record_count);
    for (const std::byte outcome : view.outcomes) {
      RP_CHECK(std::to_integer<uint8_t>(outcome) < reprise::kOutcomeCount);
    }
  }
  if (wire::WindowReplyView view; wire::Decode(body, &view)) {
    Inside(body, view.slots, uint64_t{view.fixed.slot_count} * sizeof(wire::SlotRef));
  }
  if (wire::SlotAcquireReplyView view; wire::Decode(body, &view)) {
    Inside(body, view.slots, uint64_t{view.fixed.slot_count} * sizeof(wire::HbmSlot));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const reprise::fuzz::Input input(data, size);
  TryRequests(input.rest());
  TryReplies(input.rest());
  return 0;
}
