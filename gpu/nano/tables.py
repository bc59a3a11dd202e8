"""Tables that follow from the configuration: rotation frequencies and Engram hashing."""
import math
import unicodedata

import numpy as np
import torch


def rope_frequencies(c, ratio):
    """Angular frequency of each pair in float32: plain for window-only layers, else YaRN."""
    dim = c.qk_rope_head_dim
    base = c.compress_rope_theta if ratio else c.rope_theta
    pair = torch.arange(dim // 2, dtype=torch.float64)
    freq = base ** (-2.0 * pair / dim)
    if ratio:
        yarn = c.rope_scaling

        def pair_of(turns):
            """The pair that makes so many turns within the original context."""
            length = yarn["original_max_position_embeddings"]
            return dim * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))

        low = max(math.floor(pair_of(yarn["beta_fast"])), 0)
        high = min(math.ceil(pair_of(yarn["beta_slow"])), dim - 1)
        ramp = ((pair - low) / (high - low)).clamp(0, 1)
        freq = freq * (1 - ramp) + freq / yarn["factor"] * ramp
    return freq.to(torch.float32)


def rope_table(freq, pos):
    """cos and sin of the float32 product of position and frequency."""
    angle = pos.to(torch.float32)[..., None] * freq
    return angle.cos(), angle.sin()


def _folded(char):
    """What an ASCII character is for Engram: without case, the four blanks alike."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", char))
    text = "".join(ch for ch in text if not unicodedata.combining(ch)).lower()
    text = " " if text in (" ", "\t", "\n", "\r") else text.strip()
    return text or char


def compressed_map(c):
    """Token id -> compressed id, numbered in order of first appearance.

    A byte of a longer character, a marker and an unused id are classes of their own."""
    ids, out = {}, []
    for token in range(c.vocab_size):
        key = _folded(chr(token)) if token < 128 else token
        out.append(ids.setdefault(key, len(ids)))
    if len(ids) != c.engram_compressed_vocab_size:
        raise ValueError(f"the compressed map has {len(ids)} ids, "
                         f"config.json says {c.engram_compressed_vocab_size}")
    return torch.tensor(out, dtype=torch.int64)


def _is_prime(n):
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def engram_primes(c):
    """{Engram layer: [orders][heads]}: primes in increasing order of search, never used twice."""
    taken, out = set(), {}
    for layer in c.engram_layer_ids:
        out[layer] = []
        for _ in range(2, c.engram_max_ngram_size + 1):
            n, row = c.engram_vocab_size, []
            while len(row) < c.engram_n_heads:
                n += 1
                if n not in taken and _is_prime(n):
                    taken.add(n)
                    row.append(n)
            out[layer].append(row)
    return out


class EngramHash:
    """Row numbers of one Engram layer's table from token ids."""

    def __init__(self, c, layer):
        self.map = compressed_map(c)
        self.pad = int(self.map[c.engram_pad_token_id])
        bound = ((2 ** 63 - 1) // c.engram_compressed_vocab_size) // 2
        rng = np.random.default_rng(10007 * layer)
        self.orders = c.engram_max_ngram_size
        self.multipliers = [int(m) * 2 + 1 for m in rng.integers(0, bound, size=self.orders)]
        primes = engram_primes(c)[layer]
        flat = [p for row in primes for p in row]
        self.rows = sum(flat)
        self.primes = torch.tensor(primes, dtype=torch.int64)
        offsets = np.concatenate([[0], np.cumsum(flat)[:-1]])
        self.offsets = torch.tensor(offsets.reshape(len(primes), -1), dtype=torch.int64)

    def to(self, device):
        self.map = self.map.to(device)
        self.primes = self.primes.to(device)
        self.offsets = self.offsets.to(device)
        return self

    def __call__(self, ids, first=0):
        """ids [..., T], int64, from position 0 -> rows [..., T - first, orders x heads]."""
        t = self.map[ids]
        mixed, out = None, []
        for k in range(self.orders):
            past = torch.full_like(t, self.pad)
            past[..., k:] = t[..., :t.shape[-1] - k]
            term = past * self.multipliers[k]
            mixed = term if mixed is None else mixed ^ term
            if k:
                out.append(mixed[..., first:, None] % self.primes[k - 1] + self.offsets[k - 1])
        return torch.cat(out, -1)
