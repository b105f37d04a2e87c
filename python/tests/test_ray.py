"""Studies as tasks of Ray equal those of one machine. Skipped without Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import fabricast

ray = pytest.importorskip("ray", reason="Ray is not installed")

import fabricast.ray  # noqa: E402
from fabricast.ray import StudyFile, run_shard  # noqa: E402


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray with two CPUs on this machine, without its dashboard."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("shards", [None, 1, 7])
def test_tasks_give_the_result_of_one_machine(cluster: None, shards: int | None, tmp_path: Path) -> None:
    result = fabricast.ray.study("examples/training-70b.toml", shards=shards, output=tmp_path / "tasks")
    fabricast.study("examples/training-70b.toml", output=tmp_path / "one")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "tasks").iterdir())
    assert all((tmp_path / "tasks" / name).read_bytes() == (tmp_path / "one" / name).read_bytes() for name in names)
    assert result.json == (tmp_path / "one" / "results.json").read_text().rstrip("\n")


def test_errors_of_tasks_are_those_of_the_study(cluster: None, tmp_path: Path) -> None:
    wrong = tmp_path / "study.toml"
    wrong.write_text('[[candidate]]\nname = "a"\nfabric = "hgx-h2000"\nnodes = 1\n')
    with pytest.raises(fabricast.FabricastError) as one:
        fabricast.study(wrong)
    with pytest.raises(fabricast.FabricastError) as tasks:
        fabricast.ray.study(wrong, shards=2)
    assert (tasks.value.message, tasks.value.line, tasks.value.file) == (one.value.message, one.value.line, one.value.file)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        fabricast.ray.study("examples/training-70b.toml", shards=0)


def test_nodes_without_the_file_use_a_copy(tmp_path: Path) -> None:
    contents = Path("examples/training-70b.toml").read_bytes()
    here = run_shard(StudyFile(os.path.abspath("examples/training-70b.toml"), contents), 1, 2, 1)
    elsewhere = run_shard(StudyFile("/not/on/this/node/training-70b.toml", contents), 1, 2, 1)
    assert here == elsewhere and set(here) == {"runs.jsonl", "shard.json"}
