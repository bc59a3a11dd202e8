#include "server/trace_tap.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>

#include "protocol/base/check.h"
#include "protocol/base/sha256.h"
#include "protocol/base/types.h"

namespace reprise::server {
namespace {

// What JSON readers in other languages can hold exactly.
constexpr uint64_t kIdMask = (uint64_t{1} << 53) - 1;

}  // namespace

void TraceTap::Add(ConstBytes keys, Instant now) {
  const size_t count = keys.size() / sizeof(BlockKey);
  if (!on() || count == 0) return;
  std::string ids;
  std::array<std::byte, 32> salt;
  {
    const std::lock_guard lock(mutex_);
    salt = salt_;
  }
  for (size_t i = 0; i < count; ++i) {
    const Hash256 hash = Sha256({salt, keys.subspan(i * sizeof(BlockKey), sizeof(BlockKey))});
    ids += (i == 0 ? "" : ",") + std::to_string(KeyOf(hash).low & kIdMask);
  }
  const std::lock_guard lock(mutex_);
  if (!on()) return;
  if (text_.size() + ids.size() > kTextBytesMax) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  // Requests of different shards may come here out of their order: time never goes back.
  last_ = std::max(last_, now);
  text_ += "{\"timestamp\":" + std::to_string((last_ - begun_at_) / kMillisecond) +
           ",\"input_length\":" + std::to_string(count * kBlockTokens) +
           ",\"output_length\":0,\"hash_ids\":[" + ids + "]}\n";
  changed_.notify_one();
}

bool TraceTap::Begin(Instant now) {
  const std::lock_guard lock(mutex_);
  if (on()) return false;
  RP_CHECK(getrandom(salt_.data(), salt_.size(), 0) == static_cast<ssize_t>(salt_.size()));
  begun_at_ = last_ = now;
  dropped_ = 0;
  text_.clear();
  on_ = true;
  return true;
}

std::string TraceTap::Take(Nanos wait_ns) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(wait_ns), [this] { return !text_.empty(); });
  std::string taken;
  taken.swap(text_);
  return taken;
}

void TraceTap::End() {
  const std::lock_guard lock(mutex_);
  on_ = false;
  text_.clear();
  text_.shrink_to_fit();
}

}  // namespace reprise::server
