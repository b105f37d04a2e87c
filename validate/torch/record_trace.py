"""Records the traces of a small data-parallel training step on the GPUs of one host, and its step time without profiler.

    NCCL_NVLS_ENABLE=0 python validate/torch/record_trace.py --gpus 2 --out trace-2gpu

The folder gets `rank-N.json` of each rank (PyTorch's profiler); `trace-2gpu-step.json` next to it has the times:

    {"step_us": …, "steps_us": […], "profiled_step_us": …, "gpus": 2, "gpu": "…", "torch": "…", "nccl": "…", …}

`step_us` is the median of the steps without profiler: of each step the slowest rank, from a barrier to the
synchronization at its end. `fabricast simulate --job trace-2gpu --fabric …` replays the traces. Needs PyTorch with CUDA
only; tried with no data set, no network. Sizes are chosen so that a step has communication that overlaps with the
backward pass and communication that does not.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule


class Block(torch.nn.Module):
    """Feed-forward block with a residual."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(hidden)
        self.up = torch.nn.Linear(hidden, 4 * hidden)
        self.down = torch.nn.Linear(4 * hidden, hidden)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(torch.nn.functional.gelu(self.up(self.norm(inputs))))


def run(rank: int, arguments: argparse.Namespace) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(arguments.port))
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", rank=rank, world_size=arguments.gpus, device_id=device)
    torch.manual_seed(rank)
    torch.backends.cuda.matmul.allow_tf32 = True
    layers = [Block(arguments.hidden) for _ in range(arguments.layers)]
    model = torch.nn.Sequential(*layers).to(device=device, dtype=torch.bfloat16)
    model = DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=arguments.bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs = torch.randn(arguments.tokens, arguments.hidden, device=device, dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(inputs).float().square().mean().backward()
        optimizer.step()

    def timed_step() -> float:
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return 1e6 * (time.perf_counter() - begin)

    for _ in range(arguments.warmup):
        step()
    own = torch.tensor([timed_step() for _ in range(arguments.steps)], device=device, dtype=torch.float64)
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    steps = own.tolist()

    out = Path(arguments.out)
    trace = out / f"rank-{rank}.json"
    profiled: list[float] = []
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=3, active=5),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
    ) as profiler:
        for _ in range(8):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            step()
            torch.cuda.synchronize()
            profiled.append(1e6 * (time.perf_counter() - begin))
            profiler.step()
    dist.barrier()
    if rank == 0:
        result = {
            "step_us": statistics.median(steps),
            "steps_us": steps,
            "profiled_step_us": statistics.median(profiled[3:]),
            "gpus": arguments.gpus,
            "gpu": torch.cuda.get_device_name(rank),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
            "environment": {key: value for key, value in os.environ.items() if key.startswith("NCCL_")},
            "arguments": {key: value for key, value in vars(arguments).items() if key != "out"},
        }
        times = out.with_name(out.name + "-step.json")
        times.write_text(json.dumps(result, indent=1) + "\n")
        print(f"step {result['step_us']:.1f} us, with profiler {result['profiled_step_us']:.1f} us: {out}")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="trace", help="folder of the traces and times, made if missing")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of a rank and step")
    parser.add_argument("--bucket-mb", type=int, default=100, help="size of DDP's buckets of gradients")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--steps", type=int, default=30, help="steps that are timed without profiler")
    parser.add_argument("--port", type=int, default=29517, help="port on the loopback address for the rendezvous")
    arguments = parser.parse_args()
    if torch.cuda.device_count() < arguments.gpus:
        raise SystemExit(f"{torch.cuda.device_count()} GPUs, and {arguments.gpus} are needed")
    Path(arguments.out).mkdir(parents=True, exist_ok=True)
    multiprocessing.spawn(run, args=(arguments,), nprocs=arguments.gpus)


if __name__ == "__main__":
    main()
