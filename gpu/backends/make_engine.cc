#include "gpu/backends/make_engine.h"

#include <charconv>
#include <utility>
#include <vector>

#include "gpu/backends/cuda_backend.h"

namespace reprise::engine {
namespace {

constexpr uint32_t kRowsMaxOfCpu = 512;
constexpr uint32_t kRowsMaxOfGpu = 2048;  // Weights are read once a call: it wants more rows.
constexpr std::string_view kCuda = "cuda";

// The GPUs that a name means, by ordinal; none for names that are not of the CUDA backend.
std::vector<int> OrdinalsOf(std::string_view device) {
  if (device == kCuda) return {0};
  if (device.substr(0, kCuda.size() + 1) != "cuda:") return {};
  const char* at = device.data() + kCuda.size() + 1;
  const char* const end = device.data() + device.size();
  std::vector<int> ordinals;
  while (true) {
    int ordinal = 0;
    const auto parsed = std::from_chars(at, end, ordinal);
    if (parsed.ec != std::errc() || ordinal < 0) return {};
    ordinals.push_back(ordinal);
    if (parsed.ptr == end) return ordinals;
    if (*parsed.ptr != ',') return {};
    at = parsed.ptr + 1;
  }
}

}  // namespace

absl::Status CheckDeviceName(const std::string& device) {
  if (device == "cpu" || device == "auto" || !OrdinalsOf(device).empty()) return absl::OkStatus();
  return InvalidArgument(
      "no device \"" + device +
      "\"; use cpu, cuda, cuda:<number of the GPU>, several of them as cuda:0,1, or auto");
}

absl::StatusOr<std::string> DescribeGpu() { return DescribeCudaDevice(0); }

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const ModelGeometry& geometry,
                                                   const Checkpoint& checkpoint,
                                                   std::vector<uint32_t> engram_map,
                                                   const EngineOptions& options,
                                                   std::string* note) {
  note->clear();
  RP_TRY(CheckDeviceName(options.device));
  std::vector<int> ordinals = OrdinalsOf(options.device);
  if (options.device == "auto") {
    const absl::StatusOr<std::string> gpu = DescribeCudaDevice(0);
    if (gpu.ok()) {
      ordinals = {0};
    } else {
      *note = "the engine runs on the CPU: " + Message(gpu.status());
    }
  }
  if (!ordinals.empty()) {
    return MakeCudaEngine(geometry, checkpoint, engram_map, ordinals,
                          options.rows_max == 0 ? kRowsMaxOfGpu : options.rows_max);
  }
  return MakeCpuEngine(geometry, checkpoint, std::move(engram_map),
                       {.threads = options.threads,
                        .rows_max = options.rows_max == 0 ? kRowsMaxOfCpu : options.rows_max,
                        .kernels = options.kernels});
}

}  // namespace reprise::engine
