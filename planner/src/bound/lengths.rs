//! All_to_all and all_to_allv by lengths: the dual of the multicommodity flow.
//!
//! Give every link a length. Each byte travels at least the shortest way by these lengths, and a link of capacity c
//! adds at most c × its length a second; so bytes × shortest ways, over all pairs, fit into the sum of
//! capacity × length × time (Shahrokhi & Matula, *The maximum concurrent flow problem*, JACM 1990, §2: the best
//! lengths make this exact). Here all links of one kind that were built for one rate have length 1 and the others none, kind by kind,
//! and once all links between network switches have: on a torus, where each link is as good as any other, that is
//! the exact answer.

use fabricast_topologies::{NodeKind, Picos};

use super::cut::Direction;
use super::distance::Distances;
use super::flow::UNLIMITED;
use super::line::{Line, Share};
use super::parts::Way;
use super::source::BoundSource;
use super::wiring::{Wire, Wiring};

/// Kinds of lengths are left out once devices (of twins one) × wires looked at are more than this.
const MOST_WORK: usize = 1 << 22;

/// What each device sends to each, and what that is a share of: blocks and those of a rank's buffer, or bytes and those of
/// the call.
pub(super) type Pairs<'a> = (&'a dyn Fn(u32, u32) -> u128, u128);

/// What links of one kind force on an exchange between devices of which `starts` stand for others like
/// them (a device, how many it stands for); no byte flows before `nearest`.
pub(super) fn all_pairs(wiring: &Wiring, starts: &[(u32, u32)], pairs: Pairs<'_>, nearest: Picos) -> Vec<Line> {
    let finite = |wire: &&Wire| wire.capacity < UNLIMITED;
    let mut kinds: Vec<((NodeKind, NodeKind), u128)> =
        wiring.wires.iter().filter(finite).map(|wire| (ordered(wire.ends), wire.built)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    // Links between switches first: elsewhere ports say as much.
    let trunk = (NodeKind::Switch, NodeKind::Switch);
    kinds.sort_by_key(|&(ends, _)| ends != trunk);
    let most = MOST_WORK / (starts.len() * wiring.wires.len()).max(1);
    let trunks = |wire: &Wire| wire.ends == trunk;
    let mut lines = Vec::new();
    if most > 0 && kinds.first().is_some_and(|&(ends, _)| ends == trunk) {
        lines.extend(line(wiring, starts, pairs, nearest, trunks));
    }
    for &(ends, built) in kinds.iter().take(most.saturating_sub(1)) {
        let of_kind = |wire: &Wire| ordered(wire.ends) == ends && wire.built == built;
        lines.extend(line(wiring, starts, pairs, nearest, of_kind));
    }
    lines
}

fn ordered((a, b): (NodeKind, NodeKind)) -> (NodeKind, NodeKind) {
    (a.min(b), a.max(b))
}

fn line(
    wiring: &Wiring,
    starts: &[(u32, u32)],
    (between, whole): Pairs<'_>,
    nearest: Picos,
    has_length: impl Fn(&Wire) -> bool,
) -> Option<Line> {
    let has_length = |wire: &Wire| wire.capacity < UNLIMITED && has_length(wire);
    let length = |number: usize| u64::from(has_length(&wiring.wires[number]));
    let devices = starts.iter().map(|start| start.1 as usize).sum();
    let mut distances = Distances::by(wiring, devices, Direction::Away, length);
    let mut travelled = 0u128;
    for &(from, alike) in starts {
        for (to, &distance) in (0u32..).zip(distances.from([from])).take(devices) {
            if distance != u64::MAX {
                travelled += u128::from(distance) * between(from, to) * u128::from(alike);
            }
        }
    }
    let through: u128 = wiring.wires.iter().filter(|wire| has_length(wire)).map(|wire| wire.capacity).sum();
    let way = Way { through, nearest };
    (travelled > 0).then(|| Line::crossing(Share::new(travelled, whole), way, BoundSource::Lengths))
}
