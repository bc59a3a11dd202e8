"""Times the reference on the CPU as it is: decoding of one sequence, and prefill of a long prompt.

    bench_reference.py [--threads N]

Prints one JSON object, with float32 and with float64 sums. The yardstick for an engine: run both on
the same machine, one after the other. Prompts are golden/p1025 repeated, so experts and selections
are those of real use. The first decoded token is not counted.
"""
import argparse
import json
import pathlib
import statistics
import time

import numpy as np
import torch

from config import CHECKPOINT, GOLDEN
from reference import Reference
from weights import load_weights

CHUNK = 256  # Rows that a prefill runs at once, and checks the time after.


def repeated_prompt(length):
    with np.load(GOLDEN / "p1025.npz") as arrays:
        ids = [int(t) for t in arrays["ids"]]
    return (ids * (length // len(ids) + 1))[:length]


def time_decode(ref, cache, token, count):
    """Exact decoding, one token at a time, after the prompt in the cache."""
    prompt_tokens, seconds = len(cache.ids), []
    for _ in range(count + 1):
        begin = time.perf_counter()
        logits = ref.append(cache, [token])
        seconds.append(time.perf_counter() - begin)
        token = int(logits[-1].argmax())
    return {"prompt_tokens": prompt_tokens, "measured_tokens": count,
            "tokens_per_s": round(count / sum(seconds[1:]), 3),
            "ms_per_token_median": round(1000 * statistics.median(seconds[1:]), 2)}


def time_prefill(ref, count, seconds_max):
    """What prefill() does: the encoder on all tokens, decoder replay on the last 128.

    When the time is up, the rest of the prompt is left out, and measured_tokens says so."""
    ids, cache = repeated_prompt(count), ref.new_cache()
    begin = time.perf_counter()
    while not cache.ids or (len(cache.ids) < count and time.perf_counter() - begin < seconds_max):
        done = len(cache.ids)
        stream, pre = ref.encode(cache, ids[done:done + CHUNK])
    ref.decoder_replay(cache, stream, pre)
    seconds = time.perf_counter() - begin
    return {"prompt_tokens": count, "measured_tokens": len(cache.ids),
            "seconds": round(seconds, 3), "tokens_per_s": round(len(cache.ids) / seconds, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--checkpoint", type=pathlib.Path, default=CHECKPOINT)
    parser.add_argument("--prompt-tokens", type=int, default=512, help="before decoding")
    parser.add_argument("--decode-tokens", type=int, default=8)
    parser.add_argument("--prefill-tokens", type=int, default=4096)
    parser.add_argument("--prefill-seconds", type=float, default=6,
                        help="at most about so long for each prefill (default %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    references = {name: Reference(load_weights(options.checkpoint), acc=getattr(torch, name))
                  for name in ("float32", "float64")}
    result = {"torch": torch.__version__, "threads": options.threads, "sequences": 1}
    with torch.no_grad():
        prompt = references["float32"].new_cache()
        logits = references["float32"].prefill(prompt, repeated_prompt(options.prompt_tokens))
        token = int(logits[-1].argmax())
        for name, ref in references.items():
            result[name] = {
                "decode": time_decode(ref, prompt.clone(), token, options.decode_tokens),
                "prefill": time_prefill(ref, options.prefill_tokens, options.prefill_seconds)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
