//! NCCL with a tuner's table against NCCL by its own choice, on this machine's GPUs, in turns.
//!
//! A tuner is loaded by the environment of a process, once. So two processes are started, one with the plugin and one without; both
//! hold all GPUs and a communicator, and of each call a graph. One of them waits while the other runs, and they change turns many
//! times at each size, so that whatever drifts, drifts for both.
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
