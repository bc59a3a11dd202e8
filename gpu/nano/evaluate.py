"""Measures a checkpoint with the reference.

    evaluate.py PART HELD [--checkpoint FOLDER] [--samples N] [--out FILE]

Parts:
  bpb      bits per byte on held-out text, with FP4 caches and with bf16 caches
  replay   exact windows against encoder replay, decoder replay and both: loss, KL and agreement
  recall   exact answers to a fact stated so many bytes earlier, for every way to run the prompt
  tasks    exact answers of all kinds in synthetic sessions
  draft    DSpark's accepted length under greedy decoding

HELD is a corpus (plain or .xz) that was never trained on; synthetic sessions use other seeds than
training. Prints one JSON object.
"""
import argparse
import json
import math
import pathlib
import random
import time

import torch

from config import CHECKPOINT
from corpus import load_corpus
from reference import Reference
from sessions import Session, session
from weights import load_weights

MODES = ("exact", "encoder", "decoder", "both")
AFTER = 256         # Teacher-forced tokens after a boundary.
DRAFT_PROMPT, DRAFT_TOKENS = 700, 60


def bits(logits, ids):
    """Bits of each id given the logits row before it."""
    log_p = torch.log_softmax(logits.double(), -1)
    row = torch.arange(len(ids), device=logits.device)
    return -log_p[row, torch.tensor(ids, device=logits.device)] / math.log(2.0)


def text_sample(rng, corpus, length):
    a = rng.randrange(len(corpus) - length)
    return [int(t) for t in corpus[a:a + length]]


def session_sample(rng, corpus, length):
    return [int(t) for t in session(rng, corpus, length)[0]]


KINDS = (("text", text_sample), ("session", session_sample))


def mean(values):
    values = list(values)
    return sum(values) / max(1, len(values))


# ---- bpb -----------------------------------------------------------------------------------------


def bpb(ref, corpus, samples, rng):
    out = {}
    texts = [text_sample(rng, corpus, 2049) for _ in range(samples)]
    for name, quantise in (("fp4", True), ("bf16", False)):
        ref.quantise_cache = quantise
        b = torch.stack([bits(ref.append(ref.new_cache(), ids[:-1]), ids[1:]) for ids in texts])
        out[name] = {"bpb": float(b.mean()), "bpb_after_1024": float(b[:, 1024:].mean()),
                     "bytes": b.numel()}
    ref.quantise_cache = True
    return out


# ---- replay and recall ---------------------------------------------------------------------------


def run_modes(ref, prefix, suffix, rest):
    """Logits over `rest`, teacher forced after prefix and suffix, for the ways to run the prompt.

    encoder: encoder windows rebuilt at the end of the prefix, decoder windows kept
    decoder: the whole prompt through prefill(), decoder replay on its last 128 tokens
    both:    resume() after a hit on the prefix's global KV"""
    base = ref.new_cache()
    ref.append(base, prefix)

    def exact(cache):
        return ref.append(cache, suffix)

    def encoder(cache):
        ref.encoder_replay(cache)
        return ref.append(cache, suffix)

    def both(cache):
        return ref.resume(cache, suffix)

    def decoder(cache):
        return ref.prefill(cache, prefix + suffix)

    out = {}
    for run in (exact, encoder, decoder, both):
        cache = ref.new_cache() if run is decoder else base.clone()
        last = run(cache)[-1:]
        out[run.__name__] = torch.cat([last, ref.append(cache, rest[:-1])])
    return out


def compare(logits, exact, ids):
    """One sample's figures of a mode against the exact run; KL in nats."""
    p, q = torch.log_softmax(exact.double(), -1), torch.log_softmax(logits.double(), -1)
    kl = (p.exp() * (p - q)).sum(-1)
    same = (p.argmax(-1) == q.argmax(-1)).double()
    b = bits(logits, ids)
    return {"bits": float(b.mean()), "first_bits": float(b[:32].mean()),
            "kl": float(kl.mean()), "kl_first32": float(kl[:32].mean()), "kl_max": float(kl.max()),
            "agree": float(same.mean()), "agree_first32": float(same[:32].mean())}


def replay(ref, corpus, samples, rng):
    out = {}
    for kind, make in KINDS:
        figures = {m: [] for m in MODES}
        for _ in range(samples):
            h, s = rng.randint(900, 1400), rng.randint(140, 300)
            ids = make(rng, corpus, h + s + AFTER)
            logits = run_modes(ref, ids[:h], ids[h:h + s], ids[h + s:])
            for m in MODES:
                figures[m].append(compare(logits[m], logits["exact"], ids[h + s:]))
        out[kind] = {m: {key: (max if key == "kl_max" else mean)(f[key] for f in rows)
                         for key in rows[0]} for m, rows in figures.items()}
        out[kind]["samples"] = samples
    return out


