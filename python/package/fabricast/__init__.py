"""Forecasts collective communication on GPU fabrics, plans it, and compares the forecast with measurements.

The functions are the commands of ``fabricast``, with the flags' names as keywords::

    >>> import fabricast
    >>> plan = fabricast.plan("hgx-h200", collective="all_reduce", sizes="1KiB..1GiB:32")
    >>> plan.ranks, plan.profile
    (8, 'nccl-2.28-h200')
    >>> frame = plan.to_pandas()

A fabric is the name of a preset, a path, or a :class:`Fabric`. Results are :class:`Result` objects: tables of the Arrow C
stream interface whose columns are the JSON keys of the rows, with the rest of the JSON as attributes. Failures raise
:class:`FabricastError` with the file, line and column of the error.

Times are in microseconds (``_us``), bandwidths in GB/s of 10⁹ bytes per second (``_gb_per_s``), sizes in bytes. A size as
text has a unit: ``"64KiB"`` is 65,536 bytes, ``"64KB"`` is 64,000.
"""

from ._fabric import Fabric
from ._fabricast import __version__
from ._progress import Progress
from ._result import FabricastError, FabricastWarning, Result
from ._schedule import Schedule
from .commands import calibrate, compare, plan, simulate, study, synthesize, verify

__all__ = [
    "Fabric",
    "FabricastError",
    "FabricastWarning",
    "Progress",
    "Result",
    "Schedule",
    "__version__",
    "calibrate",
    "compare",
    "plan",
    "simulate",
    "study",
    "synthesize",
    "verify",
]
