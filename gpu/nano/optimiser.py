"""Muon for the projection matrices, Adam for everything else."""
import torch

MUON = ("wq_a", "wq_b", "wkv", "wo_a", "wo_b", "w13", "w2", "w1", "w3", "wgate", "wk", "main_proj")
MUON_RATE, MUON_MOMENTUM, MUON_DECAY = 0.02, 0.95, 0.02
ADAM_BETA_1, ADAM_BETA_2 = 0.9, 0.98


def is_muon(name):
    parts = name.split("/")
    return (parts[-2] if parts[-1] == "weight" else parts[-1]) in MUON


def adam_rate(name):
    if "engram/embed" in name:
        return 5e-3
    return 3e-3 if name in ("embed/weight", "head/weight") else 1.5e-3


def orthogonal(g):
    """Newton-Schulz iteration to the nearest orthogonal matrix; g [n, rows, cols], rows <= cols."""
    x = g.to(torch.bfloat16)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x


def gradient(p):
    return p.grad if p.grad is not None else torch.zeros_like(p)


class Optimiser:
    """Matrices of one shape are updated together; the rates are multiplied by step()'s factor."""

    def __init__(self, model, names):
        self.step_count = 0
        parameters = dict(model.named_parameters())
        self.parameters = [parameters[n] for n in names]
        adam = [n for n in names if not is_muon(n)]
        self.adam, self.rates = [parameters[n] for n in adam], [adam_rate(n) for n in adam]
        self.m = [torch.zeros_like(p) for p in self.adam]
        self.v = [torch.zeros_like(p) for p in self.adam]
        self.groups = {}  # Shape -> [(parameter, how it is viewed)]
        for n in names:
            if is_muon(n):
                p = parameters[n]
                rows = p.shape[-2] // 2 if "w13" in n else p.shape[-2]
                shape = (-1, rows, p.shape[-1])
                self.groups.setdefault(shape[1:], []).append((p, shape))
        self.momentum = {}

    @torch.no_grad()
    def step(self, factor):
        self.step_count += 1
        self.adam_step(factor)
        for shape, members in self.groups.items():
            self.muon_step(factor, shape, members)
        for p in self.parameters:
            p.grad = None

    def adam_step(self, factor):
        """Gradients are clipped to norm 1 together."""
        grads = [gradient(p) for p in self.adam]
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        torch._foreach_mul_(grads, 1.0 / norm.clamp(min=1.0))
        torch._foreach_lerp_(self.m, grads, 1 - ADAM_BETA_1)
        torch._foreach_mul_(self.v, ADAM_BETA_2)
        torch._foreach_addcmul_(self.v, grads, grads, 1 - ADAM_BETA_2)
        c1, c2 = 1 - ADAM_BETA_1 ** self.step_count, 1 - ADAM_BETA_2 ** self.step_count
        denominator = torch._foreach_sqrt(torch._foreach_div(self.v, c2))
        torch._foreach_add_(denominator, 1e-8)
        update = torch._foreach_div(torch._foreach_div(self.m, c1), denominator)
        torch._foreach_mul_(update, [-rate * factor for rate in self.rates])
        torch._foreach_add_(self.adam, update)

    def muon_step(self, factor, shape, members):
        g = torch.cat([gradient(p).reshape(view) for p, view in members])
        if shape not in self.momentum:
            self.momentum[shape] = torch.zeros_like(g)
        momentum = self.momentum[shape].lerp_(g, 1 - MUON_MOMENTUM)
        g = g.lerp(momentum, MUON_MOMENTUM)
        tall = shape[0] > shape[1]
        u = orthogonal(g.transpose(1, 2) if tall else g)
        u = (u.transpose(1, 2) if tall else u).float() * max(1.0, shape[0] / shape[1]) ** 0.5
        rate, at = MUON_RATE * factor, 0
        for p, view in members:
            w = p.view(view)
            w.mul_(1 - rate * MUON_DECAY)
            w.add_(u[at:at + w.shape[0]], alpha=-rate)
            at += w.shape[0]
