"""Tests of the whole package: its types are right, and its examples run."""

import doctest
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import fabricast

PYTHON = Path(__file__).parents[1]


def test_version_is_that_of_the_distribution() -> None:
    assert fabricast.__version__ == importlib.metadata.version("fabricast")


def test_every_public_item_is_documented() -> None:
    for name in fabricast.__all__:
        item = getattr(fabricast, name)
        assert isinstance(item, str) or (item.__doc__ and "Example" in item.__doc__ or name == "FabricastWarning"), name


def test_examples_of_the_docstrings_run() -> None:
    modules = [fabricast, fabricast._result, fabricast._fabric, fabricast._schedule]
    for module in modules:
        assert doctest.testmod(module, extraglobs={"fabricast": fabricast}).failed == 0


def test_types_hold() -> None:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "package/fabricast"], cwd=PYTHON, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
