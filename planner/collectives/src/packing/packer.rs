//! Packing of trees into the links of a fabric.

mod all_reduce;
mod common_blocks;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use all_reduce::AllReduceBound;
use fabricast_sim::schedule::{Collective, Symmetry};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Fabric, LinkId, NodeId};
use rustc_hash::FxHashSet;

use super::digraph::Digraph;
use super::error::PackingError;
use super::forest::{BlockKind, Evidence, Forest, Forests, LinkSharing, Proof};
use super::mixture::{FastestMixture, MixedForest, Network};
use super::optimum::Ratio;
use super::rank_symmetry::symmetric_routes;
use super::requirement::Roots;
use super::routes::{Flow, Routes};
use super::series::contract_series;
use super::tree_use::TreeUse;
use super::variant::{TreeVariant, VARIANTS};
use crate::algorithm::tree_packing::StreamDivision;
use crate::bound::wiring::{Wiring, used_links};
use crate::flow::UNLIMITED;

/// Largest number of ranks for which trees are packed without symmetry. The time grows with the fourth power of the ranks:
/// about a second for 16 hosts of 8 H100 on rails, several on hosts without switches.
pub const MAX_PACKED_RANKS: usize = 128;

/// Largest number of channels that a packing requests.
const MAX_STREAMS: u16 = 64;

/// Largest number of streams of the ranks that are simulated for which each message of a loop may have one.
const MAX_PARALLEL_STREAMS: u64 = 1 << 13;

/// Loss of throughput, due to sharing in ratios other than those of the loads, up to which the number of channels is
/// not increased.
const MAX_SHARING_LOSS: f64 = 0.005;

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

/// Routes with what is derived from them on first use.
#[derive(Debug)]
struct RouteSet {
    routes: Arc<Routes>,
    /// Groups of connections that share links.
    sharing: OnceLock<Arc<LinkSharing>>,
    /// Mixtures of trees of the shortest time, for each need.
    fastest: [OnceLock<Result<FastestMixture, PackingError>>; Need::COUNT],
    /// Mixture of the trees of both phases of an all_reduce.
    both_phases: OnceLock<Result<FastestMixture, PackingError>>,
}

impl RouteSet {
    fn new(routes: Routes) -> Self {
        Self {
            routes: Arc::new(routes),
            sharing: OnceLock::new(),
            fastest: Default::default(),
            both_phases: OnceLock::new(),
        }
    }

    fn sharing(&self) -> Arc<LinkSharing> {
        self.sharing.get_or_init(|| Arc::new(LinkSharing::new(self.routes.clone()))).clone()
    }

    fn fastest(&self, need: Need) -> Result<&FastestMixture, PackingError> {
        let Need { roots, blocks, flow } = need;
        let solve = || FastestMixture::new(vec![Network::new(&self.routes, roots, blocks, flow)]);
        self.fastest[need.index()].get_or_init(solve).as_ref().map_err(|error| *error)
    }

