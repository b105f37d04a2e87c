"""Runs commands through the module, and compares its functions with the command line; ``.ci/run`` runs this file as a program, without pytest."""

import sys
from pathlib import Path

import fabricast


def test_simulation_has_a_row_and_attributes() -> None:
    run = fabricast.simulate("hgx-h200", collective="all_reduce", bytes="1MiB", algorithm="ring", protocol="simple")
    assert run.ranks == 8 and run.bytes == 1 << 20
    assert 0 < run.bound_us < run.low_us < run.time_us < run.high_us
    assert len(run) == 1 and run.rows[0]["time_us"] == run.time_us and "time_us" in run.columns
    assert type(run.__arrow_c_stream__()).__name__ == "PyCapsule"


def test_plan_reports_its_progress() -> None:
    seen: list[fabricast.Progress] = []
    plan = fabricast.plan("dgx-a100", collective="all_reduce", sizes="64KiB..256KiB", progress=seen.append)
    assert len(plan) == 3 and seen[-1] == fabricast.Progress(done=3, total=3, label="planning")


def test_functions_follow_the_command_line() -> None:
    python = Path(__file__).parents[1]
    sys.path.insert(0, str(python))
    try:
        import generate
    finally:
        sys.path.remove(str(python))
    assert generate.FILE.read_text(encoding="utf-8") == generate.generate(fabricast._fabricast), "run python/generate.py"


def test_errors_have_file_and_line() -> None:
    try:
        fabricast.Fabric("python/tests/test_smoke.py").show()
    except fabricast.FabricastError as error:
        assert error.file == "python/tests/test_smoke.py" and error.line == 1 and error.exit_code == 2
    else:
        raise AssertionError("a Python file is no fabric")


if __name__ == "__main__":
    tests = {name: test for name, test in globals().items() if name.startswith("test_")}
    for test in tests.values():
        test()
    print(f"Python module: {len(tests)} passed, 0 failed")
