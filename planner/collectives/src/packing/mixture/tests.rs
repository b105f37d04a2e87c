//! Trees on networks whose optimum has a closed form.

use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Fabric, FabricRequest, load};

use super::*;
use crate::packing::forest::BlockKind;
use crate::packing::requirement::Roots;
use crate::packing::routes::{Flow, Routes};

/// Finds trees of all roots, and their time in seconds per byte.
fn found(fabric: &Fabric, variant: TreeVariant) -> (MixedForest, f64) {
    let router = Router::new(fabric, RouteOptions::default());
    let routes = Routes::new(fabric, &router, fabric.gpus());
    let found = FastestMixture::new(vec![Network::new(&routes, Roots::All, BlockKind::PerRank, Flow::Spread)])
        .unwrap()
        .personalised_trees(variant)
        .unwrap();
    let time = routes.time_per_byte(&[(&found.forest, Flow::Spread)]).unwrap().value();
    (found, time)
}

fn hops(forest: &Forest) -> f64 {
    let units = |tree| forest.edge_units(tree).into_iter().map(|(_, units)| units).sum::<u64>();
    forest.trees.iter().map(units).sum::<u64>() as f64 / f64::from(forest.units)
}

#[test]
fn ranks_that_are_all_linked_send_directly() {
    let (MixedForest { forest, lower, .. }, time) =
        found(&load(&FabricRequest::new("mi300x")).unwrap(), TreeVariant::Optimal);
    assert_eq!(forest, Forest::stars(8, Roots::All, BlockKind::PerRank).without_symmetry());
    assert!((lower.value() / time - 1.0).abs() < 1e-4);
}

/// With seven of eight NICs, the blocks between hosts take 8/7 of the time.
#[test]
fn a_failed_nic_costs_its_share_of_the_bandwidth() {
    for nodes in [2, 4, 8] {
        let network = Some("rail".parse().unwrap());
        let request = FabricRequest { nodes: Some(nodes), network, ..FabricRequest::new("hgx-h100") };
        let fabric = load(&request).unwrap();
        let (_, healthy) = found(&fabric, TreeVariant::Optimal);
        let (_, damaged) = found(&fabric.with_failed("n0/nic1").unwrap(), TreeVariant::Optimal);
        assert!((damaged / healthy / (8.0 / 7.0) - 1.0).abs() < 0.011, "{nodes}: {healthy} {damaged}");
    }
}

/// Trees of a variant use no more units than it permits, and wider links shorten paths.
#[test]
fn variants_trade_time_for_hops_and_units() {
    let fabric = load(&FabricRequest::new("dgx-v100")).unwrap();
    let (optimal, shortest) = found(&fabric, TreeVariant::Optimal);
    let (wide, longer) = found(&fabric, TreeVariant::Widened(2));
    let (one, of_one) = found(&fabric, TreeVariant::AtMost(1));
    assert!(hops(&wide.forest) <= hops(&optimal.forest) + 1e-9);
    assert!(shortest <= longer && longer <= 2.0 * shortest * 1.011, "{shortest} {longer}");
    assert!(one.forest.units == 1 && of_one >= shortest);
    assert_eq!([&wide.lower, &one.lower], [&optimal.lower; 2]);
}
