#include "protocol/base/clock.h"

#include <ctime>

namespace reprise {
namespace {

int64_t ReadNanos(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return t.tv_sec * kSecond + t.tv_nsec;
}

}  // namespace

Instant SystemClock::Now() const { return ReadNanos(CLOCK_MONOTONIC); }
int64_t SystemClock::WallMillis() const { return ReadNanos(CLOCK_REALTIME) / kMillisecond; }

}  // namespace reprise
