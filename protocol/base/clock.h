#pragma once

#include <cstdint>

namespace reprise {

// A point on the monotonic clock, in nanoseconds. Durations are plain int64_t nanoseconds, named
// with their unit.
using Instant = int64_t;
using Nanos = int64_t;

inline constexpr Nanos kMicrosecond = 1'000;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;
inline constexpr Instant kNever = INT64_MAX;

// The door to time: nothing else reads a clock. Every timeout and TTL uses Now(), which never
// jumps; WallMillis() may jump and is only ever written down, never compared.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() const = 0;
  virtual int64_t WallMillis() const = 0;  // Unix time, ms.
};

// CLOCK_MONOTONIC and CLOCK_REALTIME. Thread-safe.
class SystemClock final : public Clock {
 public:
  Instant Now() const override;
  int64_t WallMillis() const override;
};

// For tests and the simulation: stands still until moved.
class ManualClock final : public Clock {
 public:
  Instant Now() const override { return now_; }
  int64_t WallMillis() const override { return wall_ms_ + now_ / kMillisecond; }
  void Advance(Nanos duration_ns) { now_ += duration_ns; }
  void JumpWall(int64_t by_ms) { wall_ms_ += by_ms; }

 private:
  Instant now_ = kSecond;
  int64_t wall_ms_ = 1'700'000'000'000;
};

}  // namespace reprise
