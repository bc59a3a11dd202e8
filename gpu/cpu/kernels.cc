#include "gpu/cpu/kernels.h"

#include <array>

namespace reprise::engine::cpu {
namespace {

struct Found {
  std::array<const Kernels*, 4> tables{};
  size_t count = 0;
};

Found Look() {
  Found found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx2 && avx512 && __builtin_cpu_supports("avx512vnni")) {
    found.tables[found.count++] = &kAvx512VnniKernels;
  }
  if (avx2 && avx512) found.tables[found.count++] = &kAvx512Kernels;
  if (avx2) found.tables[found.count++] = &kAvx2Kernels;
#endif
  found.tables[found.count++] = &kPortableKernels;
  return found;
}

const Found& Runnable() {
  static const Found found = Look();
  return found;
}

}  // namespace

const Kernels& BestKernels() { return *Runnable().tables[0]; }

std::span<const Kernels* const> RunnableKernels() {
  return {Runnable().tables.data(), Runnable().count};
}

}  // namespace reprise::engine::cpu
