"""Trains nano from nothing, in four phases of a given number of seconds each.

    train.py CORPUS OUT --plan pre=520,qat=90,replay=260,draft=90

  pre     bf16, sequences of 2,048; the compressed branch is dense first, then selected; the
          indexer learns the attention of the layers that use its selection (KL on sampled rows)
  qat     the same with the quantisers of weights, activations and caches on
  replay  sequences of 8,192; windows are cut at random points, as the two replays cut them
  draft   DSpark's stages on the frozen backbone

OUT receives the state at the end of each phase, pre.pt to draft.pt, and train.log. Needs a Hopper
GPU and torch 2.8 or later; compilation takes minutes and is not counted.
"""
import argparse
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F

from batches import Loader
from config import load_config
from optimiser import Optimiser
from train_model import TrainModel
from train_ops import token_loss

SHORT, LONG = 2048, 8192
WARM_STEPS = 100         # Of phase pre.
UNCOUNTED_STEPS = 2      # Compilation.
SAVE_SECONDS = 150
BALANCE = 0.001          # Step of the experts' bias towards equal load.
ANCHORS = 128            # Draft positions of a sequence.
KEPT_PART = 0.4          # Sequences of phase replay whose windows stay whole.
CUT_PART = 0.75          # Turns at which a window is cut.


def uniform():
    return float(torch.rand(()))


def between(low, high):
    return int(torch.randint(low, high, ()))


def mean_bits(nats):
    return round(float(nats.mean()) / math.log(2.0), 4) if len(nats) else None


def replay_floors(batch, length, device):
    """Random turn boundaries: encoder floors, decoder floors, a mask of rows whose loss counts.

    A turn: encoder replay from H - 128, new tokens up to N, decoder replay from N - 128, decoding
    up to the next H."""
    encoder = torch.zeros(batch, length, dtype=torch.int32)
    decoder = torch.zeros(batch, length, dtype=torch.int32)
    keep = torch.ones(batch, length)
    for b in range(batch):
        if uniform() < KEPT_PART:
            continue
        at = between(200, 2500)
        while at < length:
            if uniform() < CUT_PART:
                encoder[b, at:] = at
                keep[b, at:at + 128] = 0
            at += 128 + between(1, 900)
            if at - 128 >= length:
                break
            if uniform() < CUT_PART:
                decoder[b, at - 128:] = at - 128
                keep[b, at - 128:at - 1] = 0
            at += between(100, 2200)
    return encoder.to(device), decoder.to(device), keep.to(device)


class Budget:
    """A phase's time; the clock starts when compilation is over."""

    def __init__(self, seconds):
        self.seconds, self.steps, self.begin = seconds, 0, None

    def progress(self):
        if self.steps < UNCOUNTED_STEPS:
            return 0.0
        if self.begin is None:
            torch.cuda.synchronize()
            self.begin = time.time()
        return min(1.0, (time.time() - self.begin) / self.seconds)


