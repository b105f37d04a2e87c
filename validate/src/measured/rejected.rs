//! Rows of a log that cannot be used, and why.

use fabricast_sim::schedule::{Collective, DataType};
use fabricast_topologies::Bytes;

/// A row that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Its line, from 1.
    pub line: u32,
    /// Why.
    pub reason: Reason,
}

/// Why a row cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The row has not the columns that the head line names.
    #[error("{found} columns; the head line has {expected}")]
    Columns {
        /// In the row.
        found: usize,
        /// As the head line says.
        expected: usize,
    },
    /// A row that ends before its times.
    #[error("the row is cut off")]
    CutOff,
    /// A field that should be a number.
    #[error("{column}: `{text}` is not {expected}")]
    NotANumber {
        /// The column.
        column: &'static str,
        /// As it stands.
        text: String,
        /// What would have been right.
        expected: &'static str,
    },
    /// No bytes were moved (nccl-tests rounds small sizes down to nothing).
    #[error("moves no bytes")]
    NoBytes,
    /// Neither side was measured.
    #[error("has no time")]
    NoTime,
    /// A row of calls in place among others: what ran has no word for that.
    #[error("is in place, which measurements have no word for")]
    InPlace,
    /// A row whose results are wrong, as `gpu run` found.
    #[error("its result is wrong: the time is not that of the collective")]
    Faulty,
    /// nccl-tests found wrong results.
    #[error("{0} wrong results: the time is not that of the collective")]
    WrongResults(u64),
    /// An element type that is not known here.
    #[error("unknown element type `{0}`")]
    UnknownType(String),
    /// The size does not follow from the count.
    #[error("{collective} of {count} elements of {dtype} on {ranks} ranks is {expected}, not {found}")]
    SizeRule {
        /// The collective.
        collective: Collective,
        /// As the row says.
        count: u64,
        /// The element type.
        dtype: DataType,
        /// Ranks of the communicator.
        ranks: u32,
        /// What nccl-tests would print.
        expected: Bytes,
        /// What stands there.
        found: Bytes,
    },
    /// The size is not a whole number of the elements counted.
    #[error("{found} are not a multiple of {count} elements of {dtype}")]
    NotOfElements {
        /// As the row says.
        count: u64,
        /// The element type.
        dtype: DataType,
        /// What stands there.
        found: Bytes,
    },
    /// `-C`: how long the call took the CPU, which says nothing of the collective.
    #[error("is the CPU's time (nccl-tests -C), not the collective's")]
    CpuTime,
    /// A test of nccl-tests that is no collective known here.
    #[error("the test `{0}` is none of the collectives")]
    UnknownTest(String),
    /// The measurement is of another element type.
    #[error("is of {found}, and the measurement of {wanted}")]
    OtherType {
        /// The row's.
        found: DataType,
        /// The manifest's.
        wanted: DataType,
    },
    /// The measurement is of another collective.
    #[error("is of {found}, and the measurement of {wanted}")]
    OtherCollective {
        /// The table's.
        found: Collective,
        /// The manifest's.
        wanted: Collective,
    },
}
