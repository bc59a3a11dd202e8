#include "server/serving/serving_context.h"

#include <algorithm>
#include <utility>

#include "server/log.h"
#include "server/serving/request.h"

namespace reprise::server {
std::string_view WindowSourceName(WindowSource source) {
  switch (source) {
    case WindowSource::kCold:
      return "cold";
    case WindowSource::kFound:
      return "found";
    case WindowSource::kReplayed:
      return "replayed";
    case WindowSource::kRebuilt:
      return "rebuilt";
  }
  return "unknown";
}

ServingContext::ServingContext(engine::Engine* the_engine, StorePort* the_store,
                               const Clock* the_clock, uint32_t record_bytes, uint32_t buffer_count,
                               std::unique_ptr<HbmTier> the_tier)
    : engine(*the_engine),
      store(*the_store),
      clock(*the_clock),
      buffers(record_bytes, buffer_count),
      tier(std::move(the_tier)),
      writer(this),
      windows(the_engine),
      prng(static_cast<uint64_t>(the_clock->WallMillis())) {
  if (tier == nullptr) return;
  tier->set_store_out([this](const std::byte* data, const HbmTier::Unstored& record) {
    writer.StoreOut(data, record.name_space, record.tail);
  });
  auto pinned = engine.memory().Pin(buffers.memory());
  if (pinned.ok()) {
    pinned_buffers = *std::move(pinned);
  } else {
    LogWarning("not_pinned", {{"what", "engine.memory"},
                              {"why", pinned.status()},
                              {"action", "blocks are copied out slowly"}});
  }
}

bool ServingContext::Reserve(uint32_t blocks) {
  if (!buffers.Reserve(blocks)) return false;
  if (tier == nullptr || tier->Reserve(blocks)) return true;
  buffers.Unreserve(blocks);
  return false;
}

bool ForkDetector::SeenBefore(const BlockKey& end_of_hit) {
  if (std::find(replayed_at_.begin(), replayed_at_.end(), end_of_hit) != replayed_at_.end()) {
    return true;
  }
  replayed_at_.push_back(end_of_hit);
  if (replayed_at_.size() > kRemembered) replayed_at_.pop_front();
  return false;
}

}  // namespace reprise::server
