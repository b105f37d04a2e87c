"""Memory of a PyTorch process that no tensor uses: the context, cuBLAS, and each of eight NCCL communicators.

Usage: torchrun --nproc-per-node 2 communicators.py > communicators.jsonl; again with NCCL_RUNTIME_CONNECT=0, appended

Prints a line of JSON for each state: MiB used according to the driver (`cuMemGetInfo`) minus those that PyTorch has reserved.
"""
import json
import os

import torch
import torch.distributed as dist


def report(state, **details):
    torch.cuda.synchronize()
    free, whole = torch.cuda.mem_get_info()
    used = (whole - free - torch.cuda.memory_reserved()) / 2**20
    if dist.get_rank() == 0:
        connect = os.environ.get("NCCL_RUNTIME_CONNECT", "default")
        print(json.dumps({"state": state, "mib": round(used, 1), **details, "runtime_connect": connect}), flush=True)


def main():
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.zeros(1, device="cuda")
    report("context")
    matrix = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
    matrix @ matrix
    report("first GEMM")
    kinds = {
        "all_reduce": lambda group, x: dist.all_reduce(x, group=group),
        "all_gather": lambda group, x: dist.all_gather_into_tensor(torch.empty(ranks * x.numel(), device="cuda"), x, group=group),
        "reduce_scatter": lambda group, x: dist.reduce_scatter_tensor(torch.empty(x.numel() // ranks, device="cuda"), x, group=group),
        "send_recv": lambda group, x: dist.send(x, rank + 1, group=group) if rank % 2 == 0 else dist.recv(x, rank - 1, group=group),
    }
    for kind, call in kinds.items():
        for number in (1, 2):
            group = dist.new_group(list(range(ranks)), backend="nccl")
            for size in (1 << 10, 1 << 20, 1 << 26):
                call(group, torch.ones(size, device="cuda"))
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                report(f"communicator {number}: {kind}", elements=size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
