#!/usr/bin/env python3
"""Writes rows of rows.csv as a study with measured steps: study.py h100 bf16 > h100.toml; study.py a100 bf16 > a100.toml"""

import csv
import sys
from pathlib import Path

# Layers, width and heads, as its configurations have them (scripts/train/yamls/pretrain); the feed-forward is four times as wide.
MODELS = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
# Fabric, and its network between hosts: of A100 as the table says, of H100 as such hosts had then.
MACHINES = {"h100": ("hgx-h100", "400 Gb/s"), "a100": ("dgx-a100", "200 Gb/s")}

gpu, precision = sys.argv[1:]
fabric, nic = MACHINES[gpu]
lines = [line for line in Path(__file__).with_name("rows.csv").read_text().splitlines() if not line.startswith("#")]
rows = [row for row in csv.DictReader(lines) if (row["gpu"], row["precision"]) == (gpu, precision)]

print(f"# {len(rows)} training runs that others published (rows.csv beside this file says which), by study.py {gpu} {precision}.\n#")
print(f"#   fabricast calibrate planner/data/llm-foundry/{gpu}.toml\n")
for hosts in sorted({int(row["gpus"]) // 8 for row in rows}):
    network = "" if hosts == 1 else f'network = {{ kind = "rail", nic = "{nic}" }}\n'
    print(f'[[candidate]]\nname = "{hosts * 8} GPUs"\nfabric = "{fabric}"\nnodes = {hosts}\n{network}')
for row in rows:
    layers, hidden, heads = MODELS[row["model"]]
    tokens, gpus, micro, turns = (int(row[key]) for key in ("tokens", "gpus", "micro", "turns"))
    batch = micro * turns * gpus
    pure = (gpu, row["model"]) == ("a100", "70b")
    name = f"{row['model']}, {tokens} tokens"
    print(
        "[[job]]",
        f'name = "{name}, {gpus} GPUs"\nframework = "llm-foundry"\ncandidates = ["{gpus} GPUs"]',
        f"global_batch = {batch}\nmicro_batch = {micro}",
        f"model = {{ layers = {layers}, hidden = {hidden}, heads = {heads}, vocab = 50368, seq = {tokens} }}",
        f'precision = "{precision}"\nkernels = "eager"\ndropout = false\nflash_attention = 1\nzero = 3\ngradient_bits = {16 if pure else 32}\nrecompute = "{row["recompute"]}"',
        f"parallel = {{ dp = {gpus} }}\n",
        sep="\n",
    )
    seconds = batch * tokens / (float(row["tokens_per_s"]) * gpus)
    print("[[measured]]", f'candidate = "{gpus} GPUs"', f'job = "{name}, {gpus} GPUs"', f"step_s = {seconds:.6g}\n", sep="\n")
