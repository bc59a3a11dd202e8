"""The architecture's maths, literally: every sub-layer on rows of one session.

Every tensor is float32 holding values of the dtype that the architecture prescribes: bf16 after
each rounding point, float32 where it says so.
"""
import torch
import torch.nn.functional as F

import quantisers
from config import load_config
from numerics import NO_SCORE, ascending, product, rms_norm, rotate, top_indices
from quantisers import bf16
from tables import EngramHash, rope_frequencies, rope_table

KEY_BLOCK = 64     # Softmax runs over blocks of so many keys of a row's list.
QUERY_ROWS = 512   # Rows that attend at once; a matter of memory alone.
TOP_START = -1e30  # The running maximum before the first key.


class Layers:
    """Weights and the functions of a layer.

    quantise_cache=False keeps main KV and indexer K in bf16: an ablation, not the model. acc is the
    dtype of sums. A dict in `trace` collects intermediate tensors by name."""

    def __init__(self, weights, config=None, device="cpu", quantise_cache=True, acc=torch.float64):
        self.c = config or load_config()
        self.w = weights
        self.device = device
        self.quantise_cache = quantise_cache
        self.acc = acc
        self.trace = None
        self.freq = {r: rope_frequencies(self.c, r).to(device) for r in (0, 1)}
        self.hash = {n: EngramHash(self.c, n).to(device) for n in self.c.engram_layer_ids}

    def note(self, name, value):
        if self.trace is not None:
            self.trace[name] = value.clone()

    def note_record(self, name, record, value):
        """The stored bytes of a cache entry; made for a trace alone."""
        if self.trace is not None:
            self.trace[name] = record(value)

    def prefix(self, layer):
        return f"layers.{layer}." if layer < self.c.layers else f"mtp.{layer - self.c.layers}."

    # ---- Linear maps -----------------------------------------------------------------------------

    def norm(self, x, name):
        return rms_norm(x, self.w[name], self.c.rms_norm_eps, self.acc)

    def lin8(self, x, name):
        """FP8 or FP4 weights: the activation is quantised too."""
        return bf16(product(quantisers.quant_a(x), self.w[name], self.acc))

    def lin16(self, x, name):
        return bf16(product(x, self.w[name], self.acc))

    def rope(self, layer, pos):
        return rope_table(self.freq[1 if self.c.compress_ratios[layer] else 0], pos)

    # ---- mHC: four copies of the stream ----------------------------------------------------------

    def mix(self, stream, name):
        """pre and post [rows, 4] and comb [rows, 4, 4] of one sub-layer."""
        c, w, h = self.c, self.w, self.c.hc_mult
        flat = stream.flatten(1).to(self.acc)
        rho = torch.rsqrt(flat.square().mean(-1, keepdim=True) + c.rms_norm_eps)
        m = ((flat @ w[name + "_fn"].to(self.acc).T) * rho).to(torch.float32)
        base, scale = w[name + "_base"], w[name + "_scale"]
        pre = torch.sigmoid(m[:, :h] * scale[0] + base[:h]) + c.hc_eps
        post = 2 * torch.sigmoid(m[:, h:2 * h] * scale[1] + base[h:2 * h])
        comb = (m[:, 2 * h:] * scale[2] + base[2 * h:]).reshape(-1, h, h)
        comb = torch.softmax(comb, -1) + c.hc_eps
        comb = comb / (comb.sum(1, keepdim=True) + c.hc_eps)
        for _ in range(c.hc_sinkhorn_iters - 1):
            comb = comb / (comb.sum(2, keepdim=True) + c.hc_eps)
            comb = comb / (comb.sum(1, keepdim=True) + c.hc_eps)
        return pre, post, comb

    def collapse(self, stream, pre):
        return bf16((pre[:, :, None] * stream).sum(1))

    def update(self, stream, h, post, comb):
        mixed = torch.einsum("nak,nad->nkd", comb, stream)
        return bf16(post[:, :, None] * h[:, None, :] + mixed)

    # ---- Attention -------------------------------------------------------------------------------

    def query(self, layer, x, cos, sin):
        """The low-rank latent and the rotated heads [rows, heads, dim]."""
        c, p = self.c, self.prefix(layer) + "attn."
        latent = self.norm(self.lin8(x, p + "wq_a.weight"), p + "q_norm.weight")
        q = self.lin8(latent, p + "wq_b.weight").reshape(-1, c.num_attention_heads, c.head_dim)
        return latent, rotate(q, cos[:, None], sin[:, None])

    def local_kv(self, layer, x, cos, sin):
        """Window rows, as the cache holds them."""
        p = self.prefix(layer) + "attn."
        kv = self.norm(self.lin8(x, p + "wkv.weight"), p + "kv_norm.weight")
        kv = rotate(kv, cos, sin)
        self.note_record(p + "swa_record", quantisers.record_a, kv)
        return quantisers.quant_a(kv)

    def attend(self, layer, cache, q, kv, pos, selected, main):
        """q [rows, heads, dim] over each row's 128 window positions, ascending, then its selection.

        kv are the rows' own window entries; earlier ones come from the ring. selected are entry
        numbers of main, -1 for none; both None in a layer without global KV."""
        c, window, rows = self.c, self.c.sliding_window, q.shape[0]
        ring, ring_pos = cache.ring[layer], cache.ring_pos[layer]
        sink = self.w[self.prefix(layer) + "attn.attn_sink"]
        # Key 0 stands for none, then come ring, rows and main.
        none = torch.zeros(1, c.head_dim, device=q.device)
        keys = torch.cat([none, ring, kv, main if main is not None else kv[:0]])
        first = int(pos[0])
        out = []
        for a in range(0, rows, QUERY_ROWS):
            want = pos[a:a + QUERY_ROWS, None] - window + 1 + torch.arange(window, device=q.device)
            slot = want.remainder(window)
            in_ring = (want >= 0) & (want < first) & (ring_pos[slot] == want)
            earlier = torch.where(in_ring, 1 + slot, torch.zeros_like(want))
            listed = torch.where(want >= first, 1 + window + want - first, earlier)
            if selected is not None:
                s = selected[a:a + QUERY_ROWS]
                s = torch.where(s >= 0, s + 1 + window + rows, torch.zeros_like(s))
                listed = torch.cat([listed, s], 1)
            out.append(self.softmax_sink(q[a:a + QUERY_ROWS], keys, listed, sink))
        return torch.cat(out)

    def softmax_sink(self, q, keys, listed, sink):
        """Blocks of 64 keys in list order, a running maximum, the sink last; 0 is no key."""
        n, heads, dim = q.shape
        top = torch.full((n, heads), TOP_START, device=q.device)
        total = torch.zeros(n, heads, device=q.device, dtype=self.acc)
        value = torch.zeros(n, heads, dim, device=q.device, dtype=self.acc)
        for b in range(0, listed.shape[1], KEY_BLOCK):
            index = listed[:, b:b + KEY_BLOCK]
            k = keys[index].to(self.acc)
            logit = torch.einsum("nhd,nkd->nhk", q.to(self.acc), k).to(torch.float32)
            logit = logit * self.c.scale
            logit = torch.where(index[:, None, :] > 0, logit, torch.full_like(logit, NO_SCORE))
            new = torch.maximum(top, logit.amax(-1))
            p = torch.exp(logit - new[..., None])
            decay = torch.exp(top - new).to(self.acc)
            total = total * decay + p.to(self.acc).sum(-1)
            value = value * decay[..., None] + torch.einsum("nhk,nkd->nhd", bf16(p).to(self.acc), k)
            top = new
        total = total + torch.exp(sink[None, :] - top).to(self.acc)
        return bf16((value / total[..., None]).to(torch.float32))

    def project_out(self, layer, o, cos, sin):
        c, p = self.c, self.prefix(layer) + "attn."
        o = rotate(o, cos[:, None], sin[:, None], inverse=True)
        o = o.reshape(o.shape[0], c.o_groups, -1)
        wa = self.w[p + "wo_a.weight"].reshape(c.o_groups, c.o_lora_rank, -1)
        z = torch.einsum("ngk,gok->ngo", o.to(self.acc), wa.to(self.acc))
        return self.lin8(bf16(z.to(torch.float32)).flatten(1), p + "wo_b.weight")

    # ---- Compressor: global KV -------------------------------------------------------------------

    def write_global(self, layer, cache, x, pos):
        """Appends the main and indexer entries that these rows complete."""
        p = f"layers.{layer}.attn."
        if self.c.compress_ratios[layer] == 1:
            latent, at = self.lin16(x, p + "compressor.wkv.weight"), pos
        else:
            latent, at = self.pair_latents(layer, cache, x, int(pos[0]))
        latent = self.norm(latent, p + "compressor.norm.weight")
        cos, sin = self.rope(layer, at)
        key = self.lin16(latent, p + "indexer.wk.weight")
        key = rotate(self.norm(key, p + "indexer.k_norm.weight"), cos, sin)
        main = rotate(latent, cos, sin)
        self.note_record(p + "main_record", quantisers.record_b, main)
        self.note_record(p + "index_record", quantisers.record_c, key)
        if self.quantise_cache:
            key, main = quantisers.quant_c(key), quantisers.quant_b(main)
        cache.append_global(layer, main, key)

    def pair_latents(self, layer, cache, x, first):
        """Gated means of complete pairs of tokens and their positions; an odd last token waits."""
        p = f"layers.{layer}.attn.compressor."
        a = product(x, self.w[p + "wkv.weight"], self.acc)
        g = product(x, self.w[p + "wgate.weight"], self.acc)
        if first % 2:
            a = torch.cat([cache.tail[layer][0], a])
            g = torch.cat([cache.tail[layer][1], g])
            first -= 1
        pairs = a.shape[0] // 2
        cache.tail[layer] = (a[2 * pairs:], g[2 * pairs:]) if a.shape[0] % 2 else None
        a = a[:2 * pairs].reshape(pairs, 2, self.c.head_dim)
        g = g[:2 * pairs].reshape(pairs, 2, self.c.head_dim)
        at = first + 2 * torch.arange(pairs, device=x.device)
        return bf16((torch.softmax(g, 1) * a).sum(1)), at

    # ---- Indexer: which entries a row attends to -------------------------------------------------

    def scores(self, layer, cache, x, latent, pos):
        """Index scores [rows, entries] in float32, -inf where not visible, and visible counts."""
        c, p = self.c, f"layers.{layer}.attn.indexer."
        cos, sin = self.rope(layer, pos)
        q = self.lin8(latent, p + "wq_b.weight").reshape(-1, c.index_n_heads, c.index_head_dim)
        q = quantisers.quant_c(rotate(q, cos[:, None], sin[:, None]))
        scale = c.index_head_dim ** -0.5 * c.index_n_heads ** -0.5
        head = self.lin16(x, p + "weights_proj.weight") * scale
        key = cache.index[c.kv_source[layer]]
        dots = torch.einsum("nhd,kd->nhk", q.to(self.acc), key.to(self.acc)).clamp(min=0)
        score = (dots * head[..., None].to(self.acc)).sum(1).to(torch.float32)
        seen = (pos + 1) // c.compress_ratios[layer]
        hidden = torch.arange(key.shape[0], device=x.device)[None] >= seen[:, None]
        return score.masked_fill(hidden, NO_SCORE), seen

    def select(self, layer, cache, x, latent, pos, shared):
        """Entry numbers [rows, 64 at most] in ascending order, the -1 at the end."""
        c = self.c
        score, seen = self.scores(layer, cache, x, latent, pos)
        self.note(f"layers.{layer}.index_score", score)
        if layer == c.candidate_source_layer_id:
            shared["pool"] = self.pool(score, seen)
        elif c.kv_source[layer] == c.candidate_source_layer_id:
            score = score.masked_fill(~shared["pool"], NO_SCORE)
        return ascending(top_indices(score, c.index_topk))

    def pool(self, score, seen):
        """Candidate mask [rows, entries] of the best blocks; the newest block is always in."""
        size = self.c.candidate_block_size
        n, entries = score.shape
        blocks = (entries + size - 1) // size
        padded = F.pad(score, (0, blocks * size - entries), value=NO_SCORE)
        best = padded.reshape(n, blocks, size).amax(-1)
        newest = (seen - 1) // size
        best.scatter_(1, newest[:, None], float("inf"))
        chosen = top_indices(best, self.c.candidate_topk_blocks)
        mask = torch.zeros(n, blocks + 1, dtype=torch.bool, device=score.device)
        mask.scatter_(1, torch.where(chosen < 0, torch.full_like(chosen, blocks), chosen), True)
        return mask[:, :blocks].repeat_interleave(size, 1)[:, :entries]

    # ---- Feed forward ----------------------------------------------------------------------------

    def swiglu(self, u, name, weight):
        limit = self.c.swiglu_limit
        a = self.lin8(u, name + ".w1.weight").clamp(max=limit)
        b = self.lin8(u, name + ".w3.weight").clamp(-limit, limit)
        return self.lin8(bf16(F.silu(a) * b * weight), name + ".w2.weight")

    def moe(self, layer, u):
        c, p = self.c, self.prefix(layer) + "ffn."
        backbone = layer < c.layers
        experts = c.n_routed_experts if backbone else c.dspark_n_routed_experts
        count = c.num_experts_per_tok if backbone else c.dspark_num_experts_per_tok
        gate = product(u, self.w[p + "gate.weight"], self.acc)
        s = torch.sqrt(F.softplus(gate))
        chosen = top_indices(s + self.w[p + "gate.bias"], count)
        weight = s.gather(1, chosen)
        weight = weight / (weight.sum(1, keepdim=True) + 1e-20) * c.routed_scaling_factor
        self.note(self.prefix(layer) + "experts", chosen)
        total = torch.zeros_like(u)
        for e in range(experts):
            row, k = torch.nonzero(chosen == e, as_tuple=True)
            if len(row):
                total[row] += self.swiglu(u[row], f"{p}experts.{e}", weight[row, k][:, None])
        return bf16(total + self.swiglu(u, p + "shared_experts", 1.0))

    # ---- Engram ----------------------------------------------------------------------------------

    def engram(self, layer, stream, cache, first):
        """Adds what the table knows about the n-grams that end in each row."""
        c, p = self.c, f"layers.{layer}.engram."
        back = max(0, first - c.engram_max_ngram_size + 1)
        ids = torch.tensor(cache.ids[back:], dtype=torch.int64, device=stream.device)
        rows = self.hash[layer](ids, first - back)
        e = self.w[p + "embed.weight"][rows].flatten(1)
        kv = self.lin8(e, p + "wkv.weight").reshape(stream.shape[0], c.hc_mult + 1, c.hidden_size)
        key, value = kv[:, :c.hc_mult].to(self.acc), kv[:, c.hc_mult]
        wide = stream.to(self.acc)
        w = (self.w[p + "q_weight"] * self.w[p + "k_weight"]).to(self.acc)

        def inverse_rms(v):
            return torch.rsqrt(v.square().mean(-1) + c.rms_norm_eps)

        dot = (wide * w * key).sum(-1) * inverse_rms(wide) * inverse_rms(key)
        dot = dot * c.hidden_size ** -0.5
        gate = torch.sigmoid(torch.sign(dot) * torch.sqrt(dot.abs().clamp(min=1e-6)))
        return bf16(stream + gate.to(torch.float32)[..., None] * value[:, None])

    # ---- A layer ---------------------------------------------------------------------------------

    def attention_input(self, layer, stream, pre):
        """The sub-layer's normed input, its residual weights and the next pre; likewise below."""
        p = self.prefix(layer)
        new_pre, post, comb = self.mix(stream, p + "hc_attn")
        return self.norm(self.collapse(stream, pre), p + "attn_norm.weight"), post, comb, new_pre

    def feed_forward(self, layer, stream, pre):
        p = self.prefix(layer)
        new_pre, post, comb = self.mix(stream, p + "hc_ffn")
        u = self.norm(self.collapse(stream, pre), p + "ffn_norm.weight")
        return self.update(stream, self.moe(layer, u), post, comb), new_pre

    def layer(self, layer, cache, stream, pre, pos, shared, write_global):
        """One backbone layer on rows of consecutive positions; returns stream and pre.

        shared carries selection, candidate pool and DSpark taps from layer to layer."""
        c, p = self.c, f"layers.{layer}."
        if layer in c.engram_layer_ids:
            stream = self.engram(layer, stream, cache, int(pos[0]))
        if layer in c.dspark_target_layer_ids:
            shared.setdefault("taps", []).append(bf16(stream.mean(1)))
        cos, sin = self.rope(layer, pos)
        x, post, comb, pre = self.attention_input(layer, stream, pre)
        latent, q = self.query(layer, x, cos, sin)
        kv = self.local_kv(layer, x, cos, sin)
        selected = main = None
        if c.compress_ratios[layer]:
            if layer in c.kv_source_layer_ids and write_global:
                self.write_global(layer, cache, x, pos)
            if layer in c.index_source_layer_ids:
                shared["selected"] = self.select(layer, cache, x, latent, pos, shared)
                self.note(p + "selected", shared["selected"])
            selected, main = shared.get("selected"), cache.main[c.kv_source[layer]]
        o = self.attend(layer, cache, q, kv, pos, selected, main)
        cache.write_window(layer, kv, pos)
        h = self.project_out(layer, o, cos, sin)
        self.note(p + "attn_out", h)
        stream, pre = self.feed_forward(layer, self.update(stream, h, post, comb), pre)
        self.note(p + "stream", stream)
        self.note(p + "pre", pre)
        return stream, pre
