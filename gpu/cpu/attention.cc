// Queries, window keys and the attention of a layer (model-facts section 3).
#include <cmath>

#include "gpu/cpu/step.h"

namespace reprise::engine::cpu {

const Rotation& RotationOf(const Machine& machine, uint32_t layer, const Step& step) {
  return machine.geometry.layers[layer].ratio == 0 ? step.plain : step.compressed;
}

namespace {

// kv of the step's rows as wkv gave it: normed, rotated, and through the window's format.
void FinishKv(Machine& machine, uint32_t layer, size_t row, Step& step) {
  const ModelConfig& c = machine.config;
  const size_t dim = c.head_dim, pairs = c.rope_dim / 2;
  const Rotation& rotation = RotationOf(machine, layer, step);
  float* kv = &step.kv[row * dim];
  uint8_t* codes = &step.kv_codes[row * machine.geometry.window_row.code_bytes];
  uint8_t* scales = &step.kv_scales[row * machine.geometry.window_row.scale_bytes];
  const Kernels& kernels = machine.kernels;
  kernels.rms_norm(kv, machine.weights.layers[layer].attn.kv_norm.data(), dim,
                   static_cast<float>(c.rms_norm_eps), kv);
  kernels.rotate(kv + dim - c.rope_dim, &rotation.cosines[row * pairs],
                 &rotation.sines[row * pairs], pairs);
  kernels.quantise_a(kv, dim, codes, scales);
  kernels.dequantise_a(codes, scales, dim, kv);
}

}  // namespace

void LocalKv(Machine& machine, uint32_t layer, const float* input_round, Step& step) {
  const ModelConfig& c = machine.config;
  machine.Multiply({.matrix = &machine.weights.layers[layer].attn.wkv,
                    .x = input_round,
                    .x_stride = c.hidden_size,
                    .y = step.kv.data(),
                    .y_stride = c.head_dim,
                    .rows = step.rows});
  machine.ForRows(step.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    for (uint32_t row = first; row < end; ++row) FinishKv(machine, layer, row, step);
  });
}

void Project(Machine& machine, uint32_t layer, Step& step) {
  const ModelConfig& c = machine.config;
  const AttentionWeights& weights = machine.weights.layers[layer].attn;
  const Rotation& rotation = RotationOf(machine, layer, step);
  const size_t low = c.q_lora_rank, pairs = c.rope_dim / 2;
  const size_t heads_dim = size_t{c.heads} * c.head_dim;
  const Machine::Product down[] = {{.matrix = &weights.wq_a,
                                    .x = step.x_round.data(),
                                    .x_stride = c.hidden_size,
                                    .y = step.qr.data(),
                                    .y_stride = low,
                                    .rows = step.rows},
                                   {.matrix = &weights.wkv,
                                    .x = step.x_round.data(),
                                    .x_stride = c.hidden_size,
                                    .y = step.kv.data(),
                                    .y_stride = c.head_dim,
                                    .rows = step.rows}};
  machine.Multiply(down);
  machine.ForRows(step.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    for (size_t row = first; row < end; ++row) {
      float* qr = &step.qr[row * low];
      machine.kernels.rms_norm(qr, weights.q_norm.data(), low, static_cast<float>(c.rms_norm_eps),
                               qr);
      machine.kernels.round_a(qr, low, &step.qr_round[row * low]);
      FinishKv(machine, layer, row, step);
    }
  });
  machine.Multiply({.matrix = &weights.wq_b,
                    .x = step.qr_round.data(),
                    .x_stride = low,
                    .y = step.query.data(),
                    .y_stride = heads_dim,
                    .rows = step.rows});
  machine.ForRows(step.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    for (size_t row = first; row < end; ++row) {
      for (uint32_t head = 0; head < c.heads; ++head) {
        float* q = &step.query[row * heads_dim + size_t{head} * c.head_dim];
        machine.kernels.rotate(q + c.head_dim - c.rope_dim, &rotation.cosines[row * pairs],
                               &rotation.sines[row * pairs], pairs);
      }
    }
  });
}

// ---- Attention ---------------------------------------------------------------------------------

namespace {

// Window keys of positions [first - (window - 1), first) of every part, decoded from its ring.
class PastKeys {
 public:
  PastKeys(Machine& machine, uint32_t layer, Step& step)
      : span_(machine.config.window - 1), dim_(machine.config.head_dim), values_(step.past) {
    const size_t floats = step.parts.size() * span_ * dim_;
    if (values_.size() < floats) values_.resize(floats);
    machine.pool.Run(static_cast<uint32_t>(step.parts.size()), [&](uint32_t part, uint32_t) {
      const Step::Part& p = step.parts[part];
      const uint32_t from = std::max(p.windows_from, p.first - std::min(p.first, span_));
      for (uint32_t position = from; position < p.first; ++position) {
        std::byte* window = p.segment->memory.window;
        machine.kernels.dequantise_a(machine.windows.codes(window, layer, position),
                                     machine.windows.scales(window, layer, position), dim_,
                                     At(part, p.first, position));
      }
    });
  }
  float* At(uint32_t part, uint32_t first, uint32_t position) {
    return &values_[(size_t{part} * span_ + (position + span_ - first)) * dim_];
  }

