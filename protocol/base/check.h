#pragma once

#include <cstdio>
#include <cstdlib>

namespace reprise {

[[noreturn]] inline void CheckFailed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, expression);
  std::abort();
}

}  // namespace reprise

// A programmer's error, never bad input. Stays on in release builds: a cache that stops is rebuilt
// from its disk, one that serves somebody else's bytes is not.
#define RP_CHECK(condition)                     \
  (__builtin_expect(!!(condition), 1) ? void(0) \
                                      : ::reprise::CheckFailed(#condition, __FILE__, __LINE__))
