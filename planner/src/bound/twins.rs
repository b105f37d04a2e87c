//! Devices that may be interchanged: searches from one of them say what searches from each would.
//!
//! Twins have the same ranks and the same wires to the same neighbours, so that to exchange two of them maps the graph
//! onto itself: least cuts, flows and shortest ways from one are those from the other. (Two twins are no neighbours: a
//! wire between them would join each to itself.) On a switch of *n* equal devices one search stands for *n*. Colours
//! ([`super::colour`]) say less: devices of one colour look alike, twins are.

use std::collections::BTreeMap;

use fabricast_topologies::{NodeKind, Picos};

use super::wiring::Wiring;

/// A wire as its device sees it: the other vertex, and all that searches ask of a wire.
type Seen = (u32, Way, (NodeKind, NodeKind), u128, Picos);

/// Which way a wire leads, for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Out,
    In,
}

/// The twins among the devices of a graph.
#[derive(Clone, Debug)]
pub(super) struct Twins {
    /// The first twin of each device: itself, where it has none before it.
    first: Vec<u32>,
    /// The first of each set, ascending, and how many there are.
    sets: Vec<(u32, u32)>,
}

impl Twins {
    /// Among devices with these numbers of ranks.
    pub(super) fn new(wiring: &Wiring, ranks: &[u32]) -> Self {
        let mut seen: Vec<Vec<Seen>> = vec![Vec::new(); ranks.len()];
        for wire in &wiring.wires {
            for (own, other, way) in [(wire.from, wire.to, Way::Out), (wire.to, wire.from, Way::In)] {
                if let Some(seen) = seen.get_mut(own as usize) {
                    seen.push((other, way, wire.ends, wire.capacity, wire.latency));
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

    /// How many devices no two of which are twins there are.
    pub(super) fn count(&self) -> usize {
        self.sets.len()
    }

    /// One of each set and how many are in it, ascending.
    pub(super) fn sets(&self) -> &[(u32, u32)] {
        &self.sets
    }

    /// The first twin of a device: itself, where it has none before it.
    pub(super) fn first(&self, device: u32) -> u32 {
        self.first.get(device as usize).copied().unwrap_or(device)
    }

    /// One of each set, and one of those that `device` leaves behind in its own, ascending.
    pub(super) fn others(&self, device: u32) -> Vec<u32> {
        let own = self.first(device);
        let behind = (0u32..).zip(&self.first).find(|&(other, &first)| first == own && other != device);
        let mut others: Vec<u32> = self.sets.iter().map(|&(first, _)| first).filter(|&first| first != own).collect();
        others.extend(behind.map(|(other, _)| other));
        others.sort_unstable();
        others
    }
}
