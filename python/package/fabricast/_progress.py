"""Progress of commands: callbacks, and bars of tqdm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Union


class Progress(NamedTuple):
    """Progress of a command, as the callable of ``progress=`` receives it about ten times per second, and at the end.

    Example::

        >>> fabricast.plan("dgx-a100", bytes="1MiB", progress=lambda now: None).ranks
        8
    """

    done: int
    """Number of steps done: of ``plan`` rows, of ``study`` runs, of ``simulate`` operations."""
    total: int
    """Total number of steps; 0 if it is unknown."""
    label: str
    """Activity, for example ``"planning"``. A command may have several, in sequence."""


Observer = Callable[[int, int, str], object]
"""Function that receives done, total and label."""

ProgressArgument = Union[bool, Callable[[Progress], object], None]
"""True for a bar of tqdm, a function that receives each :class:`Progress`, or None or False for neither."""

BAR_DELAY_S = 1.0
"""Running time before a bar is shown, as on a terminal."""


@contextmanager
def observer(progress: ProgressArgument) -> Iterator[Observer | None]:
    """Provides the function to which a command reports; None if nothing is to be shown, as with True without tqdm."""
    if progress is None or progress is False:
        yield None
    elif progress is True:
        bar = Bar.create()
        try:
            yield None if bar is None else bar.show
        finally:
            if bar is not None:
                bar.close()
    elif callable(progress):
        call = progress
        yield lambda done, total, label: call(Progress(done, total, label))
    else:
        raise TypeError(f"progress: expected True, a function or None, not {progress!r}")


class Bar:
    """Bar of tqdm for one activity after the other."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm
        self._bar: Any = None
        self._label = ""

    @classmethod
    def create(cls) -> Bar | None:
        """Returns a bar, or None without tqdm."""
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return None
        return cls(tqdm)

    def show(self, done: int, total: int, label: str) -> None:
        """Shows the position of an activity."""
        if self._bar is None or label != self._label:
            self.close()
            self._bar = self._tqdm(desc=label, delay=BAR_DELAY_S)
            self._label = label
        self._bar.total = total or None
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Ends the bar, which stays visible."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
