#!/usr/bin/env python3
"""Writes the figures of measure.py and fsdp.py as a study with measured steps:

    study.py one.jsonl two.jsonl fsdp.jsonl > steps.toml    # by which the curve was set
    study.py fsdp-4.jsonl > four.toml                       # by which nothing was set, as by the next
    study.py one-h100.jsonl fsdp-h100.jsonl > h100.toml
    study.py shares-h100.jsonl > shares-h100.toml           # of those that nothing called beside
"""

import json
import sys

MODELS = {
    "llama-8b": "layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 128256, tied = false",
    "llama-70b": "layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, gated = true, vocab = 128256, tied = false",
    "train-8-layers": "layers = 8, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 32000, tied = false",
    "train-wide": "layers = 3, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, gated = true, vocab = 32000, tied = false",
    "gpt-350m": "layers = 24, hidden = 1024, heads = 16, vocab = 50368, tied = false",
    "gpt-1b": "layers = 24, hidden = 2048, heads = 16, vocab = 50368, tied = false",
    "gpt-3b": "layers = 32, hidden = 2560, heads = 20, vocab = 50368, tied = false",
    "gpt-7b": "layers = 32, hidden = 4096, heads = 32, vocab = 50368, tied = false",
    "llama-70b, 6 layers": "layers = 6, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, gated = true, vocab = 128256, tied = false",
    "train-small": "layers = 24, hidden = 1024, heads = 16, kv_heads = 16, ffn = 2816, gated = true, vocab = 32000, tied = false",
}

HEADER = """# Steps of transformers on one and two H200 (HBM3e, NVLink, driver 580, CUDA 13.0, NCCL 2.28.9, NVLS off), PyTorch 2.11, 2026-11-21.
# How they were timed: measure.py; its lines: one.jsonl, two.jsonl; and fsdp.py (2026-11-22); its lines: fsdp.jsonl. This file: study.py one.jsonl two.jsonl fsdp.jsonl.
# What was launched layer by layer from Python (`eager`) is not here, nor steps of which the longest took twice the shortest.
# What kernels lose to calls beside them: overlap.py; its lines: overlap.jsonl.
# A step of answers is that of requests whose contexts have the given length in the mean: so many tokens are prompts and answers chosen here.
#
#   fabricast calibrate planner/data/h200-steps/steps.toml
"""
OF_FOUR = """# Steps of transformers on four H200, the models and shapes of fsdp.py in steps.toml over twice the GPUs, measured and written as those
# (fsdp.py, 2026-11-22; fsdp-4.jsonl; study.py fsdp-4.jsonl). Nothing that ships was set by them.
#
#   fabricast calibrate planner/data/h200-steps/four.toml
"""
OF_H100 = """# Training steps on one and two H100 (SXM, 80 GB, driver 580, CUDA 13.0, NCCL 2.28.9, NVLS off), PyTorch 2.11, 2026-11-23, the models and
# shapes of steps.toml that fit (fsdp.py ended at a 3B model without room). `measure.py one train`, fsdp.py; study.py one-h100.jsonl
# fsdp-h100.jsonl. Nothing that ships was set by them.
#
#   fabricast calibrate planner/data/h200-steps/h100.toml
"""
OF_SHARES = """# What one rank of a tensor-parallel group computes of layers of five published models, on one H100 each of two at once (SXM, 80 GB, driver 580,
# CUDA 13.0), PyTorch 2.11, 2026-11-24, held for ten seconds: shares.py; its lines of `alone`: shares-h100.jsonl. As models of that width, 256
# micro-batches a step, so that an optimizer hardly counts, which was not measured. Nothing that ships was set by them.
#
#   fabricast calibrate planner/data/h200-steps/shares-h100.toml
"""
print({("shares-h100.jsonl",): OF_SHARES, ("fsdp-4.jsonl",): OF_FOUR, ("one-h100.jsonl", "fsdp-h100.jsonl"): OF_H100}.get(tuple(sys.argv[1:]), HEADER))
lines_of = [json.loads(line) for path in sys.argv[1:] for line in open(path)]
GPU = next(row["gpu"] for row in lines_of if "gpu" in row).split()[1]
MICRO_BATCHES = 256
for row in lines_of:
    if row.get("how") == "alone":
        name = f"{row['model']}, a share of {row['tensor']}"
        shape = ", ".join(f"{key} = {row[word]}" for key, word in [("layers", "layers"), ("hidden", "hidden"), ("heads", "heads"), ("kv_heads", "kv"), ("head_dim", "head"), ("ffn", "ffn")])
        MODELS[name] = f"{shape}, gated = {str(row['gated']).lower()}, vocab = 128"
        row |= dict(what="train", model=name, tp=1, dp=1, requests=row["micro"], accumulate=MICRO_BATCHES, low=0, high=0)
        row["ms"] = row["ms"][1] * row["layers"] * MICRO_BATCHES
    elif row.get("what") in ("share", "product"):
        row.clear()
for gpus in sorted({row["tp"] * row["dp"] for row in lines_of if "ms" in row}):
    print(f'[[candidate]]\nname = "{gpus} x {GPU}"\nfabric = "hgx-{GPU.lower()}"\ngpus = {gpus}\n')
for row in lines_of:
    if "ms" not in row or row.get("how") == "eager" or row["high"] > 2 * row["low"]:
        continue
    model, tp, dp, what = row["model"], row["tp"], row["dp"], row["what"]
    requests, tokens = row["requests"], row["tokens"]
    degrees = f"tp = {tp}, pp = 1, dp = {dp}"
    if what in ("train", "fsdp"):
        turns = row["accumulate"]
        name = f"{model}, tp {tp}, dp {dp}, {requests} x {tokens}" + (f", {turns} turns" if turns > 1 else "")
        lines = [
            'launch = "graph"',
            f"global_batch = {requests * dp * turns}",
            f"micro_batch = {requests}",
            f"model = {{ {MODELS[model]}, seq = {tokens} }}",
            'precision = "bf16"\nflash_attention = true\nbucket_mb = 25',
        ]
        if row.get("how") != "alone":
            lines.append('kernels = "compiled"\ndropout = false')
        if what == "fsdp":
            name = f"{name}, sharded" + (", recomputed" if row["recompute"] == "full" else "")
            lines += ["zero = 3", "gradient_bits = 32", f'recompute = "{row["recompute"]}"']
        figure = "step_s"
    else:
        prompt, output, figure = tokens, 2, "prompt_step_s"
        if what == "answer":
            output = 2 * requests
            prompt, figure = tokens - requests, "answer_step_s"
        of = f"{requests} at {tokens}" if what == "answer" else f"a prompt of {tokens}"
        name = f"{model}, tp {tp}, {of}"
        lines = [
            'kind = "inference"',
            "host_time = { request_ms = 0, prefill_layer_ms = 0, step_ms = 0 }",
            f"concurrency = {requests}\nprompt_tokens = {prompt}\noutput_tokens = {output}\nmax_batched_tokens = 16384",
            f"model = {{ {MODELS[model]} }}",
            'precision = "bf16"',
        ]
    print("[[job]]", f'name = "{name}"', f'candidates = ["{tp * dp} x {GPU}"]', *lines, f"parallel = {{ {degrees} }}\n", sep="\n")
    print("[[measured]]", f'candidate = "{tp * dp} x {GPU}"', f'job = "{name}"', f"{figure} = {row['ms'] / 1e3:.7g}\n", sep="\n")
