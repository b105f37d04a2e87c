//! Rings and paths that use all links of hosts whose ranks are linked in pairs, such as the xGMI links of eight MI300X.
//!
//! A ring uses one of the n − 1 links of each rank. Different channels therefore take different rings, so that every
//! link direction carries the same number of channels.
//!
//! With n even, the sequence 0, 1, −1, 2, −2, … modulo m = n − 1, closed by rank m, is a ring. Its rotations by
//! 0, …, m − 1 use every link twice, since each difference modulo m occurs twice in the sequence; with the reverse of
//! each ring, every direction carries two of 2(n − 1) rings. With n odd, the same sequence modulo m = n − 1 and its
//! first m/2 rotations use every link once. For n even, the sequence modulo n without a last rank is a path, whose
//! rotations by 0, …, n/2 − 1 use every link once. Together with their reverses they begin at n different ranks.
//!
//! Sources: Walecki's construction (É. Lucas, *Récréations mathématiques* II, 1883, pp. 162 to 164). RCCL's rings and
//! paths use the links equally, too (src/graph/rome_models.cc, models 79 and 81: 14 rings, 8 paths).

/// Returns the sequence 0, 1, −1, 2, −2, … of all residues modulo `modulus`, plus `shift`.
fn zigzag(modulus: u32, shift: u32) -> Vec<u32> {
    let at = |step: u32| if step % 2 == 1 { step.div_ceil(2) } else { (modulus - step / 2) % modulus };
    (0..modulus).map(|step| (at(step) + shift) % modulus).collect()
}

/// Returns each sequence, followed by its reverse.
fn with_reverses(sequences: impl Iterator<Item = Vec<u32>>) -> Vec<Vec<u32>> {
    let both = |sequence: Vec<u32>| {
        let reverse = sequence.iter().rev().copied().collect();
        [sequence, reverse]
    };
    sequences.flat_map(both).collect()
}

/// Returns the number of rings that [`rings`] returns.
#[must_use]
pub(crate) fn ring_count(ranks: u32) -> u32 {
    match ranks {
        0..3 => 0,
        _ if ranks.is_multiple_of(2) => 2 * (ranks - 1),
        _ => ranks - 1,
    }
}

/// Returns rings over ranks that are linked in pairs. The rings use every direction of every link equally. Returns no
/// rings for fewer than three ranks.
pub(super) fn rings(ranks: u32) -> Vec<Vec<u32>> {
    let modulus = ranks.saturating_sub(1);
    let closed = |shift| zigzag(modulus, shift).into_iter().chain([modulus]).collect();
    with_reverses((0..ring_count(ranks) / 2).map(closed))
}

/// Returns a path that begins at `first`, over an even number of ranks that are linked in pairs. The paths of all first
/// ranks use every direction of every link once.
pub(super) fn path(ranks: u32, first: u32) -> Vec<u32> {
    let half = ranks / 2;
    let path = zigzag(ranks, first % half.max(1));
    if first < half { path } else { path.into_iter().rev().collect() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Counts the uses of each link direction.
    fn uses(links: impl Iterator<Item = (u32, u32)>) -> BTreeMap<(u32, u32), u32> {
        let mut uses = BTreeMap::new();
        links.for_each(|link| *uses.entry(link).or_default() += 1);
        uses
    }

    #[test]
    fn rings_use_every_link_direction_equally() {
        for ranks in 3..17u32 {
            let rings = rings(ranks);
            assert_eq!(rings.len(), ring_count(ranks) as usize);
            for ring in &rings {
                let mut sorted = ring.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..ranks), "{ring:?}");
            }
            let links = rings.iter().flat_map(|ring| ring.iter().copied().zip(ring.iter().copied().cycle().skip(1)));
            let uses = uses(links);
            assert_eq!(uses.len(), (ranks * (ranks - 1)) as usize);
            assert!(uses.values().all(|&count| count == 2 - ranks % 2), "{ranks}: {uses:?}");
        }
    }

    #[test]
    fn paths_begin_at_every_rank_and_use_every_link_direction_once() {
        for ranks in [2, 4, 6, 8, 16] {
            let paths: Vec<Vec<u32>> = (0..ranks).map(|first| path(ranks, first)).collect();
            assert!(paths.iter().map(|path| path[0]).eq(0..ranks));
            let mut last: Vec<u32> = paths.iter().map(|path| path[ranks as usize - 1]).collect();
            last.sort_unstable();
            assert!(last.into_iter().eq(0..ranks));
            let uses = uses(paths.iter().flat_map(|path| path.windows(2)).map(|pair| (pair[0], pair[1])));
            assert_eq!(uses.len(), (ranks * (ranks - 1)) as usize);
            assert!(uses.values().all(|&count| count == 1));
        }
    }
}
