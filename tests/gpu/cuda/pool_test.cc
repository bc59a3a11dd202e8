// The HBM pool: slots, and the order of copies and steps under load.
#include <gmock/gmock.h>

#include <deque>

#include "gpu/cuda/hbm_pool.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/device_fixture.h"
#include "tests/gpu/cuda/pool_kernels.h"

namespace reprise::engine::cuda::test {
namespace {

constexpr uint64_t kSlotBytes = 114'688;
constexpr uint32_t kWords = kSlotBytes / 4;

TEST(HbmPoolTest, SlotsAreTakenAndGivenBack) {
  RP_NEEDS_DEVICE();
  const Stream compute = Must(Stream::Create());
  HbmPool pool = Must(HbmPool::Create(1000, 3, compute.get()));
  EXPECT_EQ(pool.stride(), 1024u);
  const uint32_t a = *pool.Take(), b = *pool.Take(), c = *pool.Take();
  EXPECT_NE(a, b);
  EXPECT_NE(b, c);
  EXPECT_TRUE(absl::IsResourceExhausted(pool.Take().status()));
  pool.Give(b);
  EXPECT_EQ(pool.free_slots(), 1u);
  EXPECT_EQ(*pool.Take(), b);
  std::byte byte{};
  const SlotCopy outside{.slot = a, .host = &byte, .offset = 990, .bytes = 20};
  EXPECT_TRUE(absl::IsInvalidArgument(pool.Load({&outside, 1}).status()));
  EXPECT_TRUE(pool.Export().ok());
}

// Slots change hands at random between steps that write and check them, loads and stores, with
// hundreds of operations in flight: any copy that overtook a step, or overwrote what one still
// reads, would leave a wrong word.
TEST(HbmPoolTest, CopiesAndStepsKeepTheirOrder) {
  RP_NEEDS_DEVICE();
  constexpr uint32_t kSlots = 24, kBuffers = 96, kOperations = 6000;
  const Stream compute = Must(Stream::Create());
  HbmPool pool = Must(HbmPool::Create(kSlotBytes, kSlots, compute.get()));
  const PinnedMemory host = Must(PinnedMemory::Allocate(kBuffers * kSlotBytes));
  const OnDevice<uint32_t> wrong(std::vector<uint32_t>{0});
  Prng prng(17);
  struct Slot {
    bool filled = false;
    uint32_t seed = 0;
  };
  struct Pending {  // A store whose bytes are looked at once it is done.
    uint64_t number = 0;
    uint32_t buffer = 0, seed = 0;
  };
  std::vector<Slot> slots(kSlots);
  for (uint32_t i = 0; i < kSlots; ++i) Must(pool.Take().status());
  std::vector<uint64_t> load_of(kBuffers);  // The last load that reads a buffer.
  std::deque<Pending> stores;
  uint32_t next_seed = 1, next_buffer = 0, checked = 0, bad = 0;
  const auto host_words = [&](uint32_t buffer) {
    return reinterpret_cast<uint32_t*>(host.data() + buffer * kSlotBytes);
  };
  const auto look = [&] {
    const Pending store = stores.front();
    stores.pop_front();
    Must(pool.stores().Wait(store.number));
    for (uint32_t i = 0; i < kWords; i += 97) {
      bad += host_words(store.buffer)[i] != WordOfSlot(store.seed, i) ? 1 : 0;
    }
    ++checked;
  };
  for (uint32_t operation = 0; operation < kOperations; ++operation) {
    const uint32_t slot = static_cast<uint32_t>(prng.Below(kSlots));
    const uint32_t which = static_cast<uint32_t>(prng.Below(4));
    if (which == 0) {  // A step writes it.
      slots[slot] = {true, next_seed += 1000};
      Must(pool.BeginStep({}, {&slot, 1}));
      FillSlot(pool.data(slot), kSlotBytes, slots[slot].seed, compute.get());
      Must(pool.EndStep({}, {&slot, 1}).status());
    } else if (which == 1 && slots[slot].filled) {  // A step reads it.
      Must(pool.BeginStep({&slot, 1}, {}));
      CheckSlot(pool.data(slot), kSlotBytes, slots[slot].seed, wrong.data(), compute.get());
      Must(pool.EndStep({&slot, 1}, {}).status());
    } else {
      while (stores.size() >= kBuffers / 2) look();
      const uint32_t buffer = next_buffer++ % kBuffers;
      Must(pool.loads().Wait(load_of[buffer]));
      while (!stores.empty() && stores.front().buffer == buffer) look();
      const SlotCopy copy{.slot = slot, .host = host.data() + buffer * kSlotBytes};
      if (which == 2) {  // Other bytes come in.
        slots[slot] = {true, next_seed += 1000};
        for (uint32_t i = 0; i < kWords; ++i)
          host_words(buffer)[i] = WordOfSlot(slots[slot].seed, i);
        load_of[buffer] = Must(pool.Load({&copy, 1}));
      } else if (slots[slot].filled) {  // It goes out.
        stores.push_back({Must(pool.Store({&copy, 1})), buffer, slots[slot].seed});
      }
    }
  }
  while (!stores.empty()) look();
  Must(compute.Wait());
  EXPECT_EQ(bad, 0u);
  EXPECT_EQ(wrong.Get()[0], 0u);
  EXPECT_GT(checked, 1000u);
}

}  // namespace
}  // namespace reprise::engine::cuda::test
