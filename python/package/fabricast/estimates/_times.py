"""Predicted completion times of collectives on groups of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from .. import commands
from .._call import PathType
from .._fabric import Fabric
from ._groups import Groups


class CollectiveTimes:
    """Completion times of collectives on a fabric, by the library's own choice of algorithm, protocol and channels.

    Each time is a run of ``fabricast simulate`` and is cached. Times are those of the kernels (``launch="graph"``), without the
    host time of a launch, as PyTorch counts them. Example::

        >>> times = CollectiveTimes("hgx-h200")
        >>> times.time_us("all_reduce", 1 << 20) > times.time_us("all_reduce", 1 << 10)
        True

    Args:
        fabric: Preset, path or :class:`fabricast.Fabric`.
        library: Library whose choice is predicted, for example ``"nccl-2.28.9"``; ``"nccl"`` is the version of the profile.
        flags: Other keywords of :func:`fabricast.simulate`: ``nodes``, ``network``, ``profile``, ``no_nvls``, ``launch``,
            ``registered``, ``fail`` and others.
    """

    def __init__(self, fabric: PathType | Fabric, *, library: str = "nccl", **flags: Any) -> None:
        self._fabric = fabric
        self._flags = {"library": library, **flags}
        self._cache: dict[tuple[str, int, Groups], float] = {}

    @cached_property
    def ranks(self) -> int:
        """Number of ranks of the fabric.

        Raises:
            FabricastError: The fabric cannot be read or expanded.
        """
        run = commands.simulate(self._fabric, collective="all_gather", bytes=1, **self._flags)
        return int(run.ranks)

    def time_us(self, collective: str, bytes: int, groups: Sequence[Sequence[int]] | None = None) -> float:
        """Returns the completion time in microseconds, of the slowest group if there are several.

        Args:
            collective: ``"all_reduce"``, ``"all_gather"``, ``"reduce_scatter"``, ``"all_to_all"``, ``"broadcast"`` or another
                collective of :func:`fabricast.simulate`.
            bytes: Larger buffer of a rank, as in nccl-tests: the output of an all_gather, the input of a reduce_scatter. Less
                than 1 counts as 1.
            groups: Disjoint groups of ranks that run the call concurrently; default: all ranks as one group.

        Raises:
            FabricastError: A rank is not in the fabric, ranks repeat, or the library has no such collective there.
        """
        size = max(int(bytes), 1)
        chosen: Groups = tuple(tuple(group) for group in groups) if groups is not None else (tuple(range(self.ranks)),)
        key = (collective, size, chosen)
        if key not in self._cache:
            words = [",".join(str(rank) for rank in group) for group in chosen]
            run = commands.simulate(self._fabric, collective=collective, bytes=size, group=words, **self._flags)
            self._cache[key] = max(float(group["time_us"]) for group in run.groups)
        return self._cache[key]

    def __getstate__(self) -> dict[str, Any]:
        """State without cached times: PyTorch's compile cache keys are digests of its pickled settings, which must not change."""
        return {"_fabric": self._fabric, "_flags": self._flags, "_cache": {}}

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self._flags.items() if value is not None)
        return f"CollectiveTimes({self._fabric!r}{settings})"
