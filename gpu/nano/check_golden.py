"""Compares the reference with the golden vectors. Exit status 0 when all is as it must be.

    check_golden.py [CHECKPOINT [GOLDEN [MODE]]]

Modes:
  tables   tables.npz and worked examples of the quantisers; must be equal
  layers   each layer alone on the last row, from golden input and golden cache entries; the
           stream must be equal. The way to check another implementation, and the default.
  float64  the exact run of each prompt; every difference must be 0
  float32  the same with float32 sums: how far an implementation drifts that only sums in another
           way
"""
import argparse
import pathlib
import sys

import numpy as np
import torch

import quantisers
from config import CHECKPOINT, GOLDEN, load_config
from golden import CASES, tables
from reference import Reference
from weights import load_weights

# Prompts as long as a window at least: the window records cover it.
LAYER_CASES = ("p0129", "p0300", "p1025")

# pre stays float32: its last bit depends on how many rows a library multiplies at once.
PRE_TOLERANCE = 1e-6

# Worked examples: 16 values, and 32 of which the second half is a seventh of the first.
EXAMPLE = [0, 0.10009765625, -0.25, 0.5, 0.75, -1, 1.25, 1.5, 2, -2.5, 3, 3.5, -4, 5, 6.5, -7.25]
EXAMPLE_B = "0018a122c3546df7" "3a"
EXAMPLE_C = "00089121a2434ce50008800080001991" "80"
EXAMPLE_A = "0045d0585ce0626468ea6c6ef07275f6002fb94146c94b4e51d35658d95b5fe0" "7a"


def from_bits(a):
    return torch.from_numpy(a.view(np.int16).copy()).view(torch.bfloat16).float()


def check_tables(folder):
    """The number of tables and examples that differ."""
    wrong = 0
    with np.load(folder / "tables.npz") as golden:
        made = tables(load_config())
        for name in sorted(set(golden) | set(made)):
            same = name in golden and name in made and np.array_equal(golden[name], made[name])
            wrong += not same
            print(f"{name}: {'equal' if same else 'DIFFERS'}")
    short = torch.tensor(EXAMPLE)
    long = torch.cat([short, quantisers.bf16(short / 7)])
    for record, x, expected in ((quantisers.record_a, long, EXAMPLE_A),
                                (quantisers.record_b, short, EXAMPLE_B),
                                (quantisers.record_c, long, EXAMPLE_C)):
        same = bytes(record(x).tolist()).hex() == expected
        wrong += not same
        print(f"example of {record.__name__}: {'equal' if same else 'DIFFERS'}")
    return wrong


def golden_cache(ref, g):
    """A cache with the golden global KV of all rows but no windows."""
    c, cache = ref.c, ref.new_cache()
    cache.ids = [int(t) for t in g["ids"]]
    for source in c.kv_source_layer_ids:
        p = f"exact.layers.{source}.attn."
        main = torch.from_numpy(g[p + "main_record"])
        index = torch.from_numpy(g[p + "index_record"])
        cache.append_global(source, quantisers.values_b(main, c.head_dim),
                            quantisers.values_c(index, c.index_head_dim))
    return cache


def check_layers(ref, g):
    """The largest difference of a stream, and of pre, after one layer."""
    cache, shared = golden_cache(ref, g), {}
    worst_stream = worst_pre = 0.0
    count = len(cache.ids)
    for layer in range(ref.c.layers):
        p = f"exact.layers.{layer}."
        record = torch.from_numpy(g[p + "attn.swa_record"])
        cache.write_window(layer, quantisers.values_a(record, ref.c.head_dim),
                           torch.arange(count - len(record), count))
        if layer:
            before = f"exact.layers.{layer - 1}."
            stream = from_bits(g[before + "stream_bf16"])[-1:]
            pre = torch.from_numpy(g[before + "pre"])[-1:]
        else:
            stream, pre = ref.start(torch.tensor(cache.ids[-1:]))
        pos = ref.positions(count - 1, 1)
        stream, pre = ref.layer(layer, cache, stream, pre, pos, shared, write_global=False)
        want = from_bits(g[p + "stream_bf16"])[-1:]
        worst_stream = max(worst_stream, float((stream - want).abs().max()))
        want = torch.from_numpy(g[p + "pre"])[-1:]
        worst_pre = max(worst_pre, float((pre - want).abs().max()))
    return worst_stream, worst_pre


def check_run(ref, g):
    """Prints how far an exact run is from the golden one; returns whether it is equal."""
    ref.trace = {}
    logits = ref.append(ref.new_cache(), [int(t) for t in g["ids"]], chunk=4096)
    agree = float((logits.argmax(-1).numpy() == g["exact.argmax"]).mean())
    worst = float(np.abs(logits[-4:].numpy() - g["exact.logits"]).max())
    print(f"  next token equal {agree:.3f}, largest difference of a logit {worst:.2g}")
    drift = []
    for layer in range(ref.c.layers):
        want = from_bits(g[f"exact.layers.{layer}.stream_bf16"])
        got = ref.trace[f"layers.{layer}.stream"][-4:]
        drift.append(float((got - want).norm() / want.norm()))
    print("  stream drift by layer", " ".join(f"{d:.1e}" for d in drift))
    equal = worst == 0 and not any(drift)
    for source in ref.c.kv_source_layer_ids:
        key = f"layers.{source}.attn.main_record"
        got, want = ref.trace[key].numpy(), g[f"exact.{key}"]
        share = float((got == want).mean()) if want.size else 1.0
        equal = equal and share == 1
        print(f"  main records of layer {source}: bytes equal {share:.5f}")
    ref.trace = None
    return equal


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=pathlib.Path, default=CHECKPOINT)
    parser.add_argument("golden", nargs="?", type=pathlib.Path, default=GOLDEN)
    parser.add_argument("mode", nargs="?", default="layers",
                        choices=("tables", "layers", "float64", "float32"))
    options = parser.parse_args()
    if options.mode == "tables":
        return 1 if check_tables(options.golden) else 0
    acc = torch.float32 if options.mode == "float32" else torch.float64
    ref = Reference(load_weights(options.checkpoint), acc=acc)
    equal = True
    for name in LAYER_CASES if options.mode == "layers" else CASES:
        with np.load(options.golden / f"{name}.npz") as g, torch.no_grad():
            if options.mode == "layers":
                stream, pre = check_layers(ref, g)
                equal = equal and stream == 0 and pre <= PRE_TOLERANCE
                print(f"{name}: largest difference after one layer: stream {stream:.2g}, "
                      f"pre {pre:.2g}")
            else:
                print(name)
                equal = check_run(ref, g) and equal
    return 0 if equal or options.mode == "float32" else 1


if __name__ == "__main__":
    sys.exit(main())
