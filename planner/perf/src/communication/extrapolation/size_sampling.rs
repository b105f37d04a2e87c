//! Sampling of large calls: smaller calls are timed and the rest is extrapolated linearly.
//!
//! Chunk sizes are bounded, so above some message size the marginal time per byte is constant. If buffers are divided
//! into one block per rank, that size grows with the number of ranks ([`SAMPLE_BYTES_IN_DOMAIN`],
//! [`SAMPLE_BYTES_BETWEEN_DOMAINS`]). If buffers are streamed in chunks of one size
//! ([`Algorithm::is_pipelined`](fabricast_collectives::algorithm::Algorithm::is_pipelined)), it does not
//! ([`SAMPLE_BYTES_STREAMING`]).

use fabricast_topologies::{Bytes, Picos};

use crate::communication::CallExtent;
use fabricast_search::plan::PlanError;

/// Number of bytes per rank, in large groups, above which the transfer time of a ring's chunks (about 20 µs over a 400
/// Gb/s NIC) is several times the other costs of a step.
pub(in crate::communication) const SEARCH_BYTES_PER_RANK: u64 = 1 << 20;

/// Number of bytes per rank, inside an NVLink domain, from which the marginal time per byte is constant. Calls of this
/// size and of twice this size are timed.
const SAMPLE_BYTES_IN_DOMAIN: u64 = 1 << 30;

/// Sample size for groups that leave their domain: total bytes over all ranks, but at least [`SEARCH_BYTES_PER_RANK`]
/// per rank. It is a total because in large groups each chunk has many operations.
const SAMPLE_BYTES_BETWEEN_DOMAINS: u64 = 1 << 30;

/// Sample size for streaming algorithms in large groups: total bytes. For trees over 2,048 hosts, the time of 2 GiB
/// extrapolated from 128 and 256 MiB is 0.5 % shorter than the simulated time.
pub(in crate::communication) const SAMPLE_BYTES_STREAMING: u64 = 128 << 20;

/// Message sizes that are timed for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::communication) enum SizeSample {
    /// One call of this message size, equal or close to the actual one.
    Whole(Bytes),
    /// Calls of `before` and of `last` bytes per rank for `ranks` ranks. The marginal time between the two is used to
    /// extrapolate from `last` to `part` bytes per rank.
    Part { ranks: u64, before: u64, last: u64, part: u64 },
}

/// Size and extent of a group whose calls are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communication) struct SampledGroup {
    /// Number of ranks of the group.
    pub ranks: u64,
    /// Extent of the group's calls within the fabric.
    pub extent: CallExtent,
}

impl SizeSample {
    /// Selects the message sizes at which a call of a group is timed.
    pub(in crate::communication) fn new(group: SampledGroup, bytes: Bytes) -> Self {
        let SampledGroup { ranks, extent } = group;
        let part = bytes.0.div_ceil(ranks);
        let before = match extent {
            CallExtent::Beyond => (SAMPLE_BYTES_BETWEEN_DOMAINS / ranks).max(SEARCH_BYTES_PER_RANK),
            CallExtent::Inside => SAMPLE_BYTES_IN_DOMAIN,
        };
        let last = 2 * before;
        match extent {
            _ if part > last => Self::Part { ranks, before, last, part },
            CallExtent::Beyond => Self::Whole(Bytes(round_to_seven_bits(part) * ranks)),
            // Sizes inside a domain are not rounded.
            CallExtent::Inside => Self::Whole(bytes),
        }
    }

    /// Selects the message sizes at which a streaming call in a large group is timed; `None` if the call is small
    /// enough to be simulated as a whole.
    pub(in crate::communication) fn for_streaming_call(bytes: Bytes) -> Option<Self> {
        let (ranks, before) = (1, SAMPLE_BYTES_STREAMING);
        (bytes.0 > 2 * before).then_some(Self::Part { ranks, before, last: 2 * before, part: bytes.0 })
    }

    /// Returns the largest message size that is timed.
    pub(in crate::communication) fn largest(&self) -> Bytes {
        match *self {
            Self::Whole(bytes) => bytes,
            Self::Part { ranks, last, .. } => Bytes(last * ranks),
        }
    }

    /// Returns the completion time of the call. `time_at`: function that returns the time at a sampled message size.
    pub(in crate::communication) fn extrapolate(
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

/// Rounds the number of bytes of a rank to seven significant bits, so that channels and chunks are equal and one of
/// them represents all. The relative error is at most 1/128.
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
