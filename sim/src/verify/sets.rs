//! Sets of ranks that have contributed to a chunk. Rings, chains and in-order trees create only ranges of adjacent
//! ranks, which need no memory. Any other set is a node of a hash-consed tree with 64 ranks per leaf: equal sets share
//! a node, and adding a rank creates only a path of nodes.

use rustc_hash::FxHashMap;

/// Set of ranks, valid only for the [`Sets`] that created it. Equal sets may have different representations (range or
/// node); compare them with [`Sets::equal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set(u64);

const NODE: u64 = 1 << 63;

/// Store of sets of ranks below a given number, in which equal sets share memory.
pub(super) struct Sets {
    ranks: u32,
    /// Number of levels of branches above the leaves.
    height: u32,
    leaves: Vec<u64>,
    leaf_ids: FxHashMap<u64, u32>,
    branches: Vec<(u32, u32)>,
    branch_ids: FxHashMap<(u32, u32), u32>,
}

/// Range of `len` ranks from `start`, which wraps around to 0 after the last rank.
#[derive(Clone, Copy)]
struct RankRange {
    start: u32,
    len: u32,
}

impl Set {
    /// The empty set.
    pub(super) const EMPTY: Self = Self(0);

    /// Returns the set that contains only this rank.
    pub(super) fn single(rank: u32) -> Self {
        Self::range(rank, 1)
    }

    fn range(start: u32, len: u32) -> Self {
        Self(u64::from(start) << 32 | u64::from(len))
    }

    fn as_range(self) -> Option<RankRange> {
        (self.0 & NODE == 0).then_some(RankRange { start: (self.0 >> 32) as u32, len: self.0 as u32 })
    }
}

impl Sets {
    pub(super) fn new(ranks: u32) -> Self {
        let leaves = u64::from(ranks).div_ceil(64).max(1);
        Self {
            ranks,
            height: leaves.next_power_of_two().trailing_zeros(),
            // Index 0 is the empty set on every level.
            leaves: vec![0],
            leaf_ids: FxHashMap::default(),
            branches: vec![(0, 0)],
            branch_ids: FxHashMap::default(),
        }
    }

    /// Returns the set of all ranks.
    pub(super) fn all(&self) -> Set {
        Set::range(0, self.ranks)
    }

    /// Returns the union of two sets; `None` if they share a rank.
    pub(super) fn union(&mut self, a: Set, b: Set) -> Option<Set> {
        if let (Some(x), Some(y)) = (a.as_range(), b.as_range()) {
            if x.len == 0 || y.len == 0 {
                return Some(if x.len == 0 { b } else { a });
            }
            let len = u64::from(x.len) + u64::from(y.len);
            let offset = (u64::from(y.start) + u64::from(self.ranks) - u64::from(x.start)) % u64::from(self.ranks);
            if offset < u64::from(x.len) || offset + u64::from(y.len) > u64::from(self.ranks) {
                return None;
            }
            if len == u64::from(self.ranks) {
                return Some(self.all());
            }
            if offset == u64::from(x.len) {
                return Some(Set::range(x.start, len as u32));
            }
            if offset + u64::from(y.len) == u64::from(self.ranks) {
                return Some(Set::range(y.start, len as u32));
            }
        }
        let (x, y) = (self.node(a), self.node(b));
        self.join(self.height, x, y).map(|id| Set(NODE | u64::from(id)))
    }

    /// Returns true if two sets contain the same ranks.
    pub(super) fn equal(&mut self, a: Set, b: Set) -> bool {
        a == b || (a.0 ^ b.0) & NODE != 0 && self.node(a) == self.node(b)
    }

    /// Returns the ranks of a set as text, such as `ranks 0-3, 7`.
    pub(super) fn describe(&mut self, set: Set) -> String {
        let id = self.node(set);
        let mut members = Vec::new();
        self.collect(self.height, id, 0, &mut members);
        describe_ranks(&members)
    }

    fn node(&mut self, set: Set) -> u32 {
        match set.as_range() {
            None => set.0 as u32,
            Some(RankRange { start, len }) => {
                let end = u64::from(start) + u64::from(len);
                let wrapped = end.saturating_sub(u64::from(self.ranks));
                let upper = self.range(self.height, 0, u64::from(start), end - wrapped);
                let lower = self.range(self.height, 0, 0, wrapped);
                // The two parts are disjoint, because a range never exceeds the number of ranks.
                self.join(self.height, lower, upper).unwrap_or(upper)
            }
        }
    }

