//! Sampling of large calls: smaller calls are timed and the rest is extrapolated linearly.
//!
//! Chunk sizes are bounded, so from some message size on the marginal time per byte is constant. Where buffers are cut
//! into a block per rank, that size grows with the number of ranks ([`SAMPLE_BYTES_IN_DOMAIN`], [`SAMPLE_BYTES_BETWEEN_DOMAINS`]). Where buffers
//! stream in chunks of one size ([`Algorithm::is_pipelined`](fabricast_collectives::algorithm::Algorithm::is_pipelined)), it does not
//! ([`SAMPLE_BYTES_STREAMING`]).

use fabricast_topologies::{Bytes, NodeId, Picos};

use super::call_times::{SEARCH_BYTES_PER_RANK, SimulatedCosts};
use super::concurrent_calls::CallWithStrategy;
use fabricast_search::plan::PlanError;

/// Bytes per rank, inside an NVLink domain, from which the marginal time per byte is constant. Calls of this size and
/// of twice the size are timed.
const SAMPLE_BYTES_IN_DOMAIN: u64 = 1 << 30;

/// Variant of [`SAMPLE_BYTES_IN_DOMAIN`] for groups that leave their domain: total bytes over all ranks, but at least
/// [`SEARCH_BYTES_PER_RANK`] per rank. In large groups each chunk has many operations.
const SAMPLE_BYTES_BETWEEN_DOMAINS: u64 = 1 << 30;

/// Variant of [`SAMPLE_BYTES_IN_DOMAIN`] for streaming algorithms in large groups: total bytes. Trees over 2,048 hosts: 2 GiB
/// extrapolated from 128 and 256 MiB is 0.5 % short.
pub(super) const SAMPLE_BYTES_STREAMING: u64 = 128 << 20;

/// Message sizes that are timed for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SizeSample {
    /// A call of this size, equal or close to the actual one.
    Whole(Bytes),
    /// Calls of `before` and of `last` bytes per rank for `ranks` ranks. The marginal time between the two extrapolates
    /// from `last` to `part` bytes per rank.
    Part { ranks: u64, before: u64, last: u64, part: u64 },
}

impl SizeSample {
    /// Sample of a large streaming call in a large group; `None` if the call is not large enough.
    pub(super) fn for_streaming_call(bytes: Bytes) -> Option<Self> {
        let (ranks, before) = (1, SAMPLE_BYTES_STREAMING);
        (bytes.0 > 2 * before).then_some(Self::Part { ranks, before, last: 2 * before, part: bytes.0 })
    }

    /// Returns the largest size that is timed.
    pub(super) fn largest(&self) -> Bytes {
        match *self {
            Self::Whole(bytes) => bytes,
            Self::Part { ranks, last, .. } => Bytes(last * ranks),
        }
    }

    /// Completion time of the call, given the time `time_at` of each sampled size.
    pub(super) fn extrapolate(
        &self,
        time_at: impl Fn(Bytes) -> Result<Picos, PlanError> + Sync,
    ) -> Result<Picos, PlanError> {
        match *self {
            Self::Whole(bytes) => time_at(bytes),
            Self::Part { ranks, before, last, part } => {
                let (before_time, last_time) =
                    rayon::join(|| time_at(Bytes(before * ranks)), || time_at(Bytes(last * ranks)));
                let (before_time, last_time) = (before_time?, last_time?);
                let increment = u128::from((last_time - before_time).0) * u128::from(part - last);
                Ok(last_time + Picos((increment / u128::from(last - before)) as u64))
            }
        }
    }
}

/// Cache key of a part of a call, or of a call of fewer ranks: the first group, the number of groups and the call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PartKey {
    pub group: Vec<NodeId>,
    pub groups: usize,
    pub call: CallWithStrategy,
}

