"""Runs commands through the module, and compares its functions with the command line; ``.ci/run`` runs this file as a program, without pytest."""

import ast
import functools
import importlib
import inspect
import json
import sys
import tempfile
import types
from pathlib import Path

import fabricast

PYTHON = Path(__file__).parents[1]


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
    sys.path.insert(0, str(PYTHON))
    try:
        import generate
    finally:
        sys.path.remove(str(PYTHON))
    assert generate.FILE.read_text(encoding="utf-8") == generate.generate(fabricast._fabricast), "run python/generate.py"


def test_errors_have_file_and_line() -> None:
    try:
        fabricast.Fabric("python/tests/test_smoke.py").show()
    except fabricast.FabricastError as error:
        assert error.file == "python/tests/test_smoke.py" and error.line == 1 and error.exit_code == 2
    else:
        raise AssertionError("a Python file is no fabric")


def test_notebooks_call_functions_as_they_are_defined() -> None:
    notebooks = sorted((PYTHON / "notebooks").glob("*.ipynb"))
    calls = 0
    for notebook in notebooks:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="fabricast"), attr=name)):
                    keywords = {keyword.arg: None for keyword in node.keywords}
                    inspect.signature(getattr(fabricast, name)).bind(*node.args, **keywords)
                    calls += 1
    assert len(notebooks) == 3 and calls >= 6, (len(notebooks), calls)


class RayInThisProcess(types.ModuleType):
    """Functions of ``ray`` that ``fabricast.ray`` uses. Tasks run one after the other, the last one first."""

    exceptions = types.SimpleNamespace(RayTaskError=RuntimeError)

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def put(self, value: object) -> object:
        return value

    def remote(self, *, num_cpus: int) -> object:
        assert num_cpus >= 1
        return lambda function: types.SimpleNamespace(remote=lambda *values: functools.partial(function, *values))

    def wait(self, pending: list[functools.partial]) -> tuple[list[functools.partial], list[functools.partial]]:
        return pending[-1:], pending[:-1]

    def get(self, task: functools.partial) -> object:
        return task()

    def cancel(self, task: functools.partial) -> None:
        pass


def test_tasks_of_ray_give_the_result_of_one_machine() -> None:
    text = """
[[job]]
name = "small"
global_batch = 32
model = { layers = 4, hidden = 1024, heads = 8, ffn = 4096, vocab = 32000, seq = 2048 }
parallel = { tp = 1, dp = 8 }

[[candidate]]
name = "a"
fabric = "hgx-h100"

[[candidate]]
name = "b"
fabric = "hgx-h200"
"""
    replaced = {name: sys.modules.pop(name, None) for name in ("ray", "fabricast.ray")}
    attribute = vars(fabricast).pop("ray", None)
    sys.modules["ray"] = RayInThisProcess("ray")
    try:
        tasks = importlib.import_module("fabricast.ray")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "study.toml"
            file.write_text(text)
            assert tasks.study(file, shards=3, progress=None).json == fabricast.study(file).json
    finally:
        for name, module in replaced.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
        vars(fabricast).pop("ray", None)
        if attribute is not None:
            fabricast.ray = attribute


if __name__ == "__main__":
    tests = {name: test for name, test in globals().items() if name.startswith("test_")}
    for test in tests.values():
        test()
    print(f"Python module: {len(tests)} passed, 0 failed")
