"""Tests of errors, warnings, and commands that are ended by Ctrl-C."""

import _thread
import multiprocessing
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import fabricast
from fabricast import Fabric, FabricastError, FabricastWarning


def test_errors_in_files_have_file_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text('name = "x"\n[[node]]\nid = 7\n')
    with pytest.raises(FabricastError) as caught:
        Fabric(file).show()
    error = caught.value
    assert (error.file, error.line, error.column, error.exit_code) == (str(file), 3, 6, 2)
    assert str(error).startswith(error.message)


def test_wrong_values_are_named() -> None:
    with pytest.raises(FabricastError, match="invalid value 'all_produce' for '--collective <NAME>'") as caught:
        fabricast.plan("hgx-h200", collective="all_produce")
    assert caught.value.exit_code == 2 and caught.value.file is None
    with pytest.raises(TypeError, match="unexpected keyword argument 'colective'"):
        fabricast.plan("hgx-h200", colective="all_reduce")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="expected text, a path or a number, not dict"):
        fabricast.plan("hgx-h200", network={"kind": "rail"})  # type: ignore[arg-type]
    with pytest.raises(FabricastError, match="hgx-h200"):
        fabricast.plan("hgx-h20", collective="all_reduce")


def test_values_with_leading_dashes_and_blanks_are_values(tmp_path: Path) -> None:
    with pytest.raises(FabricastError, match="--help"):
        Fabric("--help").show()
    with pytest.raises(FabricastError, match="a b"):
        fabricast.simulate("--force a b")


def test_exceeded_error_limit_has_the_comparison() -> None:
    log = "validate/data/h200-node/logs-repeat/g_allreduce_x8_default.txt"
    with pytest.raises(FabricastError) as caught:
        fabricast.compare(log, fabric="hgx-h200", no_nvls=True, no_explain=True, max_error=0.0001)
    assert caught.value.exit_code == 1 and caught.value.result is not None
    assert len(caught.value.result) == caught.value.result.summary["rows"]


def test_errors_can_be_pickled() -> None:
    error = FabricastError("wrong", None, "f", 3, 4, 2, None)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.message, copy.file, copy.line) == ("wrong", "f", 3)


def test_warnings_point_at_the_caller() -> None:
    with pytest.warns(FabricastWarning, match="7 of 8 GPUs remain") as caught:
        fabricast.simulate(Fabric("hgx-h200", fail="gpu3"), collective="all_reduce", bytes=4096)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FabricastWarning):
            fabricast.simulate(Fabric("hgx-h200", fail="gpu3"), collective="all_reduce", bytes=4096)


def test_settings_of_a_fabric_are_given_once() -> None:
    with pytest.raises(FabricastError, match="the Fabric has nodes already"):
        fabricast.plan(Fabric("dgx-a100", nodes=2), nodes=4, collective="all_reduce")


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("mine")
    with pytest.raises(FabricastError, match="it exists"):
        fabricast.simulate("hgx-h200", collective="all_reduce", bytes=4096, output=file)
    assert file.read_text() == "mine"
    run = fabricast.simulate("hgx-h200", collective="all_reduce", bytes=4096, output=file, force=True)
    assert file.read_text() == run.json


def long_plan() -> fabricast.Result:
    """Computes a plan that needs several minutes."""
    return fabricast.plan("hgx-h200", nodes=128, collective="all", sizes="1KiB..16GiB:1.1")


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """Makes Ctrl-C raise KeyboardInterrupt, also in a process started in the background, which would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_raises")
def test_ctrl_c_stops_a_command() -> None:
    timer = threading.Timer(1, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        long_plan()
    timer.join()
    # The command's thread must end; otherwise it would occupy a core.
    until = time.monotonic() + 60
    while time.monotonic() < until and busy():
        pass
    assert not busy()


def busy() -> bool:
    """Returns True if this process used more than half a core in the last half second while this thread slept."""
    before = time.process_time()
    time.sleep(0.5)
    return time.process_time() - before > 0.25


def test_other_threads_run_during_a_command() -> None:
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.002):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    fabricast.plan("hgx-h200", collective="all", sizes="1KiB..1GiB")
    done.set()
    thread.join()
    assert ticks > 10


def test_results_of_threads_equal_those_of_one() -> None:
    results: dict[int, str] = {}

    def work(number: int) -> None:
        results[number] = fabricast.plan("dgx-a100", collective="all_gather", sizes="1KiB..1MiB:4").json

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results.values())) == 1


def plan_text() -> str:
    return fabricast.plan("dgx-a100", collective="all_gather", sizes="1KiB..1MiB:4").json


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_commands_run_in_forked_processes() -> None:
    expected = plan_text()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(plan_text).get(timeout=60) == expected
