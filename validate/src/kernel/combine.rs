//! Kernels that do not depend on a schedule. One reduces two buffers; the other runs the [steps](super::Steps) of any
//! schedule in order, by puts of NVSHMEM's device library. The steps are data; element type and reduction are compiled
//! into the code.

use fabricast_sim::schedule::{DataType, ReduceOp};

use super::element_codes::{check_reducible, operation_code, type_code};
use super::text::{Constants, prelude};
use super::{Alignment, KernelError};

/// Threads per block of the kernels in this module.
pub const COMBINE_THREADS: u32 = 512;

/// CUDA source of the kernel that reduces two buffers into a third, which may be one of them.
const COMBINE: &str = include_str!("combine.cu");

/// Text that includes NVSHMEM's device library without headers of the host compiler. It precedes all other text.
const NVSHMEM: &str = include_str!("nvshmem.cu");

/// CUDA source of the kernel that runs steps.
const STEPS: &str = include_str!("steps.cu");

/// Returns the CUDA source of a kernel `combine_buffers` that reduces two buffers. `capability`: compute capability ×
/// 10.
///
/// # Errors
/// [`KernelError::NoSuchType`] if GPUs of this compute capability cannot reduce the data type.
pub fn combine_text(
    dtype: DataType,
    op: ReduceOp,
    alignment: Alignment,
    capability: u32,
) -> Result<String, KernelError> {
    check_reducible(dtype, capability)?;
    Ok(prelude("two buffers reduced", &constants(dtype, op, alignment)) + COMBINE)
}

/// Returns the CUDA source of a kernel `run_kernel` that runs steps with NVSHMEM's device library and must be linked
/// with it. `capability`: compute capability × 10.
///
/// # Errors
/// [`KernelError::NoSuchType`] if GPUs of this compute capability cannot reduce the data type.
pub fn steps_text(dtype: DataType, op: ReduceOp, alignment: Alignment, capability: u32) -> Result<String, KernelError> {
    check_reducible(dtype, capability)?;
    Ok(NVSHMEM.to_owned() + &prelude("steps by NVSHMEM", &constants(dtype, op, alignment)) + STEPS)
}

fn constants(dtype: DataType, op: ReduceOp, alignment: Alignment) -> Constants {
    vec![
        ("RANKS", 1),
        ("THREADS", COMBINE_THREADS.into()),
        ("UNROLL", 1),
        ("ROWS", 0),
        ("ROW", 0),
        ("CHANNELS", 1),
        ("CARRIER", 2),
        ("TYPE", type_code(dtype)),
        ("OP", operation_code(op)),
        ("ALIGNED", u64::from(alignment == Alignment::Vectors)),
        ("FLUSHES", 1),
        ("RESIDENT", 1),
        ("SHARED", 0),
    ]
}
