#!/usr/bin/env python3
"""Times training steps of models whose experts are divided among GPUs, and tells what they spend time on.

    torchrun --nproc-per-node 4 exchange.py > experts-4.jsonl      # a minute; NCCL_NVLS_ENABLE=0

Layers as experts.py has them; each rank has its tokens and a part of the experts. Tokens are sorted by the ranks of their experts, go there
(`all_to_all_single`), are sorted by expert, and come back the same way. All experts get equally many. No gradients are exchanged.
Prints a line of JSON a figure.
"""

import statistics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.attention import SDPBackend, sdpa_kernel

import experts
import fsdp

W = fsdp.WORLD


class Experts(nn.Module):
    def __init__(self, hidden, ffn, experts, chosen, **_):
        super().__init__()
        self.chosen, self.experts = chosen, experts
        self.router = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts // W, hidden, 2 * ffn))
        self.down = nn.Parameter(torch.empty(experts // W, ffn, hidden))

    def forward(self, x, best):
        tokens = x.flatten(0, 1)
        h = tokens.shape[-1]
        scores = self.router(tokens)
        weights = scores.float().softmax(-1).gather(-1, best).to(x.dtype)
        order = best.flatten().argsort(stable=True)
        sent = tokens.index_select(0, order // self.chosen)
        parts = [sent.shape[0] // W] * W
        local = self.experts // W
        come = all_to_all_single_autograd(sent, parts, parts, dist.group.WORLD)
        mine = come.view(W, local, -1, h).transpose(0, 1).reshape(-1, h)
        each = mine.shape[0] // local
        ends = torch.arange(1, local + 1, device=x.device, dtype=torch.int32) * each
        gate, up = torch._grouped_mm(mine, self.up, ends).chunk(2, -1)
        made = torch._grouped_mm(F.silu(gate) * up, self.down, ends)
        made = made.view(local, W, -1, h).transpose(0, 1).reshape(-1, h)
        made = all_to_all_single_autograd(made, parts, parts, dist.group.WORLD)
        back = torch.empty_like(made).index_copy(0, order, made).view(-1, self.chosen, h)
        return (back * weights.unsqueeze(-1)).sum(1).view_as(x)


experts.Experts = Experts
# Those of experts.py but one.
CASES = [case for case in experts.CASES if "16 experts" not in case[0]]


def measure(name, tokens, micro):
    torch.manual_seed(1)
    shape = experts.MODELS[name]
    with torch.device(fsdp.DEVICE):
        model = experts.Model(shape).to(torch.bfloat16)
    with torch.no_grad():
        for w in model.parameters():
            w.normal_(0, 0.02) if w.ndim > 1 else w.fill_(1)
    for layer in model.layers:
        layer.compile(dynamic=False)
    of_scores = torch.compile(fsdp.loss, dynamic=False)
    ids, wanted = (torch.randint(0, shape["vocab"], (micro, tokens), device=fsdp.DEVICE) for _ in range(2))
    n, k, e = micro * tokens, shape["chosen"], shape["experts"]
    best = (torch.arange(n * k, device=fsdp.DEVICE) % e).view(n, k)[torch.randperm(n, device=fsdp.DEVICE)]

    def step():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            of_scores(model(ids, best), wanted).backward()
        for w in model.parameters():
            w.grad = None

    for _ in range(5):
        step()
    times = []
    for _ in range(25):
        torch.cuda.synchronize()
        dist.barrier()
        b, en = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        b.record()
        step()
        en.record()
        torch.cuda.synchronize()
        times.append(b.elapsed_time(en))
    ms, low, high = (round(of(times), 3) for of in (statistics.median, min, max))
    fsdp.say(what="experts", tp=1, dp=W, ep=W, model=name, tokens=tokens, requests=micro, ms=ms, low=low, high=high, **fsdp.spent(step))


def main():
    of_fsdp = fsdp.kind
    fsdp.kind = lambda name: "experts" if "grouped" in name.lower() or "GemmUniversal" in name else of_fsdp(name)
    torch.cuda.set_device(fsdp.DEVICE)
    dist.init_process_group("nccl", device_id=fsdp.DEVICE)
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    fsdp.say(gpu=torch.cuda.get_device_name(), gpus=W, torch=torch.__version__, cuda=torch.version.cuda, nccl=nccl)
    for case in CASES:
        measure(*case)
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
