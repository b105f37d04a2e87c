"""Times that PyTorch itself estimates for measured collectives: ``python pytorch_estimates.py rows.csv > pytorch-VERSION.csv``.

Needs PyTorch and no GPU: the GPU's name, its compute capability and the number of GPUs of the host replace what PyTorch would
detect. Columns:

- ``overlap_us``: ``estimate_nccl_collective_runtime_impl`` of ``torch/_inductor/comm_analysis.py``, with the bytes that
  ``estimate_nccl_collective_runtime_from_fx_node`` passes to it: input plus output.
- ``dtensor_us``: the cost functions of ``torch/distributed/tensor/_collective_utils.py``; empty for all_to_all, which has none.
"""

from __future__ import annotations

import csv
import sys
from types import SimpleNamespace
from unittest import mock

import torch
import torch.utils.collect_env
from torch._inductor import comm_analysis
from torch.distributed.tensor import _collective_utils as dtensor

OVERLAP = {
    "all_reduce": comm_analysis.NCCL_COLL.ALL_REDUCE,
    "all_gather": comm_analysis.NCCL_COLL.ALL_GATHER,
    "reduce_scatter": comm_analysis.NCCL_COLL.REDUCE_SCATTER,
    "all_to_all": comm_analysis.NCCL_COLL.ALL_TO_ALL,
}
DTENSOR = {
    "all_reduce": dtensor.allreduce_cost,
    "all_gather": dtensor.allgather_cost,
    "reduce_scatter": dtensor.reduce_scatter_cost,
}


def input_and_output(collective: str, bytes: int, ranks: int) -> int:
    """Bytes of input and output together, of a call whose larger buffer has ``bytes``."""
    return bytes + bytes // ranks if collective in ("all_gather", "reduce_scatter") else 2 * bytes


def estimates(gpu: str, ranks: int, rows: list[dict[str, str]]) -> list[dict[str, object]]:
    """Estimates of rows on a host of ``ranks`` GPUs with NVLink."""
    mesh = SimpleNamespace(ndim=1, size=lambda dimension: ranks, device_type="cuda")
    properties = SimpleNamespace(major=9, minor=0, name=gpu)
    with (
        mock.patch.object(torch.utils.collect_env, "get_gpu_info", return_value=f"GPU 0: NVIDIA {gpu}"),
        mock.patch.object(torch.cuda, "is_available", return_value=True),
        mock.patch.object(torch.cuda, "device_count", return_value=ranks),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=properties),
        mock.patch.object(comm_analysis, "_has_nvlink", return_value=True, create=True),
    ):
        comm_analysis.get_gpu_type.cache_clear()
        topology = dtensor.MeshTopoInfo.build_from_mesh.__wrapped__(mesh)
        found: list[dict[str, object]] = []
        for row in rows:
            collective, bytes = row["collective"], int(row["bytes"])
            size = input_and_output(collective, bytes, ranks)
            overlap = 1e3 * comm_analysis.estimate_nccl_collective_runtime_impl(size, ranks, OVERLAP[collective])
            cost = DTENSOR[collective](bytes / (1 << 30), topology, 0) if collective in DTENSOR else None
            found.append(
                {
                    "gpu": gpu,
                    "ranks": ranks,
                    "collective": collective,
                    "bytes": bytes,
                    "overlap_us": round(overlap, 3),
                    "dtensor_us": "" if cost is None else round(cost, 3),
                }
            )
        return found


def main() -> None:
    with open(sys.argv[1], encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    groups: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["gpu"], int(row["ranks"])), []).append(row)
    writer = csv.DictWriter(
        sys.stdout, ["gpu", "ranks", "collective", "bytes", "overlap_us", "dtensor_us"], lineterminator="\n"
    )
    writer.writeheader()
    for (gpu, ranks), members in groups.items():
        writer.writerows(estimates(gpu, ranks, members))


if __name__ == "__main__":
    main()
