//! Sampling of large calls: smaller calls are timed and the rest is extrapolated linearly.
//!
//! Chunk sizes are bounded, so from some message size on the marginal time per byte is constant. Where buffers are cut
//! into a block per rank, that size grows with the number of ranks ([`TIMED_INSIDE`], [`TIMED_BETWEEN`]). Where buffers
//! stream in chunks of one size ([`Algorithm::streams`](crate::algorithm::Algorithm::streams)), it does not
//! ([`TIMED_STREAMING`]).

use fabricast_topologies::{Bytes, NodeId, Picos};

use super::price::{LOOKED_AT, Simulated};
use super::together::Planned;
use crate::plan::PlanError;

/// Bytes per rank, inside an NVLink domain, from which the marginal time per byte is constant. Calls of this size and
/// of twice the size are timed.
const TIMED_INSIDE: u64 = 1 << 30;

/// Variant of [`TIMED_INSIDE`] for groups that leave their domain: total bytes over all ranks, but at least
/// [`LOOKED_AT`] per rank. In large groups each chunk has many operations.
const TIMED_BETWEEN: u64 = 1 << 30;

/// Variant of [`TIMED_INSIDE`] for streaming algorithms in large groups: total bytes. Trees over 2,048 hosts: 2 GiB
/// extrapolated from 128 and 256 MiB is 0.5 % short.
pub(super) const TIMED_STREAMING: u64 = 128 << 20;

/// Message sizes that are timed for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sample {
    /// A call of this size, equal or close to the actual one.
    Whole(Bytes),
    /// Calls of `before` and of `last` bytes per rank for `ranks` ranks. The marginal time between the two extrapolates
    /// from `last` to `part` bytes per rank.
    Part { ranks: u64, before: u64, last: u64, part: u64 },
}

impl Sample {
    /// Sample of a large streaming call in a large group; `None` if the call is not large enough.
    pub(super) fn of_stream(bytes: Bytes) -> Option<Self> {
        let (ranks, before) = (1, TIMED_STREAMING);
        (bytes.0 > 2 * before).then_some(Self::Part { ranks, before, last: 2 * before, part: bytes.0 })
    }

    /// Returns the largest size that is timed.
    pub(super) fn last(&self) -> Bytes {
        match *self {
            Self::Whole(bytes) => bytes,
            Self::Part { ranks, last, .. } => Bytes(last * ranks),
        }
    }

    /// Completion time of the call, given the time `at` of each sampled size.
    pub(super) fn time(&self, at: impl Fn(Bytes) -> Result<Picos, PlanError> + Sync) -> Result<Picos, PlanError> {
        match *self {
            Self::Whole(bytes) => at(bytes),
            Self::Part { ranks, before, last, part } => {
                let (before_took, took) = rayon::join(|| at(Bytes(before * ranks)), || at(Bytes(last * ranks)));
                let (before_took, took) = (before_took?, took?);
                let more = u128::from((took - before_took).0) * u128::from(part - last);
                Ok(took + Picos((more / u128::from(last - before)) as u64))
            }
        }
    }
}

/// Cache key of a part of a call, or of a call of fewer ranks: the first group, the number of groups and the call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Part {
    pub group: Vec<NodeId>,
    pub groups: usize,
    pub call: Planned,
}

impl Simulated<'_> {
    /// Returns the sample of a call whose strategy is not known yet.
    pub(super) fn sample(&self, group: &[NodeId], bytes: Bytes) -> Sample {
        let ranks = group.len() as u64;
        let part = bytes.0.div_ceil(ranks);
        let leaves = self.leaves_its_domain(group);
        let before = if leaves { (TIMED_BETWEEN / ranks).max(LOOKED_AT) } else { TIMED_INSIDE };
        let last = 2 * before;
        match (part > last, leaves) {
            (true, _) => Sample::Part { ranks, before, last, part },
            (false, true) => Sample::Whole(Bytes(few_digits(part) * ranks)),
            // Sizes inside a domain are not rounded.
            (false, false) => Sample::Whole(bytes),
        }
    }

    /// Sampled completion time of a large streaming call with all groups concurrent; `None` for other calls.
    pub(super) fn streamed(&self, groups: &[Vec<NodeId>], call: &Planned) -> Option<Result<Picos, PlanError>> {
        let streams = call.strategy.algorithm.streams(call.collective) && self.is_spread(groups.first()?);
        let sample = if streams { Sample::of_stream(call.bytes)? } else { return None };
        let part = |bytes| {
            let part = Planned { bytes, ..*call };
            self.by_fewer(groups, &part).unwrap_or_else(|| self.part(groups, part))
        };
        Some(sample.time(part))
    }

    /// Sampled or extrapolated completion time of a call with all groups concurrent; `None` if neither method applies.
    pub(super) fn told_in_part(&self, groups: &[Vec<NodeId>], call: &Planned) -> Option<Result<Picos, PlanError>> {
        self.streamed(groups, call).or_else(|| self.by_fewer(groups, call))
    }

    /// Cached completion time of a call with all groups concurrent: sampled or extrapolated if possible, simulated
    /// otherwise.
    pub(super) fn taken(&self, groups: &[Vec<NodeId>], call: &Planned) -> Result<Picos, PlanError> {
        self.told_in_part(groups, call).unwrap_or_else(|| self.part(groups, *call))
    }

    /// Cached completion time of a part of a call or of a call of fewer ranks, without extrapolation. If the first
    /// group represents all, its time alone is used.
    pub(super) fn part(&self, groups: &[Vec<NodeId>], call: Planned) -> Result<Picos, PlanError> {
        let Some(first) = groups.first() else { return Ok(Picos::ZERO) };
        let Planned { collective, bytes, strategy } = call;
        let part = Part { group: first.clone(), groups: groups.len(), call };
        let find = || match self.first_stands_for_all(groups, call) {
            true if groups.len() > 1 => self.part(std::slice::from_ref(first), call),
            _ => self.slowest(groups, (collective, bytes), strategy),
        };
        Ok(self.parts.or_find(part, || find().map(Some))?.unwrap_or_default())
    }
}

/// Rounds a rank's bytes to seven significant bits, so that channels and chunks are equal and one represents all. The
/// relative error is at most 1/128.
fn few_digits(part: u64) -> u64 {
    let unit = 1u64 << part.checked_ilog2().unwrap_or(0).saturating_sub(6);
    ((part + unit / 2) / unit * unit).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_seven_bits_is_within_1_in_128() {
        for part in (1..5000).chain((0..1000).map(|i| 1_000_003 * i + 1)) {
            let rounded = few_digits(part);
            assert!(rounded.abs_diff(part) * 128 <= part, "{part} {rounded}");
            assert!((rounded >> rounded.trailing_zeros()) < 128, "{part} {rounded}");
        }
    }

    /// An affine time (latency plus time per byte) is extrapolated exactly.
    #[test]
    fn affine_times_are_extrapolated_exactly() {
        let takes = |bytes: Bytes| Ok(Picos(1_000_000 + 3 * bytes.0));
        for bytes in [1, 200 << 20, (256 << 20) + 1, 5 << 30].map(Bytes) {
            let sample = Sample::of_stream(bytes).unwrap_or(Sample::Whole(bytes));
            assert_eq!(sample.time(takes).ok(), takes(bytes).ok(), "{bytes:?}");
            assert!(sample.last() <= bytes);
        }
    }
}
