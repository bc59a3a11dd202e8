// The kernels around attention against their references: norms, rotations, window rows, global KV
// and index queries, in calls of several sequences.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "gpu/formats/number_formats.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/kernel_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

constexpr float kNormEps = 1e-20f;

std::string Rows(const RandomStep& step) { return "rows " + std::to_string(step.rows()); }

template <typename T>
void ExpectSame(const std::vector<T>& got, const std::vector<T>& want) {
  ASSERT_EQ(got.size(), want.size());
  const auto at = std::mismatch(got.begin(), got.end(), want.begin());
  EXPECT_TRUE(at.first == got.end()) << "from value " << at.first - got.begin() << " on";
}

TEST(Kernels, QuantiserARoundsAsTheCpuDoes) {
  RP_NEEDS_DEVICE();
  for (const size_t groups : {1u, 3u, 17u, 1000u}) {
    Bits x = RandomBits(groups * 32, 1, groups);
    for (size_t i = 0; i < x.size(); ++i) {  // Groups of many sizes; the first is zeros.
      x[i] = ToBf16(std::ldexp(FromBf16(x[i]), static_cast<int>(i / 32 % 40) - 30));
    }
    std::fill_n(x.begin(), 32, uint16_t{0});
    x[7] = 0x8000;
    const Bits want = ToBits(reference::RoundA(FromBits(x)));
    const OnDevice<uint16_t> device_x(x), y(x.size());
    Launched(LaunchRoundA(device_x.data(), x.size(), y.data(), nullptr));
    ExpectSame(y.Get(), want);
    Launched(LaunchRoundA(device_x.data(), x.size(), device_x.data(), nullptr));
    ExpectSame(device_x.Get(), want);
  }
}

TEST(Kernels, NormsOfRowsWithStrides) {
  RP_NEEDS_DEVICE();
  Agreement agreement("norm");
  for (const uint32_t count : {32u, 320u, 1280u, 5120u}) {
    for (const uint32_t rows : {1u, 17u, 130u}) {
      const uint32_t stride = count + 40, to_stride = count + 8;
      const Bits x = RandomBits(size_t{rows} * stride, 2, count + rows);
      const Floats weight = RandomFloats(count, 1, 0.3f, count), values = FromBits(x);
      const OnDevice<uint16_t> device_x(x), y(size_t{rows} * to_stride);
      const OnDevice<uint16_t> rounded(size_t{rows} * to_stride);
      const OnDevice<float> device_weight(weight);
      for (const bool round : {false, true}) {
        Launched(LaunchNorm(device_x.data(), stride, device_weight.data(), count, rows, kNormEps,
                            round, round ? rounded.data() : y.data(), to_stride, nullptr));
      }
      const Bits got = y.Get(), got_rounded = rounded.Get();
      const Floats normed = FromBits(got);
      for (uint32_t row = 0; row < rows; ++row) {
        const size_t from = size_t{row} * stride, to = size_t{row} * to_stride;
        agreement.AddBf16(std::span(got).subspan(to, count),
                          reference::Norm(FloatSpan(values).subspan(from, count), weight, kNormEps),
                          0);
        const Bits want = ToBits(reference::RoundA(FloatSpan(normed).subspan(to, count)));
        ASSERT_TRUE(std::equal(want.begin(), want.end(), got_rounded.begin() + to)) << row;
        ASSERT_EQ(got[to + count], 0xffff);  // What lies between rows is not written.
      }
    }
  }
  agreement.Expect();
}

struct RowShape {
  uint32_t low, dim, pairs, ring_rows;
};
constexpr RowShape kRowShapes[] = {{96, 64, 8, 12}, {1280, 512, 32, 144}};

WindowView WindowsOf(const RowShape& shape) {
  return {.window = shape.ring_rows - 4,
          .ring_rows = shape.ring_rows,
          .code_bytes = shape.dim,
          .scale_bytes = shape.dim / 32,
          .layer_offset = 80};
}
RandomStep::Memory MemoryOf(const RowShape& shape) {
  const uint64_t bytes = 80 + uint64_t{shape.ring_rows} * (shape.dim + shape.dim / 32) + 48;
  return {.window_bytes = (bytes + 15) / 16 * 16};
}

