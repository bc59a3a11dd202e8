"""Writes a checkpoint from a training state, or one with shards of another size.

    export.py state STATE.pt OUT          names and dtypes of the architecture's checkpoint
    export.py repack CHECKPOINT OUT       the same tensors in other shards
"""
import argparse
import pathlib

import torch

import quantisers
from weights import Stored, read_shards, write_shards

FP8 = ("wq_a", "wq_b", "wkv", "wo_a", "wo_b", "w1", "w2", "w3", "main_proj")
F32 = ("hc_attn_fn", "hc_attn_base", "hc_attn_scale", "hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale",
       "attn_sink", "bias")
SHARD_BYTES = 20_500_000


def stored(dtype, t):
    t = t.contiguous()
    raw = (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes()
    return Stored(dtype, list(t.shape), raw)


def expert(name, w) -> dict:
    """FP4 weights and their scales."""
    record, split = quantisers.record_c(w), w.shape[-1] // 2
    return {name + ".weight": stored("I8", record[:, :split]),
            name + ".scale": stored("F8_E8M0", record[:, split:])}


def experts(name, w) -> dict:
    """A layer's routed experts, which training keeps in one tensor."""
    base, kind = name.rsplit(".", 1)
    out = {}
    for e in range(w.shape[0]):
        if kind == "w13":
            half = w.shape[1] // 2
            out.update(expert(f"{base}.{e}.w1", w[e, :half]))
            out.update(expert(f"{base}.{e}.w3", w[e, half:]))
        else:
            out.update(expert(f"{base}.{e}.w2", w[e]))
    return out


def convert_one(name, w) -> dict:
    kind = name.split(".")[-2] if name.endswith(".weight") else name.split(".")[-1]
    scale = name[:-len("weight")] + "scale"
    if ".ffn.experts." in name:
        return experts(name, w)
    if name.endswith("engram.embed.weight"):
        record, columns = quantisers.record_a(w), w.shape[1]
        return {name: stored("F8_E4M3", record[:, :columns]),
                scale: stored("F8_E8M0", record[:, columns:])}
    if kind in FP8 and "compressor" not in name:
        codes, scales = quantisers.block_bytes(w)
        return {name: stored("F8_E4M3", codes), scale: stored("F8_E8M0", scales)}
    if name.endswith("gate.bias"):  # There is no vision here: both biases are one.
        return {name: stored("F32", w), name + "_vl": stored("F32", w)}
    if kind in F32:
        return {name: stored("F32", w)}
    return {name: stored("BF16", w.to(torch.bfloat16))}


def convert(state) -> dict:
    """{name: Stored} from training parameters, whose names have '/' for '.'."""
    out = {}
    for key, w in state.items():
        out.update(convert_one(key.replace("/", "."), w.detach().float().cpu()))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=("state", "repack"))
    parser.add_argument("input", type=pathlib.Path)
    parser.add_argument("out", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--shard-bytes", type=int, default=SHARD_BYTES,
                        help=f"at most so many bytes of data in a shard (default {SHARD_BYTES})")
    options = parser.parse_args()
    if options.source == "repack":
        tensors = read_shards(options.input)
    else:
        tensors = convert(torch.load(options.input, map_location="cpu"))
    write_shards(tensors, options.out, options.shard_bytes)


if __name__ == "__main__":
    main()
