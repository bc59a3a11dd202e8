#include "server/serving/serving_context.h"

#include <algorithm>
#include <new>

#include "server/serving/request.h"

namespace reprise::server {
namespace {

constexpr std::align_val_t kWindowAlignment{64};

}  // namespace

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

LiveWindows::~LiveWindows() {
  for (std::byte* window : free_) ::operator delete(window, kWindowAlignment);
}

std::byte* LiveWindows::Take() {
  if (free_.empty()) return static_cast<std::byte*>(::operator new(bytes_, kWindowAlignment));
  std::byte* window = free_.back();
  free_.pop_back();
  return window;
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
