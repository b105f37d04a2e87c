//! Properties of arbitrary fabrics: paths are connected, flows are conserved, and the selected path is the best of all
//! paths.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::cluster;
use crate::fabric::{Figures, Node, NodeKind};
use crate::preset;
use crate::route::{BufferLocation, Ecmp, GpuDirect, Hop, Participants, PeerAccess, Pxn, Share};
use crate::{Bandwidth, FabricBuilder, LinkId, LinkKind, LinkSpec, NetworkSpec, Picos};

/// A host of random devices `d0`, `d1` …; its NICs are not connected to a network.
#[derive(Clone, Debug)]
pub(super) struct Host {
    kinds: Vec<NodeKind>,
    links: Vec<RandomLink>,
}

#[derive(Clone, Copy, Debug)]
struct RandomLink {
    a: usize,
    b: usize,
    kind: LinkKind,
    bandwidth: u64,
    latency: u64,
    fails: bool,
}

pub(super) fn host() -> impl Strategy<Value = Host> {
    let kind = prop_oneof![
        4 => Just(NodeKind::Gpu),
        1 => Just(NodeKind::Nvswitch),
        2 => Just(NodeKind::PcieSwitch),
        2 => Just(NodeKind::Cpu),
        1 => Just(NodeKind::Nic),
    ];
    prop::collection::vec(kind, 2..8).prop_flat_map(|kinds| {
        let link_kind = prop_oneof![
            3 => Just(LinkKind::Nvlink),
            3 => Just(LinkKind::Pcie),
            1 => Just(LinkKind::C2c),
            1 => Just(LinkKind::Upi),
        ];
        let ends = (0..kinds.len(), 0..kinds.len());
        let link = (ends, link_kind, 1u64..4, 0u64..3, prop::bool::weighted(0.05))
            .prop_map(|((a, b), kind, bandwidth, latency, fails)| RandomLink { a, b, kind, bandwidth, latency, fails });
        prop::collection::vec(link, 1..14).prop_map(move |links| Host { kinds: kinds.clone(), links })
    })
}

impl Host {
    /// Adds a device with the kind and the links of another.
    pub(super) fn with_twin(mut self, original: prop::sample::Index) -> Self {
        let (original, twin) = (original.index(self.kinds.len()), self.kinds.len());
        self.kinds.push(self.kinds[original]);
        let links: Vec<RandomLink> =
            self.links.iter().filter(|link| link.a == original || link.b == original).copied().collect();
        let end = |device: usize| if device == original { twin } else { device };
        self.links.extend(links.into_iter().map(|link| RandomLink { a: end(link.a), b: end(link.b), ..link }));
        self
    }

    pub(super) fn build(&self) -> Fabric {
        let mut builder = FabricBuilder::new("random");
        let host = builder.host("h");
        let add = |(i, &kind): (usize, &NodeKind)| builder.node(&format!("d{i}"), kind, host, Figures::None).unwrap();
        let nodes: Vec<NodeId> = self.kinds.iter().enumerate().map(add).collect();
        let mut failed = Vec::new();
        for link in &self.links {
            let both_nics = self.kinds[link.a] == NodeKind::Nic && self.kinds[link.b] == NodeKind::Nic;
            if link.a != link.b && !both_nics {
                let spec = LinkSpec::symmetric(link.kind, Bandwidth(link.bandwidth), Picos(link.latency));
                let id = builder.link(nodes[link.a], nodes[link.b], &spec);
                failed.extend(link.fails.then_some(id));
            }
        }
        builder.finish().with_failed_links(&failed)
    }
}

/// All simple paths from one device to another.
fn all_paths(fabric: &Fabric, from: NodeId, to: NodeId) -> Vec<Vec<LinkId>> {
    fn extend(
        fabric: &Fabric,
        to: NodeId,
        seen: &mut Vec<NodeId>,
        links: &mut Vec<LinkId>,
        found: &mut Vec<Vec<LinkId>>,
    ) {
        let node = *seen.last().unwrap();
        if node == to {
            found.push(links.clone());
            return;
        }
        for link in fabric.outgoing_links(node) {
            let next = fabric.ends(link).1;
            if !seen.contains(&next) {
                seen.push(next);
                links.push(link);
                extend(fabric, to, seen, links, found);
                links.pop();
                seen.pop();
            }
        }
    }
    let mut found = Vec::new();
    extend(fabric, to, &mut vec![from], &mut Vec::new(), &mut found);
    found
}

