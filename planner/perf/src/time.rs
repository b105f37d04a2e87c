//! Arithmetic on simulated times.

use fabricast_topologies::Picos;

/// Returns `n` times a time, saturating.
pub(crate) fn scaled(time: Picos, n: u64) -> Picos {
    Picos(time.0.saturating_mul(n))
}
