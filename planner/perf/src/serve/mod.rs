//! Performance of inference jobs: time to first token (TTFT), time per output token (TPOT) and throughput.
//!
//! ```text
//! Serving × Layout ─► steady_state: composition of batches ─► kernels ─► Efficiency ─┐
//!                                                        └──► traffic ─► cost model ─┴─► Step, Service
//! ```
//!
//! Requests that arrive at a rate are simulated one by one (`open_loop`), in steps of the same kernels and calls.
//!
//! Prefill and decode on separate GPUs are two jobs in sequence with a transfer between them (`disaggregated`).
//!
//! Kernel times use the same efficiency curve as training. Collectives use `plan` and the simulator, with all groups
//! concurrent. Kernels and calls of a step are sequential, as in vLLM. The host's times are those of the job
//! ([`HostTimes`](fabricast_workload::job::HostTimes)).
//!
//! With pipeline parallelism each stage processes a different stream of requests, as vLLM runs as many concurrent
//! batches as there are stages. A stream's step passes through all stages, and its next step starts when the slowest
//! stage has processed all streams.

mod adapters;
mod attention_context;
mod batch;
mod closed_loop;
mod custom_all_reduce;
mod disaggregated;
mod kernels;
mod open_loop;
mod prefill_first;
mod request_round;
mod search;
mod service;
mod steady_state;
mod step_costs;
mod stream_step;
mod traffic;

pub use attention_context::AttentionContext;
pub use disaggregated::{DisaggregatedService, PoolService, TransferService, check_pools};
pub use kernels::{AttentionKernel, Work, chosen_experts, embedding, layer, logits};
pub use open_loop::{LatencySummary, RequestLatencies};
pub use search::{ServiceRun, best_service, mean_step, service_without_memory_limit, step_timelines};
pub use service::{Service, calls, exchanges, simulate_service, timelines};
pub use steady_state::{Load, StartTimes, SteadyBatch, StepTokens};
pub use step_costs::StepCosts;
pub use traffic::{expert_calls, traffic};

#[cfg(test)]
pub(crate) mod tests;
