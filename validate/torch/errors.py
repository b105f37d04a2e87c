"""Errors of fabricast and of PyTorch's own estimates on measured NCCL calls. From the root of the repository:

    python validate/torch/errors.py rows > validate/torch/rows.csv
    python validate/torch/pytorch_estimates.py validate/torch/rows.csv > validate/torch/pytorch-VERSION.csv    # needs PyTorch
    python validate/torch/errors.py table validate/torch/pytorch-*.csv
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
MANIFESTS = (
    ("H200", "validate/runs/2026-11-21-2xh200/manifest.toml"),
    ("H200", "validate/runs/2026-11-21-4xh200/manifest.toml"),
    ("H200", "validate/data/h200-node/repeat.toml"),
)
"""GPU and manifest."""

LIBRARY_CHOICE = re.compile(r"-nccl-f32\.csv|_default\.txt")
"""Files of the manifests with NCCL's own choice."""

H100 = "validate/runs/2026-11-25-2xh100"
"""Run of ``gpu run``, NCCL 2.28.3 with NVLS off."""


def measured() -> list[dict[str, Any]]:
    """Rows of NCCL's own choice of 1 KiB and more, with fabricast's prediction."""
    import fabricast

    rows: list[dict[str, Any]] = []

    def add(source: str, gpu: str, compared: Iterable[dict[str, Any]]) -> None:
        for row in compared:
            if row["collective"] in COLLECTIVES and row["bytes"] >= 1024:
                figures = {name: row[name] for name in ("ranks", "collective", "bytes", "measured_us")}
                rows.append({"source": source, "gpu": gpu, **figures, "fabricast_us": row["predicted_us"]})

    for gpu, manifest in MANIFESTS:
        compared = fabricast.compare(str(ROOT / manifest), no_explain=True).rows
        add(manifest, gpu, [row for row in compared if LIBRARY_CHOICE.search(row["file"])])
    run = json.loads((ROOT / H100 / "run.json").read_text(encoding="utf-8"))
    for collective in COLLECTIVES:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "nccl.csv"
            calls = [row for row in run["rows"] if row["collective"] == collective and row["executor"] == "nccl"]
            log.write_text("bytes,time_us\n" + "".join(f"{row['bytes']},{row['graph_us']}\n" for row in calls), encoding="utf-8")
            settings = {"collective": collective, "library": "nccl-2.28.3", "no_nvls": True, "no_explain": True}
            add(f"{H100}/run.json", "H100", fabricast.compare(log, fabric=ROOT / H100 / "here.toml", **settings).rows)
    return rows


def read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


Estimate = Callable[[dict[str, str]], "float | None"]
"""Estimated time of a row in microseconds, or None."""


def column_of(path: Path, column: str) -> Estimate:
    """Column of a file of ``pytorch_estimates.py``, by the call of a row."""
    key = ("gpu", "ranks", "collective", "bytes")
    known = {tuple(row[name] for name in key): row[column] for row in read(path)}
    return lambda row: float(known[tuple(row[name] for name in key)] or 0) or None


def errors(rows: Iterable[dict[str, str]], estimate: Estimate) -> list[float]:
    """Factors between estimate and measurement, at least 1."""
    found = [(estimate(row), float(row["measured_us"])) for row in rows]
    return [max(one / time, time / one) for one, time in found if one]


def cell(factors: list[float]) -> str:
    """Median and 90th percentile of the factors."""
    if len(factors) < 2:
        return "–"
    return f"{statistics.median(factors):.2f} ({statistics.quantiles(factors, n=10)[-1]:.2f})"


def table(paths: list[Path]) -> None:
    """Prints a row for each machine and collective: median and 90th percentile of the factor."""
    rows = read(FOLDER / "rows.csv")
    columns: list[tuple[str, Estimate]] = [("fabricast", lambda row: float(row["fabricast_us"]))]
    for path in paths:
        columns.append((f"overlap scheduling, {path.stem.removeprefix('pytorch-')}", column_of(path, "overlap_us")))
    columns.append(("DTensor", column_of(paths[0], "dtensor_us")))
    print("| machine | collective | rows | " + " | ".join(label for label, _ in columns) + " |")
    print("|---" * (3 + len(columns)) + "|")
    machines = list(dict.fromkeys((row["gpu"], row["ranks"], row["source"]) for row in rows))
    for gpu, ranks, source in machines:
        for collective in (*COLLECTIVES, "all"):
            chosen = [row for row in rows if row["source"] == source and collective in (row["collective"], "all")]
            if not chosen:
                continue
            cells = [cell(errors(chosen, estimate)) for _, estimate in columns]
            print(f"| {ranks} × {gpu} | {collective} | {len(chosen)} | " + " | ".join(cells) + " |")


def main() -> None:
    if sys.argv[1:2] == ["rows"]:
        rows = measured()
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif sys.argv[1:2] == ["table"]:
        table([Path(path) for path in sys.argv[2:]])
    else:
        sys.exit("expected `rows` or `table PYTORCH.csv…`")


if __name__ == "__main__":
    main()
