//! Times rise with tokens and fall with bandwidth.

use fabricast_sim::profile::LinkEfficiency;
use fabricast_topologies::route::{PeerAccess, RouteOptions, Router};
use fabricast_topologies::{Fabric, FabricRequest, LinkKind, Picos, load};
use proptest::prelude::*;

use crate::link_load::{LinkLoad, NetworkLoad};
use crate::{
    Exchange, ExchangeCosts, ExchangeKernel, ExchangeRanks, Operation, RoutingPattern, Timing, TokenRouting, TokenType,
};

/// Exchange whose tokens and fabric vary.
#[derive(Clone, Copy, Debug)]
struct Case {
    kernel: ExchangeKernel,
    operation: Operation,
    token_type: TokenType,
    pattern: RoutingPattern,
    sms: u32,
    p2p: PeerAccess,
    skew: f64,
}

impl Case {
    fn has_peer_memory(&self) -> bool {
        matches!(self.kernel, ExchangeKernel::TensorRtOneSided | ExchangeKernel::TensorRtTwoSided)
    }

    fn fabric(&self, nodes: u32) -> Fabric {
        let preset = if self.has_peer_memory() { "gb200-nvl72" } else { "hgx-h100" };
        load(&FabricRequest { nodes: Some(nodes), ..FabricRequest::new(preset) }).unwrap()
    }

    /// Time and lower bound.
    fn price(&self, fabric: &Fabric, tokens: u64) -> [Picos; 2] {
        let router = Router::new(fabric, RouteOptions { p2p: self.p2p, ..RouteOptions::default() });
        let ranks = ExchangeRanks::new(&router, fabric.gpus()).unwrap();
        let experts = 8 * fabric.gpus().len() as u32;
        let routing = TokenRouting::new(tokens, 7168, experts, 4, self.pattern).unwrap().with_skew(self.skew).unwrap();
        let (kernel, sms) = (self.kernel, Some(self.sms));
        let exchange = Exchange {
            router: &router,
            ranks: &ranks,
            links: &LinkEfficiency::NOMINAL,
            routing: &routing,
            kernel,
            sms,
        };
        let load = exchange.load(self.operation, self.token_type).unwrap();
        let time = exchange.time(&load, &ExchangeCosts::FITTED, Timing::Kernel).total();
        [time, exchange.bound(self.operation, self.token_type).unwrap()]
    }
}

fn case() -> impl Strategy<Value = Case> {
    let pattern = prop_oneof![
        Just(RoutingPattern::Random),
        Just(RoutingPattern::Balanced),
        (1u32..5).prop_map(|limit| RoutingPattern::GroupLimited { groups: 4, limit }),
    ];
    let token_type = prop_oneof![Just(TokenType::Bf16), Just(TokenType::Fp8), Just(TokenType::Nvfp4)];
    let (kernel, sms) = (0..ExchangeKernel::ALL.len(), 2u32..133);
    (kernel, any::<bool>(), token_type, pattern, sms, any::<bool>(), 1.0f64..3.0).prop_map(
        |(kernel, is_combine, token_type, pattern, sms, is_off, skew)| {
            let kernel = ExchangeKernel::ALL[kernel];
            let operation = if is_combine { Operation::Combine } else { Operation::Dispatch };
            let case = Case { kernel, operation, token_type, pattern, sms, p2p: PeerAccess::Allowed, skew };
            let needs_access = case.has_peer_memory() || !matches!(kernel, ExchangeKernel::DeepEpLowLatency);
            if is_off && !needs_access { Case { p2p: PeerAccess::Off, ..case } } else { case }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The time does not decrease with the number of tokens, and it is never below the lower bound.
    #[test]
    fn time_rises_with_tokens(case in case(), nodes in 1u32..5, tokens in 1u64..5000, more in 1u64..5000) {
        let fabric = case.fabric(nodes);
        let [few, few_bound] = case.price(&fabric, tokens);
        let [many, many_bound] = case.price(&fabric, tokens + more);
        prop_assert!(few <= many && few_bound < many_bound || few_bound == Picos::ZERO, "{few} {many}");
        prop_assert!(few_bound <= few && many_bound <= many, "{few_bound} {few} {many_bound} {many}");
    }

    /// Faster links of a kind lengthen neither time nor bound.
    #[test]
    fn more_bandwidth_never_hurts(
        case in case(), nodes in 1u32..5, tokens in 1u64..5000, kind in 0usize..4, factor in 1.0f64..4.0,
    ) {
        let slow = case.fabric(nodes);
        let kinds = [LinkKind::Infiniband, LinkKind::Ethernet, LinkKind::Nvlink, LinkKind::Pcie];
        if let Some(fast) = slow.with_scaled_bandwidth(&kinds[kind..=kind], factor) {
            let ([slow, slow_bound], [fast, fast_bound]) = (case.price(&slow, tokens), case.price(&fast, tokens));
            prop_assert!(fast <= slow && fast_bound <= slow_bound, "{slow} {fast} {slow_bound} {fast_bound}");
        }
    }

    /// The slowest network link is the slowest of all at every cost per copy.
    #[test]
    fn network_time_is_that_of_the_slowest_link(
        links in prop::collection::vec((0.0f64..100.0, 0.1f64..100.0), 1..20), copy_us in 0.0f64..10.0,
    ) {
        let mut load = LinkLoad::default();
        for &(time_us, copies) in &links {
            load.add_network(NetworkLoad { time_us, copies });
        }
        let slowest = links.iter().map(|(time_us, copies)| time_us + copies * copy_us).fold(0.0, f64::max);
        prop_assert_eq!(load.network_us(copy_us), slowest);
    }
}
