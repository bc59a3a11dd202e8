#include "tests/gpu/cuda/bench_small.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/cuda/linear.h"
#include "gpu/cuda/mix_layout.h"
#include "gpu/cuda/random_fill.h"
#include "tests/gpu/cuda/bench_table.h"
#include "tests/gpu/cuda/device_fixture.h"
#include "tests/gpu/cuda/kernel_fixture.h"

namespace reprise::engine::cuda::bench {
namespace {

using test::Must;
using test::OnDevice;
using test::RouteOutputs;

constexpr uint32_t kCopies = 4;
constexpr uint32_t kFirst = 4095;  // Position of a sequence's row, where each has one.
constexpr uint32_t kBlockTokens = 128, kEntryBytes = 356;
constexpr uint32_t kBlocks = (kFirst + 1) / kBlockTokens;  // Of a sequence.
constexpr float kEps = 1e-20f;

// bf16 and float values about 0, and zeros.
class Values {
 public:
  Values(uint64_t count, bool floats, cudaStream_t stream)
      : memory_(Must(DeviceMemory::Allocate(count * (floats ? 4 : 2)))) {
    if (floats) {
      FillFloat(memory_.data(), count, 7, 0.25f, 1, stream);
    } else {
      FillBf16(memory_.data(), count, 8, 1, stream);
    }
  }
  uint16_t* bits() const { return memory_.as<uint16_t>(); }
  float* floats() const { return memory_.as<float>(); }

 private:
  DeviceMemory memory_;
};

// A call of `rows` rows: of one sequence's prompt, or where they are few of as many sequences.
struct BenchStep {
  BenchStep(uint32_t rows, uint32_t pairs, uint64_t window_bytes, uint64_t block_bytes)
      : one_part(rows > 128),
        windows(Must(DeviceMemory::Allocate((one_part ? 1 : rows) * window_bytes))),
        blocks(Must(DeviceMemory::Allocate((one_part ? kBlocks : rows) * block_bytes))),
        angles(std::vector<float>(size_t{rows} * pairs, 0.6f)) {
    std::vector<DevicePart> list;
    std::vector<uint32_t> of_row(rows), position(rows);
    std::vector<int32_t> token(rows);
    std::vector<std::byte*> block_list;
    for (uint32_t p = 0; p < (one_part ? 1 : rows); ++p) {
      list.push_back({.window = windows.data() + p * window_bytes,
                      .first_block = static_cast<uint32_t>(block_list.size()),
                      .row = p,
                      .rows = one_part ? rows : 1,
                      .first = one_part ? 0 : kFirst});
      for (uint32_t b = 0; b < kBlocks; ++b) {
        block_list.push_back(blocks.data() + (one_part ? b : p) * block_bytes);
      }
    }
    for (uint32_t r = 0; r < rows; ++r) {
      of_row[r] = one_part ? 0 : r;
      position[r] = one_part ? r : kFirst;
      token[r] = static_cast<int32_t>(r);
    }
    parts.Put(list);
    part_of_row.Put(of_row);
    positions.Put(position);
    tokens.Put(token);
    image.Put(std::vector<uint8_t>(rows, 0));
    device_blocks.Put(block_list);
    view = {.rows = rows,
            .parts = static_cast<uint32_t>(list.size()),
            .part = parts.data(),
            .part_of_row = part_of_row.data(),
            .positions = positions.data(),
            .tokens = tokens.data(),
            .image = image.data(),
            .blocks = device_blocks.data(),
            .cosines = {angles.data(), angles.data()},
            .sines = {angles.data(), angles.data()},
            .pairs = pairs};
  }

  bool one_part;
  DeviceMemory windows, blocks;
  OnDevice<float> angles;
  OnDevice<DevicePart> parts{kRowsMax};
  OnDevice<uint32_t> part_of_row{kRowsMax}, positions{kRowsMax};
  OnDevice<int32_t> tokens{kRowsMax};
  OnDevice<uint8_t> image{kRowsMax};
  OnDevice<std::byte*> device_blocks{kRowsMax};
  StepView view;

