#!/usr/bin/env python3
"""What one process for all GPUs of a host loses: torch.nn.DataParallel against DistributedDataParallel, and where its step goes.

    python3 one_process.py                                # DataParallel over all GPUs
    torchrun --nproc-per-node 2 one_process.py            # DistributedDataParallel, a process each

BERT base (Hugging Face's, random weights in bf16) in sequences of 128 tokens, Adam, launched from Python; the loss is that of masked
words, worked out on the first GPU as DataParallel's users do. A figure is the median of steps, by the host's clock with devices
idle before and after. Parts of DataParallel's step are timed apart, devices idle in between, so that they add up to more than the step:
`replicate` sends the weights and makes a module of Python for each module and GPU, `apply` launches the forward passes from threads that
take turns. `modules` of a model without weights tells what making them takes by itself. Prints a line of JSON a figure.
"""

import json
import os
import statistics
import time

import torch
import torch.nn.functional as F
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parallel.replicate import replicate
from transformers import BertConfig, BertForMaskedLM

WORLD = int(os.environ.get("WORLD_SIZE", 1))
RANK = int(os.environ.get("RANK", 0))
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
GPUS = torch.cuda.device_count()
TOKENS = 128


def say(**figure):
    if RANK == 0:
        print(json.dumps(dict(device=torch.cuda.get_device_name(0), gpus=GPUS if WORLD == 1 else WORLD, **figure)), flush=True)


def idle():
    for gpu in range(GPUS):
        torch.cuda.synchronize(gpu)


def median(run, repeat=12):
    times = []
    for number in range(repeat + 4):
        idle()
        begin = time.perf_counter()
        run()
        idle()
        if number > 3:
            times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


class Words(torch.nn.Module):
    """The scores of words alone, as a tensor, which DataParallel gathers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.bert = BertForMaskedLM(BertConfig(attn_implementation="sdpa")).to(torch.bfloat16)

    def forward(self, words):
        return self.bert(input_ids=words).logits


def step_of(model, adam, sequences):
    words = torch.randint(0, 30522, (sequences, TOKENS), device=DEVICE)

    def step():
        adam.zero_grad(set_to_none=True)
        scores = model(words)
        F.cross_entropy(scores.flatten(0, 1).float(), words.flatten()).backward()
        adam.step()

    return step


def parts(model, adam, sequences):
    """The parts of a step of DataParallel, each with devices idle before and after."""
    words = torch.randint(0, 30522, (sequences, TOKENS), device=DEVICE)
    devices = list(range(GPUS))
    spent = {}

    def timed(name, run):
        idle()
        begin = time.perf_counter()
        made = run()
        idle()
        spent.setdefault(name, []).append(1e3 * (time.perf_counter() - begin))
        return made

    for _ in range(12):
        adam.zero_grad(set_to_none=True)
        inputs = timed("scatter", lambda: model.scatter((words,), {}, devices))
        replicas = timed("replicate", lambda: model.replicate(model.module, devices))
        outputs = timed("apply", lambda: model.parallel_apply(replicas, *inputs))
        scores = timed("gather", lambda: model.gather(outputs, 0))
        lost = timed("loss", lambda: F.cross_entropy(scores.flatten(0, 1).float(), words.flatten()))
        timed("backward", lambda: lost.backward())
        timed("adam", adam.step)
    return {name: statistics.median(times[2:]) for name, times in spent.items()}


def main():
    if WORLD > 1:
        import torch.distributed as dist

        torch.cuda.set_device(DEVICE)
        dist.init_process_group("nccl", device_id=DEVICE)
    own = Words().to(DEVICE)
    weights, modules = sum(one.numel() for one in own.parameters()), sum(1 for _ in own.modules())
    say(weights=weights, modules=modules, tensors=sum(1 for _ in own.parameters()))
    model = DistributedDataParallel(own, device_ids=[DEVICE.index]) if WORLD > 1 else DataParallel(own)
    adam = torch.optim.AdamW(own.parameters(), fused=True)
    how = "per_gpu" if WORLD > 1 else "single"
    for each in (2, 8, 12, 16, 32):
        sequences = each if WORLD > 1 else each * GPUS
        say(processes=how, sequences=each, step_ms=median(step_of(model, adam, sequences)))
        if WORLD == 1:
            say(processes="alone", sequences=each, step_ms=median(step_of(own, adam, each)))
            say(processes=how, sequences=each, parts_ms=parts(model, adam, sequences))
    if WORLD == 1:
        small = torch.nn.Sequential(*[torch.nn.Dropout() for _ in range(modules - 1)]).to(DEVICE)
        took = median(lambda: replicate(small, list(range(GPUS))))
        say(replicate="modules without weights", modules=modules, ms=took, us_each=1e3 * took / (modules * GPUS))
    else:
        dist.destroy_process_group()


main()
