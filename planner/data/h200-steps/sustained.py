#!/usr/bin/env python3
"""Whether what a step takes lasts: products, attention and training steps at the clocks that a GPU keeps for long.

    python3 sustained.py        # one GPU, four minutes; beside measure.py, whose models it runs

A figure is the rate of the first and of the last batch of runs, of 5 to 45 seconds. Prints a line of JSON a figure, with the clock of
the SMs (MHz), the power (W) and the temperature that nvidia-smi says at the end.
"""

import time

import measure as steps
import torch


def batches(run, seconds, each):
    """Seconds of a run, of the first and of the last batch of so many."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    found, until = [], time.time() + seconds
    while time.time() < until:
        found.append(steps.mean(run, each) / 1e3)
    return found[0], found[-1]


def say(what, flops, times, **more):
    figure = {"tflops": [round(flops / t / 1e12, 1) for t in times]} if flops else {"ms": [round(t * 1e3, 2) for t in times]}
    steps.say(what=what, **more, **figure, **steps.state())


def main():
    torch.cuda.set_device(0)
    torch.manual_seed(1)
    torch._dynamo.config.recompile_limit = 256
    steps.say(gpu=torch.cuda.get_device_name(), torch=torch.__version__, cuda=torch.version.cuda)
    new = lambda *size: torch.randn(size, dtype=torch.bfloat16, device="cuda")
    for m, k, n in [(16384, 4096, 16384), (16384, 8192, 32768)]:
        a, b = new(m, k), new(k, n)
        for kind, (x, y) in {"normal": (a, b), "zeros": (a * 0, b * 0)}.items():
            say("product", 2 * m * n * k, batches(lambda: x @ y, 12, 40), of=[m, k, n], kind=kind)
    m, k, n = 16384, 4096, 14336
    x, w, g = new(m, k), new(k, n), new(m, n)
    for kind, run in {"forward": lambda: x @ w, "of inputs": lambda: g @ w.t(), "of weights": lambda: x.t() @ g}.items():
        say("product", 2 * m * n * k, batches(run, 6, 40), of=[m, k, n], kind=kind)
    for tokens, batch in [(2048, 8), (8192, 2), (32768, 1)]:
        q, k, v = (new(batch, 32, tokens, 128).requires_grad_() for _ in range(3))
        gradient = torch.randn_like(steps.attend(q, k, v))
        # Half of the scores; backward five products in place of two.
        forward = 2 * batch * 32 * tokens * tokens * 128
        say("attention", forward, batches(lambda: steps.attend(q, k, v), 5, 5), tokens=tokens, kind="forward")
        both = lambda: steps.attend(q, k, v).backward(gradient)
        say("attention", forward * 7 / 2, batches(both, 5, 5), tokens=tokens, kind="both passes")
    kept = {}
    steps.median = lambda run, *_: kept.update(times=batches(run, 45, 4)) or [0, 0, 0]
    silent, steps.say = steps.say, lambda **_: None
    for name, shape, micro, tokens in [("train-8-layers", steps.TRAIN_8, 4, 4096), ("train-small", steps.TRAIN_SMALL, 8, 2048)]:
        steps.train(name, shape, 1, 1, micro, tokens)
        steps.say = silent
        say("train", 0, kept["times"], model=name, requests=micro, tokens=tokens)
        steps.say = lambda **_: None


if __name__ == "__main__":
    main()
