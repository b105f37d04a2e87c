//! Ends of the operations of a run, stored as arithmetic progressions.
//!
//! In a steady state, each operation ends later than the previous one by the same time, and its chain of dependencies has
//! grown by the same costs. The ends of millions of operations are then a few progressions.

use super::ChainEnd;

/// Number of values of a [`ChainEnd`].
const PARTS: usize = 5;

/// Difference between two ends of chains: of the times and of each kind of cost, in the order in which ends are compared.
/// Differences may be negative, and are stored modulo 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Growth([u64; PARTS]);

impl Growth {
    /// No difference.
    pub(super) const ZERO: Self = Self([0; PARTS]);

    /// Returns the difference from `earlier` to `later`.
    pub(super) fn between(earlier: ChainEnd, later: ChainEnd) -> Self {
        let (earlier, later) = (earlier.parts(), later.parts());
        Self(std::array::from_fn(|part| later[part].wrapping_sub(earlier[part])))
    }

    /// Returns `count` times this difference.
    pub(super) fn times(self, count: u32) -> Self {
        Self(self.0.map(|part| part.wrapping_mul(count.into())))
    }

    /// Returns the end that differs from `end` by this difference.
    pub(super) fn after(self, end: ChainEnd) -> ChainEnd {
        let parts = end.parts();
        ChainEnd::from_parts(std::array::from_fn(|part| parts[part].wrapping_add(self.0[part])))
    }

    /// Returns the signed differences, if each is below 2⁶³.
    pub(super) fn parts(self) -> [i64; PARTS] {
        self.0.map(|part| part as i64)
    }
}

/// Ends of the operations of a run, in order of index.
#[derive(Clone, Debug, Default)]
pub(super) struct EndSequence {
    segments: Vec<Segment>,
    len: u32,
}

/// Ends of consecutive operations that form an arithmetic progression, until the first operation of the next segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Index of the first operation.
    first: u32,
    /// End of the first operation.
    end: ChainEnd,
    growth: Growth,
}

/// End of an operation, and its progression.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgressionPoint {
    pub(super) end: ChainEnd,
    /// Difference from each operation to the next, up to the end of the progression.
    pub(super) growth: Growth,
    /// Number of further operations in the progression; `None` for the last progression, which may be continued.
    pub(super) further: Option<u32>,
}

impl EndSequence {
    /// Returns the number of operations.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Adds the end of the next operation.
    pub(super) fn push(&mut self, end: ChainEnd) {
        let next = self.len;
        self.len += 1;
        if let Some(last) = self.segments.last_mut() {
            let count = next - last.first;
            if count == 1 {
                last.growth = Growth::between(last.end, end);
                return;
            }
            if last.growth.times(count).after(last.end) == end {
                return;
            }
        }
        self.segments.push(Segment { first: next, end, growth: Growth::ZERO });
    }

    /// Adds the ends of the next `count` operations, which grow from the last one by `growth` each.
    pub(super) fn extend(&mut self, count: u32, growth: Growth) {
        for _ in 0..count.min(2) {
            if let Some(last) = self.last() {
                self.push(growth.after(last));
            }
        }
        self.len += count.saturating_sub(2);
    }

    /// Returns the end of the last operation.
    pub(super) fn last(&self) -> Option<ChainEnd> {
        let last = self.segments.last()?;
        Some(last.growth.times(self.len - 1 - last.first).after(last.end))
    }

    /// Returns the end of an operation and its progression. `hint` is the position of the progression of the previous
    /// query, and is replaced.
    pub(super) fn point(&self, index: u32, hint: &mut usize) -> Option<ProgressionPoint> {
        if index >= self.len {
            return None;
        }
        let contains = |position: usize| {
            let segment = self.segments.get(position)?;
            let next = self.segments.get(position + 1).map_or(self.len, |next| next.first);
            (segment.first <= index && index < next).then_some(position)
        };
        let search = || self.segments.partition_point(|segment| segment.first <= index).checked_sub(1);
        let position = contains(*hint).or_else(|| contains(*hint + 1)).or_else(search)?;
        *hint = position;
        let segment = self.segments.get(position)?;
        Some(ProgressionPoint {
            end: segment.growth.times(index - segment.first).after(segment.end),
            growth: segment.growth,
            further: self.segments.get(position + 1).map(|next| next.first - 1 - index),
        })
    }

    /// Returns the greatest end of all operations. That of a progression is its first or its last.
    pub(super) fn greatest(&self) -> Option<ChainEnd> {
        let ends = self.segments.iter().map(|segment| segment.first).chain([self.len]).skip(1);
        let greatest = |(segment, next): (&Segment, u32)| {
            segment.end.max(segment.growth.times(next - 1 - segment.first).after(segment.end))
        };
        self.segments.iter().zip(ends).map(greatest).max()
    }
}

impl FromIterator<ChainEnd> for EndSequence {
    fn from_iter<I: IntoIterator<Item = ChainEnd>>(ends: I) -> Self {
        let mut sequence = Self::default();
        ends.into_iter().for_each(|end| sequence.push(end));
        sequence
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::Picos;
    use proptest::prelude::*;

    use super::super::super::costs::ChainCosts;
    use super::*;

    proptest! {
        /// A sequence returns the ends from which it was built, in any order of queries, and progressions continue as
        /// stated.
        #[test]
        fn sequences_return_their_ends(
            runs in prop::collection::vec((0u64..5, 0u64..3, 1u32..6), 1..8),
            more in 0u32..5,
        ) {
            let mut ends = Vec::new();
            let (mut time, mut software) = (1000u64, 500u64);
            for (step, cost, count) in runs {
                for _ in 0..count {
                    // Costs may decrease from one operation to the next.
                    (time, software) = (time + step, software + cost - 1);
                    let costs = ChainCosts { software: Picos(software), ..ChainCosts::default() };
                    ends.push(ChainEnd { time: Picos(time), costs });
                }
            }
            let mut sequence: EndSequence = ends.iter().copied().collect();
            let growth = ends.len().checked_sub(2).map_or(Growth::ZERO, |i| Growth::between(ends[i], ends[i + 1]));
            sequence.extend(more, growth);
            for _ in 0..more {
                ends.push(growth.after(ends[ends.len() - 1]));
            }
            prop_assert_eq!(sequence.len() as usize, ends.len());
            prop_assert_eq!(sequence.last(), ends.last().copied());
            prop_assert_eq!(sequence.greatest(), ends.iter().max().copied());
            let (mut forward, mut backward) = (0, 0);
            for (index, &end) in ends.iter().enumerate() {
                let point = sequence.point(index as u32, &mut forward).unwrap();
                prop_assert_eq!(point.end, end);
                for step in 1..=point.further.unwrap_or(0) {
                    prop_assert_eq!(point.growth.times(step).after(end), ends[index + step as usize]);
                }
            }
            for (index, &end) in ends.iter().enumerate().rev() {
                prop_assert_eq!(sequence.point(index as u32, &mut backward).unwrap().end, end);
            }
            prop_assert!(sequence.point(ends.len() as u32, &mut forward).is_none());
        }
    }
}
