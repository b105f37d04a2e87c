//! Bounds of all_to_all and all_to_allv by link lengths: the dual of the multicommodity flow.
//!
//! Give every link a length. Each byte travels at least the shortest path by these lengths, and a link of capacity c
//! provides at most c × its length per second; so bytes × shortest paths, summed over all pairs, are at most the sum of
//! capacity × length × time (Shahrokhi & Matula, *The maximum concurrent flow problem*, JACM 1990, §2: optimal lengths
//! make this exact). Here all links of one kind and one nominal rate have length 1 and the others 0, for each kind in
//! turn, and once all links between network switches have length 1. On a torus, where all links are equivalent, this is
//! exact.

use fabricast_topologies::{NodeKind, Picos};

use super::cut::Direction;
use super::distance::Distances;
use super::line::{LinearBound, Share};
use super::parts::BoundaryCapacity;
use super::source::BoundSource;
use super::wiring::{Wire, Wiring};
use crate::flow::UNLIMITED;

/// Limit on the work of searches: (number of examined devices, one per set of twins) × (number of wires) × (number of
/// kinds of links). Kinds of links that would exceed it are skipped.
const MAX_WORK: usize = 1 << 22;

/// Amount that each device sends to each other device, as a share of `denominator`: blocks as a share of the blocks in
/// a rank's buffer, or bytes as a share of the bytes of the call.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'a> {
    /// Function that returns the amount that the first device sends to the second.
    pub between: &'a dyn Fn(u32, u32) -> u128,
    pub denominator: u128,
}

/// Returns lower bounds on an exchange between devices that follow from links of one kind. Each of `starts` is a
/// representative device and the number of devices that it represents. No byte arrives before `nearest`.
pub(super) fn all_pairs(wiring: &Wiring, starts: &[(u32, u32)], pairs: Pairs<'_>, nearest: Picos) -> Vec<LinearBound> {
    let finite = |wire: &&Wire| wire.capacity < UNLIMITED;
    let mut kinds: Vec<((NodeKind, NodeKind), u128)> =
        wiring.wires.iter().filter(finite).map(|wire| (ordered_ends(wire), wire.nominal)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    // Links between switches come first; for other links, the bounds of ports are equally tight.
    let trunk = (NodeKind::Switch, NodeKind::Switch);
    kinds.sort_by_key(|&(ends, _)| ends != trunk);
    let max_kinds = MAX_WORK / (starts.len() * wiring.wires.len()).max(1);
    let trunks = |wire: &Wire| wire.ends == trunk;
    let mut lines = Vec::new();
    if max_kinds > 0 && kinds.first().is_some_and(|&(ends, _)| ends == trunk) {
        lines.extend(line(wiring, starts, pairs, nearest, trunks));
    }
    for &(ends, nominal) in kinds.iter().take(max_kinds.saturating_sub(1)) {
        let is_kind = |wire: &Wire| ordered_ends(wire) == ends && wire.nominal == nominal;
        lines.extend(line(wiring, starts, pairs, nearest, is_kind));
    }
    lines
}

fn ordered_ends(wire: &Wire) -> (NodeKind, NodeKind) {
    let (a, b) = wire.ends;
    (a.min(b), a.max(b))
}

fn line(
    wiring: &Wiring,
    starts: &[(u32, u32)],
    pairs: Pairs<'_>,
    nearest: Picos,
    has_length: impl Fn(&Wire) -> bool,
) -> Option<LinearBound> {
    let has_length = |wire: &Wire| wire.capacity < UNLIMITED && has_length(wire);
    let length = |number: usize| u64::from(has_length(&wiring.wires[number]));
    let devices = starts.iter().map(|start| start.1 as usize).sum();
    let mut distances = Distances::with_lengths(wiring, devices, Direction::Away, length);
    let mut travelled = 0u128;
    for &(from, multiplicity) in starts {
        for (to, &distance) in (0u32..).zip(distances.distances_from([from])).take(devices) {
            if distance != u64::MAX {
                travelled += u128::from(distance) * (pairs.between)(from, to) * u128::from(multiplicity);
            }
        }
    }
    let through: u128 = wiring.wires.iter().filter(|wire| has_length(wire)).map(|wire| wire.capacity).sum();
    let boundary = BoundaryCapacity { through, nearest };
    (travelled > 0)
        .then(|| LinearBound::crossing(Share::new(travelled, pairs.denominator), boundary, BoundSource::LinkCapacity))
}
