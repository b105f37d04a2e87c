#!/usr/bin/env python3
"""Share of the links and time per tensor of transfers of keys and values, fitted to each published table of kv-transfer.toml, and the errors of the other.

Usage: kv_transfer.py

Fits the logarithms of times by least squares: time = tensors × post + bytes ÷ (rate × 0.98 × share), on links of 25 GB/s for each rank (H800) and of 50 GB/s for
two ranks (H20). The shipped values are the geometric means of both fits (planner/perf/src/serve/disaggregated/kv_transfer.rs).
"""
import math
import pathlib
import tomllib

FOLDER = pathlib.Path(__file__).parent
EFFICIENCY = 0.98
# Bytes of a token on a rank, tensors of a rank, bytes per second of a rank's share of a NIC.
TABLES = {"vLLM": (147456 / 8, 72, 25e9), "SGLang": (385024 / 8, 188, 25e9)}


def predicted(table, tokens, share, post):
    token_bytes, tensors, rate = TABLES[table]
    return tensors * post * 1e-6 + tokens * token_bytes / (rate * EFFICIENCY * share)


def errors(table, rows, share, post):
    return [predicted(table, tokens, share, post) / time - 1 for tokens, time in rows]


def fit(table, rows):
    candidates = ((share / 1000, post / 20) for share in range(600, 1001) for post in range(0, 400))
    return min(candidates, key=lambda pair: sum(math.log(1 + error) ** 2 for error in errors(table, rows, *pair)))


def main():
    source = tomllib.loads((FOLDER / "kv-transfer.toml").read_text())
    tokens = {job["name"]: job["prompt_tokens"] for job in source["job"]}
    rows = {table: [(tokens[row["job"]], row["kv_transfer_s"]) for row in source["measured"] if row["job"].startswith(table)] for table in TABLES}
    fits = {table: fit(table, rows[table]) for table in TABLES}
    share, post = (math.sqrt(math.prod(pair)) for pair in zip(*fits.values()))
    print(f"shipped: share {share:.3f}, {post:.2f} µs per tensor")
    combined = []
    for table, other in (("vLLM", "SGLang"), ("SGLang", "vLLM")):
        left_out = errors(other, rows[other], *fits[table])
        combined += left_out
        held_out = sorted(abs(error) for error in left_out)
        shipped = sorted(abs(error) for error in errors(other, rows[other], share, post))
        print(f"{table}: share {fits[table][0]:.3f}, {fits[table][1]:.2f} µs; {other} by it: median {100 * held_out[4]:.0f} %, largest {100 * held_out[-1]:.0f} %; as shipped {100 * shipped[4]:.0f}, {100 * shipped[-1]:.0f} %")
    held_out = sorted(map(abs, combined))
    print(f"both left out in turn: median {100 * held_out[9]:.0f} %, p90 {100 * held_out[16]:.0f} %, predicted / measured {1 + sorted(combined)[9]:.2f}")


if __name__ == "__main__":
    main()