    /// Returns the node for ranks `from..to`, below a node that begins at rank `base`.
    fn range(&mut self, level: u32, base: u64, from: u64, to: u64) -> u32 {
        let width = 64u64 << level;
        let (from, to) = (from.max(base), to.min(base + width));
        if from >= to {
            return 0;
        }
        if level == 0 {
            let ones = u64::MAX >> (64 - (to - from));
            return self.leaf(ones << (from - base));
        }
        let left = self.range(level - 1, base, from, to);
        let right = self.range(level - 1, base + width / 2, from, to);
        self.branch(left, right)
    }

    fn join(&mut self, level: u32, a: u32, b: u32) -> Option<u32> {
        if a == 0 || b == 0 {
            return Some(a | b);
        }
        if level == 0 {
            let (x, y) = (self.leaves[a as usize], self.leaves[b as usize]);
            return (x & y == 0).then(|| self.leaf(x | y));
        }
        let ((a0, a1), (b0, b1)) = (self.branches[a as usize], self.branches[b as usize]);
        let left = self.join(level - 1, a0, b0)?;
        let right = self.join(level - 1, a1, b1)?;
        Some(self.branch(left, right))
    }

    fn leaf(&mut self, bits: u64) -> u32 {
        *self.leaf_ids.entry(bits).or_insert_with(|| {
            self.leaves.push(bits);
            self.leaves.len() as u32 - 1
        })
    }

    fn branch(&mut self, left: u32, right: u32) -> u32 {
        if (left, right) == (0, 0) {
            return 0;
        }
        *self.branch_ids.entry((left, right)).or_insert_with(|| {
            self.branches.push((left, right));
            self.branches.len() as u32 - 1
        })
    }

    fn collect(&self, level: u32, id: u32, base: u32, members: &mut Vec<u32>) {
        if id == 0 {
            return;
        }
        if level == 0 {
            let bits = self.leaves[id as usize];
            members.extend((0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| base + bit));
        } else {
            let (left, right) = self.branches[id as usize];
            self.collect(level - 1, left, base, members);
            self.collect(level - 1, right, base + (32 << level), members);
        }
    }
}

/// Returns ascending ranks as text in ranges, limited to the first few.
fn describe_ranks(members: &[u32]) -> String {
    const SHOWN: usize = 6;
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &rank in members {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => ranges.push((rank, rank)),
        }
    }
    let range_text = |&(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let shown: Vec<String> = ranges.iter().take(SHOWN).map(range_text).collect();
    match (members, ranges.len()) {
        ([], _) => "no rank".to_owned(),
        ([rank], _) => format!("rank {rank}"),
        (_, n) if n > SHOWN => format!("ranks {} and {} more ranges", shown.join(", "), n - SHOWN),
        _ => format!("ranks {}", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn unions_match_btree_sets(ranks in 1u32..300, parts in prop::collection::vec((any::<u32>(), 1u32..9), 1..40)) {
            let mut sets = Sets::new(ranks);
            let (mut set, mut plain) = (Set::EMPTY, BTreeSet::new());
            for (start, len) in parts {
                let len = len.min(ranks);
                // The range of all ranks starts at 0.
                let start = if len == ranks { 0 } else { start % ranks };
                let more: BTreeSet<u32> = (0..len).map(|i| (start + i) % ranks).collect();
                let joined = sets.union(set, Set::range(start, len));
                prop_assert_eq!(joined.is_some(), plain.is_disjoint(&more));
                if let Some(joined) = joined {
                    set = joined;
                    plain.extend(more);
                    let members: Vec<u32> = plain.iter().copied().collect();
                    prop_assert_eq!(sets.describe(set), describe_ranks(&members));
                    // The same ranks, added one by one in reverse order.
                    let again = members.iter().rev().try_fold(Set::EMPTY, |s, &r| sets.union(s, Set::single(r))).unwrap();
                    prop_assert!(sets.equal(set, again));
                    let all = sets.all();
                    prop_assert_eq!(sets.equal(set, all), members.len() == ranks as usize);
                }
            }
        }
    }
}
