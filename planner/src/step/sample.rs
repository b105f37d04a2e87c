//! What is timed of a call that is large: parts of it, to which the rest adds in proportion.
//!
//! Chunks do not grow without end, so from some size on a byte takes what all that follow take. Where buffers are cut into blocks of
//! ranks that size grows with the ranks ([`TIMED_INSIDE`], [`TIMED_BETWEEN`]); where they stream through in chunks of one size
//! ([`Algorithm::streams`](crate::algorithm::Algorithm::streams)) it does not ([`TIMED_STREAMING`]).

use fabricast_topologies::{Bytes, NodeId, Picos};

use super::price::{LOOKED_AT, Simulated};
use super::together::Planned;
use crate::plan::PlanError;

/// Bytes for each rank, inside of an NVLink domain, from which on to twice as many a byte takes what all that follow take: chunks
/// are moved one like the other.
const TIMED_INSIDE: u64 = 1 << 30;

/// The same for all ranks of a group that leaves its domain, but no less than [`LOOKED_AT`] for each: of groups of many each
/// chunk has many operations.
const TIMED_BETWEEN: u64 = 1 << 30;

/// The same of what streams among many. Trees over 2,048 hosts took 8.002, 13.446, 24.403, 46.316 and 90.142 ms for 128 MiB to 2 GiB:
/// from the first two the last comes out 0.5 % short.
pub(super) const TIMED_STREAMING: u64 = 128 << 20;

/// What is timed of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sample {
    /// A call of this size, which is its own or near it.
    Whole(Bytes),
    /// Calls of `before` and of `last` bytes for each of `ranks`; from the second up to `part` a byte takes what it takes from
    /// the first to the second.
    Part { ranks: u64, before: u64, last: u64, part: u64 },
}

impl Sample {
    /// The parts of a large call of many that streams; `None` where it is not that large.
    pub(super) fn of_stream(bytes: Bytes) -> Option<Self> {
        let (ranks, before) = (1, TIMED_STREAMING);
        (bytes.0 > 2 * before).then_some(Self::Part { ranks, before, last: 2 * before, part: bytes.0 })
    }

    /// The largest size that is timed.
    pub(super) fn last(&self) -> Bytes {
        match *self {
            Self::Whole(bytes) => bytes,
            Self::Part { ranks, last, .. } => Bytes(last * ranks),
        }
    }

    /// What the call takes, from what `at` says of sizes that are timed.
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

/// A part of a call, or a call of fewer ranks, and who is at it: a group, which tells the others, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Part {
    pub group: Vec<NodeId>,
    pub groups: usize,
    pub call: Planned,
}

impl Simulated<'_> {
    /// What is timed for a call of so many bytes whose way is not known.
    pub(super) fn sample(&self, group: &[NodeId], bytes: Bytes) -> Sample {
        let ranks = group.len() as u64;
        let part = bytes.0.div_ceil(ranks);
        let leaves = self.leaves_its_domain(group);
        let before = if leaves { (TIMED_BETWEEN / ranks).max(LOOKED_AT) } else { TIMED_INSIDE };
        let last = 2 * before;
        match (part > last, leaves) {
            (true, _) => Sample::Part { ranks, before, last, part },
            (false, true) => Sample::Whole(Bytes(few_digits(part) * ranks)),
            // Groups of a host stay as they are asked about.
            (false, false) => Sample::Whole(bytes),
        }
    }

    /// What all groups at once take for a large call that streams among many, by its parts; `None` of other calls.
    pub(super) fn streamed(&self, groups: &[Vec<NodeId>], call: &Planned) -> Option<Result<Picos, PlanError>> {
        let streams = call.strategy.algorithm.streams(call.collective) && self.is_spread(groups.first()?);
        let sample = if streams { Sample::of_stream(call.bytes)? } else { return None };
        let part = |bytes| {
            let part = Planned { bytes, ..*call };
            self.by_fewer(groups, &part).unwrap_or_else(|| self.part(groups, part))
        };
        Some(sample.time(part))
    }

    /// What all groups at once take for a call of which a part tells it; `None` of other calls.
    pub(super) fn told_in_part(&self, groups: &[Vec<NodeId>], call: &Planned) -> Option<Result<Picos, PlanError>> {
        self.streamed(groups, call).or_else(|| self.by_fewer(groups, call))
    }

    /// What all groups at once take for a call that is done this way, worked out once.
    pub(super) fn taken(&self, groups: &[Vec<NodeId>], call: &Planned) -> Result<Picos, PlanError> {
        self.told_in_part(groups, call).unwrap_or_else(|| self.part(groups, *call))
    }

    /// What a part of a call takes, or a call of fewer ranks; those of one group that stands for all are those of it alone.
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

/// A rank's part to seven binary digits, so that channels and chunks get equal parts and one stands for all: within 1 in 128
/// of what was asked.
fn few_digits(part: u64) -> u64 {
    let unit = 1u64 << part.checked_ilog2().unwrap_or(0).saturating_sub(6);
    ((part + unit / 2) / unit * unit).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_digits_are_near() {
        for part in (1..5000).chain((0..1000).map(|i| 1_000_003 * i + 1)) {
            let rounded = few_digits(part);
            assert!(rounded.abs_diff(part) * 128 <= part, "{part} {rounded}");
            assert!((rounded >> rounded.trailing_zeros()) < 128, "{part} {rounded}");
        }
    }

    /// A start and a time for each byte come out whole, whatever is timed of it.
    #[test]
    fn parts_add_up_where_bytes_take_equally_long() {
        let takes = |bytes: Bytes| Ok(Picos(1_000_000 + 3 * bytes.0));
        for bytes in [1, 200 << 20, (256 << 20) + 1, 5 << 30].map(Bytes) {
            let sample = Sample::of_stream(bytes).unwrap_or(Sample::Whole(bytes));
            assert_eq!(sample.time(takes).ok(), takes(bytes).ok(), "{bytes:?}");
            assert!(sample.last() <= bytes);
        }
    }
}
