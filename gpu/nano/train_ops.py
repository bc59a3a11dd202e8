"""Operations of the training forward: batched, bf16, quantisers with the gradient of the identity.

The same maths as layers.py. `qat` turns the quantisers on.
"""
import torch
import torch.nn.functional as F

import quantisers
from numerics import NO_SCORE

try:
    from torch.nn.attention.flex_attention import BlockMask, flex_attention
except ImportError:  # Older than torch 2.5: enough for the CPU.
    BlockMask = flex_attention = None

DTYPE = torch.bfloat16
EPS = 1e-20
SWIGLU_LIMIT = 10.0
HC_EPS = 1e-6
KEY_BLOCK = 128  # flex_attention skips blocks of keys of this size.
_compiled = {}


def fast(function):
    """torch.compile on a GPU, the plain function elsewhere."""
    def call(*args):
        if not args[0].is_cuda:
            return function(*args)
        if function not in _compiled:
            _compiled[function] = torch.compile(function, dynamic=False)
        return _compiled[function](*args)
    return call


def flex(*args, **options):
    if flex not in _compiled:
        _compiled[flex] = torch.compile(flex_attention, dynamic=False)
    return _compiled[flex](*args, **options)


# ---- Quantised linear maps -----------------------------------------------------------------------


def straight_through(x, quantise):
    """Quantises, with the gradient of the identity."""
    x32 = x.float()
    return (x32 + (quantise(x32) - x32).detach()).to(x.dtype)


def quantised_a(x, qat):
    return straight_through(x, quantisers.quant_a) if qat else x


def lin(x, w, qat):
    return F.linear(quantised_a(x, qat), w)


def weight_block(w, qat):
    return (straight_through(w, quantisers.quant_block) if qat else w).to(DTYPE)


def weight_fp4(w, qat):
    return (straight_through(w, quantisers.quant_c) if qat else w).to(DTYPE)


def weight_engram(w, qat):
    return (straight_through(w, quantisers.quant_a) if qat else w).to(DTYPE)


def norm(x, w):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + EPS) * w.float()).to(x.dtype)


def rotate(x, cos, sin):
    count = cos.shape[-1] * 2
    tail = x[..., -count:].float()
    a, b = tail[..., 0::2], tail[..., 1::2]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)
    return torch.cat([x[..., :-count], turned], -1)


def collapse(stream, pre):
    return (pre[:, :, None] * stream.float()).sum(1).to(stream.dtype)


@fast
def lin_compiled(x, w, qat):
    return lin(x, w, qat)


@fast
def quantised_compiled(u, qat):
    return quantised_a(u, qat)


@fast
def norm_collapse(stream, pre, w):
    return norm(collapse(stream, pre), w)


# ---- mHC -----------------------------------------------------------------------------------------


@fast
def mix(stream, pre, fn, base, scale, norm_w, iterations):
    """Collapsed and normed input of a sub-layer, then the next pre, post and comb."""
    h = stream.shape[1]
    flat = stream.flatten(1)
    rho = torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + EPS)
    m = F.linear(flat, fn.to(flat.dtype)).float() * rho
    new_pre = torch.sigmoid(m[:, :h] * scale[0] + base[:h]) + HC_EPS
    post = 2 * torch.sigmoid(m[:, h:2 * h] * scale[1] + base[h:2 * h])
    comb = (m[:, 2 * h:] * scale[2] + base[2 * h:]).reshape(-1, h, h)
    comb = torch.softmax(comb, -1) + HC_EPS
    comb = comb / (comb.sum(1, keepdim=True) + HC_EPS)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(2, keepdim=True) + HC_EPS)
        comb = comb / (comb.sum(1, keepdim=True) + HC_EPS)
    return norm(collapse(stream, pre), norm_w), new_pre, post, comb


@fast
def update(stream, h, post, comb):
    wide, h32 = stream.float(), h.float()
    out = []
    for k in range(stream.shape[1]):
        row = post[:, k, None] * h32
        for a in range(stream.shape[1]):
            row = row + comb[:, a, k, None] * wide[:, a]
        out.append(row)
    return torch.stack(out, 1).to(stream.dtype)


# ---- Attention, compressor, indexer --------------------------------------------------------------


@fast
def window_kv(x, wkv, kv_norm, cos, sin, qat):
    return quantised_a(rotate(norm(lin(x, wkv, qat), kv_norm), cos, sin), qat)


@fast
def query_kv(x, wq_a, q_norm, wq_b, wkv, kv_norm, cos, sin, heads, qat):
    """The query's latent, its rotated heads and the window row of each row."""
    latent = norm(lin(x, wq_a, qat), q_norm)
    q = lin(latent, wq_b, qat).reshape(x.shape[0], heads, -1)
    q = rotate(q, cos[:, None], sin[:, None])
    kv = rotate(norm(lin(x, wkv, qat), kv_norm), cos, sin)
    return latent, q, quantised_a(kv, qat)


