// The GPU's memory as sequences and serving use it: copies, slots, and a sequence that lends it.
#include <gmock/gmock.h>

#include <cstring>
#include <vector>

#include "client/engine/sequence_memory.h"
#include "gpu/engine/generator.h"
#include "protocol/base/clock.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

std::vector<std::byte> Pattern(size_t count, uint32_t seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 31 + seed);
  return bytes;
}

TEST(CudaMemory, CopiesGoAllWays) {
  RP_NEEDS_DEVICE();
  EngineMemory& memory = CudaNano().memory();
  EXPECT_FALSE(memory.host());
  EXPECT_GT(memory.free_bytes(), uint64_t{1} << 30);
  constexpr size_t kBytes = 100'000;
  const EngineBuffer one = Must(memory.Allocate(kBytes));
  const EngineBuffer two = Must(memory.Allocate(kBytes));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(one.data()) % 256, 0u);
  const std::vector<std::byte> sent = Pattern(kBytes / 2, 5);
  std::vector<std::byte> got(kBytes, std::byte{1});
  const MemoryCopy in{one.data() + 100, sent.data(), sent.size()};
  Must(memory.Copy({&in, 1}));
  const MemoryCopy across{two.data(), one.data(), kBytes};
  Must(memory.Copy({&across, 1}));
  const MemoryCopy out{got.data(), two.data(), kBytes};
  Must(memory.Copy({&out, 1}));
  std::vector<std::byte> want(kBytes);  // What was not written is zero.
  std::memcpy(want.data() + 100, sent.data(), sent.size());
  EXPECT_TRUE(got == want);
}

TEST(CudaMemory, SlotsAreLoadedStoredAndCleared) {
  RP_NEEDS_DEVICE();
  EngineMemory& memory = CudaNano().memory();
  constexpr uint32_t kSlots = 64, kBytes = 27'136;
  const auto slots = Must(memory.MakeSlots(kBytes, kSlots));
  std::vector<std::byte> in = Pattern(size_t{kSlots} * kBytes, 9);
  std::vector<std::byte> out(in.size());
  const EngineBuffer pinned_in = Must(memory.Pin(in));
  const EngineBuffer pinned_out = Must(memory.Pin(out));
  std::vector<SlotCopy> loads, stores;
  for (uint32_t i = 0; i < kSlots; ++i) {
    EXPECT_EQ(slots->SlotOf(slots->data(i)), i);
    loads.push_back({.slot = i, .host = in.data() + size_t{i} * kBytes});
    stores.push_back({.slot = i, .host = out.data() + size_t{kSlots - 1 - i} * kBytes});
  }
  EXPECT_TRUE(Must(slots->LoadDone(0)));
  const uint64_t loaded = Must(slots->Load(loads));
  while (!Must(slots->LoadDone(loaded))) {
  }
  const uint32_t cleared[] = {7};
  Must(slots->Clear(cleared));
  Must(memory.Copy({}));  // Blocks until what is queued for steps is done.
  const uint64_t stored = Must(slots->Store(stores));
  while (!Must(slots->StoreDone(stored))) {
  }
  for (uint32_t i = 0; i < kSlots; ++i) {
    const std::byte* got = out.data() + size_t{kSlots - 1 - i} * kBytes;
    const std::vector<std::byte> zero(kBytes);
    const std::byte* want = i == 7 ? zero.data() : in.data() + size_t{i} * kBytes;
    EXPECT_EQ(std::memcmp(got, want, kBytes), 0) << i;
  }
}

// A short suffix without decoder windows keeps the encoder's in device memory and puts them back:
// a second one from the same point gives the same, and so does the text after it.
TEST(CudaMemory, ASequenceKeepsItsWindowsThere) {
  RP_NEEDS_DEVICE();
  CudaEngine& engine = CudaNano();
  const auto buffers = Must(bench::SequenceBuffers::Make(engine, 512));
  auto copy = Must(bench::SequenceBuffers::Make(engine, 512));
  std::vector<TokenId> prompt, suffix;
  for (uint32_t i = 0; i < 300; ++i) prompt.push_back(static_cast<TokenId>('a' + i * 7 % 26));
  for (uint32_t i = 0; i < 20; ++i) suffix.push_back(static_cast<TokenId>('a' + i % 26));
  std::vector<float> logits(engine.geometry().config.vocab_size), again = logits;
  Sequence sequence(&engine, buffers.lent());
  Must(sequence.Prefill(prompt, PrefillMode::kBounded, logits));
  Must(copy.CopyFrom(buffers));
  const SystemClock clock;
  const auto go_on = [&](const SequenceMemory& memory, std::vector<float>* out) {
    ResumePoint held{.hit = 300, .encoder_window = true, .encoder_from = 300 - 128};
    Sequence next(&engine, memory);
    next.Resume(prompt, held);
    Must(next.Prefill(suffix, PrefillMode::kBounded, *out));
    std::vector<TokenId> text;
    Must(Generate(&next, *out, {.tokens_max = 16}, clock,
                  [&](TokenId token, std::span<const float>) {
                    text.push_back(token);
                    return true;
                  })
             .status());
    return text;
  };
  const std::vector<TokenId> text = go_on(buffers.lent(), &logits);
  EXPECT_EQ(go_on(copy.lent(), &again), text);
  EXPECT_EQ(again, logits);
}

}  // namespace
}  // namespace reprise::engine::cuda::test
