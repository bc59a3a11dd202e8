"""The quantisers of the checkpoint and of the caches, on plain float32 tensors.

    A      activations and window rows: E4M3, groups of 32, UE8M0 scales
    B      main KV: E2M1, groups of 16, E4M3 scales
    C      indexer K and Q, expert weights: E2M1, groups of 32, UE8M0 scales
    block  other FP8 weights: E4M3, one UE8M0 scale for 32 x 32

Groups are consecutive elements of the last axis. quant_* return float32 values that are exactly
code times scale; record_* return the stored bytes, codes before scales. Only integer and float32
arithmetic is used, so nothing depends on a device's own FP8 or FP4 types.
"""
import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E4M3_MAX = 448.0
E2M1_MAX = 6.0


def bf16(x):
    """Rounds to bfloat16, ties to even, and returns float32."""
    return x.to(torch.bfloat16).to(torch.float32)


def _bits(x):
    return x.contiguous().view(torch.int32)


def pow2_ceil(t):
    """2^ceil(log2 t) of positive normal float32, read off the bits."""
    bits = _bits(t)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def round_e4m3(x):
    """Nearest E4M3FN value, ties to even; |x| must not exceed 448."""
    exponent = torch.clamp(((_bits(x) >> 23) & 255) - 127, min=-6)  # Subnormal below 2^-6.
    step = ((exponent + 124) << 23).view(torch.float32)             # 2^(exponent - 3)
    return torch.round(x / step) * step


def round_e2m1(x):
    """Nearest E2M1 value, ties to the even code; |x| must not exceed 6. Keeps the sign of zero."""
    a = x.abs()
    coarse = torch.where(a < 4.0, torch.full_like(a, 1.0), torch.full_like(a, 2.0))
    step = torch.where(a < 2.0, torch.full_like(a, 0.5), coarse)
    return torch.copysign(torch.round(a / step) * step, x)


# ---- Groups, scales and rounded codes ------------------------------------------------------------


