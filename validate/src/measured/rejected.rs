//! Rows of a log that cannot be used, with the reason.

use fabricast_sim::schedule::{Collective, DataType};
use fabricast_topologies::Bytes;

/// A row that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedRow {
    /// Line of the row, from 1.
    pub line: u32,
    /// Reason why the row cannot be used.
    pub reason: Reason,
}

/// Reason why a row cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The number of columns differs from the header line's.
    #[error("{found} columns; the header line has {expected}")]
    Columns {
        /// Number of columns of the row.
        found: usize,
        /// Number of columns of the header line.
        expected: usize,
    },
    /// The row ends before its times.
    #[error("the row is truncated")]
    CutOff,
    /// A field is not a valid number.
    #[error("{column}: `{text}` is not {expected}")]
    NotANumber {
        /// Name of the field's column.
        column: &'static str,
        /// Text of the field.
        text: String,
        /// Description of a valid value.
        expected: &'static str,
    },
    /// The size is zero (nccl-tests rounds small sizes down to zero).
    #[error("moves no bytes")]
    NoBytes,
    /// Neither the out-of-place nor the in-place call was measured.
    #[error("has no time")]
    NoTime,
    /// The row is for an in-place call, which a manifest cannot describe.
    #[error("is in place, which a measurement file cannot state")]
    InPlace,
    /// `gpu run` found a wrong result.
    #[error("its result is wrong: the time is not that of the collective")]
    Faulty,
    /// nccl-tests found wrong results.
    #[error("{0} wrong results: the time is not that of the collective")]
    WrongResults(u64),
    /// The element type is unknown.
    #[error("unknown element type `{0}`")]
    UnknownType(String),
    /// The values of the columns `size` and `count` are inconsistent.
    #[error("{collective} of {count} elements of {dtype} on {ranks} ranks is {expected}, not {found}")]
    SizeRule {
        /// Collective of the table.
        collective: Collective,
        /// Value of the column `count`.
        count: u64,
        /// Element type of the row.
        dtype: DataType,
        /// Number of ranks of the communicator.
        ranks: u32,
        /// Size in bytes that nccl-tests would print for this count.
        expected: Bytes,
        /// Value of the column `size`, in bytes.
        found: Bytes,
    },
    /// The size is not a multiple of the size of the counted elements.
    #[error("{found} are not a multiple of {count} elements of {dtype}")]
    NotOfElements {
        /// Value of the column `count`.
        count: u64,
        /// Element type of the row.
        dtype: DataType,
        /// Value of the column `size`, in bytes.
        found: Bytes,
    },
    /// The time is the CPU time of the call (`-C` of nccl-tests), not the duration of the collective.
    #[error("is the CPU time of the call (nccl-tests -C), not the collective's time")]
    CpuTime,
    /// The nccl-tests program measures an unknown collective.
    #[error("the test `{0}` measures an unknown collective")]
    UnknownTest(String),
    /// The row's element type differs from the measurement's.
    #[error("has the element type {found}, but the measurement has {wanted}")]
    OtherType {
        /// Element type of the row.
        found: DataType,
        /// Element type in the manifest.
        wanted: DataType,
    },
    /// The table's collective differs from the measurement's.
    #[error("is for {found}, but the measurement is for {wanted}")]
    OtherCollective {
        /// Collective of the table.
        found: Collective,
        /// Collective in the manifest.
        wanted: Collective,
    },
}

impl Reason {
    /// Returns true if the call gave a wrong result.
    #[must_use]
    pub fn is_wrong_result(&self) -> bool {
        matches!(self, Self::WrongResults(_) | Self::Faulty)
    }
}
