// Engram's kernels against their references: table rows, and the gate into the stream.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gpu/formats/number_formats.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/kernel_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

// Sums of terms of up to about 8: what float loses of them.
constexpr float kGateSlack = 4e-6f;

TEST(EngramKernels, EngramRowsGoThroughQuantiserA) {
  RP_NEEDS_DEVICE();
  const struct {
    uint32_t rows, per_token, dim;
  } cases[] = {{1, 24, 256}, {3, 1, 32}, {17, 6, 96}, {130, 24, 64}};
  for (const auto& c : cases) {
    constexpr uint32_t kTableRows = 301;
    Prng prng(c.rows);
    std::vector<uint8_t> codes(kTableRows * c.dim), scales(kTableRows * c.dim / 32);
    for (uint8_t& code : codes) {
      code = static_cast<uint8_t>(prng.Below(256));
      if ((code & 0x7f) == 0x7f) code = 0;
    }
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(95 + prng.Below(40));
    std::fill_n(codes.begin(), c.dim, uint8_t{0});  // A row of zeros.
    std::vector<uint64_t> table_rows(c.rows * c.per_token);
    for (uint64_t& row : table_rows) row = prng.Below(kTableRows);
    table_rows[0] = 0;
    const OnDevice<uint8_t> device_codes(codes), device_scales(scales);
    const OnDevice<uint64_t> device_rows(table_rows);
    const OnDevice<uint16_t> e(table_rows.size() * c.dim);
    // The whole table; and a part of it, whose rows alone are not zeros.
    for (const auto& [first, count] : {std::pair{0u, kTableRows}, {3u, kTableRows / 2}}) {
      Launched(LaunchEngramLookup(device_rows.data(), c.rows, c.per_token,
                                  {.codes = device_codes.data() + first * c.dim,
                                   .scales = device_scales.data() + first * (c.dim / 32),
                                   .first = first,
                                   .count = count,
                                   .dim = c.dim},
                                  e.data(), nullptr));
      const Bits got = e.Get();
      for (size_t i = 0; i < table_rows.size(); ++i) {
        const uint64_t row = table_rows[i];
        Bits want(c.dim, 0);
        if (row >= first && row < first + count) {
          want =
              ToBits(reference::TableRow(RowOf(codes, row, c.dim), RowOf(scales, row, c.dim / 32)));
        }
        ASSERT_TRUE(std::equal(want.begin(), want.end(), RowOf(got, i, c.dim).begin())) << i;
      }
    }
  }
}

TEST(EngramKernels, EngramGatesSpareImageRows) {
  RP_NEEDS_DEVICE();
  Agreement agreement("gated stream");
  for (const uint32_t hidden : {64u, 320u, 5120u}) {
    for (const auto& list : {AwkwardSteps()[1], AwkwardSteps()[2], AwkwardSteps()[4]}) {
      const RandomStep step(list, 0, {}, 51);
      const uint32_t rows = step.rows();
      const size_t of_row = size_t{reference::kCopies} * hidden, of_kv = of_row + hidden;
      const Bits before = RandomBits(rows * of_row, 1, 52);
      Bits kv = RandomBits(rows * of_kv, 1, 53);
      std::fill_n(kv.begin(), hidden, uint16_t{0});  // A key of zeros: the gate is one half.
      const Floats qk = RandomFloats(of_row, 1, 0.5f, 54);
      const OnDevice<uint16_t> stream(before), device_kv(kv);
      const OnDevice<float> device_qk(qk);
      Launched(LaunchEngramGate({.hidden = hidden, .eps = 1e-20f}, rows, step.view().image,
                                device_kv.data(), device_qk.data(), stream.data(), nullptr));
      const Bits got = stream.Get();
      const Floats old = FromBits(before), keys = FromBits(kv);
      for (uint32_t row = 0; row < rows; ++row) {
        const FloatSpan of_token = RowOf(keys, row, of_kv);
        for (uint32_t copy = 0; copy < reference::kCopies; ++copy) {
          const size_t at = size_t{row} * reference::kCopies + copy;
          const auto have = RowOf(got, at, hidden), was = RowOf(before, at, hidden);
          if (step.image[row] != 0) {
            ASSERT_TRUE(std::equal(was.begin(), was.end(), have.begin())) << row;
            continue;
          }
          agreement.AddBf16(
              have,
              reference::Gated(RowOf(old, at, hidden), of_token.subspan(copy * hidden, hidden),
                               RowOf(qk, copy, hidden), of_token.subspan(of_row), 1e-20f),
              kGateSlack);
        }
      }
    }
  }
  agreement.Expect();
}

}  // namespace
}  // namespace reprise::engine::cuda::test