// The step's host windows with these rows written, one after another.
void WriteAll(const WindowView& view, const std::vector<uint8_t>& codes,
              const std::vector<uint8_t>& scales, RandomStep* step) {
  for (uint32_t row = 0; row < step->rows(); ++row) {
    reference::WriteWindow(view, step->positions[row], &codes[size_t{row} * view.code_bytes],
                           &scales[size_t{row} * view.scale_bytes],
                           step->window(step->part_of_row[row]));
  }
}

TEST(Kernels, ProjectedRowsAreNormedTurnedAndQuantised) {
  RP_NEEDS_DEVICE();
  Agreement queries("queries' low-rank part"), keys("window rows");
  for (const RowShape& shape : kRowShapes) {
    for (const auto& list : AwkwardSteps()) {
      for (const bool with_queries : {true, false}) {
        RandomStep step(list, shape.pairs, MemoryOf(shape), shape.dim);
        SCOPED_TRACE(Rows(step) + ", dim " + std::to_string(shape.dim));
        const uint32_t rows = step.rows(), low = shape.low, dim = shape.dim;
        const uint32_t width = low + dim;
        const WindowView windows = WindowsOf(shape);
        const Bits before = RandomBits(size_t{rows} * width, 3, rows);
        const Floats values = FromBits(before);
        const Floats q_norm = RandomFloats(low, 1, 0.3f, 5),
                     kv_norm = RandomFloats(dim, 1, 0.3f, 6);
        const OnDevice<uint16_t> projected(before);
        const OnDevice<float> device_q_norm(q_norm), device_kv_norm(kv_norm);
        const OnDevice<uint8_t> codes(size_t{rows} * dim), scales(size_t{rows} * dim / 32);
        Launched(LaunchProjected({.step = step.view(),
                                  .rotation = with_queries ? 1 : 0,
                                  .projected = projected.data(),
                                  .low = low,
                                  .dim = dim,
                                  .q_norm = with_queries ? device_q_norm.data() : nullptr,
                                  .kv_norm = device_kv_norm.data(),
                                  .eps = kNormEps,
                                  .codes = codes.data(),
                                  .scales = scales.data(),
                                  .ring = with_queries ? &windows : nullptr},
                                 nullptr));
        const Bits got = projected.Get();
        const std::vector<uint8_t> got_codes = codes.Get(), got_scales = scales.Get();
        for (uint32_t row = 0; row < rows; ++row) {
          const size_t at = size_t{row} * width;
          const FloatSpan from = FloatSpan(values).subspan(at, width);
          if (with_queries) {
            // As codes, of what both have: quantised once more, a group may take a smaller scale.
            const reference::Codes want = reference::CodesA(
                reference::RoundA(reference::Norm(from.first(low), q_norm, kNormEps)));
            const reference::Codes have =
                reference::CodesA(FromBits({got.begin() + at, got.begin() + at + low}));
            queries.AddCodes(Agreement::Quantiser::kA, have.codes.data(), have.scales.data(), want);
          } else {
            ASSERT_TRUE(std::equal(got.begin() + at, got.begin() + at + low, before.begin() + at));
          }
          const Floats normed = reference::Norm(from.subspan(low), kv_norm, kNormEps);
          keys.AddCodes(Agreement::Quantiser::kA, &got_codes[size_t{row} * dim],
                        &got_scales[size_t{row} * dim / 32],
                        reference::CodesA(
                            reference::Turned(normed, step.rotation(with_queries ? 1 : 0, row))));
        }
        if (with_queries) WriteAll(windows, got_codes, got_scales, &step);
        ExpectSame(step.DeviceWindows(), step.windows);
      }
    }
  }
  queries.Expect();
  keys.Expect();
}

