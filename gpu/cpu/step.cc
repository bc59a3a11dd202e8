#include "gpu/cpu/step.h"

#include <bit>
#include <cmath>

namespace reprise::engine::cpu {

EntryMap::EntryMap(const ModelGeometry& geometry, const SourcePlanes& planes)
    : planes_(planes),
      block_shift_(static_cast<uint32_t>(std::countr_zero(planes.rows))),
      row_mask_(planes.rows - 1),
      main_code_bytes_(geometry.kv.main.code_bytes()),
      main_scale_bytes_(geometry.kv.main.scale_bytes()),
      index_code_bytes_(geometry.kv.indexer.code_bytes()),
      index_scale_bytes_(geometry.kv.indexer.scale_bytes()) {}

// ---- Machine -----------------------------------------------------------------------------------

Machine::Machine(const ModelGeometry& model_geometry, const ModelWeights& model_weights,
                 const LiveWindowLayout& window_layout, const Kernels& kernel_table,
                 uint32_t threads)
    : geometry(model_geometry),
      config(model_geometry.config),
      weights(model_weights),
      windows(window_layout),
      kernels(kernel_table),
      pool(threads),
      source_index_(model_geometry.all_layers(), kNoLayer),
      scratch_(pool.threads()) {
  for (uint32_t source = 0; source < geometry.record.sources.size(); ++source) {
    source_index_[geometry.record.sources[source].layer] = source;
    entries_.emplace_back(geometry, geometry.record.sources[source]);
  }
}

float* Machine::Scratch(uint32_t worker, size_t floats) {
  Floats& scratch = scratch_[worker];
  if (scratch.size() < floats) scratch.resize(floats);
  return scratch.data();
}

void Machine::Multiply(std::span<const Product> products) {
  // With many rows, a piece is a few tiles times all rows: the tiles are expanded once and the rows
  // stay in the cache. With few rows or tiles, rows are cut too, so that every worker has a share.
  constexpr uint32_t kRowsOfPiece = 96;
  const uint32_t workers = pool.threads();
  pieces_.clear();
  for (uint32_t p = 0; p < products.size(); ++p) {
    const Product& product = products[p];
    if (product.rows == 0) continue;
    const uint32_t tiles = product.matrix->tile_count();
    const bool cut_rows = product.rows > kRowsOfPiece && tiles < 4 * workers;
    const uint32_t row_step = cut_rows ? kRowsOfPiece : product.rows;
    const uint32_t shares = product.rows > 8 ? 2 * workers : workers;
    const uint32_t tile_step = std::max(1u, (tiles + shares - 1) / shares);
    for (uint32_t row = 0; row < product.rows; row += row_step) {
      for (uint32_t tile = 0; tile < tiles; tile += tile_step) {
        pieces_.push_back({p, tile, std::min(tiles, tile + tile_step), row,
                           std::min(product.rows, row + row_step)});
      }
    }
  }
  pool.Run(static_cast<uint32_t>(pieces_.size()), [&](uint32_t task, uint32_t worker) {
    const Piece& piece = pieces_[task];
    const Product& product = products[piece.product];
    kernels.matrix({.matrix = product.matrix->tiles(),
                    .x = product.x + piece.row_begin * product.x_stride,
                    .x_stride = product.x_stride,
                    .y = product.y + piece.row_begin * product.y_stride,
                    .y_stride = product.y_stride,
                    .rows = piece.row_end - piece.row_begin,
                    .tile_begin = piece.tile_begin,
                    .tile_end = piece.tile_end,
                    .round_bf16 = product.round_bf16,
                    .scratch = Scratch(worker, size_t{product.matrix->inputs()} * kTileOutputs)});
  });
}

// ---- Step --------------------------------------------------------------------------------------

void Step::Resize(const ModelGeometry& geometry, uint32_t row_count) {
  const ModelConfig& c = geometry.config;
  rows = row_count;
  const size_t n = row_count;
  positions.resize(n);
  tokens.resize(n);
  image.resize(n);
  for (Rotation* rotation : {&plain, &compressed}) {
    rotation->cosines.resize(n * c.rope_dim / 2);
    rotation->sines.resize(n * c.rope_dim / 2);
  }
  stream.resize(n * c.hc_mult * c.hidden_size);
  pre.resize(n * c.hc_mult);
  post.resize(n * c.hc_mult);
  comb.resize(n * c.hc_mult * c.hc_mult);
  selected.resize(n * c.index_topk);
  taps.resize(n * c.draft_target_layers.size() * c.hidden_size);
  for (Floats* hidden : {&x, &x_round, &h}) hidden->resize(n * c.hidden_size);
  for (Floats* low_rank : {&qr, &qr_round}) low_rank->resize(n * c.q_lora_rank);
  for (Floats* heads : {&query, &attended}) heads->resize(n * c.heads * c.head_dim);
  for (Floats* groups : {&low, &low_round}) groups->resize(n * c.o_groups * c.o_lora_rank);
  kv.resize(n * c.head_dim);
  kv_codes.resize(n * geometry.window_row.code_bytes);
  kv_scales.resize(n * geometry.window_row.scale_bytes);
  mixes.resize(n * kTileOutputs);
  inverse_rms.resize(n);
}

void Step::DropRows(const ModelGeometry& geometry, std::span<const uint32_t> drops) {
  const uint32_t pairs = geometry.config.rope_dim / 2;
  const uint32_t copies = geometry.config.hc_mult;
  const size_t stream_stride = size_t{copies} * geometry.config.hidden_size;
  uint32_t to = 0;
  const auto move = [&](auto& values, size_t stride, uint32_t from, uint32_t count) {
    std::copy_n(values.begin() + from * stride, count * stride, values.begin() + to * stride);
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts[i];
    const uint32_t from = part.row + drops[i];
    const uint32_t count = part.rows - drops[i];
    move(positions, 1, from, count);
    move(tokens, 1, from, count);
    move(image, 1, from, count);
    for (Rotation* rotation : {&plain, &compressed}) {
      move(rotation->cosines, pairs, from, count);
      move(rotation->sines, pairs, from, count);
    }
    move(stream, stream_stride, from, count);
    move(pre, copies, from, count);
    part.row = to;
    part.rows = count;
    part.first += drops[i];
    to += count;
  }
  rows = to;
  std::erase_if(parts, [](const Part& part) { return part.rows == 0; });
}

void EmbedRows(Machine& machine, const Rope& rope, Step& step) {
  const ModelConfig& c = machine.config;
  const size_t hidden = c.hidden_size, pairs = c.rope_dim / 2;
  std::vector<const float*> sources(step.rows);
  for (uint32_t row = 0; row < step.rows; ++row) {
    sources[row] = &machine.weights.embed[static_cast<size_t>(step.tokens[row]) * hidden];
  }
  for (const Step::Part& part : step.parts) {
    const float* image = part.segment->image_rows.data();
    for (uint32_t row = part.row; row < part.row + part.rows; ++row) {
      if (step.image[row] == 0) continue;
      sources[row] = image;
      image += hidden;
    }
  }
  machine.ForRows(step.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    for (size_t row = first; row < end; ++row) {
      for (uint32_t copy = 0; copy < c.hc_mult; ++copy) {
        std::copy_n(sources[row], hidden, &step.stream[(row * c.hc_mult + copy) * hidden]);
        step.pre[row * c.hc_mult + copy] = copy == 0 ? 1.0f : 0.0f;
      }
      for (const bool compressed : {false, true}) {
        Rotation& rotation = compressed ? step.compressed : step.plain;
        rope.At(step.positions[row], compressed, &rotation.cosines[row * pairs],
                &rotation.sines[row * pairs]);
      }
    }
  });
}

}  // namespace reprise::engine::cpu
