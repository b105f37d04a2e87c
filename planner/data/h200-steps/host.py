#!/usr/bin/env python3
"""Times copies between GPUs and pinned memory of their host, each way and both at once, and an update of Adam whose state is kept there.

    python3 host.py > host.jsonl      # half a minute; four GPUs

A thread a GPU; all of 1, 2 and 4 GPUs at once. `gbps` are 10^9 bytes a second of each, of `both` in each direction. The state of the
update (both moments and the weights in 32 bits, 12 bytes a parameter) comes and goes in pieces of 10 million parameters, three of
them under way: copied, updated on the GPU, copied back. Prints a line of JSON a figure.
"""

import json
import threading
import time

import torch

SIZE, TURNS = 1 << 30, 20
PARAMETERS, PIECE, UNDER_WAY = 200_000_000, 10_000_000, 3


def say(**figure):
    print(json.dumps(figure), flush=True)


class Gpu:
    def __init__(self, number):
        self.number = number
        pinned = lambda: torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
        own = lambda: torch.empty(SIZE, dtype=torch.uint8, device=f"cuda:{number}")
        self.reading = (own(), pinned(), torch.cuda.Stream(number))
        self.writing = (pinned(), own(), torch.cuda.Stream(number))

    def copies(self, how, begin, rates):
        torch.cuda.set_device(self.number)
        ways = {"read": [self.reading], "write": [self.writing], "both": [self.reading, self.writing]}[how]
        for _ in range(2):  # The first warms up.
            begin.wait()
            torch.cuda.synchronize()
            since = time.time()
            for _ in range(TURNS):
                for to, what, stream in ways:
                    with torch.cuda.stream(stream):
                        to.copy_(what, non_blocking=True)
            torch.cuda.synchronize()
            rates[self.number] = SIZE * TURNS / (time.time() - since) / 1e9


def copies():
    gpus = [Gpu(number) for number in range(torch.cuda.device_count())]
    for many in (1, 2, 4):
        for how in ("read", "write", "both"):
            begin, rates = threading.Barrier(many), {}
            threads = [threading.Thread(target=gpu.copies, args=(how, begin, rates)) for gpu in gpus[:many]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            say(what="copies", gpus=many, how=how, gbps=[round(rate, 1) for rate in rates.values()])


def updates():
    torch.cuda.set_device(0)
    state = [torch.zeros(PARAMETERS, dtype=torch.float32, pin_memory=True) for _ in range(3)]
    gradients = torch.randn(PARAMETERS, dtype=torch.float32, device="cuda")
    weights = torch.zeros(PARAMETERS, dtype=torch.bfloat16, device="cuda")
    pieces = [[torch.empty(PIECE, dtype=torch.float32, device="cuda") for _ in state] for _ in range(UNDER_WAY)]
    coming, computing, going = (torch.cuda.Stream() for _ in range(3))

    def adam(mean, square, master, gradient, weight):
        mean.mul_(0.9).add_(gradient, alpha=0.1)
        square.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
        master.addcdiv_(mean, square.sqrt().add_(1e-8), value=-1e-4)
        weight.copy_(master)

    def step():
        gone = [None] * UNDER_WAY
        for number in range(PARAMETERS // PIECE):
            part, piece = slice(number * PIECE, (number + 1) * PIECE), pieces[number % UNDER_WAY]
            with torch.cuda.stream(coming):
                if gone[number % UNDER_WAY] is not None:
                    coming.wait_event(gone[number % UNDER_WAY])
                for own, kept in zip(piece, state):
                    own.copy_(kept[part], non_blocking=True)
                come = coming.record_event()
            with torch.cuda.stream(computing):
                computing.wait_event(come)
                adam(*piece, gradients[part], weights[part])
                updated = computing.record_event()
            with torch.cuda.stream(going):
                going.wait_event(updated)
                for own, kept in zip(piece, state):
                    kept[part].copy_(own, non_blocking=True)
                gone[number % UNDER_WAY] = going.record_event()

    for _ in range(3):  # The first warms up.
        torch.cuda.synchronize()
        since = time.time()
        step()
        torch.cuda.synchronize()
        took = time.time() - since
        say(what="adam", parameters=PARAMETERS, ms=round(took * 1e3, 2), gbps=round(12 * PARAMETERS / took / 1e9, 1))


if __name__ == "__main__":
    say(gpu=torch.cuda.get_device_name(), gpus=torch.cuda.device_count(), torch=torch.__version__, cuda=torch.version.cuda)
    copies()
    updates()
