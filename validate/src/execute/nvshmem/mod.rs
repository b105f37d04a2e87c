//! Executors for NVSHMEM: one process per GPU, and four methods to execute a call on its symmetric heap.
//!
//! ```text
//! message       messages between the program and its processes
//! ranks         the processes, from the program's side
//! serve, rank   a single process, from its own side
//! collectives   NVSHMEM's own collectives, on a stream                  ┐
//! puts          the schedule's steps as puts with a signal, on a stream ├ executors
//! heap          generated kernels, with loads and stores to peer heaps  │
//! device        the schedule's steps by NVSHMEM's device library        ┘
//! ```

mod collectives;
mod device;
mod heap;
mod message;
mod puts;
mod rank;
mod ranks;
mod serve;

pub use message::{NvshmemMethod, RunRequest};
pub use ranks::{LaunchSettings, NvshmemRanks, RunResult};
pub use serve::serve;
