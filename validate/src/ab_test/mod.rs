//! Compares NCCL with a tuner table to NCCL's default choices on this machine's GPUs, by interleaved measurements.
//!
//! NCCL loads a tuner once per process, selected by environment variables. Two processes are therefore started, one
//! with the plugin and one without. Both use all GPUs with a communicator of their own and a graph of each call. One
//! waits while the other runs, and they alternate at each size, so that drift affects both. Two processes with
//! identical settings differ as well, by their memory placement: by up to 4 % for small calls on 2 H200, which
//! alternation does not remove. Several pairs of processes are therefore started, and each process counts as one
//! observation.
//!
//! ```text
//! message   messages between the program and its processes
//! side      a worker process
//! sides     both worker processes, as seen by the program
//! logged    NCCL's choices, from its log
//! rank_sum  test whether one side is slower than chance explains
//! ```

pub mod logged;
mod message;
pub mod rank_sum;
mod side;
mod sides;

pub use message::Trial;
pub use side::serve;
pub use sides::{ProveError, Variant, WorkerPair, WorkerSettings, environment};