def recall_sample(rng, corpus, distance):
    """prefix (fact, then filler), suffix (the question up to the value), value, distance."""
    s = Session(rng, corpus, 4000)
    s.chatter()
    s.note()
    key = list(s.notes)[-1]
    value, where = s.notes[key]
    for _ in range(2):
        s.note()
    while len(s.tokens) < where + distance - 160:
        fill = s.note if rng.random() < 0.3 else s.text_file if rng.random() < 0.3 else s.chatter
        fill()
    del s.tokens[max(where + distance - 60, where + 100):]
    s.answer("Seen.")  # Closes the turn that was cut.
    split = len(s.tokens)
    s.user(f"What is the {key}?")
    s.answer("The ", key, " is ", value, ".")
    end = len(s.tokens) - 2
    start = end - len(value)
    return s.tokens[:split], s.tokens[split:start], s.tokens[start:end], start - where


def recall(ref, corpus, samples, rng, distances):
    out = {}
    for distance in distances:
        right, true = {m: [] for m in MODES}, []
        for _ in range(samples):
            prefix, suffix, value, real = recall_sample(rng, corpus, distance)
            true.append(real)
            for m, logits in run_modes(ref, prefix, suffix, value).items():
                right[m].append(logits.argmax(-1).cpu() == torch.tensor(value))
        out[str(distance)] = {
            "mean_distance": mean(true), "samples": samples,
            "exact_match": {m: mean(bool(ok.all()) for ok in right[m]) for m in MODES},
            "byte_accuracy": {m: mean(float(ok.double().mean()) for ok in right[m])
                              for m in MODES}}
    return out


# ---- tasks ---------------------------------------------------------------------------------------


def tasks(ref, corpus, samples, rng):
    """Every byte that the context determines must be the greedy choice."""
    right = {}
    for _ in range(samples):
        s = Session(rng, corpus, 1500)
        for _ in range(3):
            s.note()
            s.config_file()
        s.text_file()
        spans = []
        for name in ("ask_note", "ask_file", "ask_calc", "ask_edit") * 3:
            start = len(s.tokens)
            getattr(s, name)()
            span = [i for i in range(start, len(s.tokens)) if s.weights[i] > 1]
            if span:
                spans.append((name, span))
        best = ref.append(ref.new_cache(), s.tokens).argmax(-1).tolist()
        for name, span in spans:
            right.setdefault(name, []).append(all(best[i - 1] == s.tokens[i] for i in span))
    return {name: {"exact_match": mean(v), "count": len(v)} for name, v in right.items()}


# ---- draft ---------------------------------------------------------------------------------------


def draft(ref, corpus, samples, rng):
    out = {}
    for kind, make in KINDS:
        lengths, accepted, rejected = [], [], []
        for _ in range(samples):
            cache = ref.new_cache()
            token = int(ref.prefill(cache, make(rng, corpus, DRAFT_PROMPT))[-1].argmax())
            done = 0
            while done < DRAFT_TOKENS:
                drafts, confidence = ref.draft(cache, token)
                emitted, cache = ref.verify(cache, token, drafts)
                token, done, good = emitted[-1], done + len(emitted), len(emitted) - 1
                lengths.append(len(emitted))
                accepted += confidence[:good]
                rejected += confidence[good:good + 1]
        out[kind] = {"tokens_per_step": mean(lengths), "accepted_drafts": mean(lengths) - 1,
                     "steps": len(lengths),
                     "emitted_histogram": [lengths.count(n) for n in range(1, 7)],
                     "confidence_accepted": mean(accepted), "confidence_rejected": mean(rejected)}
    return out


def main():
    parts = {"bpb": bpb, "replay": replay, "recall": recall, "tasks": tasks, "draft": draft}
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=parts)
    parser.add_argument("held", metavar="HELD", type=pathlib.Path)
    parser.add_argument("--checkpoint", type=pathlib.Path, default=CHECKPOINT)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--distances", type=int, nargs="+", default=[256, 1024, 4096, 8192],
                        help="bytes between fact and question, for recall")
    parser.add_argument("--out", type=pathlib.Path, help="file for the JSON object as well")
    options = parser.parse_args()
    corpus, rng = load_corpus(options.held), random.Random(f"{options.part}-{options.seed}")
    extra = (options.distances,) if options.part == "recall" else ()
    begin = time.time()
    with torch.no_grad():
        weights = load_weights(options.checkpoint, options.device)
        ref = Reference(weights, device=options.device)
        result = parts[options.part](ref, corpus, options.samples, rng, *extra)
    result["seconds"] = round(time.time() - begin, 1)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
