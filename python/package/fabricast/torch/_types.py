"""Element types and reductions of the kernels."""

from __future__ import annotations

import torch
import torch.distributed as dist

REDUCIBLE = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.uint32: "u32",
    torch.int64: "i64",
    torch.uint64: "u64",
}
"""Element types that kernels reduce, with their names."""

_OPERATIONS = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def operation_name(op: object) -> str | None:
    """Returns the name of a reduction; ``None`` if kernels do not compute it, for example ``ReduceOp.AVG``."""
    if isinstance(op, str):
        return op if op in _OPERATIONS else None
    return next((name for name, operation in _OPERATIONS.items() if op == operation), None)


def torch_operation(op: object) -> object:
    """Returns a reduction as ``torch.distributed`` takes it.

    Raises:
        ValueError: There is no reduction of this name.
    """
    if not isinstance(op, str):
        return op
    if op == "avg":
        return dist.ReduceOp.AVG
    if op not in _OPERATIONS:
        raise ValueError(f"there is no reduction {op!r}: expected one of {', '.join(_OPERATIONS)}, avg")
    return _OPERATIONS[op]
