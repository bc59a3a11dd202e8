"""Writes the golden vectors: golden/tables.npz and one file a prompt.

    golden.py --out OUT                          the prompts of golden/ again
    golden.py --out OUT --corpus held.bin        new prompts from held-out text

Everything is computed by the reference on the CPU with float64 sums. bf16 tensors are stored as
uint16 bit patterns (names ending in _bf16), cache entries as their record bytes. README.md lists
the arrays.
"""
import argparse
import pathlib
import random

import numpy as np
import torch

import quantisers
from config import CHECKPOINT, GOLDEN, load_config
from corpus import load_corpus
from reference import Reference
from sessions import session
from tables import EngramHash, compressed_map, engram_primes, rope_frequencies
from weights import load_weights

KEEP = 4           # Activations are stored for the last rows only.
WHOLE = 4096       # A chunk that no prompt exceeds.
GREEDY_COUNT = 32
ALL_SELECTED = 300  # Up to this length the selection of every row is stored.
# Where a hit is resumed, and how many drafting steps are taken.
CASES = {"p0001": (None, 0), "p0127": (None, 0), "p0129": (None, 3), "p0300": (170, 4),
         "p1025": (800, 4)}


def bits(x):
    return x.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint16)


def int16(values):
    return np.array(values, dtype=np.int16)


def quantiser_rows(generator):
    """Rows over many magnitudes, zeros of both signs, and the ties of E2M1 at scale 1."""
    x = torch.randn(96, 128, generator=generator) * torch.logspace(-5, 3, 96)[:, None]
    x[1] = 0
    x[2, ::3] = -0.0
    x = quantisers.bf16(x)
    half = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 16)
    x[3], x[4] = half, -half
    return x


def tables(c) -> dict:
    """The arrays of tables.npz."""
    generator = torch.Generator().manual_seed(5)
    x = quantiser_rows(generator)
    ids = torch.randint(0, 269, (40,), generator=generator)
    d = {"x_bf16": bits(x),
         "record_a": quantisers.record_a(x).numpy(),
         "record_b": quantisers.record_b(x).numpy(),
         "record_c": quantisers.record_c(x).numpy(),
         "value_a_bf16": bits(quantisers.quant_a(x)),
         "value_b_bf16": bits(quantisers.quant_b(x)),
         "value_c_bf16": bits(quantisers.quant_c(x)),
         "rope_plain": rope_frequencies(c, 0).numpy(),
         "rope_yarn": rope_frequencies(c, 1).numpy(),
         "compressed_map": compressed_map(c).numpy().astype(np.int32),
         "engram_ids": ids.numpy()}
    for layer in c.engram_layer_ids:
        h = EngramHash(c, layer)
        d[f"engram_{layer}_multipliers"] = np.array(h.multipliers, dtype=np.int64)
        d[f"engram_{layer}_primes"] = np.array(engram_primes(c)[layer], dtype=np.int64)
        d[f"engram_{layer}_rows"] = h(ids).numpy()
    return d


def activations(trace, tag, every=False) -> dict:
    """The last rows of a run's tensors; with `every`, the selection of all rows."""
    d = {}
    for name, t in trace.items():
        if name.endswith((".stream", ".attn_out")):
            d[f"{tag}.{name}_bf16"] = bits(t[-KEEP:])
        elif name.endswith((".pre", "index_score")):
            d[f"{tag}.{name}"] = t[-KEEP:].numpy()
        elif name.endswith((".selected", ".experts")):
            rows = t if every and name.endswith(".selected") else t[-KEEP:]
            d[f"{tag}.{name}"] = int16(rows)
    return d


def records(trace, tag, kinds) -> dict:
    """Record bytes of the cache entries that a run wrote; of window rows the last 128."""
    d = {}
    for name, t in trace.items():
        if name.endswith(kinds):
            d[f"{tag}.{name}"] = (t[-128:] if name.endswith("swa_record") else t).numpy()
    return d


def exact_run(ref, ids) -> dict:
    """All layers on all rows."""
    cache, ref.trace = ref.new_cache(), {}
    logits = ref.append(cache, ids, chunk=WHOLE)
    d = activations(ref.trace, "exact", every=len(ids) <= ALL_SELECTED)
    d.update(records(ref.trace, "exact", "_record"))
    ref.trace = None
    d["exact.ring_pos"] = cache.ring_pos.numpy().astype(np.int32)
    for source, tail in cache.tail.items():
        if tail is not None:
            d[f"exact.tail_{source}"] = torch.cat(tail).numpy()
    d["exact.logits"] = logits[-KEEP:].numpy()
    d["exact.argmax"] = int16(logits.argmax(-1))
    d["exact.greedy"] = int16(ref.greedy(cache, logits, GREEDY_COUNT))
    return d


