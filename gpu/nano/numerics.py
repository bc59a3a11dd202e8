"""Primitives of the reference. Products accumulate in `acc` and are rounded once.

With float64 a result does not depend on the order of a library's sums, so it is the value that a
float32 kernel approximates.
"""
import torch

from quantisers import bf16

NO_SCORE = float("-inf")


def product(x, w, acc):
    """x times w transposed, as float32."""
    return (x.to(acc) @ w.to(acc).transpose(-1, -2)).to(torch.float32)


def rms_norm(x, w, eps, acc):
    y = x.to(acc)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return bf16((y * w.to(acc)).to(torch.float32))


def rotate(x, cos, sin, inverse=False):
    """Rotates the last elements of x [..., dim] in adjacent pairs; cos and sin are [..., pairs]."""
    count = cos.shape[-1] * 2
    head, tail = x[..., :-count], x[..., -count:]
    a, b = tail[..., 0::2], tail[..., 1::2]
    sin = -sin if inverse else sin
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([head, bf16(turned)], -1)


def top_indices(score, count):
    """The count best of each row, higher score first, then lower position; -1 where it is -inf."""
    value, order = torch.sort(score, dim=-1, descending=True, stable=True)
    value, order = value[:, :count], order[:, :count]
    return torch.where(value > NO_SCORE, order, torch.full_like(order, -1))


def ascending(indices):
    """Each row's indices in ascending order, the -1 at the end."""
    big = torch.iinfo(torch.int64).max
    order = torch.sort(torch.where(indices < 0, torch.full_like(indices, big), indices), -1).values
    return torch.where(order == big, torch.full_like(order, -1), order)
