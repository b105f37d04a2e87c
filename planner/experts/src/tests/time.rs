//! Times against bounds, traffic against conservation laws, and the traffic's schedules against the verifier.

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_sim::profile::{LinkEfficiency, Profile};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule, TrafficMatrix};
use fabricast_sim::verify::{VerifyOptions, verify};
use fabricast_topologies::route::{PeerAccess, RouteOptions, Router};
use fabricast_topologies::{Fabric, FabricRequest, Picos, load};
use proptest::prelude::*;

use crate::{
    Exchange, ExchangeCosts, ExchangeError, ExchangeKernel, ExchangeRanks, Operation, RoutingPattern, Timing,
    TokenRouting, TokenType, Traffic,
};

fn fabric(preset: &str, nodes: u32) -> Fabric {
    load(&FabricRequest { nodes: Some(nodes), ..FabricRequest::new(preset) }).unwrap()
}

/// Time and bound in µs on the whole of a fabric.
fn time_and_bound(
    fabric: &Fabric,
    kernel: ExchangeKernel,
    operation: Operation,
    routing: &TokenRouting,
) -> Result<(Picos, Picos), ExchangeError> {
    let router = Router::new(fabric, RouteOptions::default());
    let ranks = ExchangeRanks::new(&router, fabric.gpus())?;
    let exchange =
        Exchange { router: &router, ranks: &ranks, links: &LinkEfficiency::NOMINAL, routing, kernel, sms: Some(132) };
    let load = exchange.load(operation, TokenType::Fp8)?;
    let time = exchange.time(&load, &ExchangeCosts::FITTED, Timing::Kernel);
    assert_eq!(time.total(), time.parts().into_iter().map(|part| part.1).sum());
    Ok((time.total(), exchange.bound(operation, TokenType::Fp8)?))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// No kernel is faster than the lower bound, even with links at nominal rates and as many SMs as there are.
    #[test]
    fn no_time_is_below_the_bound(
        nodes in 1u32..5, kernel in 0usize..ExchangeKernel::ALL.len(), tokens in 1u64..1 << 20, limit in 1u32..9, combine in any::<bool>(),
    ) {
        let kernel = ExchangeKernel::ALL[kernel];
        let needs_memory = matches!(kernel, ExchangeKernel::TensorRtOneSided | ExchangeKernel::TensorRtTwoSided);
        let preset = if needs_memory { "gb200-nvl72" } else { "hgx-h100" };
        let fabric = fabric(preset, nodes);
        let operation = if combine { Operation::Combine } else { Operation::Dispatch };
        let experts = 32 * fabric.gpus().len() as u32;
        let groups = 8;
        for pattern in [
            RoutingPattern::Random, RoutingPattern::Balanced, RoutingPattern::GroupLimited { groups, limit },
        ] {
            let routing = TokenRouting::new(tokens, 7168, experts, 4, pattern).unwrap();
            let (time, bound) = time_and_bound(&fabric, kernel, operation, &routing).unwrap();
            prop_assert!(bound <= time, "{kernel:?} {pattern:?}: {bound} {time}");
        }
    }

    /// The number of copies between hosts equals the number of distinct hosts of all tokens, and forwarding completes
    /// the copies to all ranks.
    #[test]
    fn forwarded_copies_reach_every_rank_once(nodes in 1u32..5, top_k in 1u32..9, limited in any::<bool>()) {
        let fabric = fabric("hgx-h100", nodes);
        let router = Router::new(&fabric, RouteOptions::default());
        let ranks = ExchangeRanks::new(&router, fabric.gpus()).unwrap();
        prop_assert_eq!(ranks.domains().len() as u32, nodes);
        let pattern = if limited && nodes > 1 {
            RoutingPattern::GroupLimited { groups: nodes, limit: nodes - 1 }
        } else {
            RoutingPattern::Random
        };
        // Large sizes make the rounding to bytes negligible.
        let (tokens, bytes) = (1_000_000u64, 1_000u64);
        let routing = TokenRouting::new(tokens, 1000, 256 * nodes, top_k, pattern).unwrap();
        let traffic = Traffic::new(&ranks, &routing).unwrap();
        let per_token = |matrix: &TrafficMatrix| {
            matrix.bytes_between_ranks().0 as f64 / (tokens * bytes * u64::from(ranks.count())) as f64
        };
        let direct = per_token(&traffic.matrix(bytes).unwrap());
        let network = per_token(&traffic.network_matrix(bytes).unwrap());
        let forwarding = per_token(&traffic.forwarding_matrix(bytes).unwrap());
        let own_rank = traffic.ranks_per_token() / f64::from(ranks.count());
        let own_domain = traffic.domains_per_token() / f64::from(nodes);
        prop_assert!((network - (traffic.domains_per_token() - own_domain)).abs() < 1e-3);
        prop_assert!((direct - (traffic.ranks_per_token() - own_rank)).abs() < 1e-3);
        // Copies for the rank at which a token arrives need no forwarding.
        let unforwarded = own_rank * f64::from(nodes);
        prop_assert!((forwarding - (traffic.ranks_per_token() - unforwarded)).abs() < 1e-3, "{forwarding}");
    }
}

