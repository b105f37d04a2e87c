#!/usr/bin/env python3
"""Times what is between products where PyTorch runs operator by operator, and where it compiles layers, on one GPU.

    python3 eager.py > eager.jsonl      # two minutes

Layers, the output layer with its loss, and an optimizer are timed alone, forward and backward, weights in bf16: `layers` of a model are
as its authors write them in PyTorch. `llama`: RMSNorm in 32 bits, rotary positions as complex numbers in 32 bits, three matrices of a
gated feed-forward (torchtitan and Meta's own). `hf-llama`: norms and rotations of Hugging Face's transformers. `gpt`: LayerNorm, GELU, one
product for queries, keys and values, learned positions; `gpt-dropout` drops out a tenth of what attention and the feed-forward add. `how`:
`eager` operator by operator, `compiled` by torch.compile, a layer at once. `kinds` are the milliseconds of kernels of one pass by the
profiler, `launches` their number, `ms` the median of passes by events on the device. A pass of few tokens takes what the host takes to launch
it. Prints a line of JSON a figure.
"""

import json
import statistics
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

BF16 = torch.bfloat16
DEVICE = torch.device("cuda", 0)
# Layers, hidden size, heads, those of keys and values, feed-forward, tokens of a sequence, sequences.
CASES = [
    ("llama", 4, 4096, 32, 8, 14336, 8192, 1),
    ("llama", 4, 5120, 40, 40, 13824, 4096, 2),
    ("llama", 4, 4096, 32, 8, 14336, 64, 1),
    ("hf-llama", 4, 4096, 32, 8, 14336, 4096, 2),
    ("hf-llama", 4, 4096, 32, 8, 14336, 64, 1),
    ("gpt", 4, 4096, 32, 32, 16384, 2048, 4),
    ("gpt", 4, 2048, 16, 16, 8192, 2048, 8),
    ("gpt", 4, 2048, 16, 16, 8192, 64, 1),
    ("gpt-dropout", 4, 4096, 32, 32, 16384, 2048, 4),
]
HEADS = [(4096, 128256, 8192), (4096, 32000, 8192), (2048, 50304, 16384)]
KINDS = {
    "attention": ["sdpa", "flash", "fmha"],
    "products": ["nvjet", "gemm", "cutlass", "splitkreduce"],
    "optimizer": ["multi_tens"],
}


def of_rms(x, weight, eps=1e-5):
    """As Llama's own code has it."""
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).type_as(x) * weight


def of_hf_rms(x, weight, eps=1e-5):
    x32 = x.to(torch.float32)
    x32 = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return weight * x32.to(x.dtype)


