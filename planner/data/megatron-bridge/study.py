#!/usr/bin/env python3
"""Writes rows of a table as a study with measured steps, of some GPUs and of models with experts or without:

    study.py rows.csv h100 dense > h100.toml; study.py rows.csv b200,gb200 dense > blackwell.toml; study.py rows.csv gb300 dense > gb300.toml
    study.py rows.csv h100,b200,b300,gb200,gb300 experts > experts.toml
    study.py dgx-cloud.csv h100 dense > dgx-cloud.toml
"""

import csv
import sys
from pathlib import Path

# As their configurations on Hugging Face and in Megatron Bridge have them. Tokens of a sequence are those of the tables.
LLAMA3 = "ffn = {}, kv_heads = 8, gated = true, vocab = 128256, tied = false, seq = 8192"
QWEN3 = "kv_heads = 4, head_dim = 128, ffn = {}, gated = true, vocab = 151936, tied = false, experts = 128, experts_per_token = 8, seq = 4096"
MODELS = {
    "GPT3-175B": "layers = 96, hidden = 12288, heads = 96, vocab = 51200, seq = 2048",
    "Llama3-8B": "layers = 32, hidden = 4096, heads = 32, " + LLAMA3.format(14336),
    "Llama3-70B": "layers = 80, hidden = 8192, heads = 64, " + LLAMA3.format(28672),
    "Llama3-405B": "layers = 126, hidden = 16384, heads = 128, " + LLAMA3.format(53248),
    "Nemotron-15B": "layers = 32, hidden = 6144, heads = 48, kv_heads = 8, ffn = 24576, vocab = 256000, tied = false, seq = 4096",
    "Nemotron-340B": "layers = 96, hidden = 18432, heads = 96, kv_heads = 8, ffn = 73728, vocab = 256000, tied = false, seq = 4096",
    "Mixtral-8x7B": "layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 32000, tied = false, seq = 4096, experts = 8, experts_per_token = 2",
    "Qwen3-30B-A3B": "layers = 48, hidden = 2048, heads = 32, " + QWEN3.format(768),
    "Qwen3-235B-A22B": "layers = 94, hidden = 4096, heads = 64, " + QWEN3.format(1536),
    # With the layer that predicts a second token (not its own product with all words), and the three dense layers as the others.
    "DeepSeek-V3": "layers = 62, hidden = 7168, heads = 128, ffn = 2048, gated = true, vocab = 129280, tied = false, seq = 4096, experts = 256, experts_per_token = 8, shared_experts = 1, latent = { q_lora_rank = 1536, kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128 }",
    "GPT-OSS-120B": "layers = 36, hidden = 2880, heads = 64, kv_heads = 8, head_dim = 64, ffn = 2880, gated = true, vocab = 201088, tied = false, seq = 4096, experts = 128, experts_per_token = 4",
}
# Fabric, the GPUs of a host and of an NVLink domain, and what joins domains.
MACHINES = {
    "h100": ("hgx-h100", 8, 8, "400 Gb/s"),
    "b200": ("hgx-b200", 8, 8, "400 Gb/s"),
    "b300": ("hgx-b300", 8, 8, "800 Gb/s"),
    "gb200": ("gb200-nvl72", 4, 72, "400 Gb/s"),
    "gb300": ("gb300-nvl72", 4, 72, "800 Gb/s"),
}

table, gpus_of, kind = sys.argv[1:]
lines = [line for line in Path(__file__).with_name(table).read_text().splitlines() if not line.startswith("#")]
is_wanted = lambda row: row["gpu"] in gpus_of.split(",") and (int(row["ep"]) > 1) == (kind == "experts")
rows = [row for row in csv.DictReader(lines) if is_wanted(row)]

print(f"# {len(rows)} training runs that NVIDIA published ({table} beside this file says which), by study.py {table} {gpus_of} {kind}.\n")
if "h100" not in gpus_of and kind == "dense":
    print("# These steps do not tell what memory and starts of kernels take: as on H200 (planner/data/h200-steps).")
    print('[efficiency]\nmemory = 0.8925\nstream = 0.5009\nstart = "5.160 us"\n')
