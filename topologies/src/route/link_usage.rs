//! Superset of the links that traffic between some devices can use inside islands. Lower bounds on completion time use
//! its capacity.
//!
//! A large cluster has too many pairs of devices to examine every route. A route consists of three segments that depend
//! on few properties: out of an island, through the network, into another island. Islands of one shape whose ports lead
//! to the same devices form a kind; routes leave and enter all islands of a kind by the same ports. One island
//! represents its kind, and pairs of kinds represent pairs of islands. The network is not analysed: any of its links
//! may be used.
//!
//! Inside an island a few interchangeable devices (twins) represent all of them, unless they differ in their routes to
//! the network. Results are given per bundle (links that are equivalent for twins), because *n* devices on one switch
//! have n² pairs of consecutive links there.
//!
//! If there are more than [`MAX_PAIRS`] pairs to examine (a torus has one kind per host), each device is assumed to use
//! all its best exits and entries.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::attach::{entry, exit};
use super::attachments::Attachment;
use super::island_routes::IslandRoute;
use super::participants::{Participants, RelaySet};
use super::segment::{PathSelection, Segment, picos};
use super::shape::Shape;
use super::twin_classes::TwinClasses;
use super::{PathClass, Router, relay};
use crate::{LinkId, NodeId, Picos};

/// Maximum number of device pairs whose routes through the network are examined individually.
const MAX_PAIRS: usize = 1 << 17;

/// Use of links by traffic within equivalent islands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IslandTraffic {
    /// The islands, by index. [`Router::island_link`] converts the link numbers of the other fields into the links of
    /// each.
    pub islands: Vec<u32>,
    /// Link directions in use, including those to and from the network, in ascending order.
    pub links: Vec<u32>,
    /// Groups of equivalent links, each in ascending order. Every link in use is in exactly one.
    pub bundles: Vec<Vec<u32>>,
    /// Pairs of consecutive bundles on some route, in ascending order. Two links of an island with a path through the
    /// network between them are not a pair.
    pub turns: Vec<Turn>,
    /// Links inside the island that only carry traffic to and from the network, in ascending order.
    pub network_only: Vec<u32>,
    /// Network ports of each device with traffic.
    pub ports: Vec<DevicePorts>,
    /// Latency of the shortest route between two of the devices in one host of such an island; `None` if there is none.
    pub host_latency: Option<Picos>,
    /// Latency of the shortest route between two hosts of such an island; `None` if there is none.
    pub inter_host_latency: Option<Picos>,
    /// Latency of the shortest route from such an island to another; `None` if there is none.
    pub network_latency: Option<Picos>,
}

/// Links between an island and the network that the routes of one device use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePorts {
    /// The device, in the numbering of [`Router::island_device`].
    pub device: u32,
    /// Link directions from the network, in ascending order.
    pub into: Vec<u32>,
    /// Link directions to the network, in ascending order.
    pub out: Vec<u32>,
}

/// Two consecutive bundles: traffic that arrives on any link of `into` continues on links of `out` that begin where
/// that link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// Index in [`IslandTraffic::bundles`] of the bundle of incoming links.
    pub into: u32,
    /// Index in [`IslandTraffic::bundles`] of the bundle of outgoing links.
    pub out: u32,
    /// Selection among the links of the outgoing bundle.
    pub onward: TurnDirection,
}

/// Next device of a turn, relative to the device from which the traffic comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TurnDirection {
    /// Every device except the one that the traffic comes from.
    ToOthers,
    /// The device that the traffic comes from (down a PCIe switch again, after host memory).
    Back,
}

/// Set of devices of an island that a survey examines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SurveyScope {
    /// One or two representatives of each class of interchangeable devices.
    OneOfTwins,
    /// All devices.
    #[cfg_attr(not(test), expect(dead_code, reason = "what the other is held against"))]
    EveryDevice,
}

/// An island and its kind, both as indices.
#[derive(Clone, Copy)]
struct KindMember {
    kind: usize,
    island: u32,
}

/// Islands of one shape whose ports lead to the same devices, so that traffic leaves and enters all of them by the same
/// ports.
struct IslandKind {
    islands: Vec<u32>,
    /// Devices with traffic, in the numbering of the shape.
    devices: Vec<u32>,
    /// Exits in use: pairs of device and port.
    exits: BTreeSet<(u32, u32)>,
    entries: BTreeSet<(u32, u32)>,
    between_islands: Option<Picos>,
}

/// Key of a kind: shape, devices with traffic, and the devices that the ports lead to.
type KindKey = (u32, Vec<u32>, Vec<NodeId>);

