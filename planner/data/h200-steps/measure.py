#!/usr/bin/env python3
"""Times steps of transformers on one or two GPUs, for steps.toml beside it.

    python3 measure.py one                                   # one GPU; `one train`: training alone
    torchrun --nproc-per-node 2 measure.py two               # tensor parallelism and data parallelism over two

A layer is that of Llama (norm, queries, keys and values in one product, rotary positions, attention, product, norm, gated
feed-forward) with random weights in bf16; what is between products is fused by torch.compile, attention is cuDNN's, that of
single tokens a kernel below. Serving steps (a prompt as one request, or one token for each of so many requests of equal length, words and
scores and the choice of the greatest included) are CUDA graphs; training steps are forward, backward and Adam on 32-bit
master weights, launched from Python. A figure is the median of repetitions, by events on the device, of the slowest rank.
Prints a line of JSON a figure.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.nn.attention import SDPBackend, sdpa_kernel

LLAMA_8B = dict(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
LLAMA_70B = dict(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)
# Eight layers of the first, and those of a 70B: as many as fit with an optimizer's state.
TRAIN_8 = dict(layers=8, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000)
TRAIN_WIDE = dict(layers=3, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000)
TRAIN_SMALL = dict(layers=24, hidden=1024, heads=16, kv_heads=16, ffn=2816, vocab=32000)

RANK = int(os.environ.get("RANK", 0))
WORLD = int(os.environ.get("WORLD_SIZE", 1))
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
BF16 = torch.bfloat16


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(BF16)


@torch.compile(dynamic=False)
def before(x, z, norm, wqkv, cos, sin, heads, kv_heads):
    """The sum with the layer before, norm, and queries, keys and values: [batch, head, token, element]."""
    x = x + z
    y = F.rms_norm(x, norm.shape, norm) @ wqkv
    batch, tokens, width = y.shape
    y = y.view(batch, tokens, heads + 2 * kv_heads, -1).transpose(1, 2)
    q, k, v = y.split((heads, kv_heads, kv_heads), 1)
    return x, rotate(q, cos, sin).contiguous(), rotate(k, cos, sin).contiguous(), v.contiguous()


@torch.compile(dynamic=False)
def after(x, o, norm, w13, w2):
    """The sum with attention's product, norm, and the feed-forward."""
    x = x + o
    gate, up = (F.rms_norm(x, norm.shape, norm) @ w13).chunk(2, -1)
    return x, (F.silu(gate) * up) @ w2


@torch.compile(dynamic=False)
def loss(x, scores, wanted):
    return F.cross_entropy((x @ scores).flatten(0, 1).float(), wanted)


def attend(q, k, v):
    """Of prompts and of training."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


@triton.jit
def read_once(q, keys, values, sums, peaks, parts, context, each, splits, scale, GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr):
    """A stretch of a request's keys and values, for the heads that share them: flash decoding."""
    request, stretch = tl.program_id(0), tl.program_id(1)
    rows, columns, tokens = tl.arange(0, ROWS), tl.arange(0, HEAD), tl.arange(0, BLOCK)
    own = tl.load(q + (request * GROUP + rows[:, None]) * HEAD + columns[None], mask=rows[:, None] < GROUP, other=0.0)
    peak = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    part = tl.zeros((ROWS, HEAD), tl.float32)
    base = request.to(tl.int64) * context * HEAD
    for first in range(stretch * each, min(context, stretch * each + each), BLOCK):
        at = first + tokens
        place = base + at[:, None] * HEAD + columns[None]
        k = tl.load(keys + place, mask=at[:, None] < context, other=0.0)
        v = tl.load(values + place, mask=at[:, None] < context, other=0.0)
        scores = tl.where(at[None] < context, tl.dot(own, tl.trans(k)) * scale, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, 1)
        part = part * shrink[:, None] + tl.dot(weights.to(tl.bfloat16), v)
        peak = higher
    slot = (request * splits + stretch) * GROUP + rows
    tl.store(peaks + slot, peak, mask=rows < GROUP)
    tl.store(sums + slot, total, mask=rows < GROUP)
    tl.store(parts + slot[:, None] * HEAD + columns[None], part, mask=rows[:, None] < GROUP)


@torch.compile(dynamic=False)
def joined(sums, peaks, parts):
    weights = torch.exp2(peaks - peaks.amax(1, keepdim=True))
    return ((parts * weights[..., None]).sum(1) / (sums * weights).sum(1)[..., None]).to(BF16)