 private:
  uint32_t span_;
  size_t dim_;
  Floats& values_;
};

struct Task {
  uint32_t part, row, head, heads;  // Row within the part; heads from `head` on.
};

// All rows, and where there are few of them the groups of 4 heads of each.
std::vector<Task> TasksOf(const Machine& machine, const Step& step) {
  const uint32_t heads = machine.config.heads;
  const bool few = step.rows < 4 * machine.pool.threads() && heads > 4;
  const uint32_t heads_of_task = few ? 4 : heads;
  std::vector<Task> tasks;
  for (uint32_t part = 0; part < step.parts.size(); ++part) {
    for (uint32_t row = 0; row < step.parts[part].rows; ++row) {
      for (uint32_t head = 0; head < heads; head += heads_of_task) {
        tasks.push_back({part, row, head, heads_of_task});
      }
    }
  }
  return tasks;
}

class RowAttention {
 public:
  RowAttention(Machine& machine, uint32_t layer, Step& step, PastKeys& past)
      : machine_(machine), layer_(layer), step_(step), past_(past) {}

  void Run(const Task& task, float* scratch) {
    const ModelConfig& c = machine_.config;
    const Step::Part& part = step_.parts[task.part];
    const size_t row = part.row + task.row;
    const size_t values = size_t{task.heads} * c.head_dim;
    const size_t at = row * c.heads * c.head_dim + size_t{task.head} * c.head_dim;
    float* top = scratch;
    float* total = top + task.heads;
    float* sum = total + task.heads;
    float* decoded = sum + values;
    std::fill_n(top, task.heads, -1e30f);
    std::fill_n(total, task.heads + values, 0.0f);
    const float* keys[kAttentionBlock];
    AttentionCall call{
        .query = &step_.query[at],
        .heads = task.heads,
        .dim = c.head_dim,
        .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim))),
        .keys = keys,
        .top = top,
        .total = total,
        .sum = sum};
    const bool selects = machine_.geometry.layers[layer_].ratio != 0;
    if (selects) FetchSelection(task);
    Window(task, keys, &call);
    if (selects) Selection(task, decoded, keys, &call);
    const float* sinks = &machine_.weights.layers[layer_].attn.sinks[task.head];
    machine_.kernels.attention_end(call, sinks, &step_.attended[at]);
  }

  static size_t ScratchFloats(const ModelConfig& c) {
    return size_t{c.heads} * (c.head_dim + 2) + size_t{kAttentionBlock} * c.head_dim;
  }

 private:
  // The list of a row has `window` places for positions ascending to its own; those before the
  // text or before the replay's start are empty.
  void Window(const Task& task, const float** keys, AttentionCall* call) {
    const Step::Part& part = step_.parts[task.part];
    const int64_t position = int64_t{part.first} + task.row;
    const int64_t lowest = part.windows_from;
    for (uint32_t block = 0; block < machine_.config.window; block += kAttentionBlock) {
      const int64_t begin = position - machine_.config.window + 1 + block;
      const int64_t end = std::min(begin + kAttentionBlock, position + 1);
      call->count = 0;
      for (int64_t at = std::max(begin, lowest); at < end; ++at) {
        const auto p = static_cast<uint32_t>(at);
        keys[call->count++] =
            p < part.first
                ? past_.At(task.part, part.first, p)
                : &step_.kv[(part.row + size_t{p} - part.first) * machine_.config.head_dim];
      }
      machine_.kernels.attention_block(*call);
    }
  }

  std::span<const int32_t> SelectedOf(const Task& task) const {
    const size_t row = step_.parts[task.part].row + size_t{task.row};
    const uint32_t count = machine_.config.index_topk;
    return {&step_.selected[row * count], count};
  }
  EntryPlace PlaceOf(const Task& task, int32_t entry) const {
    return machine_.EntriesOf(layer_).Of(step_.parts[task.part].segment->memory,
                                         static_cast<uint32_t>(entry));
  }

  // The entries lie all over a long text: they come into the cache while the window is attended.
  void FetchSelection(const Task& task) const {
    constexpr uint32_t kLine = 64;
    const uint32_t code_bytes = machine_.config.head_dim / 2;
    for (const int32_t entry : SelectedOf(task)) {
      if (entry < 0) return;
      const EntryPlace place = PlaceOf(task, entry);
      for (uint32_t at = 0; at < code_bytes; at += kLine) {
        __builtin_prefetch(place.main_codes + at, 0, 2);
      }
      __builtin_prefetch(place.main_scales, 0, 2);
    }
    // GCC takes a function that prefetches and nothing else for one without effect, and leaves its
    // calls out.
    asm volatile("" ::: "memory");
  }

  void Selection(const Task& task, float* decoded, const float** keys, AttentionCall* call) {
    const ModelConfig& c = machine_.config;
    const std::span<const int32_t> selected = SelectedOf(task);
    for (uint32_t block = 0; block < c.index_topk; block += kAttentionBlock) {
      const uint32_t end = std::min(block + kAttentionBlock, c.index_topk);
      call->count = 0;
      for (uint32_t i = block; i < end && selected[i] >= 0; ++i) {
        const EntryPlace place = PlaceOf(task, selected[i]);
        float* key = decoded + size_t{call->count} * c.head_dim;
        machine_.kernels.dequantise_b(place.main_codes, place.main_scales, c.head_dim, key);
        keys[call->count++] = key;
      }
      if (call->count == 0) return;
      machine_.kernels.attention_block(*call);
    }
  }

  Machine& machine_;
  uint32_t layer_;
  Step& step_;
  PastKeys& past_;
};

}  // namespace

