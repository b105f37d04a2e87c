//! Validity check of schedules: the ranks, runs, channels and chunks that operations refer to exist.
//!
//! Walks are checked by arithmetic: the first operation out of bounds is found in logarithmic time, regardless of the
//! run's length.

use super::{ChunkRef, Rank, RunId, Schedule, ScheduleError, TeamId, Walk};

impl Schedule {
    /// Checks that all ranks, runs, channels and chunks that a schedule refers to exist. Every constructed schedule
    /// passes this check.
    pub(crate) fn check(&self) -> Result<(), ScheduleError> {
        let (ranks, root) = (self.header.call.ranks, self.header.call.root);
        if root.0 >= ranks && ranks > 0 {
            return Err(ScheduleError::NoSuchRoot { root, ranks });
        }
        for (team, members) in (0..).map(TeamId).zip(&self.header.teams) {
            let is_ascending = members.windows(2).all(|pair| pair[0] < pair[1]);
            if !is_ascending || members.last().is_none_or(|last| last.0 >= ranks) {
                return Err(ScheduleError::BadTeam { team, ranks });
            }
        }
        for rank in (0..ranks).map(Rank) {
            for (number, run_id) in self.rank_runs(rank).enumerate() {
                let number = number as u32;
                for &on in self.dependencies(run_id) {
                    let exists = on.rank.0 < ranks && on.run < self.rank_runs(on.rank).len() as u32;
                    if !exists {
                        return Err(ScheduleError::NoSuchRun { rank, run: number, on });
                    }
                }
                self.check_run(rank, number, run_id)?;
            }
        }
        Ok(())
    }

    fn check_run(&self, rank: Rank, number: u32, run_id: RunId) -> Result<(), ScheduleError> {
        let run = self.run(run_id);
        if run.channel.0 >= self.header.channels {
            let channels = self.header.channels;
            return Err(ScheduleError::NoSuchChannel { rank, run: number, channel: run.channel, channels });
        }
        let ranks = self.header.call.ranks;
        if run.kind.is_multicast() {
            let has_rank = |i: &u32| {
                let team = self.header.teams.get(run.peer.at(*i) as usize);
                team.is_some_and(|members| members.binary_search(&rank).is_ok())
            };
            if let Some(index) = (0..run.peer.distinct_steps(run.len)).find(|i| !has_rank(i)) {
                let team = TeamId(run.peer.at(index));
                return Err(ScheduleError::NoSuchTeam { rank, run: number, index, team });
            }
        } else if let Some(index) = first_outside(run.peer, run.len, u64::from(ranks)) {
            let peer = Rank(run.peer.at(index));
            return Err(ScheduleError::NoSuchRank { rank, run: number, index, peer, ranks });
        }
        if !run.kind.moves_data() {
            return Ok(());
        }
        for (buffer, walk) in [(run.src_buffer, run.src), (run.dst_buffer, run.dst)] {
            let chunks = self.buffer_chunks(buffer);
            let index = if run.span > chunks {
                (run.len > 0).then_some(0)
            } else {
                first_outside(walk, run.len, u64::from(chunks - run.span) + 1)
            };
            if let Some(index) = index {
                let last = walk.at(index).saturating_add(run.span.saturating_sub(1));
                let chunk = ChunkRef { buffer, index: last };
                return Err(ScheduleError::NoSuchChunk { rank, run: number, index, chunk, chunks });
            }
        }
        Ok(())
    }
}

const WRAP: u64 = 1 << 32;