    /// Mixture of the trees of both phases of an all_reduce, which share the links: first those that collect sums, then
    /// those that spread them.
    fn both_phases(&self) -> Result<&FastestMixture, PackingError> {
        let network = |flow| Network::new(&self.routes, Roots::All, BlockKind::Common, flow);
        let solve = || FastestMixture::new([Flow::Collect, Flow::Spread].map(network).into());
        self.both_phases.get_or_init(solve).as_ref().map_err(|error| *error)
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
    /// Routes between all ranks; `None` if there are too many.
    all_routes: Option<RouteSet>,
    /// Routes of one rank of each class of alike ranks; `None` if no two are known to be alike.
    class_routes: Option<RouteSet>,
    root: u32,
    /// Lower bound of an all_reduce; `None` if nothing limits it.
    all_reduce_bound: OnceLock<Option<AllReduceBound>>,
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
        let routes = |packer: &Self| {
            [&packer.all_routes, &packer.class_routes].map(|set| set.as_ref().map(|set| set.routes.clone()))
        };
        (&self.graph, routes(self), self.root) == (&other.graph, routes(other), other.root)
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
        if distinct.len() != ranks {
            return Err(PackingError::SharedDevices);
        }
        let hosts: Vec<u32> = placement.iter().map(|&device| fabric.node(device).host.0).collect();
        let class_routes = symmetric_routes(fabric, router, placement, &hosts).map(RouteSet::new);
        let is_small = ranks <= MAX_PACKED_RANKS;
        let all_routes = is_small.then(|| RouteSet::new(Routes::new(fabric, router, placement)));
        let Some(known) = class_routes.as_ref().or(all_routes.as_ref()) else {
            return Err(PackingError::TooManyRanks(ranks));
        };
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
        Ok(Self {
            core: contract_series(&graph),
            graph,
            names: wiring.devices.iter().map(|&device| fabric.node(device).id.clone()).collect(),
            devices: wiring.devices,
            hosts,
            link_names: known.routes.limited_links().map(|(id, _)| (id, fabric.link_name(id).into())).collect(),
            all_routes,
            class_routes,
            root: root.min(ranks as u32 - 1),
            all_reduce_bound: OnceLock::new(),
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
        let mut spread = spreads.then(|| packed(Flow::Spread)).transpose()?;
        let mut collect = collects.then(|| packed(Flow::Collect)).transpose()?;
        if let (Some(spread), Some(collect)) = (&mut spread, &mut collect) {
            if spread.forest.symmetry != collect.forest.symmetry {
                for packed in [&mut *spread, &mut *collect] {
                    packed.forest = Arc::new(packed.forest.without_symmetry());
                }
            }
            if let Some(both) = self.faster_all_reduce(variant.variant, [&collect.forest, &spread.forest]) {
                [collect.forest, spread.forest] = both;
            }
        }
        let parts = [(&spread, Flow::Spread), (&collect, Flow::Collect)];
        let loads: Vec<(&Forest, Flow)> =
            parts.iter().filter_map(|(packed, flow)| Some((&*packed.as_ref()?.forest, *flow))).collect();
        let set = loads.first().map(|&(forest, _)| self.routes_of(forest)).transpose()?;
        let upper = set.and_then(|set| set.routes.time_per_byte(&loads));
        let latencies = set
            .into_iter()
            .flat_map(|set| loads.iter().map(|&(forest, flow)| set.routes.longest_latency(forest, flow)));
        let latency = latencies.max().unwrap_or_default();
        let proof = upper.and_then(|upper| match (&spread, &collect) {
            (Some(_), Some(_)) => self.all_reduce_bound().map(|bound| bound.proof(upper)),
            (Some(packed), None) | (None, Some(packed)) => {
                Some(Proof { evidence: packed.evidence.clone(), lower: packed.lower, upper })
            }
            (None, None) => None,
        });
        let forest = |packed: Option<PackedForest>| packed.map(|packed| packed.forest);
        let sharing = set.map(RouteSet::sharing);
        let mut forests = Forests {
            variant: Some(variant.variant),
            collect: forest(collect),
            spread: forest(spread),
            proof,
            channels: 1,
            parallel_channels: 1,
            sharing,
            latency,
        };
        let division = StreamDivision::new(collective, &forests, self.graph.terminals());
        forests.channels = sufficient_channels(&division);
        // Without symmetry, the simulation of more streams would take minutes.
        let is_quick = forests.symmetry() != Symmetry::None && division.units() <= MAX_PARALLEL_STREAMS;
        let parallel = if is_quick { division.busiest().min(MAX_STREAMS.into()) as u16 } else { 1 };
        forests.parallel_channels = parallel.max(forests.channels);
        Ok(forests)
    }

    /// Routes between all ranks.
    fn all_routes(&self) -> Result<&RouteSet, PackingError> {
        self.all_routes.as_ref().ok_or(PackingError::TooManyRanks(self.hosts.len()))
    }

    /// Routes between classes of ranks, or between all ranks if there are no classes.
    fn known_routes(&self) -> Result<&RouteSet, PackingError> {
        self.class_routes.as_ref().map_or_else(|| self.all_routes(), Ok)
    }

    /// Routes that have the symmetry of a forest.
    fn routes_of(&self, forest: &Forest) -> Result<&RouteSet, PackingError> {
        match &self.class_routes {
            Some(set) if *set.routes.symmetry() == forest.symmetry => Ok(set),
            _ => self.all_routes(),
        }
    }

    /// Time that the busiest link needs for a forest.
    fn time(&self, forest: &Forest, flow: Flow) -> Option<Ratio> {
        self.routes_of(forest).ok()?.routes.time_per_byte(&[(forest, flow)])
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

    /// Routes over which trees of these roots are sought by linear programs.
    fn routes_for(&self, roots: Roots) -> Result<&RouteSet, PackingError> {
        match roots {
            Roots::All => self.known_routes(),
            Roots::One(_) => self.all_routes(),
        }
    }

    /// Finds trees whose edges carry a block per rank below them.
    fn pack_per_rank(&self, variant: TreeVariant, need: Need) -> Result<PackedForest, PackingError> {
        let set = self.routes_for(need.roots)?;
        let fastest = set.fastest(need)?;
        let MixedForest { forest, prices, lower } = fastest.personalised_trees(variant)?;
        let numbered = (0..).zip(prices).filter(|&(_, price)| price > 0);
        let prices: BTreeMap<LinkId, u64> =
            numbered.filter_map(|(orbit, price)| Some((fastest.link(orbit)?, price))).collect();
        let mut links: Vec<(LinkId, LinkId)> = set.routes.limited_links().collect();
        links.sort_unstable();
        let named = links
            .into_iter()
            .filter_map(|(link, orbit)| Some((self.link_names.get(&link)?.clone(), *prices.get(&orbit)?)));
        Ok(PackedForest { forest: Arc::new(forest), evidence: Evidence::Prices(named.collect()), lower })
    }
}

/// Smallest number of channels with which connections share links nearly in the ratio of their loads.
fn sufficient_channels(division: &StreamDivision) -> u16 {
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
