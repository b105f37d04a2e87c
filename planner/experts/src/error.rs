//! Errors of token exchanges.

use fabricast_sim::schedule::MatrixError;

/// Reason that an exchange cannot be described or predicted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExchangeError {
    /// A number that must be positive is zero.
    #[error("the number of {0} must be more than 0")]
    Zero(&'static str),
    /// A number exceeds the largest that is accepted.
    #[error("{value} {what}; expected at most {max}")]
    TooLarge {
        /// Counted objects.
        what: &'static str,
        /// Number requested.
        value: u64,
        /// Largest number accepted.
        max: u64,
    },
    /// More experts per token than a token can choose from.
    #[error("top-k {top_k}: expected at most {choices}, the number of experts that a token can use")]
    TopK {
        /// Experts per token.
        top_k: u32,
        /// Experts that the pattern permits for one token.
        choices: u32,
    },
    /// The experts do not divide evenly among ranks or groups.
    #[error("{experts} experts do not divide evenly among {parts} {what}")]
    Uneven {
        /// Number of experts.
        experts: u32,
        /// Number of ranks or groups.
        parts: u32,
        /// Noun for the parts in the message: `ranks` or `groups`.
        what: &'static str,
    },
    /// A token is limited to more groups than there are.
    #[error("tokens may use {limit} of {groups} groups of experts; expected 1 to {groups}")]
    GroupLimit {
        /// Number of groups that a token may use.
        limit: u32,
        /// Number of groups.
        groups: u32,
    },
    /// The most loaded rank has less than the mean load.
    #[error("skew {0}: expected 1 (no skew) or more")]
    Skew(f64),
    /// More ranks than an exchange may have.
    #[error("{ranks} ranks: expected 1 to {max}")]
    Ranks {
        /// Number of ranks requested.
        ranks: usize,
        /// Largest number accepted.
        max: usize,
    },
    /// The kernel does not have the operation.
    #[error("{kernel} has no separate {operation}")]
    NoOperation {
        /// Name of the kernel.
        kernel: &'static str,
        /// Name of the operation.
        operation: &'static str,
    },
    /// The kernel needs direct access between the GPUs.
    #[error("{0} writes into the memory of other GPUs, and the ranks are in several NVLink domains")]
    SeveralDomains(&'static str),
    /// Two ranks have no path.
    #[error(transparent)]
    Unreachable(#[from] fabricast_topologies::Error),
    /// The traffic is not a valid matrix.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
}
