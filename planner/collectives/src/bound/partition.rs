//! The partition of all ranks whose sets an all_reduce needs the longest time to exchange data between.
//!
//! If only ranks reduce, k disjoint sets that contain all ranks receive 2(k − 1) buffers in total: before the first of
//! them holds a sum, each other set has sent something that one of them received, and must still receive something
//! afterwards. With f(X) the bandwidth of the minimum cut into a set X, the time per byte is therefore at least
//! 2(k − 1) ÷ Σ f(X) for every partition. On a graph without switches, the minimum of Σ f(X) ÷ (k − 1) is the strength of
//! the graph (Cunningham, *Optimal attack and reinforcement of a network*, JACM 1985), which is the rate at which spanning
//! trees fit into it (Tutte 1961, Nash-Williams 1961).
//!
//! The minimum is found by Dinkelbach's method: for a ratio λ, the partition with the smallest Σ (f(X) − λ) either shows
//! that no ratio is below λ, or has one. Since f is submodular, a greedy algorithm finds that partition, with one maximum
//! flow per device (Dilworth truncation; Lovász, *Submodular functions and convexity*, 1983).

use super::cut::{Direction, Separation, separate};
use crate::flow::{self, Arc, FlowNetwork, UNLIMITED};
use crate::union_find::{join, root};

/// Limit on (number of devices) × (number of arcs) up to which partitions are searched: one maximum flow per device and step,
/// as on 16 hosts of 8 GPUs.
const MAX_SEARCH_WORK: usize = 1 << 17;

/// Disjoint sets that contain all devices with ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Vertices of each set, as a flag for each vertex: its devices, and the switches on their side of the minimum cut. Two
    /// sets may have switches in common.
    pub sets: Vec<Vec<bool>>,
    /// Sum of the bandwidths of the cuts around the sets, in bytes per second.
    pub through: u128,
}

impl Partition {
    /// Buffers that the sets receive in total.
    pub(crate) fn buffers(&self) -> u128 {
        2 * (self.sets.len() as u128).saturating_sub(1)
    }
}

/// Finds the partition with the largest ratio of k − 1 to the bandwidth of the cuts, for k sets. The first `devices` vertices
/// are the devices with ranks. `direction`: [`Direction::Towards`] for cuts into the sets, [`Direction::Away`] for cuts
/// out of them. `None` if there is only one device, no partition limits a call, some device is cut off, or the graph is too
/// large for a search.
pub(crate) fn slowest_partition(
    vertices: usize,
    arcs: &[Arc],
    devices: usize,
    direction: Direction,
) -> Option<Partition> {
    if devices < 2 || devices * arcs.len() > MAX_SEARCH_WORK {
        return None;
    }
    let finite = |arc: &&Arc| arc.2 < UNLIMITED;
    let total = arcs.iter().filter(finite).map(|arc| arc.2).fold(0, flow::sum);
    // A capacity above all finite ones: cuts through it limit nothing.
    let unlimited = total + 1;
    // The search starts at the set, against the links that enter it.
    let arcs: Vec<Arc> =
        arcs.iter().map(|&(from, to, capacity)| direction.directed((from, to, capacity.min(unlimited)))).collect();
    let search = Search { vertices, arcs, devices };
    let mut best = search.partition(&(0..devices as u32).collect::<Vec<u32>>());
    while best.through > 0 {
        let Some(labels) = search.slower(&best) else { break };
        let slower = search.partition(&labels);
        // The ratio decreases in exact arithmetic, so that the search ends.
        if slower.through * (best.sets.len() as u128 - 1) >= best.through * (slower.sets.len() as u128 - 1) {
            break;
        }
        best = slower;
    }
    (1..unlimited).contains(&best.through).then_some(best)
}

/// Graph in which flow starts at the set that a cut separates from the other devices.
struct Search {
    vertices: usize,
    arcs: Vec<Arc>,
    devices: usize,
}

impl Search {
    /// Returns the partition in which devices of equal labels are in one set.
    fn partition(&self, labels: &[u32]) -> Partition {
        let mut names = labels.to_vec();
        names.sort_unstable();
        names.dedup();
        let mut partition = Partition { sets: Vec::with_capacity(names.len()), through: 0 };
        for name in names {
            let inside: Vec<bool> = labels.iter().map(|&label| label == name).collect();
            let Separation { vertices_beyond, through } = separate(self.vertices as u32, &self.arcs, &inside);
            partition.sets.push(vertices_beyond.into_iter().map(|is_beyond| !is_beyond).collect());
            partition.through += through;
        }
        partition
    }

