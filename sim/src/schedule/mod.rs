//! Representation of schedules. Generators write schedules, the simulator runs them, the verifier proves them correct,
//! and GPUs execute them.
//!
//! A schedule is a DAG of operations. An operation moves or reduces a span of chunks; a transfer and the signal to its
//! receiver are one operation. Operations are grouped into **runs**: consecutive operations of one rank that differ
//! only by arithmetic (chunk, peer and dependencies advance in fixed steps). A ring all-reduce of 4,096 ranks has 33.5
//! million operations in 8,192 runs and fits in a megabyte; a schedule read from a file may have runs of length one.
//! Operations are never stored: [`Schedule::operation`] computes them.

mod blocks;
mod builder;
mod call;
mod channel_split;
mod check;
mod chunk_numbering;
mod draft;
pub mod fifo;
mod file_format;
mod flat;
pub mod format;
pub mod json;
mod layout;
mod lists;
mod matrix;
pub mod msccl_xml;
pub mod mscclpp;
pub(crate) mod order;
mod precedence;
mod run;
mod symmetry;
mod text;
mod units;

pub use blocks::{BlockSplit, Blocks, ChunkMessages, Processor};
pub(crate) use builder::StoredPrograms;
pub use builder::{Header, Program, Schedule, ScheduleError, ScheduleGenerator};
pub use call::{BufferUse, Call, Collective, DataType, Protocol, ReduceOp, UnknownName};
pub use layout::{ChunkSize, Layout, Segment};
pub use matrix::{Boundary, MatrixBlock, MatrixError, TrafficMatrix};
pub use run::{Buffer, Channel, ChunkRef, Dependency, OpId, OpKind, Operation, Rank, Run, RunId, TeamId, Walk};
pub use symmetry::{RotationDigit, Symmetry};
pub(crate) use units::gcd;
