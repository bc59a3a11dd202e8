"""The training forward: whole batches at once, same maths as the reference.

Differences, all inside bf16 noise or by choice: products run in bf16, Sinkhorn stops after 10
rounds, window and compressed keys share one masked attention over all keys, and all index scores
that tie at the 64th place are kept. Rows are [batch x length] flattened where a row stands alone.
"""
import torch
import torch.nn.functional as F

import train_ops as ops
from numerics import NO_SCORE
from tables import rope_table
from train_parameters import Parameters

SINKHORN_ROUNDS = 10
INDEX_ROWS = 64     # Rows of a sequence on which the indexer learns.
SCORES_AT_ONCE = 32768


class Pass:
    """What one forward carries from layer to layer."""

    def __init__(self, ids, floors, index_rows):
        self.ids, self.floors, self.index_rows = ids, floors, index_rows
        self.main = self.key = self.selected = self.pool = None
        self.taps = []
        self.index_loss = torch.zeros((), device=ids.device)
        self.scores, self.targets = None, []  # Of the layers that use the current selection.

    def close_selection(self):
        """Adds the indexer's loss of one selection: KL of its layers' attention to its scores."""
        if self.scores is None:
            return
        p = sum(self.targets) / len(self.targets)
        log_q = torch.log_softmax(self.scores, -1).masked_fill(self.scores == NO_SCORE, 0.0)
        kl = (p * (torch.log(p.clamp(min=1e-9)) - log_q)).sum(-1)
        self.index_loss = self.index_loss + kl.mean()
        self.scores, self.targets = None, []


