//! The library's defaults outside the planned sizes, predicted by the library's own cost model without simulation.
//!
//! No strategies are simulated below the first planned size and above the last, but the library's default is known for
//! all sizes. The sizes at which its algorithm or protocol changes are found to the byte. Channel counts are sampled at
//! powers of two.

use fabricast_sim::schedule::format::CallSizes;
use fabricast_sim::schedule::{Call, Collective, Protocol};
use fabricast_topologies::Bytes;

use super::{LAST_BYTES, PlanRequest, PlanRow, Range, SizeRange};
use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::Chooser;

/// Largest message size evaluated, in bytes. The choice at this size is also used above it: no call is larger, and the
/// library's formulas may overflow.
const LARGEST: Bytes = Bytes::MAX;

/// Number of sample sizes per doubling of the message size. Changes between two samples are then located by bisection.
const STEPS: u64 = 4;

/// Returns the library's defaults below the first and above the last row of each collective.
pub(super) fn ranges(request: &PlanRequest<'_>, rows: &[PlanRow]) -> Vec<Range> {
    let Some(chooser) = request.library else { return Vec::new() };
    let mut ranges = Vec::new();
    for rows in rows.chunk_by(|a, b| a.collective == b.collective) {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { continue };
        if !first.collective.has_variable_size() {
            continue;
        }
        let choices = LibraryChoices { chooser, call: request.call(first.collective, first.bytes) };
        if let Some(max) = first.bytes.0.checked_sub(1) {
            ranges.extend(choices.ranges(Bytes(0), Bytes(max)).unwrap_or_default());
        }
        if last.bytes < LARGEST {
            let above = choices.ranges(Bytes(last.bytes.0 + 1), LARGEST).unwrap_or_default();
            ranges.extend(above.into_iter().map(|range| match range.max_bytes {
                LARGEST => Range { max_bytes: LAST_BYTES, ..range },
                _ => range,
            }));
        }
    }
    ranges
}

/// Returns the sizes inside a range at which the library's default changes algorithm or protocol, and the sizes just
/// before them.
pub(super) fn changes(request: &PlanRequest<'_>, collective: Collective, sizes: CallSizes) -> Vec<Bytes> {
    let CallSizes { min: from, max: to } = sizes;
    let Some(chooser) = request.library else { return Vec::new() };
    let choices = LibraryChoices { chooser, call: request.call(collective, from) };
    let starts = choices.samples(from, to).map(|samples| choices.change_sizes(&samples)).unwrap_or_default();
    let candidates = starts.into_iter().flat_map(|first| [Bytes(first.0 - 1), first]);
    let mut inside: Vec<Bytes> = candidates.filter(|bytes| from < *bytes && *bytes < to).collect();
    inside.dedup();
    inside
}

/// Returns the sizes inside a range at which the library's channel count changes, and the sizes just before them. The
/// channel count is assumed to be monotonic in size; otherwise changes may be missed.
pub(super) fn channel_changes(request: &PlanRequest<'_>, collective: Collective, sizes: CallSizes) -> Vec<Bytes> {
    let CallSizes { min: from, max: to } = sizes;
    let Some(chooser) = request.library else { return Vec::new() };
    let choices = LibraryChoices { chooser, call: request.call(collective, from) };
    let mut starts = Vec::new();
    if let (Some(a), Some(b)) = (choices.strategy_at(from), choices.strategy_at(to)) {
        let channels = |bytes| choices.strategy_at(bytes).map(|strategy| strategy.channels);
        let (first, last) = (Sample { bytes: from, value: a.channels }, Sample { bytes: to, value: b.channels });
        bisect_changes(&channels, first, last, &mut starts);
    }
    let candidates = starts.into_iter().flat_map(|first| [Bytes(first.0 - 1), first]);
    let mut inside: Vec<Bytes> = candidates.filter(|bytes| from < *bytes && *bytes < to).collect();
    inside.dedup();
    inside
}

/// Value of a function at one message size.
#[derive(Clone, Copy)]
struct Sample<K> {
    bytes: Bytes,
    value: K,
}

/// Appends to `starts` the sizes between `a` and `b`, to the byte, at which `value_at` changes, by bisection. Changes
/// between two samples of equal value are not found.
fn bisect_changes<K: Copy + PartialEq>(
    value_at: &impl Fn(Bytes) -> Option<K>,
    a: Sample<K>,
    b: Sample<K>,
    starts: &mut Vec<Bytes>,
) {
    if a.value == b.value {
        return;
    }
    let middle = Bytes(u64::midpoint(a.bytes.0, b.bytes.0));
    if middle == a.bytes {
        return starts.push(b.bytes);
    }
    if let Some(value) = value_at(middle) {
        let sample = Sample { bytes: middle, value };
        bisect_changes(value_at, a, sample, starts);
        bisect_changes(value_at, sample, b, starts);
    }
}

/// The library's choices for one collective as a function of the message size.
struct LibraryChoices<'a> {
    chooser: &'a Chooser,
    call: Call,
}

type Kind = (Algorithm, Protocol);

impl LibraryChoices<'_> {
    fn strategy_at(&self, bytes: Bytes) -> Option<Strategy> {
        let choice = self.chooser.choose(&Call { bytes, ..self.call }).ok()?;
        Some(Strategy { channels: choice.max_channels, threads: None, chunk: None, ..choice.strategy })
    }

    fn kind(&self, bytes: Bytes) -> Option<Kind> {
        self.strategy_at(bytes).map(|strategy| (strategy.algorithm, strategy.protocol))
    }

    /// Returns sample sizes from `from` to `to` bytes, inclusive, with the choice at each. The samples are dense enough
    /// to find every change of algorithm or protocol between them. `None` if a choice is unknown.
    fn samples(&self, from: Bytes, to: Bytes) -> Option<Vec<Sample<Kind>>> {
        let doublings = (0..u64::BITS).map(|power| 1u64 << power);
        let steps = doublings.flat_map(|size| (0..STEPS).map(move |step| size.saturating_add(size / STEPS * step)));
        // The library's formulas have discontinuities at powers of two.
        let sizes = steps.flat_map(|size| [size - 1, size]).map(Bytes).filter(|size| from < *size && *size < to);
        let mut sizes: Vec<Bytes> = sizes.chain([from, to]).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter().map(|size| Some(Sample { bytes: size, value: self.kind(size)? })).collect()
    }

    /// Returns the sizes, in order, at which another algorithm or protocol begins.
    fn change_sizes(&self, samples: &[Sample<Kind>]) -> Vec<Bytes> {
        let mut starts = Vec::new();
        for pair in samples.windows(2) {
            if let [a, b] = pair {
                bisect_changes(&|bytes| self.kind(bytes), *a, *b, &mut starts);
            }
        }
        starts
    }

    /// Returns the choices for the sizes from `from` to `to`, inclusive.
    fn ranges(&self, from: Bytes, to: Bytes) -> Option<Vec<Range>> {
        let samples = self.samples(from, to)?;
        let starts = self.change_sizes(&samples);
        let powers = samples.iter().map(|sample| sample.bytes).filter(|size| size.0.is_power_of_two());
        let ends = starts.iter().flat_map(|first| [Bytes(first.0 - 1), *first]);
        let mut sizes: Vec<Bytes> = powers.chain(ends).chain([from, to]).filter(|size| from <= *size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let collective = self.call.collective;
        let choices: Option<Vec<_>> =
            sizes.into_iter().map(|size| Some(SizeRange::single(collective, size, self.strategy_at(size)?))).collect();
        Some(SizeRange::merge(choices?).into_iter().map(Range::from).collect())
    }
}
