//! Codes of element types and reductions in the kernels' prelude, and the GPUs that reduce a type.

use fabricast_sim::schedule::{DataType, ReduceOp};

use super::KernelError;

/// Returns an error if GPUs of this compute capability cannot reduce the data type.
pub(super) fn check_reducible(dtype: DataType, capability: u32) -> Result<(), KernelError> {
    let needed = match dtype {
        DataType::F8e4m3 | DataType::F8e5m2 => 89,
        _ => 0,
    };
    if capability < needed { Err(KernelError::NoSuchType { dtype, capability, needed }) } else { Ok(()) }
}

/// Value of the prelude's constant `OP` for a reduction.
pub(super) fn operation_code(op: ReduceOp) -> u64 {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Prod => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
    }
}

/// Value of the prelude's constant `TYPE` for a data type.
pub(super) fn type_code(dtype: DataType) -> u64 {
    match dtype {
        DataType::F32 => 0,
        DataType::F64 => 1,
        DataType::F16 => 2,
        DataType::Bf16 => 3,
        DataType::F8e4m3 => 4,
        DataType::F8e5m2 => 5,
        DataType::I8 => 6,
        DataType::U8 => 7,
        DataType::I32 => 8,
        DataType::U32 => 9,
        DataType::I64 => 10,
        DataType::U64 => 11,
    }
}