impl SimulatedCosts<'_> {
    /// Returns the sample of a call whose strategy is not known yet.
    pub(super) fn sample(&self, group: &[NodeId], bytes: Bytes) -> SizeSample {
        let ranks = group.len() as u64;
        let part = bytes.0.div_ceil(ranks);
        let spans_domains = self.spans_domains(group);
        let before = if spans_domains {
            (SAMPLE_BYTES_BETWEEN_DOMAINS / ranks).max(SEARCH_BYTES_PER_RANK)
        } else {
            SAMPLE_BYTES_IN_DOMAIN
        };
        let last = 2 * before;
        match (part > last, spans_domains) {
            (true, _) => SizeSample::Part { ranks, before, last, part },
            (false, true) => SizeSample::Whole(Bytes(round_to_seven_bits(part) * ranks)),
            // Sizes inside a domain are not rounded.
            (false, false) => SizeSample::Whole(bytes),
        }
    }

    /// Sampled completion time of a large streaming call with all groups concurrent; `None` for other calls.
    pub(super) fn sampled_streaming_time(
        &self,
        groups: &[Vec<NodeId>],
        call: &CallWithStrategy,
    ) -> Option<Result<Picos, PlanError>> {
        let streams = call.strategy.algorithm.is_pipelined(call.collective) && self.is_large_group(groups.first()?);
        let sample = if streams { SizeSample::for_streaming_call(call.bytes)? } else { return None };
        let time_part = |bytes| {
            let part = CallWithStrategy { bytes, ..*call };
            self.extrapolated_time(groups, &part).unwrap_or_else(|| self.part_time(groups, part))
        };
        Some(sample.extrapolate(time_part))
    }

    /// Sampled or extrapolated completion time of a call with all groups concurrent; `None` if neither method applies.
    pub(super) fn sampled_or_extrapolated_time(
        &self,
        groups: &[Vec<NodeId>],
        call: &CallWithStrategy,
    ) -> Option<Result<Picos, PlanError>> {
        self.sampled_streaming_time(groups, call).or_else(|| self.extrapolated_time(groups, call))
    }

    /// Cached completion time of a call with all groups concurrent: sampled or extrapolated if possible, simulated
    /// otherwise.
    pub(super) fn call_time(&self, groups: &[Vec<NodeId>], call: &CallWithStrategy) -> Result<Picos, PlanError> {
        self.sampled_or_extrapolated_time(groups, call).unwrap_or_else(|| self.part_time(groups, *call))
    }

    /// Cached completion time of a part of a call or of a call of fewer ranks, without extrapolation. If the first
    /// group represents all, its time alone is used.
    pub(super) fn part_time(&self, groups: &[Vec<NodeId>], call: CallWithStrategy) -> Result<Picos, PlanError> {
        let Some(first) = groups.first() else { return Ok(Picos::ZERO) };
        let CallWithStrategy { collective, bytes, strategy } = call;
        let key = PartKey { group: first.clone(), groups: groups.len(), call };
        let compute = || match self.first_represents_all(groups, call) {
            true if groups.len() > 1 => self.part_time(std::slice::from_ref(first), call),
            _ => self.slowest(groups, collective, bytes, strategy),
        };
        Ok(self.parts.get_or_compute(key, || compute().map(Some))?.unwrap_or_default())
    }
}

/// Rounds a rank's bytes to seven significant bits, so that channels and chunks are equal and one represents all. The
/// relative error is at most 1/128.
fn round_to_seven_bits(part: u64) -> u64 {
    let unit = 1u64 << part.checked_ilog2().unwrap_or(0).saturating_sub(6);
    ((part + unit / 2) / unit * unit).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_seven_bits_is_within_1_in_128() {
        for part in (1..5000).chain((0..1000).map(|i| 1_000_003 * i + 1)) {
            let rounded = round_to_seven_bits(part);
            assert!(rounded.abs_diff(part) * 128 <= part, "{part} {rounded}");
            assert!((rounded >> rounded.trailing_zeros()) < 128, "{part} {rounded}");
        }
    }

    /// An affine time (latency plus time per byte) is extrapolated exactly.
    #[test]
    fn affine_times_are_extrapolated_exactly() {
        let affine_time = |bytes: Bytes| Ok(Picos(1_000_000 + 3 * bytes.0));
        for bytes in [1, 200 << 20, (256 << 20) + 1, 5 << 30].map(Bytes) {
            let sample = SizeSample::for_streaming_call(bytes).unwrap_or(SizeSample::Whole(bytes));
            assert_eq!(sample.extrapolate(affine_time).ok(), affine_time(bytes).ok(), "{bytes:?}");
            assert!(sample.largest() <= bytes);
        }
    }
}