/// The class of a whole path by NCCL's rules, formulated independently of the search; `None` if a device on it does not
/// forward.
fn path_class(fabric: &Fabric, path: &[LinkId]) -> Option<PathClass> {
    let kind = |node: NodeId| fabric.node(node).kind;
    let grace = |node: NodeId| {
        kind(node) == NodeKind::Cpu && fabric.links().any(|(_, link)| link.from == node && link.kind == LinkKind::C2c)
    };
    let to = fabric.ends(*path.last()?).1;
    let inner: Vec<(usize, NodeId)> =
        path[1..].iter().enumerate().map(|(i, &link)| (i + 1, fabric.ends(link).0)).collect();
    if inner.iter().any(|&(_, node)| kind(node) == NodeKind::Nic) {
        return None;
    }
    let nvlink = |link: &LinkId| fabric.link(*link).kind == LinkKind::Nvlink;
    let link_class = |&link: &LinkId| {
        let (a, b) = fabric.ends(link);
        match fabric.link(link).kind {
            LinkKind::Nvlink => PathClass::Nvl,
            LinkKind::C2c => PathClass::C2c,
            LinkKind::Upi => PathClass::Sys,
            _ if grace(a) || grace(b) => PathClass::P2c,
            _ if kind(a) == NodeKind::Cpu || kind(b) == NodeKind::Cpu => PathClass::Phb,
            _ if kind(a) == NodeKind::PcieSwitch && kind(b) == NodeKind::PcieSwitch => PathClass::Pxb,
            _ => PathClass::Pix,
        }
    };
    let worst = |links: &[LinkId]| links.iter().map(link_class).max();
    let gpus: Vec<usize> = inner.iter().filter(|&&(_, node)| kind(node) == NodeKind::Gpu).map(|&(i, _)| i).collect();
    match gpus[..] {
        [] => worst(path),
        [at] if kind(fabric.ends(path[0]).0) != NodeKind::Nic || path.len() > 1 => {
            let near = worst(&path[at..])? <= PathClass::P2c;
            let relay = path[..at].iter().all(nvlink) && !path[at..].iter().any(nvlink);
            (relay && near && kind(to) == NodeKind::Nic).then_some(PathClass::Pxn)
        }
        _ => None,
    }
}

/// Best distribution of a flow over paths of one length: class, latency, total rate, and the share of each link.
#[derive(Clone, Debug)]
struct Best {
    class: PathClass,
    latency: Picos,
    rate: u64,
    shares: BTreeMap<LinkId, Share>,
}

/// Best distribution of a flow over paths of one class and length. Candidates are the lowest-latency paths above each
/// bandwidth threshold. The highest total bandwidth wins; of equal totals, that of the highest threshold.
fn fastest_set(fabric: &Fabric, class: PathClass, paths: &[Vec<LinkId>]) -> Option<Best> {
    let width =
        |path: &[LinkId]| path.iter().filter_map(|&link| fabric.link(link).bandwidth).min().map_or(u64::MAX, |b| b.0);
    let latency = |path: &[LinkId]| path.iter().map(|&link| fabric.link(link).latency).sum::<Picos>();
    let mut widths: Vec<u64> = paths.iter().map(|path| width(path)).collect();
    widths.sort_unstable_by_key(|&width| Reverse(width));
    let mut best: Option<Best> = None;
    for min_width in widths {
        let wide: Vec<_> = paths.iter().filter(|path| width(path) >= min_width).collect();
        let min_latency = wide.iter().map(|path| latency(path)).min()?;
        let fastest: Vec<_> = wide.into_iter().filter(|path| latency(path) == min_latency).collect();
        let mut counts: BTreeMap<LinkId, u64> = BTreeMap::new();
        fastest.iter().flat_map(|path| path.iter()).for_each(|&link| *counts.entry(link).or_default() += 1);
        let path_count = fastest.len() as u64;
        let reached = |(&link, &count): (&LinkId, &u64)| {
            let bandwidth = fabric.link(link).bandwidth?.0;
            Some((u128::from(bandwidth) * u128::from(path_count) / u128::from(count)) as u64)
        };
        let rate = counts.iter().filter_map(reached).min().unwrap_or(u64::MAX);
        let shares = counts.iter().map(|(&link, &count)| (link, Share::new(count, path_count).unwrap())).collect();
        if best.as_ref().is_none_or(|best| rate > best.rate) {
            best = Some(Best { class, latency: min_latency, rate, shares });
        }
    }
    best
}

