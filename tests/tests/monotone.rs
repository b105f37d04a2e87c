//! Tests how times depend on bytes and bandwidths, and that names, input order, threads and pruned candidates have no
//! effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::Bounds;
use fabricast_collectives::strategy::Strategy;
use fabricast_search::candidates::Restriction;
use fabricast_search::plan::{
    Effort, Plan, PlanRequest, StrategyCall, chain_lower_bound, lower_bound, plan, simulate_strategies,
};
use fabricast_sim::lower::Resource;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Collective, Protocol};
use fabricast_sim::{Folding, LaunchMode, Timeline};
use fabricast_topologies::fabric::{CpuFigures, Figures, GpuFigures, Node, SwitchFigures};
use fabricast_topologies::route::{Ecmp, RouteOptions, Router};
use fabricast_topologies::{
    Bandwidth, Bytes, Fabric, FabricBuilder, Link, LinkId, LinkSpec, NodeId, NodeKind, Picos, read_text, write,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::matrices::random_matrix;
use crate::testbed::{
    CallTemplate, FabricSpec, Scene, Testbed, call_templates, fabric_specs, per_host, scenes, switch,
};

/// Copies a fabric in the given orders, with vertices and links transformed by `map_node` and `map_link`. Failed links are
/// in service in the copy.
fn copy_fabric(
    fabric: &Fabric,
    orders: &Orders,
    map_node: impl Fn(&Node) -> Node,
    map_link: impl Fn(LinkSpec) -> LinkSpec,
) -> Fabric {
    let mut builder = FabricBuilder::new(fabric.name());
    let mut new_ids = BTreeMap::new();
    for &old in &orders.nodes {
        let node = map_node(fabric.node(old));
        let host = builder.host(&fabric.hosts()[node.host.0 as usize]);
        new_ids.insert(old, builder.add_node(Node { host, ..node }).unwrap());
    }
    for &id in &orders.links {
        let (link, reverse): (&Link, &Link) = (fabric.link(id), fabric.link(id.reverse()));
        let spec = LinkSpec {
            kind: link.kind,
            lanes: link.lanes,
            forward: link.bandwidth,
            backward: reverse.bandwidth,
            latency: link.latency,
        };
        builder.link(new_ids[&link.from], new_ids[&link.to], &map_link(spec));
    }
    builder.set_rank_order(fabric.gpus().iter().map(|gpu| new_ids[gpu]).collect());
    builder.finish()
}

/// Returns a copy of a fabric in which the links that have failed in `original` have failed too; `None` if only some of
/// parallel links have, which have one name.
fn with_failures_of(original: &Fabric, copy: &Fabric, new_name: impl Fn(&str) -> String) -> Option<Fabric> {
    let ends = |link: &Link| (link.from, link.to);
    let mut failed = Vec::new();
    for (_, link) in original.links().filter(|(_, link)| link.failed) {
        if original.links().any(|(_, other)| ends(other) == ends(link) && !other.failed) {
            return None;
        }
        let [from, to] = [link.from, link.to].map(|end| new_name(&original.node(end).id));
        failed.extend(copy.find_link(&format!("{from}->{to}")).unwrap());
    }
    Some(copy.with_failed_links(&failed))
}

/// Order of vertices and of links, each link in one of its directions.
struct Orders {
    nodes: Vec<NodeId>,
    links: Vec<LinkId>,
}

impl Orders {
    fn original(fabric: &Fabric) -> Self {
        let links = fabric.links().map(|(id, _)| id).filter(|id| id.0.is_multiple_of(2)).collect();
        Self { nodes: fabric.nodes().map(|(id, _)| id).collect(), links }
    }

    /// Returns another order by sort keys, with some links reversed. GPUs and NICs retain their order, which determines
    /// ranks and the assignment of NICs.
    fn shuffled(fabric: &Fabric, keys: &[u32]) -> Self {
        let mut orders = Self::original(fabric);
        orders.nodes.sort_by_key(|id| keys[id.0 as usize % keys.len()]);
        let is_counted = |id: &NodeId| {
            let kind = fabric.node(*id).kind;
            kind.is_rank() || kind == NodeKind::Nic
        };
        let mut counted: Vec<NodeId> = orders.nodes.iter().copied().filter(is_counted).collect();
        counted.sort_unstable();
        let slots = orders.nodes.iter_mut().filter(|id| is_counted(id));
        slots.zip(counted).for_each(|(slot, id)| *slot = id);
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

/// Returns the device with every rate doubled.
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

/// Returns the number of instants at which an operation ends: each is rounded up by less than a picosecond, and shifts
/// what follows.
fn roundings(timeline: &Timeline) -> u64 {
    timeline.spans.iter().map(|span| span.done).collect::<BTreeSet<_>>().len() as u64
}

/// Runs a call without latency three times: unchanged, with every bandwidth doubled, and with the bytes doubled.
fn halved_and_doubled(fabric: &Fabric, template: &CallTemplate) -> Option<[Timeline; 3]> {
    let orders = Orders::original(fabric);
    let instant = |spec| LinkSpec { latency: Picos::ZERO, ..spec };
    let double =
        |spec: LinkSpec| LinkSpec { forward: faster(spec.forward), backward: faster(spec.backward), ..instant(spec) };
    let once = copy_fabric(fabric, &orders, Node::clone, instant);
    let twice = copy_fabric(fabric, &orders, faster_node, double);
    let longer = template.in_one_loop(2 * template.bytes);
    Some([ideal_run(&once, template)?, ideal_run(&twice, template)?, ideal_run(&once, &longer)?])
}

/// Runs a call under `ideal`; returns `None` if a broken fabric does not connect its ranks.
fn ideal_run(fabric: &Fabric, template: &CallTemplate) -> Option<Timeline> {
    let case = template.case_for_ranks(fabric.gpus().len() as u32, per_host(fabric));
    Testbed::ideal(fabric.clone()).run(&*case.generator(), Folding::WhereProved).ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Without latency, on equal links, doubling the bandwidth halves the time, and doubling the bytes doubles it, to
    /// a picosecond per end.
    #[test]
    fn time_is_bytes_over_bandwidth(gpus in 2u32..=16, gb_per_s in 1u64..1000, template in call_templates()) {
        // Blocks of a matrix are whole bytes, so they cannot be halved exactly.
        prop_assume!(template.collective.has_variable_size());
        let fabric = switch(gpus, Bandwidth(gb_per_s * 1_000_000_000), Picos::ZERO);
        let [once, faster, longer] = halved_and_doubled(&fabric, &template.in_one_loop(template.bytes)).unwrap();
        for (half, full) in [(&faster, &once), (&once, &longer)] {
            let rounded = 2 * roundings(half) + roundings(full);
            prop_assert!((2 * half.time.0).abs_diff(full.time.0) <= rounded, "{:?} {:?}", half.time, full.time);
        }
    }

    /// On any fabric, time is bytes over bandwidth. Where transfers share capacities, a rounding shifts the ends of
    /// others by more than itself, so times are made long enough for it to be negligible.
    #[test]
    fn time_is_bytes_over_bandwidth_anywhere(scene in scenes(16), template in call_templates()) {
        let fabric = Scene { failed_links: vec![], ..scene }.testbed().fabric;
        let template = template.in_one_loop(template.bytes.max(1000) << 15);
        let Some([once, faster, longer]) = halved_and_doubled(&fabric, &template) else { return Ok(()) };
        for (half, full) in [(faster, &once), (once.clone(), &longer)] {
            let (half, full) = (half.time.0, full.time.0);
            prop_assert!((2 * half).abs_diff(full) <= full / 100_000, "{half} {full}");
        }
    }

    /// Time does not decrease with bytes.
    #[test]
    fn time_grows_with_bytes(fabric_spec in fabric_specs(16), template in call_templates(), more in 1u64..1_000_000) {
        // With different block sizes, one more byte may change the order of messages.
        prop_assume!(template.collective.has_variable_size());
        let fabric = fabric_spec.build();
        let template = template.in_one_loop(template.bytes);
        // The parts of packed trees are rounded to unequal sizes, which has the same effect, so their bytes are doubled.
        let more = if template.algorithm == Algorithm::TreePacking { more.max(template.bytes) } else { more };
        let (less, more) = (ideal_run(&fabric, &template), ideal_run(&fabric, &template.in_one_loop(template.bytes + more)));
        if let (Some(less), Some(more)) = (less, more) {
            prop_assert!(less.time <= more.time, "{:?} {:?}", less.time, more.time);
        }
    }

    /// Other names and another order of vertices and links in the file have no effect.
    #[test]
    fn names_and_order_do_not_matter(scene in scenes(16), template in call_templates(), keys in vec(any::<u32>(), 64)) {
        // ECMP by hash depends on names, and slowed links are copied unchanged.
        let scene = Scene { ecmp: Ecmp::Averaged, slowed_links: vec![], ..scene };
        let testbed = scene.testbed();
        let shuffled = Orders::shuffled(&testbed.fabric, &keys);
        let new_name = |old: &str| {
            let number = testbed.fabric.find(old).unwrap().0;
            format!("x{}-{number}", keys[number as usize % keys.len()])
        };
        let renamed = |node: &Node| Node { id: new_name(&node.id).into(), ..node.clone() };
        let reordered = copy_fabric(&testbed.fabric, &shuffled, renamed, |spec| spec);
        // In a spec, every device that can be a rank is one.
        let all_ranks = reordered.nodes().filter(|(_, node)| node.kind.is_rank()).count() == reordered.gpus().len();
        let reordered =
            if all_ranks { read_text(&write::spec::write(&reordered).unwrap(), "shuffled").unwrap() } else { reordered };
        let Some(reordered) = with_failures_of(&testbed.fabric, &reordered, new_name) else { return Ok(()) };

        let case = template.case_for_ranks(testbed.ranks(), testbed.per_host());
        let reordered = Testbed { fabric: reordered, ..scene.testbed() };
        let (a, b) = (testbed.run(&*case.generator(), Folding::WhereProved), reordered.run(&*case.generator(), Folding::WhereProved));
        let (Ok(a), Ok(b)) = (&a, &b) else {
            prop_assert!(a.is_err() && b.is_err(), "{:?} {:?}", a.map(|t| t.time), b.map(|t| t.time));
            return Ok(());
        };
        prop_assert_eq!((a.time, a.costs, a.operations, &a.spans), (b.time, b.costs, b.operations, &b.spans));
        prop_assert_eq!(a.fold_factor, b.fold_factor);
        let by_name = |testbed: &Testbed, timeline: &Timeline, name: &dyn Fn(&str) -> String| {
            let name = |id: NodeId| name(&testbed.fabric.node(id).id);
            let mut used: Vec<String> = timeline.utilization.iter().map(|one| {
                let label = match one.resource {
                    Resource::Link(link) => format!("{} to {}", name(testbed.fabric.link(link).from), name(testbed.fabric.link(link).to)),
                    Resource::Memory(node) => format!("memory of {}", name(node)),
                    Resource::Crossbar(node) => format!("crossbar of {}", name(node)),
                    Resource::Processors(node) => format!("SMs of {}", name(node)),
                    Resource::Proxy(node) => format!("network thread of {}", name(node)),
                    Resource::CopyEngines(node) => format!("copy engines of {}", name(node)),
                    Resource::Channel(rank, channel) => format!("{rank:?} {channel:?}"),
                };
                format!("{label}: {} bytes, {}", one.bytes, one.fraction)
            }).collect();
            used.sort();
            used
        };
        prop_assert_eq!(by_name(&testbed, a, &new_name), by_name(&reordered, b, &|name| name.to_owned()));
        let bound = |testbed: &Testbed| {
            // Only times are compared: a bound names its cut by devices, and any of several equal cuts may be named.
            let root = case.shape.call.root.0;
            let bounds = Bounds::new(&testbed.fabric, &testbed.router(), &testbed.placement(), root);
            let bound = bounds.with_matrix(case.shape.matrix.as_ref()).bound(&case.shape.call);
            (bound.time, bound.transfer)
        };
        prop_assert_eq!(bound(&testbed), bound(&reordered));
    }
}

/// Returns the lower bound and the simulated time of each strategy. The bound is the larger one of those for small and for
/// large groups.
fn bounds_and_times(
    testbed: &Testbed,
    collective: Collective,
    restriction: &Restriction,
) -> Vec<(Strategy, Bytes, Picos, Picos)> {
    let (router, placement) = (testbed.router(), testbed.placement());
    let (collectives, sizes) = ([collective], [777, 100_000, 1 << 20, 3_000_001].map(Bytes));
    let base = testbed.plan_request((&router, &placement), (&collectives, &sizes), restriction);
    let request = PlanRequest { root: testbed.ranks() / 2, effort: Effort::EveryPair, ..base };
    let Ok(plan) = plan(&request, Monitor::default()) else { return Vec::new() };
    let pairs = plan.rows.iter().flat_map(|row| row.pairs.iter().map(|pair| (row.bytes, *pair)));
    pairs
        .map(|(bytes, pair)| {
            let bound = lower_bound(&request, collective, bytes, pair.strategy).unwrap().unwrap();
            let chain_bound = chain_lower_bound(&request, collective, bytes, pair.strategy).unwrap().unwrap();
            (pair.strategy, bytes, bound.max(chain_bound), pair.time)
        })
        .collect()
}

/// Reductions for other hosts are sent one after the other, and all latencies but the first overlap: the bound does
/// not count a step for each of them.
#[test]
fn bounds_count_the_latency_of_serialized_messages_once() {
    for (nodes, profile) in [(3, "ideal"), (5, "ideal"), (3, "nccl-2.28-h200"), (4, "kernels-h100")] {
        let fabric_spec = FabricSpec::Hosts { preset: "gb200-nvl72", nodes, gpus: 2, network: "rail" };
        let testbed = Testbed { profile: Profile::named(profile).unwrap(), ..Testbed::ideal(fabric_spec.build()) };
        for channels in [1, 3] {
            let algorithms = vec![Algorithm::Hierarchical];
            let restriction = Restriction { algorithms, channels: vec![channels], ..Restriction::default() };
            let pairs = bounds_and_times(&testbed, Collective::ReduceScatter, &restriction);
            assert!(!pairs.is_empty());
            for (strategy, bytes, bound, time) in pairs {
                assert!(bound <= time, "{nodes} hosts, {profile}, {strategy}, {bytes}: {bound:?} and {time:?}");
            }
        }
    }
}

/// The ranks on the longest chain of a tree bound its time closely for a small call on one channel.
#[test]
fn longest_chains_bound_small_trees_within_a_fifth() {
    let fabric_spec = FabricSpec::Hosts { preset: "hgx-h200", nodes: 16, gpus: 8, network: "rail" };
    let profile = Profile::named("nccl-2.28-h200").unwrap();
    let testbed = Testbed { profile, ..Testbed::ideal(fabric_spec.build()) };
    let (router, placement, restriction) = (testbed.router(), testbed.placement(), Restriction::default());
    let (collective, bytes) = (Collective::AllReduce, Bytes(1024));
    let (collectives, sizes) = ([collective], [bytes]);
    let request = testbed.plan_request((&router, &placement), (&collectives, &sizes), &restriction);
    for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
        let strategy = Strategy::new(Algorithm::Tree, protocol, 1);
        let calls = [StrategyCall { collective, bytes, strategy }];
        let times = simulate_strategies(&request, &calls, Monitor::default()).unwrap();
        let time = times[0].as_ref().unwrap().time;
        let bound = chain_lower_bound(&request, collective, bytes, strategy).unwrap().unwrap();
        assert!(bound <= time && time.0 * 4 < bound.0 * 5, "{strategy}: {bound:?} and {time:?}");
    }
}

/// Pruned channel counts, which are slower than two others, may still be the best of an algorithm and protocol; and
/// tight bounds prune no candidate that could have been listed.
#[test]
fn pruned_plan_of_an_h200_host_equals_the_exhaustive_plan() {
    let fabric = FabricSpec::Hosts { preset: "hgx-h200", nodes: 1, gpus: 8, network: "" }.build();
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
        let plan = plan(&request, Monitor::default()).unwrap();
        plan.rows.into_iter().map(|row| (row.collective, row.bytes, row.pick, row.runner_up)).collect::<Vec<_>>()
    };
    assert_eq!(planned(Effort::Contenders), planned(Effort::EveryPair));
}

fn plan_collective(testbed: &Testbed, collective: Collective, effort: Effort, threads: usize) -> Option<Plan> {
    let (router, restriction, placement) = (testbed.router(), Restriction::default(), testbed.placement());
    let matrix = random_matrix(placement.len() as u32, 1 << 20, 7);
    let (collectives, sizes) = ([collective], [1000, 300_000, 50_000_000].map(Bytes));
    let base = testbed.plan_request((&router, &placement), (&collectives, &sizes), &restriction);
    let request = PlanRequest { matrix: Some(&matrix), effort, ..base };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| plan(&request, Monitor::default()).ok())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// The plan does not depend on the number of threads.
    #[test]
    fn plans_do_not_depend_on_the_number_of_threads(scene in scenes(8), collective in select(Collective::ALL.to_vec())) {
        let testbed = scene.testbed();
        let single = plan_collective(&testbed, collective, Effort::Contenders, 1);
        prop_assert_eq!(&single, &plan_collective(&testbed, collective, Effort::Contenders, 2));
        prop_assert_eq!(&single, &plan_collective(&testbed, collective, Effort::Contenders, 5));
    }

    /// No strategy is faster than its lower bound, in one loop or several.
    #[test]
    fn no_strategy_beats_its_lower_bound(
        scene in scenes(16),
        collective in select(Collective::ALL.to_vec()),
        channels in select(vec![1u16, 2, 3, 7, 8]),
        chunk in select(vec![None, Some(Bytes(8192)), Some(Bytes(100_000))]),
        efficiencies in vec(0.3f64..1.0, 5),
    ) {
        let mut testbed = scene.testbed();
        let [nvlink, c2c, pcie, upi, network] = efficiencies[..] else { unreachable!() };
        let links = fabricast_sim::profile::LinkEfficiency { nvlink, c2c, pcie, pcie_peers: 1.0, upi, network, multicast: 1.0 };
        testbed.profile = Profile { links, ..testbed.profile };
        testbed.delays = Vec::new();
        let algorithms = Algorithm::ALL.to_vec();
        let restriction = Restriction { algorithms, channels: vec![channels], chunk, ..Restriction::default() };
        for (strategy, bytes, bound, time) in bounds_and_times(&testbed, collective, &restriction) {
            prop_assert!(bound <= time, "{strategy} {bytes}: {bound:?} and {time:?}");
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Pruned candidates could not have ranked first or second, for any link efficiencies.
    #[test]
    fn pruned_candidates_could_not_win(
        scene in scenes(8),
        collective in select(Collective::ALL.to_vec()),
        efficiencies in vec(0.3f64..1.0, 5),
    ) {
        let mut testbed = scene.testbed();
        let [nvlink, c2c, pcie, upi, network] = efficiencies[..] else { unreachable!() };
        let links = fabricast_sim::profile::LinkEfficiency { nvlink, c2c, pcie, pcie_peers: 1.0, upi, network, multicast: 1.0 };
        testbed.profile = Profile { links, ..testbed.profile };
        let (pruned, exhaustive) = (
            plan_collective(&testbed, collective, Effort::Contenders, 1),
            plan_collective(&testbed, collective, Effort::EveryPair, 1),
        );
        let picks = |plan: Option<Plan>| plan.map(|plan| {
            plan.rows.iter().map(|row| (row.pick, row.runner_up, row.bound.clone())).collect::<Vec<_>>()
        });
        prop_assert_eq!(picks(pruned), picks(exhaustive));
    }
}
