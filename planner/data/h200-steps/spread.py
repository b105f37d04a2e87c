#!/usr/bin/env python3
"""What each GPU of a machine reaches in one product held for half a minute, all at once: how far GPUs of a kind lie apart at their power limit.

    python3 spread.py

Prints a line of JSON a GPU: the rates of the first second and of the last ten (Tflop/s), and what nvidia-smi says of it at the end.
"""

import json
import subprocess
import threading
import time

import torch

ROWS, INNER, COLUMNS = 16384, 8192, 28672
QUERY = "uuid,clocks.sm,power.draw,power.limit,temperature.gpu,temperature.memory"


def run(device, gate, found):
    torch.cuda.set_device(device)
    generator = torch.Generator(device=device).manual_seed(1)
    new = lambda *size: torch.randn(size, device=device, generator=generator, dtype=torch.bfloat16)
    a, b = new(ROWS, INNER), new(INNER, COLUMNS)
    out = a @ b
    torch.cuda.synchronize()
    gate.wait()
    until = time.time() + 30
    while time.time() < until:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(80):
            torch.mm(a, b, out=out)
        end.record()
        end.synchronize()
        found.append(2 * 80 * ROWS * INNER * COLUMNS / begin.elapsed_time(end) / 1e9)


def main():
    count = torch.cuda.device_count()
    gate, found = threading.Barrier(count), [[] for _ in range(count)]
    threads = [threading.Thread(target=run, args=(device, gate, found[device])) for device in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    while any(len(one) == 0 for one in found):
        time.sleep(0.1)
    time.sleep(27)
    state = subprocess.run(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout.splitlines()
    for thread in threads:
        thread.join()
    for device, (rates, line) in enumerate(zip(found, state)):
        uuid, mhz, watts, limit, heat, memory = (word.strip() for word in line.split(","))
        # (As many batches as ten seconds have.)
        last = rates[-len(rates) // 3 :]
        print(json.dumps(dict(
            gpu=torch.cuda.get_device_name(device), of=count, uuid=uuid[:12], tflops=[round(rates[0], 1), round(sum(last) / len(last), 1)],
            mhz=float(mhz), watts=float(watts), limit=float(limit), celsius=float(heat), memory_celsius=memory,
        )), flush=True)


main()
