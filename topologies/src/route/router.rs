//! Assembly of routes: inside an island if possible, otherwise out of the island, through the network and into the
//! other island.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::OnceLock;

use super::attach::{entry, exit};
use super::attachments::Attachment;
use super::island_routes::IslandRoute;
use super::islands::Islands;
use super::network::NetworkGraph;
use super::orbits::OrbitCache;
use super::participants::{Participants, RelaySet};
use super::path::{Hop, Path, PathTable, Share, Staging, Summary};
use super::segment::{MAX_PATHS, Segment, bandwidth_key, picos, to_bandwidth};
use super::{Ecmp, LinkListing, PathClass, RouteOptions, relay, unreachable_reason};
use crate::fabric::NodeKind;
use crate::{Error, Fabric, LinkId, LinkKind, NodeId, Result};

/// Routes traffic between the devices of one fabric.
///
/// Construction is linear in the size of the fabric. Searches run on demand and are cached once per distinct host, so
/// that finding the routes of all pairs of a large cluster takes little more time than writing them. A router can be
/// shared between threads; results do not depend on the order of queries.
#[derive(Debug)]
pub struct Router<'f> {
    pub(super) fabric: &'f Fabric,
    pub(super) options: RouteOptions,
    pub(super) islands: Islands,
    pub(super) network: NetworkGraph,
    /// Router of the fabric as built; `None` if no link is out of service.
    pub(super) built: Option<Box<Router<'f>>>,
    pub(super) names: OnceLock<Vec<u64>>,
    pub(super) orbits: OrbitCache,
    relays: OnceLock<bool>,
    /// Rank of each device; `u32::MAX` for devices that are no ranks.
    ranks: OnceLock<Vec<u32>>,
}

/// Candidate route between two devices through the network: an exit, a crossing of the network and an entry.
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

/// Connection between a port of one island and a port of another.
struct NetworkCrossing {
    out: LinkId,
    back: LinkId,
    /// Forwarding devices at both ends; `None` for a direct cable between the islands.
    switches: Option<(u32, u32)>,
    /// Number of links after the port's own link; 0 for a direct cable.
    links: u32,
}

impl<'f> Router<'f> {
    /// Creates a router. It reads the structure of the fabric and runs no search.
    #[must_use]
    pub fn new(fabric: &'f Fabric, options: RouteOptions) -> Self {
        Self::with_link_listing(fabric, options, LinkListing::All)
    }

    /// Variant of [`Router::new`] that lists representative links of the network, which are sufficient for a time
    /// simulation. If flows are hashed, all links are listed, because each flow uses different ones.
    #[must_use]
    pub fn with_link_listing(fabric: &'f Fabric, options: RouteOptions, listed: LinkListing) -> Self {
        let (names, relays, ranks) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let options = options.within(fabric.routing());
        let listed = if options.ecmp == Ecmp::Averaged { listed } else { LinkListing::All };
        Self {
            fabric,
            options,
            islands: Islands::new(fabric),
            network: NetworkGraph::new(fabric, listed),
            built: fabric.as_built().map(|built| Box::new(Self::with_link_listing(built, options, listed))),
            names,
            orbits: OrbitCache::default(),
            relays,
            ranks,
        }
    }

    /// Links that this link represents, including itself, in ascending order: all carry an equal share of every flow.
    /// `None` if it represents only itself.
    #[must_use]
    pub fn represented_links(&self, link: LinkId) -> Option<&[LinkId]> {
        self.network.members(link)
    }

