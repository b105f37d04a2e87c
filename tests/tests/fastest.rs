//! The fastest candidate of a plan is never slower than any strategy that runs; each strategy is simulated
//! independently of the search.

use fabricast_planner::abilities::Abilities;
use fabricast_planner::algorithm::{Algorithm, Shape, generator};
use fabricast_planner::bound::InNetwork;
use fabricast_planner::plan::{NotTried, PlanRequest, Row, SearchSpace, Watcher, plan};
use fabricast_planner::strategy::{Restriction, Strategy, combination};
use fabricast_sim::lower::LowerError;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_sim::{Folding, SimulateError};
use fabricast_topologies::{Bytes, Picos};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Strategy as _;

use crate::matrices::matrix_of;
use crate::worlds::{Scene, World, scenes};

/// Plans a call with its root in the middle of the ranks; returns the row and the channel counts that the plan tries.
fn planned(world: &World, collective: Collective, bytes: Bytes) -> Option<(Row, Vec<u16>)> {
    let (router, placement, restriction) = (world.router(), world.placement(), Restriction::default());
    let matrix = matrix_of(world.ranks(), 1 << 20, 7);
    let (collectives, sizes) = ([collective], [bytes]);
    let asked = world.asked((&router, &placement), (&collectives, &sizes), &restriction);
    let request = PlanRequest { root: world.ranks() / 2, matrix: Some(&matrix), ..asked };
    let row = plan(&request, Watcher::default()).ok()?.rows.into_iter().next()?;
    let space = SearchSpace::of(&request);
    let is_left = |channels: u16| {
        let is_it = |one: &NotTried| matches!(one, NotTried::ManyChannels { channels: many, bytes } if *many == channels && *bytes > row.bytes);
        space.not_tried.iter().any(is_it)
    };
    let tried = space.channels.iter().copied().filter(|&channels| !is_left(channels)).collect();
    Some((row, tried))
}

/// Simulates a call of `asked` bytes with a strategy; `None` if there is no such schedule.
fn simulated(world: &World, (row, asked): (&Row, Bytes), strategy: Strategy) -> Option<Picos> {
    let (router, placement) = (world.router(), world.placement());
    let abilities = Abilities::of(&world.fabric, &router, &placement, world.per_host(), InNetwork::Allowed);
    combination(strategy.algorithm, strategy.protocol, row.collective, &abilities).ok()?;
    let (ranks, root) = (world.ranks(), Rank(world.ranks() / 2));
    let call = Call { collective: row.collective, bytes: row.bytes, ranks, root, buffers: BufferUse::OutOfPlace };
    let matrix = (row.collective == Collective::AllToAllV).then(|| matrix_of(ranks, 1 << 20, 7).scaled(asked));
    let shape = Shape {
        grid: world.fabric.host_grid().to_vec(),
        matrix,
        ..strategy.shape(call, &world.profile, world.per_host(), &abilities)
    };
    let generator = generator(strategy.algorithm, &shape).ok()?;
    match world.timed(generator.as_ref(), Folding::BlocksFirst, None) {
        Ok(timeline) => Some(timeline.time),
        // The fabric does not connect two ranks that the schedule connects.
        Err(SimulateError::Lower(LowerError::Unreachable(_))) => None,
        Err(error) => panic!("{strategy}: {error}"),
    }
}

/// All strategies for a call on the given channel counts.
fn strategies(collective: Collective, channels: Vec<u16>) -> impl Iterator<Item = Strategy> {
    let algorithms = Algorithm::ALL.into_iter().filter(move |algorithm| algorithm.supports(collective));
    let pairs = algorithms.flat_map(|algorithm| Protocol::ALL.map(|protocol| (algorithm, protocol)));
    pairs.flat_map(move |(algorithm, protocol)| {
        let of = move |channels| Strategy { algorithm, protocol, channels, threads: None, chunk: None };
        channels.clone().into_iter().map(of)
    })
}

fn sizes() -> impl proptest::strategy::Strategy<Value = Bytes> {
    // From a byte to 64 MiB, uniformly in the logarithm.
    (0u32..=26, any::<u32>()).prop_map(|(power, part)| Bytes((1 << power) + (u64::from(part) >> (32 - power))))
}

/// World without late ranks, which plans do not model.
fn world_of(scene: &Scene) -> World {
    World { delays: Vec::new(), ..scene.world() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_strategy_that_runs_is_faster_than_the_fastest(
        scene in scenes(16),
        collective in select(Collective::ALL.to_vec()),
        bytes in sizes(),
        some in proptest::sample::subsequence((0..9usize).collect::<Vec<_>>(), 3),
    ) {
        let world = world_of(&scene);
        let Some((row, tried)) = planned(&world, collective, bytes) else { return Ok(()) };
        let channels = some.into_iter().filter_map(|at| tried.get(at).copied()).collect();
        for strategy in strategies(collective, channels) {
            if let Some(time) = simulated(&world, (&row, bytes), strategy) {
                prop_assert!(
                    row.fastest.time <= time,
                    "{strategy}: {time:?}, and the fastest is {} with {:?}", row.fastest.strategy, row.fastest.time
                );
            }
        }
        prop_assert_eq!(simulated(&world, (&row, bytes), row.fastest.strategy), Some(row.fastest.time));
        // Fewer channels are preferred at a cost of up to 1 %; here no library's choice can be preferred.
        prop_assert!(row.pick.time.0 as f64 <= row.fastest.time.0 as f64 * 1.01);
    }
}
