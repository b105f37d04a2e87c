//! Comparison of link loads with simulation.

use std::collections::BTreeMap;

use fabricast_experts::{ExchangeKernel, Operation, RoutingPattern, TokenType};
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::{Environment, Resource, ScheduleInstance};
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_sim::{LaunchMode, SimulationOptions, simulate_concurrent};
use fabricast_topologies::fabric::Link;
use fabricast_topologies::route::{LinkListing, RouteOptions, Router};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, LinkId, LinkKind, NodeId, NodeKind, Picos, load};

use super::super::calls::{CallCount, CallWithStrategy, StepCall, StepExchange, TimedCall};
use super::super::exchange::Exchange;
use super::super::simulated::SimulatedCosts;
use super::slowest;
use crate::step::tests::rails;
use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;
use fabricast_workload::job::{Degrees, Dimension, Layout, Phase, TokenExchange};

fn timed_call(exchange: Exchange, strategy: Strategy, count: CallCount) -> TimedCall {
    let call = StepCall { phase: Phase::LayerForward, exchange, count };
    TimedCall { call, strategy, time: Picos(1) }
}

/// Link loads equal those of a simulation of all groups in which no group represents others.
#[test]
fn link_load_matches_simulation_of_all_groups() {
    let fabric = rails(4);
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::for_fabric(&fabric).unwrap();
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let layout = Layout { degrees: Degrees { tensor: 4, data: 8, ..Degrees::default() } };
    let cases = [
        (Dimension::Tensor, Collective::AllReduce, Algorithm::Ring, Protocol::Ll128, 8),
        (Dimension::Tensor, Collective::AllReduce, Algorithm::Nvls, Protocol::Simple, 16),
        (Dimension::Tensor, Collective::AllToAll, Algorithm::Direct, Protocol::Simple, 4),
        (Dimension::Data, Collective::ReduceScatter, Algorithm::Ring, Protocol::Simple, 8),
        (Dimension::Data, Collective::AllReduce, Algorithm::Tree, Protocol::Simple, 8),
        (Dimension::Data, Collective::AllToAll, Algorithm::Direct, Protocol::Simple, 8),
    ];
    for (dimension, collective, algorithm, protocol, channels) in cases {
        let strategy = Strategy::new(algorithm, protocol, channels);
        let exchange = Exchange { dimension, collective, bytes: Bytes(48 << 20) };
        let link_load = simulated.load(&layout, &[timed_call(exchange, strategy, CallCount::Calls(3.0))], &[]);
        let groups: Vec<Vec<NodeId>> = layout.groups(dimension).iter().map(|group| simulated.devices(group)).collect();
        let call = CallWithStrategy { collective, bytes: exchange.bytes, strategy };
        let generated = simulated.calls().generate_each(&groups, call);
        let instances: Vec<ScheduleInstance<'_>> = generated
            .by_generator()
            .flat_map(|(generator, groups)| groups.into_iter().map(move |placement| (generator, placement)))
            .map(|(generator, placement)| {
                let setting =
                    Environment { fabric: &fabric, router: &router, placement, profile: &profile, delays: &[] };
                ScheduleInstance::new(generator, setting)
            })
            .collect();
        let mode = LaunchMode::default();
        let timeline = simulate_concurrent(&instances, mode, SimulationOptions::default(), Watch::default()).unwrap();
        let carried: BTreeMap<LinkId, f64> = timeline
            .utilization
            .iter()
            .filter_map(|one| if let Resource::Link(link) = one.resource { Some((link, one.bytes)) } else { None })
            .collect();
        assert!(!carried.is_empty());
        for (link, _) in fabric.links() {
            let (expected, actual) = (3.0 * carried.get(&link).copied().unwrap_or_default(), link_load.bytes_on(link));
            let name = fabric.link_name(link);
            assert!((actual - expected).abs() <= 1e-6 * expected.max(1.0), "{strategy} {name}: {actual} {expected}");
        }
    }
}