def turned(x, turns):
    """[batch, token, head, element] by complex numbers."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None, :]).flatten(3).type_as(x)


def half_turned(x, cos, sin):
    """[batch, head, token, element] by halves."""
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-b, a), -1) * sin


class Llama(nn.Module):
    def __init__(self, hidden, heads, kv, ffn, hugging):
        super().__init__()
        self.heads, self.kv, self.head, self.hugging = heads, kv, hidden // heads, hugging
        self.norms = nn.ParameterList(nn.Parameter(torch.ones(hidden)) for _ in range(2))
        linear = lambda n, k: nn.Linear(n, k, bias=False)
        self.q, self.k, self.v = (linear(hidden, n * self.head) for n in (heads, kv, kv))
        self.out = linear(hidden, hidden)
        self.gate, self.up, self.down = linear(hidden, ffn), linear(hidden, ffn), linear(ffn, hidden)

    def forward(self, x, turns):
        batch, tokens, _ = x.shape
        norm = of_hf_rms if self.hugging else of_rms
        y = norm(x, self.norms[0])
        q, k, v = (of(y).view(batch, tokens, -1, self.head) for of in (self.q, self.k, self.v))
        if self.hugging:
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
            q, k = (half_turned(one, *turns) for one in (q, k))
        else:
            q, k = (turned(one, turns) for one in (q, k))
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        if self.kv != self.heads:
            times = self.heads // self.kv
            k, v = (one[:, :, None].expand(-1, -1, times, -1, -1).reshape(batch, self.heads, tokens, -1) for one in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(o.transpose(1, 2).contiguous().view(batch, tokens, -1))
        y = norm(x, self.norms[1])
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Gpt(nn.Module):
    def __init__(self, hidden, heads, kv, ffn, dropped):
        super().__init__()
        self.heads, self.head, self.dropped = heads, hidden // heads, dropped
        self.before, self.between = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x, _):
        batch, tokens, hidden = x.shape
        q, k, v = (one.view(batch, tokens, self.heads, -1).transpose(1, 2) for one in self.qkv(self.before(x)).split(hidden, 2))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(o.transpose(1, 2).contiguous().view(batch, tokens, hidden)), self.dropped)
        return x + F.dropout(self.down(F.gelu(self.up(self.between(x)), approximate="tanh")), self.dropped)


def kind(name):
    name = name.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "stream")


def spent(run):
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    kinds, launches, names = {}, 0, {}
    for event in seen.profiler.kineto_results.events():
        if event.device_type() != torch.autograd.DeviceType.CUDA or event.duration_ns() <= 0:
            continue
        of = kind(event.name())
        kinds[of] = kinds.get(of, 0.0) + event.duration_ns() / 1e6
        names[event.name()] = names.get(event.name(), 0.0) + event.duration_ns() / 1e6
        launches += 1
    if "names" in sys.argv:
        for name, took in sorted(names.items(), key=lambda one: -one[1])[:40]:
            print(f"   {took:8.3f} {kind(name)} {name[:150]}", file=sys.stderr)
    return dict(kinds={of: round(took, 3) for of, took in kinds.items()}, launches=launches)


def timed(run, turns=15):
    for _ in range(4):
        run()
    times = []
    for _ in range(turns):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return round(statistics.median(times), 3)


def say(**figure):
    print(json.dumps(figure), flush=True)


def layers(model, count, hidden, heads, kv, ffn, tokens, batch, how):
    with DEVICE:
        if "llama" in model:
            stack = [Llama(hidden, heads, kv, ffn, model.startswith("hf")) for _ in range(count)]
        else:
            stack = [Gpt(hidden, heads, kv, ffn, 0.1 if model.endswith("dropout") else 0.0) for _ in range(count)]
        stack = [layer.to(BF16) for layer in stack]
        for layer in stack:
            for weights in layer.parameters():
                weights.grad = torch.zeros_like(weights)
            if how == "compiled":
                layer.compile(dynamic=False)
        angles = torch.rand(tokens, hidden // heads // 2)
        both = torch.cat((angles, angles), -1)
        turns = (both.cos().to(BF16), both.sin().to(BF16)) if model.startswith("hf") else torch.polar(torch.ones_like(angles), angles)
        x, back = (torch.randn(batch, tokens, hidden, dtype=BF16) for _ in range(2))
    x.requires_grad_()
    made = []

    def forward():
        y = x
        for layer in stack:
            y = layer(y, turns)
        made[:] = [y]

    def backward():
        made.pop().backward(back)

    def both_ways():
        forward()
        backward()

    case = dict(what="layers", model=model, layers=count, hidden=hidden, heads=heads, kv_heads=kv, ffn=ffn, tokens=tokens, batch=batch, how=how)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        whole = timed(both_ways)
        ahead = spent(forward)
        behind = spent(backward)
    say(**case, ms=whole, forward=ahead, backward=behind)


def output(hidden, vocab, tokens, how):
    with DEVICE:
        scores = nn.Linear(hidden, vocab, bias=False).to(BF16)
        x = torch.randn(tokens, hidden, dtype=BF16, requires_grad=True)
        wanted = torch.randint(0, vocab, (tokens,))
    loss = lambda y: F.cross_entropy(y.float(), wanted)
    loss = torch.compile(loss, dynamic=False) if how == "compiled" else loss
    made = []

    def forward():
        made[:] = [loss(scores(x))]

    def backward():
        made.pop().backward()

    def both_ways():
        forward()
        backward()

    whole = timed(both_ways)
    say(what="output", hidden=hidden, vocab=vocab, tokens=tokens, how=how, ms=whole, forward=spent(forward), backward=spent(backward))


def update(how, state):
    with DEVICE:
        weights = [nn.Parameter(torch.randn(4096, 4096, dtype=state)) for _ in range(24)]
    for one in weights:
        one.grad = torch.randn_like(one)
    optimizer = torch.optim.AdamW(weights, lr=1e-5, **{how: True})
    step = lambda: (torch.nn.utils.clip_grad_norm_(weights, 1.0), optimizer.step())
    parameters = sum(one.numel() for one in weights)
    say(what="optimizer", how=how, bits=torch.finfo(state).bits, parameters=parameters, ms=timed(step), step=spent(step))


def main():
    torch.cuda.set_device(DEVICE)
    torch._dynamo.config.recompile_limit = 256
    say(gpu=torch.cuda.get_device_name(), gpus=1, torch=torch.__version__, cuda=torch.version.cuda)
    for how in ("eager", "compiled"):
        for case in CASES:
            layers(*case, how)
            torch.cuda.empty_cache()
        for case in HEADS:
            output(*case, how)
            torch.cuda.empty_cache()
    for how in ("fused", "foreach"):
        for state in (torch.float32, BF16):
            update(how, state)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
