"""Calls of commands, whose flags are given as Python values."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Union

from . import _fabricast
from ._progress import ProgressArgument, observer
from ._result import FabricastError, Result, warn

PathType = Union[str, "os.PathLike[str]"]


class FabricArgument:
    """Fabric as commands take it: a name or path, and the flags that change it."""

    def __init__(self, name: PathType, flags: Mapping[str, object]) -> None:
        self._name = name
        self._flags = dict(flags)


class ScheduleArgument(ABC):
    """Schedule as commands take it: a file with its text."""

    @abstractmethod
    def export(self, to: str = "json") -> str:
        """Returns the text of the schedule in a format."""


def text(value: object) -> str:
    """Returns a value as the command line spells it.

    Raises:
        TypeError: The value is no text, path or number.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        return path if isinstance(path, str) else os.fsdecode(path)
    if isinstance(value, bool) or not isinstance(value, (int, float)) and not hasattr(value, "__index__"):
        raise TypeError(f"expected text, a path or a number, not {type(value).__name__}: {value!r}")
    return repr(float(value)) if isinstance(value, float) else str(int(value))


def run(
    command: Sequence[str],
    positionals: Sequence[object],
    flags: Mapping[str, object],
    progress: ProgressArgument = None,
) -> str | None:
    """Runs a command and returns its text. ``None`` and ``False`` omit a flag, ``True`` gives it without a value.

    Raises:
        FabricastError: The command failed.
    """
    flags = dict(flags)
    fabric = flags.get("fabric")
    if isinstance(fabric, FabricArgument):
        own = {name: value for name, value in fabric._flags.items() if value not in (None, False)}
        twice = [name for name in own if flags.get(name) not in (None, False)]
        if twice:
            raise FabricastError(f"the Fabric has {', '.join(twice)} already: expected it once")
        flags.update(own, fabric=fabric._name)
    schedules: list[str] = []
    with ExitStack() as stack:

        def word(value: object) -> str:
            if not isinstance(value, ScheduleArgument):
                return text(value)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fabricast-"))
            path = os.path.join(folder, "schedule.json")
            with open(path, "w", encoding="utf-8") as file:
                file.write(value.export())
            schedules.append(path)
            return path

        settings: list[tuple[str, list[str] | None]] = []
        for name, value in flags.items():
            if value is None or value is False:
                continue
            values = None if value is True else [word(one) for one in several(value)]
            settings.append((name.replace("_", "-"), values))
        words = [word(value) for value in positionals]
        try:
            with observer(progress) as observe:
                result, warnings = _fabricast.run(list(command), words, settings, observe)
        except FabricastError as error:
            raise without_paths(error, schedules) from None
    for warning in warnings:
        warn(warning)
    return result


def without_paths(error: FabricastError, paths: Sequence[str]) -> FabricastError:
    """Returns the error with ``<schedule>`` in place of the paths of temporary files, which no longer exist."""
    arguments = error.args
    for path in paths:
        arguments = tuple(one.replace(path, "<schedule>") if isinstance(one, str) else one for one in arguments)
    return FabricastError(*arguments) if paths else error


def several(value: Any) -> Sequence[Any]:
    """Returns a list or tuple as it is, and any other value as a list of one."""
    return value if isinstance(value, (list, tuple)) else [value]


def result(
    command: Sequence[str],
    positionals: Sequence[object],
    flags: Mapping[str, object],
    progress: ProgressArgument = None,
) -> Result:
    """Runs a command that returns a JSON document.

    Raises:
        FabricastError: The command failed.
    """
    document = run(command, positionals, flags, progress)
    if document is None:
        raise FabricastError("the command has no result", exit_code=1)
    return Result(document)


def given(value: object) -> Sequence[object]:
    """Returns the value as a list, empty without one."""
    return [] if value is None else [value]


def any_result(
    command: Sequence[str],
    positionals: Sequence[object],
    flags: Mapping[str, object],
    progress: ProgressArgument = None,
) -> Any:
    """Runs a command that returns a JSON document, another text, or only files.

    Raises:
        FabricastError: The command failed.
    """
    text = run(command, positionals, flags, progress)
    return Result(text) if text is not None and text.startswith("{") else text
