#!/usr/bin/env python3
"""Errors of the predicted figures of all studies in this folder, by class of job; see docs/accuracy.md.

Usage: errors.py [FABRICAST]   (the command; without it `fabricast` of the PATH)
"""
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tomllib

FOLDER = pathlib.Path(__file__).parent
RATES = ("tokens_per_s", "samples_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "causal_tflops_per_gpu")
# Early software, and a figure whose cause is not known: README.md.
NOT_TRUSTED = {"mixtral-16-h100": "", "tinyllama-4090": "", "trtllm-061": "H100", "deepseek-v3-training": "GB200"}
CONSUMER = ("rtx", "l40s")
# Host times of serving were set by half of these figures.
FITTED = "accelmark"


def study(path, command):
    run = subprocess.run([command, "study", str(path), "--format", "json"], capture_output=True, text=True, check=False)
    if run.returncode:
        return path, None, run.stderr
    return path, json.loads(run.stdout), ""


def job_class(path, job, fabric, candidate, figure, figures):
    name = path.stem
    if name in NOT_TRUSTED and NOT_TRUSTED[name] in candidate:
        return "not trusted"
    if figure == "adapter_swap_s":
        return "swap of an adapter" + (", fitted" if name == "lora-h200" and job["name"].endswith("pageable") else "")
    if name == "nvme-zero3":
        return "optimizer states on NVMe" + (", fitted" if job["name"] == "40B" else "")
    if name == "punica-a100":
        return "serving of 2023, with adapters and without"
    if name == "lora-h200":
        is_fitted = " b1 " in f"{job['name']} " and job["name"].startswith("small") and "checkpointed" not in job["name"]
        return ("training of adapters, host time fitted" if is_fitted else "training of adapters") if "lora" in job else "full training next to adapters"
    if "lora" in job:
        return "training of adapters"
    if figure == "kv_transfer_s":
        return "transfer of keys and values" + ("" if job["name"].startswith("40 GB") else ", fitted")
    if name.startswith(FITTED):
        return "serving of AccelMark, fitted"
    if job["name"].endswith("saturated"):
        return "arrivals beyond what the server serves"
    if "request_rate" in job:
        return "arrivals at a rate: " + ("time to first token" if figure.startswith("ttft") else "decode and whole requests")
    if "speculation" in job:
        return "speculative decoding"
    if isinstance(job.get("disaggregation"), dict):
        return "prefill and decode on two hosts: time to first token"
    if figure == "ttft_s" and "ttft_p50_s" in figures:
        return "time to first token: mean with the start of the benchmark"
    if figure.startswith("ttft"):
        return "time to first token"
    if name == "host-launch":
        return "host-bound training"
    if "mi300x" in fabric:
        return "AMD"
    kind = "inference" if job.get("kind") == "inference" else "training"
    if any(part in fabric for part in CONSUMER):
        return "consumer GPUs, " + kind
    return ("experts' " if job["model"].get("experts", 0) else "dense ") + kind


def measured_figures(source):
    """Figures of each job."""
    figures = {}
    for row in source.get("measured", []):
        figures.setdefault(row["job"], set()).update(row)
    return figures


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main():
    command = sys.argv[1] if len(sys.argv) > 1 else "fabricast"
    paths = [path for path in sorted(FOLDER.glob("*.toml")) if not path.name.endswith(".fabric.toml")]
    paths.append(FOLDER.parent / "host-launch.toml")
    by_class, by_study, memory = {}, {}, {"ran": [0, 0], "out of memory": [0, 0]}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for path, answer, message in pool.map(lambda path: study(path, command), paths):
            if answer is None:
                sys.exit(f"{path}: {message}")
            source = tomllib.loads(path.read_text())
            jobs = {job["name"]: job for job in source["job"]}
            fabrics = {one["name"]: one["fabric"] for one in source["candidate"]}
            figures = measured_figures(source)
            for row in answer["results"]:
                kind = "out of memory" if row["job"].startswith("oom-") else "ran"
                memory[kind][0] += 1
                memory[kind][1] += not row["fits"]
            for row in answer.get("measured", []):
                if row.get("predicted") is None:
                    continue
                ratio = row["predicted"] / row["measured"]
                ratio = 1 / ratio if row["figure"] in RATES else ratio
                inside = row.get("low") is not None and row["low"] <= row["measured"] <= row["high"]
                name = job_class(path, jobs[row["job"]], fabrics[row["candidate"]], row["candidate"], row["figure"], figures[row["job"]])
                by_class.setdefault(name, []).append((ratio, inside))
                by_study.setdefault(path.stem, []).append((ratio, inside))
    for title, groups in (("class", by_class), ("study", by_study)):
        print(f"| {title} | figures | median error | p90 | predicted / measured time, median | inside the interval |")
        print("|---|---|---|---|---|---|")
        for name, values in sorted(groups.items()):
            errors = [abs(ratio - 1) for ratio, _ in values]
            print(
                f"| {name} | {len(values)} | {100 * quantile(errors, 0.5):.1f} % | {100 * quantile(errors, 0.9):.0f} % "
                f"| {quantile([ratio for ratio, _ in values], 0.5):.2f} | {sum(inside for _, inside in values)} |"
            )
        print()
    for kind, (count, refused) in memory.items():
        print(f"{kind}: {refused} of {count} refused for memory")


if __name__ == "__main__":
    main()
