//! Tests of all_to_allv with uneven blocks: equal blocks take the time of an all_to_all, others the time of their
//! busiest links.

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_collectives::bound::{Bounds, InNetwork};
use fabricast_sim::Folding;
use fabricast_sim::schedule::{
    Boundary, BufferUse, Call, Collective, MatrixBlock, Protocol, Rank, Schedule, TrafficMatrix,
};
use fabricast_sim::verify::{VerifyOptions, verify};
use fabricast_topologies::{Bandwidth, Bytes, Picos};
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::Case;
use crate::matrices::random_matrix;
use crate::testbed::{Testbed, scenes, switch};

fn call(collective: Collective, ranks: u32, bytes: u64) -> Call {
    Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace }
}

/// Returns an all_to_allv of a matrix.
fn uneven(algorithm: Algorithm, matrix: TrafficMatrix) -> Case {
    let call = call(Collective::AllToAllV, matrix.ranks(), matrix.total().0);
    Case { algorithm, shape: Shape { matrix: Some(matrix), ..Shape::new(call, Protocol::Simple) } }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The call is out of place, because an in-place all_to_all has conflicting blocks.
    #[test]
    fn equal_blocks_take_the_time_of_an_all_to_all(
        scene in scenes(16),
        algorithm in select(vec![Algorithm::Direct, Algorithm::Pairwise, Algorithm::Hierarchical]),
        block in 1u64..200_000,
        channels in 1u16..=4,
        chunk in prop::option::of(1_000u64..100_000),
        protocol in select(Protocol::ALL.to_vec()),
    ) {
        let testbed = scene.testbed();
        let ranks = testbed.ranks();
        let per_rank = block * u64::from(ranks);
        let shape = |collective, bytes| Shape {
            channels,
            chunk: chunk.map(Bytes),
            ranks_per_node: testbed.per_host(),
            ..Shape::new(call(collective, ranks, bytes), protocol)
        };
        let even = shape(Collective::AllToAll, per_rank);
        let matrix = shape(Collective::AllToAllV, per_rank * u64::from(ranks));
        let run = |shape: &Shape| testbed.run(&*generator(algorithm, shape).unwrap(), Folding::WhereProved);
        match (run(&even), run(&matrix)) {
            (Ok(even), Ok(matrix)) => prop_assert_eq!(even.time, matrix.time),
            (even, matrix) => prop_assert_eq!(even.is_err(), matrix.is_err()),
        }
    }

    /// The symmetry allows one rank to represent all of them, for any number of ranks.
    #[test]
    fn equal_blocks_have_the_symmetry_of_an_all_to_all(
        ranks in select(vec![2u32, 4, 8, 12]),
        hosts in select(vec![1u32, 2]),
        block in 1u64..1_000,
        algorithm in select(vec![Algorithm::Direct, Algorithm::Pairwise, Algorithm::Hierarchical]),
    ) {
        let per_rank = block * u64::from(ranks);
        let symmetry = |collective, bytes| {
            let ranks_per_node = ranks / hosts;
            let shape = Shape { ranks_per_node, ..Shape::new(call(collective, ranks, bytes), Protocol::Simple) };
            generator(algorithm, &shape).map(|generator| generator.symmetry())
        };
        let even = symmetry(Collective::AllToAllV, per_rank * u64::from(ranks));
        prop_assert_eq!(even, symmetry(Collective::AllToAll, per_rank));
    }

    /// Sent and received bytes match the matrix, and so do the sizes used for bandwidths.
    #[test]
    fn schedules_move_the_bytes_of_their_matrix(ranks in 1u32..9, bytes in 0u64..100_000, seed: u64, channels in 1u16..4) {
        let matrix = random_matrix(ranks, bytes, seed);
        for algorithm in [Algorithm::Direct, Algorithm::Pairwise, Algorithm::Hierarchical] {
            let case = uneven(algorithm, matrix.clone());
            let shape = Shape { channels, chunk: Some(Bytes(777)), ..case.shape };
            let schedule = Schedule::build(&*generator(algorithm, &shape).unwrap()).unwrap();
            prop_assert_eq!(schedule.header().matrix(), Some(matrix.clone()));
            prop_assert_eq!(schedule.header().layout.bytes(), matrix.total());
            let (mut rows, mut columns) = (vec![0; ranks as usize], vec![0; ranks as usize]);
            for MatrixBlock { from, to, bytes } in matrix.blocks() {
                rows[from as usize] += bytes.0;
                columns[to as usize] += bytes.0;
            }
            prop_assert_eq!(schedule.header().size().0, rows.into_iter().chain(columns).max().unwrap());
        }
    }

    /// Without software costs, the time is bounded by the busiest port, and equals that bound on equal links if no
    /// other port is as busy.
    #[test]
    fn incast_runs_at_the_rate_of_the_receivers_port(gpus in 3u32..9, kib in 1u64..1000, seed: u64) {
        let (rate, latency) = (Bandwidth::from_gb_per_s(50.0), Picos::from_ns(250.0));
        let testbed = Testbed::ideal(switch(gpus, rate, latency));
        // Every other rank receives at most a hundredth of the bytes.
        let others = random_matrix(gpus, kib * 10, seed);
        let entry = |from: u32, to: u32| if to == 0 && from > 0 { kib * 1024 } else { others.get(from, to).0 * u64::from(to > 0) };
        let entries = (0..gpus).flat_map(|from| (0..gpus).map(move |to| (from, to)));
        let matrix = TrafficMatrix::new(gpus, entries.map(|(from, to)| entry(from, to)).collect()).unwrap();
        let case = uneven(Algorithm::Direct, matrix.clone());
        let time = testbed.run(&*case.generator(), Folding::WhereProved).unwrap().time;
        let bound = Bounds::new(&testbed.fabric, &testbed.router(), &testbed.placement(), 0)
            .with_in_network(InNetwork::Off)
            .with_matrix(Some(&matrix))
            .bound(&case.shape.call);
        prop_assert!(time >= bound.time && time.0 - bound.time.0 <= u64::from(gpus), "{time:?}, {bound:?}");
        let seconds = (f64::from(gpus) - 1.0) * (kib * 1024) as f64 / 50e9;
        prop_assert!((bound.transfer.0 as f64 - seconds * 1e12).abs() < 2.0, "{bound:?}");
    }
}

