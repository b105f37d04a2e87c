//! Arithmetic on simulated times.

use fabricast_topologies::Picos;

/// Duration in microseconds.
pub(crate) const fn micros(count: u64) -> Picos {
    Picos(count * 1_000_000)
}

/// Returns `n` times a duration; saturates on overflow.
pub(crate) fn scaled(time: Picos, n: u64) -> Picos {
    Picos(time.0.saturating_mul(n))
}

/// Returns a duration multiplied by a factor that need not be an integer.
pub(crate) fn share(time: Picos, fraction: f64) -> Picos {
    Picos((time.0 as f64 * fraction).round() as u64)
}
