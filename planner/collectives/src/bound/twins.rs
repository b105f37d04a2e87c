//! Interchangeable devices: a search from one of them has the same result as a search from any other.
//!
//! Twins have the same number of ranks and the same wires to the same neighbours, so that exchanging two of them maps
//! the graph onto itself: minimum cuts, flows and shortest paths from one equal those from the other. (Twins are never
//! neighbours, since exchanging them would turn a wire between them into one from each to itself.) On a switch with *n*
//! equal devices, one search represents *n*. Colours ([`super::colour`]) are a weaker condition: devices of one colour
//! need not be interchangeable.

use std::collections::BTreeMap;

use fabricast_topologies::{NodeKind, Picos};

use super::wiring::Wiring;

/// Wire as seen from its device: the other vertex, and all properties of a wire that searches use.
type Seen = (u32, WireDirection, (NodeKind, NodeKind), [u128; 2], Picos);

/// Direction of a wire from the device's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WireDirection {
    Out,
    In,
}

/// Twins among the devices of a graph.
#[derive(Clone, Debug)]
pub(super) struct InterchangeableDevices {
    /// First twin of each device, or the device itself if it is the first.
    first: Vec<u32>,
    /// First device of each set and the size of the set, in ascending order.
    sets: Vec<(u32, u32)>,
}

impl InterchangeableDevices {
    /// Finds the twins among devices with these numbers of ranks.
    pub(super) fn new(wiring: &Wiring, ranks: &[u32]) -> Self {
        let mut seen: Vec<Vec<Seen>> = vec![Vec::new(); ranks.len()];
        for wire in &wiring.wires {
            for (device, neighbour, direction) in
                [(wire.from, wire.to, WireDirection::Out), (wire.to, wire.from, WireDirection::In)]
            {
                if let Some(seen) = seen.get_mut(device as usize) {
                    seen.push((neighbour, direction, wire.ends, [wire.capacity, wire.nominal], wire.latency));
                }
            }
        }
        let mut known: BTreeMap<(u32, Vec<Seen>), usize> = BTreeMap::new();
        let mut sets: Vec<(u32, u32)> = Vec::new();
        let first = (0u32..).zip(ranks.iter().zip(seen)).map(|(device, (&ranks, mut seen))| {
            seen.sort_unstable();
            let set = *known.entry((ranks, seen)).or_insert_with(|| {
                sets.push((device, 0));
                sets.len() - 1
            });
            sets[set].1 += 1;
            sets[set].0
        });
        let first = first.collect();
        Self { first, sets }
    }

    /// Returns the number of sets of twins.
    pub(super) fn count(&self) -> usize {
        self.sets.len()
    }

    /// Returns one device of each set and the size of the set, in ascending order.
    pub(super) fn sets(&self) -> &[(u32, u32)] {
        &self.sets
    }

    /// Returns the first twin of a device, or the device itself if it is the first.
    pub(super) fn first(&self, device: u32) -> u32 {
        self.first.get(device as usize).copied().unwrap_or(device)
    }

    /// Returns one device of each other set, and one other device of the set of `device`, in ascending order.
    pub(super) fn others(&self, device: u32) -> Vec<u32> {
        let representative = self.first(device);
        let sibling = (0u32..).zip(&self.first).find(|&(other, &first)| first == representative && other != device);
        let mut others: Vec<u32> =
            self.sets.iter().map(|&(first, _)| first).filter(|&first| first != representative).collect();
        others.extend(sibling.map(|(other, _)| other));
        others.sort_unstable();
        others
    }
}
