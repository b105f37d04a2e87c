//! The schedule language: one that generators write, the simulator runs, the verifier proves and GPUs execute.
//!
//! A schedule is a DAG of operations. An operation moves or reduces a span of chunks; one transfer is one operation and
//! the signal that tells its receiver is part of it. Operations come in **runs**: consecutive operations of one rank
//! that differ only by arithmetic (the chunk, the peer and the operations waited for walk in fixed steps). A ring
//! all-reduce of 4,096 ranks has 33.5 million operations and 8,192 runs, so it fits in a megabyte; a schedule read from
//! a file may have runs of length one. Operations are never stored: [`Schedule::operation`] computes them.

mod blocks;
mod builder;
mod call;
mod check;
mod draft;
pub mod fifo;
pub mod format;
pub mod json;
mod layout;
mod lists;
mod matrix;
pub mod msccl_xml;
pub mod mscclpp;
pub(crate) mod order;
mod places;
mod plain;
mod precedence;
mod run;
mod spread;
mod symmetry;
mod text;
mod units;

pub use blocks::{BlockSplit, Blocks, Workplace};
pub(crate) use builder::Written;
pub use builder::{Generate, Header, Program, Schedule, ScheduleError};
pub use call::{BufferUse, Call, Collective, DataType, Protocol, ReduceOp, UnknownWord};
pub use layout::{ChunkSize, Layout, Segment};
pub use matrix::{Boundary, Matrix, MatrixError};
pub use run::{Buffer, Channel, ChunkRef, Dependency, OpId, OpKind, Operation, Rank, Run, RunId, TeamId, Walk};
pub use symmetry::{RotationDigit, Symmetry};
pub(crate) use units::gcd;