#[test]
fn an_empty_matrix_takes_no_time() {
    let testbed = Testbed::ideal(switch(4, Bandwidth::from_gb_per_s(50.0), Picos::from_ns(250.0)));
    for algorithm in [Algorithm::Direct, Algorithm::Pairwise] {
        let case = uneven(algorithm, TrafficMatrix::new(4, vec![0; 16]).unwrap());
        assert_eq!(case.schedule().operation_count(), 0);
        assert_eq!(verify(&case.schedule(), &VerifyOptions::default()).unwrap().operations, 0);
        let bounds = Bounds::new(&testbed.fabric, &testbed.router(), &testbed.placement(), 0);
        assert_eq!(bounds.with_matrix(case.shape.matrix.as_ref()).bound(&case.shape.call).time, Picos::ZERO);
    }
}

/// In a halo exchange on a grid of ranks, every port carries the faces of its rank.
#[test]
fn halo_exchange_runs_at_the_rate_of_the_ports() {
    let testbed = Testbed::ideal(switch(8, Bandwidth::from_gb_per_s(100.0), Picos::from_ns(350.0)));
    for (sides, boundary, faces) in
        [(vec![8], Boundary::Periodic, 2), (vec![2, 2, 2], Boundary::Open, 3), (vec![4, 2], Boundary::Open, 3)]
    {
        let matrix = TrafficMatrix::halo(&sides, boundary, Bytes(1_000_000)).unwrap();
        assert_eq!(matrix.size(), Bytes(faces * 1_000_000));
        let case = uneven(Algorithm::Direct, matrix);
        let time = testbed.run(&*case.generator(), Folding::WhereProved).unwrap().time;
        let expected = Picos::from_us(0.7 + faces as f64 * 10.0);
        assert!(time.0.abs_diff(expected.0) <= faces, "{sides:?}: {time:?}");
    }
}

#[test]
fn matrices_must_match_the_call() {
    let case = uneven(Algorithm::Direct, TrafficMatrix::even(4, Bytes(1600)).unwrap());
    let reason =
        |shape: &Shape| generator(Algorithm::Direct, shape).err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(reason(&case.shape), "");
    let none = Shape { matrix: None, ..case.shape.clone() };
    assert_eq!(reason(&none), "an all_to_allv needs a matrix of at most 4096 ranks");
    for call in [Call { ranks: 3, ..case.shape.call }, Call { bytes: Bytes(1601), ..case.shape.call }] {
        let other = Shape { call, ..case.shape.clone() };
        assert!(reason(&other).contains("the matrix has 4 ranks and 1600"), "{}", reason(&other));
    }
}