/// Returns the first of `len` steps at which a walk is not below `limit`; `None` if there is none. A walk with a
/// modulus must also not cross 0 or 2³² between two of its positions (a stride of 2³¹ or more counts as negative); such
/// a step counts as out of bounds.
fn first_outside(walk: Walk, len: u32, limit: u64) -> Option<u32> {
    if len == 0 {
        return None;
    }
    if walk.is_fixed() {
        return (u64::from(walk.at(0)) >= limit).then_some(0);
    }
    if walk.modulus == 0 {
        // The value itself is a progression modulo 2³².
        let step = u64::from(walk.step) * u64::from(walk.stride) % WRAP;
        let start = (u64::from(walk.base) + u64::from(walk.start) * u64::from(walk.stride) % WRAP) % WRAP;
        return first_within(start, step, WRAP, len, limit, WRAP - 1);
    }
    // The position is a progression modulo the modulus; invalid positions are those above or below a bound.
    let (base, limit, last) = (i64::from(walk.base), limit as i64, i64::from(walk.modulus) - 1);
    let stride = i64::from(walk.stride as i32);
    // In bounds: 0 ≤ base + position·stride < limit.
    let (good_from, good_to) = if stride > 0 {
        ((-base).div_euclid(stride) + i64::from((-base).rem_euclid(stride) != 0), (limit - 1 - base).div_euclid(stride))
    } else {
        let back = -stride;
        let over = base - (limit - 1);
        (over.div_euclid(back) + i64::from(over.rem_euclid(back) != 0), base.div_euclid(back))
    };
    let (start, step, modulus) =
        (u64::from(walk.start % walk.modulus), u64::from(walk.step % walk.modulus), u64::from(walk.modulus));
    let above = good_to.max(-1) + 1;
    let below = good_from.min(last + 1) - 1;
    let over = (above <= last).then(|| first_within(start, step, modulus, len, above as u64, last as u64)).flatten();
    let under = (below >= 0).then(|| first_within(start, step, modulus, len, 0, below as u64)).flatten();
    match (over, under) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Returns the first `i < len` with `low ≤ (start + step·i) mod modulus ≤ high`. `start`, `step` and `high` must be
/// below the modulus.
fn first_within(start: u64, step: u64, modulus: u64, len: u32, low: u64, high: u64) -> Option<u32> {
    if low > high {
        return None;
    }
    // Shift the start to 0; if the range then crosses 0, the start itself is inside.
    let (low, high) = ((low + modulus - start) % modulus, (high + modulus - start) % modulus);
    let first = if low > high { Some(0) } else { first_multiple_within(step, modulus, low, high) };
    first.and_then(|i| u32::try_from(i).ok()).filter(|&i| i < len)
}

/// Returns the smallest `x ≥ 0` with `low ≤ (a·x) mod m ≤ high`, where `0 ≤ low ≤ high < m` and `a < m`. Euclid's
/// algorithm on the pair (a, m), in O(log m).
fn first_multiple_within(a: u64, m: u64, low: u64, high: u64) -> Option<u64> {
    if low == 0 {
        return Some(0);
    }
    if a == 0 {
        return None;
    }
    if 2 * a > m {
        return first_multiple_within(m - a, m, m - high, m - low);
    }
    let within_first_lap = low.div_ceil(a);
    if within_first_lap * a <= high {
        return Some(within_first_lap);
    }
    // No multiple of a lies in the range, so the range keeps its order modulo a; it is reached after this number of
    // wraps.
    let laps = first_multiple_within((a - m % a) % a, a, low % a, high % a)?;
    Some((u128::from(low) + u128::from(m) * u128::from(laps)).div_ceil(u128::from(a)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reference implementation of [`first_outside`], step by step.
    fn search_steps(walk: Walk, len: u32, limit: u64) -> Option<u32> {
        (0..len).find(|&i| u64::from(walk.at(i)) >= limit)
    }

    proptest! {
        #[test]
        fn cyclic_walk_bounds_match_step_by_step_search(
            base in 0u32..200, start in 0u32..300, step in 0u32..300, modulus in 1u32..120, stride in 0u32..5,
            len in 0u32..200, limit in 0u64..900,
        ) {
            let walk = Walk { base, start, step, modulus, stride };
            prop_assert_eq!(first_outside(walk, len, limit), search_steps(walk, len, limit));
        }

        #[test]
        fn descending_walk_bounds_match_step_by_step_search(
            modulus in 1u32..100, start in 0u32..100, step in 0u32..100, back in 1u32..4, spare in 0u32..50,
            len in 0u32..150, limit in 0u64..500,
        ) {
            // The base is high enough never to cross 0.
            let walk = Walk { base: modulus * back + spare, start, step, modulus, stride: back.wrapping_neg() };
            prop_assert_eq!(first_outside(walk, len, limit), search_steps(walk, len, limit));
        }

        #[test]
        fn linear_walk_bounds_match_step_by_step_search(
            base: u32, start: u32, step: u32, stride in prop_oneof![0u32..5, any::<u32>()],
            len in 0u32..200, limit in 0u64..1 << 33,
        ) {
            let walk = Walk { base, start, step, modulus: 0, stride };
            prop_assert_eq!(first_outside(walk, len, limit), search_steps(walk, len, limit));
        }

        #[test]
        fn wrapping_cyclic_walks_are_rejected(
            base: u32, start: u32, step: u32, modulus in 1u32.., stride: u32, len in 0u32..200, limit in 0u64..1 << 33,
        ) {
            let walk = Walk { base, start, step, modulus, stride };
            if let Some(i) = search_steps(walk, len, limit) {
                prop_assert!(first_outside(walk, len, limit).is_some_and(|index| index <= i));
            }
        }
    }

    #[test]
    fn bounds_of_long_runs_are_found_without_iteration() {
        let walk = Walk::cyclic(0, 7, 12_345, 1 << 31);
        assert_eq!(first_outside(walk, u32::MAX, 1 << 31), None);
        assert!(first_outside(walk, u32::MAX, (1 << 31) - 1).is_some());
    }
}
