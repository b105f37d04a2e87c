//! Packing of trees into the links of a fabric.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use fabricast_sim::schedule::Collective;
use fabricast_topologies::route::Router;
use fabricast_topologies::{Fabric, LinkId, NodeId};
use rustc_hash::FxHashSet;

use super::arborescences::{Arborescence, pack};
use super::digraph::Digraph;
use super::forest::{BlockKind, Evidence, Forest, Forests, LinkSharing, PackedTree, Proof};
use super::optimum::{Optimum, Ratio, ScaledGraph, optimum, scale_to_optimum, scale_to_units};
use super::personalised::{self, Network};
use super::requirement::{Requirement, Roots};
use super::routes::{Flow, Routes};
use super::series::contract_series;
use super::splitting::{Turn, remove_switches};
use super::tree_use::TreeUse;
use super::variant::{TreeVariant, VARIANTS};
use crate::algorithm::tree_packing::StreamDivision;
use crate::bound::line::gcd;
use crate::bound::wiring::{Wiring, used_links};
use crate::flow::UNLIMITED;

/// Largest number of ranks for which trees are packed. The time grows with the fourth power of the ranks: about a
/// second for 16 hosts of 8 H100 on rails, several on hosts without switches.
pub const MAX_PACKED_RANKS: usize = 128;

/// Largest number of trees per root at which rates are exact.
const MAX_EXACT_UNITS: u64 = 32;

/// Largest number of trees per root. An arc carries a whole number of trees, so that at most 1/64 of the throughput per
/// tree is lost on an arc.
const MAX_UNITS: u64 = 64;

/// Share of the optimal throughput, in percent, that a rounded number of trees per root must reach. The first number
/// that does is used, because the time to pack and to simulate trees grows with it.
const MIN_ROUNDED_PERCENT: u128 = 99;

/// Fractions of a unit of capacity with which the rate of trees is found that remain after the removal of switches.
const FEW_TREES_RESOLUTION: u64 = 1 << 10;

/// Largest number of channels that a packing requests.
const MAX_STREAMS: u16 = 64;

/// Loss of throughput, due to sharing in ratios other than those of the loads, up to which the number of channels is
/// not increased.
const MAX_SHARING_LOSS: f64 = 0.005;

/// Reason why no trees are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackingError {
    /// The caller did not ask for trees.
    #[error(
        "is tried only if it is named, because packing and simulating trees takes longer than all other candidates"
    )]
    NotPrepared,
    /// The collective is not computed over spanning trees.
    #[error("has no trees for {0}")]
    OtherCollective(Collective),
    /// Fewer than two ranks.
    #[error("needs at least two ranks")]
    TooFewRanks,
    /// More ranks than trees are packed for.
    #[error("packs trees for at most {MAX_PACKED_RANKS} ranks, not {0}")]
    TooManyRanks(usize),
    /// Several ranks share a device.
    #[error("needs a separate device for each rank")]
    SharedDevices,
    /// Some rank cannot receive from all others.
    #[error("needs links between all ranks: rank {rank} is cut off from others")]
    Disconnected {
        /// Rank on the receiving side of a cut without bandwidth.
        rank: u32,
    },
    /// No link has a limited rate, so that there is no best schedule.
    #[error("needs links with stated bandwidths")]
    UnlimitedLinks,
    /// Trees of equal rates do not exist at a whole rate.
    #[error("finds no trees of equal rates, because bandwidths differ too much")]
    NoTrees,
    /// The linear program of a collective with a block for each rank has no solution in floating point.
    #[error("finds no rates on paths, because bandwidths differ too much")]
    NoMixture,
    /// Routes are divided among numbers of paths with a common multiple of more than 128 bits.
    #[error("cannot compute loads exactly, because routes are divided among too many different numbers of equal paths")]
    TooManyPaths,
    /// An edge of the trees has no route.
    #[error("needs a route between ranks {from} and {to}, but there is none")]
    NoRoute {
        /// Sender.
        from: u32,
        /// Receiver.
        to: u32,
    },
}

/// Trees of one direction, and the proof of their lower bound.
#[derive(Clone, Debug)]
struct PackedForest {
    forest: Arc<Forest>,
    evidence: Evidence,
    lower: Ratio,
}

/// Trees of one direction that a collective needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    roots: Roots,
    blocks: BlockKind,
    flow: Flow,
}

impl Need {
    /// Number of different needs of a root.
    const COUNT: usize = 8;

