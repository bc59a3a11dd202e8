#include "tests/gpu/cuda/bench_table.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "tests/gpu/cuda/bench_kernels.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::bench {

using test::Must;

void Check(cudaError_t error) { Must(CudaStatus(error, "bench")); }

double Seconds(cudaStream_t stream, const std::function<void(int turn)>& launch, int launches) {
  constexpr int kTurns = 21;
  const Event begin = Must(Event::Create(true)), end = Must(Event::Create(true));
  for (int i = 0; i < 3; ++i) launch(i);
  std::vector<float> all;
  for (int turn = 0; turn < kTurns; ++turn) {
    KeepBusy(50'000 + 10'000 * static_cast<uint32_t>(launches), stream);
    Check(cudaEventRecord(begin.get(), stream));
    for (int i = 0; i < launches; ++i) launch(turn * launches + i);
    Check(cudaEventRecord(end.get(), stream));
    Check(cudaEventSynchronize(end.get()));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin.get(), end.get()));
    all.push_back(ms);
  }
  std::nth_element(all.begin(), all.begin() + kTurns / 2, all.end());
  return all[kTurns / 2] / 1e3 / launches;
}

void Row(const std::string& name, double seconds, double reached, double ceiling, const char* unit,
         double target) {
  std::printf("| %s | %.1f us | %.1f %s | %.1f | %.1f %% | %s |\n", name.c_str(), seconds * 1e6,
              reached, unit, ceiling, 100 * reached / ceiling,
              target == 0 ? "" : (std::to_string(static_cast<int>(target)) + " %").c_str());
  std::fflush(stdout);
}

}  // namespace reprise::engine::cuda::bench
