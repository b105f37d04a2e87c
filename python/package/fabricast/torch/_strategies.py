"""Strategies of calls, from a plan."""

from __future__ import annotations

import bisect
import json
import os
from typing import Any, NamedTuple, Union

from .. import _fabricast
from .._result import FabricastError, Result
from .._schedule import Schedule
from ..commands import plan as make_plan

PlanType = Union[Result, str, "os.PathLike[str]"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
"""Collectives of a communicator, as plans name them."""

_FABRICS = {"H100": "hgx-h100", "H200": "hgx-h200"}
"""Fabrics whose kernels were measured, by a word of the GPU's name."""

_PROFILES = {("H200", 2): "kernels-h200-pair"}
"""Profiles of kernels by that word and the number of ranks; of others, the profile of the GPU's model."""

_SIZES = "1KiB..256MiB"


class Call(NamedTuple):
    """Call of a collective. Calls that are equal run the same kernel."""

    collective: str
    bytes: int
    """The larger buffer of a rank."""
    dtype: str
    op: str
    root: int
    in_place: bool


class Strategy(NamedTuple):
    """Row of a plan."""

    bytes: int
    algorithm: str
    protocol: str
    channels: int
    chunk: int | None
    is_library: bool
    """True if the library's own choice is as fast as the best strategy."""


class Strategies:
    """Strategies by collective and size."""

    def __init__(self, plans: list[dict[str, Any]], ranks: int) -> None:
        """Reads the documents of ``fabricast plan``.

        Raises:
            ValueError: A document is no plan for this number of ranks.
        """
        self._rows: dict[str, list[Strategy]] = {}
        for document in plans:
            _check(document)
            if document["ranks"] != ranks:
                raise ValueError(f"the plan is for {document['ranks']} ranks on {document['fabric']}, and the group has {ranks}")
            for row in document["rows"]:
                self._rows.setdefault(row["collective"], []).append(_strategy(row))
        for rows in self._rows.values():
            rows.sort()
        request = {name: value for name, value in plans[0]["request"].items() if value is not None}
        self._fabric = {name: value for name, value in request.items() if name not in ("collective", "bytes", "sizes")}

    @classmethod
    def load(cls, plan: PlanType | None, ranks: int, gpu: str) -> Strategies:
        """Reads a plan, or makes one for a GPU of this name.

        Raises:
            ValueError: There is no profile of kernels on this GPU, or the plan is for another number of ranks.
            OSError: The plan cannot be read.
        """
        if plan is None:
            return cls([planned.document for planned in _plans(ranks, gpu)], ranks)
        if isinstance(plan, Result):
            return cls([plan.document], ranks)
        with open(plan, encoding="utf-8") as file:
            document = json.load(file)
        _check(document)
        return cls([_resolve_files(document, os.path.dirname(os.fsdecode(plan)))], ranks)

    def key(self) -> str:
        """Text that is equal for equal strategies."""
        return repr((sorted(self._rows.items()), sorted(self._fabric.items())))

    def strategy(self, collective: str, size: int) -> Strategy | None:
        """Returns the strategy of the largest planned size that does not exceed ``size``, or of the smallest one; ``None``
        if the plan does not contain the collective."""
        rows = self._rows.get(collective)
        if not rows:
            return None
        return rows[max(bisect.bisect_right([row.bytes for row in rows], size) - 1, 0)]

    def kernel(self, call: Call, strategy: Strategy, multiprocessors: int, capability: int) -> _fabricast.Kernel:
        """Generates the kernel of a call.

        Raises:
            FabricastError: The strategy does not fit the call, or kernels cannot run it.
        """
        reduces = call.collective in ("all_reduce", "reduce_scatter")
        schedule = Schedule.build(
            **self._fabric,
            collective=call.collective,
            bytes=call.bytes,
            algorithm=strategy.algorithm,
            protocol=strategy.protocol,
            channels=strategy.channels,
            chunk=strategy.chunk,
            root=call.root if call.collective == "broadcast" else None,
            in_place=call.in_place,
        )
        if schedule.bytes != call.bytes:
            raise FabricastError(f"the schedule has {schedule.bytes} bytes instead of {call.bytes}")
        return schedule._file.kernel(call.dtype, call.op if reduces else "sum", multiprocessors, capability)


def _plans(ranks: int, gpu: str) -> list[Result]:
    for word, fabric in _FABRICS.items():
        if word in gpu:
            profile = _PROFILES.get((word, ranks), f"kernels-{word.lower()}")
            return [
                make_plan(fabric, gpus=ranks, collective=collective, profile=profile, sizes=_SIZES)
                for collective in COLLECTIVES
            ]
    raise ValueError(f"there are no measurements of kernels on {gpu}: pass a plan")


def _check(document: Any) -> None:
    """Raises:
    ValueError: The document is no result of ``fabricast plan``.
    """
    is_plan = isinstance(document, dict) and str(document.get("format", "")).startswith("fabricast-plan/")
    if not is_plan or not isinstance(document.get("request"), dict):
        raise ValueError("the plan is no document of `fabricast plan`")


def _resolve_files(document: dict[str, Any], folder: str) -> dict[str, Any]:
    """Returns a plan whose fabric and profile files are those of its folder, where it has them."""
    request = dict(document["request"])
    for name in ("fabric", "profile"):
        value = request.get(name)
        if isinstance(value, str) and os.path.splitext(value)[1] and os.path.isfile(os.path.join(folder, value)):
            request[name] = os.path.join(folder, value)
    return {**document, "request": request}


def _strategy(row: dict[str, Any]) -> Strategy:
    library = row.get("library_default") or {}
    is_library = library.get("time_us") is not None and library["time_us"] <= row["time_us"]
    return Strategy(row["bytes"], row["algorithm"], row["protocol"], row["channels"], row.get("chunk"), is_library)
