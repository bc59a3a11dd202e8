"""The reference: runs one session through the model, in every way that a server may.

Rows of consecutive positions go through
    encoder_rows   layers 0..5, then the decoder's global KV entry of each row
    decoder_rows   layers 6..11, from the stream that encoder_rows returned
and every way to run a prompt is a combination of the two:
    append         exact: both on all rows
    prefill        the encoder on all rows, the decoder on the last 128 with empty windows
                   (decoder replay)
    resume         after a hit on global KV alone: the encoder's windows are rebuilt first, from the
                   last 128 cached tokens, which write no global KV (encoder replay)

    reference = Reference(load_weights(CHECKPOINT))
    cache = reference.new_cache()
    logits = reference.prefill(cache, ids)
    tokens = reference.greedy(cache, logits, 32)
"""
import torch

from cache import Cache
from layers import Layers
from numerics import product

CHUNK = 1024  # Rows that go through the layers at once. Results do not depend on it.


class Reference(Layers):
    def new_cache(self):
        return Cache(self.c, self.device)

    def start(self, ids):
        """Stream and pre that enter layer 0."""
        stream = self.w["embed.weight"][ids][:, None].repeat(1, self.c.hc_mult, 1)
        pre = torch.zeros(len(ids), self.c.hc_mult, device=stream.device)
        pre[:, 0] = 1
        return stream, pre

    def positions(self, first, count):
        return torch.arange(first, first + count, device=self.device)

    def encoder_rows(self, cache, ids, first, write_global=True):
        """ids, which must already be in cache.ids. Returns what enters the decoder."""
        c = self.c
        stream, pre = self.start(torch.tensor(ids, dtype=torch.int64, device=self.device))
        pos, shared = self.positions(first, len(ids)), {}
        for layer in range(c.encoder_layers):
            stream, pre = self.layer(layer, cache, stream, pre, pos, shared, write_global)
        if write_global:
            source = c.encoder_layers
            x = self.norm(self.collapse(stream, pre), f"layers.{source}.attn_norm.weight")
            self.write_global(source, cache, x, pos)
        return stream, pre

    def decoder_rows(self, cache, stream, pre, first):
        """Rows whose global entries exist; writes DSpark's windows too. Returns final rows."""
        c = self.c
        pos, shared = self.positions(first, stream.shape[0]), {}
        for layer in range(c.encoder_layers, c.layers):
            stream, pre = self.layer(layer, cache, stream, pre, pos, shared, write_global=False)
        taps = self.lin8(torch.cat(shared["taps"], -1), "mtp.0.main_proj.weight")
        self.draft_context(cache, self.norm(taps, "mtp.0.main_norm.weight"), pos)
        return self.norm(self.collapse(stream, pre), "norm.weight")

    def logits(self, hidden):
        return product(hidden, self.w["head.weight"], self.acc)

    # ---- Ways to run a prompt --------------------------------------------------------------------

    def append(self, cache, ids, chunk=CHUNK):
        """Exact: all layers on all new rows. Returns the logits of every row."""
        out = []
        for a in range(0, len(ids), chunk):
            part, first = ids[a:a + chunk], len(cache.ids)
            cache.ids += part
            stream, pre = self.encoder_rows(cache, part, first)
            out.append(self.logits(self.decoder_rows(cache, stream, pre, first)))
        return torch.cat(out)

    def prefill(self, cache, ids, chunk=CHUNK):
        """Encoder on the new rows, decoder replay on the last 128; returns the latter's logits.

        Earlier new rows never enter the decoder. With fewer than 128 new rows the replay would
        need encoder outputs that nobody stored; resume() avoids that by running cached tokens."""
        return self.decoder_replay(cache, *self.encode(cache, ids, chunk))

    def resume(self, cache, ids, chunk=CHUNK):
        """Encoder replay, the new rows, decoder replay on the last 128: the latter's logits."""
        window = self.c.sliding_window
        old_stream, old_pre = self.encoder_replay(cache)
        stream, pre = self.encode(cache, ids, chunk)
        stream = torch.cat([old_stream, stream])[-window:]
        pre = torch.cat([old_pre, pre])[-window:]
        return self.decoder_replay(cache, stream, pre)

    def encode(self, cache, ids, chunk=CHUNK):
        """Encoder rows for new ids; returns stream and pre of the last 128 of them."""
        window = self.c.sliding_window
        streams, pres = [], []
        for a in range(0, len(ids), chunk):
            part, first = ids[a:a + chunk], len(cache.ids)
            cache.ids += part
            stream, pre = self.encoder_rows(cache, part, first)
            streams = [torch.cat(streams + [stream])[-window:]]
            pres = [torch.cat(pres + [pre])[-window:]]
        return streams[0], pres[0]

    def decoder_replay(self, cache, stream, pre):
        """Rebuilds the windows of decoder and DSpark from the last rows' encoder outputs."""
        cache.drop_windows(range(self.c.encoder_layers, self.c.layers + self.c.stages))
        first = len(cache.ids) - stream.shape[0]
        return self.logits(self.decoder_rows(cache, stream, pre, first))

    def encoder_replay(self, cache):
        """Rebuilds the encoder's windows from the last 128 cached tokens; writes no global KV."""
        cache.drop_windows(range(self.c.encoder_layers))
        first = max(0, len(cache.ids) - self.c.sliding_window)
        return self.encoder_rows(cache, cache.ids[first:], first, write_global=False)

    def greedy(self, cache, logits, count):
        """Greedy continuation: count tokens, of which all but the last are fed back."""
        out = [int(logits[-1].argmax())]
        while len(out) < count:
            out.append(int(self.append(cache, [out[-1]])[-1].argmax()))
        return out

    # ---- DSpark ----------------------------------------------------------------------------------

    def draft_context(self, cache, main_x, pos):
        for layer in range(self.c.layers, self.c.layers + self.c.stages):
            cos, sin = self.rope(layer, pos)
            cache.write_window(layer, self.local_kv(layer, main_x, cos, sin), pos)

    def draft_stage(self, layer, cache, stream, pre, pos):
        """One drafting stage: the rows of a draft see the window and each other."""
        cos, sin = self.rope(layer, pos)
        x, post, comb, pre = self.attention_input(layer, stream, pre)
        _, q = self.query(layer, x, cos, sin)
        kv = self.local_kv(layer, x, cos, sin)
        live = torch.nonzero(cache.ring_pos[layer] >= 0)[:, 0]
        order = live[torch.argsort(cache.ring_pos[layer][live])]
        none = torch.zeros(1, self.c.head_dim, device=self.device)
        keys = torch.cat([none, cache.ring[layer][order], kv])
        listed = torch.arange(1, keys.shape[0], device=self.device)[None].repeat(len(pos), 1)
        o = self.softmax_sink(q, keys, listed, self.w[self.prefix(layer) + "attn.attn_sink"])
        stream = self.update(stream, self.project_out(layer, o, cos, sin), post, comb)
        return self.feed_forward(layer, stream, pre)

    def draft(self, cache, token):
        """Greedy drafts after token, the one at position len(cache.ids): ids and confidences."""
        c = self.c
        size = c.dspark_block_size
        ids = torch.tensor([token] + [c.dspark_noise_token_id] * (size - 1), device=self.device)
        stream, pre = self.start(ids)
        pos = self.positions(len(cache.ids), size)
        for layer in range(c.layers, c.layers + c.stages):
            stream, pre = self.draft_stage(layer, cache, stream, pre, pos)
        last = f"mtp.{c.stages - 1}."
        hidden = self.collapse(stream, pre)
        base = self.logits(self.norm(hidden, last + "norm.weight"))
        self.note("draft.hidden", hidden)
        self.note("draft.base_logits", base)
        drafts, confidence, previous = [], [], token
        for k in range(size):
            e = self.w[last + "markov_head.embed.weight"][previous]
            sure = product(torch.cat([hidden[k], e])[None],
                           self.w[last + "confidence_head.proj.weight"], self.acc)
            confidence.append(float(torch.sigmoid(sure)))
            bias = product(e[None], self.w[last + "markov_head.head.weight"], self.acc)[0]
            previous = int((base[k] + bias).argmax())
            drafts.append(previous)
        return drafts, confidence

    def verify(self, cache, token, drafts):
        """Feeds token and drafts; returns the tokens emitted (accepted, and one more) and a cache.

        Rejected rows are undone by starting again from the saved state: what a rollback means."""
        saved = cache.clone()
        best = self.append(cache, [token] + drafts).argmax(-1).tolist()
        good = 0
        while good < len(drafts) and drafts[good] == best[good]:
            good += 1
        if good < len(drafts):
            cache = saved
            self.append(cache, [token] + drafts[:good])
        return best[:good + 1], cache
