"""Fixtures: the root of the repository, and the command whose output results are compared with."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """Returns the root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def command() -> Callable[..., str]:
    """Runs the command with ``--format json`` in the root of the repository and returns what it prints."""
    candidates = [os.environ.get("FABRICAST"), ROOT / "target/release/fabricast", ROOT / "target/debug/fabricast"]
    program = next((one for one in candidates if one and shutil.which(one)), None)
    if program is None:
        pytest.skip("the command is not built: cargo build, or FABRICAST=path")

    def run(*words: str) -> str:
        done = subprocess.run(
            [program, *words, "--format", "json"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each test in the root of the repository, as the command does."""
    monkeypatch.chdir(ROOT)
