//! The fastest candidate of a plan is never slower than any strategy that runs; each strategy is simulated
//! independently of the search.

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_collectives::bound::InNetwork;
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::packing::TreePacker;
use fabricast_collectives::strategy::{Strategy, check_combination};
use fabricast_search::candidates::Restriction;
use fabricast_search::plan::{Exclusion, PlanRequest, PlanRow, SearchSpace, plan};
use fabricast_sim::lower::LowerError;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_sim::{Folding, SimulateError};
use fabricast_topologies::{Bytes, Picos};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Strategy as _;

use crate::matrices::random_matrix;
use crate::testbed::{FabricSpec, Scene, Testbed, scenes};

/// Plans a call with its root in the middle of the ranks; returns the row and the channel counts that the plan
/// evaluates.
fn plan_call(testbed: &Testbed, collective: Collective, bytes: Bytes) -> Option<(PlanRow, Vec<u16>)> {
    let (router, placement, restriction) = (testbed.router(), testbed.placement(), Restriction::default());
    let matrix = random_matrix(testbed.ranks(), 1 << 20, 7);
    let (collectives, sizes) = ([collective], [bytes]);
    let base = testbed.plan_request((&router, &placement), (&collectives, &sizes), &restriction);
    let request = PlanRequest { root: testbed.ranks() / 2, matrix: Some(&matrix), ..base };
    let row = plan(&request, Monitor::default()).ok()?.rows.into_iter().next()?;
    let space = SearchSpace::new(&request);
    let is_excluded = |channels: u16| {
        let matches_row = |excluded: &Exclusion| matches!(excluded, Exclusion::ManyChannels { channels: excluded_channels, bytes } if *excluded_channels == channels && *bytes > row.bytes);
        space.excluded.iter().any(matches_row)
    };
    let tried = space.channels.iter().copied().filter(|&channels| !is_excluded(channels)).collect();
    Some((row, tried))
}

/// Simulates a call of `requested` bytes with a strategy; returns `None` if there is no such schedule.
fn simulate_row(testbed: &Testbed, (row, requested): (&PlanRow, Bytes), strategy: Strategy) -> Option<Picos> {
    let (router, placement) = (testbed.router(), testbed.placement());
    let capabilities =
        FabricCapabilities::new(&testbed.fabric, &router, &placement, testbed.per_host(), InNetwork::Allowed);
    let packer = TreePacker::new(&testbed.fabric, &router, &placement, testbed.ranks() / 2, None);
    let capabilities = capabilities.with_packer(packer);
    check_combination(strategy.algorithm, strategy.protocol, row.collective, &capabilities).ok()?;
    let (ranks, root) = (testbed.ranks(), Rank(testbed.ranks() / 2));
    let call = Call { collective: row.collective, bytes: row.bytes, ranks, root, buffers: BufferUse::OutOfPlace };
    let matrix = (row.collective == Collective::AllToAllV).then(|| random_matrix(ranks, 1 << 20, 7).scaled(requested));
    let shape = Shape {
        grid: testbed.fabric.host_grid().to_vec(),
        matrix,
        ..strategy.shape(call, &testbed.profile, testbed.per_host(), &capabilities)
    };
    let generator = generator(strategy.algorithm, &shape).ok()?;
    match testbed.run_without_recording(generator.as_ref(), Folding::GroupsFirst, None) {
        Ok(timeline) => Some(timeline.time),
        // The fabric does not connect two ranks that the schedule connects.
        Err(SimulateError::Lower(LowerError::Unreachable(_))) => None,
        Err(error) => panic!("{strategy}: {error}"),
    }
}

/// Returns all strategies for a call on the given channel counts, without packed trees, which a plan tries only if they
/// are named or nothing else runs.
fn strategies(collective: Collective, channels: Vec<u16>) -> impl Iterator<Item = Strategy> {
    let algorithms = Algorithm::ALL
        .into_iter()
        .filter(move |&algorithm| algorithm.supports(collective) && algorithm != Algorithm::TreePacking);
    let pairs = algorithms.flat_map(|algorithm| Protocol::ALL.map(|protocol| (algorithm, protocol)));
    pairs.flat_map(move |(algorithm, protocol)| {
        let strategy = move |channels| Strategy::new(algorithm, protocol, channels);
        channels.clone().into_iter().map(strategy)
    })
}

fn sizes() -> impl proptest::strategy::Strategy<Value = Bytes> {
    // Sizes range from a byte to 64 MiB, uniformly in the logarithm.
    (0u32..=26, any::<u32>()).prop_map(|(power, part)| Bytes((1 << power) + (u64::from(part) >> (32 - power))))
}

/// Returns a testbed without late ranks, which plans do not model.
fn undelayed_testbed(scene: &Scene) -> Testbed {
    Testbed { delays: Vec::new(), ..scene.testbed() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_strategy_that_runs_is_faster_than_the_fastest(
        scene in scenes(16),
        collective in select(Collective::ALL.to_vec()),
        bytes in sizes(),
        indices in proptest::sample::subsequence((0..9usize).collect::<Vec<_>>(), 3),
    ) {
        let testbed = undelayed_testbed(&scene);
        let Some((row, tried)) = plan_call(&testbed, collective, bytes) else { return Ok(()) };
        let channels = indices.into_iter().filter_map(|index| tried.get(index).copied()).collect();
        for strategy in strategies(collective, channels) {
            if let Some(time) = simulate_row(&testbed, (&row, bytes), strategy) {
                prop_assert!(
                    row.fastest.time <= time,
                    "{strategy}: {time:?}, and the fastest is {} with {:?}", row.fastest.strategy, row.fastest.time
                );
            }
        }
        prop_assert_eq!(simulate_row(&testbed, (&row, bytes), row.fastest.strategy), Some(row.fastest.time));
        // Fewer channels are preferred at a cost of up to 1 %; here no library's choice can be preferred.
        prop_assert!(row.pick.time.0 as f64 <= row.fastest.time.0 as f64 * 1.01);
    }
}

/// Where GPUs are linked to each other without a switch, a plan says that packed trees may be faster; they are a candidate
/// only if they are named.
#[test]
fn packed_trees_are_mentioned_on_meshes() {
    for (preset, is_mesh) in [("dgx-v100", true), ("mi250x", true), ("hgx-h100", false), ("rtx4090-pcie", false)] {
        let fabric = FabricSpec::Hosts { preset, nodes: 1, gpus: 8, network: "" }.build();
        let testbed = Testbed { profile: Profile::for_fabric(&fabric).unwrap(), ..Testbed::ideal(fabric) };
        let (router, placement) = (testbed.router(), testbed.placement());
        let (collectives, sizes) = ([Collective::Broadcast], [Bytes(1 << 20)]);
        let space = |algorithms: Vec<Algorithm>| {
            let restriction = Restriction { algorithms, ..Restriction::default() };
            SearchSpace::new(&testbed.plan_request((&router, &placement), (&collectives, &sizes), &restriction))
        };
        let default = space(Vec::new());
        assert_eq!(default.excluded.contains(&Exclusion::PackedTrees), is_mesh, "{preset}");
        assert!(default.competing.iter().all(|one| one.algorithm != Algorithm::TreePacking));
        let named = space(vec![Algorithm::TreePacking]);
        assert!(!named.excluded.contains(&Exclusion::PackedTrees) && named.competing.len() == 1, "{preset}");
    }
}
