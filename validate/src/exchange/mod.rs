//! Measured dispatches and combines of experts: manifests, comparison with predictions, and fits of the shared costs.
//!
//! A manifest has a list `[[exchange]]`. Each entry selects rows of a CSV table and describes the measurement.
//! [`load()`] reads a manifest, and [`compare()`] predicts every row. [`fit()`] fits
//! [`ExchangeCosts`](fabricast_experts::ExchangeCosts), and [`hold_out()`] predicts each cluster with costs fitted to
//! the other clusters.

mod comparison;
mod fit;
mod load;
mod manifest;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use fabricast_experts::{ExchangeError, ExchangeKernel, Operation, RoutingPattern, Timing, TokenType};
use fabricast_sim::profile::ProfileError;
use fabricast_topologies::{Fabric, Picos};

use crate::measured::manifest::Role;
pub use comparison::{ComparedExchange, ExchangeComparison, ExchangeGroup, compare};
pub use fit::{HeldOutCluster, HeldOutRow, fit, hold_out, prediction_interval};
pub use load::load;
pub use manifest::is_manifest;

/// Rows of a table that one entry of a manifest selects.
#[derive(Clone, Debug)]
pub struct ExchangeMeasurement {
    /// Path of the table.
    pub file: PathBuf,
    /// Name of the table, as stated in the manifest.
    pub name: String,
    /// Kernel that was measured.
    pub kernel: ExchangeKernel,
    /// Operation that was measured.
    pub operation: Operation,
    /// Element type in which the tokens were sent.
    pub token_type: TokenType,
    /// Routing of the tokens.
    pub pattern: RoutingPattern,
    /// Part of the operation that the measured times include.
    pub timing: Timing,
    /// Access of GPUs to each other's memory.
    pub peer_access: fabricast_topologies::route::PeerAccess,
    /// Use of the rows: in fits (`fit`) or only for validation (`check`).
    pub role: Role,
    /// Source and machines of the rows; cross-validation leaves out one cluster at a time. Defaults to the table's
    /// name.
    pub cluster: String,
    /// Rows, in the order of the table.
    pub rows: Vec<ExchangeRow>,
}

/// Measured row.
#[derive(Clone, Debug)]
pub struct ExchangeRow {
    /// Line in the table, from 1.
    pub line: u32,
    /// Hosts and GPUs that were measured.
    pub fabric: Arc<Fabric>,
    /// Number of tokens of each rank.
    pub tokens: u64,
    /// Number of elements of a token (hidden size).
    pub hidden: u32,
    /// Number of experts over all ranks.
    pub experts: u32,
    /// Number of experts of each token.
    pub top_k: u32,
    /// Number of SMs of the kernel, if the table states it.
    pub sms: Option<u32>,
    /// Measured quantity.
    pub measured: MeasuredQuantity,
}

/// Measured quantity of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MeasuredQuantity {
    /// Time of the operation.
    Time(Picos),
    /// Bandwidth in GB/s as DeepEP defines it: over the network, or over NVLink in a single domain.
    Bandwidth(f64),
}

/// Reasons why measured exchanges cannot be predicted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExchangeCompareError {
    /// No row can be compared.
    #[error("nothing to compare: no row of the tables is selected")]
    NoRows,
    /// A row cannot be predicted.
    #[error("{file}:{line}: {error}")]
    Row {
        /// Name of the table.
        file: String,
        /// Line of the row.
        line: u32,
        /// Reason why the row cannot be predicted.
        error: ExchangeError,
    },
    /// The GPUs of a machine cannot be ranks of an exchange.
    #[error("{fabric}: {error}")]
    Machine {
        /// Name of the fabric.
        fabric: String,
        /// Reason why they cannot.
        error: ExchangeError,
    },
    /// No profile can be chosen for a fabric.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}