void Attend(Machine& machine, uint32_t layer, Step& step) {
  PastKeys past(machine, layer, step);
  RowAttention attention(machine, layer, step, past);
  const std::vector<Task> tasks = TasksOf(machine, step);
  machine.pool.Run(static_cast<uint32_t>(tasks.size()), [&](uint32_t task, uint32_t worker) {
    attention.Run(tasks[task],
                  machine.Scratch(worker, RowAttention::ScratchFloats(machine.config)));
  });
}

void ProjectOut(Machine& machine, uint32_t layer, Step& step) {
  const ModelConfig& c = machine.config;
  const AttentionWeights& weights = machine.weights.layers[layer].attn;
  const Rotation& rotation = RotationOf(machine, layer, step);
  const size_t pairs = c.rope_dim / 2, heads_dim = size_t{c.heads} * c.head_dim;
  const size_t low = size_t{c.o_groups} * c.o_lora_rank;
  machine.ForRows(step.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    Floats back(pairs);
    for (size_t row = first; row < end; ++row) {
      for (size_t i = 0; i < pairs; ++i) back[i] = -rotation.sines[row * pairs + i];
      for (uint32_t head = 0; head < c.heads; ++head) {
        float* o = &step.attended[row * heads_dim + size_t{head} * c.head_dim];
        machine.kernels.rotate(o + c.head_dim - c.rope_dim, &rotation.cosines[row * pairs],
                               back.data(), pairs);
      }
    }
  });
  std::vector<Machine::Product> groups;
  for (uint32_t g = 0; g < c.o_groups; ++g) {
    groups.push_back({.matrix = &weights.wo_a[g],
                      .x = step.attended.data() + g * (heads_dim / c.o_groups),
                      .x_stride = heads_dim,
                      .y = step.low.data() + size_t{g} * c.o_lora_rank,
                      .y_stride = low,
                      .rows = step.rows});
  }
  machine.Multiply(groups);
  machine.ForRows(step.rows, 64, [&](uint32_t first, uint32_t end, uint32_t) {
    for (size_t row = first; row < end; ++row) {
      machine.kernels.round_a(&step.low[row * low], low, &step.low_round[row * low]);
    }
  });
  machine.Multiply({.matrix = &weights.wo_b,
                    .x = step.low_round.data(),
                    .x_stride = low,
                    .y = step.h.data(),
                    .y_stride = c.hidden_size,
                    .rows = step.rows});
}

void WriteWindows(Machine& machine, uint32_t layer, Step& step) {
  const WindowRow& row_bytes = machine.geometry.window_row;
  for (const Step::Part& part : step.parts) {
    std::byte* window = part.segment->memory.window;
    const uint32_t skip = part.rows - std::min(part.rows, machine.windows.ring_rows);
    for (uint32_t row = skip; row < part.rows; ++row) {
      const size_t at = part.row + size_t{row};
      const uint32_t position = part.first + row;
      std::copy_n(&step.kv_codes[at * row_bytes.code_bytes], row_bytes.code_bytes,
                  machine.windows.codes(window, layer, position));
      std::copy_n(&step.kv_scales[at * row_bytes.scale_bytes], row_bytes.scale_bytes,
                  machine.windows.scales(window, layer, position));
    }
  }
}

}  // namespace reprise::engine::cpu