def prefill_run(ref, ids, draft_steps) -> dict:
    """Decoder replay, then drafting steps from its state."""
    cache, ref.trace = ref.new_cache(), {}
    logits = ref.prefill(cache, ids, chunk=WHOLE)
    d = activations(ref.trace, "prefill")
    d.update(records(ref.trace, "prefill", "swa_record"))
    ref.trace = None
    d["prefill.ring_pos"] = cache.ring_pos.numpy().astype(np.int32)
    d["prefill.logits"] = logits[-KEEP:].numpy()
    d["prefill.greedy"] = int16(ref.greedy(cache.clone(), logits, GREEDY_COUNT))
    if draft_steps:
        d.update(draft_run(ref, cache, int(logits[-1].argmax()), draft_steps))
    return d


def draft_run(ref, cache, token, count) -> dict:
    d, steps = {}, []
    for k in range(count):
        ref.trace = {} if k == 0 else None
        proposal, confidence = ref.draft(cache, token)
        if k == 0:
            d["draft.hidden_bf16"] = bits(ref.trace["draft.hidden"])
            d["draft.base_logits"] = ref.trace["draft.base_logits"].numpy()
            ref.trace = None
        emitted, cache = ref.verify(cache, token, proposal)
        steps.append((token, proposal, confidence, emitted))
        token = emitted[-1]
    size = ref.c.dspark_block_size + 1
    d["draft.token"] = int16([s[0] for s in steps])
    d["draft.proposal"] = int16([s[1] for s in steps])
    d["draft.confidence"] = np.array([s[2] for s in steps], dtype=np.float32)
    d["draft.emitted"] = int16([s[3] + [-1] * (size - len(s[3])) for s in steps])
    return d


def resume_run(ref, ids, at) -> dict:
    """A hit on the global KV of the first `at` tokens: encoder replay, new rows, decoder replay."""
    cache = ref.new_cache()
    ref.append(cache, ids[:at], chunk=WHOLE)
    cache.drop_windows(range(ref.c.layers + ref.c.stages))
    ref.trace = {}
    ref.encoder_replay(cache.clone())
    d = records(ref.trace, "encoder_replay", "swa_record")
    ref.trace = {}
    logits = ref.resume(cache, ids[at:], chunk=WHOLE)
    d.update(activations(ref.trace, "resume"))
    d.update(records(ref.trace, "resume", "_record"))
    ref.trace = None
    d["resume.at"] = np.array(at)
    d["resume.logits"] = logits[-KEEP:].numpy()
    d["resume.ring_pos"] = cache.ring_pos.numpy().astype(np.int32)
    d["resume.greedy"] = int16(ref.greedy(cache, logits, GREEDY_COUNT))
    return d


def prompt(ref, ids, resume_at, draft_steps) -> dict:
    """The arrays of one prompt's file."""
    d = {"ids": int16(ids)}
    d.update(exact_run(ref, ids))
    d.update(prefill_run(ref, ids, draft_steps))
    if resume_at:
        d.update(resume_run(ref, ids, resume_at))
    return d


def prompts_of(folder) -> dict:
    """The prompts of existing golden files."""
    out = {}
    for name in CASES:
        with np.load(pathlib.Path(folder) / f"{name}.npz") as arrays:
            out[name] = [int(t) for t in arrays["ids"]]
    return out


def prompts_from(corpus) -> dict:
    """Prompts of the same lengths, one of text and the others of a session."""
    chat = [int(t) for t in session(random.Random("golden-chat"), corpus, 1400)[0]]
    text = [int(t) for t in corpus[50_000:51_400]]
    return {name: (text if name == "p0127" else chat)[:int(name[1:])] for name in CASES}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the files")
    parser.add_argument("--checkpoint", type=pathlib.Path, default=CHECKPOINT)
    parser.add_argument("--corpus", type=pathlib.Path, help="held-out text, plain or .xz")
    options = parser.parse_args()
    prompts = prompts_from(load_corpus(options.corpus)) if options.corpus else prompts_of(GOLDEN)
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.out / "tables.npz", **tables(load_config()))
    ref = Reference(load_weights(options.checkpoint))
    with torch.no_grad():
        for name, (resume_at, draft_steps) in CASES.items():
            arrays = prompt(ref, prompts[name], resume_at, draft_steps)
            np.savez_compressed(options.out / f"{name}.npz", **arrays)
            print(f"{name}: {len(arrays)} arrays", flush=True)


if __name__ == "__main__":
    main()
