#!/usr/bin/env python3
"""Times training steps of models with experts on one GPU, and tells what they spend time on.

    torchrun --nproc-per-node 1 experts.py > experts.jsonl      # two minutes

Layers as fsdp.py has them, with a router and experts (SwiGLU) in place of the feed-forward: scores by softmax, the best few of them,
tokens sorted by expert, products of all experts by one kernel (`torch._grouped_mm`), and back, weighted. Which experts are best is drawn
evenly, as published benchmarks balance theirs. Layers are compiled. `kinds` and `ms` as in fsdp.py; products of experts are `experts`.
Prints a line of JSON a figure.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import fsdp

fsdp.KINDS = {"experts": ["grouped", "gemmuniversal"], **fsdp.KINDS}


def qwen(layers, hidden, heads, ffn, experts):
    return dict(layers=layers, hidden=hidden, heads=heads, kv_heads=4, head_dim=128, ffn=ffn, vocab=151936, experts=experts, chosen=8)


def mixtral(layers):
    return dict(layers=layers, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=32000, experts=8, chosen=2)


MODELS = {
    "qwen3-30b, 6 layers": qwen(6, 2048, 32, 768, 128),
    "qwen3-30b, 6 layers, 16 experts": qwen(6, 2048, 32, 768, 16),
    "qwen3-235b, 2 layers, 32 experts": qwen(2, 4096, 64, 1536, 32),
    "mixtral-8x7b, 2 layers": mixtral(2),
}
# Model, tokens of a sequence, sequences of a micro-batch.
CASES = [
    ("qwen3-30b, 6 layers", 4096, 1),
    ("qwen3-30b, 6 layers", 4096, 4),
    ("qwen3-30b, 6 layers, 16 experts", 4096, 4),
    ("qwen3-235b, 2 layers, 32 experts", 4096, 2),
    ("mixtral-8x7b, 2 layers", 4096, 1),
    ("mixtral-8x7b, 2 layers", 4096, 4),
]


class Experts(nn.Module):
    def __init__(self, hidden, ffn, experts, chosen, **_):
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, hidden, 2 * ffn))
        self.down = nn.Parameter(torch.empty(experts, ffn, hidden))

    def forward(self, x, noise):
        tokens = x.flatten(0, 1)
        scores = self.router(tokens)
        # Which are best is drawn; what they weigh is the router's.
        best = (noise + 0 * scores.detach()).topk(self.chosen, -1).indices
        weights = scores.float().softmax(-1).gather(-1, best).to(x.dtype)
        order = best.flatten().argsort(stable=True)
        counts = torch.bincount(best.flatten(), minlength=scores.shape[-1])
        ends = counts.cumsum(0).to(torch.int32)
        sent = tokens.index_select(0, order // self.chosen)
        gate, up = torch._grouped_mm(sent, self.up, ends).chunk(2, -1)
        made = torch._grouped_mm(F.silu(gate) * up, self.down, ends)
        back = torch.empty_like(made).index_copy(0, order, made).view(-1, self.chosen, x.shape[-1])
        return (back * weights.unsqueeze(-1)).sum(1).view_as(x)


class Layer(nn.Module):
    def __init__(self, hidden, heads, kv_heads, head_dim, **rest):
        super().__init__()
        self.heads, self.kv, self.head = heads, kv_heads, head_dim
        self.before, self.between = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, hidden, bias=False)
        self.experts = Experts(hidden, **rest)

    def forward(self, x, noise):
        batch, tokens, _ = x.shape
        y = self.qkv(self.before(x)).view(batch, tokens, self.heads + 2 * self.kv, self.head).transpose(1, 2)
        q, k, v = y.split((self.heads, self.kv, self.kv), 1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        return x + self.experts(self.between(x), noise)


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.words = nn.Embedding(shape["vocab"], shape["hidden"])
        self.layers = nn.ModuleList(Layer(**shape) for _ in range(shape["layers"]))
        self.norm = nn.RMSNorm(shape["hidden"])
        self.scores = nn.Linear(shape["hidden"], shape["vocab"], bias=False)

    def forward(self, ids, noise):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, noise)
        return self.scores(self.norm(x))


def drawn(tokens, shape):
    """What the best experts of each token are drawn by."""
    return torch.rand(tokens, shape["experts"], device=fsdp.DEVICE)


def measure(name, tokens, micro, choice=drawn):
    torch.manual_seed(1)
    shape = MODELS[name]
    with torch.device(fsdp.DEVICE):
        model = Model(shape).to(torch.bfloat16)
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(0, 0.02) if weights.ndim > 1 else weights.fill_(1)
    for layer in model.layers:
        layer.compile(dynamic=False)
    of_scores = torch.compile(fsdp.loss, dynamic=False)
    ids, wanted = (torch.randint(0, shape["vocab"], (micro, tokens), device=fsdp.DEVICE) for _ in range(2))
    chosen = choice(micro * tokens, shape)

    def step():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            of_scores(model(ids, chosen), wanted).backward()
        for weights in model.parameters():
            weights.grad = None

    for _ in range(4):
        step()
    case = dict(model=name, tokens=tokens, requests=micro)
    fsdp.say(what="experts", tp=1, dp=fsdp.WORLD, ep=fsdp.WORLD, **case, **fsdp.timed(step), **fsdp.spent(step))


if __name__ == "__main__":
    fsdp.main(CASES, measure)