TEST(Kernels, WindowRowsGoWhereTheirPositionsSay) {
  RP_NEEDS_DEVICE();
  for (const RowShape& shape : kRowShapes) {
    for (const auto& list : AwkwardSteps()) {
      RandomStep step(list, 0, MemoryOf(shape), shape.dim + 1);
      SCOPED_TRACE(Rows(step) + ", dim " + std::to_string(shape.dim));
      const WindowView windows = WindowsOf(shape);
      Prng prng(9);
      std::vector<uint8_t> codes(size_t{step.rows()} * shape.dim), scales(codes.size() / 32);
      for (uint8_t& code : codes) code = static_cast<uint8_t>(prng.Below(256));
      for (uint8_t& scale : scales) scale = static_cast<uint8_t>(prng.Below(256));
      const OnDevice<uint8_t> device_codes(codes), device_scales(scales);
      Launched(LaunchWriteWindows(step.view(), windows, device_codes.data(), device_scales.data(),
                                  nullptr));
      WriteAll(windows, codes, scales, &step);
      ExpectSame(step.DeviceWindows(), step.windows);
    }
  }
}

struct HeadShape {
  uint32_t heads, dim, pairs;
};

TEST(Kernels, HeadsAreTurnedByTheirPositions) {
  RP_NEEDS_DEVICE();
  Agreement agreement("heads");
  for (const HeadShape& shape : {HeadShape{3, 64, 8}, HeadShape{64, 512, 32}}) {
    for (const auto& list : AwkwardSteps()) {
      const RandomStep step(list, shape.pairs, {}, shape.dim);
      const size_t heads = size_t{step.rows()} * shape.heads;
      const Bits before = RandomBits(heads * shape.dim, 1, 3);
      const Floats values = FromBits(before);
      for (const int kind : {0, 1}) {
        const OnDevice<uint16_t> q(before);
        Launched(LaunchRotateHeads(step.view(), kind, q.data(), shape.heads, shape.dim, nullptr));
        const Bits got = q.Get();
        for (size_t head = 0; head < heads; ++head) {
          const auto row = static_cast<uint32_t>(head / shape.heads);
          agreement.AddBf16(
              RowOf(got, head, shape.dim),
              reference::Turned(RowOf(values, head, shape.dim), step.rotation(kind, row)), 1e-6f);
        }
      }
    }
  }
  agreement.Expect();
}

TEST(Kernels, IndexQueriesAreTurnedAndGoThroughQuantiserC) {
  RP_NEEDS_DEVICE();
  Agreement agreement("index queries");
  for (const HeadShape& shape : {HeadShape{3, 32, 8}, HeadShape{32, 128, 32}}) {
    for (const auto& list : AwkwardSteps()) {
      const RandomStep step(list, shape.pairs, {}, shape.dim);
      const size_t heads = size_t{step.rows()} * shape.heads;
      Bits before = RandomBits(heads * shape.dim, 2, 4);
      std::fill_n(before.begin(), 32, uint16_t{0});
      const Floats values = FromBits(before);
      const OnDevice<uint16_t> q(before);
      Launched(LaunchIndexQueries(step.view(), q.data(), shape.heads, shape.dim, nullptr));
      const Floats got = FromBits(q.Get());
      for (size_t head = 0; head < heads; ++head) {
        const auto row = static_cast<uint32_t>(head / shape.heads);
        const Floats turned =
            reference::Turned(RowOf(values, head, shape.dim), step.rotation(1, row));
        const Floats want = reference::RoundC(turned);
        const reference::Codes want_codes = reference::CodesC(turned);
        const FloatSpan have = RowOf(got, head, shape.dim);
        for (uint32_t group = 0; group < shape.dim / 32; ++group) {
          // By the scale that belongs to the reference: values of it are codes again.
          const float unit = FromUe8m0(want_codes.scales[group]);
          reference::Codes of_group{std::vector<uint8_t>(16), {want_codes.scales[group]}};
          std::vector<uint8_t> codes(16);
          for (uint32_t i = 0; i < 32; ++i) {
            const uint32_t d = group * 32 + i;
            const auto put = [&](std::vector<uint8_t>* to, float value) {
              (*to)[i / 2] |= static_cast<uint8_t>(ToE2m1(std::clamp(value / unit, -6.0f, 6.0f))
                                                   << (i % 2 * 4));
            };
            put(&codes, have[d]);
            put(&of_group.codes, want[d]);
            // A value between codes is none of this quantiser.
            ASSERT_EQ(std::fmod(std::fabs(have[d]) / unit, 0.25f), 0.0f);
          }
          agreement.AddCodes(Agreement::Quantiser::kC, codes.data(), of_group.scales.data(),
                             of_group);
        }
      }
    }
  }
  agreement.Expect();
}

