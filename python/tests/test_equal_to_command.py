"""Tests that the result of every function equals the output of its command, byte for byte."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import fabricast
from fabricast import Fabric

LOG = "validate/data/h200-node/logs-repeat/g_allreduce_x8_default.txt"
SCHEDULE = "tests/data/schedules/msccl-allreduce-allpairs-8n-ll-32tb.xml"

CALLS: dict[str, tuple[Callable[[], fabricast.Result], list[str]]] = {
    "plan": (
        lambda: fabricast.plan("hgx-h200", collective="all_reduce", sizes="1KiB..1MiB:32"),
        ["plan", "--fabric=hgx-h200", "--collective=all_reduce", "--sizes=1KiB..1MiB:32"],
    ),
    "plan of a cluster, candidates restricted": (
        lambda: fabricast.plan(
            Fabric("dgx-a100", nodes=2, network="rail,nics_per_node=8,nic=200Gb/s"),
            collective="all_gather",
            bytes=1 << 20,
            algorithm=["ring", "hierarchical"],
            protocol="simple",
            channels=[2, 4],
        ),
        [
            *("plan", "--fabric=dgx-a100", "--nodes=2", "--network=rail,nics_per_node=8,nic=200Gb/s", "--collective=all_gather"),
            *("--bytes=1048576", "--algorithm=ring,hierarchical", "--protocol=simple", "--channels=2,4"),
        ],
    ),
    "simulate": (
        lambda: fabricast.simulate("dgx-a100", collective="reduce_scatter", bytes="4MiB", critical_path=True),
        ["simulate", "--fabric=dgx-a100", "--collective=reduce_scatter", "--bytes=4MiB", "--critical-path"],
    ),
    "simulate groups": (
        lambda: fabricast.simulate("hgx-h200", collective="all_reduce", bytes="1MiB", group=["0-3", "4-7"]),
        ["simulate", "--fabric=hgx-h200", "--collective=all_reduce", "--bytes=1MiB", "--group=0-3", "--group=4-7"],
    ),
    "simulate a schedule file": (
        lambda: fabricast.simulate("hgx-h200", schedule=SCHEDULE, bytes=65536, threads=1),
        ["simulate", "--fabric=hgx-h200", f"--schedule={SCHEDULE}", "--bytes=64KiB"],
    ),
    "compare": (
        lambda: fabricast.compare(LOG, fabric="hgx-h200", no_nvls=True, no_explain=True),
        ["compare", LOG, "--fabric=hgx-h200", "--no-nvls", "--no-explain"],
    ),
    "verify": (lambda: fabricast.verify(SCHEDULE), ["schedule", "verify", SCHEDULE]),
    "fabric show": (
        lambda: Fabric("hgx-h200", slow="gpu0-nvswitch0=0.5").show(),
        ["fabric", "show", "hgx-h200", "--slow=gpu0-nvswitch0=0.5"],
    ),
    "fabric check": (lambda: Fabric("l40s-pcie").check(), ["fabric", "check", "l40s-pcie"]),
    "fabric list": (Fabric.presets, ["fabric", "list"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_result_equals_output_of_command(name: str, command: Callable[..., str]) -> None:
    call, words = CALLS[name]
    result, printed = call(), command(*words)
    assert result.json == printed
    document = json.loads(printed)
    assert result.document == document
    for key, value in document.items():
        if key not in ("rows", "columns", "json", "table", "document"):
            assert getattr(result, key) == value
    rows = next((document[key] for key in ("rows", "groups", "links") if key in document and len(document) > 1), None)
    whole = {key: value for key, value in document.items() if key != "format"}
    assert result.rows in ([whole], rows)


def test_study_equals_results_of_command(command: Callable[..., str], tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    study = fabricast.study("examples/training-70b.toml", output=ours)
    command("study", "examples/training-70b.toml", "-o", str(theirs))
    names = sorted(path.name for path in theirs.iterdir())
    assert sorted(path.name for path in ours.iterdir()) == names
    for name in names:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    assert json.loads((theirs / "results.json").read_text()) == study.document
    assert study.rows == study.document["results"] and study.ranking == study.document["ranking"]


def test_calibration_equals_results_of_command(command: Callable[..., str], tmp_path: Path) -> None:
    manifest = "tests/data/measured/manifest.toml"
    fit = fabricast.calibrate(manifest, output=tmp_path / "ours.toml")
    printed = command("calibrate", manifest, "-o", str(tmp_path / "theirs.toml"))
    assert fit.json == printed
    assert (tmp_path / "ours.toml").read_bytes() == (tmp_path / "theirs.toml").read_bytes()