 private:
  static constexpr uint32_t kRowsMax = 4096;
};

// What becomes mixes, and where they go.
struct BenchMixes {
  BenchMixes(const ModelConfig& c, uint32_t rows, cudaStream_t stream)
      : base(kMixes, true, stream),
        partials(uint64_t{rows} * (c.hidden_size / 64) * kMixPartials, true, stream),
        pre(rows * kCopies, true, stream),
        post(rows * kCopies, true, stream),
        comb(rows * kCopies * kCopies, true, stream),
        call{.shape = {.hidden = c.hidden_size, .eps = kEps},
             .rows = rows,
             .weights = {.base = base.floats(),
                         .scale = base.floats(),
                         .iterations = c.hc_sinkhorn_iters,
                         .eps = 1e-6f},
             .partials = partials.floats(),
             .pre = pre.floats(),
             .post = post.floats(),
             .comb = comb.floats()} {}
  Values base, partials, pre, post, comb;
  MixesCall call;
};

class SmallBench {
 public:
  SmallBench(double read, double bf16)
      : config_(Must(ModelConfig::Preset("v4.1-flash"))),
        hidden_(config_.hidden_size),
        dim_(config_.head_dim),
        pairs_(config_.rope_dim / 2),
        read_(read),
        bf16_(bf16) {
    stream_ = Must(Stream::Create());
  }

  void Run() {
    for (const uint32_t rows : {1u, 128u, 4096u}) {
      rows_ = rows;
      const BenchStep step(rows, pairs_, kWindowBytes, kBlockTokens * kEntryBytes);
      const BenchMixes mixes(config_, rows, stream_.get());
      StreamEnds(step);
      HyperConnections(mixes);
      AroundProducts(step, mixes);
      GlobalKv(step);
      Experts(step, mixes);
      Engram(step);
      if (rows <= 128) CandidatePool();
    }
  }

 private:
  static constexpr uint32_t kWindowBytes = 144 * 528 + 16 * 4096, kTailsAt = 144 * 528;

  // `bytes` are those that must be read or written. Of few rows they may all be in L2, and then it
  // is the launch itself that is measured: one of many that follow one another.
  void Measure(const std::string& name, double bytes, double flops,
               const std::function<cudaError_t(int turn)>& launch) {
    constexpr int kLaunches = 16;
    const double seconds = Seconds(
        stream_.get(), [&](int turn) { Check(launch(turn)); }, kLaunches);
    const std::string row = name + ", " + std::to_string(rows_) + " rows";
    if (bytes / read_ / 1e9 >= flops / bf16_ / 1e12) {
      Row(row + ", " + std::to_string(static_cast<uint64_t>(bytes / 1024)) + " KiB", seconds,
          bytes / seconds / 1e9, read_, "GB/s", 0);
    } else {
      Row(row, seconds, flops / seconds / 1e12, bf16_, "TFLOP/s", 0);
    }
  }
  Values Bf16s(uint64_t count) { return {count, false, stream_.get()}; }
  Values Floats(uint64_t count) { return {count, true, stream_.get()}; }
  // Of a row of the stream, in bytes.
  double StreamBytes() const { return 2.0 * kCopies * hidden_; }

