//! Trees of all_to_all, scatter and gather: optimum by another linear program, and simulated times.

use fabricast_collectives::bound::Bounds;
use fabricast_collectives::packing::{Evidence, Forests};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::Fabric;
use fabricast_topologies::route::{Participants, RouteOptions, Router};
use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};
use proptest::prelude::*;
use std::collections::BTreeMap;

use crate::tree_packing::{call, fabrics, ideal_time, optima, packer, synthesis};

const COLLECTIVES: [Collective; 3] = [Collective::AllToAll, Collective::Scatter, Collective::Gather];

/// Shortest time of a call of one byte, in seconds, by rates on routes: what a rank sends of the blocks of each source
/// and what it receives differ by the block that it keeps, and no link carries more than its bandwidth. Rank 0 is the
/// root. Infinite if blocks have no path.
pub(crate) fn fastest_flow(fabric: &Fabric, collective: Collective) -> f64 {
    let router = Router::new(fabric, RouteOptions::default());
    let gpus = fabric.gpus();
    let participants = Participants::new(gpus);
    let ranks = gpus.len();
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let time = problem.add_var(1.0, (0.0, f64::INFINITY));
    // The flow of a gather is that of a scatter over reversed routes.
    let is_reversed = collective == Collective::Gather;
    let sources = if collective == Collective::AllToAll { 0..ranks } else { 0..1 };
    let mut loads: BTreeMap<_, Vec<(Variable, f64)>> = BTreeMap::new();
    for source in sources {
        let mut balance: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); ranks];
        for from in 0..ranks {
            for to in (0..ranks).filter(|&to| to != from) {
                let (first, last) = if is_reversed { (to, from) } else { (from, to) };
                let Ok(path) = router.path_for_participants(&participants, gpus[first], gpus[last]) else { continue };
                let blocks = problem.add_var(0.0, (0.0, f64::INFINITY));
                balance[from].push((blocks, -1.0));
                balance[to].push((blocks, 1.0));
                for hop in path.hops {
                    let share = f64::from(hop.share.numerator) / f64::from(hop.share.denominator);
                    loads.entry(hop.link).or_default().push((blocks, share));
                }
            }
        }
        for (_, terms) in balance.into_iter().enumerate().filter(|&(rank, _)| rank != source) {
            problem.add_constraint(terms, ComparisonOp::Eq, 1.0);
        }
    }
    const UNIT: f64 = 1e10;
    for (link, mut terms) in loads {
        let Some(rate) = fabric.link(link).bandwidth else { continue };
        terms.push((time, -(rate.0 as f64) / UNIT));
        problem.add_constraint(terms, ComparisonOp::Le, 0.0);
    }
    match problem.solve() {
        Ok(outcome) => outcome.into_solution().unwrap().objective() / UNIT / ranks as f64,
        Err(microlp::Error::Infeasible) => f64::INFINITY,
        Err(error) => panic!("{error}"),
    }
}

/// Lower bound of a plan, of one byte in seconds, without latencies.
fn bound(fabric: &Fabric, collective: Collective) -> f64 {
    let bytes = 1u64 << 30;
    let router = Router::new(fabric, RouteOptions::default());
    let bounds = Bounds::new(fabric, &router, fabric.gpus(), 0);
    bounds.bound(&call(collective, bytes, fabric)).transfer.0 as f64 / (bytes as f64 * 1e12)
}

/// Largest share of the time that prices fail to prove, because they also weigh hops.
const PRICES: f64 = 5e-4;

/// Largest share of the time that trees lose by rounding to whole units.
const ROUNDING: f64 = 0.01;

fn check_optimum(fabric: &Fabric, collective: Collective) -> Result<(), TestCaseError> {
    let router = Router::new(fabric, RouteOptions::default());
    let Ok(packer) = packer(fabric, &router, None) else { return Ok(()) };
    let optimum = fastest_flow(fabric, collective);
    let forests = packer.forests(collective);
    prop_assert_eq!(forests.is_ok(), optimum.is_finite(), "{:?}", forests);
    let Ok(Forests { proof, .. }) = forests else { return Ok(()) };
    let proof = proof.unwrap();
    let (lower, upper) = (proof.lower.value() / optimum, proof.upper.value() / optimum);
    prop_assert!((1.0 - PRICES..=1.0 + 1e-9).contains(&lower), "{} {lower}", fabric.name());
    prop_assert!((1.0 - 1e-9..=1.0 + ROUNDING + 1e-9).contains(&upper), "{} {upper}", fabric.name());
    prop_assert!(matches!(proof.evidence, Evidence::Prices(_)));
    let bound = bound(fabric, collective) / optimum;
    prop_assert!(bound <= 1.0 + 1e-6, "{} {bound}", fabric.name());
    Ok(())
}

#[test]
fn trees_reach_the_optimum_of_known_fabrics() {
    for (fabric, _) in optima().into_iter().filter(|(fabric, _)| fabric.gpus().len() <= 16) {
        for collective in COLLECTIVES {
            check_optimum(&fabric, collective).unwrap();
            let bound = bound(&fabric, collective) / fastest_flow(&fabric, collective);
            assert!(bound > 1.0 - 1e-4, "{} {collective}: bound {bound} of the optimum", fabric.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn trees_reach_the_optimum_of_random_fabrics(
        fabric in fabrics(),
        collective in prop::sample::select(COLLECTIVES.to_vec()),
    ) {
        check_optimum(&fabric, collective)?;
    }
}

#[test]
fn calls_take_the_optimal_time() {
    for file in ["dgx1-v100.toml", "mi300x.toml", "mi250-1x16.toml", "h100-2x8-nic-dead.toml"] {
        let fabric = synthesis(file);
        for collective in COLLECTIVES {
            let time = ideal_time(call(collective, 1 << 30, &fabric), &fabric, None).0 as f64;
            let optimum = fastest_flow(&fabric, collective) * (1u64 << 30) as f64 * 1e12;
            assert!((0.98..=1.0 + 1e-6).contains(&(optimum / time)), "{file} {collective}: {}", optimum / time);
        }
    }
}
