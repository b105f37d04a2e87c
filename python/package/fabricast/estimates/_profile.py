"""Profile file of PyTorch's profile-guided estimation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._call import PathType
from ._groups import Groups, groups_of_dimension
from ._times import CollectiveTimes

ELEMENT_BYTES: Mapping[str, int] = {
    "Double": 8,
    "Long": 8,
    "Float": 4,
    "Int": 4,
    "BFloat16": 2,
    "Half": 2,
    "Short": 2,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
}
"""Bytes of an element by the name of its type in traces of ``torch.profiler``."""

EVENT_NAMES: Mapping[str, str] = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_all",
}
"""Collective names in traces of ``torch.profiler``."""

SIZES: tuple[int, ...] = tuple(1 << power for power in range(5, 33))
"""Sizes of the larger buffer, 32 B to 4 GiB. PyTorch interpolates between them, logarithmically in both axes."""


@dataclass(frozen=True)
class Buffers:
    """Elements of a rank's input and output."""

    input: int
    output: int


def buffers(collective: str, elements: int, ranks: int) -> Buffers:
    """Returns the elements of input and output of a call whose larger buffer has ``elements``."""
    part = max(elements // ranks, 1)
    if collective == "all_gather":
        return Buffers(input=part, output=part * ranks)
    if collective == "reduce_scatter":
        return Buffers(input=part * ranks, output=part)
    return Buffers(input=elements, output=elements)


def profile_document(
    times: CollectiveTimes,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    sizes: Iterable[int] = SIZES,
    dtypes: Iterable[str] = ("Float", "BFloat16"),
    concurrent: bool = True,
) -> dict[str, Any]:
    """Returns a Chrome trace with an event for each collective, group, type and size.

    The document has what ``torch/_inductor/fx_passes/profile_guided_estimation.py`` reads: ``distributedInfo.pg_config``, and
    kernel events with ``dur`` in microseconds and the arguments ``Collective name``, ``Process Group Ranks``, ``Group size``,
    ``In msg nelems``, ``Out msg nelems`` and ``dtype``. It has no kernels of computation: PyTorch estimates those itself.

    Args:
        times: Times of the fabric.
        groups: Process groups of the job as global ranks; default: all ranks. PyTorch uses the times of a group for others with
            the same size and stride if the file has only one such group, so one group of each mesh dimension is enough.
        sizes: Sizes of the larger buffer of a rank in bytes.
        dtypes: Types of elements, as ``torch.profiler`` names them (``ELEMENT_BYTES``). PyTorch looks up each type separately.
        concurrent: The other groups of the mesh dimension run the same call at the same time.

    Raises:
        ValueError: Unknown type, or no ranks in a group.
        FabricastError: A rank is not in the fabric.
    """
    chosen: Groups = tuple(tuple(sorted(group)) for group in groups) if groups is not None else (tuple(range(times.ranks)),)
    if any(not group for group in chosen):
        raise ValueError("a group has no ranks")
    dtypes = tuple(dtypes)
    unknown = [dtype for dtype in dtypes if dtype not in ELEMENT_BYTES]
    if unknown:
        raise ValueError(f"unknown type {unknown[0]!r}: expected one of {', '.join(ELEMENT_BYTES)}")
    events = list(kernel_events(times, chosen, tuple(sizes), dtypes, concurrent))
    configuration = [
        {"pg_name": str(index), "pg_desc": f"group_{index}", "backend_config": "cuda:nccl", "pg_size": len(group), "ranks": group}
        for index, group in enumerate(chosen)
    ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": 0,
            "world_size": times.ranks,
            "pg_count": len(chosen),
            "pg_config": configuration,
        },
        "traceEvents": events,
    }


def kernel_events(
    times: CollectiveTimes, groups: Groups, sizes: Sequence[int], dtypes: Sequence[str], concurrent: bool
) -> Iterator[dict[str, Any]]:
    """Yields the events of :func:`profile_document`, one after the other in time."""
    start = 0.0
    for index, group in enumerate(groups):
        peers = groups_of_dimension(group, times.ranks) if concurrent else (group,)
        for collective, name in EVENT_NAMES.items():
            for dtype in dtypes:
                for size in sizes:
                    width = ELEMENT_BYTES[dtype]
                    message = buffers(collective, max(size // width, 1), len(group))
                    time = times.time_us(collective, max(message.input, message.output) * width, peers)
                    yield {
                        "ph": "X",
                        "cat": "kernel",
                        "name": f"fabricast: {collective}",
                        "pid": 0,
                        "tid": index,
                        "ts": start,
                        "dur": time,
                        "args": {
                            "Collective name": name,
                            "Process Group Name": str(index),
                            "Process Group Ranks": json.dumps(group),
                            "Group size": len(group),
                            "In msg nelems": message.input,
                            "Out msg nelems": message.output,
                            "dtype": dtype,
                        },
                    }
                    start = round(start + time, 6)


def write_profile(path: PathType, times: CollectiveTimes, *, force: bool = False, **settings: Any) -> None:
    """Writes :func:`profile_document` as JSON, for
    ``config.aten_distributed_optimizations.profile_guided_estimations_profile_path``. Chrome and Perfetto open it as well.

    Example::

        write_profile("profile.json", CollectiveTimes("hgx-h200", nodes=2), groups=[range(16), range(8)])

    Args:
        path: File to write.
        times: Times of the fabric.
        force: Overwrite an existing file.
        settings: Keywords of :func:`profile_document`.

    Raises:
        ValueError, FabricastError: As :func:`profile_document`.
        FileExistsError: The file exists.
        OSError: The file cannot be written.
    """
    text = json.dumps(profile_document(times, **settings), indent=1)
    with open(os.fspath(path), "w" if force else "x", encoding="utf-8") as file:
        file.write(text + "\n")
