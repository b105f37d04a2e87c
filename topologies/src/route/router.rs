//! Assembly of routes: inside an island if possible, otherwise out of the island, through the network and into the
//! other island.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use rustc_hash::FxHasher;

use super::attach::{Attachment, entry, exit};
use super::inside::Inside;
use super::islands::Islands;
use super::network::Network;
use super::participants::{Participants, Relaying};
use super::path::{Hop, Path, PathTable, Share, Staging, Summary};
use super::segment::{MOST_WAYS, Segment, comparable, picos, stated};
use super::{Ecmp, Links, PathClass, RouteOptions, reason, relay};
use crate::fabric::NodeKind;
use crate::{Error, Fabric, LinkId, LinkKind, NodeId, Result};

/// Routes traffic between the devices of one fabric.
///
/// Construction is linear in the size of the fabric. Searches run on demand and are cached once per distinct host, so
/// that the routes of all pairs of a large cluster cost little more than writing them. A router can be shared between
/// threads; results do not depend on the order of queries.
#[derive(Debug)]
pub struct Router<'f> {
    pub(super) fabric: &'f Fabric,
    pub(super) options: RouteOptions,
    pub(super) islands: Islands,
    pub(super) network: Network,
    names: OnceLock<Vec<u64>>,
    relays: OnceLock<bool>,
    /// Rank of each device; `u32::MAX` for devices that are no ranks.
    ranks: OnceLock<Vec<u32>>,
}

/// A candidate route through the network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub exit: Attachment,
    pub entry: Attachment,
    out: LinkId,
    back: LinkId,
    /// The forwarding devices at both ends; `None` if one cable joins the islands.
    switches: Option<(u32, u32)>,
    key: (u8, u32, u8, PathClass, u32),
}

/// Connection between ports of two islands.
struct Across {
    out: LinkId,
    back: LinkId,
    /// Forwarding devices at both ends; `None` for a direct cable between the islands.
    switches: Option<(u32, u32)>,
    /// Links after the port's own; 0 for a direct cable.
    links: u32,
}

impl<'f> Router<'f> {
    /// Creates a router. It reads the structure of the fabric and runs no search.
    #[must_use]
    pub fn new(fabric: &'f Fabric, options: RouteOptions) -> Self {
        Self::listing(fabric, options, Links::Each)
    }

    /// Variant of [`Router::new`] that lists representative links of the network; a time simulation needs no more. If
    /// flows are hashed, all links are listed, because each flow uses its own.
    #[must_use]
    pub fn listing(fabric: &'f Fabric, options: RouteOptions, listed: Links) -> Self {
        let (names, relays, ranks) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let options = options.within(fabric.routing());
        let listed = if options.ecmp == Ecmp::Averaged { listed } else { Links::Each };
        Self {
            fabric,
            options,
            islands: Islands::new(fabric),
            network: Network::new(fabric, listed),
            names,
            relays,
            ranks,
        }
    }

    /// Links that this link represents, including itself, in ascending order: all carry an equal share of every flow.
    /// `None` if it represents only itself.
    #[must_use]
    pub fn alike(&self, link: LinkId) -> Option<&[LinkId]> {
        self.network.members(link)
    }