def attend_one(q, keys, values):
    """Of one token a request, in a kernel that reads keys and values once for all heads that share them."""
    batch, heads, _, head = q.shape
    kv, context = keys.shape[1:3]
    group = heads // kv
    splits = max(1, min(-(-4 * 132 // (batch * kv)), context // 128))
    each = -(-context // splits // 64) * 64
    sums, peaks = (torch.empty((batch * kv, splits, group), device=DEVICE) for _ in range(2))
    parts = torch.empty((batch * kv, splits, group, head), device=DEVICE)
    scale = 1.4426950408889634 / head**0.5
    read_once[(batch * kv, splits)](
        q, keys, values, sums, peaks, parts, context, each, splits, scale, group, max(16, group), head, 64, num_warps=4, num_stages=3
    )
    return joined(sums, peaks, parts).view(batch, heads, 1, head)


def check():
    """Whether that kernel attends as PyTorch's does."""
    for batch, heads, kv, context in [(1, 32, 8, 1024), (3, 16, 4, 1000), (64, 32, 8, 512)]:
        q = torch.randn((batch, heads, 1, 128), dtype=BF16, device=DEVICE)
        keys, values = (torch.randn((batch, kv, context, 128), dtype=BF16, device=DEVICE) for _ in range(2))
        wanted = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        assert torch.allclose(attend_one(q, keys, values), wanted, atol=2e-2, rtol=2e-2), (batch, heads, kv, context)


class Copy(torch.autograd.Function):
    """Before a column-parallel product: gradients are summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Sum(torch.autograd.Function):
    """After a row-parallel product: results are summed."""

    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Model:
    def __init__(self, shape, tensor, training=False):
        self.shape, self.tensor, self.training = shape, tensor, training
        h, ffn = shape["hidden"], shape["ffn"] // tensor
        self.heads, self.kv = shape["heads"] // tensor, shape["kv_heads"] // tensor
        self.head = h // shape["heads"]

        def new(*size):
            t = torch.empty(size, dtype=BF16, device=DEVICE).normal_(0, 0.02)
            return t.requires_grad_(training)

        def ones():
            return torch.ones(h, dtype=BF16, device=DEVICE).requires_grad_(training)

        self.layers = [
            (ones(), new(h, (self.heads + 2 * self.kv) * self.head), new(self.heads * self.head, h), ones(), new(h, 2 * ffn), new(ffn, h))
            for _ in range(shape["layers"])
        ]
        self.words = new(shape["vocab"], h)
        self.scores = new(h, shape["vocab"] // tensor)
        self.norm = ones()

    def parameters(self):
        return [w for layer in self.layers for w in layer] + [self.words, self.scores, self.norm]

    def angles(self, first, tokens):
        at = torch.arange(first, first + tokens, device=DEVICE).float()[:, None]
        turn = at * (10000.0 ** (-torch.arange(0, self.head, 2, device=DEVICE).float() / self.head))[None]
        return turn.cos(), turn.sin()

    def reduce(self, x):
        if self.tensor > 1:
            x = Sum.apply(x) if self.training else (dist.all_reduce(x), x)[1]
        return x

    def spread(self, x):
        return Copy.apply(x) if self.training and self.tensor > 1 else x

    def run(self, ids, cos, sin, caches=None, place=None):
        x = F.embedding(ids, self.words)
        z = torch.zeros_like(x)
        for number, (n1, wqkv, wo, n2, w13, w2) in enumerate(self.layers):
            if self.training and self.tensor > 1:
                # Norms lie before what spreads the gradients' sum.
                x, q, k, v = before(self.spread(x), self.spread(z), n1, wqkv, cos, sin, self.heads, self.kv)
            else:
                x, q, k, v = before(x, z, n1, wqkv, cos, sin, self.heads, self.kv)
            if caches is None:
                a = attend(q, k, v)
            else:
                keys, values = caches[number]
                keys[:, :, place : place + 1], values[:, :, place : place + 1] = k, v
                a = attend_one(q, keys, values)
            o = self.reduce(a.transpose(1, 2).flatten(2) @ wo)
            x, z = after(x, o, n2, w13, w2)
            z = self.reduce(z)
        return F.rms_norm(x + z, self.norm.shape, self.norm)


def median(run, repeat, graph):
    """Milliseconds of a run."""
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured, stream=stream):
                run()
            run = captured.replay
            for _ in range(3):
                run()
        times = []
        for _ in range(repeat):
            if WORLD > 1:
                torch.cuda.synchronize()
                dist.barrier()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
    own = torch.tensor([statistics.median(times), min(times), max(times)], device=DEVICE)
    if WORLD > 1:
        dist.all_reduce(own, op=dist.ReduceOp.MAX)
    return [round(float(t), 4) for t in own]


def mean(run, each):
    """Milliseconds of a run, of so many in a row."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(each):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / each


def state():
    """The clock of the rank's SMs (MHz), its power (W) and its temperature, as nvidia-smi says."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv,noheader,nounits"]
    said = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()[RANK]
    return dict(zip(("mhz", "watts", "celsius"), (float(word) for word in said.split(","))))


def say(**figure):
    if RANK == 0:
        print(json.dumps(figure), flush=True)


def serve(name, shape, tensor, answers, prompts):
    model = Model(shape, tensor)
    kind = dict(model=name, tp=tensor, dp=1)
    with torch.no_grad():
        for tokens in prompts:
            ids = torch.randint(shape["vocab"], (1, tokens), device=DEVICE)
            cos, sin = model.angles(0, tokens)
            run = lambda: (model.run(ids, cos, sin)[:, -1] @ model.scores).argmax(-1)
            ms, low, high = median(run, 12, True)
            say(**kind, what="prompt", requests=1, tokens=tokens, ms=ms, low=low, high=high)
        for requests, context in answers:
            ids = torch.randint(shape["vocab"], (requests, 1), device=DEVICE)
            cos, sin = model.angles(context - 1, 1)
            size = (requests, model.kv, context, model.head)
            caches = [(torch.randn(size, dtype=BF16, device=DEVICE), torch.randn(size, dtype=BF16, device=DEVICE)) for _ in model.layers]
            run = lambda: (model.run(ids, cos, sin, caches, context - 1)[:, -1] @ model.scores).argmax(-1)
            ms, low, high = median(run, 20, True)
            say(**kind, what="answer", requests=requests, tokens=context, ms=ms, low=low, high=high)
            del caches, run
            torch.cuda.empty_cache()
    del model
    torch.cuda.empty_cache()


def train(name, shape, tensor, data, micro, tokens, accumulate=1):
    torch.cuda.empty_cache()
    model = Model(shape, tensor, training=True)
    weights = model.parameters()
    masters = [w.detach().float() for w in weights]
    for master in masters:
        master.requires_grad_(True)
    optimizer = torch.optim.AdamW(masters, lr=1e-5, fused=True)
    ids = torch.randint(shape["vocab"], (micro, tokens), device=DEVICE)
    wanted = torch.randint(shape["vocab"] // tensor, (micro * tokens,), device=DEVICE)
    cos, sin = model.angles(0, tokens)

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList([torch.nn.Parameter(w.detach()) for w in weights])
            of = list(self.weights)
            model.layers = [tuple(of[6 * i : 6 * i + 6]) for i in range(shape["layers"])]
            model.words, model.scores, model.norm = of[-3:]

        def forward(self, ids):
            return loss(model.spread(model.run(ids, cos, sin)), model.scores, wanted)

    module = Wrapped()
    own = list(module.weights)
    if data > 1:
        module = torch.nn.parallel.DistributedDataParallel(module, device_ids=[DEVICE.index], bucket_cap_mb=25, gradient_as_bucket_view=True)

    def run():
        for turn in range(accumulate):
            if data > 1 and turn + 1 < accumulate:
                with module.no_sync():
                    module(ids).backward()
            else:
                module(ids).backward()
        for master, w in zip(masters, own):
            master.grad = w.grad.float()
        optimizer.step()
        torch._foreach_copy_([w.detach() for w in own], [m.detach() for m in masters])
        for w in own:
            w.grad.zero_()

    ms, low, high = median(run, 8, False)
    say(model=name, tp=tensor, dp=data, what="train", requests=micro, tokens=tokens, accumulate=accumulate, ms=ms, low=low, high=high)
    del module, optimizer, masters, model, weights, own
    torch.cuda.empty_cache()


def attempt(what, *arguments):
    """What does not run is told, and the others run."""
    if what.__name__ not in (sys.argv[2:] or ["serve", "train"]):
        return
    begin = time.time()
    try:
        what(*arguments)
    except Exception as error:  # a figure less
        say(failed=str(arguments[0]), what=what.__name__, why=str(error)[:300])
    say(took=round(time.time() - begin, 1), of=what.__name__, model=arguments[0])


def main():
    torch.cuda.set_device(DEVICE)
    torch.manual_seed(1)
    if WORLD > 1:
        dist.init_process_group("nccl", device_id=DEVICE)
    say(gpu=torch.cuda.get_device_name(), gpus=WORLD, torch=torch.__version__, cuda=torch.version.cuda, nccl=".".join(map(str, torch.cuda.nccl.version())))
    # Shapes that are compiled anew count against a limit of eight.
    torch._dynamo.config.recompile_limit = 256
    check()
    many = [(1, 1024), (8, 1024), (32, 1024), (128, 1024), (256, 1024), (1, 8192), (16, 4096), (64, 4096)]
    if sys.argv[1] == "one":
        attempt(serve, "llama-8b", LLAMA_8B, 1, many, [512, 2048, 8192])
        attempt(train, "train-8-layers", TRAIN_8, 1, 1, 1, 4096)
        attempt(train, "train-8-layers", TRAIN_8, 1, 1, 4, 4096)
        attempt(train, "train-wide", TRAIN_WIDE, 1, 1, 2, 4096)
        attempt(train, "train-small", TRAIN_SMALL, 1, 1, 8, 2048)
    else:
        attempt(serve, "llama-8b", LLAMA_8B, 2, many, [512, 2048, 8192])
        attempt(serve, "llama-70b", LLAMA_70B, 2, [(1, 1024), (32, 1024), (128, 1024)], [2048, 8192])
        attempt(train, "train-8-layers", TRAIN_8, 2, 1, 1, 4096)
        attempt(train, "train-wide", TRAIN_WIDE, 2, 1, 2, 4096)
        attempt(train, "train-small", TRAIN_SMALL, 2, 1, 8, 2048)
        attempt(train, "train-8-layers", TRAIN_8, 1, 2, 1, 4096)
        attempt(train, "train-8-layers", TRAIN_8, 1, 2, 1, 4096, 4)
        attempt(train, "train-small", TRAIN_SMALL, 1, 2, 8, 2048)
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