class Run:
    def __init__(self, options):
        self.options, self.device = options, "cuda"
        self.plan = {k: float(v) for k, v in (part.split("=") for part in options.plan.split(","))}
        rows, seed = options.rows, options.seed
        self.loaders = {SHORT: Loader(options.corpus, rows, SHORT, seed=seed),
                        LONG: Loader(options.corpus, max(1, rows // 4), LONG, seed=seed + 1)}
        self.model = TrainModel(load_config()).buffers_to(self.device)
        if options.resume:
            self.model.load_state_dict(torch.load(options.resume, map_location=self.device))
        names = [n for n, _ in self.model.named_parameters()]
        self.draft_names = [n for n in names if n.startswith("mtp")]
        self.backbone = Optimiser(self.model, [n for n in names if not n.startswith("mtp")])
        self.tokens, self.start = 0, time.time()
        self.log = (options.out / "train.log").open("a")

    def say(self, **values):
        line = json.dumps({"t": round(time.time() - self.start, 1), **values})
        print(line, flush=True)
        self.log.write(line + "\n")
        self.log.flush()

    def save(self, name):
        """Replaces the state as a whole."""
        part = self.options.out / f"{name}.pt.part"
        torch.save(self.model.state_dict(), part)
        part.rename(self.options.out / f"{name}.pt")

    def batch(self, length):
        """ids, targets and loss weights."""
        tokens, weights = self.loaders[length].get()
        tokens = torch.from_numpy(tokens.astype("int64")).to(self.device, non_blocking=True)
        weights = torch.from_numpy(weights[:, 1:]).to(self.device).float()
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), weights

    @torch.no_grad()
    def balance(self, prefix):
        for p, load in self.model.load.items():
            if p.startswith(prefix):
                step = BALANCE * torch.sign(load.mean() - load)
                self.model.p(p + "ffn.gate.bias").add_(step)

    def backbone_step(self, length, factor, cut):
        ids, target, weight = self.batch(length)
        floors = (None, None)
        if cut:
            *floors, keep = replay_floors(*ids.shape, self.device)
            weight = weight * keep
        y, index, _ = self.model(ids, *floors)
        loss = token_loss(y, self.model.bf("head.weight"), target.flatten())
        total = (loss * weight.flatten()).sum() / weight.sum()
        (total + index).backward()
        self.backbone.step(factor)
        self.balance("layers")
        self.tokens += ids.numel()
        return loss.detach(), weight.flatten(), index.detach()

    def report(self, name, steps, since, loss, weight, index):
        """Bits per byte of plain bytes and of bytes that the context determines."""
        torch.cuda.synchronize()
        self.say(phase=name, step=steps, tokens=self.tokens,
                 bpb=mean_bits(loss[weight == 1]), answers=mean_bits(loss[weight > 1.5]),
                 index=round(float(index), 4), dense=self.model.dense,
                 ms=round((time.time() - since) * 1000 / (50 if steps > 50 else 1), 1))

    def phase(self, name, length, factor, cut=False):
        """factor(progress) multiplies the learning rates."""
        budget, last, saved = Budget(self.plan[name]), time.time(), time.time()
        while (progress := budget.progress()) < 1:
            rate = factor(progress)
            if name == "pre":
                self.model.dense = progress < self.options.dense
                rate *= min(1.0, (budget.steps + 1) / WARM_STEPS)
            results = self.backbone_step(length, rate, cut)
            budget.steps += 1
            if time.time() - saved > SAVE_SECONDS:
                self.save("latest")
                saved = time.time()
            if budget.steps <= 3 or budget.steps % 50 == 0:
                self.report(name, budget.steps, last, *results)
                last = time.time()
        self.save(name)
        self.say(phase=name, done=budget.steps, tokens=self.tokens,
                 memory=torch.cuda.max_memory_allocated() >> 20)

    def draft_step(self, optimiser, factor):
        ids, _, _ = self.batch(SHORT)
        with torch.no_grad():
            y, _, taps = self.model(ids, index_loss=False)
            teacher = F.linear(y, self.model.bf("head.weight")).reshape(*ids.shape, -1)
        anchors = torch.randperm(ids.shape[1] - 8, device=self.device)[:ANCHORS]
        loss, hits = self.model.draft_loss(ids, taps, teacher, anchors)
        loss.backward()
        optimiser.step(factor)
        self.balance("mtp")
        return float(loss.detach()), hits.tolist()

    def draft_phase(self):
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in self.draft_names)
        optimiser, budget = Optimiser(self.model, self.draft_names), Budget(self.plan["draft"])
        while (progress := budget.progress()) < 1:
            warm = min(1.0, 0.1 + budget.steps / 50)
            loss, hits = self.draft_step(optimiser, warm * min(1.0, 2.0 * (1 - progress) + 0.02))
            budget.steps += 1
            if budget.steps <= 2 or budget.steps % 50 == 0:
                self.say(phase="draft", step=budget.steps, loss=round(loss, 4),
                         hits=[round(h, 3) for h in hits])
        self.save("draft")
        self.say(phase="draft", done=budget.steps)

    def all_phases(self):
        if "pre" in self.plan:
            self.phase("pre", SHORT, lambda progress: 1.0)
        self.model.dense, self.model.qat = False, True
        if "qat" in self.plan:
            self.phase("qat", SHORT, lambda progress: 1.0 - 0.5 * progress)
        if "replay" in self.plan:
            self.phase("replay", LONG, lambda progress: 0.5 * (1 - progress) + 0.01,
                       cut=not self.options.whole_windows)
        if "draft" in self.plan:
            self.draft_phase()
        for loader in self.loaders.values():
            loader.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", metavar="CORPUS", type=pathlib.Path,
                        help="train.bin of corpus.py")
    parser.add_argument("out", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--plan", default="pre=520,qat=90,replay=260,draft=90",
                        help="phases and their seconds (default %(default)s)")
    parser.add_argument("--resume", type=pathlib.Path, help="state to start from")
    parser.add_argument("--rows", type=int, default=24, help="sequences of 2,048 in a batch")
    parser.add_argument("--dense", type=float, default=0.25,
                        help="part of phase pre with a dense compressed branch")
    parser.add_argument("--whole-windows", action="store_true",
                        help="phase replay without cutting windows: a control run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not torch.cuda.is_available():
        parser.error("training needs a CUDA GPU, and torch sees none")
    torch._dynamo.config.cache_size_limit = 128
    torch.backends.cuda.matmul.allow_tf32 = True
    Run(options).all_phases()


if __name__ == "__main__":
    main()