  void StreamEnds(const BenchStep& step) {
    const uint64_t rows = rows_;
    const uint64_t angles = rows * pairs_;
    const Values turns = Floats(4 * angles), frequencies = Floats(pairs_);
    float* const to = turns.floats();
    Measure("rotations", 16.0 * rows_ * pairs_ + 4.0 * rows_, 0, [&](int) {
      return LaunchRotations({.positions = step.view.positions,
                              .rows = rows_,
                              .pairs = pairs_,
                              .frequencies = {frequencies.floats(), frequencies.floats()},
                              .cosines = {to, to + angles},
                              .sines = {to + 2 * angles, to + 3 * angles}},
                             stream_.get());
    });
    const Values table = Bf16s(rows * hidden_), stream = Bf16s(rows * kCopies * hidden_);
    const Values pre = Floats(rows * kCopies), norm = Floats(hidden_), x = Bf16s(rows * hidden_);
    std::vector<uint32_t> backwards(rows);
    for (uint32_t r = 0; r < rows_; ++r) backwards[r] = rows_ - 1 - r;
    const OnDevice<uint32_t> index(backwards);
    Measure("embedding", rows_ * (StreamBytes() + 2.0 * hidden_), 0, [&](int) {
      return LaunchEmbed(step.view, table.bits(), table.bits(), index.data(), hidden_,
                         stream.bits(), pre.floats(), stream_.get());
    });
    const StreamShape shape{.hidden = hidden_, .eps = kEps};
    Measure("collapse and norm", rows_ * (StreamBytes() + 2.0 * hidden_), 0, [&](int) {
      return LaunchCollapse(shape, rows_, stream.bits(), pre.floats(), norm.floats(), nullptr,
                            x.bits(), stream_.get());
    });
    Measure("tap", rows_ * (StreamBytes() + 2.0 * hidden_), 0, [&](int) {
      return LaunchTap(shape, rows_, stream.bits(), 0, 1, x.bits(), stream_.get());
    });
    const Values gathered = Bf16s(rows * kCopies * hidden_);
    Measure("gathered rows of the stream", 2 * rows_ * StreamBytes(), 0, [&](int) {
      return LaunchGatherRows(stream.bits(), index.data(), rows_, 2 * kCopies * hidden_,
                              gathered.bits(), stream_.get());
    });
  }

  void HyperConnections(const BenchMixes& mixes) {
    const uint64_t rows = rows_, values = rows * hidden_;
    const uint32_t chosen = config_.experts_per_token;
    const Values stream = Bf16s(values * kCopies), updated = Bf16s(values * kCopies),
                 h = Bf16s(values), outputs = Bf16s(values * chosen);
    const Values post = Floats(rows * kCopies), comb = Floats(rows * kCopies * kCopies);
    const Values pre = Floats(rows * kCopies), norm = Floats(hidden_);
    const Values y = Bf16s(values), x = Bf16s(values), x_round = Bf16s(values);
    std::vector<uint32_t> slots(rows * chosen);
    for (uint32_t i = 0; i < slots.size(); ++i) slots[i] = i % rows_ * chosen + i / rows_;
    const OnDevice<uint32_t> slot_of(slots);
    // Of as many layers as L2 does not hold.
    const uint64_t fn_values = uint64_t{hidden_ / 64} * kCopies * kMixTileValues;
    constexpr uint32_t kLayers = 40;
    const Values fn = Bf16s(fn_values * kLayers);
    const StreamShape shape{.hidden = hidden_, .eps = kEps};
    // Rows of comb and post that keep the stream as large as it is, turn after turn.
    FillFloat(comb.floats(), rows * kCopies * kCopies, 3, 0.25f, 0.01f, stream_.get());
    FillFloat(post.floats(), rows * kCopies, 4, 0, 0.1f, stream_.get());
    const StreamAdd of_rows{.post = post.floats(), .comb = comb.floats(), .h = h.bits()};
    const StreamAdd of_experts{.post = post.floats(),
                               .comb = comb.floats(),
                               .chosen = chosen,
                               .slot_of = slot_of.data(),
                               .outputs = outputs.bits(),
                               .shared = h.bits()};
    const double update = rows_ * (2 * StreamBytes() + 2.0 * hidden_);
    const double more = rows_ * 2.0 * hidden_ * chosen;
    Measure("update after experts", update + more, 0, [&](int) {
      return LaunchUpdate(shape, rows_, of_experts, stream.bits(), stream_.get());
    });
    // x and x through quantiser A are written; the kernel's three bf16 pieces are what it
    // multiplies.
    const double mix = update + rows_ * 4.0 * hidden_ + 2.0 * static_cast<double>(fn_values);
    const double flops = 2.0 * rows_ * kCopies * hidden_ * kMixes * kMixPieces;
    for (const bool experts : {false, true}) {
      Measure(experts ? "mix after experts" : "mix after attention", mix + (experts ? more : 0),
              flops, [&](int turn) {
                const bool even = turn % 2 == 0;
                return LaunchMix(
                    {.mixes = mixes.call,
                     .add = experts ? of_experts : of_rows,
                     .stream = even ? stream.bits() : updated.bits(),
                     .updated = even ? updated.bits() : stream.bits(),
                     .pre = pre.floats(),
                     .fn = fn.bits() + static_cast<uint32_t>(turn) % kLayers * fn_values,
                     .norm = norm.floats(),
                     .y = y.bits(),
                     .x = x.bits(),
                     .x_round = x_round.bits()},
                    stream_.get());
              });
    }
  }

