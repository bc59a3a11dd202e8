#include "protocol/wire/messages.h"

namespace reprise::wire {
namespace {

bool KnownOutcomes(ConstBytes outcomes) {
  for (const std::byte b : outcomes) {
    if (std::to_integer<uint8_t>(b) >= kOutcomeCount) return false;
  }
  return true;
}

}  // namespace

bool Decode(ConstBytes body, LookupView* out) {
  BodyReader reader(body);
  out->fixed = reader.Take<LookupRequest>();
  if (out->fixed.key_count > kKeysMax || out->fixed.window_count > kWindowCandidatesMax)
    return false;
  out->keys = reader.TakeBytes(uint64_t{out->fixed.key_count} * sizeof(BlockKey));
  out->windows = reader.TakeBytes(uint64_t{out->fixed.window_count} * sizeof(WindowKey));
  return reader.Done();
}

bool Decode(ConstBytes body, KeysView* out) {
  BodyReader reader(body);
  out->fixed = reader.Take<KeysRequest>();
  if (out->fixed.key_count > kKeysMax) return false;
  out->keys = reader.TakeBytes(uint64_t{out->fixed.key_count} * sizeof(BlockKey));
  return reader.Done();
}

bool Decode(ConstBytes body, FetchView* out) {
  BodyReader reader(body);
  out->fixed = reader.Take<FetchRequest>();
  if (out->fixed.key_count > kKeysMax) return false;
  out->keys = reader.TakeBytes(uint64_t{out->fixed.key_count} * sizeof(BlockKey));
  return reader.Done();
}

bool Decode(ConstBytes body, WindowFetchRequest* out) {
  BodyReader reader(body);
  *out = reader.Take<WindowFetchRequest>();
  return reader.Done();
}

bool Decode(ConstBytes body, ReleaseView* out) {
  BodyReader reader(body);
  out->fixed = reader.Take<ReleaseRequest>();
  if (out->fixed.lease_count > kKeysMax) return false;
  out->lease_ids = reader.TakeBytes(uint64_t{out->fixed.lease_count} * sizeof(uint64_t));
  return reader.Done();
}

bool Decode(ConstBytes body, PutView* out) {
  BodyReader reader(body);
  out->fixed = reader.Take<PutRequest>();
  if (out->fixed.record_count > kPutRecordsMax || out->fixed.durability > Durability::kDurable ||
      out->fixed.inline_data > 1) {
    return false;
  }
  const uint64_t staged = out->fixed.inline_data != 0 ? 0 : out->fixed.record_count;
  out->staging_slots = reader.TakeBytes(staged * sizeof(uint32_t));
  return reader.Done();
}

bool Decode(ConstBytes body, WindowPutView* out) {
  BodyReader reader(body);
  out->fixed = reader.Take<WindowPutRequest>();
  if (reader.failed() || out->fixed.inline_data > 1 || out->fixed.snapshot_bytes == 0 ||
      out->fixed.snapshot_bytes > kDataBytesMax) {
    return false;
  }
  const size_t rest = body.size() - sizeof(WindowPutRequest);
  if (out->fixed.inline_data != 0 ? rest != 0 : rest == 0 || rest % sizeof(uint32_t) != 0)
    return false;
  out->staging_slots = reader.TakeBytes(rest);
  return reader.Done();
}

bool Decode(ConstBytes body, WindowRequest* out) {
  BodyReader reader(body);
  *out = reader.Take<WindowRequest>();
  return reader.Done();
}

bool Decode(ConstBytes body, SlotAcquireView* out) {
  BodyReader reader(body);
  out->fixed = reader.Take<SlotAcquireRequest>();
  if (out->fixed.key_count > kKeysMax || out->fixed.held_only > 1) return false;
  for (const uint8_t byte : out->fixed.reserved) {
    if (byte != 0) return false;
  }
  out->keys = reader.TakeBytes(uint64_t{out->fixed.key_count} * sizeof(BlockKey));
  return reader.Done();
}

bool Decode(ConstBytes body, LookupReplyView* out) {
  BodyReader reader(body);
  out->fixed = reader.Take<LookupReply>();
  if (out->fixed.hit_blocks > kKeysMax) return false;
  out->tiers = reader.TakeBytes(out->fixed.hit_blocks);
  return reader.Done();
}

bool Decode(ConstBytes body, AcquireReplyView* out) {
  BodyReader reader(body);
  out->fixed = reader.Take<AcquireReply>();
  if (out->fixed.slot_count > kKeysMax) return false;
  out->slots = reader.TakeBytes(uint64_t{out->fixed.slot_count} * sizeof(SlotRef));
  return reader.Done();
}

bool Decode(ConstBytes body, GetReply* out) {
  BodyReader reader(body);
  *out = reader.Take<GetReply>();
  return reader.Done();
}

bool Decode(ConstBytes body, PutReplyView* out) {
  BodyReader reader(body);
  out->fixed = reader.Take<PutReply>();
  if (out->fixed.record_count > kPutRecordsMax) return false;
  out->outcomes = reader.TakeBytes(out->fixed.record_count);
  return reader.Done() && KnownOutcomes(out->outcomes);
}

bool Decode(ConstBytes body, WindowReplyView* out) {
  BodyReader reader(body);
  out->fixed = reader.Take<WindowReply>();
  if (out->fixed.slot_count > kKeysMax) return false;
  out->slots = reader.TakeBytes(uint64_t{out->fixed.slot_count} * sizeof(SlotRef));
  return reader.Done();
}

bool Decode(ConstBytes body, SlotAcquireReplyView* out) {
  BodyReader reader(body);
  out->fixed = reader.Take<SlotAcquireReply>();
  if (out->fixed.slot_count > kKeysMax) return false;
  out->slots = reader.TakeBytes(uint64_t{out->fixed.slot_count} * sizeof(HbmSlot));
  return reader.Done();
}

}  // namespace reprise::wire
