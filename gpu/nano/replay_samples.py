"""Writes the texts on which an engine measures what replay costs: one JSON object a line.

    replay_samples.py HELD OUT [--samples N] [--recall N] [--seed N]

    {"kind": "text", "prefix": 1201, "suffix": 177, "ids": [..]}

The ids are prefix, suffix and 256 more (for the kinds recall-D: the value that was stated D bytes
earlier). The draws are those of `evaluate.py replay` and `evaluate.py recall`.
`reprise bench replay --samples OUT` reads the file. HELD is a corpus (plain or .xz) that was never
trained on.
"""
import argparse
import json
import random

from corpus import load_corpus
from evaluate import AFTER, KINDS, recall_sample

DISTANCES = (256, 1024, 4096)


def replay_lines(rng, corpus, samples):
    for kind, make in KINDS:
        for _ in range(samples):
            prefix, suffix = rng.randint(900, 1400), rng.randint(140, 300)
            ids = make(rng, corpus, prefix + suffix + AFTER)
            yield {"kind": kind, "prefix": prefix, "suffix": suffix, "ids": ids}


def recall_lines(rng, corpus, samples):
    for distance in DISTANCES:
        for _ in range(samples):
            prefix, suffix, value, _ = recall_sample(rng, corpus, distance)
            yield {"kind": f"recall-{distance}", "prefix": len(prefix), "suffix": len(suffix),
                   "ids": [int(t) for t in prefix + suffix + value]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("held")
    parser.add_argument("out")
    parser.add_argument("--samples", type=int, default=64, help="of text, and of sessions")
    parser.add_argument("--recall", type=int, default=16, help="of each distance")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    corpus = load_corpus(args.held)
    with open(args.out, "w", encoding="utf-8") as out:
        for part, lines, count in (("replay", replay_lines, args.samples),
                                   ("recall", recall_lines, args.recall)):
            for line in lines(random.Random(f"{part}-{args.seed}"), corpus, count):
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