for gpu, gpus in sorted({(row["gpu"], int(row["gpus"])) for row in rows}):
    fabric, host, domain, nic = MACHINES[gpu]
    network = "" if gpus <= domain else f'network = {{ kind = "rail", nic = "{nic}" }}\n'
    # Of several racks 64 GPUs each: whole powers of two, with spares.
    hosts = gpus // host if gpus <= domain or domain == host else -(-gpus // 64) * domain // host
    print(f'[[candidate]]\nname = "{gpus} {gpu.upper()}"\nfabric = "{fabric}"\nnodes = {hosts}\n{network}')
for row in rows:
    gpu, model = row["gpu"], row["model"]
    _, host, domain, _ = MACHINES[gpu]
    number = {key: int(row[key]) for key in ("gpus", "batch", "micro", "fsdp", "tp", "pp", "cp", "vp", "ep")}
    text = MODELS[model]
    # Two runs of 25.11 had longer sequences.
    if model == "GPT-OSS-120B" and row["container"] == "25.11" and gpu.startswith("gb"):
        text = text.replace("seq = 4096", "seq = 8192")
    tokens = int(text.split("seq = ")[1].split(",")[0])
    data = number["gpus"] // (number["tp"] * number["pp"] * number["cp"])
    layers = int(text.split("layers = ")[1].split(",")[0])
    stretches = number["pp"] * number["vp"]
    # Where layers alone do not divide evenly, words and scores take a layer's place (Megatron's account_for_*_in_pipeline_split).
    ends = ", ends_as_layers = true" if layers % stretches else ""
    # Megatron Core's default: as many parameters, the more the more ranks reduce them together (DistributedDataParallelConfig.bucket_size).
    bucket = "" if number["fsdp"] else f"bucket_mb = {max(40_000_000, 1_000_000 * data * number['cp']) * 2 >> 20}\n"
    name = f"{model} in {row['precision']}, {row['container']}, {number['gpus']} {gpu.upper()}"
    racks = ",".join(f"{rack * domain}-{rack * domain + 63}" for rack in range(-(-number["gpus"] // 64)))
    placement = f'placement = "{racks}"\n' if number["gpus"] > domain > host else ""
    # Experts over tensor-parallel ranks, too, are whole (Megatron Bridge's recipes: expert_tensor_parallel_size = 1).
    sequence = ("true" if number["tp"] > 1 else "false") + (", etp = 1" if number["tp"] > 1 and number["ep"] > 1 else "")
    print(
        "[[job]]",
        f'name = "{name}"\nframework = "megatron-bridge"\ncandidates = ["{number["gpus"]} {gpu.upper()}"]',
        f"global_batch = {number['batch']}\nmicro_batch = {number['micro']}",
        f"model = {{ {text} }}",
        f'{placement}precision = "{row["precision"].removeprefix("mx")}"\nflash_attention = true\n{bucket}zero = {3 if number["fsdp"] else 1}\ngradient_bits = 16'
        + "".join(f'\n{key} = "{row[key]}"' for key in ("launch", "dispatcher") if row.get(key))
        + ("\nexpert_overlap = true" if row.get("overlap") else "")
        + ("\ntensor_overlap = true" if number["tp"] > 1 and number["ep"] == 1 else ""),
        f"parallel = {{ tp = {number['tp']}, pp = {number['pp']}, dp = {data}, cp = {number['cp']}, ep = {number['ep']}, "
        f"interleave = {number['vp']}, sequence = {sequence}{ends} }}\n",
        sep="\n",
    )
    # Some tables have the seconds of a step, others the tokens a second of each GPU.
    seconds = float(row["seconds"]) if "seconds" in row else number["batch"] * tokens / (float(row["tokens_per_s"]) * number["gpus"])
    print("[[measured]]", f'candidate = "{number["gpus"]} {gpu.upper()}"', f'job = "{name}"', f"step_s = {seconds:.6g}\n", sep="\n")
