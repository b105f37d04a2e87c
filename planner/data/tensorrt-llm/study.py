#!/usr/bin/env python3
"""Writes rows of rows.csv as a study with measured throughput, of some GPUs and of models with experts or without:

    study.py h100,h200 dense > hopper.toml; study.py b200,gb200 dense > blackwell.toml; study.py h100,h200,b200,gb200 experts > experts.toml

Most requests in flight and tokens of a step are those that trtllm-bench finds (tensorrt_llm/bench/build/tuning.py, commit 04cba882:
calc_engine_setting, finetune_setting: by the memory of all GPUs together, also where each has requests of its own; latent keys and values
by what is kept of them), requests those that the pages state by length. Memory is filled to 0.95, "in many cases", as the pages say, and
keys and values have 8 bits, as in ModelOpt's checkpoints.
"""

import csv
import math
import sys
from pathlib import Path

QWEN3 = "kv_heads = 4, head_dim = 128, ffn = {}, gated = true, vocab = 151936, tied = false, experts = 128, experts_per_token = 8"
LLAMA3 = "kv_heads = 8, ffn = {}, gated = true, vocab = 128256, tied = false"
LATENT = "{ q_lora_rank = 1536, kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128 }"
# As their configurations on Hugging Face have them; parameters, and elements of keys and values of a token. DeepSeek's three dense layers
# are taken as the others.
MODELS = {
    "Llama-3.1-8B": ("layers = 32, hidden = 4096, heads = 32, " + LLAMA3.format(14336), 8.03e9, 2 * 32 * 8 * 128),
    "Llama-3.3-70B": ("layers = 80, hidden = 8192, heads = 64, " + LLAMA3.format(28672), 70.6e9, 2 * 80 * 8 * 128),
    "Llama-3.1-405B": ("layers = 126, hidden = 16384, heads = 128, " + LLAMA3.format(53248), 405.9e9, 2 * 126 * 8 * 128),
    "Qwen3-30B-A3B": ("layers = 48, hidden = 2048, heads = 32, " + QWEN3.format(768), 30.5e9, 2 * 48 * 4 * 128),
    "Qwen3-235B-A22B": ("layers = 94, hidden = 4096, heads = 64, " + QWEN3.format(1536), 235e9, 2 * 94 * 4 * 128),
    "DeepSeek-R1": (
        "layers = 61, hidden = 7168, heads = 128, ffn = 2048, gated = true, vocab = 129280, tied = false, experts = 256, experts_per_token = 8, "
        f"shared_experts = 1, latent = {LATENT}",
        671e9,
        61 * 576,
    ),
}
# Fabric, GPUs of a host, and GB of a GPU (1e9 bytes), as it says itself.
GPUS = {"h100": ("hgx-h100", 8, 85.0), "h200": ("hgx-h200", 8, 150.1), "b200": ("hgx-b200", 8, 191.5), "gb200": ("gb200-nvl72", 4, 198.6)}
BYTES = {"fp8": 1, "nvfp4": 0.5}
# By prompt and answer.
REQUESTS = {
    **{(128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000, (1000, 2000): 1500},
    **{(1024, 1024): 3000, (1024, 8192): 1500, (1024, 32768): 1000, (2048, 128): 3000, (2048, 2048): 1500, (5000, 500): 1500},
    **{(8192, 1024): 1500, (20000, 2000): 1000, (32768, 1024): 1000},
}


def up(number, step):
    return step * math.ceil(number / step)


def limits(row):
    """Requests of a replica and tokens of a step, at most."""
    _, parameters, elements = MODELS[row["model"]]
    prompt, output = int(row["prompt"]), int(row["output"])
    memory = int(row["gpus"]) * GPUS[row["gpu"]][2] * 1e9 - parameters * BYTES[row["precision"]]
    requests = min(0.95 * memory / (elements * (prompt + output)), 4096)
    tokens = min(requests * (1 + prompt / output), 32768)
    at_once = max(64, up(requests, 32)) if requests < 256 else up(requests, 128 if requests < 1024 else 256)
    return at_once, max(2048, up(tokens, 256 if tokens < 4096 else 512 if tokens < 8192 else 1024))


def main():
    gpus_of, kind = sys.argv[1:]
    lines = [line for line in Path(__file__).with_name("rows.csv").read_text().splitlines() if not line.startswith("#")]
    is_wanted = lambda row: row["gpu"] in gpus_of.split(",") and ("experts" in MODELS[row["model"]][0]) == (kind == "experts")
    rows = [row for row in csv.DictReader(lines) if is_wanted(row)]
    print(f"# {len(rows)} figures of TensorRT-LLM that NVIDIA published (rows.csv beside this file says which), by study.py {gpus_of} {kind}.\n")
    for gpu, gpus in sorted({(row["gpu"], int(row["gpus"])) for row in rows}):
        fabric, host, _ = GPUS[gpu]
        print(f'[[candidate]]\nname = "{gpus} {gpu.upper()}"\nfabric = "{fabric}"\nnodes = {-(-gpus // host)}\ngpus = {min(gpus, host)}\n')
    for row in rows:
        gpus, tensor, expert = (int(row[key]) for key in ("gpus", "tp", "ep"))
        prompt, output = int(row["prompt"]), int(row["output"])
        at_once, tokens = limits(row)
        machine = f"{gpus} {row['gpu'].upper()}"
        name = f"{row['model']} in {row['precision']} on {machine}, {prompt}/{output}, page {row['page']}"
        print(
            "[[job]]",
            f'name = "{name}"\ncandidates = ["{machine}"]',
            'kind = "inference"',
            f"model = {{ {MODELS[row['model']][0]} }}",
            f'precision = "{row["precision"]}"\nkv_precision = "fp8"',
            f"prompt_tokens = {prompt}\noutput_tokens = {output}",
            f"requests = {REQUESTS[prompt, output]}\nmax_num_seqs = {at_once}\nmax_batched_tokens = {tokens}",
            f"gpu_memory_utilization = 0.95\nparallel = {{ tp = {tensor}, dp = {gpus // tensor}, ep = {expert} }}\n",
            sep="\n",
        )
        print("[[measured]]", f'candidate = "{machine}"', f'job = "{name}"', f"tokens_per_s = {row['tokens_per_s']}\n", sep="\n")


if __name__ == "__main__":
    main()