/// The direct NVLinks from one GPU to another.
fn straight(fabric: &Fabric, from: NodeId, to: NodeId) -> Option<Best> {
    let gpus = [from, to].iter().all(|&end| fabric.node(end).kind == NodeKind::Gpu);
    let links = fabric.outgoing_links(from).into_iter().filter(|&link| fabric.ends(link).1 == to);
    let paths: Vec<_> =
        links.filter(|&link| fabric.link(link).kind == LinkKind::Nvlink).map(|link| vec![link]).collect();
    gpus.then(|| fastest_set(fabric, PathClass::Nvl, &paths)).flatten()
}

/// The route that the rules require, selected from all paths.
fn required_route(fabric: &Fabric, from: NodeId, to: NodeId) -> Option<Best> {
    let all: Vec<_> =
        all_paths(fabric, from, to).into_iter().filter_map(|path| Some((path_class(fabric, &path)?, path))).collect();
    let key = all.iter().map(|(class, path)| (*class, path.len())).min();
    let nearest = key.and_then(|key| {
        let paths: Vec<_> =
            all.into_iter().filter(|(class, path)| (*class, path.len()) == key).map(|(_, path)| path).collect();
        fastest_set(fabric, key.0, &paths)
    });
    if nearest.as_ref().is_some_and(|route| route.class <= PathClass::Nvb) {
        return nearest;
    }
    let relays: Vec<Best> = fabric
        .gpus()
        .iter()
        .filter_map(|&middle| {
            let (first, second) = (straight(fabric, from, middle)?, straight(fabric, middle, to)?);
            let shares = first.shares.into_iter().chain(second.shares).collect();
            let (latency, rate) = (first.latency + second.latency, first.rate.min(second.rate));
            Some(Best { class: PathClass::Nvb, latency, rate, shares })
        })
        .collect();
    let min_rate = nearest.as_ref().map_or(0, |route| route.rate);
    let permitted = relays.into_iter().filter(|route| min_rate <= route.rate);
    permitted.min_by_key(|route| (Reverse(route.rate), route.latency)).or(nearest)
}

/// GPUs of one host, some of them joined by NVLinks of any width, and each joined to a CPU by a narrower PCIe link.
#[derive(Clone, Debug)]
struct Mesh {
    gpus: usize,
    /// Ends, bandwidth, and number of parallel links.
    links: Vec<(usize, usize, u64, usize)>,
}

fn mesh() -> impl Strategy<Value = Mesh> {
    (3usize..7).prop_flat_map(|gpus| {
        let link = (0..gpus, 0..gpus, 20u64..200, 1usize..3);
        prop::collection::vec(link, 1..16).prop_map(move |links| Mesh { gpus, links })
    })
}

impl Mesh {
    fn build(&self) -> Fabric {
        let mut builder = FabricBuilder::new("mesh");
        let host = builder.host("h");
        let cpu = builder.node("cpu0", NodeKind::Cpu, host, Figures::None).unwrap();
        let mut gpus = Vec::new();
        for gpu in 0..self.gpus {
            let gpu = builder.node(&format!("gpu{gpu}"), NodeKind::Gpu, host, Figures::None).unwrap();
            builder.link(
                gpu,
                cpu,
                &LinkSpec::symmetric(LinkKind::Pcie, Bandwidth::from_gb_per_s(16.0), Picos(300_000)),
            );
            gpus.push(gpu);
        }
        for &(a, b, gb_per_s, count) in self.links.iter().filter(|(a, b, ..)| a != b) {
            for _ in 0..count {
                let nvlink = LinkSpec::symmetric(LinkKind::Nvlink, Bandwidth(gb_per_s * 1_000_000_000), Picos(250_000));
                builder.link(gpus[a], gpus[b], &nvlink);
            }
        }
        builder.finish()
    }
}

