//! Devices that forward only some turns (pairs of an incoming and an outgoing link), with their incoming links grouped
//! by the outgoing links that they continue on.
//!
//! Links come in bundles ([`IslandTraffic`]). An incoming link continues on whole bundles, or on a bundle except for
//! the link back to its start. The work for *n* devices at one switch is therefore proportional to the number of links,
//! not to that of turns.

use std::collections::BTreeMap;

use fabricast_topologies::NodeId;
use fabricast_topologies::route::{IslandTraffic, Turn, TurnDirection};
use rustc_hash::{FxHashMap, FxHashSet};

/// Device that does not forward all turns: the group of each incoming link, and the groups from which each outgoing
/// link is reachable. Links are numbered as in [`IslandTraffic`].
pub(super) struct Crossing {
    pub groups: u32,
    pub into: Vec<(u32, u32)>,
    pub out: Vec<(u32, Vec<u32>)>,
}

/// Input from which crossings are derived.
pub(super) struct Crossings<'a, E, P> {
    pub transit: &'a IslandTraffic,
    /// Function that returns the start and the end of a link.
    pub ends: E,
    /// Function that returns true if a device forwards all turns. A turn back to such a device has no effect on cuts,
    /// and may make incoming links equivalent.
    pub forwards_all: P,
}

/// Links of a bundle that leave one device: the number of them, by destination.
type LeavingLinks = FxHashMap<NodeId, u32>;

/// Subset of a bundle's links leaving a device on which an incoming link continues. Each subset has a unique
/// representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cover {
    All,
    AllBut(u32),
    Only(u32),
}

/// Cover of each bundle on which an incoming link continues, by bundle number.
type Onwards = BTreeMap<u32, Cover>;

impl<E: Fn(u32) -> (NodeId, NodeId), P: Fn(NodeId) -> bool> Crossings<'_, E, P> {
    /// Returns the devices that do not forward all turns, in order.
    pub(super) fn build(&self) -> Vec<Crossing> {
        let by_device = |at: fn((NodeId, NodeId)) -> NodeId| {
            let mut links: FxHashMap<(NodeId, u32), Vec<u32>> = FxHashMap::default();
            for (bundle, members) in (0..).zip(&self.transit.bundles) {
                for &link in members {
                    links.entry((at((self.ends)(link)), bundle)).or_default().push(link);
                }
            }
            links
        };
        let (arriving, leaving) = (by_device(|(_, to)| to), by_device(|(from, _)| from));
        let mut turns: BTreeMap<NodeId, Vec<Turn>> = BTreeMap::new();
        for &turn in &self.transit.turns {
            let out = self.transit.bundles.get(turn.out as usize).into_iter().flatten();
            let devices: FxHashSet<NodeId> = out.map(|&link| (self.ends)(link).0).collect();
            for device in devices {
                turns.entry(device).or_default().push(turn);
            }
        }
        turns.retain(|&device, _| !(self.forwards_all)(device));
        let crossing = |(device, turns): (NodeId, Vec<Turn>)| {
            let into = |bundle: u32| arriving.get(&(device, bundle)).map_or(&[][..], Vec::as_slice);
            let bundles: FxHashSet<u32> = turns.iter().map(|turn| turn.out).collect();
            let out = |bundle: u32| {
                let links = leaving.get(&(device, bundle)).into_iter().flatten();
                (bundle, links.map(|&link| ((self.ends)(link).1, link)).collect::<LeavingLinks>())
            };
            let leaving: BTreeMap<u32, LeavingLinks> = bundles.into_iter().map(out).collect();
            self.crossing(&turns, into, &leaving)
        };
        turns.into_iter().map(crossing).collect()
    }

    fn crossing<'l>(
        &self,
        turns: &[Turn],
        arriving: impl Fn(u32) -> &'l [u32],
        leaving: &BTreeMap<u32, LeavingLinks>,
    ) -> Crossing {
        let mut as_routed: BTreeMap<u32, Onwards> = BTreeMap::new();
        for turn in turns {
            let Some(out) = leaving.get(&turn.out) else { continue };
            for &link in arriving(turn.into) {
                let onwards = as_routed.entry(link).or_default();
                if let Some(cover) = Cover::from_turn(turn.onward, out, (self.ends)(link).0) {
                    cover.add_to(onwards, turn.out);
                }
            }
        }
        as_routed.retain(|_, onwards| !onwards.is_empty());
        let mut turning_back = as_routed.clone();
        for (&link, onwards) in &mut turning_back {
            let from = (self.ends)(link).0;
            if (self.forwards_all)(from) {
                for (&bundle, out) in leaving {
                    if let Some(cover) = Cover::from_turn(TurnDirection::Back, out, from) {
                        cover.add_to(onwards, bundle);
                    }
                }
            }
        }
        let [as_routed, turning_back] = [as_routed, turning_back].map(|onwards| group_links(&onwards, leaving));
        if turning_back.groups < as_routed.groups { turning_back } else { as_routed }
    }
}

impl Cover {
    /// Returns the links of a bundle on which an incoming link from a device continues by a turn; `None` if there are
    /// none.
    fn from_turn(onward: TurnDirection, out: &LeavingLinks, from: NodeId) -> Option<Self> {
        match (onward, out.get(&from)) {
            (TurnDirection::ToOthers, None) => Some(Self::All),
            (TurnDirection::ToOthers, Some(_)) if out.len() == 1 => None,
            // If there are two links, all except one are the other one.
            (TurnDirection::ToOthers, Some(&back)) if out.len() == 2 => {
                out.values().copied().find(|&link| link != back).map(Self::Only)
            }
            (TurnDirection::ToOthers, Some(&back)) => Some(Self::AllBut(back)),
            (TurnDirection::Back, None) => None,
            (TurnDirection::Back, Some(_)) if out.len() == 1 => Some(Self::All),
            (TurnDirection::Back, Some(&back)) => Some(Self::Only(back)),
        }
    }

    /// Adds this cover to that of a bundle. The union of two different covers is always the whole bundle.
    fn add_to(self, onwards: &mut Onwards, bundle: u32) {
        let known = onwards.entry(bundle).or_insert(self);
        if *known != self {
            *known = Self::All;
        }
    }

    fn contains(self, link: u32) -> bool {
        match self {
            Self::All => true,
            Self::AllBut(other) => link != other,
            Self::Only(only) => link == only,
        }
    }
}

fn group_links(onwards: &BTreeMap<u32, Onwards>, leaving: &BTreeMap<u32, LeavingLinks>) -> Crossing {
    let mut groups: BTreeMap<&Onwards, u32> = BTreeMap::new();
    let mut into = Vec::new();
    for (&link, onwards) in onwards {
        let number = groups.len() as u32;
        into.push((link, *groups.entry(onwards).or_insert(number)));
    }
    let mut out = Vec::new();
    for (bundle, links) in leaving {
        for &link in links.values() {
            let covers = |onwards: &Onwards| onwards.get(bundle).is_some_and(|cover| cover.contains(link));
            let from: Vec<u32> =
                groups.iter().filter(|(onwards, _)| covers(onwards)).map(|(_, &group)| group).collect();
            out.push((link, from));
        }
    }
    out.retain(|(_, from)| !from.is_empty());
    out.sort_unstable();
    Crossing { groups: groups.len() as u32, into, out }
}