impl IslandKind {
    /// Ports used by each device. Link numbers of ports follow the `inside` link numbers of the shape.
    fn device_ports(&self, inside: u32) -> Vec<DevicePorts> {
        let list_ports = |pairs: &BTreeSet<(u32, u32)>, device: u32, direction: u32| {
            let ports = pairs.range((device, 0)..=(device, u32::MAX));
            ports.map(|&(_, port)| inside + 2 * port + direction).collect()
        };
        let ports = |&device: &u32| DevicePorts {
            device,
            into: list_ports(&self.entries, device, 1),
            out: list_ports(&self.exits, device, 0),
        };
        self.devices.iter().map(ports).collect()
    }
}

impl Router<'_> {
    /// Links that traffic between `devices` can use, one entry per kind of island, in order of the first island. The
    /// result is a superset of the links of all routes, with all equal-cost paths. If NVLinks join some of the devices
    /// but not all, routes without NVLink are included, because software may choose them and they remain after a
    /// failure.
    #[must_use]
    pub fn island_traffic(&self, devices: &[NodeId]) -> Vec<IslandTraffic> {
        self.survey_islands(devices, MAX_PAIRS, SurveyScope::OneOfTwins)
    }

    pub(super) fn survey_islands(
        &self,
        devices: &[NodeId],
        max_pairs: usize,
        surveyed: SurveyScope,
    ) -> Vec<IslandTraffic> {
        let mut kinds = self.kinds(devices);
        let participants = Participants::new(devices);
        let pairs: usize = kinds.iter().map(|kind| kind.devices.len()).sum::<usize>().pow(2);
        if pairs <= max_pairs {
            self.collect_used_ports(&mut kinds, &participants);
        } else {
            self.collect_best_ports(&mut kinds);
        }
        kinds.into_iter().map(|kind| self.transit(kind, surveyed)).collect()
    }

    /// Converts the number of a link direction in an [`IslandTraffic`] to the link of one of its islands.
    #[must_use]
    pub fn island_link(&self, island: u32, number: u32) -> LinkId {
        let inside = self.islands.shape(island).link_count();
        match number.checked_sub(inside) {
            None => self.islands.link(island, number),
            Some(port) => {
                let out = self.islands.port(island, port >> 1);
                if port & 1 == 0 { out } else { out.reverse() }
            }
        }
    }

    /// Converts the device number of a [`DevicePorts`] to the device in one of the islands with this traffic.
    #[must_use]
    pub fn island_device(&self, island: u32, number: u32) -> NodeId {
        self.islands.node(island, number)
    }

    /// The turns of `transit` in one of its islands as pairs of links, in ascending order. *n* devices joined by a
    /// switch have n² turns.
    #[must_use]
    pub fn island_turns(&self, island: u32, transit: &IslandTraffic) -> Vec<(LinkId, LinkId)> {
        let bundle = |number: u32| {
            let links = transit.bundles.get(number as usize).into_iter().flatten();
            links.map(|&link| self.island_link(island, link)).collect::<Vec<_>>()
        };
        let mut turns = Vec::new();
        for turn in &transit.turns {
            let (into, out) = (bundle(turn.into), bundle(turn.out));
            for &into in &into {
                let (from, at) = self.fabric.ends(into);
                turns.extend(out.iter().filter_map(|&out| {
                    let (start, end) = self.fabric.ends(out);
                    let onward = if end == from { TurnDirection::Back } else { TurnDirection::ToOthers };
                    (start == at && onward == turn.onward).then_some((into, out))
                }));
            }
        }
        turns.sort_unstable();
        turns
    }

    /// Index of the island of a device.
    #[must_use]
    pub fn island_of(&self, device: NodeId) -> u32 {
        self.islands.island_of(device)
    }

    /// Returns true if a device forwards network traffic.
    #[must_use]
    pub fn forwards(&self, device: NodeId) -> bool {
        self.network.number(device).is_some()
    }

    fn kinds(&self, devices: &[NodeId]) -> Vec<IslandKind> {
        let mut island_devices: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for &device in devices {
            island_devices.entry(self.islands.island_of(device)).or_default().push(self.islands.local(device));
        }
        let mut known: BTreeMap<KindKey, usize> = BTreeMap::new();
        let mut kinds: Vec<IslandKind> = Vec::new();
        for (island, mut devices) in island_devices {
            devices.sort_unstable();
            devices.dedup();
            let ports = 0..self.islands.shape(island).ports().len() as u32;
            let remote_nodes = ports.map(|port| self.fabric.link(self.islands.port(island, port)).to).collect();
            let number =
                *known.entry((self.islands.shape_number(island), devices, remote_nodes)).or_insert_with_key(|key| {
                    kinds.push(IslandKind {
                        islands: Vec::new(),
                        devices: key.1.clone(),
                        exits: BTreeSet::new(),
                        entries: BTreeSet::new(),
                        between_islands: None,
                    });
                    kinds.len() - 1
                });
            if let Some(kind) = kinds.get_mut(number) {
                kind.islands.push(island);
            }
        }
        kinds
    }

    /// Collects the exits and entries that the routes between all pairs use.
    fn collect_used_ports(&self, kinds: &mut [IslandKind], participants: &Participants) {
        for a in 0..kinds.len() {
            for b in 0..kinds.len() {
                let Some(&from) = kinds[a].islands.first() else { continue };
                // The destination is another island of the same kind, if there is one.
                let to = if a == b { kinds[b].islands.get(1) } else { kinds[b].islands.first() };
                if let Some(&to) = to {
                    self.collect_pair_ports(
                        kinds,
                        participants,
                        KindMember { kind: a, island: from },
                        KindMember { kind: b, island: to },
                    );
                }
            }
            if let Some(&island) = kinds[a].islands.first() {
                let member = KindMember { kind: a, island };
                self.collect_pair_ports(kinds, participants, member, member);
            }
        }
    }

    fn collect_pair_ports(
        &self,
        kinds: &mut [IslandKind],
        participants: &Participants,
        source: KindMember,
        target: KindMember,
    ) {
        let (KindMember { kind: a, island: from }, KindMember { kind: b, island: to }) = (source, target);
        let relaying = RelaySet::Among(participants);
        let (sources, targets) = (kinds[a].devices.clone(), kinds[b].devices.clone());
        for &x in &sources {
            for &y in &targets {
                let inside = from == to && (x == y || self.route_in_island(from, x, y, relaying).is_some());
                if inside {
                    continue;
                }
                let (source, target) = (self.islands.node(from, x), self.islands.node(to, y));
                for candidate in self.network_candidates(source, target) {
                    kinds[a].exits.insert((x, candidate.exit.port));
                    kinds[b].entries.insert((y, candidate.entry.port));
                    let latency = picos(self.latency(&candidate));
                    kinds[a].between_islands = shorter(kinds[a].between_islands, latency);
                }
            }
        }
    }

    /// Collects all exits and entries that could be the best ones for some pair.
    fn collect_best_ports(&self, kinds: &mut [IslandKind]) {
        let leads_on = |island: u32| {
            let ports = 0..self.islands.shape(island).ports().len() as u32;
            ports.map(|port| self.fabric.link(self.islands.port(island, port)).to).all(|remote| self.forwards(remote))
        };
        let joined =
            self.network.is_joined() && kinds.iter().filter_map(|kind| kind.islands.first()).all(|&i| leads_on(i));
        let mut shortest_entry = None;
        let mut worst_entry = 0;
        for kind in &mut *kinds {
            let Some(&island) = kind.islands.first() else { continue };
            let shape = self.islands.shape(island);
            for &device in &kind.devices {
                let attachments = shape.attachments(device, &self.options);
                // If the network connects all forwarding devices, every sender uses the same ports.
                let entries = if joined {
                    self.entries(attachments, island, |_| true)
                } else {
                    Cow::Borrowed(&attachments.entries[..])
                };
                for entry in entries.iter() {
                    kind.entries.insert((device, entry.port));
                    shortest_entry = shorter(shortest_entry, self.latency_behind_port(shape, entry));
                    worst_entry = worst_entry.max(entry.tier);
                }
            }
        }
        for kind in &mut *kinds {
            let Some(shape) = kind.islands.first().map(|&island| self.islands.shape(island)) else { continue };
            for &device in &kind.devices {
                let exits = &shape.attachments(device, &self.options).exits;
                // A worse exit is as good as the best one if the entry is no better.
                let tier = exits.first().map_or(0, |best| best.tier).max(worst_entry);
                for exit in exits.iter().filter(|exit| !joined || exit.tier <= tier) {
                    kind.exits.insert((device, exit.port));
                    kind.between_islands = shorter(kind.between_islands, picos(exit.latency));
                }
            }
        }
        for kind in kinds {
            kind.between_islands = kind.between_islands.zip(shortest_entry).map(|(exit, entry)| exit + entry);
        }
    }

    /// Latency of an entry without the latency of the port's own link. A direct cable between two islands has its
    /// latency counted on the sending side.
    fn latency_behind_port(&self, shape: &Shape, entry: &Attachment) -> Picos {
        let port = shape.ports().get(entry.port as usize).and_then(|port| port.back);
        picos(entry.latency.saturating_sub(port.map_or(0, |(_, latency)| latency.0)))
    }

    fn transit(&self, kind: IslandKind, surveyed: SurveyScope) -> IslandTraffic {
        let Some(&island) = kind.islands.first() else { return IslandTraffic::default() };
        let shape = self.islands.shape(island);
        let twin_traffic = match surveyed {
            SurveyScope::OneOfTwins => self.survey(shape, &kind, &self.classes(shape, &kind)),
            SurveyScope::EveryDevice => None,
        };
        let traffic = twin_traffic.or_else(|| self.survey(shape, &kind, &TwinClasses::marked(shape, |_| None::<()>)));
        IslandTraffic { islands: kind.islands, network_latency: kind.between_islands, ..traffic.unwrap_or_default() }
    }

    /// Classes of twins with equal routes. Either all members of a class have traffic or none has. No route between
    /// another device and the network passes through a member of a class with several members, because such routes
    /// depend on the ports of the device.
    fn classes<'s>(&self, shape: &'s Shape, kind: &IslandKind) -> TwinClasses<'s> {
        let mut wanted = vec![false; shape.nodes().len()];
        for &device in &kind.devices {
            wanted[device as usize] = true;
        }
        let mut alone = vec![false; shape.nodes().len()];
        for route in self.exit_routes(shape, kind).chain(self.entry_routes(shape, kind)) {
            for part in &route.1.segment.parts {
                let link = shape.link(part.link);
                alone[link.from as usize] = true;
                alone[link.to as usize] = true;
            }
        }
        TwinClasses::marked(shape, |device| (!alone[device as usize]).then_some(wanted[device as usize]))
    }

    /// The routes to the network that traffic uses, with their ports.
    fn exit_routes<'s>(
        &'s self,
        shape: &'s Shape,
        kind: &'s IslandKind,
    ) -> impl Iterator<Item = (u32, Cow<'s, IslandRoute>)> {
        let exit_route = |&(device, port): &(u32, u32)| Some((port, exit(shape, device, port, &self.options)?.1));
        kind.exits.iter().filter_map(exit_route)
    }

    /// The routes from the network that traffic uses, with their ports.
    fn entry_routes<'s>(
        &'s self,
        shape: &'s Shape,
        kind: &'s IslandKind,
    ) -> impl Iterator<Item = (u32, Cow<'s, IslandRoute>)> {
        let entry_route = |&(device, port): &(u32, u32)| Some((port, entry(shape, device, port, &self.options)?.1));
        kind.entries.iter().filter_map(entry_route)
    }

    /// Examines the routes of one or two devices of each class, which represent all devices of the class. Returns
    /// `None` if routes depend on link numbers, so that twins do not have equivalent routes.
    fn survey(&self, shape: &Shape, kind: &IslandKind, classes: &TwinClasses<'_>) -> Option<IslandTraffic> {
        let mut transit = IslandTraffic::default();
        let mut marks = Marks { shape, classes, links: BTreeSet::new(), turns: BTreeSet::new() };
        let inside = shape.link_count();
        let bare = self.is_partly_joined(shape, kind, classes).then(|| shape.without_nvlinks());
        for (x, y) in classes.pairs(|device| kind.devices.binary_search(&device).is_ok()) {
            let route = shape.route_between(x, y, &self.options);
            let rank = |middle: u32| kind.devices.binary_search(&middle).ok().map(|rank| rank as u32);
            if let Some(route) = bare.and_then(|bare| bare.route_between(x, y, &self.options)) {
                marks.add(&route.segment, None, None);
            }
            // A relayed route is two routes between participating devices in sequence; turns at a device are
            // unrestricted.
            let is_relayed = relay::find_relay_route(shape, x, y, &self.options, route.as_deref(), rank).is_some();
            let Some(route) = route else { continue };
            if route.segment.selection == PathSelection::One && classes.has_multiple_members() {
                return None;
            }
            marks.add(&route.segment, None, None);
            if is_relayed {
                continue;
            }
            let same_host = shape.node(x).host == shape.node(y).host;
            let shortest = if same_host { &mut transit.host_latency } else { &mut transit.inter_host_latency };
            *shortest = shorter(*shortest, picos(route.segment.latency));
        }
        marks.add_parallels(|device| kind.devices.binary_search(&device).is_ok());
        let between_devices = marks.links.clone();
        for (port, route) in self.exit_routes(shape, kind) {
            marks.add(&route.segment, None, Some(inside + 2 * port));
        }
        for (port, route) in self.entry_routes(shape, kind) {
            marks.add(&route.segment, Some(inside + 2 * port + 1), None);
        }
        let network_only = marks.links.difference(&between_devices).filter(|&&link| link < inside);
        transit.network_only = network_only.flat_map(|&link| classes.class_links(link)).collect();
        transit.network_only.sort_unstable();
        transit.ports = kind.device_ports(inside);
        marks.write_to(&mut transit);
        Some(transit)
    }

    /// Returns true if the island was built with NVLinks between some of the devices but not between others.
    fn is_partly_joined(&self, shape: &Shape, kind: &IslandKind, classes: &TwinClasses<'_>) -> bool {
        let built = shape.as_built();
        let pairs = classes.pairs(|device| kind.devices.binary_search(&device).is_ok());
        let is_joined =
            |(x, y)| built.route_between(x, y, &self.options).is_some_and(|route| route.class <= PathClass::Nvl);
        let (joined, all) =
            pairs.into_iter().map(is_joined).fold((0, 0), |(joined, all), is| (joined + u32::from(is), all + 1));
        0 < joined && joined < all
    }
}