/// Checks that no two GPUs have a route with more bandwidth in `worse` than in `fabric`.
fn no_route_is_wider(fabric: &Fabric, worse: &Fabric) -> Result<(), TestCaseError> {
    let (router, degraded_router) =
        (Router::new(fabric, RouteOptions::default()), Router::new(worse, RouteOptions::default()));
    for (&from, &to) in fabric.gpus().iter().flat_map(|from| fabric.gpus().iter().map(move |to| (from, to))) {
        let (Ok(had), Ok(left)) = (router.path(from, to), degraded_router.path(from, to)) else { continue };
        prop_assert!(left.bandwidth <= had.bandwidth || from == to, "{} to {}: {had:?} and {left:?}", from.0, to.0);
    }
    Ok(())
}

/// Checks that routes of `broken` use every link at least as much as those of the intact `fabric`, and are no better.
fn check_substitutes(fabric: &Fabric, broken: &Fabric, options: RouteOptions) -> Result<(), TestCaseError> {
    let (intact, router) = (Router::new(fabric, options), Router::new(broken, options));
    for (&from, &to) in fabric.gpus().iter().flat_map(|from| fabric.gpus().iter().map(move |to| (from, to))) {
        let (mut hops, mut replaced) = (Vec::new(), Vec::new());
        let Ok(route) = router.route_and_replaced(None, from, to, 0, &mut hops, &mut replaced) else { continue };
        let had = intact.path(from, to).unwrap();
        let (before, after) = (had.bandwidth.map_or(u64::MAX, |b| b.0), route.used.bandwidth.map_or(u64::MAX, |b| b.0));
        prop_assert!(after <= before && route.used.latency >= had.latency, "{had:?}, then {route:?}");
        for hop in had.hops {
            let shares = hops.iter().chain(&replaced).filter(|other| other.link == hop.link);
            let used = shares.map(|other| other.share.fraction()).fold(0.0, f64::max);
            prop_assert!(
                used >= hop.share.fraction(),
                "{} of {:?}, {used} in {route:?}",
                fabric.link_name(hop.link),
                hop
            );
        }
    }
    Ok(())
}

