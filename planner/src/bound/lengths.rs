//! All_to_all by lengths: the dual of the multicommodity flow.
//!
//! Give every link a length. Each byte travels at least the shortest way by these lengths, and a link of capacity c
//! adds at most c × its length a second; so bytes × shortest ways, over all pairs, fit into the sum of
//! capacity × length × time (Shahrokhi & Matula, *The maximum concurrent flow problem*, JACM 1990, §2: the best
//! lengths make this exact). Here all links of one kind and capacity have length 1 and the others none, kind by kind,
//! and once all links between network switches have: on a torus, where each link is as good as any other, that is
//! the exact answer.

use fabricast_topologies::{NodeKind, Picos};

use super::cut::Direction;
use super::distance::Distances;
use super::flow::UNLIMITED;
use super::line::{Line, Share};
use super::parts::Way;
use super::source::BoundSource;
use super::twins::Twins;
use super::wiring::{Wire, Wiring};

/// Kinds of lengths are left out once devices (of twins one) × wires looked at are more than this.
const MOST_WORK: usize = 1 << 22;

/// What links of one kind force on an all_to_all between devices with these numbers of ranks; no byte flows before `nearest`.
pub(super) fn all_pairs(wiring: &Wiring, twins: &Twins, ranks: &[u32], nearest: Picos) -> Vec<Line> {
    let finite = |wire: &&Wire| wire.capacity < UNLIMITED;
    let mut kinds: Vec<((NodeKind, NodeKind), u128)> =
        wiring.wires.iter().filter(finite).map(|wire| (ordered(wire.ends), wire.capacity)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    // Links between switches first: elsewhere ports say as much.
    let trunk = (NodeKind::Switch, NodeKind::Switch);
    kinds.sort_by_key(|&(ends, _)| ends != trunk);
    let most = MOST_WORK / (twins.count() * wiring.wires.len()).max(1);
    let trunks = |wire: &Wire| wire.ends == trunk;
    let mut lines = Vec::new();
    if most > 0 && kinds.first().is_some_and(|&(ends, _)| ends == trunk) {
        lines.extend(line(wiring, twins, ranks, nearest, trunks));
    }
    for &(ends, capacity) in kinds.iter().take(most.saturating_sub(1)) {
        lines.extend(line(wiring, twins, ranks, nearest, |wire| {
            ordered(wire.ends) == ends && wire.capacity == capacity
        }));
    }
    lines
}

fn ordered((a, b): (NodeKind, NodeKind)) -> (NodeKind, NodeKind) {
    (a.min(b), a.max(b))
}

fn line(
    wiring: &Wiring,
    twins: &Twins,
    ranks: &[u32],
    nearest: Picos,
    has_length: impl Fn(&Wire) -> bool,
) -> Option<Line> {
    let has_length = |wire: &Wire| wire.capacity < UNLIMITED && has_length(wire);
    let length = |number: usize| u64::from(has_length(&wiring.wires[number]));
    let mut distances = Distances::by(wiring, ranks.len(), Direction::Away, length);
    let mut travelled = 0u128;
    for &(from, alike) in twins.sets() {
        let senders = alike * ranks[from as usize];
        for (&distance, &receivers) in distances.from([from]).iter().zip(ranks) {
            if distance != u64::MAX {
                travelled += u128::from(distance) * u128::from(senders) * u128::from(receivers);
            }
        }
    }
    let through: u128 = wiring.wires.iter().filter(|wire| has_length(wire)).map(|wire| wire.capacity).sum();
    let total: u128 = ranks.iter().map(|&ranks| u128::from(ranks)).sum();
    let way = Way { through, nearest };
    (travelled > 0).then(|| Line::crossing(Share::new(travelled, total), way, BoundSource::Lengths))
}
