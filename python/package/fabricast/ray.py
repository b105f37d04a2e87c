"""Studies as tasks of Ray, for notebooks and Kubernetes: ``import fabricast.ray``.

Needs ``ray`` on the driver, and ``fabricast`` of the same version on all nodes. Progress is shown with ``tqdm`` where that is installed, unless ``progress`` says otherwise.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from . import commands
from ._call import PathType
from ._progress import ProgressArgument, observer
from ._result import FabricastError, Result

Files = dict[str, bytes]
"""Contents of a folder by file name."""

TASKS_PER_CPU = 2
"""Tasks for each CPU of the cluster, so that a CPU with short runs gets another task."""


@dataclass(frozen=True)
class StudyFile:
    """Study as it is sent to the nodes of a cluster."""

    path: str
    contents: bytes

    def on_this_node(self, folder: Path) -> Path:
        """Returns the path of the study on this node, or of a copy in ``folder`` if the node has no such file."""
        path = Path(self.path)
        if path.is_file() and path.read_bytes() == self.contents:
            return path
        copy = folder / path.name
        copy.write_bytes(self.contents)
        return copy


def study(
    study: PathType,
    *,
    shards: int | None = None,
    num_cpus: int = 1,
    output: PathType | None = None,
    force: bool = False,
    progress: ProgressArgument = True,
) -> Result:
    """Runs a study as tasks of Ray, a shard each, and merges them.

    The result equals that of :func:`fabricast.study` byte for byte. Ray repeats tasks of lost nodes. Example::

        import fabricast.ray
        import ray

        ray.init(num_cpus=2)
        result = fabricast.ray.study("examples/twenty-machines.toml")
        result.to_parquet("study.parquet")

    Args:
        study: Study file. Files that it names (fabrics, models, traces) must be at the same path on all nodes.
        shards: Number of tasks; default: two for each CPU of the cluster.
        num_cpus: CPUs and threads of a task.
        output: Folder for the results of the merge, as ``output`` of :func:`fabricast.study`.
        force: Overwrite existing files.
        progress: True for a bar of tqdm if that is installed, or a function that receives the number of completed
            tasks as a :class:`fabricast.Progress`; None for neither.

    Returns:
        A row for each candidate and job, as of :func:`fabricast.study`.

    Raises:
        FabricastError: The study is wrong, or a file that it names is missing on a node.
        OSError: The study cannot be read.
        ValueError: ``shards`` or ``num_cpus`` is less than 1.
    """
    if num_cpus < 1 or (shards is not None and shards < 1):
        raise ValueError("expected shards and num_cpus of 1 or more")
    path = os.path.abspath(os.fspath(study))
    if not ray.is_initialized():
        ray.init()
    count = shards if shards is not None else default_shards(num_cpus)
    source = ray.put(StudyFile(path, Path(path).read_bytes()))
    task = ray.remote(num_cpus=num_cpus)(run_shard)
    tasks = {task.remote(source, number, count, num_cpus): number for number in range(1, count + 1)}
    with tempfile.TemporaryDirectory(prefix="fabricast-ray-") as folder:
        for number, files in completed(tasks, progress):
            write(Path(folder) / str(number), files)
        parts = [os.path.join(folder, str(number)) for number in range(1, count + 1)]
        result: Result = commands.study(study, merge=parts, output=output, force=force)
    return result


def default_shards(num_cpus: int) -> int:
    """Returns the number of tasks for the CPUs of the cluster."""
    return max(1, TASKS_PER_CPU * int(ray.cluster_resources().get("CPU", 1)) // num_cpus)


def run_shard(study: StudyFile, number: int, count: int, threads: int) -> Files:
    """Runs a shard and returns the files of its folder. Its warnings are those of the merge, which issues them once."""
    with tempfile.TemporaryDirectory(prefix="fabricast-ray-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = study.on_this_node(Path(folder))
        output = Path(folder) / "shard"
        commands.study(path, shard=f"{number}/{count}", output=output, threads=threads)
        return {file.name: file.read_bytes() for file in sorted(output.iterdir())}


def completed(tasks: dict[Any, int], progress: ProgressArgument) -> Iterator[tuple[int, Files]]:
    """Yields number and files of each task as it ends, and cancels the others if one fails or the caller is interrupted.

    Raises:
        FabricastError: That of the first task that fails.
    """
    pending = list(tasks)
    try:
        with observer(progress) as observe:
            while pending:
                ended, pending = ray.wait(pending)
                for reference in ended:
                    yield tasks[reference], ray.get(reference)
                if observe is not None:
                    observe(len(tasks) - len(pending), len(tasks), "study")
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        raise cause if isinstance(cause, FabricastError) else error
    finally:
        for reference in pending:
            ray.cancel(reference)


def write(folder: Path, files: Files) -> None:
    """Writes files to a new folder."""
    folder.mkdir()
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