/// Links and turns of an island that are marked as used, each identified by the representative link of its bundle.
struct Marks<'s> {
    shape: &'s Shape,
    classes: &'s TwinClasses<'s>,
    links: BTreeSet<u32>,
    turns: BTreeSet<(u32, u32, TurnDirection)>,
}

impl Marks<'_> {
    /// Marks the links and turns of a segment. `before` is the link by which traffic arrives and `after` the link by
    /// which traffic leaves, if any.
    fn add(&mut self, segment: &Segment, before: Option<u32>, after: Option<u32>) {
        for link in before.into_iter().chain(after) {
            self.links.insert(link);
        }
        let last = segment.parts.last().map(|part| part.layer);
        if let (Some(before), Some(after), None) = (before, after, last) {
            self.turn(before, after);
        }
        for part in &segment.parts {
            self.links.insert(self.bundle(part.link));
            if let Some(before) = before.filter(|_| part.layer == 0) {
                self.turn(before, part.link);
            }
            if let Some(after) = after.filter(|_| Some(part.layer) == last) {
                self.turn(part.link, after);
            }
            for next in segment.parts.iter().filter(|next| next.layer == part.layer + 1 && next.from == part.to) {
                self.turn(part.link, next.link);
            }
        }
    }

    /// Adds the links that are parallel to those between two devices. A route uses the subset of parallel links with
    /// the highest total bandwidth, and a failed link may change this subset. No turns are added, because turns at a
    /// device are unrestricted.
    fn add_parallels(&mut self, is_device: impl Fn(u32) -> bool) {
        let shape = self.shape;
        let ends = |link: u32| (shape.link(link).from, shape.link(link).to);
        let joining = self.links.iter().filter(|&&link| is_device(ends(link).0) && is_device(ends(link).1));
        let parallel_to = |&link: &u32| {
            let leaving = shape.outgoing_links(ends(link).0).iter().copied();
            leaving.filter(move |&other| ends(other) == ends(link) && !shape.link(other).failed)
        };
        let parallels: Vec<u32> = joining.flat_map(parallel_to).map(|link| self.bundle(link)).collect();
        self.links.extend(parallels);
    }

    fn turn(&mut self, into: u32, out: u32) {
        let inside = self.shape.link_count();
        let back = into < inside && out < inside && self.shape.link(into).from == self.shape.link(out).to;
        let onward = if back { TurnDirection::Back } else { TurnDirection::ToOthers };
        self.turns.insert((self.bundle(into), self.bundle(out), onward));
    }

    /// The representative of a link's bundle; a port's link represents itself.
    fn bundle(&self, link: u32) -> u32 {
        if link < self.shape.link_count() { self.classes.representative_link(link) } else { link }
    }

    fn write_to(&self, transit: &mut IslandTraffic) {
        let inside = self.shape.link_count();
        let class_links = |&link: &u32| if link < inside { self.classes.class_links(link) } else { vec![link] };
        transit.bundles = self.links.iter().map(class_links).collect();
        transit.links = transit.bundles.iter().flatten().copied().collect();
        transit.links.sort_unstable();
        let number: BTreeMap<u32, u32> = self.links.iter().copied().zip(0..).collect();
        let turn = |&(into, out, onward): &(u32, u32, TurnDirection)| {
            Some(Turn { into: *number.get(&into)?, out: *number.get(&out)?, onward })
        };
        transit.turns = self.turns.iter().filter_map(turn).collect();
        transit.turns.sort_unstable();
    }
}

fn shorter(shortest: Option<Picos>, latency: Picos) -> Option<Picos> {
    Some(shortest.map_or(latency, |shortest| shortest.min(latency)))
}