/// A router that lists one representative of equivalent links gives the same load as one that lists all links. No call
/// is faster than the transfer time of its busiest link.
#[test]
fn equivalent_links_carry_equal_load_and_bound_holds() {
    for (network, has_equivalent_links) in
        [("fat_tree,radix=16,oversubscription=3", true), ("fat_tree,tiers=3,radix=16", true), ("torus", false)]
    {
        let network = Some(format!("{network},nic=400Gb/s").parse().unwrap());
        let fabric = load(&FabricRequest { nodes: Some(32), network, ..FabricRequest::new("hgx-h100") }).unwrap();
        let profile = Profile::for_fabric(&fabric).unwrap();
        let layout = Layout { degrees: Degrees { tensor: 8, data: 32, ..Degrees::default() } };
        let compute = |links: LinkListing, exchange: Exchange, strategy: Strategy| {
            let router = Router::with_link_listing(&fabric, RouteOptions::default(), links);
            let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
            let link_load = simulated.load(&layout, &[timed_call(exchange, strategy, CallCount::Calls(1.0))], &[]);
            let groups = simulated.placement().concurrent_groups(&layout.groups(Dimension::Data), exchange.collective);
            let call = CallWithStrategy { collective: exchange.collective, bytes: exchange.bytes, strategy };
            let lower_bound = simulated.timer().link_bound(&groups, call);
            let time = slowest(&simulated, &groups, call);
            assert!(lower_bound <= time && lower_bound.0 > 0, "{strategy}: {lower_bound} {time}");
            (link_load, lower_bound, time)
        };
        for (collective, algorithm) in [
            (Collective::AllGather, Algorithm::Ring),
            (Collective::ReduceScatter, Algorithm::Pat),
            (Collective::AllReduce, Algorithm::Tree),
        ] {
            let strategy = Strategy::new(algorithm, Protocol::Simple, 8);
            let exchange = Exchange { dimension: Dimension::Data, collective, bytes: Bytes(64 << 20) };
            let (all, ..) = compute(LinkListing::All, exchange, strategy);
            let (representative, lower_bound, time) = compute(LinkListing::Representatives, exchange, strategy);
            for (link, _) in fabric.links() {
                let (all, representative) = (all.bytes_on(link), representative.bytes_on(link));
                assert!(
                    (all - representative).abs() <= 1e-9 * all,
                    "{strategy} {}: {all} {representative}",
                    fabric.link_name(link)
                );
            }
            // Large rings are limited mostly by their busiest link.
            assert!(algorithm != Algorithm::Ring || lower_bound.0 * 10 > time.0 * 6, "{lower_bound} {time}");
        }
        let router = Router::with_link_listing(&fabric, RouteOptions::default(), LinkListing::Representatives);
        assert_eq!(fabric.links().any(|(link, _)| router.represented_links(link).is_some()), has_equivalent_links);
    }
}

/// Each stage sends its activations forward and its gradients backward. With interleaving, the last stage also sends to
/// the first.
#[test]
fn pipeline_transfers_load_links_in_both_directions() {
    let fabric = load(&FabricRequest::new("hgx-h100")).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::for_fabric(&fabric).unwrap();
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let layout = Layout { degrees: Degrees { pipeline: 4, tensor: 2, ..Degrees::default() } };
    let strategy = Strategy::new(Algorithm::Direct, Protocol::Simple, 1);
    let exchange = Exchange { dimension: Dimension::Pipeline, collective: Collective::SendRecv, bytes: Bytes(1 << 20) };
    let count = CallCount::PipelineTransfers { forward: 6.0, backward: 6.0, wrap_around: 3.0 };
    let load = simulated.load(&layout, &[timed_call(exchange, strategy, count)], &[]);
    let wire_bytes = f64::from(1 << 20) / profile.protocol(Protocol::Simple).wire_efficiency;
    let outgoing_bytes = |rank: usize| -> f64 {
        fabric.outgoing_links(fabric.gpus()[rank]).iter().map(|&link| load.bytes_on(link)).sum()
    };
    for rank in 0..8 {
        let messages = if (2..6).contains(&rank) { 12.0 } else { 9.0 };
        assert!(
            (outgoing_bytes(rank) / wire_bytes - messages).abs() < 1e-9,
            "{rank}: {}",
            outgoing_bytes(rank) / wire_bytes
        );
    }
}

/// Exchanges load NICs with the copies that leave a host. Low-latency kernels send one copy for each expert on another
/// host, normal kernels one for each host with an expert. The all_to_all that replaces a kernel that does not run sends
/// one copy without header for each expert.
#[test]
fn exchange_load_matches_copies_of_tokens() {
    let layout = Layout { degrees: Degrees { data: 16, expert: 16, ..Degrees::default() } };
    let network_bytes = |fabric: &Fabric, kernel: ExchangeKernel| {
        let router = Router::new(fabric, RouteOptions::default());
        let profile = Profile::for_fabric(fabric).unwrap();
        let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
        let exchange = TokenExchange {
            kernel,
            operation: Operation::Dispatch,
            token_type: TokenType::Fp8,
            tokens: 100,
            hidden: 4096,
            experts: 64,
            top_k: 4,
            pattern: RoutingPattern::Random,
            skew: 1.0,
        };
        let load = simulated.load(&layout, &[], &[StepExchange { phase: Phase::LayerForward, exchange, times: 3.0 }]);
        let leaves_host =
            |link: &Link| fabric.node(link.from).kind == NodeKind::Nic && link.kind == LinkKind::Infiniband;
        fabric.links().filter(|(_, link)| leaves_host(link)).map(|(id, _)| load.bytes_on(id)).sum::<f64>()
    };
    let (ranks, token_bytes) = (16.0, 4096.0 + 4.0 * 32.0);
    let hosts = rails(2);
    let misses: f64 = (0..4).map(|chosen| f64::from(32 - chosen) / f64::from(64 - chosen)).product();
    let network = Some("rail,nics_per_node=8,nic=200Gb/s".parse().unwrap());
    let old = load(&FabricRequest { nodes: Some(2), network, ..FabricRequest::new("dgx-a100") }).unwrap();
    for (fabric, kernel, expected) in [
        (&hosts, ExchangeKernel::DeepEpLowLatency, 100.0 * 4.0 / 2.0 * (token_bytes + 16.0)),
        (&hosts, ExchangeKernel::DeepEp, 100.0 * (1.0 - misses) * token_bytes),
        (&old, ExchangeKernel::DeepEp, 100.0 * 4.0 / 2.0 * token_bytes),
    ] {
        let ratio = network_bytes(fabric, kernel) / (3.0 * ranks * expected);
        assert!((ratio - 1.0).abs() < 1e-9, "{kernel:?} {ratio}");
    }
}