  WindowView Windows() const {
    return {.window = config_.window,
            .ring_rows = 144,
            .code_bytes = dim_,
            .scale_bytes = dim_ / 32,
            .tail_offset = kTailsAt,
            .tail_rows = 16};
  }

  void AroundProducts(const BenchStep& step, const BenchMixes& mixes) {
    const uint64_t rows = rows_;
    const uint32_t low = config_.q_lora_rank, heads = config_.heads;
    const Values x = Bf16s(rows * hidden_), y = Bf16s(rows * hidden_), weight = Floats(hidden_);
    Measure("quantiser A", 4.0 * rows_ * hidden_, 0,
            [&](int) { return LaunchRoundA(x.bits(), rows * hidden_, y.bits(), stream_.get()); });
    Measure("norm and quantiser A", 4.0 * rows_ * hidden_, 0, [&](int) {
      return LaunchNorm(x.bits(), hidden_, weight.floats(), hidden_, rows_, kEps, true, y.bits(),
                        hidden_, stream_.get());
    });
    const Values projected = Bf16s(rows * (low + dim_)), query = Bf16s(rows * heads * dim_);
    const OnDevice<uint8_t> codes(rows * dim_), scales(rows * dim_ / 32);
    const WindowView windows = Windows();
    const double window_row = dim_ + dim_ / 32.0;
    Measure("projected rows", rows_ * (4.0 * low + 2.0 * dim_ + window_row), 0, [&](int) {
      return LaunchProjected({.step = step.view,
                              .projected = projected.bits(),
                              .low = low,
                              .dim = dim_,
                              .q_norm = weight.floats(),
                              .kv_norm = weight.floats(),
                              .eps = kEps,
                              .codes = codes.data(),
                              .scales = scales.data(),
                              .mixes = mixes.call},
                             stream_.get());
    });
    const double in_rings = step.one_part ? std::min(rows_, windows.ring_rows) : rows_;
    Measure("window rows into rings", 2 * in_rings * window_row, 0, [&](int) {
      return LaunchWriteWindows(step.view, windows, codes.data(), scales.data(), stream_.get());
    });
    Measure("rotation of heads", 8.0 * rows_ * heads * pairs_, 0, [&](int) {
      return LaunchRotateHeads(step.view, 0, query.bits(), heads, dim_, stream_.get());
    });
    const uint32_t index_values = config_.index_heads * config_.index_head_dim;
    Measure("index queries", 4.0 * rows_ * index_values, 0, [&](int) {
      return LaunchIndexQueries(step.view, query.bits(), config_.index_heads,
                                config_.index_head_dim, stream_.get());
    });
  }

