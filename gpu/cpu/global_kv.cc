// The compressor (model-facts section 4) and the indexer's keys (5.1): latents of groups of tokens,
// quantised straight into block records.
#include "gpu/cpu/step.h"

namespace reprise::engine::cpu {
namespace {

// A group of tokens whose last row is in this step.
struct Group {
  uint32_t part = 0;
  uint32_t entry = 0;
  const float* a[2] = {};  // Ratio 2: of its two tokens.
  const float* g[2] = {};
  uint32_t row = 0;  // Ratio 1: its row.
};

struct Projected {
  Floats a, g;  // [rows][dim]
};

void StoreTails(const Machine& machine, uint32_t layer, const Step& step,
                const Projected& projected) {
  const size_t dim = machine.config.head_dim;
  for (const Step::Part& part : step.parts) {
    const uint32_t end = part.first + part.rows;
    const uint32_t from =
        std::max(part.first, end - std::min(end, 2 * LiveWindowLayout::kTailRows - 1));
    for (uint32_t position = from + from % 2; position < end; position += 2) {
      if (position + 1 < part.segment->write_from) continue;
      float* tail = machine.windows.tail(part.segment->memory.window, layer, position);
      const size_t row = part.row + position - part.first;
      std::copy_n(&projected.a[row * dim], dim, tail);
      std::copy_n(&projected.g[row * dim], dim, tail + dim);
    }
  }
}

// Groups that end in a row from write_from on. The first token of a pair may be an earlier call's:
// then its (a, g) is in the tail.
std::vector<Group> GroupsOf(const Machine& machine, uint32_t layer, const Step& step,
                            const Projected& projected) {
  const size_t dim = machine.config.head_dim;
  const uint32_t ratio = machine.geometry.layers[layer].ratio;
  std::vector<Group> groups;
  for (uint32_t p = 0; p < step.parts.size(); ++p) {
    const Step::Part& part = step.parts[p];
    for (uint32_t row = 0; row < part.rows; ++row) {
      const uint32_t position = part.first + row;
      if (position < part.segment->write_from || (position + 1) % ratio != 0) continue;
      Group group{.part = p, .entry = position / ratio, .row = part.row + row};
      if (ratio == 2) {
        group.a[1] = &projected.a[size_t{group.row} * dim];
        group.g[1] = &projected.g[size_t{group.row} * dim];
        if (row > 0) {
          group.a[0] = group.a[1] - dim;
          group.g[0] = group.g[1] - dim;
        } else {
          group.a[0] = machine.windows.tail(part.segment->memory.window, layer, position - 1);
          group.g[0] = group.a[0] + dim;
        }
      }
      groups.push_back(group);
    }
  }
  return groups;
}

}  // namespace

uint64_t WriteGlobal(Machine& machine, const Rope& rope, uint32_t layer, Step& step) {
  const ModelConfig& c = machine.config;
  const CompressorWeights& weights = *machine.weights.layers[layer].attn.compressor;
  const uint32_t ratio = machine.geometry.layers[layer].ratio;
  const EntryMap& entries = machine.EntriesOf(layer);
  const size_t dim = c.head_dim, index_dim = c.index_head_dim;
  const auto eps = static_cast<float>(c.rms_norm_eps);

  Projected projected;
  projected.a.resize(step.rows * dim);
  std::vector<Machine::Product> products = {{.matrix = &weights.wkv,
                                             .x = step.x.data(),
                                             .x_stride = c.hidden_size,
                                             .y = projected.a.data(),
                                             .y_stride = dim,
                                             .rows = step.rows,
                                             .round_bf16 = ratio == 1}};
  if (ratio == 2) {
    projected.g.resize(step.rows * dim);
    products.push_back(products[0]);
    products[1].matrix = &weights.wgate;
    products[1].y = projected.g.data();
  }
  machine.Multiply(products);
  const std::vector<Group> groups = GroupsOf(machine, layer, step, projected);
  const auto count = static_cast<uint32_t>(groups.size());

  Floats latents(count * dim), keys(count * index_dim);
  machine.ForRows(count, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    for (size_t i = first; i < end; ++i) {
      const Group& group = groups[i];
      float* latent = &latents[i * dim];
      if (ratio == 2) {
        machine.kernels.compress_pair(group.a[0], group.g[0], group.a[1], group.g[1], dim, latent);
      } else {
        std::copy_n(&projected.a[group.row * dim], dim, latent);
      }
      machine.kernels.rms_norm(latent, weights.norm.data(), dim, eps, latent);
    }
  });
  machine.Multiply({.matrix = &weights.wk,
                    .x = latents.data(),
                    .x_stride = dim,
                    .y = keys.data(),
                    .y_stride = index_dim,
                    .rows = count});
  machine.ForRows(count, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    const uint32_t pairs = c.rope_dim / 2;
    Floats cosines(pairs), sines(pairs);
    for (size_t i = first; i < end; ++i) {
      const Group& group = groups[i];
      float* latent = &latents[i * dim];
      float* key = &keys[i * index_dim];
      machine.kernels.rms_norm(key, weights.k_norm.data(), index_dim, eps, key);
      rope.At(group.entry * ratio, true, cosines.data(), sines.data());
      machine.kernels.rotate(key + index_dim - c.rope_dim, cosines.data(), sines.data(), pairs);
      machine.kernels.rotate(latent + dim - c.rope_dim, cosines.data(), sines.data(), pairs);
      const EntryPlace place = entries.Of(step.parts[group.part].segment->memory, group.entry);
      machine.kernels.quantise_b(latent, dim, place.main_codes, place.main_scales);
      machine.kernels.quantise_c(key, index_dim, place.index_codes, place.index_scales);
    }
  });
  if (ratio == 2) StoreTails(machine, layer, step, projected);
  return count;
}

}  // namespace reprise::engine::cpu
