#include "gpu/backends/make_engine.h"

#include <charconv>
#include <optional>
#include <utility>

#include "gpu/backends/cuda_backend.h"

namespace reprise::engine {
namespace {

constexpr uint32_t kRowsMaxOfCpu = 512;
constexpr uint32_t kRowsMaxOfGpu = 2048;  // Weights are read once a call: it wants more rows.
constexpr std::string_view kCuda = "cuda";

// The GPU that a name means; nothing for names that are not of the CUDA backend.
std::optional<int> OrdinalOf(std::string_view device) {
  if (device == kCuda) return 0;
  if (device.substr(0, kCuda.size() + 1) != "cuda:") return std::nullopt;
  const std::string_view digits = device.substr(kCuda.size() + 1);
  int ordinal = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size() || ordinal < 0) {
    return std::nullopt;
  }
  return ordinal;
}

}  // namespace

absl::Status CheckDeviceName(const std::string& device) {
  if (device == "cpu" || device == "auto" || OrdinalOf(device).has_value()) return absl::OkStatus();
  return InvalidArgument("no device \"" + device +
                         "\"; use cpu, cuda, cuda:<number of the GPU> or auto");
}

absl::StatusOr<std::string> DescribeGpu() { return DescribeCudaDevice(0); }

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const ModelGeometry& geometry,
                                                   const Checkpoint& checkpoint,
                                                   std::vector<uint32_t> engram_map,
                                                   const EngineOptions& options,
                                                   std::string* note) {
  note->clear();
  RP_TRY(CheckDeviceName(options.device));
  std::optional<int> ordinal = OrdinalOf(options.device);
  if (options.device == "auto") {
    const absl::StatusOr<std::string> gpu = DescribeCudaDevice(0);
    if (gpu.ok()) {
      ordinal = 0;
    } else {
      *note = "the engine runs on the CPU: " + Message(gpu.status());
    }
  }
  if (ordinal.has_value()) {
    return MakeCudaEngine(geometry, checkpoint, engram_map, *ordinal,
                          options.rows_max == 0 ? kRowsMaxOfGpu : options.rows_max);
  }
  return MakeCpuEngine(geometry, checkpoint, std::move(engram_map),
                       {.threads = options.threads,
                        .rows_max = options.rows_max == 0 ? kRowsMaxOfCpu : options.rows_max,
                        .kernels = options.kernels});
}

}  // namespace reprise::engine