@fast
def compress(x, wkv, wgate, w_norm, cos, sin, qat):
    """Latents and rotated main entries; wgate None means ratio 1."""
    if wgate is None:
        latent = F.linear(x, wkv)
    else:
        a, g = F.linear(x, wkv).float(), F.linear(x, wgate).float()
        a, g = a.reshape(a.shape[0] // 2, 2, -1), g.reshape(g.shape[0] // 2, 2, -1)
        latent = (torch.softmax(g, 1) * a).sum(1).to(x.dtype)
    latent = norm(latent, w_norm)
    main = rotate(latent, cos, sin)
    return latent, straight_through(main, quantisers.quant_b) if qat else main


@fast
def index_key(latent, wk, k_norm, cos, sin, qat):
    k = rotate(norm(F.linear(latent, wk), k_norm), cos, sin)
    return straight_through(k, quantisers.quant_c) if qat else k


@fast
def index_query(x, latent, wq_b, w_head, cos, sin, heads, qat):
    """The indexer's heads and their weights."""
    q = lin(latent, wq_b, qat).reshape(x.shape[0], heads, -1)
    q = rotate(q, cos[:, None], sin[:, None])
    head = F.linear(x, w_head) * (q.shape[-1] ** -0.5 * heads ** -0.5)
    return straight_through(q, quantisers.quant_c) if qat else q, head


@fast
def index_scores(q, head, k, pos, ratio):
    """q [b, t, h, d], head [b, t, h], k [b, n, d], pos [t] -> masked scores [b, t, n]."""
    score = 0
    for h in range(q.shape[2]):
        dots = F.relu(q[:, :, h] @ k.transpose(1, 2)).float()
        score = score + dots * head[:, :, h, None].float()
    seen = (pos + 1) // ratio
    hidden = torch.arange(k.shape[1], device=q.device)[None] >= seen[:, None]
    return score.masked_fill(hidden[None], NO_SCORE)


@fast
def attention_target(q, main, pos, ratio, scale):
    """What the indexer learns: head-averaged attention of sampled rows over compressed entries."""
    logit = torch.einsum("brhd,bnd->brhn", q, main).float() * scale
    entry = torch.arange(main.shape[1], device=q.device)
    hidden = entry[None] >= ((pos + 1) // ratio)[:, None]
    p = torch.softmax(logit.masked_fill(hidden[None, :, None], -1e30), -1)
    return p.mean(2).masked_fill(hidden[None], 0)


def kth_mask(score, count):
    """Entries that reach the row's count-th best score; all of a tie, and never those of -inf."""
    if score.shape[-1] <= count:
        return score > NO_SCORE
    kth = torch.topk(score, count, dim=-1).values[..., -1:]
    return (score >= kth) & (score > NO_SCORE)


@fast
def with_sink(o, lse, sink):
    """o [b, h, t, d] of a softmax without sink and its log-sum-exp; adds it to the denominator."""
    return (o.float() * torch.sigmoid(lse.float() - sink[None, :, None])[..., None]).to(o.dtype)


@fast
def output(o, cos, sin, wo_a, wo_b, groups, qat):
    """Inverse rotation and the grouped low-rank output of o [rows, heads, d]."""
    o = rotate(o, cos[:, None], -sin[:, None]).reshape(o.shape[0], groups, -1)
    z = torch.einsum("ngk,gok->ngo", o, wo_a.reshape(groups, -1, o.shape[-1])).flatten(1)
    return lin(z, wo_b, qat)


# ---- Feed forward, Engram, loss ------------------------------------------------------------------


@fast
def route(u, gate, bias, count, scale):
    """Chosen experts [rows, count] and their weights."""
    s = torch.sqrt(F.softplus(F.linear(u.float(), gate.float())))
    chosen = torch.topk(s + bias, count, dim=-1).indices
    w = s.gather(1, chosen)
    return chosen, w / (w.sum(1, keepdim=True) + 1e-20) * scale


@fast
def gated(h, weight, qat):
    a, b = h.float().chunk(2, -1)
    a, b = a.clamp(max=SWIGLU_LIMIT), b.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return quantised_a((F.silu(a) * b * weight).to(h.dtype), qat)


@fast
def shared_expert(u, w1, w3, w2, qat):
    uq = quantised_a(u, qat)
    a = F.linear(uq, w1).float().clamp(max=SWIGLU_LIMIT)
    b = F.linear(uq, w3).float().clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return lin((F.silu(a) * b).to(u.dtype), w2, qat)


@fast
def engram_gate(stream, kv, qk):
    h, d = stream.shape[1], stream.shape[2]
    kv = kv.reshape(stream.shape[0], h + 1, d).float()
    key, value, wide = kv[:, :h], kv[:, h], stream.float()

    def inverse_rms(v):
        return torch.rsqrt(v.square().mean(-1) + EPS)

    dot = (wide * qk * key).sum(-1) * inverse_rms(wide) * inverse_rms(key) * d ** -0.5
    gate = torch.sigmoid(torch.sign(dot) * torch.sqrt(dot.abs().clamp(min=1e-6)))
    return (wide + gate[..., None] * value[:, None]).to(stream.dtype)


@fast
def token_loss(y, head, target):
    return F.cross_entropy(F.linear(y, head).float(), target, reduction="none")
