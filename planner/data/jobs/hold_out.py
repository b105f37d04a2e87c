#!/usr/bin/env python3
"""Errors by class of job where each study that set a host time of SGLang, or its time of 8-bit experts on AMD's GPUs, is left out; see docs/accuracy.md.

Usage: hold_out.py [FABRICAST [ROWS]]   (the command, without it `fabricast` of the PATH; ROWS: file for a JSON object per figure)

The time of the study that is left out is the geometric mean over the others of its kind (16 bits), or follows from least squares of the
logarithms over the others: a time for 8 bits, one for latent attention, and a factor for AMD's GPUs.
"""
import json
import math
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from errors import FOLDER, RATES, job_class, measured_figures, quantile, study

FRAMEWORKS = tomllib.loads((FOLDER.parent.parent / "workload" / "data" / "frameworks.toml").read_text())["framework"]
SGLANG = next(row for row in FRAMEWORKS if row["name"] == "sglang")
REQUEST_S = 1e-3 * SGLANG["request_ms"]
AMD_LAYER_US = SGLANG["amd_quantized_expert_layer_us"]
# Kind of layer, and jobs that set its time: those of one request, but for M2, whose first, slow request spoils that.
LAYERS = {
    "sglang-qwen3-235b-b200": ("16 bits", ["610/421 c1", "610/4445 c1"]),
    "sglang-ernie45-21b-mi300x": ("16 bits", ["610/422 c1", "610/4446 c1"]),
    "sglang-minimax-m25-b200": ("8 bits", ["609/422 c1"]),
    "sglang-minimax-m25-h100": ("8 bits", ["610/422 c1"]),
    "sglang-minimax-m2-mi300x": ("8 bits", ["496/510 c16"]),
    "sglang-qwen3-coder-480b-mi300x": ("8 bits", ["610/422 c1"]),
    "sglang-deepseek-r1-b200": ("latent", ["610/421 c1", "610/4445 c1"]),
    "sglang-deepseek-v31-mi300x": ("latent", ["610/422 c1", "610/4446 c1"]),
}
QUANTIZED = {name for name, (kind, _) in LAYERS.items() if kind != "16 bits"}
AMD = {
    "sglang-deepseek-v31-mi300x": ["610/422 c1", "4194/422 c1", "610/4446 c1"],
    "sglang-minimax-m2-mi300x": ["610/422 c1"],
    "sglang-qwen3-coder-480b-mi300x": ["610/422 c1"],
}


def mean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values))


def fitted(times):
    """Logarithms of the times of both kinds and of AMD's factor: exact least squares by alternating means."""
    parts = {"8 bits": 0.0, "latent": 0.0, "AMD": 0.0}
    rows = [(LAYERS[name][0], name.endswith("mi300x"), math.log(time)) for name, time in times.items()]
    for _ in range(2000):
        for kind in ("8 bits", "latent"):
            gaps = [time - parts["AMD"] * is_amd for row, is_amd, time in rows if row == kind]
            parts[kind] = sum(gaps) / len(gaps)
        gaps = [time - parts[kind] for kind, is_amd, time in rows if is_amd]
        parts["AMD"] = sum(gaps) / len(gaps)
    return parts


def held_out_time(name, launch):
    """Time of a layer, ms, from the other studies."""
    kind = LAYERS[name][0]
    if kind == "16 bits":
        return mean([time for other, time in launch.items() if LAYERS[other][0] == kind and other != name])
    parts = fitted({other: time for other, time in launch.items() if other in QUANTIZED and other != name})
    return math.exp(parts[kind] + (parts["AMD"] if name.endswith("mi300x") else 0.0))


def measured(source, jobs, figure):
    return [row[figure] for row in source["measured"] if row["job"] in jobs and figure in row]


def layers(source):
    return source["job"][0]["model"]["layers"]


