#!/usr/bin/env python3
"""Times training of what one rank of a large published run computes: its share of layers divided by tensor parallelism.

    python3 shares.py                              # one GPU, six minutes; beside measure.py, whose attention it calls
    torchrun --nproc-per-node 2 shares.py calls    # two GPUs, seven minutes: beside the calls of tensor parallelism, too; or `calls HOW ...`

Each of `tensor` ranks has a part of the heads and of the feed-forward, and all rows of a micro-batch, as Megatron divides them (norms and
sums are whole here). Gradients are added to in the products that make them (`addmm`, as Megatron's fused accumulation), in bf16; the
optimizer is left out. How:

    alone     no rank calls another
    pieces    of gathered rows and of rows to be reduced in as many pieces as there are ranks, on three streams in turn, without calls
    calls     with the traffic of the calls beside products, as Transformer Engine's user buffers place them by NeMo's settings for H100:
              what is gathered for the first and the third product of a layer (backward, for the inputs' gradients of the others) goes
              round by copy engines, a piece of rows for each rank, each multiplied as it comes; what the second and the fourth make is
              reduced in four splits by kernels of 24 and 16 thread blocks; backward, rows are gathered once more beside the inputs'
              gradients of the first and the third, and these reduced beside the weights' ones, by 24 and 4 blocks
    calls, 24 the same, every reduction by 24 thread blocks

Two GPUs carry the traffic of `tensor` ranks: each sends and receives as many bytes in as many pieces as it would to its neighbour in
a ring, or reads them as it would from all others. What is summed is not the ranks' results, so only time is right.
A figure is milliseconds of a layer and micro-batch, forward and backward, of the first and the last second of so many, with the clock of the
SMs (MHz), the power (W) and the temperature that nvidia-smi says at the end. Prints a line of JSON a figure.
"""

import ctypes
import sys
import time

import measure as steps
import torch
import torch.distributed as dist
import torch.nn.functional as F
import triton
import triton.language as tl

# Of a rank: heads, heads of keys, their size, feed-forward; rows are micro × tokens.
MODELS = {
    "GPT3-175B": dict(tensor=4, layers=6, hidden=12288, heads=24, kv=24, head=128, ffn=12288, gated=False, micro=1, tokens=2048),
    "Nemotron-15B": dict(tensor=4, layers=8, hidden=6144, heads=12, kv=2, head=128, ffn=6144, gated=False, micro=4, tokens=4096),
    "Nemotron-340B": dict(tensor=8, layers=6, hidden=18432, heads=12, kv=1, head=192, ffn=9216, gated=False, micro=1, tokens=4096),
    "Llama3-405B": dict(tensor=8, layers=5, hidden=16384, heads=16, kv=1, head=128, ffn=6656, gated=True, micro=1, tokens=8192),
    "Llama3-70B": dict(tensor=4, layers=8, hidden=8192, heads=16, kv=2, head=128, ffn=7168, gated=True, micro=1, tokens=8192),
}
# Bytes that a rank sends and receives at most in a call.
ROOM = 1 << 28
MANY = "calls, 24"
CALLS = ("calls", MANY)
HOWS = ("alone", "pieces", *CALLS)


