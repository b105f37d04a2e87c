//! Arithmetic on simulated times.

use fabricast_topologies::Picos;

/// Returns `n` times a time, saturating.
pub(crate) fn scaled(time: Picos, n: u64) -> Picos {
    Picos(time.0.saturating_mul(n))
}

/// Returns a fraction of a time, or a multiple that need not be whole.
pub(crate) fn share(time: Picos, fraction: f64) -> Picos {
    Picos((time.0 as f64 * fraction).round() as u64)
}
