//! Lower bound as a linear function of the message size: a latency plus a time per byte.

use fabricast_topologies::{Bytes, Picos};

use super::Bound;
use super::parts::BoundaryCapacity;
use super::source::BoundSource;
use crate::flow::UNLIMITED;

/// Share of a call's bytes, as a fraction. It may exceed 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub numerator: u128,
    pub denominator: u128,
}

impl Share {
    pub(super) const WHOLE: Self = Self { numerator: 1, denominator: 1 };

    pub(super) fn new(numerator: u128, denominator: u128) -> Self {
        Self { numerator, denominator: denominator.max(1) }
    }
}

/// Lower bound on the completion time of any schedule, as a function of the message size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinearBound {
    pub latency: Picos,
    /// Time per byte of the call, in seconds, as a fraction.
    numerator: u128,
    denominator: u128,
    pub source: BoundSource,
}

impl LinearBound {
    /// Creates the lower bound for a share of the bytes that must cross a boundary, after the latency of the first
    /// byte.
    pub(super) fn crossing(share: Share, boundary: BoundaryCapacity, source: BoundSource) -> Self {
        if boundary.through >= UNLIMITED || share.numerator == 0 {
            return Self { latency: boundary.nearest, numerator: 0, denominator: 1, source: BoundSource::Latency };
        }
        let through = share.denominator * boundary.through.max(1);
        let divisor = gcd(share.numerator, through);
        let (numerator, denominator) = (share.numerator / divisor, through / divisor);
        Self { latency: boundary.nearest, numerator, denominator, source }
    }

    /// Creates a lower bound that consists of a latency only.
    pub(super) fn latency(latency: Picos) -> Self {
        Self { latency, numerator: 0, denominator: 1, source: BoundSource::Latency }
    }

    /// Returns the lower bound for a call of `bytes`, rounded down so that it never exceeds the true minimum.
    pub(super) fn at(&self, bytes: Bytes) -> Bound {
        const PICOS: u128 = 1_000_000_000_000;
        let seconds = u128::from(bytes.0).saturating_mul(self.numerator);
        let time = match seconds.checked_mul(PICOS) {
            Some(picos) => picos / self.denominator,
            None => (seconds / self.denominator).saturating_mul(PICOS),
        };
        let transfer = Picos(u64::try_from(time).unwrap_or(u64::MAX));
        let limited_by = if transfer == Picos::ZERO { BoundSource::Latency } else { self.source.clone() };
        Bound { time: Picos(self.latency.0.saturating_add(transfer.0)), transfer, limited_by }
    }

    /// Returns true if this bound is at most `other` at every message size.
    fn is_below(&self, other: &Self) -> bool {
        self.latency <= other.latency && !steeper(self, other)
    }
}

/// Returns true if `a` has the longer time per byte.
fn steeper(a: &LinearBound, b: &LinearBound) -> bool {
    match (a.numerator.checked_mul(b.denominator), b.numerator.checked_mul(a.denominator)) {
        (Some(left), Some(right)) => left > right,
        // Fractions of this size are compared by their integer parts.
        _ => a.numerator / a.denominator > b.numerator / b.denominator,
    }
}

/// Returns the bounds that are the maximum at some message size; of equal ones, only the first.
pub(super) fn upper_envelope(lines: Vec<LinearBound>) -> Vec<LinearBound> {
    let mut envelope: Vec<LinearBound> = Vec::new();
    for line in lines {
        if envelope.iter().any(|other| line.is_below(other)) {
            continue;
        }
        envelope.retain(|other| !other.is_below(&line));
        envelope.push(line);
    }
    envelope
}

pub(crate) fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}
