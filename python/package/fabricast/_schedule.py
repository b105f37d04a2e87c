"""Schedules of collective calls."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from . import _fabricast
from ._call import PathType, ScheduleArgument, result, run
from ._progress import ProgressArgument
from ._result import Result, warn

if TYPE_CHECKING:
    from ._fabric import Fabric


class Schedule(ScheduleArgument):
    """Schedule: the operations of all ranks for one call of a collective.

    Example::

        >>> schedule = fabricast.Schedule.build("hgx-h200", collective="all_gather", bytes="1MiB", algorithm="ring", protocol="simple")
        >>> schedule.verify().ok
        True
        >>> text = schedule.export("msccl-xml")
    """

    def __init__(self, file: _fabricast.ScheduleFile) -> None:
        self._file = file
        self.name: str = file.name
        """Name of the algorithm, or the name in the schedule file."""
        self.collective: str = file.collective
        """Collective, by its name in nccl-tests."""
        self.bytes: int = file.bytes
        """Size of the call in bytes: the larger buffer of a rank."""
        self.ranks: int = file.ranks
        """Number of ranks."""
        self.channels: int = file.channels
        """Number of channels."""
        self.protocol: str = file.protocol
        """Name of the protocol, for example ``simple``."""
        self.operations: int = file.operations
        """Number of operations."""

    @classmethod
    def read(cls, path: PathType) -> Schedule:
        """Reads a schedule file: fabricast's JSON, an MSCCL algorithm (XML) or an MSCCL++ execution plan (JSON).

        Raises:
            FabricastError: The file is no schedule; with line and column.
        """
        return cls(_fabricast.ScheduleFile.read(os.fspath(path)))

    @classmethod
    def parse(cls, text: str, name: str = "<schedule>") -> Schedule:
        """Parses the text of a schedule file. ``name`` is the file name in errors.

        Raises:
            FabricastError: The text is no schedule; with line and column.
        """
        return cls(_fabricast.ScheduleFile.parse(text, name))

    @classmethod
    def build(cls, fabric: PathType | Fabric, **flags: object) -> Schedule:
        """Builds the schedule of a strategy on a fabric. Keywords are the flags of ``fabricast schedule generate``:
        ``collective``, ``bytes``, ``algorithm``, ``protocol``, ``channels``, ``chunk``, ``root``, ``nodes`` and others.

        Raises:
            FabricastError: The strategy does not exist, or does not fit the fabric.
        """
        return schedule(["schedule", "generate"], [], {**flags, "fabric": fabric, "to": "json"})

    @cached_property
    def certificate(self) -> dict[str, Any] | None:
        """Optimality certificate of a synthesised schedule, as in its JSON; None for other schedules.

        Times exclude latencies and software costs. Keys:

        - ``cut``: list of sets of device ids; one set, or several disjoint ones for an all_reduce.
        - ``bound_ps``: lower bound on the time of any schedule, in picoseconds: the bytes that must cross the boundary
          of the cut divided by its bandwidth.
        - ``packed_ps``: time that the busiest link needs for this schedule, in picoseconds.
        - ``trees``: list of trees with ``phase`` (``"collect"`` or ``"spread"``), ``root`` (a rank), ``units`` (the
          tree's share of its root's data, relative to other trees) and ``parents`` (the parent of each rank; a root is
          its own).
        """
        certificate: dict[str, Any] | None = json.loads(self.export()).get("certificate")
        return certificate

    def verify(self, fifo_depth: int | None = None) -> Result:
        """Proves that the schedule computes its collective, without races and deadlocks.

        Args:
            fifo_depth: Maximum number of unread transfers per connection, as in FIFO protocols.

        Returns:
            A row: ``ok`` (true) and ``operations``, the number of verified operations.

        Raises:
            FabricastError: The schedule is wrong. ``error.result.fault`` has operation, rank, chunk, found and expected.
        """
        return Result(self._file.verify(fifo_depth) or "{}")

    def certify(self, fabric: PathType | Fabric) -> Result:
        """Proves the schedule and every statement of its certificate on a fabric, without the synthesis.

        Example::

            >>> fabric = fabricast.Fabric("mi300x", fail="gpu0-gpu1")
            >>> schedule = fabricast.synthesize(fabric, collective="all_gather", bytes="64MiB")
            >>> round(schedule.certify(fabric).gap, 4)
            0.0136

        Args:
            fabric: Fabric of the synthesis, with the same hosts and failures.

        Returns:
            A row: ``ok`` (true), ``operations``, ``bound_us`` (no schedule is faster), ``packed_us`` (time of the busiest
            link), ``gap`` (``packed_us / bound_us - 1``), ``trees`` (their number) and ``cut`` (sets of device ids).

        Raises:
            FabricastError: The schedule has no certificate or is wrong, or a statement does not hold on the fabric (exit
                code 1).
        """
        return result(["schedule", "certify"], [self], {"fabric": fabric})

    def export(self, to: str = "json") -> str:
        """Returns the text of the schedule in a format: ``"json"`` (lossless), ``"msccl-xml"`` or ``"mscclpp"``.

        Raises:
            FabricastError: The format cannot express the schedule.
        """
        text, warnings = self._file.write(to)
        for warning in warnings:
            warn(warning)
        return text or ""

    def __repr__(self) -> str:
        return (
            f"<Schedule {self.name}: {self.collective} of {self.bytes} bytes, {self.ranks} ranks, "
            f"{self.channels} channels, {self.protocol}, {self.operations} operations>"
        )


def schedule(
    command: Sequence[str],
    positionals: Sequence[object],
    flags: Mapping[str, object],
    progress: ProgressArgument = None,
) -> Schedule:
    """Runs a command that returns a schedule.

    Raises:
        FabricastError: The command failed.
    """
    return Schedule.parse(run(command, positionals, flags, progress) or "", f"<{' '.join(command)}>")
