//! Kernels that are no schedule's own: reducing two buffers, and running the [steps](super::Steps) of any schedule one after
//! the other by puts of NVSHMEM's device library. What differs between schedules is data; type and operation are compiled in.

use fabricast_sim::schedule::{DataType, ReduceOp};

use super::text::{Constants, prelude};
use super::{Alignment, KernelError, number_of_operation, number_of_type, reducible};

/// Threads of a block.
pub const COMBINE_THREADS: u32 = 512;

/// Reduces two buffers into a third, which may be one of them.
const COMBINE: &str = include_str!("combine.cu");

/// Before everything else: the headers of NVSHMEM's device library, for a compiler that has no others.
const NVSHMEM: &str = include_str!("nvshmem.cu");

/// Runs steps.
const STEPS: &str = include_str!("steps.cu");

/// The text of a kernel `combine` that reduces two buffers.
///
/// # Errors
/// [`KernelError::NoSuchType`].
pub fn combine_text(
    dtype: DataType,
    op: ReduceOp,
    alignment: Alignment,
    capability: u32,
) -> Result<String, KernelError> {
    reducible(dtype, capability)?;
    Ok(prelude("two buffers reduced", &constants(dtype, op, alignment)) + COMBINE)
}

/// The text of a kernel `run_kernel` that runs steps with NVSHMEM's device library. It must be linked with that.
///
/// # Errors
/// [`KernelError::NoSuchType`].
pub fn steps_text(dtype: DataType, op: ReduceOp, alignment: Alignment, capability: u32) -> Result<String, KernelError> {
    reducible(dtype, capability)?;
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
        ("TYPE", number_of_type(dtype)),
        ("OP", number_of_operation(op)),
        ("ALIGNED", u64::from(alignment == Alignment::Vectors)),
        ("FLUSHES", 1),
        ("RESIDENT", 1),
        ("SHARED", 0),
    ]
}