class TrainModel(Parameters):
    """qat: quantisers on. dense: attention to all compressed entries instead of a selection.
    load: after a forward, the rows that each expert of a layer was given."""

    def __init__(self, config=None):
        super().__init__(config)
        self.dense = True
        self.load = {}
        self.rope_tables, self.layouts = {}, {}

    def forward(self, ids, floor_encoder=None, floor_decoder=None, index_loss=True):
        """ids int64 [B, T] -> final normed rows, index loss, DSpark taps [rows, 3 x width].

        A floor [B, T] is the first window position that a row may see."""
        c = self.c
        batch, length = ids.shape
        device = ids.device
        zero = torch.zeros(batch, length, dtype=torch.int32, device=device)
        floors = [zero if f is None else f for f in (floor_encoder, floor_decoder)]
        sample = torch.sort(torch.randperm(length, device=device)[:INDEX_ROWS]).values
        run = Pass(ids, floors, sample if index_loss else None)
        stream, pre = self.start(ids)
        self.load = {}
        for layer in range(c.layers):
            stream, pre = self.layer(layer, stream, pre, run)
        run.close_selection()
        y = ops.norm_collapse(stream, pre, self.p("norm.weight"))
        return y, run.index_loss, torch.cat(run.taps, -1)

    def start(self, ids):
        stream = self.bf("embed.weight")[ids.flatten()][:, None].repeat(1, self.c.hc_mult, 1)
        pre = torch.zeros(stream.shape[:2], device=ids.device)
        pre[:, 0] = 1
        return stream, pre

    def layer(self, layer, stream, pre, run):
        c, p = self.c, f"layers.{layer}."
        if layer in c.engram_layer_ids:
            stream = self.engram(layer, stream, run.ids)
        if layer in c.dspark_target_layer_ids:
            run.taps.append(stream.float().mean(1).to(stream.dtype))
        x, new_pre, post, comb = self.sublayer_mix(p, "attn", stream, pre)
        h = self.attention(layer, x, run)
        stream, pre = ops.update(stream, h, post, comb), new_pre
        u, new_pre, post, comb = self.sublayer_mix(p, "ffn", stream, pre)
        return ops.update(stream, self.moe(p, u, c.num_experts_per_tok), post, comb), new_pre

    def sublayer_mix(self, p, part, stream, pre):
        return ops.mix(stream, pre, self.p(p + f"hc_{part}_fn"), self.p(p + f"hc_{part}_base"),
                       self.p(p + f"hc_{part}_scale"), self.p(p + f"{part}_norm.weight"),
                       SINKHORN_ROUNDS)

    def engram(self, layer, stream, ids):
        p = f"layers.{layer}.engram."
        table = ops.weight_engram(self.p(p + "embed.weight"), self.qat)
        e = F.embedding(self.hash[layer](ids).flatten(0, 1), table).flatten(1)
        kv = ops.lin_compiled(e, self.block(p + "wkv.weight"), self.qat)
        return ops.engram_gate(stream, kv, self.p(p + "q_weight") * self.p(p + "k_weight"))

    def rope(self, ratio, batch, length):
        """cos and sin for all rows, flattened [rows, pairs]; and for the compressed entries."""
        key = (ratio, batch, length)
        if key not in self.rope_tables:
            freq = self.freq[1 if ratio else 0]
            pos = torch.arange(length, device=freq.device)
            rows = [t.repeat(batch, 1) for t in rope_table(freq, pos)]
            entries = None
            if ratio:
                entries = [t.repeat(batch, 1) for t in rope_table(freq, pos[::ratio])]
            self.rope_tables[key] = (rows, entries)
        return self.rope_tables[key]

    # ---- Attention -------------------------------------------------------------------------------

    def query_kv(self, p, x, cos, sin):
        return ops.query_kv(
            x, self.block(p + "wq_a.weight"), self.p(p + "q_norm.weight"),
            self.block(p + "wq_b.weight"), self.block(p + "wkv.weight"),
            self.p(p + "kv_norm.weight"), cos, sin, self.c.num_attention_heads, self.qat)

    def output(self, p, o, cos, sin):
        return ops.output(o, cos, sin, self.block(p + "wo_a.weight"), self.block(p + "wo_b.weight"),
                          self.c.o_groups, self.qat)

    def attention(self, layer, x, run):
        c, p, ratio = self.c, f"layers.{layer}.attn.", self.c.compress_ratios[layer]
        batch, length = run.ids.shape
        (cos, sin), entries = self.rope(ratio, batch, length)
        latent, q, kv = self.query_kv(p, x, cos, sin)
        q = q.reshape(batch, length, c.num_attention_heads, -1)
        kv = kv.reshape(batch, length, -1)
        pos = torch.arange(length, device=x.device)
        if layer in c.kv_source_layer_ids:
            self.compress(p, x, ratio, entries, run)
        if layer in c.index_source_layer_ids:
            self.index(layer, x, latent, (cos, sin), pos, run)
        if ratio and run.index_rows is not None:
            with torch.no_grad():
                rows = run.index_rows
                target = ops.attention_target(q[:, rows], run.main, pos[rows], ratio, c.scale)
                run.targets.append(target)
        o = self.attend(q, kv, run.main if ratio else None,
                        run.floors[0 if layer < c.encoder_layers else 1],
                        run.selected if ratio and not self.dense else None, ratio,
                        self.p(p + "attn_sink"))
        return self.output(p, o.reshape(batch * length, c.num_attention_heads, -1), cos, sin)

    def compress(self, p, x, ratio, entries, run):
        """Global KV of a source layer; the indexer's gradient stays out of the backbone."""
        batch, length = run.ids.shape
        gate = self.bf(p + "compressor.wgate.weight") if ratio == 2 else None
        latent, main = ops.compress(x, self.bf(p + "compressor.wkv.weight"), gate,
                                    self.p(p + "compressor.norm.weight"), *entries, self.qat)
        key = ops.index_key(latent.detach(), self.bf(p + "indexer.wk.weight"),
                            self.p(p + "indexer.k_norm.weight"), *entries, self.qat)
        run.main = main.reshape(batch, length // ratio, -1)
        run.key = key.reshape(batch, length // ratio, -1)

    def index(self, layer, x, latent, rope, pos, run):
        """A new selection, and its scores on the sampled rows for the loss."""
        c, p, ratio = self.c, f"layers.{layer}.attn.indexer.", self.c.compress_ratios[layer]
        batch, length = run.ids.shape
        run.close_selection()
        q, head = ops.index_query(x.detach(), latent.detach(), self.block(p + "wq_b.weight"),
                                  self.bf(p + "weights_proj.weight"), *rope, c.index_n_heads,
                                  self.qat)
        q = q.reshape(batch, length, c.index_n_heads, -1)
        head = head.reshape(batch, length, -1)
        rows = run.index_rows
        if rows is not None:
            run.scores = ops.index_scores(q[:, rows], head[:, rows], run.key, pos[rows], ratio)
        if not self.dense:
            with torch.no_grad():
                self.select(layer, q.detach(), head.detach(), run.key.detach(), pos, run)

    def select(self, layer, q, head, key, pos, run):
        """Sets the selection mask [B, T, entries]; later decoder layers stay inside the pool."""
        c, ratio = self.c, self.c.compress_ratios[layer]
        entries, size = key.shape[1], c.candidate_block_size
        pooled = ratio == 1 and entries > c.candidate_topk_blocks * size
        step = max(1, SCORES_AT_ONCE // q.shape[1])
        selected, pool = [], []
        for b in range(0, q.shape[0], step):
            s = ops.index_scores(q[b:b + step], head[b:b + step], key[b:b + step], pos, ratio)
            if pooled and layer == c.candidate_source_layer_id:
                best = s.reshape(*s.shape[:2], entries // size, size).amax(-1)
                newest = (((pos + 1) // ratio - 1) // size)[None, :, None]
                best.scatter_(2, newest.expand(best.shape[0], -1, 1), float("inf"))
                pool.append(ops.kth_mask(best, c.candidate_topk_blocks))
            elif pooled:
                inside = run.pool[b:b + step].repeat_interleave(size, 2)
                s = s.masked_fill(~inside, NO_SCORE)
            selected.append(ops.kth_mask(s, c.index_topk))
        if pool:
            run.pool = torch.cat(pool)
        run.selected = torch.cat(selected)

    def attend(self, q, kv, main, floor, selected, ratio, sink):
        """q [B, T, heads, d] over window kv [B, T, d] and main [B, entries, d], or None."""
        keys = kv if main is None else torch.cat([kv, main], 1)
        attend = self.attend_blocks if q.is_cuda else self.attend_dense
        o, lse = attend(q, keys, floor, selected, ratio)
        return ops.with_sink(o, lse, sink).transpose(1, 2)

    def attend_blocks(self, q, keys, floor, selected, ratio):
        length, window = q.shape[1], self.c.sliding_window

        def in_window(b, i, j):
            return (j <= i) & (j > i - window) & (j >= floor[b, i])

        def window_alone(b, h, i, j):
            return in_window(b, i, j)

        def all_entries(b, h, i, j):
            return torch.where(j < length, in_window(b, i, j), j - length < (i + 1) // ratio)

        def selection(b, h, i, j):
            entry = torch.clamp(j - length, min=0)
            return torch.where(j < length, in_window(b, i, j), selected[b, i, entry])

        visible = window_alone if ratio == 0 else all_entries if selected is None else selection
        count, order = self.block_layout(ratio, length, q.device)
        mask = ops.BlockMask.from_kv_blocks(count, order, None, None, BLOCK_SIZE=ops.KEY_BLOCK,
                                            mask_mod=visible, seq_lengths=(length, keys.shape[1]))
        return ops.flex(q.transpose(1, 2), keys[:, None], keys[:, None], block_mask=mask,
                        scale=self.c.scale, enable_gqa=True, return_lse=True)

    def attend_dense(self, q, keys, floor, selected, ratio):
        batch, length, window = q.shape[0], q.shape[1], self.c.sliding_window
        i, j = torch.arange(length)[:, None], torch.arange(length)[None]
        seen = ((j <= i) & (j > i - window))[None] & (j[None] >= floor[..., None])
        if keys.shape[1] > length:
            entry = torch.arange(keys.shape[1] - length)[None]
            far = (entry < (i + 1) // ratio)[None].expand(batch, -1, -1)
            seen = torch.cat([seen, far if selected is None else selected], 2)
        logit = torch.einsum("bthd,bkd->bhtk", q.float(), keys.float()) * self.c.scale
        logit = logit.masked_fill(~seen[:, None], -1e30)
        o = torch.einsum("bhtk,bkd->bhtd", torch.softmax(logit, -1), keys.float()).to(q.dtype)
        return o, torch.logsumexp(logit, -1)

    def block_layout(self, ratio, length, device):
        """Which 128 x 128 blocks can hold a visible key: a superset of every selection."""
        key = (ratio, length)
        if key not in self.layouts:
            size = ops.KEY_BLOCK
            q, k = torch.arange(length // size)[:, None], torch.arange(length // size)[None]
            live = (k == q) | (k == q - 1)
            if ratio:
                entries = torch.arange(length // ratio // size)[None] * size * ratio
                live = torch.cat([live, entries <= q * size + size - 1], 1)
            order = torch.argsort(live.to(torch.int8), dim=1, descending=True, stable=True)
            count = live.sum(1).to(torch.int32)[None, None].to(device)
            self.layouts[key] = (count, order.to(torch.int32)[None, None].contiguous().to(device))
        return self.layouts[key]

    # ---- Feed forward ----------------------------------------------------------------------------

    def moe(self, p, u, count):
        """Rows are sorted by expert, so that each expert's rows are one product."""
        bias = self.p(p + "ffn.gate.bias")
        chosen, weight = ops.route(u, self.bf(p + "ffn.gate.weight"), bias, count,
                                   self.c.routed_scaling_factor)
        flat = chosen.flatten()
        order = torch.argsort(flat, stable=True)
        ones = torch.ones_like(flat, dtype=torch.float32)
        load = torch.zeros(bias.shape[0], device=u.device).scatter_add_(0, flat, ones)
        self.load[p] = load
        xs = ops.quantised_compiled(u, self.qat)[order // count]
        y = self.experts(p, xs, weight.flatten()[order][:, None], load)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=u.device)
        routed = y[back].reshape(u.shape[0], count, -1).float().sum(1)
        q = p + "ffn.shared_experts."
        shared = ops.shared_expert(u, self.block(q + "w1.weight"), self.block(q + "w3.weight"),
                                   self.block(q + "w2.weight"), self.qat)
        return (routed + shared.float()).to(u.dtype)

    def experts(self, p, xs, weight, load):
        w13 = ops.weight_fp4(self.p(p + "ffn.experts.w13"), self.qat)
        w2 = ops.weight_fp4(self.p(p + "ffn.experts.w2"), self.qat)
        if xs.is_cuda:
            ends = load.cumsum(0).to(torch.int32)
            h = torch._grouped_mm(xs, w13.transpose(1, 2), offs=ends)
            z = ops.gated(h, weight, self.qat)
            return torch._grouped_mm(z, w2.transpose(1, 2), offs=ends)
        sizes = load.long().tolist()
        h = torch.cat([F.linear(a, w) for a, w in zip(torch.split(xs, sizes), w13)])
        z = ops.gated(h, weight, self.qat)
        return torch.cat([F.linear(a, w) for a, w in zip(torch.split(z, sizes), w2)])

    # ---- DSpark on the frozen backbone -----------------------------------------------------------

    def draft_loss(self, ids, taps, teacher, anchors):
        """Loss, and the hit rate of each draft.

        ids [B, T], taps of their forward, teacher logits [B, T, vocabulary]; anchors [A] are the
        positions just processed, the same in every sequence."""
        c, batch = self.c, ids.shape[0]
        count, size = len(anchors), c.dspark_block_size
        main_x = ops.norm(ops.lin(taps, self.block("mtp.0.main_proj.weight"), self.qat),
                          self.p("mtp.0.main_norm.weight"))
        block = torch.full((batch, count, size), c.dspark_noise_token_id, device=ids.device)
        block[:, :, 0] = ids[:, anchors + 1]
        stream, pre = self.start(block)
        for stage in range(c.stages):
            stream, pre = self.draft_stage(f"mtp.{stage}.", stream, pre, main_x, anchors, ids.shape)
        last = f"mtp.{c.stages - 1}."
        y = ops.collapse(stream, pre)
        base = F.linear(ops.norm(y, self.p(last + "norm.weight")), self.bf("head.weight")).float()
        # The k-th draft follows the true token before it; its goal is the backbone's own
        # distribution there.
        step = anchors[:, None] + 1 + torch.arange(size, device=ids.device)[None]
        markov = self.bf(last + "markov_head.embed.weight")[ids[:, step].flatten()]
        logit = base + F.linear(markov, self.bf(last + "markov_head.head.weight")).float()
        goal = teacher[:, step].flatten(0, 2)
        weight = 0.8 ** torch.arange(size, device=ids.device).repeat(batch * count)
        ce = -(torch.softmax(goal, -1) * torch.log_softmax(logit, -1)).sum(-1)
        hit = (logit.argmax(-1) == goal.argmax(-1)).float()
        sure = F.linear(torch.cat([y, markov], -1).float().detach(),
                        self.p(last + "confidence_head.proj.weight"))[:, 0]
        confidence = F.binary_cross_entropy_with_logits(sure, hit)
        loss = (ce * weight).sum() / weight.sum() + 0.1 * confidence
        return loss, hit.reshape(-1, size).mean(0)

    def draft_stage(self, p, stream, pre, main_x, anchors, shape):
        """The rows of a draft see the anchor's window and each other."""
        c, (batch, length), window = self.c, shape, self.c.sliding_window
        count, size, heads = len(anchors), c.dspark_block_size, c.num_attention_heads
        device = anchors.device
        at = (anchors[:, None] + 1 + torch.arange(size, device=device)[None]).flatten()
        cos, sin = [t.repeat(batch, 1) for t in rope_table(self.freq[0], at)]
        (all_cos, all_sin), _ = self.rope(0, batch, length)
        context = ops.window_kv(main_x, self.block(p + "attn.wkv.weight"),
                                self.p(p + "attn.kv_norm.weight"), all_cos, all_sin, self.qat)
        x, new_pre, post, comb = self.sublayer_mix(p, "attn", stream, pre)
        _, q, kv = self.query_kv(p + "attn.", x, cos, sin)
        seen = anchors[:, None] - window + 1 + torch.arange(window, device=device)[None]
        keys = torch.cat([context.reshape(batch, length, -1)[:, seen.clamp(min=0)],
                          kv.reshape(batch, count, size, -1)], 2)
        live = torch.cat([seen >= 0, torch.ones(count, size, dtype=torch.bool, device=device)], 1)
        q = q.reshape(batch, count, size, heads, -1)
        logit = torch.einsum("baqhd,bakd->bahqk", q, keys).float() * c.scale
        logit = logit.masked_fill(~live[None, :, None, None], -1e30)
        top = logit.amax(-1, keepdim=True)
        e = torch.exp(logit - top)
        sink = torch.exp(self.p(p + "attn.attn_sink")[None, None, :, None, None] - top)
        weight = (e / (e.sum(-1, keepdim=True) + sink)).to(keys.dtype)
        o = torch.einsum("bahqk,bakd->baqhd", weight, keys)
        h = self.output(p + "attn.", o.reshape(batch * count * size, heads, -1), cos, sin)
        stream, pre = ops.update(stream, h, post, comb), new_pre
        u, new_pre, post, comb = self.sublayer_mix(p, "ffn", stream, pre)
        return ops.update(stream, self.moe(p, u, c.dspark_num_experts_per_tok), post, comb), new_pre