/// The traffic of a dispatch is an all_to_allv whose schedules the verifier accepts, sent directly and once per host.
#[test]
fn schedules_of_the_traffic_are_verified() {
    let fabric = fabric("hgx-h100", 2);
    let router = Router::new(&fabric, RouteOptions::default());
    let ranks = ExchangeRanks::new(&router, fabric.gpus()).unwrap();
    let routing = TokenRouting::new(64, 1024, 64, 4, RoutingPattern::Random).unwrap();
    let traffic = Traffic::new(&ranks, &routing).unwrap();
    let matrices = [traffic.matrix(1056), traffic.network_matrix(1056), traffic.forwarding_matrix(1056)];
    for matrix in matrices.map(Result::unwrap) {
        let (collective, buffers) = (Collective::AllToAllV, BufferUse::OutOfPlace);
        let call = Call { collective, bytes: matrix.total(), ranks: 16, root: Rank(0), buffers };
        let shape = Shape { matrix: Some(matrix), ranks_per_node: 8, ..Shape::new(call, Protocol::Symmetric) };
        let schedule = Schedule::build(&*generator(Algorithm::Direct, &shape).unwrap()).unwrap();
        assert!(verify(&schedule, &VerifyOptions::default()).unwrap().operations > 0);
    }
}

/// Sending a token once per host moves fewer bytes between hosts than a copy per rank.
#[test]
fn tokens_cross_the_network_once_per_host() {
    let fabric = fabric("hgx-h100", 4);
    let router = Router::new(&fabric, RouteOptions::default());
    let ranks = ExchangeRanks::new(&router, fabric.gpus()).unwrap();
    let routing = TokenRouting::new(4096, 7168, 256, 8, RoutingPattern::Random).unwrap();
    let traffic = Traffic::new(&ranks, &routing).unwrap();
    let between_hosts = |matrix: TrafficMatrix| -> u64 {
        matrix.blocks().filter(|block| block.from / 8 != block.to / 8).map(|block| block.bytes.0).sum()
    };
    let direct = between_hosts(traffic.matrix(7392).unwrap());
    let once = between_hosts(traffic.network_matrix(7392).unwrap());
    // 3 of 4 hosts of 3.63 distinct hosts against 3 of 4 of 7.25 distinct ranks.
    let (ranks_hit, hosts_hit) = (traffic.ranks_per_token(), traffic.domains_per_token());
    assert!((once as f64 / direct as f64 - hosts_hit / ranks_hit).abs() < 1e-3);
    assert!(2 * once < direct + direct / 50);
}

/// Twice the NIC rate halves the time of a network-bound dispatch; node-limited routing sends less than random routing.
#[test]
fn network_limits_large_dispatches_between_hosts() {
    let request = |nic: &str| FabricRequest {
        nodes: Some(4),
        network: Some(format!("rail,nics_per_node=8,nic={nic}").parse().unwrap()),
        ..FabricRequest::new("hgx-h100")
    };
    let time = |nic: &str, pattern| {
        let fabric = load(&request(nic)).unwrap();
        let routing = TokenRouting::new(1 << 20, 7168, 256, 8, pattern).unwrap();
        time_and_bound(&fabric, ExchangeKernel::DeepEpElastic, Operation::Dispatch, &routing).unwrap().0.us()
    };
    let (slow, fast) = (time("100Gb/s", RoutingPattern::Random), time("200Gb/s", RoutingPattern::Random));
    assert!((slow / fast - 2.0).abs() < 0.01, "{slow} {fast}");
    let limited = time("100Gb/s", RoutingPattern::GroupLimited { groups: 4, limit: 2 });
    assert!(limited < 0.6 * slow, "{limited} {slow}");
}

/// Without peer access each GPU is a domain, and its tokens go through the NIC.
#[test]
fn ranks_without_peer_access_use_their_nics() {
    let fabric = fabric("hgx-h100", 1);
    let options = RouteOptions { p2p: PeerAccess::Off, ..RouteOptions::default() };
    let router = Router::new(&fabric, options);
    let ranks = ExchangeRanks::new(&router, fabric.gpus()).unwrap();
    assert_eq!(ranks.domains().len(), 8);
    let routing = TokenRouting::new(128, 7168, 256, 8, RoutingPattern::Random).unwrap();
    let profile = Profile::for_fabric(&fabric).unwrap();
    let exchange = Exchange {
        router: &router,
        ranks: &ranks,
        links: &profile.links,
        routing: &routing,
        kernel: ExchangeKernel::DeepEpLowLatency,
        sms: None,
    };
    let load = exchange.load(Operation::Dispatch, TokenType::Fp8).unwrap();
    let time = exchange.time(&load, &ExchangeCosts::FITTED, Timing::Kernel);
    assert_eq!(time.bottleneck, "network");
    // 7 of 8 copies of 128 × 8 tokens of 7,408 bytes at 50 GB/s.
    assert!(time.transfer.us() > 896.0 * 7408.0 / 50e3, "{}", time.transfer);
}
