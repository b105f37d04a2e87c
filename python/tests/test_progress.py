"""Progress of commands: it is complete and in order, its functions can stop a command, and results do not depend on it."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import fabricast
from fabricast import Progress
from fabricast._progress import ProgressArgument

JOB = "collective,bytes,ranks,after,name\nall_reduce,1MiB,0-7,,a\nall_gather,4MiB,0-7,a,b\nall_reduce,2MiB,0-7,b,c\n"


def plan(progress: ProgressArgument, **flags: Any) -> fabricast.Result:
    return fabricast.plan("dgx-a100", collective="all_reduce", sizes="1KiB..1MiB:4", progress=progress, **flags)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_result_does_not_depend_on_progress_and_threads(threads: int) -> None:
    seen: list[Progress] = []
    assert plan(seen.append, threads=threads).json == plan(None).json
    assert seen == sorted(seen) and len(set(seen)) == len(seen)
    assert seen[-1] == Progress(done=6, total=6, label="planning")


def test_every_long_command_ends_at_its_total(tmp_path: Path) -> None:
    (tmp_path / "job.csv").write_text(JOB)
    (tmp_path / "times.csv").write_text("bytes,time_us\n1024,20\n4096,21\n")
    study = (tmp_path / "study.toml")
    study.write_text(
        '[[candidate]]\nname = "a"\nfabric = "dgx-a100"\n[[job]]\nname = "j"\nkind = "training"\n'
        'model = { layers = 2, hidden = 1024, heads = 8, vocab = 1000, seq = 1024 }\nglobal_batch = 8\nparallel = { tp = 8 }\n'
    )
    commands = {
        "simulating": lambda see: fabricast.simulate("dgx-a100", collective="all_reduce", bytes="1MiB", progress=see),
        "simulating job": lambda see: fabricast.simulate("dgx-a100", job=tmp_path / "job.csv", progress=see),
        "planning": lambda see: fabricast.plan("dgx-a100", job=tmp_path / "job.csv", progress=see),
        "comparing": lambda see: fabricast.compare(
            tmp_path / "times.csv", fabric="dgx-a100", collective="all_reduce", progress=see
        ),
        "running jobs": lambda see: fabricast.study(study, progress=see),
    }
    for label, command in commands.items():
        seen: list[Progress] = []
        command(seen.append)
        assert seen and seen[-1].label == label and seen[-1].done == seen[-1].total > 0, (label, seen)


def test_functions_are_called_on_the_thread_of_the_caller() -> None:
    threads: list[int] = []
    plan(lambda _: threads.append(threading.get_ident()))
    assert set(threads) == {threading.get_ident()}


def test_exception_of_a_function_stops_the_command() -> None:
    def refuse(_: Progress) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        fabricast.plan("hgx-h200", nodes=4, collective="all", sizes="1KiB..1GiB", progress=refuse)


def test_failures_keep_their_error() -> None:
    with pytest.raises(fabricast.FabricastError, match="invalid value"):
        plan(lambda _: None, nodes=-1)


def test_other_values_are_refused() -> None:
    with pytest.raises(TypeError, match="expected True, a function or None"):
        plan("yes")  # type: ignore[arg-type]


def test_bar_of_tqdm_ends_at_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    auto = pytest.importorskip("tqdm.auto")
    bars: list[Any] = []

    class Bar:
        def __init__(self, **settings: Any) -> None:
            self.settings, self.n, self.total, self.is_closed = settings, 0, None, False
            bars.append(self)

        def update(self, steps: int) -> None:
            self.n += steps

        def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr(auto, "tqdm", Bar)
    plan(True)
    assert [(bar.settings["desc"], bar.n, bar.total, bar.is_closed) for bar in bars] == [("planning", 6, 6, True)]


def test_nothing_is_shown_without_tqdm(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert len(plan(True)) == 6
    assert capfd.readouterr() == ("", "")
