//! Completion time of a training step: kernel times from an efficiency curve, call times from a communication
//! cost model, a pipeline schedule, gradient reduction and the optimizer.
//!
//! ```text
//! Job × Layout ─► kernels ─► Efficiency ─┐
//!            └──► traffic ─► cost model ─┴─► passes of stages ─► Pipeline ─► gradients, optimizer ─► Step
//! ```
//!
//! Calls of tensor, expert and context groups lie on the critical path of the kernels that need them and are exposed.
//! Gradient reduction (`gradients`), weights gathered ahead of their layer, pipeline point-to-point transfers and the
//! keys and values of the next ring-attention round overlap with computation, unless the job turns overlap off. Kernels
//! that overlap with gradients, weights, keys or values are slowed by them (`interference`). Pipeline transfers, and
//! weights that arrive during the first forward pass, slow no kernel.

mod adapter_kernels;
mod block_scheduling;
mod call_costs;
mod data_parallel_single_process;
mod efficiency;
mod elementwise;
mod expert_launch;
mod expert_overlap;
mod gpu_efficiency;
mod gradient_buckets;
mod gradients;
mod host_launch;
mod idle_gpus;
mod interference;
mod kernel;
mod kernels;
mod machine;
mod offload;
mod optimizer;
mod passes;
mod peak_rates;
mod pipeline;
mod prediction;
mod search;
mod shortlist;
mod single_gpu;
mod software_traffic;
mod step_calls;
mod step_lower_bound;
mod step_result;
mod step_timing;
mod stream_overlap;
mod tensor_overlap;
mod timeline;

pub use block_scheduling::BlockScheduling;
pub use efficiency::Efficiency;
pub(crate) use expert_overlap::{ExpertExchanges, LayerCompute, half_batch_cost};
pub use gpu_efficiency::GemmEvidence;
pub use host_launch::{ERROR_PERCENT as HOST_ERROR_PERCENT, host_time};
pub use idle_gpus::{active_ranks, divisible_batch};
pub(crate) use interference::{OverlapCost, OverlappedCall};
pub(crate) use kernel::padded_rows;
pub use kernel::{Kernel, KernelKind, PassKernels};
pub use kernels::{embedding, layer, logits};
pub use machine::Machine;
pub use offload::check_tier;
pub use optimizer::optimizer;
pub use peak_rates::PeakRates;
pub use prediction::{step, step_timeline};
pub use search::{best_step, best_step_timeline, unbounded_step};
pub(crate) use shortlist::{indivisible_error, shortlist};
pub use step_calls::{step_calls, step_exchanges};
pub use step_result::{Share, Step, TimeError};
pub(crate) use timeline::TimelinePart;
pub use timeline::{Activity, Interval, Timeline, Track};

#[cfg(test)]
pub(crate) mod tests;
