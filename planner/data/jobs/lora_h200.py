#!/usr/bin/env python3
"""Writes lora-h200.toml from the measurements of a GPU.

Usage: lora_h200.py MEASURED.json > lora-h200.toml
"""
import json
import sys

SHAPES = {
    "small": "layers = 16, hidden = 2048, heads = 16, kv_heads = 16, ffn = 8192, gated = false, biases = false, vocab = 32000, tied = false, seq = 2048",
    "eight": "layers = 8, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 128256, tied = false, seq = 2048",
}
HEAD = """# LoRA on one H200 (2026-11-29, driver 580, CUDA 13.0, PyTorch 2.11, 16 CPU cores): training steps of transformers written out in PyTorch in bf16 with AdamW of bf16 moments (fused), eager and with compiled layers, and copies of adapters from host memory; medians of ten to twelve repetitions.
# Shapes: 0.9B (RMS norms, rotary embedding, feed-forward with two matrices) and eight layers of Llama 3 8B. Adapters in bf16 on q, k, v and o or on all linear layers.
# Eager steps of one sequence of the 0.9B model set the host time of an adapter, those of pageable memory the bandwidth of such copies; nothing else is set by these figures.
# This file: lora_h200.py.

[[candidate]]
name = "1 x H200"
fabric = "hgx-h200"
gpus = 1
"""


def training(row):
    name = f"{row['shape']} {row['mode']} b{row['batch']}"
    lines = []
    if row.get("rank"):
        name += f" r{row['rank']} {row['targets']}"
        lines.append(f"lora = {{ rank = {row['rank']}, targets = \"{row['targets']}\" }}")
    if row.get("checkpointed"):
        name += " checkpointed"
        lines.append('recompute = "early_stop"')
    if row.get("compiled"):
        name += " compiled"
    lines.append(f"kernels = \"{'compiled' if row.get('compiled') else 'eager'}\"")
    text = f"""
[[job]]
name = "{name}"
global_batch = {row['batch']}
micro_batch = {row['batch']}
model = {{ {SHAPES[row['shape']]} }}
precision = "bf16"
moment_bits = 16
master_weights = false
gradient_addition = "kernel"
flash_attention = true
dropout = false
parallel = {{ tp = 1 }}
"""
    text += "\n".join(lines) + "\n"
    return text + f"""
[[measured]]
candidate = "1 x H200"
job = "{name}"
step_s = {row['median_ms'] / 1e3:.4f}
"""


def swap(row):
    memory = "pinned" if row["pinned"] else "pageable"
    name = f"adapter of rank {row['rank']}, {memory}"
    return f"""
[[job]]
name = "{name}"
kind = "inference"
concurrency = 1
prompt_tokens = 512
output_tokens = 16
model = {{ layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 128256, tied = false }}
precision = "bf16"
adapters = {{ rank = {row['rank']}, targets = "all", number = 2, resident = 1, host_memory = "{memory}" }}
parallel = {{ tp = 1 }}

[[measured]]
candidate = "1 x H200"
job = "{name}"
adapter_swap_s = {row['wall_ms'] / 1e3:.5f}
"""


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        parts = json.load(file)["parts"]
    text = HEAD
    for row in parts:
        # Adapters in 32 bits are not modelled.
        if row["part"] == "training" and row.get("dtype") != "fp32":
            text += training(row)
        if row["part"] == "swap" and not row["flat"]:
            text += swap(row)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