    /// Number below [`Self::COUNT`].
    fn index(self) -> usize {
        let Self { roots, blocks, flow } = self;
        usize::from(flow == Flow::Collect)
            + 2 * usize::from(roots == Roots::All)
            + 4 * usize::from(blocks == BlockKind::PerRank)
    }
}

/// Packs trees into the links of a fabric, on first use per direction and root.
#[derive(Debug)]
pub struct TreePacker {
    graph: Digraph,
    /// The graph without switches that only connect links in series.
    core: Digraph,
    /// Device of each vertex of the graph.
    devices: Vec<NodeId>,
    /// Name of each vertex's device.
    names: Vec<Box<str>>,
    /// Name of each link that routes use and that has a rate.
    link_names: BTreeMap<LinkId, Box<str>>,
    /// Host of each rank's device.
    hosts: Vec<u32>,
    routes: Arc<Routes>,
    root: u32,
    /// Groups of connections that share links.
    sharing: OnceLock<Arc<LinkSharing>>,
    /// Variants of the trees, preferred ones first.
    variants: Vec<PackedVariant>,
}

/// Trees of one variant, packed on first use.
#[derive(Debug)]
struct PackedVariant {
    variant: TreeVariant,
    /// Trees of one direction, for each need.
    packed: [OnceLock<Result<PackedForest, PackingError>>; Need::COUNT],
    /// Trees of each of [`COLLECTIVES`].
    forests: [OnceLock<Result<Forests, PackingError>>; COLLECTIVES.len()],
}

impl PackedVariant {
    fn new(variant: TreeVariant) -> Self {
        Self { variant, packed: Default::default(), forests: Default::default() }
    }

    /// Returns the trees of a collective; `None` if they have not been requested.
    fn if_packed(&self, collective: Collective) -> Option<&Result<Forests, PackingError>> {
        self.forests[index(collective)?].get()
    }
}

/// Collectives that run over packed trees.
const COLLECTIVES: [Collective; 8] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
    Collective::Scatter,
    Collective::Gather,
];

/// Index of a collective in [`COLLECTIVES`].
fn index(collective: Collective) -> Option<usize> {
    COLLECTIVES.iter().position(|&known| known == collective)
}

impl PartialEq for TreePacker {
    fn eq(&self, other: &Self) -> bool {
        (&self.graph, &self.routes, self.root) == (&other.graph, &other.routes, other.root)
            && self.variants().eq(other.variants())
    }
}

impl Eq for TreePacker {}

impl TreePacker {
    /// Reads the graph of the links between the devices of `placement`, one per rank. `root` is the root of rooted
    /// collectives. `trees`: the only variant of the trees; all if `None`.
    ///
    /// # Errors
    /// Returns [`PackingError`] if the ranks are too few or too many, or share devices.
    pub fn new(
        fabric: &Fabric,
        router: &Router<'_>,
        placement: &[NodeId],
        root: u32,
        trees: Option<TreeVariant>,
    ) -> Result<Self, PackingError> {
        let ranks = placement.len();
        let distinct: FxHashSet<NodeId> = placement.iter().copied().collect();
        if ranks < 2 {
            return Err(PackingError::TooFewRanks);
        }
        if ranks > MAX_PACKED_RANKS {
            return Err(PackingError::TooManyRanks(ranks));
        }
        if distinct.len() != ranks {
            return Err(PackingError::SharedDevices);
        }
        let transits = router.island_traffic(placement);
        let links = used_links(fabric, router, &transits);
        let wiring = Wiring::new(fabric, router, placement, &transits, &links);
        let finite = wiring.wires.iter().map(|wire| wire.capacity).filter(|&capacity| capacity < UNLIMITED);
        let total = finite.fold(0u64, |sum, capacity| sum.saturating_add(u64::try_from(capacity).unwrap_or(u64::MAX)));
        if total == 0 && wiring.wires.iter().any(|wire| wire.capacity >= UNLIMITED) {
            return Err(PackingError::UnlimitedLinks);
        }
        let mut graph = Digraph::new(ranks as u32, wiring.vertices);
        for wire in &wiring.wires {
            // The capacity of an unlimited wire is at least that of all limited wires.
            graph.add(wire.from, wire.to, u64::try_from(wire.capacity).map_or(total, |capacity| capacity.min(total)));
        }
        let routes = Routes::new(fabric, router, placement);
        Ok(Self {
            core: contract_series(&graph),
            graph,
            names: wiring.devices.iter().map(|&device| fabric.node(device).id.clone()).collect(),
            devices: wiring.devices,
            hosts: placement.iter().map(|&device| fabric.node(device).host.0).collect(),
            link_names: routes.limited_links().map(|(id, _)| (id, fabric.link_name(id).into())).collect(),
            routes: Arc::new(routes),
            root: root.min(ranks as u32 - 1),
            sharing: OnceLock::new(),
            variants: trees.map_or(VARIANTS.to_vec(), |only| vec![only]).into_iter().map(PackedVariant::new).collect(),
        })
    }

