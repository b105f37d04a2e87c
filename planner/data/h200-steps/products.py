#!/usr/bin/env python3
"""Times matrix products in 16 and in 8 bits on one GPU: of one matrix, and of an expert's matrix for each group of rows.

    python3 products.py > products.jsonl        # three minutes

Products are those of layers of Llama 3 and, by one kernel for all experts, of Qwen3 and DeepSeek-V3. Those in 8 bits have a factor for
each row and each column, and results in 16 bits (`torch._scaled_mm`, `torch._scaled_grouped_mm`). Operands are random; as many copies of
the weights are taken in turn as do not fit the cache. A figure is the mean of a CUDA graph that runs for a tenth of a second at least,
so that clocks are those of such work. Prints a line of JSON a figure.
"""

import json

import torch

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
CACHE = 150_000_000
# Columns, inner.
DENSE = [(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672), (6144, 4096), (28672, 4096), (4096, 14336), (4096, 2048), (2048, 768)]
ROWS = [16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
# Experts, columns, inner.
GROUPED = [(128, 1536, 2048), (128, 2048, 768), (32, 3072, 4096), (32, 4096, 1536), (32, 4096, 7168), (32, 7168, 2048)]
EACH = [4, 16, 32, 64, 96, 128, 192, 256, 512, 1024]


def say(**figure):
    print(json.dumps(figure), flush=True)


def seconds(runs):
    """Of one of them, all of them being run in turn."""
    stream = torch.cuda.Stream()
    # Operands are made on another stream.
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for run in runs:
            run()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream):
            for run in runs:
                run()

        def timed(times):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(times):
                captured.replay()
            end.record()
            torch.cuda.synchronize()
            return begin.elapsed_time(end) / times / len(runs) / 1e3

        first = timed(2)
        return timed(max(3, int(0.1 / (first * len(runs)))))


def new(*size, of):
    return torch.randn(size, dtype=BF16, device="cuda").to(of)


def ones(*size):
    return torch.ones(size, dtype=torch.float32, device="cuda")


def dense(of, rows, columns, inner):
    wide = 1 if of is FP8 else 2
    copies = max(2, -(-2 * CACHE // (columns * inner * wide)))
    a = new(rows, inner, of=of)
    weights = [new(columns, inner, of=of).t() for _ in range(copies)]
    if of is BF16:
        return [lambda w=w: a @ w for w in weights]
    by_row, by_column = ones(rows, 1), ones(1, columns)
    return [lambda w=w: torch._scaled_mm(a, w, by_row, by_column, out_dtype=BF16, use_fast_accum=True) for w in weights]


def grouped(of, each, experts, columns, inner):
    wide = 1 if of is FP8 else 2
    copies = max(2, -(-2 * CACHE // (experts * columns * inner * wide)))
    rows = each * experts
    a = new(rows, inner, of=of)
    weights = [new(experts, columns, inner, of=of).transpose(1, 2) for _ in range(copies)]
    ends = torch.arange(each, rows + 1, each, dtype=torch.int32, device="cuda")
    if of is BF16:
        return [lambda w=w: torch._grouped_mm(a, w, offs=ends) for w in weights]
    by_row, by_column = ones(rows), ones(experts, columns)
    scaled = torch._scaled_grouped_mm
    return [lambda w=w: scaled(a, w, by_row, by_column, offs=ends, out_dtype=BF16, use_fast_accum=True) for w in weights]


def main():
    torch.manual_seed(1)
    say(gpu=torch.cuda.get_device_name(), torch=torch.__version__, cuda=torch.version.cuda)
    for bits, of in [(16, BF16), (8, FP8)]:
        cases = [("product", dense, (rows, *shape)) for shape in DENSE for rows in ROWS]
        cases += [("experts", grouped, (each, *shape)) for shape in GROUPED for each in EACH]
        for what, make, shape in cases:
            try:
                took = seconds(make(of, *shape))
            except Exception as error:  # a figure less
                say(what=what, bits=bits, of=shape, failed=str(error)[:200])
                continue
            say(what=what, bits=bits, of=shape, us=round(took * 1e6, 3))
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