    /// Finds labels of a partition with a smaller ratio than that of a given one; `None` if there is none.
    ///
    /// With the ratio λ = p ÷ q, a value x(v) is assigned to one device after the other: as large as possible, so that no
    /// set X of the devices so far has a sum above q·f(X) − p. Sets that have it are tight, and the union of two tight sets
    /// with a device in common is tight. The tight sets partition the devices, and the sum of all values is the smallest
    /// one of q·f(X) − p over a partition.
    fn slower(&self, known: &Partition) -> Option<Vec<u32>> {
        let (p, q) = (known.through as i128, known.sets.len() as u128 - 1);
        let scaled: Vec<Arc> = self.arcs.iter().map(|&(from, to, capacity)| (from, to, capacity * q)).collect();
        let mut values: Vec<i128> = Vec::with_capacity(self.devices);
        let mut labels: Vec<u32> = (0..self.devices as u32).collect();
        for device in 0..self.devices as u32 {
            let assigned = || (0u32..).zip(values.iter().copied());
            // A device outside of the set forfeits a positive value, one inside costs a negative one.
            let positive = assigned().filter(|&(_, value)| value > 0);
            let gains: i128 = positive.clone().map(|(_, value)| value).sum();
            let arcs: Vec<Arc> = scaled
                .iter()
                .copied()
                .chain(positive.map(|(other, value)| (device, other, value.unsigned_abs())))
                .collect();
            let mut network = FlowNetwork::new(self.vertices, &arcs);
            let costs = assigned().filter(|&(_, value)| value < 0).map(|(other, value)| (other, value.unsigned_abs()));
            let later = (device + 1..self.devices as u32).map(|other| (other, UNLIMITED));
            let drains: Vec<(u32, u128)> = costs.chain(later).collect();
            let cut = network.run(device, drains, 1) as i128;
            for other in (0..device).filter(|&other| network.on_source_side(other)) {
                join(&mut labels, device, other);
            }
            values.push(cut - gains - p);
        }
        let smallest: i128 = values.iter().sum();
        let found = (0..self.devices as u32).map(|device| root(&mut labels, device)).collect();
        (smallest < -p).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns all partitions of `count` elements, as labels.
    fn partitions(count: usize) -> Vec<Vec<u32>> {
        let mut found: Vec<Vec<u32>> = vec![Vec::new()];
        for _ in 0..count {
            found = found
                .into_iter()
                .flat_map(|labels| {
                    let sets = labels.iter().max().map_or(0, |last| last + 1);
                    (0..=sets).map(move |label| labels.iter().copied().chain([label]).collect())
                })
                .collect();
        }
        found
    }

    /// Smallest bandwidth into a set of devices, over all sides that the switches may be on.
    fn bandwidth_into(vertices: usize, arcs: &[Arc], labels: &[u32], name: u32) -> u128 {
        let switches = vertices - labels.len();
        let sides = (0..1u32 << switches).map(|side| {
            let is_inside = |vertex: u32| match labels.get(vertex as usize) {
                Some(&label) => label == name,
                None => side >> (vertex as usize - labels.len()) & 1 == 1,
            };
            arcs.iter().filter(|&&(from, to, _)| !is_inside(from) && is_inside(to)).map(|arc| arc.2).sum::<u128>()
        });
        sides.min().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn the_partition_is_the_slowest_of_all(
            devices in 2usize..6,
            switches in 0usize..3,
            capacities in prop::collection::vec(0u128..8, 64),
        ) {
            let vertices = devices + switches;
            let pairs = (0..vertices as u32).flat_map(|from| (0..vertices as u32).map(move |to| (from, to)));
            let arcs: Vec<Arc> = pairs
                .zip(capacities.iter().cycle())
                .filter(|&((from, to), &capacity)| from != to && capacity > 3)
                .map(|((from, to), &capacity)| (from, to, capacity))
                .collect();
            // Largest ratio as a fraction.
            let mut slowest = (0u128, 1u128);
            let mut is_cut_off = false;
            for labels in partitions(devices) {
                let sets = labels.iter().max().map_or(0, |last| last + 1);
                let through: u128 = (0..sets).map(|name| bandwidth_into(vertices, &arcs, &labels, name)).sum();
                let buffers = 2 * u128::from(sets - 1);
                is_cut_off |= sets > 1 && through == 0;
                if buffers * slowest.1 > slowest.0 * through {
                    slowest = (buffers, through);
                }
            }
            match slowest_partition(vertices, &arcs, devices, Direction::Towards) {
                Some(found) => prop_assert_eq!(found.buffers() * slowest.1, slowest.0 * found.through),
                None => prop_assert!(is_cut_off, "{:?}", slowest),
            }
        }
    }

    #[test]
    fn pairs_with_wide_links_form_sets() {
        // Four pairs on a ring of narrow links.
        let link = |a: u32, b: u32, capacity: u128| [(a, b, capacity), (b, a, capacity)];
        let arcs: Vec<Arc> = (0..4)
            .flat_map(|pair| [link(2 * pair, 2 * pair + 1, 100), link(2 * pair, (2 * pair + 2) % 8, 10)])
            .flatten()
            .collect();
        let found = slowest_partition(8, &arcs, 8, Direction::Towards);
        assert_eq!(found.map(|found| (found.buffers(), found.through)), Some((6, 80)));
    }
}