// ---- Global KV and selection -------------------------------------------------------------------

// Groups that end in rows from write_from on, and here and there one that is skipped.
std::vector<DeviceGroup> GroupsOf(const RandomStep& step, uint32_t ratio) {
  std::vector<DeviceGroup> groups = {{.part = kNoPart}};
  for (uint32_t row = 0; row < step.rows(); ++row) {
    const uint32_t position = step.positions[row];
    const DevicePart& part = step.parts[step.part_of_row[row]];
    if (position < part.write_from || (position + 1) % ratio != 0) continue;
    groups.push_back({.part = step.part_of_row[row],
                      .entry = position / ratio,
                      .row = row,
                      .from_tail = ratio == 2 && position == part.first ? 1u : 0u});
    if (row % 7 == 0) groups.push_back({.part = kNoPart});
  }
  groups.resize(groups.size() + 3, {.part = kNoPart});
  return groups;
}

constexpr uint32_t kTailsAt = 48;
WindowView TailsOf(uint32_t tail_rows) {
  return {.ring_rows = 1, .tail_offset = kTailsAt, .tail_rows = tail_rows};
}

// Values of a, and of g, and even positions.
constexpr std::pair<uint32_t, uint32_t> kTailShapes[] = {{64, 4}, {512, 16}};

TEST(Kernels, LatentsOfOneTokenAndOfTwo) {
  RP_NEEDS_DEVICE();
  Agreement agreement("latents");
  for (const auto& [dim, tail_rows] : kTailShapes) {
    for (const auto& list : AwkwardSteps()) {
      for (const uint32_t ratio : {1u, 2u}) {
        RandomStep step(list, 0, {.window_bytes = kTailsAt + uint64_t{tail_rows} * dim * 8}, 7);
        const WindowView windows = TailsOf(tail_rows);
        const size_t values = size_t{step.rows()} * dim;
        // Random bytes are no numbers to compute with: tails get some of their own.
        for (uint32_t part = 0; part < step.parts.size(); ++part) {
          const Floats tail = RandomFloats(size_t{tail_rows} * dim * 2, 0, 1, part);
          std::memcpy(step.window(part) + kTailsAt, tail.data(), tail.size() * sizeof(float));
          Must(
              CudaStatus(cudaMemcpy(step.parts[part].window, step.window(part),
                                    kTailsAt + tail.size() * sizeof(float), cudaMemcpyHostToDevice),
                         "tails"));
        }
        const Floats a = RandomFloats(values, 0, 1, 8), g = RandomFloats(values, 0, 2, 9);
        const Bits a_bits = ToBits(a);
        const Floats a_rounded = FromBits(a_bits), norm = RandomFloats(dim, 1, 0.3f, 10);
        const std::vector<DeviceGroup> groups = GroupsOf(step, ratio);
        const OnDevice<float> device_a(a), device_g(g), device_norm(norm);
        const OnDevice<uint16_t> device_bits(a_bits), latents(groups.size() * dim);
        const OnDevice<DeviceGroup> device_groups(groups);
        const void* rows = ratio == 2 ? static_cast<const void*>(device_a.data())
                                      : static_cast<const void*>(device_bits.data());
        Launched(LaunchLatents(step.view(), windows, device_groups.data(),
                               static_cast<uint32_t>(groups.size()), ratio, rows, device_g.data(),
                               device_norm.data(), dim, kNormEps, latents.data(), nullptr));
        const Bits got = latents.Get();
        for (size_t i = 0; i < groups.size(); ++i) {
          const auto have = RowOf(got, i, dim);
          const DeviceGroup& group = groups[i];
          if (group.part == kNoPart) {
            ASSERT_TRUE(std::all_of(have.begin(), have.end(),
                                    [](uint16_t value) { return value == 0xffff; }));
            continue;
          }
          Floats mixed(RowOf(a_rounded, group.row, dim).begin(),
                       RowOf(a_rounded, group.row, dim).end());
          if (ratio == 2) {
            FloatSpan a0, g0;
            if (group.from_tail != 0) {
              const float* tail =
                  reference::TailOf(windows, group.entry * 2, dim, step.window(group.part));
              a0 = FloatSpan(tail, dim);
              g0 = FloatSpan(tail + dim, dim);
            } else {
              a0 = RowOf(a, group.row - 1, dim);
              g0 = RowOf(g, group.row - 1, dim);
            }
            mixed =
                reference::MixedPair(a0, g0, RowOf(a, group.row, dim), RowOf(g, group.row, dim));
          }
          // A mixed pair is rounded to bf16 before the norm: a step there may be two after it.
          agreement.AddBf16(have, reference::Norm(mixed, norm, kNormEps), 1e-6f, 2);
        }
      }
    }
  }
  agreement.Expect();
}

