"""Training batches: windows of the corpus and synthetic sessions, made by background processes."""
import multiprocessing
import random

import numpy as np

from corpus import load_corpus
from sessions import session

SYNTHETIC = 0.5  # The part of rows that are sessions.


def session_row(rng, corpus, length):
    """Mostly one long session, sometimes several short ones: tokens and weights."""
    tokens, weights = [], []
    while len(tokens) < length + 1:
        want = length + 1 - len(tokens)
        if rng.random() < 0.3:
            want = min(want, rng.randint(400, length))
        more, more_weights = session(rng, corpus, want)
        tokens += more
        weights += more_weights
    return tokens, weights


def make_batch(rng, corpus, rows, length):
    """tokens uint16 [rows, length + 1] and weights uint8 of the same shape."""
    tokens = np.zeros((rows, length + 1), np.uint16)
    weights = np.ones((rows, length + 1), np.uint8)
    for row in range(rows):
        if rng.random() < SYNTHETIC:
            tokens[row], weights[row] = session_row(rng, corpus, length)
        else:
            a = rng.randrange(len(corpus) - length - 1)
            tokens[row] = corpus[a:a + length + 1]
    return tokens, weights


def _work(seed, corpus, rows, length, queue):
    rng = random.Random(seed)
    while True:
        queue.put(make_batch(rng, corpus, rows, length))


class Loader:
    """Batches made in advance. Start it before the GPU is touched: the processes are forked."""

    def __init__(self, path, rows, length, workers=4, seed=0):
        corpus = load_corpus(path)
        context = multiprocessing.get_context("fork")
        self.queue = context.Queue(maxsize=8)
        self.processes = [
            context.Process(target=_work, daemon=True,
                            args=(seed * 1000 + n, corpus, rows, length, self.queue))
            for n in range(workers)]
        for process in self.processes:
            process.start()

    def get(self):
        return self.queue.get()

    def stop(self):
        for process in self.processes:
            process.terminate()
