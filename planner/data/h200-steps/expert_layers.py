#!/usr/bin/env python3
"""Measures layers of Megatron Core with Transformer Engine, with experts and without: one JSON line a case.

    torchrun --nproc-per-node GPUS expert_layers.py > layers.jsonl     (expert-layers.csv has its rows)

Needs megatron-core 0.16.1, transformer-engine 2.11 with its PyTorch extension, and one GPU a process.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_config import TransformerConfig

SMALL = {"shape": "small", "hidden": 1024, "ffn": 512, "heads": 8, "groups": 4, "head_dim": 128, "tokens": 256, "topk": 2}
QWEN3 = {"shape": "qwen3", "hidden": 2048, "ffn": 768, "heads": 32, "groups": 4, "head_dim": 128, "tokens": 4096, "topk": 8}
GPT_OSS = {"shape": "gpt-oss", "hidden": 2880, "ffn": 2880, "heads": 64, "groups": 8, "head_dim": 64, "tokens": 4096, "topk": 4}
# Formats of Megatron Core's recipes for GEMMs in 8 bits.
FORMATS = {"tensorwise": "hybrid", "delayed": "hybrid", "blockwise": "e4m3"}


def cases():
    for precision in ("bf16", "tensorwise", "blockwise", "delayed"):
        for experts in (0, 1, 2, 4, 8, 16, 32):
            yield {**SMALL, "experts": experts, "precision": precision, "sequences": 1}
    for precision in ("bf16", "tensorwise"):
        for sequences in (1, 2, 4):
            yield {**QWEN3, "experts": 16, "precision": precision, "sequences": sequences}
    for sequences in (1, 4):
        yield {**GPT_OSS, "experts": 16, "precision": "bf16", "sequences": sequences}


def configuration(case, layers, ranks):
    settings = {
        "num_layers": layers, "hidden_size": case["hidden"], "ffn_hidden_size": case["ffn"], "num_attention_heads": case["heads"],
        "num_query_groups": case["groups"], "kv_channels": case["head_dim"], "bf16": True, "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16, "normalization": "RMSNorm", "gated_linear_unit": True, "activation_func": F.silu,
        "add_bias_linear": False, "hidden_dropout": 0.0, "attention_dropout": 0.0, "bias_activation_fusion": True,
        "masked_softmax_fusion": True, "gradient_accumulation_fusion": True,
    }  # fmt: skip
    if case["experts"]:
        settings |= {
            "num_moe_experts": case["experts"] * ranks, "moe_router_topk": case["topk"], "moe_ffn_hidden_size": case["ffn"], "moe_grouped_gemm": True,
            "moe_token_dispatcher_type": "alltoall", "moe_permute_fusion": True, "moe_router_fusion": True, "moe_router_dtype": "fp32",
            "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 1e-3, "moe_router_force_load_balancing": True,
            "expert_model_parallel_size": ranks,
        }  # fmt: skip
    if case["precision"] != "bf16":
        settings |= {"fp8": FORMATS[case["precision"]], "fp8_recipe": case["precision"]}
    return TransformerConfig(**settings)


def measure(case, layers, ranks, repetitions):
    config = configuration(case, layers, ranks)
    spec = get_gpt_layer_with_transformer_engine_spec(num_experts=config.num_moe_experts, moe_grouped_gemm=bool(case["experts"]))
    block = TransformerBlock(config, spec, post_layer_norm=False).cuda()
    for parameter in block.parameters():
        parameter.main_grad = torch.zeros(parameter.shape, dtype=torch.float32, device="cuda")
        parameter.grad_added_to_main_grad = False
    inputs = torch.randn(case["tokens"], case["sequences"], case["hidden"], device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn_like(inputs)

    def forward():
        return block(inputs, None)

    def both():
        forward().backward(gradient)

    def layer_ms(work, count=6):
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            work()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin) / count / layers

    for _ in range(5):
        both()
    times, forward_times = [], []
    for _ in range(repetitions):
        times.append(layer_ms(both))
        forward_times.append(layer_ms(forward))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        both()
        torch.cuda.synchronize()
    kernels = [event.device_time_total for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return {
        **case, "ranks": ranks, "layer_ms": statistics.median(times), "low_ms": min(times), "high_ms": max(times),
        "forward_ms": statistics.median(forward_times), "kernels": len(kernels) / layers, "kernel_ms": sum(kernels) / 1e3 / layers,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=9)
    arguments = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(expert_model_parallel_size=ranks)
    model_parallel_cuda_manual_seed(1)
    for case in cases():
        if case["experts"] * ranks == 1:
            continue  # Megatron Core refuses one expert.
        row = measure(case, arguments.layers, ranks, arguments.repetitions)
        torch.cuda.empty_cache()
        if rank == 0:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