def main():
    command = sys.argv[1] if len(sys.argv) > 1 else "fabricast"
    paths = [path for path in sorted(FOLDER.glob("*.toml")) if not path.name.endswith(".fabric.toml")]
    paths.append(FOLDER.parent / "host-launch.toml")
    sources = {path.stem: tomllib.loads(path.read_text()) for path in paths}
    launch = {name: mean([1e3 * (ttft - REQUEST_S) / layers(sources[name]) for ttft in measured(sources[name], jobs, "ttft_p50_s")]) for name, (_, jobs) in LAYERS.items()}
    amd = {}
    for name, jobs in AMD.items():
        _, answer, _ = study(FOLDER / f"{name}.toml", command)
        rows = [row for row in answer["measured"] if row["job"] in jobs and row["figure"] == "tpot_s"]
        gaps = [1e6 * (row["measured"] - row["predicted"]) / layers(sources[name]) + AMD_LAYER_US for row in rows]
        amd[name] = sum(gaps) / len(gaps)
    by_class, rows = {}, []
    for path in paths:
        source, held_out = sources[path.stem], None
        added_s = 0.0
        if path.stem in LAYERS:
            held_out = held_out_time(path.stem, launch)
        if path.stem in amd:
            others = mean([time for name, time in amd.items() if name != path.stem])
            added_s = (others - AMD_LAYER_US) * layers(source) / 1e6
        with tempfile.NamedTemporaryFile("w", suffix=".toml", dir=FOLDER) as file:
            text = path.read_text()
            if held_out:
                text = re.sub(r"^(framework = .*)$", rf"\1\nhost_time = {{ prefill_layer_ms = {held_out:.4f} }}", text, flags=re.M)
            file.write(text)
            file.flush()
            _, answer, message = study(Path(file.name) if held_out else path, command)
        if answer is None:
            sys.exit(f"{path}: {message}")
        jobs = {job["name"]: job for job in source["job"]}
        fabrics = {one["name"]: one["fabric"] for one in source["candidate"]}
        figures = measured_figures(source)
        tpots = {row["job"]: row["predicted"] for row in answer.get("measured", []) if row["figure"] == "tpot_s"}
        for row in answer.get("measured", []):
            if row.get("predicted") is None:
                continue
            predicted = row["predicted"]
            if row["figure"] == "tpot_s":
                predicted += added_s
            elif row["figure"].startswith("ttft"):  # the step of the prompt, and the one that a request waits for if others run
                predicted += added_s * (2 if jobs[row["job"]].get("concurrency", 1) > 1 else 1)
            elif row["figure"] == "tokens_per_s" and row["job"] in tpots:
                predicted *= tpots[row["job"]] / (tpots[row["job"]] + added_s)
            ratio = predicted / row["measured"]
            # The interval scales with the prediction.
            scale = predicted / row["predicted"]
            inside = row.get("low") is not None and row["low"] * scale <= row["measured"] <= row["high"] * scale
            ratio = 1 / ratio if row["figure"] in RATES else ratio
            name = job_class(path, jobs[row["job"]], fabrics[row["candidate"]], row["candidate"], row["figure"], figures[row["job"]])
            by_class.setdefault(name, []).append((ratio, inside))
            rows.append({**row, "class": name, "study": path.stem, "predicted": predicted, "ratio": ratio, "inside": inside})
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print("times of a layer that studies set, ms:", {name: round(time, 2) for name, time in launch.items()})
    shipped = fitted({name: time for name, time in launch.items() if name in QUANTIZED})
    print("times of a layer, ms, and AMD's factor:", {name: round(math.exp(value), 2) for name, value in shipped.items()})
    print("times of 8-bit experts on AMD, µs:", {name: round(time) for name, time in amd.items()})
    print("| class | figures | median error | p80 | p90 | predicted / measured time, median | inside the interval |\n|---|---|---|---|---|---|---|")
    for name, values in sorted(by_class.items()):
        errors = [abs(ratio - 1) for ratio, _ in values]
        inside = sum(inside for _, inside in values)
        print(
            f"| {name} | {len(values)} | {100 * quantile(errors, 0.5):.1f} % | {100 * quantile(errors, 0.8):.1f} % | {100 * quantile(errors, 0.9):.0f} % "
            f"| {quantile([ratio for ratio, _ in values], 0.5):.2f} | {inside} ({100 * inside / len(values):.0f} %) |"
        )


if __name__ == "__main__":
    main()