def _groups(x, size):
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _blocks(w):
    return w.reshape(w.shape[0] // 32, 32, w.shape[1] // 32, 32)


def _split_a(x):
    """x in groups, divided and rounded, and the scales; likewise below."""
    g = _groups(x, 32)
    scale = pow2_ceil(g.abs().amax(-1, keepdim=True).clamp(min=1e-4) * (1.0 / E4M3_MAX))
    return round_e4m3((g / scale).clamp(-E4M3_MAX, E4M3_MAX)), scale


def _split_b(x):
    g = _groups(x, 16)
    a = g.abs().amax(-1, keepdim=True).clamp(min=E2M1_MAX * 2.0 ** -9)
    scale = round_e4m3((a / E2M1_MAX).clamp(max=E4M3_MAX))
    return round_e2m1((g / scale).clamp(-E2M1_MAX, E2M1_MAX)), scale


def _split_c(x):
    g = _groups(x, 32)
    a = g.abs().amax(-1, keepdim=True).clamp(min=E2M1_MAX * 2.0 ** -126)
    scale = pow2_ceil(a * (1.0 / E2M1_MAX))
    return round_e2m1((g / scale).clamp(-E2M1_MAX, E2M1_MAX)), scale


def _split_block(w):
    g = _blocks(w)
    scale = pow2_ceil(g.abs().amax(dim=(1, 3), keepdim=True).clamp(min=1e-10) * (1.0 / E4M3_MAX))
    return round_e4m3((g / scale).clamp(-E4M3_MAX, E4M3_MAX)), scale


def quant_a(x):
    code, scale = _split_a(x)
    return (code * scale).reshape(x.shape)


def quant_b(x):
    code, scale = _split_b(x)
    return (code * scale).reshape(x.shape)


def quant_c(x):
    code, scale = _split_c(x)
    return (code * scale).reshape(x.shape)


def quant_block(w):
    code, scale = _split_block(w)
    return (code * scale).reshape(w.shape)


# ---- Stored bytes --------------------------------------------------------------------------------


def e8m0_byte(s):
    """Byte of a power of two."""
    return ((_bits(s) >> 23) & 255).to(torch.uint8)


def e4m3_byte(x):
    """Byte of a value that already lies on the E4M3 grid."""
    bits = _bits(x)
    sign = (bits >> 31) & 1
    exponent = ((bits >> 23) & 255) - 127
    normal = ((exponent + 7) << 3) | ((bits >> 20) & 7)
    subnormal = torch.round(x.abs() * 512.0).to(torch.int32)
    return (torch.where(exponent >= -6, normal, subnormal) | (sign << 7)).to(torch.uint8)


def e2m1_code(x):
    """4-bit code of a value that already lies on the E2M1 grid."""
    bits = _bits(x)
    a = x.abs()
    code = torch.zeros_like(bits)
    for n, value in enumerate(E2M1):
        code = torch.where(a == value, torch.full_like(code, n), code)
    return (code | (((bits >> 31) & 1) << 3)).to(torch.uint8)


def pack_e2m1(x):
    """Two codes a byte, the even element in the low nibble."""
    code = e2m1_code(x)
    return code[..., 0::2] | (code[..., 1::2] << 4)


def record_a(x):
    """A window row as stored: E4M3 codes, then UE8M0 scales."""
    code, scale = _split_a(x)
    return torch.cat([e4m3_byte(code).reshape(x.shape), e8m0_byte(scale)[..., 0]], -1)


def record_b(x):
    """A main KV entry as stored: E2M1 pairs, then E4M3 scales."""
    code, scale = _split_b(x)
    return torch.cat([pack_e2m1(code.reshape(x.shape)), e4m3_byte(scale)[..., 0]], -1)


def record_c(x):
    """An indexer K entry, or FP4 weights, as stored: E2M1 pairs, then UE8M0 scales."""
    code, scale = _split_c(x)
    return torch.cat([pack_e2m1(code.reshape(x.shape)), e8m0_byte(scale)[..., 0]], -1)


def block_bytes(w):
    """Codes [rows, columns] and scales [rows / 32, columns / 32] of an FP8 weight as stored."""
    code, scale = _split_block(w)
    return e4m3_byte(code.reshape(w.shape)), e8m0_byte(scale)[:, 0, :, 0]


# ---- Values of stored bytes ----------------------------------------------------------------------


def e8m0_value(b):
    return (b.to(torch.int32) << 23).view(torch.float32)


def e4m3_value(b):
    b = b.to(torch.int32)
    exponent, mantissa = (b >> 3) & 15, (b & 7).to(torch.float32)
    step = ((torch.clamp(exponent, min=1) + 117) << 23).view(torch.float32)  # 2^(exponent - 7 - 3)
    value = torch.where(exponent > 0, mantissa + 8.0, mantissa) * step
    return torch.where(b >= 128, -value, value)


def unpack_e2m1(packed):
    table = torch.tensor(E2M1 + tuple(-v for v in E2M1), dtype=torch.float32, device=packed.device)
    low, high = table[(packed & 15).long()], table[(packed >> 4).long()]
    return torch.stack([low, high], -1).reshape(*packed.shape[:-1], packed.shape[-1] * 2)


def _values(record, dim, group, codes_of, scales_of):
    split = record.shape[-1] - dim // group
    scale = scales_of(record[..., split:]).repeat_interleave(group, -1)
    return codes_of(record[..., :split]) * scale


def values_a(record, dim):
    """The values of a record, dim of them; likewise below."""
    return _values(record, dim, 32, e4m3_value, e8m0_value)


def values_b(record, dim):
    return _values(record, dim, 16, unpack_e2m1, e4m3_value)


def values_c(record, dim):
    return _values(record, dim, 32, unpack_e2m1, e8m0_value)