    /// The fabric whose traffic is routed.
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
        self.flow_path(from, to, 0)
    }

    /// The path of one of several flows between two devices. The label `flow` selects a path for [`Ecmp::Hashed`] and
    /// has no effect otherwise.
    ///
    /// # Errors
    /// [`Error::Unreachable`] as in [`Router::path`].
    pub fn flow_path(&self, from: NodeId, to: NodeId, flow: u64) -> Result<Path> {
        let mut hops = Vec::new();
        let Summary { class, bandwidth, latency, staging } = self.route_into(from, to, flow, &mut hops)?;
        Ok(Path { hops, class, bandwidth, latency, staging })
    }

    /// Appends the path from one device to another to `hops`. Variant of [`Router::flow_path`] that allocates no memory
    /// except for the growth of `hops` if no link is out of service.
    ///
    /// # Errors
    /// [`Error::Unreachable`] as in [`Router::path`]; `hops` is unchanged in that case.
    pub fn route_into(&self, from: NodeId, to: NodeId, flow: u64, hops: &mut Vec<Hop>) -> Result<Summary> {
        self.find(from, to, flow, RelaySet::AnyRank, hops).ok_or_else(|| self.unreachable(from, to))
    }

    /// The path from one device to another for the ranks of a call. Only GPUs that participate in the call replace
    /// missing NVLinks, while [`Router::path`] uses any rank of the fabric.
    ///
    /// # Errors
    /// [`Error::Unreachable`] as in [`Router::path`].
    pub fn path_for_participants(&self, participants: &Participants, from: NodeId, to: NodeId) -> Result<Path> {
        let mut hops = Vec::new();
        let Summary { class, bandwidth, latency, staging } =
            self.route_for_participants(participants, from, to, 0, &mut hops)?;
        Ok(Path { hops, class, bandwidth, latency, staging })
    }

    /// Appends the path of [`Router::path_for_participants`] to `hops`, for one of several flows.
    ///
    /// # Errors
    /// [`Error::Unreachable`] as in [`Router::path`]; `hops` is unchanged in that case.
    pub fn route_for_participants(
        &self,
        participants: &Participants,
        from: NodeId,
        to: NodeId,
        flow: u64,
        hops: &mut Vec<Hop>,
    ) -> Result<Summary> {
        let found = self.find(from, to, flow, RelaySet::Among(participants), hops);
        found.ok_or_else(|| self.unreachable(from, to))
    }

    /// Returns true if the participants of a call can affect its routes, because some GPU could relay for a missing
    /// NVLink.
    #[must_use]
    pub fn has_relays(&self) -> bool {
        *self.relays.get_or_init(|| self.islands.shapes.iter().any(relay::can_relay))
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

    /// Pairs of these devices without a path from the first to the second, in order. At most `limit` pairs are
    /// returned. All checks that a call can run use this definition of reachability.
    #[must_use]
    pub fn unreachable_pairs(&self, devices: &[NodeId], limit: usize) -> Vec<(NodeId, NodeId)> {
        let participants = Participants::new(devices);
        let mut hops = Vec::new();
        let mut is_cut_off = |&(from, to): &(NodeId, NodeId)| {
            hops.clear();
            self.find_in_service(from, to, 0, RelaySet::Among(&participants), &mut hops).is_none()
        };
        let pairs = devices.iter().flat_map(|&from| devices.iter().map(move |&to| (from, to)));
        pairs.filter(|pair| is_cut_off(pair)).take(limit).collect()
    }

    pub(super) fn unreachable(&self, from: NodeId, to: NodeId) -> Error {
        Error::Unreachable {
            from: self.fabric.node(from).id.to_string(),
            to: self.fabric.node(to).id.to_string(),
            reason: unreachable_reason::explain_unreachable(self.fabric, from, to),
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
            table.summaries.push(self.find(from, to, 0, RelaySet::AnyRank, &mut table.hops));
            table.ends.push(table.hops.len() as u32);
        }
        table
    }

    /// The route between two devices of an island that does not use the network.
    pub(super) fn route_in_island(
        &self,
        island: u32,
        x: u32,
        y: u32,
        relaying: RelaySet<'_>,
    ) -> Option<Cow<'_, IslandRoute>> {
        let shape = self.islands.shape(island);
        let route = shape.route_between(x, y, &self.options);
        let rank = |middle: u32| {
            let device = self.islands.node(island, middle);
            relaying.allows(device).then(|| self.rank(device)).flatten()
        };
        relay::find_relay_route(shape, x, y, &self.options, route.as_deref(), rank).map(Cow::Owned).or(route)
    }

    /// The rank of a device; `None` if it is no rank.
    pub(super) fn rank(&self, device: NodeId) -> Option<u32> {
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

    /// The path over the links in service, regardless of the path that it replaces.
    pub(super) fn find_in_service(
        &self,
        from: NodeId,
        to: NodeId,
        flow: u64,
        relaying: RelaySet<'_>,
        hops: &mut Vec<Hop>,
    ) -> Option<Summary> {
        if from == to {
            return Some(Summary::LOCAL);
        }
        let (a, b) = (self.islands.island_of(from), self.islands.island_of(to));
        let start = hops.len();
        if a == b {
            let (x, y) = (self.islands.local(from), self.islands.local(to));
            if let Some(route) = self.route_in_island(a, x, y, relaying) {
                let flow = self.flow_hash(from, to, flow);
                self.write_inside(a, &route.segment, flow, hops);
                let bandwidth = self.bandwidth(&hops[start..]);
                let is_staged = self.islands.shape(a).is_staged(x, y, &self.options);
                let out = is_staged.then(|| self.last_cpu(&hops[start..])).flatten();
                let staging = Staging { out, into: None };
                return Some(Summary { class: route.class, bandwidth, latency: picos(route.segment.latency), staging });
            }
        }
        let candidates = self.network_candidates(from, to);
        let first = candidates.first()?;
        let flow = self.flow_hash(from, to, flow);
        let total = candidates.iter().map(|candidate| self.path_count(candidate)).fold(0, u64::saturating_add);
        // A candidate with few representative links may still have many paths, out of several ports and into several.
        let max_paths = if self.network.has_representatives() { u32::MAX.into() } else { MAX_PATHS };
        if let ([only], true) = (&candidates[..], total <= max_paths || flow.is_some()) {
            self.write(from, to, only, flow, hops);
        } else if flow.is_some() || total > max_paths {
            let flow = flow.unwrap_or_else(|| self.hash_flow(from, to, 0, 0));
            let chosen = self.select_by_hash(&candidates, flow)?;
            self.write(from, to, chosen, Some(flow), hops);
        } else {
            self.write_shared(from, to, &candidates, total, hops);
        }
        let latency = self.latency(first);
        let bandwidth = self.bandwidth(&hops[start..]);
        let staging = self.staging(from, to, first, &hops[start..]);
        Some(Summary { class: PathClass::Net, bandwidth, latency: picos(latency), staging })
    }

    /// Staging of a route through the network in host memory, next to the sender and next to the receiver.
    fn staging(&self, from: NodeId, to: NodeId, candidate: &Candidate, hops: &[Hop]) -> Staging {
        let (a, b) = (self.islands.island_of(from), self.islands.island_of(to));
        let (source_shape, target_shape) = (self.islands.shape(a), self.islands.shape(b));
        let port = |shape: &super::shape::Shape, port: u32| shape.ports().get(port as usize).map(|port| port.node);
        let leaves = port(source_shape, candidate.exit.port)
            .is_some_and(|at| source_shape.is_staged(self.islands.local(from), at, &self.options));
        let enters = port(target_shape, candidate.entry.port)
            .is_some_and(|at| target_shape.is_staged(at, self.islands.local(to), &self.options));
        Staging {
            out: leaves.then(|| self.first_cpu(hops)).flatten(),
            into: enters.then(|| self.last_cpu(hops)).flatten(),
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
    fn network_crossing(&self, a: u32, exit: &Attachment, b: u32, entry: &Attachment) -> Option<NetworkCrossing> {
        let (out, back) = (self.islands.port(a, exit.port), self.islands.port(b, entry.port).reverse());
        if out == back {
            return Some(NetworkCrossing { out, back, switches: None, links: 0 });
        }
        let switches =
            (self.network.number(self.fabric.link(out).to)?, self.network.number(self.fabric.link(back).from)?);
        let links = self.network.distance(switches.0, switches.1)? + 1;
        Some(NetworkCrossing { out, back, switches: Some(switches), links })
    }

    /// The best routes between two devices through the network, all of equal cost; empty if there is none.
    pub(super) fn network_candidates(&self, from: NodeId, to: NodeId) -> Vec<Candidate> {
        let (a, b) = (self.islands.island_of(from), self.islands.island_of(to));
        let source_attachments = self.islands.shape(a).attachments(self.islands.local(from), &self.options);
        let target_attachments = self.islands.shape(b).attachments(self.islands.local(to), &self.options);
        let exits = &source_attachments.exits;
        let mut best: Vec<Candidate> = Vec::new();
        let leads = |entry: &Attachment| exits.iter().any(|exit| self.network_crossing(a, exit, b, entry).is_some());
        for entry in self.entries(target_attachments, b, leads).iter() {
            for exit in exits {
                if best.first().is_some_and(|best| best.key.0 < exit.tier) {
                    break;
                }
                let Some(across) = self.network_crossing(a, exit, b, entry) else { continue };
                let key = (
                    exit.tier.max(entry.tier),
                    across.links,
                    exit.foreign,
                    exit.class.max(entry.class),
                    exit.hops + entry.hops + across.links - 1,
                );
                let NetworkCrossing { out, back, switches, .. } = across;
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
            self.limit_substitute_ports(&mut best, source_attachments.substitutes, a);
        }
        self.select_fastest_set(from, to, best)
    }

    /// Smallest bandwidth of a link on the paths of a candidate, in bytes per second.
    pub(super) fn min_link_bandwidth(&self, candidate: &Candidate) -> u64 {
        let middle = self.network_segment(candidate).map_or(u64::MAX, |segment| segment.bandwidth);
        candidate.exit.bandwidth.min(middle).min(self.receiver_segment(candidate).0)
    }

    /// Selects, among equal-cost candidates, the set over which the whole flow is fastest. Each set consists of the
    /// lowest-latency candidates above a bandwidth threshold.
    fn select_fastest_set(&self, from: NodeId, to: NodeId, candidates: Vec<Candidate>) -> Vec<Candidate> {
        if candidates.len() < 2 {
            return candidates;
        }
        let mut thresholds: Vec<u64> = candidates.iter().map(|candidate| self.min_link_bandwidth(candidate)).collect();
        thresholds.sort_unstable_by_key(|&bandwidth| Reverse(bandwidth));
        thresholds.dedup();
        let fastest_above = |min_bandwidth: u64| {
            let mut wide: Vec<Candidate> = candidates
                .iter()
                .filter(|candidate| self.min_link_bandwidth(candidate) >= min_bandwidth)
                .copied()
                .collect();
            let latency = wide.iter().map(|candidate| self.latency(candidate)).min();
            wide.retain(|candidate| Some(self.latency(candidate)) == latency);
            wide
        };
        // A hashed flow uses a single candidate.
        if let Some(&widest) =
            thresholds.first().filter(|_| thresholds.len() == 1 || self.options.ecmp != Ecmp::Averaged)
        {
            return fastest_above(widest);
        }
        let rate = |candidates: &[Candidate]| {
            let mut hops = Vec::new();
            let total = candidates.iter().map(|candidate| self.path_count(candidate)).fold(0, u64::saturating_add);
            self.write_shared(from, to, candidates, total, &mut hops);
            self.flow_bandwidth(&hops, |link| self.nominal_bandwidth(link)).map_or(u64::MAX, |bandwidth| bandwidth.0)
        };
        let sets = thresholds.into_iter().map(fastest_above);
        // `max_by_key` returns the last of equal elements, so the widest come last.
        let best = sets.rev().max_by_key(|candidates| rate(candidates));
        best.unwrap_or_default()
    }

    /// The candidate that a flow selects among several.
    fn select_by_hash<'w>(&self, candidates: &'w [Candidate], flow: u64) -> Option<&'w Candidate> {
        let ends = |candidate: &Candidate| (self.fabric.ends(candidate.out), self.fabric.ends(candidate.back));
        let weighed = candidates.iter().enumerate().map(|(index, candidate)| {
            let parallel = candidates.iter().take(index).filter(|other| ends(other) == ends(candidate)).count() as u32;
            (self.weight(self.weight(flow, candidate.out, parallel), candidate.back, 0), candidate)
        });
        weighed
            .max_by_key(|&(weight, candidate)| (weight, Reverse(candidate.out), Reverse(candidate.back)))
            .map(|(_, candidate)| candidate)
    }

    /// Bandwidth in bytes per second and latency in picoseconds of the route from the network to the receiver. If one
    /// cable joins the islands, its latency belongs to the sending side.
    fn receiver_segment(&self, candidate: &Candidate) -> (u64, u64) {
        match candidate.switches {
            Some(_) => (candidate.entry.bandwidth, candidate.entry.latency),
            None => (
                candidate.entry.bandwidth,
                candidate.entry.latency.saturating_sub(self.fabric.link(candidate.back).latency.0),
            ),
        }
    }

    fn network_segment(&self, candidate: &Candidate) -> Option<&Segment> {
        let (from, to) = candidate.switches?;
        self.network
            .segment(self.fabric, from, to, self.options.ecmp, |link, parallel| self.weight(0, LinkId(link), parallel))
    }

    /// Latency from sender to receiver over the whole route, in picoseconds.
    pub(super) fn latency(&self, candidate: &Candidate) -> u64 {
        candidate
            .exit
            .latency
            .saturating_add(self.net_latency(candidate))
            .saturating_add(self.receiver_segment(candidate).1)
    }

    fn net_latency(&self, candidate: &Candidate) -> u64 {
        self.network_segment(candidate).map_or(0, |segment| segment.latency)
    }

    fn path_count(&self, candidate: &Candidate) -> u64 {
        let middle = self.network_segment(candidate).map_or(1, |segment| segment.paths);
        candidate.exit.path_count.saturating_mul(middle).saturating_mul(candidate.entry.path_count)
    }

    /// The routes of a candidate inside the sender's island and inside the receiver's.
    fn island_segments(
        &self,
        from: NodeId,
        to: NodeId,
        candidate: &Candidate,
    ) -> Option<(Cow<'_, IslandRoute>, Cow<'_, IslandRoute>)> {
        let (a, b) = (self.islands.island_of(from), self.islands.island_of(to));
        let (_, first) = exit(self.islands.shape(a), self.islands.local(from), candidate.exit.port, &self.options)?;
        let (_, last) = entry(self.islands.shape(b), self.islands.local(to), candidate.entry.port, &self.options)?;
        Some((first, last))
    }

    /// Writes the hops of a candidate with the shares of its segments, or a single path of it if the flow is hashed.
    fn write(&self, from: NodeId, to: NodeId, candidate: &Candidate, flow: Option<u64>, hops: &mut Vec<Hop>) {
        let Some((first, last)) = self.island_segments(from, to, candidate) else { return };
        self.write_inside(self.islands.island_of(from), &first.segment, flow, hops);
        hops.push(Hop { link: candidate.out, share: Share::WHOLE });
        if candidate.switches.is_some() {
            if let Some(middle) = self.network_segment(candidate) {
                self.write_segment(middle, LinkId, flow, hops);
            }
            hops.push(Hop { link: candidate.back, share: Share::WHOLE });
        }
        self.write_inside(self.islands.island_of(to), &last.segment, flow, hops);
    }

    fn write_inside(&self, island: u32, segment: &Segment, flow: Option<u64>, hops: &mut Vec<Hop>) {
        self.write_segment(segment, |link| self.islands.link(island, link), flow, hops);
    }

    fn write_segment(&self, segment: &Segment, id: impl Fn(u32) -> LinkId, flow: Option<u64>, hops: &mut Vec<Hop>) {
        match flow {
            Some(flow) if segment.paths > 1 => segment.visit_single_path(
                |link, parallel| self.weight(flow, id(link), parallel),
                |link| hops.push(Hop { link: id(link), share: Share::WHOLE }),
            ),
            _ => {
                let start = hops.len();
                for part in &segment.parts {
                    let link = id(part.link);
                    // Paths through different states of the same device list a link twice, in adjacent parts.
                    match hops.get_mut(start..).and_then(<[Hop]>::last_mut) {
                        Some(last) if last.link == link => last.share = last.share.saturating_add(part.share),
                        _ => hops.push(Hop { link, share: part.share }),
                    }
                }
            }
        }
    }

    /// Writes the hops of several candidates, each with its share of the flow; links that several of them use are
    /// written once. `total`: number of paths of all candidates.
    fn write_shared(&self, from: NodeId, to: NodeId, candidates: &[Candidate], total: u64, hops: &mut Vec<Hop>) {
        // Representative links join classes of devices, so their ends are compared by class.
        let node_key = |node: NodeId| self.network.number(node).ok_or(node);
        let mut parts: Vec<(u32, LinkId, u64)> = Vec::new();
        let mut candidate_hops = Vec::new();
        for candidate in candidates {
            candidate_hops.clear();
            self.write(from, to, candidate, None, &mut candidate_hops);
            let weight = self.path_count(candidate);
            let mut depth = 0u32;
            let mut layer_ends = Vec::new();
            for hop in &candidate_hops {
                let (start, end) = self.fabric.ends(hop.link);
                // A new layer begins when a link starts at an end of the current layer.
                if layer_ends.contains(&node_key(start)) {
                    depth += 1;
                    layer_ends.clear();
                }
                layer_ends.push(node_key(end));
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
        self.flow_bandwidth(hops, |link| self.fabric.link(link).bandwidth)
    }

    /// Bandwidth of a link as known to route selection: inside islands, the bandwidth before any slowdown.
    fn nominal_bandwidth(&self, link: LinkId) -> Option<crate::Bandwidth> {
        let (from, to) = self.fabric.ends(link);
        let link = self.fabric.link(link);
        if self.islands.island_of(from) == self.islands.island_of(to) { link.nominal_bandwidth } else { link.bandwidth }
    }

    /// Maximum bandwidth of one flow over these links for the given link rates.
    fn flow_bandwidth(
        &self,
        hops: &[Hop],
        rate: impl Fn(LinkId) -> Option<crate::Bandwidth>,
    ) -> Option<crate::Bandwidth> {
        let hop_bandwidth = |hop: &Hop| match rate(hop.link) {
            Some(bandwidth) if hop.share == Share::WHOLE => bandwidth.0,
            bandwidth => {
                bandwidth.map_or(u64::MAX, |bandwidth| bandwidth_key(Some(hop.share.whole_bandwidth(bandwidth))))
            }
        };
        hops.iter().map(hop_bandwidth).min().and_then(to_bandwidth)
    }
}