/// Net flow into each device (inflow minus outflow) as an exact fraction.
fn balance(fabric: &Fabric, hops: &[Hop]) -> BTreeMap<NodeId, (i128, i128)> {
    let mut net: BTreeMap<NodeId, (i128, i128)> = BTreeMap::new();
    let mut add = |node: NodeId, numerator: i128, denominator: i128| {
        let (n, d) = *net.get(&node).unwrap_or(&(0, 1));
        let (n, d) = (n * denominator + numerator * d, d * denominator);
        let divisor = gcd(n.abs(), d);
        net.insert(node, (n / divisor, d / divisor));
    };
    for hop in hops {
        let (from, to) = fabric.ends(hop.link);
        let (n, d) = (i128::from(hop.share.numerator), i128::from(hop.share.denominator));
        add(from, -n, d);
        add(to, n, d);
    }
    net.retain(|_, &mut (n, _)| n != 0);
    net
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// Bandwidth and latency of a flow over these links.
fn flow_figures(fabric: &Fabric, hops: &[Hop]) -> (Option<Bandwidth>, f64) {
    let rates = hops.iter().filter_map(|hop| Some(hop.share.whole_bandwidth(fabric.link(hop.link).bandwidth?)));
    let latency = hops.iter().map(|hop| hop.share.fraction() * fabric.link(hop.link).latency.0 as f64).sum();
    (rates.min(), latency)
}

/// Checks that a path has the right ends, uses only working links, conserves the whole flow, and is no better than the
/// path as built.
fn check(fabric: &Fabric, options: RouteOptions, from: NodeId, to: NodeId, path: &Path) {
    assert_eq!(balance(fabric, &path.hops), BTreeMap::from([(from, (-1, 1)), (to, (1, 1))]));
    let mut used: Vec<LinkId> = path.links().collect();
    used.sort_unstable();
    assert!(used.windows(2).all(|pair| pair[0] != pair[1]), "a link is listed twice");
    assert!(used.iter().all(|&link| !fabric.link(link).failed));
    let (mut bandwidth, mut latency) = flow_figures(fabric, &path.hops);
    if let Some(whole) = fabric.as_built() {
        let built = Router::new(whole, options).path(from, to).unwrap();
        let (built_bandwidth, built_latency) = flow_figures(whole, &built.hops);
        bandwidth = bandwidth.into_iter().chain(built_bandwidth).min();
        latency = latency.max(built_latency);
    }
    assert!((latency - path.latency.0 as f64).abs() < 1e-3, "{latency} {:?}", path.latency);
    assert_eq!(path.bandwidth, bandwidth);
}

pub(super) fn options() -> impl Strategy<Value = RouteOptions> {
    let switch = |on: bool| if on { 0 } else { 1 };
    (any::<bool>(), any::<bool>(), any::<bool>(), prop::option::of(0u64..3)).prop_map(move |(p2p, gdr, pxn, seed)| {
        RouteOptions {
            p2p: [PeerAccess::Allowed, PeerAccess::Off][switch(p2p)],
            gdr: [GpuDirect::Allowed, GpuDirect::Off][switch(gdr)],
            pxn: [Pxn::Allowed, Pxn::Off][switch(pxn)],
            ecmp: seed.map_or(Ecmp::Averaged, |seed| Ecmp::Hashed { seed }),
            buffers: BufferLocation::Device,
        }
    })
}

/// Returns a copy of the fabric with its devices and links in another order.
fn shuffled(fabric: &Fabric, seed: u64) -> Fabric {
    let order = |count: usize| {
        let key = |i: usize| (i as u64 + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|&i| key(i));
        order
    };
    let mut builder = FabricBuilder::new("shuffled");
    let hosts: Vec<_> = fabric.hosts().iter().map(|host| builder.host(host)).collect();
    let nodes: Vec<&Node> = fabric.nodes().map(|(_, node)| node).collect();
    for i in order(nodes.len()) {
        let node = nodes[i].clone();
        builder.add_node(Node { host: hosts[node.host.0 as usize], ..node }).unwrap();
    }
    let ranks = fabric.gpus().iter().map(|&gpu| builder.find(&fabric.node(gpu).id).unwrap()).collect();
    builder.set_rank_order(ranks);
    let mut failed = Vec::new();
    for i in order(fabric.link_count() / 2) {
        let (forward, backward) = (fabric.link(LinkId(2 * i as u32)), fabric.link(LinkId(2 * i as u32 + 1)));
        let end = |node: NodeId| builder.find(&fabric.node(node).id).unwrap();
        let spec = LinkSpec {
            kind: forward.kind,
            lanes: forward.lanes,
            forward: forward.bandwidth,
            backward: backward.bandwidth,
            latency: forward.latency,
        };
        let id = builder.link(end(forward.from), end(forward.to), &spec);
        failed.extend([(id, forward.failed), (id.reverse(), backward.failed)]);
    }
    let failed: Vec<LinkId> = failed.into_iter().filter(|&(_, failed)| failed).map(|(id, _)| id).collect();
    builder.finish().with_failed_links(&failed)
}

/// A path by device ids: the shares of the flow between each pair of adjacent devices.
fn shares_by_name(fabric: &Fabric, path: &Path) -> BTreeMap<(String, String), Vec<Share>> {
    let mut named: BTreeMap<(String, String), Vec<Share>> = BTreeMap::new();
    for hop in &path.hops {
        let (from, to) = fabric.ends(hop.link);
        named.entry((fabric.node(from).id.to_string(), fabric.node(to).id.to_string())).or_default().push(hop.share);
    }
    named
}

pub(super) fn networks() -> impl Strategy<Value = (&'static str, u32, &'static str)> {
    let hosts =
        prop::sample::select(vec!["hgx-h200", "dgx-a100", "dgx-v100", "l40s-pcie", "rtx4090-pcie", "gh200", "mi300x"]);
    let networks = prop::sample::select(vec![
        "rail",
        "rail,ecmp=2",
        "rail,nics_per_node=16,nic=100Gb/s,ecmp=3",
        "rail,radix=4",
        "rail,tiers=1",
        "rail,radix=4,tiers=3",
        "rail,nics_per_node=3",
        "rail,nics_per_node=16,nic=100Gb/s",
        "fat_tree",
        "fat_tree,radix=8,nics_per_node=2",
        "fat_tree,radix=4,nics_per_node=1,tiers=3",
        "fat_tree,radix=16,oversubscription=3,tiers=3",
        "dragonfly",
        "dragonfly,groups=2",
        "torus",
    ]);
    (hosts, 2u32..9, networks)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn routes_inside_a_host_are_the_best_of_all(host in host()) {
        let fabric = host.build();
        let router = Router::new(&fabric, RouteOptions::default());
        for (from, _) in fabric.nodes() {
            for (to, target) in fabric.nodes().filter(|&(to, _)| to != from) {
                let found = router.path(from, to);
                let Some(best) = required_route(&fabric, from, to) else {
                    prop_assert!(found.is_err(), "{} {}", from.0, to.0);
                    continue;
                };
                let path = found.unwrap();
                check(&fabric, RouteOptions::default(), from, to, &path);
                let built = fabric.as_built().and_then(|whole| required_route(whole, from, to)).unwrap_or(best.clone());
                let (latency, rate) = (best.latency.max(built.latency), best.rate.min(built.rate));
                prop_assert_eq!((path.class, path.latency), (best.class, latency), "{} {} {:?}", from.0, to.0, target.kind);
                prop_assert_eq!(path.bandwidth.map(|bandwidth| bandwidth.0), Some(rate));
                for hop in &path.hops {
                    prop_assert_eq!(best.shares.get(&hop.link), Some(&hop.share));
                }
            }
        }
    }

    /// A failed link never increases the bandwidth between two devices.
    #[test]
    fn failed_links_never_widen_a_route(mesh in mesh(), broken in any::<prop::sample::Index>()) {
        let fabric = mesh.build();
        let link = LinkId(broken.index(fabric.link_count()) as u32);
        let broken = fabric.with_failed_links(&[link, link.reverse()]);
        no_route_is_wider(&fabric, &broken)?;
    }

    /// A substitute route uses every link at least as much as the route that it replaces, and its bandwidth and latency
    /// are no better.
    #[test]
    fn failures_never_widen_a_route_of_a_preset(
        name in prop::sample::select(preset::names().collect::<Vec<_>>()),
        gpus in 1u32..8,
        network in prop::sample::select(vec!["", "rail", "rail,tiers=1", "fat_tree", "dragonfly", "torus"]),
        broken in any::<prop::sample::Index>(),
        options in options(),
    ) {
        let network = (!network.is_empty()).then(|| network.parse().unwrap());
        let nodes = network.is_some().then_some(2);
        let request = crate::FabricRequest { gpus: Some(gpus), nodes, network, ..crate::FabricRequest::new(name) };
        // Some presets have fewer GPUs, or a network of their own.
        let Ok(fabric) = crate::load(&request) else { return Ok(()) };
        let parts = fabric.link_names().into_iter().chain(fabric.nodes().filter(|(_, node)| !node.kind.is_rank()).map(|(_, node)| node.id.to_string()));
        let part = broken.get(&parts.collect::<Vec<_>>()).clone();
        check_substitutes(&fabric, &fabric.with_failed(&part).unwrap(), options)?;
    }

    /// A slower link never increases the bandwidth between two devices, and a faster link never reduces it.
    #[test]
    fn slower_links_never_widen_a_route(mesh in mesh(), slow in any::<prop::sample::Index>(), part in 0.05f64..1.0) {
        let fabric = mesh.build();
        let name = fabric.link_name(LinkId(slow.index(fabric.link_count()) as u32));
        no_route_is_wider(&fabric, &fabric.with_slowed(&name, part).unwrap())?;
    }

    /// The loss of a GPU that does not participate, with all its links, changes no route.
    #[test]
    fn ranks_that_do_not_participate_carry_no_traffic(mesh in mesh(), out in any::<prop::sample::Index>()) {
        let fabric = mesh.build();
        let out = fabric.gpus()[out.index(fabric.gpus().len())];
        let others: Vec<NodeId> = fabric.gpus().iter().copied().filter(|&gpu| gpu != out).collect();
        let without = fabric.with_failed_devices(&[out]);
        let (router, other_router) = (Router::new(&fabric, RouteOptions::default()), Router::new(&without, RouteOptions::default()));
        let participants = Participants::new(&others);
        for (&from, &to) in others.iter().flat_map(|from| others.iter().map(move |to| (from, to))) {
            let path = router.path_for_participants(&participants, from, to).ok();
            prop_assert_eq!(path, other_router.path_for_participants(&participants, from, to).ok());
        }
    }

    #[test]
    fn routes_inside_a_host_do_not_depend_on_numbering(host in host(), seed in any::<u64>(), options in options()) {
        let fabric = host.build();
        check_same_routes(&fabric, &shuffled(&fabric, seed), options)?;
    }
}

fn check_same_routes(fabric: &Fabric, other: &Fabric, options: RouteOptions) -> Result<(), TestCaseError> {
    let (router, other_router) = (Router::new(fabric, options), Router::new(other, options));
    for &from in fabric.gpus() {
        for &to in fabric.gpus() {
            let twin = |node: NodeId| other.find(&fabric.node(node).id).unwrap();
            match (router.path(from, to), other_router.path(twin(from), twin(to))) {
                (Ok(a), Ok(b)) => {
                    prop_assert_eq!((a.class, a.bandwidth, a.latency), (b.class, b.bandwidth, b.latency));
                    // The order of equal parallel links decides which of them carries a hashed flow.
                    prop_assert_eq!(shares_by_name(fabric, &a), shares_by_name(other, &b));
                }
                (a, b) => prop_assert!(a.is_err() && b.is_err()),
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn flows_are_conserved_on_clusters((name, nodes, network) in networks(), options in options(), broken in any::<prop::sample::Index>(), fails in any::<bool>()) {
        let network: NetworkSpec = network.parse().unwrap();
        let Ok(mut fabric) = cluster::build(&preset::load(name).unwrap(), nodes, Some(&network)) else {
            // A torus and a fat tree reject some numbers of hosts.
            return Ok(());
        };
        if fails {
            let link = LinkId(broken.index(fabric.link_count()) as u32);
            fabric = fabric.with_failed_links(&[link, link.reverse()]);
        }
        let router = Router::new(&fabric, options);
        for &from in fabric.gpus() {
            let table = router.paths_from(from);
            for (rank, &to) in fabric.gpus().iter().enumerate().filter(|&(_, &to)| to != from) {
                let found = router.path(from, to);
                let Ok(path) = found else {
                    prop_assert!(fails || options.pxn == Pxn::Off || network.tiers == Some(1) || options.p2p == PeerAccess::Off || options.gdr == GpuDirect::Off, "{}", found.unwrap_err());
                    prop_assert!(table.get(rank).is_none());
                    continue;
                };
                let (hops, summary) = table.get(rank).unwrap();
                prop_assert_eq!((hops, summary.class, summary.latency), (&path.hops[..], path.class, path.latency));
                let same_host = fabric.node(from).host == fabric.node(to).host;
                prop_assert!(same_host || path.class == PathClass::Net);
                prop_assert!(fails || !same_host || path.class < PathClass::Net);
                // A flow staged in host memory may pass a PCIe switch twice, and the same link in both directions.
                check(&fabric, options, from, to, &path);
            }
        }
    }

    #[test]
    fn routes_on_clusters_do_not_depend_on_numbering((name, nodes, network) in networks(), options in options(), seed in any::<u64>()) {
        let Ok(fabric) = cluster::build(&preset::load(name).unwrap(), nodes.min(4), Some(&network.parse().unwrap())) else {
            return Ok(());
        };
        // NICs are assigned to GPUs in the order of the file, so devices keep their order; links do not.
        let mut builder = FabricBuilder::new("same devices");
        for (_, node) in fabric.nodes() {
            let host = builder.host(&fabric.hosts()[node.host.0 as usize]);
            builder.add_node(Node { host, ..node.clone() }).unwrap();
        }
        let pairs = fabric.link_count() as u32 / 2;
        for i in 0..pairs {
            let i = ((u64::from(i) + seed % u64::from(pairs)) % u64::from(pairs)) as u32;
            let (forward, backward) = (fabric.link(LinkId(2 * i)), fabric.link(LinkId(2 * i + 1)));
            let spec = LinkSpec { kind: forward.kind, lanes: forward.lanes, forward: backward.bandwidth, backward: forward.bandwidth, latency: forward.latency };
            builder.link(backward.from, backward.to, &spec);
        }
        check_same_routes(&fabric, &builder.finish(), options)?;
    }
}