    /// The fabric that is routed.
    #[must_use]
    pub fn fabric(&self) -> &'f Fabric {
        self.fabric
    }

    /// The options of routing, restricted by the machine settings of the fabric.
    #[must_use]
    pub fn options(&self) -> RouteOptions {
        self.options
    }

    /// The path from one device to another.
    ///
    /// # Errors
    /// [`Error::Unreachable`] with the reason if no usable path exists.
    pub fn path(&self, from: NodeId, to: NodeId) -> Result<Path> {
        self.path_of_flow(from, to, 0)
    }

    /// The path of one of several flows between two devices; `flow` matters only for [`Ecmp::Hashed`].
    ///
    /// # Errors
    /// [`Error::Unreachable`] as in [`Router::path`].
    pub fn path_of_flow(&self, from: NodeId, to: NodeId, flow: u64) -> Result<Path> {
        let mut hops = Vec::new();
        let Summary { class, bandwidth, latency, staging } = self.route_into(from, to, flow, &mut hops)?;
        Ok(Path { hops, class, bandwidth, latency, staging })
    }

    /// Appends the path from one device to another to `hops`. Variant of [`Router::path_of_flow`] without an allocation
    /// of its own.
    ///
    /// # Errors
    /// [`Error::Unreachable`] as in [`Router::path`]; `hops` is unchanged in that case.
    pub fn route_into(&self, from: NodeId, to: NodeId, flow: u64, hops: &mut Vec<Hop>) -> Result<Summary> {
        self.find((from, to), flow, Relaying::AnyRank, hops).ok_or_else(|| self.unreachable(from, to))
    }

    /// The path from one device to another for the ranks of a call. Only GPUs that participate in the call replace
    /// missing NVLinks, while [`Router::path`] uses any rank of the fabric.
    ///
    /// # Errors
    /// [`Error::Unreachable`] as in [`Router::path`].
    pub fn path_among(&self, participants: &Participants, from: NodeId, to: NodeId) -> Result<Path> {
        let mut hops = Vec::new();
        let Summary { class, bandwidth, latency, staging } =
            self.route_among(participants, (from, to), 0, &mut hops)?;
        Ok(Path { hops, class, bandwidth, latency, staging })
    }

    /// Appends the path of [`Router::path_among`] to `hops`, for one of several flows.
    ///
    /// # Errors
    /// [`Error::Unreachable`] as in [`Router::path`]; `hops` is unchanged in that case.
    pub fn route_among(
        &self,
        participants: &Participants,
        (from, to): (NodeId, NodeId),
        flow: u64,
        hops: &mut Vec<Hop>,
    ) -> Result<Summary> {
        let found = self.find((from, to), flow, Relaying::Among(participants), hops);
        found.ok_or_else(|| self.unreachable(from, to))
    }

    /// Returns true if the participants of a call can affect its routes, because some GPU could replace an NVLink.
    #[must_use]
    pub fn has_relays(&self) -> bool {
        *self.relays.get_or_init(|| self.islands.shapes.iter().any(relay::is_possible))
    }

    /// GPUs on a path to `to` that store the flow in their memory and forward it, each with the share of the flow that
    /// it stores.
    pub fn relays<'h>(&'h self, hops: &'h [Hop], to: NodeId) -> impl Iterator<Item = (NodeId, Share)> + 'h {
        let is_nvlink = |hop: &Hop| self.fabric.link(hop.link).kind == LinkKind::Nvlink;
        hops.iter().filter_map(move |hop| {
            let (_, at) = self.fabric.ends(hop.link);
            let passes = at != to && self.fabric.node(at).kind == NodeKind::Gpu;
            let leaves = |next: &Hop| is_nvlink(next) && self.fabric.ends(next.link).0 == at;
            (passes && (is_nvlink(hop) || hops.iter().any(leaves))).then_some((at, hop.share))
        })
    }

    /// Pairs of these devices without a path from the first to the second, in order, at most `most` of them. All checks
    /// of whether a call can run use this definition of reachability.
    #[must_use]
    pub fn unreachable_pairs(&self, devices: &[NodeId], most: usize) -> Vec<(NodeId, NodeId)> {
        let participants = Participants::new(devices);
        let mut hops = Vec::new();
        let mut is_cut_off = |&(from, to): &(NodeId, NodeId)| {
            hops.clear();
            self.find((from, to), 0, Relaying::Among(&participants), &mut hops).is_none()
        };
        let pairs = devices.iter().flat_map(|&from| devices.iter().map(move |&to| (from, to)));
        pairs.filter(|pair| is_cut_off(pair)).take(most).collect()
    }

    fn unreachable(&self, from: NodeId, to: NodeId) -> Error {
        Error::Unreachable {
            from: self.fabric.node(from).id.to_string(),
            to: self.fabric.node(to).id.to_string(),
            reason: reason::of(self.fabric, from, to),
        }
    }

    /// The paths from one device to all ranks of the fabric.
    #[must_use]
    pub fn paths_from(&self, from: NodeId) -> PathTable {
        let gpus = self.fabric.gpus();
        let mut table = PathTable { from, hops: Vec::new(), ends: Vec::new(), summaries: Vec::new() };
        table.ends.reserve(gpus.len());
        table.summaries.reserve(gpus.len());
        for &to in gpus {
            table.summaries.push(self.find((from, to), 0, Relaying::AnyRank, &mut table.hops));
            table.ends.push(table.hops.len() as u32);
        }
        table
    }

    /// The route between two devices of an island that does not use the network.
    pub(super) fn inside(&self, island: u32, (x, y): (u32, u32), relaying: Relaying<'_>) -> Option<Cow<'_, Inside>> {
        let shape = self.islands.shape(island);
        let way = shape.between(x, y, &self.options);
        let place = |middle: u32| {
            let device = self.islands.node(island, middle);
            relaying.allows(device).then(|| self.rank_of(device)).flatten()
        };
        relay::relayed(shape, (x, y), &self.options, way.as_deref(), place).map(Cow::Owned).or(way)
    }

    /// The rank of a device; `None` if it is no rank.
    fn rank_of(&self, device: NodeId) -> Option<u32> {
        let ranks = self.ranks.get_or_init(|| {
            let mut ranks = vec![u32::MAX; self.fabric.node_count()];
            for (&gpu, rank) in self.fabric.gpus().iter().zip(0..) {
                if let Some(slot) = ranks.get_mut(gpu.0 as usize) {
                    *slot = rank;
                }
            }
            ranks
        });
        ranks.get(device.0 as usize).copied().filter(|&rank| rank != u32::MAX)
    }

    fn find(
        &self,
        (from, to): (NodeId, NodeId),
        flow: u64,
        relaying: Relaying<'_>,
        hops: &mut Vec<Hop>,
    ) -> Option<Summary> {
        if from == to {
            return Some(Summary::LOCAL);
        }
        let (a, b) = (self.islands.of(from), self.islands.of(to));
        let start = hops.len();
        if a == b {
            let (x, y) = (self.islands.local(from), self.islands.local(to));
            if let Some(way) = self.inside(a, (x, y), relaying) {
                let flow = self.flow(from, to, flow);
                self.write_inside(a, &way.segment, flow, hops);
                let bandwidth = self.bandwidth(&hops[start..]);
                let is_staged = self.islands.shape(a).is_staged(x, y, &self.options);
                let out = is_staged.then(|| self.last_cpu(&hops[start..])).flatten();
                let staging = Staging { out, into: None };
                return Some(Summary { class: way.class, bandwidth, latency: picos(way.segment.latency), staging });
            }
        }
        let ways = self.through_network(from, to);
        let first = ways.first()?;
        let flow = self.flow(from, to, flow);
        let total = ways.iter().map(|way| self.ways(way)).fold(0, u64::saturating_add);
        // With representative links, many paths have few links: out of several ports and into several.
        let most = if self.network.lists_alike() { u32::MAX.into() } else { MOST_WAYS };
        if let ([only], true) = (&ways[..], total <= most || flow.is_some()) {
            self.write(from, to, only, flow, hops);
        } else if flow.is_some() || total > most {
            let flow = flow.unwrap_or_else(|| self.hash_of_flow(from, to, 0, 0));
            let chosen = self.chosen(&ways, flow)?;
            self.write(from, to, chosen, Some(flow), hops);
        } else {
            self.write_shared(from, to, &ways, total, hops);
        }
        let latency = self.latency(first);
        let bandwidth = self.bandwidth(&hops[start..]);
        let staging = self.staging(from, to, first, &hops[start..]);
        Some(Summary { class: PathClass::Net, bandwidth, latency: picos(latency), staging })
    }

    /// Staging of a route through the network in host memory, next to the sender and next to the receiver.
    fn staging(&self, from: NodeId, to: NodeId, way: &Candidate, hops: &[Hop]) -> Staging {
        let (a, b) = (self.islands.of(from), self.islands.of(to));
        let (near, far) = (self.islands.shape(a), self.islands.shape(b));
        let port = |shape: &super::shape::Shape, port: u32| shape.ports().get(port as usize).map(|port| port.node);
        let leaves =
            port(near, way.exit.port).is_some_and(|at| near.is_staged(self.islands.local(from), at, &self.options));
        let comes =
            port(far, way.entry.port).is_some_and(|at| far.is_staged(at, self.islands.local(to), &self.options));
        Staging {
            out: leaves.then(|| self.first_cpu(hops)).flatten(),
            into: comes.then(|| self.last_cpu(hops)).flatten(),
        }
    }

    fn first_cpu(&self, hops: &[Hop]) -> Option<NodeId> {
        hops.iter().map(|hop| self.fabric.ends(hop.link).1).find(|&node| self.fabric.node(node).kind == NodeKind::Cpu)
    }

    fn last_cpu(&self, hops: &[Hop]) -> Option<NodeId> {
        let ends = hops.iter().rev().map(|hop| self.fabric.ends(hop.link).0);
        ends.into_iter().find(|&node| self.fabric.node(node).kind == NodeKind::Cpu)
    }

    /// Connection from a port of one island to a port of another; `None` if the network does not join them.
    fn across(&self, (a, exit): (u32, &Attachment), (b, entry): (u32, &Attachment)) -> Option<Across> {
        let (out, back) = (self.islands.port(a, exit.port), self.islands.port(b, entry.port).reverse());
        if out == back {
            return Some(Across { out, back, switches: None, links: 0 });
        }
        let switches = (self.network.at(self.fabric.link(out).to)?, self.network.at(self.fabric.link(back).from)?);
        let links = self.network.distance(switches.0, switches.1)? + 1;
        Some(Across { out, back, switches: Some(switches), links })
    }

    /// Equal-cost candidates through the network.
    pub(super) fn through_network(&self, from: NodeId, to: NodeId) -> Vec<Candidate> {
        let (a, b) = (self.islands.of(from), self.islands.of(to));
        let near = self.islands.shape(a).attachments(self.islands.local(from), &self.options);
        let far = self.islands.shape(b).attachments(self.islands.local(to), &self.options);
        let exits = &near.exits;
        let mut best: Vec<Candidate> = Vec::new();
        let leads = |entry: &Attachment| exits.iter().any(|exit| self.across((a, exit), (b, entry)).is_some());
        for entry in self.entries(far, b, leads).iter() {
            for exit in exits {
                if best.first().is_some_and(|best| best.key.0 < exit.tier) {
                    break;
                }
                let Some(across) = self.across((a, exit), (b, entry)) else { continue };
                let key = (
                    exit.tier.max(entry.tier),
                    across.links,
                    exit.foreign,
                    exit.class.max(entry.class),
                    exit.hops + entry.hops + across.links - 1,
                );
                let Across { out, back, switches, .. } = across;
                let candidate = Candidate { exit: *exit, entry: *entry, out, back, switches, key };
                match best.first().map(|best| candidate.key.cmp(&best.key)) {
                    Some(std::cmp::Ordering::Greater) => {}
                    Some(std::cmp::Ordering::Equal) => best.push(candidate),
                    _ => {
                        best.clear();
                        best.push(candidate);
                    }
                }
            }
        }
        if best.first().is_some_and(|best| best.exit.foreign > 0) {
            self.take_stand_ins(&mut best, near.stand_ins, a);
        }
        self.fastest_together(from, to, best)
    }

    /// Smallest bandwidth of a link on the paths of a candidate.
    pub(super) fn narrowest(&self, way: &Candidate) -> u64 {
        let middle = self.middle(way).map_or(u64::MAX, |segment| segment.bandwidth);
        way.exit.bandwidth.min(middle).min(self.tail(way).0)
    }

    /// Selects, among equal-cost candidates, the set over which the whole flow is fastest. Each set consists of the
    /// lowest-latency candidates above a bandwidth threshold.
    fn fastest_together(&self, from: NodeId, to: NodeId, ways: Vec<Candidate>) -> Vec<Candidate> {
        if ways.len() < 2 {
            return ways;
        }
        let mut asked: Vec<u64> = ways.iter().map(|way| self.narrowest(way)).collect();
        asked.sort_unstable_by_key(|&bandwidth| Reverse(bandwidth));
        asked.dedup();
        let soonest = |least: u64| {
            let mut wide: Vec<Candidate> = ways.iter().filter(|way| self.narrowest(way) >= least).copied().collect();
            let latency = wide.iter().map(|way| self.latency(way)).min();
            wide.retain(|way| Some(self.latency(way)) == latency);
            wide
        };
        // A hashed flow uses a single candidate.
        if let Some(&widest) = asked.first().filter(|_| asked.len() == 1 || self.options.ecmp != Ecmp::Averaged) {
            return soonest(widest);
        }
        let rate = |ways: &[Candidate]| {
            let mut hops = Vec::new();
            let total = ways.iter().map(|way| self.ways(way)).fold(0, u64::saturating_add);
            self.write_shared(from, to, ways, total, &mut hops);
            self.reached(&hops, |link| self.known_rate(link)).map_or(u64::MAX, |bandwidth| bandwidth.0)
        };
        let sets = asked.into_iter().map(soonest);
        // `max_by_key` returns the last of equal elements, so the widest come last.
        let best = sets.rev().max_by_key(|ways| rate(ways));
        best.unwrap_or_default()
    }

    /// The candidate that a flow selects among several.
    fn chosen<'w>(&self, ways: &'w [Candidate], flow: u64) -> Option<&'w Candidate> {
        let ends = |way: &Candidate| (self.fabric.ends(way.out), self.fabric.ends(way.back));
        let weighed = ways.iter().enumerate().map(|(place, way)| {
            let parallel = ways.iter().take(place).filter(|other| ends(other) == ends(way)).count() as u32;
            (self.weight(self.weight(flow, way.out, parallel), way.back, 0), way)
        });
        weighed.max_by_key(|&(weight, way)| (weight, Reverse(way.out), Reverse(way.back))).map(|(_, way)| way)
    }

    /// Bandwidth and latency of the receiving side. If one cable joins the islands, its latency belongs to the sending
    /// side.
    fn tail(&self, way: &Candidate) -> (u64, u64) {
        match way.switches {
            Some(_) => (way.entry.bandwidth, way.entry.latency),
            None => (way.entry.bandwidth, way.entry.latency.saturating_sub(self.fabric.link(way.back).latency.0)),
        }
    }

    fn middle(&self, way: &Candidate) -> Option<&Segment> {
        let (near, far) = way.switches?;
        self.network
            .segment(self.fabric, near, far, self.options.ecmp, |link, parallel| self.weight(0, LinkId(link), parallel))
    }

    /// End-to-end latency.
    pub(super) fn latency(&self, way: &Candidate) -> u64 {
        way.exit.latency.saturating_add(self.net_latency(way)).saturating_add(self.tail(way).1)
    }

    fn net_latency(&self, way: &Candidate) -> u64 {
        self.middle(way).map_or(0, |segment| segment.latency)
    }

    fn ways(&self, way: &Candidate) -> u64 {
        let middle = self.middle(way).map_or(1, |segment| segment.ways);
        way.exit.ways.saturating_mul(middle).saturating_mul(way.entry.ways)
    }

    /// The segments inside the two islands.
    fn ends(&self, from: NodeId, to: NodeId, way: &Candidate) -> Option<(Cow<'_, Inside>, Cow<'_, Inside>)> {
        let (a, b) = (self.islands.of(from), self.islands.of(to));
        let (_, first) = exit(self.islands.shape(a), self.islands.local(from), way.exit.port, &self.options)?;
        let (_, last) = entry(self.islands.shape(b), self.islands.local(to), way.entry.port, &self.options)?;
        Some((first, last))
    }

    /// Writes the hops of a candidate with the shares of its segments, or a single path of it if the flow is hashed.
    fn write(&self, from: NodeId, to: NodeId, way: &Candidate, flow: Option<u64>, hops: &mut Vec<Hop>) {
        let Some((first, last)) = self.ends(from, to, way) else { return };
        self.write_inside(self.islands.of(from), &first.segment, flow, hops);
        hops.push(Hop { link: way.out, share: Share::WHOLE });
        if way.switches.is_some() {
            if let Some(middle) = self.middle(way) {
                self.write_segment(middle, LinkId, flow, hops);
            }
            hops.push(Hop { link: way.back, share: Share::WHOLE });
        }
        self.write_inside(self.islands.of(to), &last.segment, flow, hops);
    }

    fn write_inside(&self, island: u32, segment: &Segment, flow: Option<u64>, hops: &mut Vec<Hop>) {
        self.write_segment(segment, |link| self.islands.link(island, link), flow, hops);
    }

    fn write_segment(&self, segment: &Segment, id: impl Fn(u32) -> LinkId, flow: Option<u64>, hops: &mut Vec<Hop>) {
        match flow {
            Some(flow) if segment.ways > 1 => segment.one_way(
                |link, parallel| self.weight(flow, id(link), parallel),
                |link| hops.push(Hop { link: id(link), share: Share::WHOLE }),
            ),
            _ => {
                let start = hops.len();
                for part in &segment.parts {
                    let link = id(part.link);
                    // Paths through different states of the same device list a link twice, in adjacent parts.
                    match hops.get_mut(start..).and_then(<[Hop]>::last_mut) {
                        Some(last) if last.link == link => last.share = last.share.plus(part.share),
                        _ => hops.push(Hop { link, share: part.share }),
                    }
                }
            }
        }
    }

    /// Writes the hops of several candidates, each with its share of the flow; links that several of them use are
    /// written once.
    fn write_shared(&self, from: NodeId, to: NodeId, ways: &[Candidate], total: u64, hops: &mut Vec<Hop>) {
        // Representative links join classes of devices, so their ends are compared by class.
        let place = |node: NodeId| self.network.at(node).ok_or(node);
        let mut parts: Vec<(u32, LinkId, u64)> = Vec::new();
        let mut own = Vec::new();
        for way in ways {
            own.clear();
            self.write(from, to, way, None, &mut own);
            let weight = self.ways(way);
            let mut depth = 0u32;
            let mut layer_ends = Vec::new();
            for hop in &own {
                let (start, end) = self.fabric.ends(hop.link);
                // A new layer begins when a link starts at an end of the current layer.
                if layer_ends.contains(&place(start)) {
                    depth += 1;
                    layer_ends.clear();
                }
                layer_ends.push(place(end));
                // Counted in paths out of `total`. This is exact: the denominator of a segment's shares divides its
                // number of paths.
                let units = weight / u64::from(hop.share.denominator) * u64::from(hop.share.numerator);
                parts.push((depth, hop.link, units));
            }
        }
        parts.sort_by_key(|&(depth, link, _)| (depth, link));
        for group in parts.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let units = group.iter().map(|&(.., units)| units).sum();
            if let (Some(&(_, link, _)), Some(share)) = (group.first(), Share::new(units, total)) {
                hops.push(Hop { link, share });
            }
        }
    }

    /// Maximum bandwidth of one flow over these links.
    fn bandwidth(&self, hops: &[Hop]) -> Option<crate::Bandwidth> {
        self.reached(hops, |link| self.fabric.link(link).bandwidth)
    }

    /// Bandwidth of a link as known to route selection: inside islands, the bandwidth before any slowdown.
    fn known_rate(&self, link: LinkId) -> Option<crate::Bandwidth> {
        let (from, to) = self.fabric.ends(link);
        let link = self.fabric.link(link);
        if self.islands.of(from) == self.islands.of(to) { link.built } else { link.bandwidth }
    }

    /// Maximum bandwidth of one flow over these links for the given link rates.
    fn reached(&self, hops: &[Hop], rate: impl Fn(LinkId) -> Option<crate::Bandwidth>) -> Option<crate::Bandwidth> {
        let reach = |hop: &Hop| match rate(hop.link) {
            Some(bandwidth) if hop.share == Share::WHOLE => bandwidth.0,
            bandwidth => bandwidth.map_or(u64::MAX, |bandwidth| comparable(Some(hop.share.whole_of(bandwidth)))),
        };
        hops.iter().map(reach).min().and_then(stated)
    }

    /// The hash of a flow; `None` if flows are not hashed.
    fn flow(&self, from: NodeId, to: NodeId, flow: u64) -> Option<u64> {
        match self.options.ecmp {
            Ecmp::Averaged => None,
            Ecmp::Hashed { seed } => Some(self.hash_of_flow(from, to, flow, seed)),
        }
    }

    fn hash_of_flow(&self, from: NodeId, to: NodeId, flow: u64, seed: u64) -> u64 {
        mix(&[self.name(from), self.name(to), flow, seed])
    }

    /// Hash by which a flow selects links. It uses the ids of a link's ends and its index among parallel links, so that
    /// it does not depend on numbering.
    fn weight(&self, flow: u64, link: LinkId, parallel: u32) -> u64 {
        let (from, to) = self.fabric.ends(link);
        mix(&[flow, self.name(from), self.name(to), u64::from(parallel)])
    }

    fn name(&self, node: NodeId) -> u64 {
        let names = self.names.get_or_init(|| {
            let hash = |id: &str| {
                let mut hasher = FxHasher::default();
                id.hash(&mut hasher);
                hasher.finish()
            };
            self.fabric.nodes().map(|(_, node)| hash(&node.id)).collect()
        });
        names.get(node.0 as usize).copied().unwrap_or(0)
    }
}

/// SplitMix64's finaliser over a sequence (Steele, Lea, Flood, OOPSLA 2014).
fn mix(values: &[u64]) -> u64 {
    values.iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, &value| {
        let mut z = (state ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