  void GlobalKv(const BenchStep& step) {
    const uint64_t rows = rows_;
    const uint32_t index_dim = config_.index_head_dim;
    const Values a = Floats(rows * dim_), g = Floats(rows * dim_), norm = Floats(dim_);
    const Values latents = Bf16s(rows * dim_), keys = Bf16s(rows * index_dim);
    const Values frequencies = Floats(pairs_), bits = Bf16s(rows * dim_);
    const EntryView entries{.block_shift = 7,
                            .main_scales = kBlockTokens * 256,
                            .index_codes = kBlockTokens * 288,
                            .index_scales = kBlockTokens * 352,
                            .main_code_bytes = 256,
                            .main_scale_bytes = 32,
                            .index_code_bytes = 64,
                            .index_scale_bytes = 4};
    for (const uint32_t ratio : {1u, 2u}) {
      std::vector<DeviceGroup> list;
      for (uint32_t r = 0; r < rows_; ++r) {
        const uint32_t position = step.one_part ? r : kFirst;
        if ((position + 1) % ratio != 0) continue;
        list.push_back({.part = step.one_part ? 0 : r,
                        .entry = position / ratio,
                        .row = r,
                        .from_tail = ratio == 2 && !step.one_part ? 1u : 0u});
      }
      const OnDevice<DeviceGroup> groups(list);
      const auto count = static_cast<uint32_t>(list.size());
      const std::string of = " of ratio " + std::to_string(ratio);
      const double input = ratio == 1 ? 2.0 * dim_ : 16.0 * dim_;
      Measure("latents" + of, count * (input + 2.0 * dim_), 0, [&](int) {
        return LaunchLatents(step.view, Windows(), groups.data(), count, ratio,
                             ratio == 1 ? static_cast<const void*>(bits.bits()) : a.floats(),
                             g.floats(), norm.floats(), dim_, kEps, latents.bits(), stream_.get());
      });
      Measure("entries" + of, count * (2.0 * (dim_ + index_dim) + kEntryBytes), 0, [&](int) {
        return LaunchWriteEntries(step.view, entries, groups.data(), count, ratio,
                                  frequencies.floats(), latents.bits(), dim_, keys.bits(),
                                  norm.floats(), index_dim, kEps, stream_.get());
      });
    }
    // Decoding sequences are at an odd position: a prompt alone leaves tails.
    if (!step.one_part) return;
    Measure("tails", 2 * 15.0 * dim_ * 8, 0, [&](int) {
      return LaunchStoreTails(step.view, Windows(), a.floats(), g.floats(), dim_, stream_.get());
    });
  }

  void Experts(const BenchStep& step, const BenchMixes& mixes) {
    const uint64_t rows = rows_;
    const uint32_t experts = config_.routed_experts, chosen = config_.experts_per_token;
    const uint32_t tile_rows = LinearTileRows(std::min(rows_, 2 * (rows_ * chosen / experts + 1)));
    constexpr uint32_t kLayers = 24;
    const uint32_t output_tiles = (experts + 63) / 64, input_tiles = hidden_ / 64;
    const uint64_t gate_values = uint64_t{output_tiles} * input_tiles * 64 * 64;
    const Values gates = Bf16s(gate_values * kLayers), x = Bf16s(rows * hidden_);
    const Values bias = Floats(experts);
    const RouteOutputs routes(rows_, experts, chosen, tile_rows);
    RouteCall route = routes.Call();
    route.bias = route.image_bias = bias.floats();
    route.image = step.view.image;
    route.scaling = 1.5f;
    route.mixes = mixes.call;
    const double bytes = 2.0 * experts * hidden_ + rows_ * (2.0 * hidden_ + 4.0 * experts);
    Measure("gate, routes and plan", bytes, 2.0 * rows_ * experts * hidden_, [&](int turn) {
      const LinearCall gate{
          .matrix = {.outputs = experts,
                     .inputs = hidden_,
                     .output_tiles = output_tiles,
                     .input_tiles = input_tiles,
                     .slices = SlicesOf(experts, false),
                     .codes = gates.bits() + static_cast<uint32_t>(turn) % kLayers * gate_values},
          .output = LinearOutput::kFloat,
          .x = x.bits(),
          .x_stride = hidden_,
          .y = routes.logits.data(),
          .y_stride = experts,
          .rows = rows_};
      return LaunchRoute(gate, route, stream_.get());
    });
  }

