#!/usr/bin/env python3
"""Times training steps of models whose experts are divided among GPUs, and tells what they spend time on.

    torchrun --nproc-per-node 4 exchange.py > experts-4.jsonl      # a minute; NCCL_NVLS_ENABLE=0

Layers as experts.py has them; each rank has its tokens and a part of the experts. Tokens are sorted by the ranks of their experts, go there
(`all_to_all_single`), are sorted by expert, and come back the same way. All experts get equally many. No gradients are exchanged.
Prints a line of JSON a figure.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

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


def balanced(tokens, shape):
    """The experts of each token: all equally many, in no order."""
    best = torch.arange(tokens * shape["chosen"], device=fsdp.DEVICE) % shape["experts"]
    return best.view(tokens, -1)[torch.randperm(tokens, device=fsdp.DEVICE)]


if __name__ == "__main__":
    experts.Experts = Experts
    # Those of experts.py but one.
    cases = [case for case in experts.CASES if "16 experts" not in case[0]]
    fsdp.main(cases, lambda *case: experts.measure(*case, balanced))
