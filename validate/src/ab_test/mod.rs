//! Comparison of NCCL with a tuner table against NCCL's default choices on this machine's GPUs, by alternating
//! measurements.
//!
//! NCCL loads a tuner once per process, selected by environment variables. Two processes are therefore started, one
//! with the plugin and one without. Each process uses all GPUs and has its own communicator and a graph of each call.
//! The processes run in turns at each size, so that drift affects both. Two processes with identical settings also
//! differ, because of their memory placement: by up to 4 % for small calls on 2 H200, which alternation does not
//! remove. Several pairs of processes are therefore started, and each process counts as one observation.
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
pub use sides::{ProveError, TestSide, WorkerPair, WorkerSettings, environment};
