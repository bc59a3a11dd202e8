#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/base/bytes.h"
#include "protocol/base/clock.h"

namespace reprise::server {

// Live requests as an anonymised trace, while somebody records: rows of the mooncake format with
// blocks of 128 tokens, whose ids are salted hashes. The salt is drawn for the recording and never
// leaves; token ids are not known here. Thread-safe; costs one load of an atomic while nobody
// records.
class TraceTap {
 public:
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // A request for a prefix chain: `keys` are BlockKey[].
  void Add(ConstBytes keys, Instant now);

  // One recording at a time: false when there is one.
  bool Begin(Instant now);
  // Rows since the last call, as lines; waits for some, for at most `wait_ns`. Empty: none came.
  std::string Take(Nanos wait_ns);
  void End();

  // Requests that were left out because nobody took the rows before them.
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kTextBytesMax = 64_MiB;

  std::atomic<bool> on_ = false;
  std::atomic<uint64_t> dropped_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::byte, 32> salt_{};
  Instant begun_at_ = 0;
  Instant last_ = 0;
  std::string text_;
};

}  // namespace reprise::server