TEST(Kernels, TailsKeepTheLastEvenPositions) {
  RP_NEEDS_DEVICE();
  for (const auto& [dim, tail_rows] : kTailShapes) {
    for (const auto& list : AwkwardSteps()) {
      RandomStep step(list, 0, {.window_bytes = kTailsAt + uint64_t{tail_rows} * dim * 8 + 16}, 11);
      SCOPED_TRACE(Rows(step) + ", dim " + std::to_string(dim));
      const WindowView windows = TailsOf(tail_rows);
      const Floats a = RandomFloats(size_t{step.rows()} * dim, 0, 1, 12);
      const Floats g = RandomFloats(size_t{step.rows()} * dim, 0, 1, 13);
      const OnDevice<float> device_a(a), device_g(g);
      Launched(
          LaunchStoreTails(step.view(), windows, device_a.data(), device_g.data(), dim, nullptr));
      for (uint32_t row = 0; row < step.rows(); ++row) {
        const DevicePart& part = step.parts[step.part_of_row[row]];
        const uint32_t position = step.positions[row];
        if (!reference::IsKept(windows, position, part.first + part.rows, part.write_from)) {
          continue;
        }
        float* tail = reference::TailOf(windows, position, dim, step.window(step.part_of_row[row]));
        std::copy_n(&a[size_t{row} * dim], dim, tail);
        std::copy_n(&g[size_t{row} * dim], dim, tail + dim);
      }
      ExpectSame(step.DeviceWindows(), step.windows);
    }
  }
}

struct EntryShape {
  uint32_t dim, index_dim, pairs, block_shift;
};

EntryView EntriesOf(const EntryShape& shape) {
  const uint32_t entries = 1u << shape.block_shift;
  EntryView view{.block_shift = shape.block_shift,
                 .main_codes = 32,
                 .main_code_bytes = shape.dim / 2,
                 .main_scale_bytes = shape.dim / 16,
                 .index_code_bytes = shape.index_dim / 2,
                 .index_scale_bytes = shape.index_dim / 32};
  view.main_scales = view.main_codes + entries * view.main_code_bytes;
  view.index_codes = view.main_scales + entries * view.main_scale_bytes;
  view.index_scales = view.index_codes + entries * view.index_code_bytes;
  return view;
}

