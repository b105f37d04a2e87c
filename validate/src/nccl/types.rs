//! Maps element types and reductions to NCCL's codes (`ncclDataType_t` and `ncclRedOp_t` in `nccl.h`).

use std::ffi::c_int;

use fabricast_sim::schedule::{DataType, ReduceOp};

/// Returns NCCL's code of an element type (`ncclDataType_t`).
pub(super) fn data_type(dtype: DataType) -> c_int {
    match dtype {
        DataType::I8 => 0,
        DataType::U8 => 1,
        DataType::I32 => 2,
        DataType::U32 => 3,
        DataType::I64 => 4,
        DataType::U64 => 5,
        DataType::F16 => 6,
        DataType::F32 => 7,
        DataType::F64 => 8,
        DataType::Bf16 => 9,
        DataType::F8e4m3 => 10,
        DataType::F8e5m2 => 11,
    }
}

/// Returns NCCL's code of a reduction (`ncclRedOp_t`).
pub(super) fn operation(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Prod => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
    }
}
