//! Bounds of all_to_all and all_to_allv by link lengths: the dual of the multicommodity flow.
//!
//! Give every link a length. Each byte travels at least the shortest path by these lengths, and a link of capacity c
//! provides at most c × its length per second; so bytes × shortest paths, summed over all pairs, are at most the sum of
//! capacity × length × time (Shahrokhi & Matula, *The maximum concurrent flow problem*, JACM 1990, §2: optimal lengths
//! make this exact). The lengths are the best ones of a linear program (`best_lengths`) unless the graph is too large.
//! Further, all links of one kind and one nominal rate have length 1 and the others 0, for each kind in turn, and once all
//! links between network switches have length 1: on a torus, where all links are equivalent, this is exact, and it does
//! not depend on the rates of slow links.

use fabricast_topologies::{NodeKind, Picos};

use super::best_lengths::best_lengths;
use super::cut::Direction;
use super::distance::Distances;
use super::line::{LinearBound, Share};
use super::parts::BoundaryCapacity;
use super::source::BoundSource;
use super::wiring::{Wire, Wiring};
use crate::flow::UNLIMITED;

/// Limit on the work of searches: (number of examined devices, one per set of twins) × (number of wires) × (number of
/// choices of lengths). Further choices are skipped.
const MAX_WORK: usize = 1 << 22;

/// Amount that each device sends to each other device, as a share of `denominator`: blocks as a share of the blocks in
/// a rank's buffer, or bytes as a share of the bytes of the call.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'a> {
    /// Function that returns the amount that the first device sends to the second.
    pub between: &'a dyn Fn(u32, u32) -> u128,
    pub denominator: u128,
}

/// Returns lower bounds on an exchange between devices that follow from lengths of links. Each of `starts` is a
/// representative device and the number of devices that it represents. `colours`: function that returns the colours of
/// all vertices; devices of one colour exchange the same amounts. No byte arrives before `nearest`.
pub(super) fn all_pairs(
    wiring: &Wiring,
    starts: &[(u32, u32)],
    colours: impl FnOnce() -> Vec<u32>,
    pairs: Pairs<'_>,
    nearest: Picos,
) -> Vec<LinearBound> {
    let finite = |wire: &&Wire| wire.capacity < UNLIMITED;
    let mut kinds: Vec<((NodeKind, NodeKind), u128)> =
        wiring.wires.iter().filter(finite).map(|wire| (ordered_ends(wire), wire.nominal)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    // Links between switches come first; for other links, the bounds of ports are equally tight.
    let trunk = (NodeKind::Switch, NodeKind::Switch);
    kinds.sort_by_key(|&(ends, _)| ends != trunk);
    let trunks = |number: usize| u64::from(wiring.wires[number].ends == trunk);
    let has_trunks = kinds.first().is_some_and(|&(ends, _)| ends == trunk);
    let devices = starts.iter().map(|start| start.1 as usize).sum();
    let mut lines = Vec::new();
    let mut searches = MAX_WORK / (starts.len() * wiring.wires.len()).max(1);
    if has_trunks && searches > 0 {
        searches -= 1;
        lines.extend(line(wiring, starts, pairs, nearest, trunks));
    }
    if searches > 0
        && let Some(best) = best_lengths(wiring, &colours(), devices, pairs)
    {
        searches -= 1;
        lines.extend(line(wiring, starts, pairs, nearest, best));
    }
    for &(ends, nominal) in kinds.iter().take(searches) {
        let is_kind = |wire: &Wire| ordered_ends(wire) == ends && wire.nominal == nominal;
        lines.extend(line(wiring, starts, pairs, nearest, |number| u64::from(is_kind(&wiring.wires[number]))));
    }
    lines
}

fn ordered_ends(wire: &Wire) -> (NodeKind, NodeKind) {
    let (a, b) = wire.ends;
    (a.min(b), a.max(b))
}

/// Number of bits of travelled lengths, so that products with bytes and picoseconds fit into 128 bits.
const TRAVELLED_BITS: u32 = 40;

/// Returns the lower bound of lengths of wires, given by number; `None` if nothing has a length, or numbers exceed 128
/// bits.
fn line(
    wiring: &Wiring,
    starts: &[(u32, u32)],
    pairs: Pairs<'_>,
    nearest: Picos,
    length: impl Fn(usize) -> u64,
) -> Option<LinearBound> {
    let length = |number: usize| if wiring.wires[number].capacity < UNLIMITED { length(number) } else { 0 };
    let devices = starts.iter().map(|start| start.1 as usize).sum();
    let mut distances = Distances::with_lengths(wiring, devices, Direction::Away, length);
    let mut travelled = 0u128;
    for &(from, multiplicity) in starts {
        for (to, &distance) in (0u32..).zip(distances.distances_from([from])).take(devices) {
            if distance != u64::MAX {
                let each = u128::from(distance).checked_mul((pairs.between)(from, to))?;
                travelled = travelled.checked_add(each.checked_mul(multiplicity.into())?)?;
            }
        }
    }
    let capacities = wiring.wires.iter().enumerate().filter(|&(number, _)| length(number) > 0);
    let mut through = 0u128;
    for (number, wire) in capacities {
        through = through.checked_add(wire.capacity.checked_mul(length(number).into())?)?;
    }
    // Both are rounded such that the bound does not grow.
    let shift = (u128::BITS - travelled.leading_zeros()).saturating_sub(TRAVELLED_BITS);
    let (travelled, through) = (travelled >> shift, through.div_ceil(1 << shift));
    pairs.denominator.checked_mul(through)?;
    let boundary = BoundaryCapacity { through, nearest };
    (travelled > 0)
        .then(|| LinearBound::crossing(Share::new(travelled, pairs.denominator), boundary, BoundSource::LinkCapacity))
}
