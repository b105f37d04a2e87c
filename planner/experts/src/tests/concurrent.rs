//! Exchanges of several groups of ranks at the same time.

use fabricast_sim::profile::LinkEfficiency;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{FabricRequest, NodeId, Picos, load};
use proptest::prelude::*;

use crate::{
    Exchange, ExchangeCosts, ExchangeKernel, ExchangeRanks, Operation, RoutingPattern, Timing, TokenRouting, TokenType,
};

const NETWORKED: [ExchangeKernel; 5] = [
    ExchangeKernel::DeepEp,
    ExchangeKernel::DeepEpLowLatency,
    ExchangeKernel::DeepEpElastic,
    ExchangeKernel::NcclEpLowLatency,
    ExchangeKernel::Pplx,
];

/// Time of an exchange among the GPUs of even index on `nodes` hosts, alone and concurrent with an exchange among those
/// of odd index.
fn times(nics: u32, kernel: ExchangeKernel, operation: Operation, tokens: u64, nodes: u32) -> [Picos; 2] {
    let network = Some(format!("rail,nics_per_node={nics},nic=400Gb/s").parse().unwrap());
    let fabric = load(&FabricRequest { nodes: Some(nodes), network, ..FabricRequest::new("hgx-h100") }).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let part = |odd: usize| -> Vec<NodeId> { fabric.gpus().iter().copied().skip(odd).step_by(2).collect() };
    let [first, other] = [0, 1].map(|odd| ExchangeRanks::new(&router, &part(odd)).unwrap());
    let routing = TokenRouting::new(tokens, 4096, 64, 4, RoutingPattern::Random).unwrap();
    let links = &LinkEfficiency::NOMINAL;
    let exchange = Exchange { router: &router, ranks: &first, links, routing: &routing, kernel, sms: None };
    [vec![], vec![other]].map(|others| {
        let load = exchange.concurrent_load(operation, TokenType::Bf16, &others).unwrap();
        exchange.time(&load, &ExchangeCosts::FITTED, Timing::Kernel).total()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// GPUs with separate NICs do not slow each other down. If two share a NIC, another group is never faster, and
    /// large exchanges over the network take longer.
    #[test]
    fn groups_slow_each_other_on_shared_nics_only(kernel in prop::sample::select(NETWORKED.to_vec()), is_combine in any::<bool>(), tokens in 1u64..20_000, nodes in prop::sample::select(vec![2u32, 4])) {
        let operation = if is_combine { Operation::Combine } else { Operation::Dispatch };
        let [alone, concurrent] = times(8, kernel, operation, tokens, nodes);
        prop_assert_eq!(alone, concurrent);
        let [alone, concurrent] = times(4, kernel, operation, tokens, nodes);
        prop_assert!(concurrent >= alone);
        let [alone, concurrent] = times(4, kernel, operation, 1 << 20, nodes);
        prop_assert!(concurrent > alone, "{alone} {concurrent}");
    }
}