@triton.jit
def reduced(own, other, out, elements, parts: tl.constexpr, BLOCK: tl.constexpr):
    """Adds so many parts of another GPU's memory to one of this GPU's."""
    for first in range(tl.program_id(0) * BLOCK, elements, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        there = at < elements
        total = tl.load(own + at, mask=there, other=0.0).to(tl.float32)
        for part in tl.static_range(parts):
            total += tl.load(other + part * elements + at, mask=there, other=0.0).to(tl.float32)
        tl.store(out + at, total.to(tl.bfloat16), mask=there)


class Pointer:
    """Memory of another GPU, as Triton takes it."""

    dtype = torch.bfloat16

    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class Peer:
    """The other GPU's memory and flags, and what moves through them."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        own, handle, there = ctypes.c_uint64(), Handle(), ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(own), ctypes.c_size_t(ROOM + 4096))
        self.call("cuMemsetD8_v2", own, ctypes.c_ubyte(0), ctypes.c_size_t(ROOM + 4096))
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), own)
        handles = [None, None]
        dist.all_gather_object(handles, bytes(ctypes.string_at(ctypes.byref(handle), 64)))
        ctypes.memmove(ctypes.byref(handle), handles[1 - steps.RANK], 64)
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(there), handle, ctypes.c_uint(1))
        self.own, self.there, self.turn = own.value, there.value, 0
        self.travel, self.reduce = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
        dist.barrier()

    def call(self, name, *arguments):
        assert getattr(self.cuda, name)(*arguments) == 0, name

    def tell(self, stream, flag):
        self.call("cuStreamWriteValue32_v2", ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(self.there + ROOM + 4 * flag), ctypes.c_uint32(self.turn), ctypes.c_uint(0))

    def await_(self, stream, flag):
        self.call("cuStreamWaitValue32_v2", ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(self.own + ROOM + 4 * flag), ctypes.c_uint32(self.turn), ctypes.c_uint(0))

    def push(self, piece, size):
        """A piece to the next place of the other, by copy engine."""
        self.call("cuMemcpyAsync", ctypes.c_uint64(self.there + (piece + 1) * size), ctypes.c_uint64(self.own + piece * size), ctypes.c_size_t(size), ctypes.c_void_p(self.travel.cuda_stream))

    def go_round(self, rows, width, pieces):
        """Gathers what all ranks have, a piece after the other; flag i: piece i is there."""
        self.turn += 1
        self.travel.wait_stream(torch.cuda.current_stream())
        size = rows // pieces * width * 2
        for piece in range(pieces - 1):
            if piece:
                self.await_(self.travel, piece)
            self.push(piece, size)
            self.tell(self.travel, piece + 1)

    def sum_up(self, rows, width, parts, blocks, out):
        """Reduces rows of which this rank gets one of so many parts."""
        self.turn += 1
        self.reduce.wait_stream(torch.cuda.current_stream())
        self.tell(self.reduce, 32)
        self.await_(self.reduce, 32)
        elements = rows // parts * width
        with torch.cuda.stream(self.reduce):
            reduced[(blocks,)](out, Pointer(self.there), out, elements, parts - 1, 16384, num_warps=16)


PEER = None
STREAMS = []


def gathered(x, w, tensor, how):
    """x @ w of rows that ranks gather."""
    if how == "alone":
        return x @ w
    out = torch.empty((x.shape[0], w.shape[1]), dtype=x.dtype, device=x.device)
    main = torch.cuda.current_stream()
    if how in CALLS:
        PEER.go_round(x.shape[0], x.shape[1], tensor)
    for stream in STREAMS:
        stream.wait_stream(main)
    for piece, (a, b) in enumerate(zip(x.chunk(tensor), out.chunk(tensor))):
        stream = STREAMS[piece % 3]
        if how in CALLS and piece:
            PEER.await_(stream, piece)
        with torch.cuda.stream(stream):
            torch.mm(a, w, out=b)
    for stream in STREAMS:
        main.wait_stream(stream)
    if how in CALLS:
        main.wait_stream(PEER.travel)
    return out


def summed(x, w, tensor, how, blocks):
    """x @ w of rows that ranks reduce."""
    if how == "alone":
        return x @ w
    out = torch.empty((x.shape[0], w.shape[1]), dtype=x.dtype, device=x.device)
    splits = 4 if how in CALLS else tensor
    for a, b in zip(x.chunk(splits), out.chunk(splits)):
        torch.mm(a, w, out=b)
        if how in CALLS:
            PEER.sum_up(b.shape[0], b.shape[1], tensor, blocks, b)
    if how in CALLS:
        torch.cuda.current_stream().wait_stream(PEER.reduce)
    return out


class Product(torch.autograd.Function):
    """x @ w whose weights' gradient is added to what there is. `number`: which product of a layer, from 0."""

    @staticmethod
    def forward(ctx, x, w, sums, tensor, how, number):
        ctx.save_for_backward(x, w)
        ctx.sums, ctx.tensor, ctx.how, ctx.number = sums, tensor, how, number
        return summed(x, w, tensor, how, 24 if number == 1 or how == MANY else 16) if number % 2 else gathered(x, w, tensor, how)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        grad, main = grad.contiguous(), torch.cuda.current_stream()
        if ctx.number % 2:
            back = gathered(grad, w.t(), ctx.tensor, ctx.how)
            ctx.sums.addmm_(x.t(), grad)
        else:
            if ctx.how in CALLS:
                PEER.go_round(x.shape[0], x.shape[1], ctx.tensor)
            back = grad @ w.t()
            if ctx.how in CALLS:
                main.wait_stream(PEER.travel)
                blocks = 24 if ctx.number == 0 or ctx.how == MANY else 4
                PEER.sum_up(back.shape[0], back.shape[1], ctx.tensor, blocks, back)
            ctx.sums.addmm_(x.t(), grad)
            if ctx.how in CALLS:
                main.wait_stream(PEER.reduce)
        return back, None, None, None, None, None


@torch.compile(dynamic=False)
def normed(x, z, norm):
    x = x + z
    return x, F.rms_norm(x, norm.shape, norm)


@torch.compile(dynamic=False)
def parted(y, cos, sin, batch, heads, kv):
    y = y.view(batch, y.shape[0] // batch, heads + 2 * kv, -1).transpose(1, 2)
    q, k, v = y.split((heads, kv, kv), 1)
    return steps.rotate(q, cos, sin).contiguous(), steps.rotate(k, cos, sin).contiguous(), v.contiguous()


@torch.compile(dynamic=False)
def squared(y):
    return F.relu(y).square()


@torch.compile(dynamic=False)
def gated(y):
    gate, up = y.chunk(2, -1)
    return F.silu(gate) * up


class Share:
    def __init__(self, shape, how):
        self.shape, self.how = shape, how
        new = lambda *size: torch.empty(size, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)
        h, width = shape["hidden"], shape["heads"] * shape["head"]
        sizes = [(h, width + 2 * shape["kv"] * shape["head"]), (width, h), (h, shape["ffn"] * (2 if shape["gated"] else 1)), (shape["ffn"], h)]
        self.layers = [[(new(*size).requires_grad_(True), torch.zeros(size, dtype=torch.bfloat16, device="cuda")) for size in sizes] for _ in range(shape["layers"])]
        self.norms = torch.ones(h, dtype=torch.bfloat16, device="cuda")
        at = torch.arange(shape["tokens"], device="cuda").float()[:, None]
        turn = at * (10000.0 ** (-torch.arange(0, shape["head"], 2, device="cuda").float() / shape["head"]))[None]
        self.angles = turn.cos(), turn.sin()
        self.input = new(shape["micro"] * shape["tokens"], h).mul_(50).requires_grad_(True)
        self.grad = new(shape["micro"] * shape["tokens"], h)

    def step(self):
        """One micro-batch."""
        shape = self.shape
        product = lambda x, of, number: Product.apply(x, *of, shape["tensor"], self.how, number)
        x, z = self.input, torch.zeros_like(self.input)
        for qkv, out, up, down in self.layers:
            x, y = normed(x, z, self.norms)
            q, k, v = parted(product(y, qkv, 0), *self.angles, shape["micro"], shape["heads"], shape["kv"])
            a = steps.attend(q, k, v).transpose(1, 2).reshape(x.shape[0], -1)
            x, y = normed(x, product(a, out, 1), self.norms)
            z = product((gated if shape["gated"] else squared)(product(y, up, 2)), down, 3)
        (x + z).backward(self.grad)
        self.input.grad = None


def held(run, seconds):
    """Of the first and of the last second, and what nvidia-smi says at the end."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    # Cool for a while, so that the first second is that of a GPU which begins; both ranks as often.
    time.sleep(3)
    each = torch.tensor(max(1, round(1000 / steps.mean(run, 2))))
    if dist.is_initialized():
        dist.broadcast(each, 0)
    found = [steps.mean(run, int(each)) for _ in range(seconds)]
    return [found[0], found[-1]], steps.state()


def products():
    """In 16 and in 8 bits, sums of 8 bits kept short (Transformer Engine's way forward) and exact (backward)."""
    for rows, inner, columns in [(2048, 12288, 12288), (16384, 6144, 6144), (4096, 18432, 9216), (8192, 16384, 13312), (16384, 8192, 28672)]:
        a, b = torch.randn((rows, inner), device="cuda"), torch.randn((columns, inner), device="cuda")
        scaled = lambda t: ((t.abs().max() / 448).float(), (t * (448 / t.abs().max())).to(torch.float8_e4m3fn))
        (sa, a8), (sb, b8) = scaled(a), scaled(b)
        kinds = {
            (16, "exact"): lambda x=a.bfloat16(), y=b.bfloat16().t(): x @ y,
            (8, "short"): lambda: torch._scaled_mm(a8, b8.t(), sa, sb, out_dtype=torch.bfloat16, use_fast_accum=True),
            (8, "exact"): lambda: torch._scaled_mm(a8, b8.t(), sa, sb, out_dtype=torch.bfloat16),
        }
        for (bits, sums), run in kinds.items():
            ms, state = held(run, 9)
            rates = [round(2 * rows * inner * columns / t / 1e9, 1) for t in ms]
            steps.say(what="product", of=[rows, inner, columns], bits=bits, sums=sums, tflops=rates, **state)


def parts():
    """One product after the other of a layer, and the call that travels beside it: each alone, and both."""
    for name, shape in MODELS.items():
        rows, h, tensor = shape["micro"] * shape["tokens"], shape["hidden"], shape["tensor"]
        width = shape["heads"] * shape["head"]
        up = shape["ffn"] * (2 if shape["gated"] else 1)
        new = lambda *size: torch.empty(size, dtype=torch.bfloat16, device="cuda").normal_(0, 1)
        for number, (inner, columns) in enumerate([(h, width + 2 * shape["kv"] * shape["head"]), (width, h), (h, up), (shape["ffn"], h)]):
            x, w, grad, sums = new(rows, inner), new(inner, columns), new(rows, columns), new(inner, columns)
            whole, main = new(rows, h), torch.cuda.current_stream()
            blocks = [24, 24, 4, 16][number]

            def go_round():
                PEER.go_round(rows, h, tensor)
                main.wait_stream(PEER.travel)

            def sum_up(of=rows):
                PEER.sum_up(of, h, tensor, blocks, whole)
                main.wait_stream(PEER.reduce)

            def beside(call, product):
                def run():
                    call()
                    product()
                    main.wait_stream(PEER.travel)
                    main.wait_stream(PEER.reduce)

                return run

            forward, back, sums_of = lambda: x @ w, lambda: grad @ w.t(), lambda: sums.addmm_(x.t(), grad)
            kinds = {"gather": go_round, "reduce": sum_up, "reduce a split": lambda: sum_up(rows // 4), "forward": forward, "of inputs": back, "of weights": sums_of}
            if number % 2:
                kinds |= {
                    "forward, splits": lambda: [torch.mm(a, w) for a in x.chunk(4)],
                    "forward, splits and calls": lambda: summed(x, w, tensor, "calls", blocks),
                    "of inputs, pieces": lambda: gathered(grad, w.t(), tensor, "pieces"),
                    "of inputs, pieces and calls": lambda: gathered(grad, w.t(), tensor, "calls"),
                }
            else:
                kinds |= {
                    "forward, pieces": lambda: gathered(x, w, tensor, "pieces"),
                    "forward, pieces and calls": lambda: gathered(x, w, tensor, "calls"),
                    "of inputs beside calls": beside(lambda: PEER.go_round(rows, h, tensor), back),
                    "of weights beside calls": beside(lambda: PEER.sum_up(rows, h, tensor, blocks, whole), sums_of),
                }
            figures = {}
            for kind, run in kinds.items():
                for _ in range(3):
                    run()
                torch.cuda.synchronize()
                dist.barrier()
                figures[kind] = round(steps.mean(run, 40) * 1e3, 1)
            steps.say(what="parts", model=name, product=number, of=[rows, inner, columns], tensor=tensor, blocks=blocks, us=figures)


def main():
    global PEER
    torch.cuda.set_device(steps.RANK)
    torch.manual_seed(1)
    torch._dynamo.config.recompile_limit = 256
    STREAMS.extend(torch.cuda.Stream() for _ in range(3))
    torch.zeros(1, device="cuda")
    if sys.argv[1:]:
        dist.init_process_group("gloo")
        PEER = Peer()
    steps.say(gpu=torch.cuda.get_device_name(), torch=torch.__version__, cuda=torch.version.cuda, gpus=2 if PEER else 1)
    if "parts" in sys.argv:
        return parts()
    for name, shape in MODELS.items():
        for how in [one for one in (HOWS if PEER else HOWS[:2]) if one in sys.argv[2:] or not sys.argv[2:]]:
            if PEER:
                dist.barrier()
            share = Share(shape, how)
            ms, state = held(share.step, 10)
            steps.say(what="share", model=name, **shape, how=how, ms=[round(t / shape["layers"], 4) for t in ms], **state)
            del share
            torch.cuda.empty_cache()
    if not PEER:
        products()


main()