  void Engram(const BenchStep& step) {
    const uint64_t rows = rows_;
    const uint32_t dim = config_.engram_head_dim;
    const uint32_t per_token = config_.engram_heads * (config_.engram_max_ngram - 1);
    constexpr uint32_t kTableRows = 1 << 21;  // Many times L2.
    const DeviceMemory codes = Must(DeviceMemory::Allocate(uint64_t{kTableRows} * dim));
    const DeviceMemory scales = Must(DeviceMemory::Allocate(uint64_t{kTableRows} * dim / 32));
    FillRandom(codes.data(), codes.bytes(), 5, 0x7e, stream_.get());
    FillBytes(scales.data(), scales.bytes(), 6, 115, 119, stream_.get());
    std::vector<uint64_t> table_rows(rows * per_token);
    for (uint64_t i = 0; i < table_rows.size(); ++i) {
      table_rows[i] = i * 0x9e3779b97f4a7c15u >> 43;
    }
    const OnDevice<uint64_t> device_rows(table_rows);
    const Values e = Bf16s(rows * per_token * dim);
    Measure("Engram rows", rows_ * per_token * (8 + dim + dim / 32.0 + 2.0 * dim), 0, [&](int) {
      return LaunchEngramLookup(device_rows.data(), rows_, per_token,
                                {.codes = codes.as<uint8_t>(),
                                 .scales = scales.as<uint8_t>(),
                                 .count = kTableRows,
                                 .dim = dim},
                                e.bits(), stream_.get());
    });
    const Values kv = Bf16s(rows * (kCopies + 1) * hidden_),
                 stream = Bf16s(rows * kCopies * hidden_);
    const Values qk = Floats(uint64_t{kCopies} * hidden_);
    const double bytes =
        rows_ * (2 * StreamBytes() + 2.0 * (kCopies + 1) * hidden_) + 4.0 * kCopies * hidden_;
    Measure("Engram gate", bytes, 0, [&](int) {
      return LaunchEngramGate({.hidden = hidden_, .eps = kEps}, rows_, step.view.image, kv.bits(),
                              qk.floats(), stream.bits(), stream_.get());
    });
  }

  // Of 1M scores a row.
  void CandidatePool() {
    constexpr uint32_t kTokens = 1 << 20;
    const uint64_t rows = rows_;
    const uint32_t block = config_.candidate_block_size, most = config_.candidate_topk_blocks;
    const OnDevice<uint32_t> positions(std::vector<uint32_t>(rows, kTokens - 1));
    const Values scores = Floats(rows * kTokens);
    const OnDevice<std::byte> room(SelectRoomBytes());
    const OnDevice<uint32_t> candidates(rows * most * block), counts(rows);
    Measure("pool of 2,048 blocks of 1M", 4.0 * rows_ * (kTokens + most * block), 0, [&](int) {
      return LaunchPool({.step = {.rows = rows_, .positions = positions.data()},
                         .rows = rows_,
                         .scores = scores.floats(),
                         .stride = kTokens,
                         .room = room.data(),
                         .entries_max = kTokens,
                         .block = block,
                         .blocks_max = most,
                         .candidates = candidates.data(),
                         .candidate_counts = counts.data()},
                        stream_.get());
    });
  }

  ModelConfig config_;
  uint32_t hidden_, dim_, pairs_;
  double read_, bf16_;  // GB/s, TFLOP/s
  uint32_t rows_ = 0;
  Stream stream_;
};

}  // namespace

void BenchSmallKernels(double read_gb_per_s, double bf16_tflop_per_s) {
  SmallBench(read_gb_per_s, bf16_tflop_per_s).Run();
}

}  // namespace reprise::engine::cuda::bench
