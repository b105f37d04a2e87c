//! NCCL with a tuner's table against NCCL by its own choice, on this machine's GPUs, in turns.
//!
//! A tuner is loaded by the environment of a process, once. So two processes are started, one with the plugin and one without; both
//! hold all GPUs and a communicator, and of each call a graph. One of them waits while the other runs, and they take turns at each
//! size, so that whatever drifts, drifts for both. Two processes that run the same thing differ too, by where their memory came to
//! lie: on 2 H200 by up to 4 % for small calls, which turns do not show. So several pairs of processes are started, and
//! a process counts as one observation.
//!
//! ```text
//! message   what the program and its processes say to each other
//! side      such a process, from its own side
//! sides     both, from the program's
//! logged    what NCCL logged of its choices
//! rank_sum  whether one side was slower, or the noise
//! ```

pub mod logged;
mod message;
pub mod rank_sum;
mod side;
mod sides;

pub use message::Trial;
pub use side::serve;
pub use sides::{ProveError, Setting, Side, Sides, environment};
