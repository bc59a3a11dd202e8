// The HBM pool in another process: what a local engine sees of a daemon's slots.
#include "gpu/cuda/opened_pool.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

#include "gpu/cuda/hbm_pool.h"
#include "protocol/base/bytes.h"
#include "tests/gpu/cuda/device_fixture.h"
#include "tests/gpu/cuda/pool_kernels.h"

namespace reprise::engine::cuda::test {
namespace {

constexpr uint64_t kSlotBytes = 113'920;
constexpr uint32_t kSlots = 37, kChecked = 5;

uint32_t SeedOf(uint32_t slot) { return 1000 * (slot + 1); }

// The other process: this program, running the test below with what it is told on its standard
// input. Its exit code.
int RunReader(const SlotsExport::Device& device, uint64_t stride, const std::string& environment) {
  std::array<char, 4096> self{};
  if (readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0) return -1;
  const std::string command = environment + " '" + self.data() +
                              "' --gtest_also_run_disabled_tests --gtest_brief=1 "
                              "--gtest_filter=OpenedPoolReader.*";
  FILE* reader = popen(command.c_str(), "w");
  if (reader == nullptr) return -1;
  std::fprintf(reader, "%s %s %llu\n", ToHex(ConstBytes(device.uuid)).c_str(),
               ToHex(AsBytes(device.handle)).c_str(), static_cast<unsigned long long>(stride));
  return pclose(reader);
}

std::vector<std::byte> FromHex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// Run by RunReader alone.
TEST(OpenedPoolReader, DISABLED_SeesEverySlot) {
  std::string uuid, handle;
  uint64_t stride = 0;
  ASSERT_TRUE(std::cin >> uuid >> handle >> stride);
  const std::vector<std::byte> uuid_bytes = FromHex(uuid), handle_bytes = FromHex(handle);
  OpenedPool::Source source{.handle = handle_bytes, .slots = kSlots, .stride_bytes = stride};
  ASSERT_EQ(uuid_bytes.size(), source.uuid.size());
  std::memcpy(source.uuid.data(), uuid_bytes.data(), source.uuid.size());
  const OpenedPool pool = Must(OpenedPool::Open(source));
  Must(UseDevice(pool.device()).status());
  EXPECT_EQ(pool.slot(kSlots), nullptr);
  std::vector<uint32_t> words(kSlotBytes / 4);
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    Must(CudaStatus(cudaMemcpy(words.data(), pool.slot(slot), kSlotBytes, cudaMemcpyDeviceToHost),
                    "read"));
    for (uint32_t i = 0; i < words.size(); ++i) {
      ASSERT_EQ(words[i], WordOfSlot(SeedOf(slot), i)) << slot << " " << i;
    }
  }
  // Kernels read it where it lies.
  const Stream stream = Must(Stream::Create());
  const OnDevice<uint32_t> wrong(std::vector<uint32_t>{0});
  for (uint32_t slot = 0; slot < kChecked; ++slot) {
    CheckSlot(pool.slot(slot), kSlotBytes, SeedOf(slot), wrong.data(), stream.get());
  }
  Must(stream.Wait());
  EXPECT_EQ(wrong.Get()[0], 0u);
  OpenedPool::Source stranger = source;
  stranger.uuid[3] ^= std::byte{1};
  EXPECT_TRUE(absl::IsNotFound(OpenedPool::Open(stranger).status()));
  stranger = source;
  stranger.handle = stranger.handle.first(63);
  EXPECT_TRUE(absl::IsInvalidArgument(OpenedPool::Open(stranger).status()));
}

// Slots that kernels wrote, and slots that were loaded.
void ExportFrom(int ordinal, const std::string& environment) {
  const KeepDevice keep;
  Must(UseDevice(ordinal).status());
  const Stream compute = Must(Stream::Create());
  HbmPool pool = Must(HbmPool::Create(kSlotBytes, kSlots, compute.get()));
  const PinnedMemory host = Must(PinnedMemory::Allocate(kSlots * kSlotBytes));
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    if (slot % 2 == 0) {
      FillSlot(pool.data(slot), kSlotBytes, SeedOf(slot), compute.get());
      continue;
    }
    auto* words = reinterpret_cast<uint32_t*>(host.data() + slot * kSlotBytes);
    for (uint32_t i = 0; i < kSlotBytes / 4; ++i) words[i] = WordOfSlot(SeedOf(slot), i);
    const SlotCopy copy{.slot = slot, .host = reinterpret_cast<std::byte*>(words)};
    Must(pool.loads().Wait(Must(pool.Load({&copy, 1}))));
  }
  Must(compute.Wait());
  const cudaIpcMemHandle_t handle = Must(pool.Export());
  SlotsExport::Device device{.uuid = Must(NameOf(ordinal)).uuid,
                             .handle = std::string(handle.reserved, sizeof(handle.reserved))};
  EXPECT_EQ(Must(OrdinalOf(device.uuid)), ordinal);
  EXPECT_EQ(RunReader(device, pool.stride(), environment), 0);
  EXPECT_EQ(RunReader(device, pool.stride(), environment), 0);  // Another one, after it.
}

TEST(OpenedPoolTest, AnotherProcessReadsTheSlots) {
  RP_NEEDS_DEVICE();
  ExportFrom(0, "");
}

// Its ordinals are others: the device is found by its UUID.
TEST(OpenedPoolTest, TheDeviceIsFoundByItsUuid) {
  RP_NEEDS_DEVICE();
  int count = 0;
  Must(CudaStatus(cudaGetDeviceCount(&count), "devices"));
  if (count < 2) GTEST_SKIP() << "needs two GPUs";
  ExportFrom(1, "CUDA_VISIBLE_DEVICES=1,0");
}

TEST(OpenedPoolTest, SlotsSayWhatAnotherProcessNeeds) {
  RP_NEEDS_DEVICE();
  const auto slots = Must(CudaNano().memory().MakeSlots(1000, 8));
  const SlotsExport exported = Must(slots->Export());
  EXPECT_EQ(exported.kind, SlotsExport::Kind::kCudaIpc);
  EXPECT_EQ(exported.stride_bytes, 1024u);
  ASSERT_EQ(exported.devices.size(), 1u);
  EXPECT_EQ(exported.devices[0].handle.size(), SlotsExport::kHandleBytesMax);
  EXPECT_THAT(exported.devices[0].pci_bus_id, testing::MatchesRegex("[0-9A-Fa-f]+:.*"));
}

}  // namespace
}  // namespace reprise::engine::cuda::test