TEST(Kernels, EntriesAreWrittenAsCodesAndNothingElseIs) {
  RP_NEEDS_DEVICE();
  Agreement main("main codes"), index("index codes");
  for (const EntryShape& shape : {EntryShape{64, 32, 8, 3}, EntryShape{512, 128, 32, 7}}) {
    const uint32_t entries = 1u << shape.block_shift;
    const EntryView view = EntriesOf(shape);
    const uint64_t payload = view.index_scales + entries * view.index_scale_bytes + 16;
    for (const auto& list : AwkwardSteps()) {
      for (const uint32_t ratio : {1u, 2u}) {
        RandomStep step(list, shape.pairs,
                        {.blocks = (1002 / ratio >> shape.block_shift) + 1,
                         .payload_bytes = (payload + 15) / 16 * 16},
                        14);
        SCOPED_TRACE(Rows(step) + ", ratio " + std::to_string(ratio));
        Floats frequencies(shape.pairs);
        for (uint32_t i = 0; i < shape.pairs; ++i) {
          frequencies[i] = static_cast<float>(std::pow(160'000.0, -1.0 * i / shape.pairs));
        }
        const std::vector<DeviceGroup> groups = GroupsOf(step, ratio);
        Bits latents = RandomBits(groups.size() * shape.dim, 1.5f, 15);
        std::fill_n(latents.begin() + shape.dim, 16, uint16_t{0});
        const Bits keys = RandomBits(groups.size() * shape.index_dim, 1, 16);
        const Floats norm = RandomFloats(shape.index_dim, 1, 0.3f, 17);
        const Floats latent_values = FromBits(latents), key_values = FromBits(keys);
        const OnDevice<uint16_t> device_latents(latents), device_keys(keys);
        const OnDevice<float> device_norm(norm), device_frequencies(frequencies);
        const OnDevice<DeviceGroup> device_groups(groups);
        Launched(LaunchWriteEntries(
            step.view(), view, device_groups.data(), static_cast<uint32_t>(groups.size()), ratio,
            device_frequencies.data(), device_latents.data(), shape.dim, device_keys.data(),
            device_norm.data(), shape.index_dim, kNormEps, nullptr));
        const std::vector<uint8_t> got = step.DevicePayloads();
        Floats cosines(shape.pairs), sines(shape.pairs);
        for (size_t i = 0; i < groups.size(); ++i) {
          const DeviceGroup& group = groups[i];
          if (group.part == kNoPart) continue;
          reference::Rotations(group.entry * ratio, frequencies, cosines.data(), sines.data());
          reference::Entry want = reference::EntryOf(
              RowOf(latent_values, i, shape.dim), RowOf(key_values, i, shape.index_dim), norm,
              kNormEps, {.cosines = cosines.data(), .sines = sines.data(), .pairs = shape.pairs});
          uint8_t* payload_host = step.payload(group.part, group.entry >> shape.block_shift);
          const uint8_t* have = &got[static_cast<size_t>(payload_host - step.payloads.data())];
          const uint32_t row = group.entry % entries;
          const uint8_t* main_codes = have + view.main_codes + row * view.main_code_bytes;
          const uint8_t* main_scales = have + view.main_scales + row * view.main_scale_bytes;
          const uint8_t* index_codes = have + view.index_codes + row * view.index_code_bytes;
          const uint8_t* index_scales = have + view.index_scales + row * view.index_scale_bytes;
          main.AddCodes(Agreement::Quantiser::kB, main_codes, main_scales, want.main);
          index.AddCodes(Agreement::Quantiser::kC, index_codes, index_scales, want.index);
          // Then what the device has, so that all else can be compared.
          want.main.codes.assign(main_codes, main_codes + view.main_code_bytes);
          want.main.scales.assign(main_scales, main_scales + view.main_scale_bytes);
          want.index.codes.assign(index_codes, index_codes + view.index_code_bytes);
          want.index.scales.assign(index_scales, index_scales + view.index_scale_bytes);
          reference::WriteEntry(view, group.entry, want, payload_host);
        }
        ExpectSame(got, step.payloads);
      }
    }
  }
  main.Expect();
  index.Expect();
}

}  // namespace
}  // namespace reprise::engine::cuda::test
