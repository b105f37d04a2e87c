//! NVSHMEM: a process a GPU, and four ways to run a call on its symmetric heap.
//!
//! ```text
//! message       what the program and its processes say to each other
//! ranks         the processes, from the program's side
//! rank          one of them, from its own side
//! collectives   NVSHMEM's own, on a stream                              ┐
//! puts          the schedule's steps as puts with a signal, on a stream ├ executors
//! heap          our kernels, reaching peers' heaps by loads and stores  │
//! device        the schedule's steps by NVSHMEM's device library        ┘
//! ```

mod collectives;
mod device;
mod heap;
mod message;
mod puts;
mod rank;
mod ranks;

pub use message::{Turn, Way};
pub use rank::serve;
pub use ranks::{NvshmemRanks, Performed, Setting};