    /// Returns the trees of a collective with the highest throughput, or of the only variant.
    ///
    /// # Errors
    /// Returns [`PackingError`] if no trees join all ranks, or the router finds no route for an edge.
    pub fn forests(&self, collective: Collective) -> Result<Forests, PackingError> {
        match self.variants.first() {
            Some(first) => self.trees(collective, first),
            None => Err(PackingError::NoTrees),
        }
    }

    /// Returns different trees of a collective, each packed on first use: those of the highest throughput, then
    /// increasingly shallow ones, then few trees per root. Trees that do not exist or equal earlier ones are omitted.
    /// `only`: the variant to return; all if `None`.
    pub fn family(&self, collective: Collective, only: Option<TreeVariant>) -> impl Iterator<Item = Forests> + '_ {
        let chosen =
            self.variants.iter().enumerate().filter(move |(_, packed)| only.is_none_or(|v| v == packed.variant));
        chosen.filter_map(move |(number, packed)| {
            let forests = self.trees(collective, packed).ok()?;
            let is_repeated = |other: &PackedVariant| {
                let other = other.if_packed(collective);
                other.is_some_and(|other| other.as_ref().is_ok_and(|other| other.has_equal_trees(&forests)))
            };
            let repeats = only.is_none() && self.variants.iter().take(number).any(is_repeated);
            (!repeats).then_some(forests)
        })
    }

    /// Variants of the trees.
    fn variants(&self) -> impl Iterator<Item = TreeVariant> + '_ {
        self.variants.iter().map(|packed| packed.variant)
    }

    /// Returns the trees of a variant.
    fn trees(&self, collective: Collective, packed: &PackedVariant) -> Result<Forests, PackingError> {
        let index = index(collective).ok_or(PackingError::OtherCollective(collective))?;
        packed.forests[index].get_or_init(|| self.assemble(collective, packed)).clone()
    }

    /// Packs the trees of a variant, and determines what a call over them needs.
    fn assemble(&self, collective: Collective, variant: &PackedVariant) -> Result<Forests, PackingError> {
        let TreeUse { roots, blocks, collects, spreads } =
            TreeUse::of(collective, self.root).ok_or(PackingError::OtherCollective(collective))?;
        let packed = |flow: Flow| self.packed(variant, Need { roots, blocks, flow });
        let spread = spreads.then(|| packed(Flow::Spread)).transpose()?;
        let collect = collects.then(|| packed(Flow::Collect)).transpose()?;
        let parts = [(&spread, Flow::Spread), (&collect, Flow::Collect)];
        let loads: Vec<(&Forest, Flow)> =
            parts.iter().filter_map(|(packed, flow)| Some((&*packed.as_ref()?.forest, *flow))).collect();
        let upper = self.routes.time_per_byte(&loads);
        let latencies = loads.iter().map(|&(forest, flow)| self.routes.longest_latency(forest, flow));
        let latency = latencies.max().unwrap_or_default();
        let proof = upper.and_then(|upper| match (&spread, &collect) {
            (Some(_), Some(_)) => self.all_reduce_proof(upper),
            (Some(packed), None) | (None, Some(packed)) => {
                Some(Proof { evidence: packed.evidence.clone(), lower: packed.lower, upper })
            }
            (None, None) => None,
        });
        let forest = |packed: Option<PackedForest>| packed.map(|packed| packed.forest);
        let sharing = Some(self.sharing.get_or_init(|| Arc::new(LinkSharing::new(self.routes.clone()))).clone());
        let mut forests = Forests {
            variant: Some(variant.variant),
            collect: forest(collect),
            spread: forest(spread),
            proof,
            channels: 1,
            sharing,
            latency,
        };
        forests.channels = self.sufficient_channels(collective, &forests);
        Ok(forests)
    }

    /// Smallest number of channels with which connections share links nearly in the ratio of their loads.
    fn sufficient_channels(&self, collective: Collective, forests: &Forests) -> u16 {
        let division = StreamDivision::new(collective, forests, self.graph.terminals());
        let mut best = (f64::INFINITY, 1);
        for channels in 1..=MAX_STREAMS {
            let slowdown = division.slowdown(channels);
            if slowdown < best.0 * (1.0 - 1e-9) {
                best = (slowdown, channels);
            }
            if slowdown <= 1.0 + MAX_SHARING_LOSS {
                break;
            }
        }
        best.1
    }

    /// Proof of an all_reduce in which only ranks reduce: k disjoint sets receive 2(k − 1) buffers in total (Patarasuk
    /// & Yuan, JPDC 2009, §3). The sets are single ranks or hosts; the slower of the two kinds is used.
    fn all_reduce_proof(&self, upper: Ratio) -> Option<Proof> {
        let ranks = self.graph.terminals();
        let device = |rank: u32| self.devices.get(rank as usize).copied();
        let single: Vec<Vec<u32>> = (0..ranks).map(|rank| vec![rank]).collect();
        let mut by_host: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (rank, &host) in (0..).zip(&self.hosts) {
            by_host.entry(host).or_default().push(rank);
        }
        let hosts: Vec<Vec<u32>> = by_host.into_values().collect();
        let bound = |sets: &[FxHashSet<NodeId>]| {
            let into: Option<u128> = sets.iter().map(|set| self.routes.entering(set)).sum();
            Some(Ratio::new(2 * (sets.len() as u128 - 1), into?))
        };
        let mut best: Option<(Ratio, Vec<FxHashSet<NodeId>>)> = None;
        for partition in [single, hosts].into_iter().filter(|sets| sets.len() > 1) {
            let sets: Vec<FxHashSet<NodeId>> =
                partition.iter().map(|set| set.iter().filter_map(|&rank| device(rank)).collect()).collect();
            let Some(lower) = bound(&sets) else { continue };
            if best.as_ref().is_none_or(|(other, _)| lower.is_above(*other) == Some(true)) {
                best = Some((lower, sets));
            }
        }
        let (lower, sets) = best?;
        let cut = sets.iter().map(|set| self.device_names(set)).collect();
        Some(Proof { evidence: Evidence::Cut(cut), lower, upper })
    }

    /// Ids of devices, in alphabetical order.
    fn device_names(&self, set: &FxHashSet<NodeId>) -> Vec<Box<str>> {
        let named = self.devices.iter().zip(&self.names).filter(|(device, _)| set.contains(device));
        let mut names: Vec<Box<str>> = named.map(|(_, name)| name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn packed(&self, packed: &PackedVariant, need: Need) -> Result<PackedForest, PackingError> {
        let pack = || match need.blocks {
            BlockKind::Common => self.pack(packed, need),
            BlockKind::PerRank => self.pack_per_rank(packed.variant, need),
        };
        packed.packed[need.index()].get_or_init(pack).clone()
    }

    /// Finds trees whose edges carry a block per rank below them.
    fn pack_per_rank(&self, variant: TreeVariant, need: Need) -> Result<PackedForest, PackingError> {
        let network = Network::new(&self.routes, need.roots, need.flow);
        let personalised::PersonalisedForest { forest, prices, lower } = personalised::trees(&network, variant)?;
        let named = (0..).zip(prices).filter(|&(_, price)| price > 0);
        let named = named.filter_map(|(link, price)| Some((self.link_names.get(&network.link(link)?)?.clone(), price)));
        Ok(PackedForest { forest: Arc::new(forest), evidence: Evidence::Prices(named.collect()), lower })
    }

    fn pack(&self, packed: &PackedVariant, need: Need) -> Result<PackedForest, PackingError> {
        let Need { roots, flow, .. } = need;
        if flow == Flow::Collect && self.graph == self.graph.reversed() {
            let spread = self.packed(packed, Need { flow: Flow::Spread, ..need })?;
            let times = [Flow::Spread, Flow::Collect].map(|flow| self.routes.time_per_byte(&[(&spread.forest, flow)]));
            // The reverse of a cut of a graph whose links are alike in both directions is a cut of the same capacity.
            let others = |set: &[Box<str>]| {
                let outside = self.names.iter().filter(|&name| !set.contains(name)).cloned();
                let mut outside: Vec<Box<str>> = outside.collect();
                outside.sort_unstable();
                outside.dedup();
                outside
            };
            if times[0] == times[1] && self.check_routes(&spread.forest, flow).is_ok() {
                let evidence = match spread.evidence {
                    Evidence::Cut(sets) => Evidence::Cut(sets.iter().map(|set| others(set)).collect()),
                    prices @ Evidence::Prices(_) => prices,
                };
                return Ok(PackedForest { evidence, ..spread });
            }
        }
        let graph = match flow {
            Flow::Spread => self.graph.clone(),
            Flow::Collect => self.graph.reversed(),
        };
        let Optimum { rate, sending_side } = optimum(&graph, roots);
        if rate.numerator == 0 {
            let rank = (0..graph.terminals()).find(|&rank| sending_side.get(rank as usize) == Some(&false));
            return Err(PackingError::Disconnected { rank: rank.unwrap_or(0) });
        }
        let core = match flow {
            Flow::Spread => self.core.clone(),
            Flow::Collect => self.core.reversed(),
        };
        let variant = packed.variant;
        let mut scaled = scale(&core, roots, rate, variant).ok_or(PackingError::NoTrees)?;
        let first = self.variants.first().filter(|first| first.variant != variant && variant.widening() == 1);
        if let Some(first) = first.filter(|first| scale(&core, roots, rate, first.variant).as_ref() == Some(&scaled)) {
            return self.packed(first, need);
        }
        scaled.graph = scaled.graph.map(|capacity| capacity.saturating_mul(variant.widening().into()));
        let logical = self.without_switches(&scaled, flow);
        let lenient = grow_trees(&scaled, &logical, variant)?;
        let time = |forest: &Forest| self.routes.time_per_byte(&[(forest, flow)]);
        let roots_count = u128::from(roots.count(graph.terminals()));
        let ideal = Ratio::new(
            scaled.unit.denominator,
            scaled.unit.numerator * u128::from(scaled.requirement.units) * roots_count,
        );
        // Routes that differ from the assumed ones may overload links; trees without such edges may be faster.
        let is_ideal = |forest: &Forest| time(forest).is_some_and(|time| time.is_above(ideal) != Some(true));
        let forest = match is_ideal(&lenient) {
            true => lenient,
            false => match self.without_detours(&logical, flow).map(|direct| grow_trees(&scaled, &direct, variant)) {
                Some(Ok(strict)) if is_faster(time(&strict), time(&lenient)) => strict,
                _ => lenient,
            },
        };
        self.check_routes(&forest, flow)?;
        let crossing_blocks = match roots {
            Roots::All => (0..graph.terminals()).filter(|&rank| sending_side.get(rank as usize) == Some(&true)).count(),
            Roots::One(_) => 1,
        };
        let bound = |set: &FxHashSet<NodeId>| match self.routes.leaving(set) {
            Some(leaving) if leaving > 0 => Ratio::new(crossing_blocks as u128, roots_count * leaving),
            _ => Ratio::new(0, 1),
        };
        let sets = self.sending_devices(&sending_side, flow).map(|set| (bound(&set), set));
        let (lower, set) = match sets {
            [(lower, _), other] if other.0.is_above(lower) == Some(true) => other,
            [first, _] => first,
        };
        Ok(PackedForest { forest: Arc::new(forest), evidence: Evidence::Cut(vec![self.device_names(&set)]), lower })
    }

    /// Returns the devices on the side of a cut that sends in the fabric. A device of which only some turns are on that
    /// side counts as on it in the first set, and not in the second.
    fn sending_devices(&self, sending_side: &[bool], flow: Flow) -> [FxHashSet<NodeId>; 2] {
        let on_side = |is_sending: bool| -> FxHashSet<NodeId> {
            let sides = sending_side.iter().zip(&self.devices);
            sides
                .filter(|&(&sends, _)| (sends == (flow == Flow::Spread)) == is_sending)
                .map(|(_, &device)| device)
                .collect()
        };
        let (sending, others) = (on_side(true), on_side(false));
        let only_sending = sending.difference(&others).copied().collect();
        [sending, only_sending]
    }

    fn check_routes(&self, forest: &Forest, flow: Flow) -> Result<(), PackingError> {
        let edges = forest.trees.iter().flat_map(PackedTree::edges);
        for (from, to) in edges.map(|(parent, child)| flow.ends(parent, child)) {
            if !self.routes.is_reachable(from, to) {
                return Err(PackingError::NoRoute { from, to });
            }
        }
        Ok(())
    }

    /// Returns a scaled graph whose switches are removed.
    fn without_switches(&self, scaled: &ScaledGraph, flow: Flow) -> Digraph {
        let terminals = scaled.graph.terminals();
        let turn = |from: u32, switch: u32, to: u32| {
            if from >= terminals || to >= terminals {
                return Turn::Routed;
            }
            let (from, to) = flow.ends(from, to);
            let device = self.devices.get(switch as usize);
            match device.is_some_and(|&device| self.routes.is_direct_through(from, to, device)) {
                true => Turn::Direct,
                false => Turn::Unrouted,
            }
        };
        remove_switches(&scaled.graph, scaled.requirement, &turn)
    }

    /// Returns a graph of ranks without the edges whose routes pass other ranks; `None` if there are none.
    fn without_detours(&self, logical: &Digraph, flow: Flow) -> Option<Digraph> {
        let mut direct = logical.clone();
        for (from, to, _) in logical.arcs() {
            let (sender, receiver) = flow.ends(from, to);
            if !self.routes.is_direct(sender, receiver) {
                direct.reduce(from, to, u64::MAX);
            }
        }
        (direct != *logical).then_some(direct)
    }
}

/// Packs trees into the graph without switches. If the removal of switches lost trees, as many as remain are packed, at a
/// lower rate.
fn grow_trees(scaled: &ScaledGraph, logical: &Digraph, variant: TreeVariant) -> Result<Forest, PackingError> {
    if let Some(trees) = pack(logical, scaled.requirement) {
        return forest(scaled.requirement, trees);
    }
    let roots = scaled.requirement.roots;
    // Capacities count trees: finer ones permit rates of a few trees that are fractions of a unit.
    let graph = match variant {
        TreeVariant::AtMost(_) => logical.map(|capacity| capacity.saturating_mul(FEW_TREES_RESOLUTION)),
        TreeVariant::Optimal | TreeVariant::Widened(_) => logical.clone(),
    };
    let rate = optimum(&graph, roots).rate;
    let reduced = scale(&graph, roots, rate, variant).ok_or(PackingError::NoTrees)?;
    forest(reduced.requirement, pack(&reduced.graph, reduced.requirement).ok_or(PackingError::NoTrees)?)
}

/// Returns the trees of a packing, with units as large as possible.
fn forest(requirement: Requirement, trees: Vec<Arborescence>) -> Result<Forest, PackingError> {
    let common = trees.iter().fold(requirement.units.into(), |common, tree| gcd(common, tree.units.into()));
    let units = |units: u64| u32::try_from(u128::from(units) / common).map_err(|_| PackingError::NoTrees);
    let trees = trees
        .into_iter()
        .map(|tree| Ok(PackedTree { root: tree.root, units: units(tree.units)?, parents: tree.parents }));
    Ok(Forest {
        roots: requirement.roots,
        blocks: BlockKind::Common,
        units: units(requirement.units)?,
        trees: trees.collect::<Result<_, PackingError>>()?,
    })
}

/// Scales a graph to the highest throughput that the number of trees per root of a variant permits.
fn scale(graph: &Digraph, roots: Roots, rate: Ratio, variant: TreeVariant) -> Option<ScaledGraph> {
    match variant {
        TreeVariant::Optimal | TreeVariant::Widened(_) => scale_to_few_units(graph, roots, rate),
        TreeVariant::AtMost(units) => scale_to_optimum(graph, roots, rate, units.into())
            .or_else(|| scale_to_units(graph, roots, rate, units.into(), 0)),
    }
}

/// Scales a graph to the optimal throughput, or near it if that needs many trees per root.
fn scale_to_few_units(graph: &Digraph, roots: Roots, rate: Ratio) -> Option<ScaledGraph> {
    let near = |units: u64| scale_to_units(graph, roots, rate, units, MIN_ROUNDED_PERCENT);
    scale_to_optimum(graph, roots, rate, MAX_EXACT_UNITS)
        .or_else(|| (1..=MAX_UNITS).find_map(near))
        .or_else(|| scale_to_units(graph, roots, rate, MAX_UNITS, 0))
}

fn is_faster(time: Option<Ratio>, other: Option<Ratio>) -> bool {
    match (time, other) {
        (Some(time), Some(other)) => other.is_above(time) == Some(true),
        (time, _) => time.is_some(),
    }
}
