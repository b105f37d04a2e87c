#!/usr/bin/env python3
"""Times training steps whose two copies divide weights, gradients and optimizer (PyTorch's FSDP2), and tells what they spend time on.

    torchrun --nproc-per-node 2 fsdp.py > fsdp.jsonl         # six minutes; NCCL_NVLS_ENABLE=0
    torchrun --nproc-per-node 2 fsdp.py memory > memory.jsonl   # two: what steps hold instead

Models as MPT's (norm, attention, GELU; no biases) and as Llama's, each layer a unit of `fully_shard`, gathered in bf16, gradients
reduced in 32 bits, fused AdamW, attention of cuDNN, layers compiled (`eager`: not). `ms` is the median of steps, by events on the
device; `kinds` are milliseconds of kernels in one step of the profiler, by their names: products, attention, `stream` what is
between them, `copies` those of FSDP into and out of its buffers, the optimizer's, collectives' (beside others; `exposed`: alone).
Of memory: `tensors_gb` is the most that PyTorch gave to tensors, `reserved_gb` what it took from the driver for them, and
`used_gb` what the driver says that is used, in units of 10^9 bytes.
Prints a line of JSON a figure.
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def gpt(layers, hidden, heads):
    return dict(layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn=4 * hidden, gated=False, vocab=50368)


def llama(layers, hidden, heads, ffn):
    return dict(layers=layers, hidden=hidden, heads=heads, kv_heads=8, ffn=ffn, gated=True, vocab=128256)


MODELS = {
    "gpt-350m": gpt(24, 1024, 16),
    "gpt-1b": gpt(24, 2048, 16),
    "gpt-3b": gpt(32, 2560, 20),
    "gpt-7b": gpt(32, 4096, 32),
    "llama-8b": llama(32, 4096, 32, 14336),
    "llama-70b, 6 layers": llama(6, 8192, 64, 28672),
}
# Model, tokens of a sequence, sequences of a micro-batch, micro-batches, recomputation, how.
CASES = [
    ("gpt-350m", 2048, 32, 1, "none", "compiled"),
    ("gpt-1b", 2048, 14, 1, "none", "eager"),
    ("gpt-1b", 512, 56, 2, "none", "compiled"),
    ("gpt-1b", 2048, 14, 1, "none", "compiled"),
    ("gpt-1b", 8192, 3, 2, "none", "compiled"),
    ("gpt-1b", 32768, 1, 1, "none", "compiled"),
    ("gpt-3b", 2048, 6, 3, "none", "compiled"),
    ("gpt-3b", 2048, 1, 1, "none", "compiled"),
    ("gpt-7b", 2048, 6, 1, "none", "eager"),
    ("gpt-7b", 2048, 6, 1, "none", "compiled"),
    ("gpt-7b", 4096, 8, 1, "full", "compiled"),
    ("llama-8b", 8192, 1, 1, "none", "eager"),
    ("llama-8b", 8192, 1, 1, "none", "compiled"),
    ("llama-8b", 8192, 2, 2, "full", "compiled"),
    ("llama-70b, 6 layers", 4096, 2, 1, "none", "compiled"),
]


class Layer(nn.Module):
    def __init__(self, hidden, heads, kv_heads, ffn, gated, **_):
        super().__init__()
        norm = (lambda: nn.RMSNorm(hidden)) if gated else (lambda: nn.LayerNorm(hidden, bias=False))
        self.heads, self.kv, self.head, self.gated = heads, kv_heads, hidden // heads, gated
        self.before, self.between = norm(), norm()
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.head, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, ffn * (2 if gated else 1), bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        batch, tokens, _ = x.shape
        y = self.qkv(self.before(x)).view(batch, tokens, self.heads + 2 * self.kv, self.head).transpose(1, 2)
        q, k, v = y.split((self.heads, self.kv, self.kv), 1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv != self.heads)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        y = self.up(self.between(x))
        if self.gated:
            gate, up = y.chunk(2, -1)
            y = F.silu(gate) * up
        else:
            y = F.gelu(y)
        return x + self.down(y)


class Model(nn.Module):
    def __init__(self, shape, recompute):
        super().__init__()
        self.recompute = recompute
        self.words = nn.Embedding(shape["vocab"], shape["hidden"])
        self.layers = nn.ModuleList(Layer(**shape) for _ in range(shape["layers"]))
        self.norm = nn.LayerNorm(shape["hidden"], bias=False)
        self.scores = nn.Linear(shape["hidden"], shape["vocab"], bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute == "full" else layer(x)
        return self.scores(self.norm(x))


def loss(scores, wanted):
    return F.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten())


# Kinds of kernels by parts of their names; the first that has one.
KINDS = {
    "calls": ["nccl"],
    "attention": ["sdpa", "flash", "fmha"],
    "products": ["nvjet", "gemm", "cutlass"],
    "optimizer": ["multi_tens"],
    "copies": ["chunk_cat", "split_with_sizes", "memcpy", "memset"],
}


def kind(name):
    name = name.lower()
    for kind, parts in KINDS.items():
        if any(part in name for part in parts):
            return kind
    return "stream"


def length(spans):
    """Of what they cover together."""
    total, end = 0.0, float("-inf")
    for begin, until in sorted(spans):
        total += max(0.0, until - max(begin, end))
        end = max(end, until)
    return total


def spent(step):
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    kinds, work, every = {}, [], []
    for event in seen.profiler.kineto_results.events():
        if event.device_type() != torch.autograd.DeviceType.CUDA or event.duration_ns() <= 0:
            continue
        of, begin, took = kind(event.name()), event.start_ns() / 1e6, event.duration_ns() / 1e6
        kinds[of] = kinds.get(of, 0.0) + took
        every.append((begin, begin + took))
        if of != "calls":
            work.append((begin, begin + took))
    span = max(until for _, until in every) - min(begin for begin, _ in every)
    figures = dict(span=span, exposed=length(every) - length(work), idle=span - length(every), kinds=kinds)
    return {name: {k: round(v, 2) for k, v in of.items()} if name == "kinds" else round(of, 2) for name, of in figures.items()}


def timed(step):
    """Steps of some seconds, all ranks together."""
    times, until = [], time.time() + 6
    goes_on = torch.ones((), dtype=torch.int32, device=DEVICE)
    while len(times) < 5 or goes_on.item():
        torch.cuda.synchronize()
        dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
        goes_on.fill_(time.time() < until)
        dist.all_reduce(goes_on, op=dist.ReduceOp.MIN)
    return {name: round(of(times), 3) for name, of in dict(ms=statistics.median, low=min, high=max).items()}


def measure(name, tokens, micro, turns, recompute, how):
    torch.manual_seed(1)
    shape = MODELS[name]
    with torch.device("meta"):
        model = Model(shape, recompute)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        if how == "compiled":
            layer.compile(dynamic=False)
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device=DEVICE)
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(0, 0.02) if weights.ndim > 1 else weights.fill_(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    of_scores = torch.compile(loss, dynamic=False) if how == "compiled" else loss
    ids, wanted = (torch.randint(0, shape["vocab"], (micro, tokens), device=DEVICE) for _ in range(2))

    def step():
        for _ in range(turns):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                of_scores(model(ids), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(4):
        step()
    case = dict(model=name, tokens=tokens, requests=micro, accumulate=turns, recompute=recompute, how=how)
    if sys.argv[1:] == ["memory"]:
        torch.cuda.synchronize()
        free, whole = torch.cuda.mem_get_info()
        held = dict(tensors_gb=torch.cuda.max_memory_allocated(), reserved_gb=torch.cuda.memory_reserved(), used_gb=whole - free)
        say(what="fsdp", tp=1, dp=WORLD, **case, **{of: round(size / 1e9, 2) for of, size in held.items()})
        torch.cuda.reset_peak_memory_stats()
        return
    say(what="fsdp", tp=1, dp=WORLD, **case, **timed(step), **spent(step))


def say(**figure):
    if RANK == 0:
        print(json.dumps(figure), flush=True)


def main(cases, measure):
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE)
    torch._dynamo.config.recompile_limit = 256
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    say(gpu=torch.cuda.get_device_name(), gpus=WORLD, torch=torch.__version__, cuda=torch.version.cuda, nccl=nccl)
    for case in cases:
        measure(*case)
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(CASES, measure)
