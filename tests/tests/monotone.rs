//! Dependence of times on bytes and bandwidths, and independence of names, input order, threads, and candidates that
//! the search prunes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabricast_planner::algorithm::Algorithm;
use fabricast_planner::bound::Bounds;
use fabricast_planner::plan::{Effort, Plan, PlanRequest, Watcher, least_time, plan};
use fabricast_planner::strategy::{Restriction, Strategy};
use fabricast_sim::lower::Resource;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Collective};
use fabricast_sim::{Folding, LaunchMode, Timeline};
use fabricast_topologies::fabric::{CpuFigures, Figures, GpuFigures, Node, SwitchFigures};
use fabricast_topologies::route::{Ecmp, RouteOptions, Router};
use fabricast_topologies::{
    Bandwidth, Bytes, Fabric, FabricBuilder, Link, LinkId, LinkSpec, NodeId, NodeKind, Picos, read_text, write,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::matrices::matrix_of;
use crate::worlds::{Order, Plant, Scene, World, orders, per_host, plants, scenes, switch};

/// Copies a fabric in the given orders, with vertices and links transformed by `remake` and `relink`; failed links
/// are omitted.
fn copied(
    fabric: &Fabric,
    orders: &Orders,
    remake: impl Fn(&Node) -> Node,
    relink: impl Fn(LinkSpec) -> LinkSpec,
) -> Fabric {
    let mut builder = FabricBuilder::new(fabric.name());
    let mut new_ids = BTreeMap::new();
    for &old in &orders.nodes {
        let node = remake(fabric.node(old));
        let host = builder.host(&fabric.hosts()[node.host.0 as usize]);
        new_ids.insert(old, builder.node_with(Node { host, ..node }).unwrap());
    }
    for &id in &orders.links {
        let (link, back): (&Link, &Link) = (fabric.link(id), fabric.link(id.reverse()));
        // A link that failed in one direction only cannot be omitted.
        assert_eq!(link.failed, back.failed);
        if !link.failed {
            let spec = LinkSpec {
                kind: link.kind,
                lanes: link.lanes,
                forward: link.bandwidth,
                backward: back.bandwidth,
                latency: link.latency,
            };
            builder.link(new_ids[&link.from], new_ids[&link.to], &relink(spec));
        }
    }
    builder.rank_order(fabric.gpus().iter().map(|gpu| new_ids[gpu]).collect());
    builder.finish()
}

/// Order of vertices and of links (each in one of its directions).
struct Orders {
    nodes: Vec<NodeId>,
    links: Vec<LinkId>,
}

impl Orders {
    fn same(fabric: &Fabric) -> Self {
        let links = fabric.links().map(|(id, _)| id).filter(|id| id.0.is_multiple_of(2)).collect();
        Self { nodes: fabric.nodes().map(|(id, _)| id).collect(), links }
    }

    /// Another order by sort keys, with some links reversed. GPUs and NICs keep their order, which determines ranks
    /// and the assignment of NICs.
    fn shuffled(fabric: &Fabric, keys: &[u32]) -> Self {
        let mut orders = Self::same(fabric);
        orders.nodes.sort_by_key(|id| keys[id.0 as usize % keys.len()]);
        let is_counted = |id: &NodeId| {
            let kind = fabric.node(*id).kind;
            kind.is_rank() || kind == NodeKind::Nic
        };
        let mut counted: Vec<NodeId> = orders.nodes.iter().copied().filter(is_counted).collect();
        counted.sort_unstable();
        let places = orders.nodes.iter_mut().filter(|id| is_counted(id));
        places.zip(counted).for_each(|(place, id)| *place = id);
        orders.links.sort_by_key(|id| keys[(id.0 / 2) as usize % keys.len()]);
        for link in &mut orders.links {
            if keys[(link.0 / 2) as usize % keys.len()].is_multiple_of(2) {
                *link = link.reverse();
            }
        }
        orders
    }
}

fn faster(bandwidth: Option<Bandwidth>) -> Option<Bandwidth> {
    bandwidth.map(|b| Bandwidth(2 * b.0))
}

/// The device with every rate doubled.
fn faster_node(node: &Node) -> Node {
    let figures = match node.figures.clone() {
        Figures::Gpu(f) => {
            Figures::Gpu(Arc::new(GpuFigures { memory_bandwidth: faster(f.memory_bandwidth), ..(*f).clone() }))
        }
        Figures::Cpu(f) => {
            Figures::Cpu(Arc::new(CpuFigures { memory_bandwidth: faster(f.memory_bandwidth), ..(*f).clone() }))
        }
        Figures::Switch(f) => Figures::Switch(Arc::new(SwitchFigures { capacity: faster(f.capacity), ..(*f).clone() })),
        other => other,
    };
    Node { figures, ..node.clone() }
}

/// Number of instants at which an operation ends: each is rounded up by less than a picosecond, and shifts what
/// follows.
fn roundings(timeline: &Timeline) -> u64 {
    timeline.spans.iter().map(|span| span.done).collect::<BTreeSet<_>>().len() as u64
}

/// Runs without latency: one as given, one with every bandwidth doubled, one with the bytes doubled.
fn halved_and_doubled(fabric: &Fabric, order: &Order) -> Option<[Timeline; 3]> {
    let same = Orders::same(fabric);
    let instant = |spec| LinkSpec { latency: Picos::ZERO, ..spec };
    let double =
        |spec: LinkSpec| LinkSpec { forward: faster(spec.forward), backward: faster(spec.backward), ..instant(spec) };
    let once = copied(fabric, &same, Node::clone, instant);
    let twice = copied(fabric, &same, faster_node, double);
    let longer = order.in_one_loop(2 * order.bytes);
    Some([ideal_run(&once, order)?, ideal_run(&twice, order)?, ideal_run(&once, &longer)?])
}

/// Runs an order under `ideal`; `None` if a broken fabric does not connect its ranks.
fn ideal_run(fabric: &Fabric, order: &Order) -> Option<Timeline> {
    let case = order.over(fabric.gpus().len() as u32, per_host(fabric));
    World::ideal(fabric.clone()).run(&*case.generator(), Folding::WhereProved).ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Without latency, on equal links, doubling the bandwidth halves the time, and doubling the bytes doubles it, to
    /// a picosecond per end.
    #[test]
    fn time_is_bytes_over_bandwidth(gpus in 2u32..=16, gbps in 1u64..1000, order in orders()) {
        // Blocks of a matrix are whole bytes, so they cannot be halved exactly.
        prop_assume!(order.collective.has_sizes());
        let fabric = switch(gpus, Bandwidth(gbps * 1_000_000_000), Picos::ZERO);
        let [once, faster, longer] = halved_and_doubled(&fabric, &order.in_one_loop(order.bytes)).unwrap();
        for (half, whole) in [(&faster, &once), (&once, &longer)] {
            let rounded = 2 * roundings(half) + roundings(whole);
            prop_assert!((2 * half.time.0).abs_diff(whole.time.0) <= rounded, "{:?} {:?}", half.time, whole.time);
        }
    }

    /// Variant of the proportionality test on any fabric. Where transfers share capacities, a rounding shifts the
    /// ends of others by more than itself, so times are made long enough for it to be negligible.
    #[test]
    fn time_is_bytes_over_bandwidth_anywhere(scene in scenes(16), order in orders()) {
        let fabric = Scene { failed: vec![], ..scene }.world().fabric;
        let order = order.in_one_loop(order.bytes.max(1000) << 15);
        let Some([once, faster, longer]) = halved_and_doubled(&fabric, &order) else { return Ok(()) };
        for (half, whole) in [(faster, &once), (once.clone(), &longer)] {
            let (half, whole) = (half.time.0, whole.time.0);
            prop_assert!((2 * half).abs_diff(whole) <= whole / 100_000, "{half} {whole}");
        }
    }

    /// Time does not decrease with bytes.
    #[test]
    fn time_grows_with_bytes(plant in plants(16), order in orders(), more in 1u64..1_000_000) {
        // With different block sizes, one more byte may change the order of messages.
        prop_assume!(order.collective.has_sizes());
        let fabric = plant.build();
        let order = order.in_one_loop(order.bytes);
        let (less, more) = (ideal_run(&fabric, &order), ideal_run(&fabric, &order.in_one_loop(order.bytes + more)));
        if let (Some(less), Some(more)) = (less, more) {
            prop_assert!(less.time <= more.time, "{:?} {:?}", less.time, more.time);
        }
    }

    /// Other names and another order of vertices and links in the file change nothing.
    #[test]
    fn names_and_order_do_not_matter(scene in scenes(16), order in orders(), keys in vec(any::<u32>(), 64)) {
        // ECMP by hash depends on names; failed links are omitted from a spec, and slowed links are copied as they
        // are.
        let scene = Scene { ecmp: Ecmp::Averaged, slow: vec![], ..scene };
        let world = scene.world();
        prop_assume!(world.fabric.links().all(|(id, link)| link.failed == world.fabric.link(id.reverse()).failed));
        let shuffled = Orders::shuffled(&world.fabric, &keys);
        let new_name = |old: &str| {
            let number = world.fabric.find(old).unwrap().0;
            format!("x{}-{number}", keys[number as usize % keys.len()])
        };
        let renamed = |node: &Node| Node { id: new_name(&node.id).into(), ..node.clone() };
        let other = copied(&world.fabric, &shuffled, renamed, |spec| spec);
        // A spec makes every possible device a rank.
        let all_ranks = other.nodes().filter(|(_, node)| node.kind.is_rank()).count() == other.gpus().len();
        let other =
            if all_ranks { read_text(&write::spec::write(&other).unwrap(), "shuffled").unwrap() } else { other };

        let case = order.over(world.ranks(), world.per_host());
        let other = World { fabric: other, ..scene.world() };
        let (a, b) = (world.run(&*case.generator(), Folding::WhereProved), other.run(&*case.generator(), Folding::WhereProved));
        let (Ok(a), Ok(b)) = (&a, &b) else {
            prop_assert!(a.is_err() && b.is_err(), "{:?} {:?}", a.map(|t| t.time), b.map(|t| t.time));
            return Ok(());
        };
        prop_assert_eq!((a.time, a.costs, a.operations, &a.spans), (b.time, b.costs, b.operations, &b.spans));
        prop_assert_eq!(a.fold_factor, b.fold_factor);
        let by_name = |world: &World, timeline: &Timeline, name: &dyn Fn(&str) -> String| {
            let name = |id: NodeId| name(&world.fabric.node(id).id);
            let mut used: Vec<String> = timeline.utilization.iter().map(|one| {
                let what = match one.resource {
                    Resource::Link(link) => format!("{} to {}", name(world.fabric.link(link).from), name(world.fabric.link(link).to)),
                    Resource::Memory(node) => format!("memory of {}", name(node)),
                    Resource::Crossbar(node) => format!("crossbar of {}", name(node)),
                    Resource::Processors(node) => format!("SMs of {}", name(node)),
                    Resource::Proxy(node) => format!("network thread of {}", name(node)),
                    Resource::CopyEngines(node) => format!("copy engines of {}", name(node)),
                    Resource::Lane(rank, channel) => format!("{rank:?} {channel:?}"),
                };
                format!("{what}: {} bytes, {}", one.bytes, one.fraction)
            }).collect();
            used.sort();
            used
        };
        prop_assert_eq!(by_name(&world, a, &new_name), by_name(&other, b, &|name| name.to_owned()));
        let bound = |world: &World| {
            // Cuts are named, and any of several equal ones may be reported.
            let root = case.shape.call.root.0;
            let bounds = Bounds::new(&world.fabric, &world.router(), &world.placement(), root);
            let bound = bounds.with_matrix(case.shape.matrix.as_ref()).of(&case.shape.call);
            (bound.time, bound.transfer)
        };
        prop_assert_eq!(bound(&world), bound(&other));
    }
}

/// Lower bound and simulated time of each strategy.
fn least_and_found(
    world: &World,
    collective: Collective,
    restriction: &Restriction,
) -> Vec<(Strategy, Bytes, Picos, Picos)> {
    let (router, placement) = (world.router(), world.placement());
    let (collectives, sizes) = ([collective], [777, 100_000, 1 << 20, 3_000_001].map(Bytes));
    let asked = world.asked((&router, &placement), (&collectives, &sizes), restriction);
    let request = PlanRequest { root: world.ranks() / 2, effort: Effort::EveryPair, ..asked };
    let Ok(plan) = plan(&request, Watcher::default()) else { return Vec::new() };
    let found = plan.rows.iter().flat_map(|row| row.pairs.iter().map(|pair| (row.bytes, *pair)));
    found
        .map(|(bytes, pair)| {
            let least = least_time(&request, collective, bytes, pair.strategy).unwrap().unwrap();
            (pair.strategy, bytes, least, pair.time)
        })
        .collect()
}

/// Reductions for other hosts are sent one after the other, and all latencies but the first overlap: the bound does
/// not count a step for each of them.
#[test]
fn bounds_count_the_latency_of_serialized_messages_once() {
    for (nodes, profile) in [(3, "ideal"), (5, "ideal"), (3, "nccl-2.28-h200"), (4, "kernels-h100")] {
        let plant = Plant::Hosts { preset: "gb200-nvl72", nodes, gpus: 2, network: "rail" };
        let world = World { profile: Profile::named(profile).unwrap(), ..World::ideal(plant.build()) };
        for channels in [1, 3] {
            let algorithms = vec![Algorithm::Hierarchical];
            let restriction = Restriction { algorithms, channels: vec![channels], ..Restriction::default() };
            let found = least_and_found(&world, Collective::ReduceScatter, &restriction);
            assert!(!found.is_empty());
            for (strategy, bytes, least, found) in found {
                assert!(least <= found, "{nodes} hosts, {profile}, {strategy}, {bytes}: {least:?} and {found:?}");
            }
        }
    }
}

/// Pruned channel counts, slower than two others, may still be a pair's representative; and tight bounds prune
/// nothing that could have been shown.
#[test]
fn pruned_plan_of_an_h200_host_equals_the_exhaustive_plan() {
    let fabric = Plant::Hosts { preset: "hgx-h200", nodes: 1, gpus: 8, network: "" }.build();
    let router = Router::new(&fabric, RouteOptions::default());
    let (profile, restriction) = (Profile::named("nccl-2.28-h200").unwrap(), Restriction::default());
    let sizes = [Bytes(16 << 10), Bytes(1 << 20), Bytes(16 << 20)];
    let planned = |effort| {
        let request = PlanRequest {
            library: None,
            fabric: &fabric,
            router: &router,
            placement: fabric.gpus(),
            profile: &profile,
            ranks_per_node: 8,
            mode: LaunchMode { gpus_per_host: 8, ..LaunchMode::default() },
            buffers: BufferUse::OutOfPlace,
            root: 0,
            matrix: None,
            collectives: &Collective::ALL,
            sizes: &sizes,
            restriction: &restriction,
            effort,
        };
        let plan = plan(&request, Watcher::default()).unwrap();
        plan.rows.into_iter().map(|row| (row.collective, row.bytes, row.pick, row.runner_up)).collect::<Vec<_>>()
    };
    assert_eq!(planned(Effort::Contenders), planned(Effort::EveryPair));
}

fn planned(world: &World, collective: Collective, effort: Effort, threads: usize) -> Option<Plan> {
    let (router, restriction, placement) = (world.router(), Restriction::default(), world.placement());
    let matrix = matrix_of(placement.len() as u32, 1 << 20, 7);
    let (collectives, sizes) = ([collective], [1000, 300_000, 50_000_000].map(Bytes));
    let asked = world.asked((&router, &placement), (&collectives, &sizes), &restriction);
    let request = PlanRequest { matrix: Some(&matrix), effort, ..asked };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| plan(&request, Watcher::default()).ok())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// The plan does not depend on the number of threads.
    #[test]
    fn plans_do_not_depend_on_the_number_of_threads(scene in scenes(8), collective in select(Collective::ALL.to_vec())) {
        let world = scene.world();
        let one = planned(&world, collective, Effort::Contenders, 1);
        prop_assert_eq!(&one, &planned(&world, collective, Effort::Contenders, 2));
        prop_assert_eq!(&one, &planned(&world, collective, Effort::Contenders, 5));
    }

    /// No strategy beats its lower bound, in one loop or several.
    #[test]
    fn no_strategy_beats_its_lower_bound(
        scene in scenes(16),
        collective in select(Collective::ALL.to_vec()),
        channels in select(vec![1u16, 2, 3, 7, 8]),
        chunk in select(vec![None, Some(Bytes(8192)), Some(Bytes(100_000))]),
        efficiencies in vec(0.3f64..1.0, 5),
    ) {
        let mut world = scene.world();
        let [nvlink, c2c, pcie, upi, network] = efficiencies[..] else { unreachable!() };
        let links = fabricast_sim::profile::LinkEfficiency { nvlink, c2c, pcie, pcie_peers: 1.0, upi, network, multicast: 1.0 };
        world.profile = Profile { links, ..world.profile };
        world.delays = Vec::new();
        let algorithms = Algorithm::ALL.to_vec();
        let restriction = Restriction { algorithms, channels: vec![channels], chunk, ..Restriction::default() };
        for (strategy, bytes, least, found) in least_and_found(&world, collective, &restriction) {
            prop_assert!(least <= found, "{strategy} {bytes}: {least:?} and {found:?}");
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Pruned candidates could not have come first or second, for any link efficiencies.
    #[test]
    fn pruned_candidates_could_not_win(
        scene in scenes(8),
        collective in select(Collective::ALL.to_vec()),
        efficiencies in vec(0.3f64..1.0, 5),
    ) {
        let mut world = scene.world();
        let [nvlink, c2c, pcie, upi, network] = efficiencies[..] else { unreachable!() };
        let links = fabricast_sim::profile::LinkEfficiency { nvlink, c2c, pcie, pcie_peers: 1.0, upi, network, multicast: 1.0 };
        world.profile = Profile { links, ..world.profile };
        let (some, all) = (
            planned(&world, collective, Effort::Contenders, 1),
            planned(&world, collective, Effort::EveryPair, 1),
        );
        let picks = |plan: Option<Plan>| plan.map(|plan| {
            plan.rows.iter().map(|row| (row.pick, row.runner_up, row.bound.clone())).collect::<Vec<_>>()
        });
        prop_assert_eq!(picks(some), picks(all));
    }
}
