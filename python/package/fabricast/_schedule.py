"""Schedules of collective calls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import _fabricast
from ._call import PathType, ScheduleArgument, run
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
        text = run(["schedule", "generate"], [], {**flags, "fabric": fabric, "to": "json"})
        return cls.parse(text or "", "<schedule generate>")

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
