#!/usr/bin/env python3
"""What kernels lose to a collective beside them, and where a training step's time goes. Two GPUs of a host, PyTorch and its NCCL.

    torchrun --nproc-per-node 2 overlap.py            # some three minutes; prints a line of JSON a figure

1. A product of matrices over and over, alone and beside back-to-back all-reduces of one size: time of a product, blocks that
   NCCL holds (NCCL_MAX_CTAS as given), for lengths of product and sizes of call. Lost = (beside - alone) / time of the calls beside.
   Shares of SMs lose channels / SMs of the call; a second wave loses the shorter of both.
2. The same with a stream (a copy of 1 GB) instead of the product.
3. train-small of planner/data/h200-steps with DistributedDataParallel: with and without sending (no_sync), without the wrapper, and
   the device's busy time by kind of kernel (torch.profiler), so that host time, kernels and sending are told apart.
"""
import json
import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def say(**figure):
    if RANK == 0:
        print(json.dumps(figure), flush=True)


def timed(run, repeat=7):
    times = []
    for number in range(repeat + 2):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if number > 1:
            times.append(begin.elapsed_time(end))
    own = torch.tensor([statistics.median(times)], device=DEVICE)
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    return float(own)


def beside(name, kernel, group, mib):
    """Kernels for about 20 ms, alone and with calls of that size issued all along beside them."""
    data = torch.zeros(mib << 19, dtype=torch.bfloat16, device=DEVICE)
    count = max(4, int(20 / max(timed(kernel, 3), 1e-3)))

    def many():
        for _ in range(count):
            kernel()

    alone = timed(many)

    def calls(number):
        for _ in range(number):
            dist.all_reduce(data, group=group, async_op=True)

    def only(number):
        works = [dist.all_reduce(data, group=group, async_op=True) for _ in range(number)]
        for work in works:
            work.wait()

    one = (timed(lambda: only(16)) - timed(lambda: only(4))) / 12
    number = max(1, int(alone * 0.6 / one))
    spread = max(1, count // number)

    def both():
        works = []
        for i in range(count):
            if i % spread == 0 and len(works) < number:
                works.append(dist.all_reduce(data, group=group, async_op=True))
            kernel()
        for work in works:
            work.wait()
        both.sent = len(works)

    together = timed(both)
    sent = both.sent
    say(what="beside", kernel=name, kernel_ms=alone / count, mib=mib, call_ms=one, calls=sent, alone_ms=alone, beside_ms=together,
        lost_of_call=(together - alone) / (sent * one))


def products(ctas):
    options = dist.ProcessGroupNCCL.Options()
    if ctas:
        options.config.max_ctas = ctas
    group = dist.new_group(list(range(WORLD)), backend="nccl", pg_options=options)
    dist.all_reduce(torch.zeros(1, device=DEVICE), group=group)
    for m, n, k in [(4096, 4096, 4096), (16384, 1024, 1024), (16384, 5632, 1024), (4096, 28672, 4096), (8192, 57344, 8192)]:
        a = torch.randn(m, k, dtype=torch.bfloat16, device=DEVICE)
        b = torch.randn(k, n, dtype=torch.bfloat16, device=DEVICE)
        c = torch.empty(m, n, dtype=torch.bfloat16, device=DEVICE)
        for mib in (8, 25, 128):
            beside(f"product {m}x{n}x{k}, max_ctas {ctas}", lambda: torch.mm(a, b, out=c), group, mib)
    source = torch.empty(1 << 28, dtype=torch.float32, device=DEVICE)
    target = torch.empty_like(source)
    for mib in (8, 25, 128):
        beside(f"copy of 1 GiB, max_ctas {ctas}", lambda: target.copy_(source), group, mib)


def layer(hidden, heads, ffn):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = torch.nn.RMSNorm(hidden), torch.nn.RMSNorm(hidden)
            self.qkv, self.o = torch.nn.Linear(hidden, 3 * hidden, bias=False), torch.nn.Linear(hidden, hidden, bias=False)
            self.up, self.down = torch.nn.Linear(hidden, 2 * ffn, bias=False), torch.nn.Linear(ffn, hidden, bias=False)

        def forward(self, x):
            b, t, h = x.shape
            q, k, v = self.qkv(self.n1(x)).view(b, t, 3, heads, h // heads).permute(2, 0, 3, 1, 4)
            x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, h))
            gate, up = self.up(self.n2(x)).chunk(2, -1)
            return x + self.down(F.silu(gate) * up)

    return Layer()


def steps(name, hidden, heads, ffn, layers, batch, tokens):
    model = torch.nn.Sequential(*[layer(hidden, heads, ffn) for _ in range(layers)]).to(DEVICE, torch.bfloat16)
    x = torch.randn(batch, tokens, hidden, dtype=torch.bfloat16, device=DEVICE)
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[DEVICE.index], bucket_cap_mb=25, gradient_as_bucket_view=True)

    def plain():
        model(x).sum().backward()

    def silent():
        with ddp.no_sync():
            ddp(x).sum().backward()

    def sends():
        ddp(x).sum().backward()

    for kind, run in [("plain", plain), ("no_sync", silent), ("sends", sends)]:
        ms = timed(run)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            torch.cuda.synchronize()
        kinds = {}
        for event in profile.events():
            text = event.name.lower()
            kind_of = "nccl" if "nccl" in text else "product" if any(w in text for w in ("gemm", "nvjet", "cutlass", "xmma")) \
                else "attention" if any(w in text for w in ("flash", "sdp", "fmha")) else "other"
            kinds[kind_of] = kinds.get(kind_of, 0.0) + event.device_time / 1e3
        say(what="step", model=name, how=kind, ms=ms, device_ms={k: round(v, 3) for k, v in kinds.items()})
    del model, ddp
    torch.cuda.empty_cache()


def main():
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE)
    properties = torch.cuda.get_device_properties(DEVICE)
    say(gpu=properties.name, sms=properties.multi_processor_count, torch=torch.__version__, nccl=".".join(map(str, torch.cuda.nccl.version())))
    for ctas in (0, 4, 16):
        products(ctas)
    steps("small", 1024, 16, 2816, 24, 8, 2048)
    steps("eight", 4096, 32, 14336, 8, 1, 4096)
    dist.destroy_process_group()


main()
