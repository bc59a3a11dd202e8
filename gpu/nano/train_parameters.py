"""Parameters of the training model and how they start.

Names are the checkpoint's with '.' written '/', except that a layer's routed experts are stacked:
experts.w13 [experts, w1 rows then w3 rows, columns] and experts.w2.
"""
import torch
from torch import nn

from config import load_config
from tables import EngramHash, rope_frequencies
from train_ops import DTYPE, weight_block


class Parameters(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        c = self.c = config or load_config()
        self.hash = {layer: EngramHash(c, layer) for layer in c.engram_layer_ids}
        self.freq = {r: rope_frequencies(c, r) for r in (0, 1)}
        self.qat = False
        self.generator = torch.Generator().manual_seed(1)
        self.add("embed.weight", c.vocab_size, c.hidden_size, std=1.0)
        self.add("head.weight", c.vocab_size, c.hidden_size, std=0.02)
        self.add("norm.weight", c.hidden_size, value=1)
        for layer in range(c.layers + c.stages):
            self.add_layer(layer)
        self.add_draft()

    def add(self, name, *shape, std=None, value=None):
        """A constant, or normal values; by default of the deviation that keeps a product's size."""
        if value is not None:
            t = torch.full(shape, float(value))
        else:
            deviation = std if std is not None else shape[-1] ** -0.5
            t = torch.randn(*shape, generator=self.generator) * deviation
        self.register_parameter(name.replace(".", "/"), nn.Parameter(t))

    def add_layer(self, layer):
        c = self.c
        p = f"layers.{layer}." if layer < c.layers else f"mtp.{layer - c.layers}."
        for part in ("attn", "ffn"):
            self.add_mix(p, part)
        self.add_attention(p)
        self.add_experts(p, c.n_routed_experts if layer < c.layers else c.dspark_n_routed_experts)
        if layer in c.kv_source_layer_ids:
            self.add_compressor(p + "attn.", c.compress_ratios[layer])
        if layer in c.index_source_layer_ids:
            p += "attn.indexer."
            self.add(p + "wq_b.weight", c.index_n_heads * c.index_head_dim, c.q_lora_rank)
            self.add(p + "weights_proj.weight", c.index_n_heads, c.hidden_size)
        if layer in c.engram_layer_ids:
            self.add_engram(layer)

    def add_mix(self, p, part):
        c = self.c
        copies = c.hc_mult
        count = copies * (copies + 2)
        self.add(p + part + "_norm.weight", c.hidden_size, value=1)
        self.add(p + f"hc_{part}_fn", count, copies * c.hidden_size, std=0.02)
        self.add(p + f"hc_{part}_base", count, value=0)
        self.add(p + f"hc_{part}_scale", 3, value=0.1)
        # Near a plain residual network: read the mean copy, write to all, keep the copies.
        base = self.p(p + f"hc_{part}_base").data
        base[:copies] = -1.0
        base[2 * copies:] = torch.eye(copies).flatten() * 3.0

    def add_attention(self, p):
        c = self.c
        width, heads, dim = c.hidden_size, c.num_attention_heads, c.head_dim
        self.add(p + "attn.wq_a.weight", c.q_lora_rank, width)
        self.add(p + "attn.q_norm.weight", c.q_lora_rank, value=1)
        self.add(p + "attn.wq_b.weight", heads * dim, c.q_lora_rank)
        self.add(p + "attn.wkv.weight", dim, width)
        self.add(p + "attn.kv_norm.weight", dim, value=1)
        self.add(p + "attn.wo_a.weight", c.o_groups * c.o_lora_rank, heads * dim // c.o_groups)
        self.add(p + "attn.wo_b.weight", width, c.o_groups * c.o_lora_rank, std=0.01)
        self.add(p + "attn.attn_sink", heads, value=0)

    def add_experts(self, p, experts):
        width, inner = self.c.hidden_size, self.c.moe_intermediate_size
        self.add(p + "ffn.gate.weight", experts, width, std=0.02)
        self.register_buffer((p + "ffn.gate.bias").replace(".", "/"), torch.zeros(experts))
        self.add(p + "ffn.experts.w13", experts, 2 * inner, width)
        self.add(p + "ffn.experts.w2", experts, width, inner, std=0.01)
        self.add(p + "ffn.shared_experts.w1.weight", inner, width)
        self.add(p + "ffn.shared_experts.w3.weight", inner, width)
        self.add(p + "ffn.shared_experts.w2.weight", width, inner, std=0.01)

    def add_compressor(self, p, ratio):
        c = self.c
        self.add(p + "compressor.wkv.weight", c.head_dim, c.hidden_size)
        if ratio == 2:
            self.add(p + "compressor.wgate.weight", c.head_dim, c.hidden_size, std=0.02)
        self.add(p + "compressor.norm.weight", c.head_dim, value=1)
        self.add(p + "indexer.wk.weight", c.index_head_dim, c.head_dim)
        self.add(p + "indexer.k_norm.weight", c.index_head_dim, value=1)

    def add_engram(self, layer):
        c, p = self.c, f"layers.{layer}.engram."
        columns = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
        self.add(p + "embed.weight", self.hash[layer].rows, c.engram_head_dim, std=0.5)
        self.add(p + "wkv.weight", (c.hc_mult + 1) * c.hidden_size, columns, std=0.02)
        self.add(p + "q_weight", c.hc_mult, c.hidden_size, value=1)
        self.add(p + "k_weight", c.hc_mult, c.hidden_size, value=1)

    def add_draft(self):
        c, width, last = self.c, self.c.hidden_size, f"mtp.{self.c.stages - 1}."
        self.add("mtp.0.main_proj.weight", width, len(c.dspark_target_layer_ids) * width)
        self.add("mtp.0.main_norm.weight", width, value=1)
        self.add(last + "norm.weight", width, value=1)
        self.add(last + "markov_head.embed.weight", c.vocab_size, c.dspark_markov_rank, std=0.1)
        self.add(last + "markov_head.head.weight", c.vocab_size, c.dspark_markov_rank, std=0.02)
        self.add(last + "confidence_head.proj.weight", 1, width + c.dspark_markov_rank, std=0.01)

    # ---- Access by the checkpoint's names --------------------------------------------------------

    def p(self, name):
        return getattr(self, name.replace(".", "/"))

    def bf(self, name):
        return self.p(name).to(DTYPE)

    def block(self, name):
        """An FP8 weight."""
        return weight_block(self.p(name), self.qat)

    def buffers_to(self, device):
        """Moves everything, tables included."""
        for h in self.hash.values():
            h.to(device)
        self.freq = {r: f.to(device) for r, f in self.freq.items()}
        return self.to(device)
