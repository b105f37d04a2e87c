//! Tests of the kernels of every algorithm: interpreted on the CPU in random order, inspected and compiled.

mod interpret;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_sim::schedule::{
    BufferUse, Call, Collective, DataType, Protocol, Rank, ReduceOp, Schedule, TrafficMatrix,
};
use fabricast_topologies::Bytes;
use rayon::prelude::*;

use super::{Addresses, Alignment, Carrier, Devices, GridShape, Kernel, KernelError, SharedArena, Tiles};
use crate::cuda::{CompileError, compile};
use crate::shared_library::LibraryError;
use interpret::Tiling;

/// A schedule of an algorithm with `elements` elements of 4 bytes per rank.
#[derive(Clone, Debug)]
struct Case {
    algorithm: Algorithm,
    collective: Collective,
    ranks: u32,
    elements: u64,
    channels: u16,
    chunk: Option<u64>,
    buffers: BufferUse,
    root: u32,
    hosts: u32,
}

impl Case {
    fn plain(algorithm: Algorithm, collective: Collective, ranks: u32, elements: u64) -> Self {
        let buffers = BufferUse::OutOfPlace;
        Self { algorithm, collective, ranks, elements, channels: 1, chunk: None, buffers, root: 0, hosts: 2 }
    }

    fn schedule(&self) -> Option<Schedule> {
        let bytes = if self.collective == Collective::Barrier { 0 } else { 4 * self.elements * u64::from(self.ranks) };
        let rooted = matches!(
            self.collective,
            Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
        );
        let call = Call {
            collective: self.collective,
            bytes: Bytes(bytes),
            ranks: self.ranks,
            root: Rank(if rooted { self.root % self.ranks } else { 0 }),
            buffers: self.buffers,
        };
        let even = TrafficMatrix::even(self.ranks, Bytes(bytes * u64::from(self.ranks)));
        let call = match self.collective {
            Collective::AllToAllV => Call { bytes: Bytes(bytes * u64::from(self.ranks)), ..call },
            _ => call,
        };
        let shape = Shape {
            channels: self.channels,
            chunk: self.chunk.map(Bytes),
            ranks_per_node: if self.ranks.is_multiple_of(self.hosts) { self.ranks / self.hosts } else { 0 },
            ranks_per_team: if self.algorithm == Algorithm::NvlsTree { self.ranks / 2 } else { self.ranks },
            matrix: (self.collective == Collective::AllToAllV).then(|| even.ok()).flatten(),
            ..Shape::new(call, Protocol::Symmetric)
        };
        let generator = generator(self.algorithm, &shape).ok()?;
        Schedule::build(generator.as_ref()).ok()
    }

    fn kernel(&self, carrier: Carrier) -> Option<Kernel> {
        Some(Kernel::new(&self.schedule()?, DataType::F32, carrier).unwrap())
    }
}

/// Algorithms that kernels can run: those without reduction in the switches of a network.
fn algorithms() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.needs_network_reduction())
}

/// All valid pairs of algorithm and collective.
fn pairs() -> Vec<(Algorithm, Collective)> {
    algorithms().flat_map(|a| a.collectives().iter().map(move |c| (a, *c))).collect()
}

fn any_case() -> impl Strategy<Value = Case> {
    let pairs = pairs();
    let chunk = prop::option::of(prop::sample::select(vec![16u64, 48, 64, 256]));
    (prop::sample::select(pairs), 1u32..10, 1u64..40, 1u16..4, chunk, any::<bool>(), 0u32..10).prop_map(
        |((algorithm, collective), ranks, elements, channels, chunk, in_place, root)| Case {
            algorithm,
            collective,
            ranks,
            elements,
            channels,
            chunk,
            buffers: if in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace },
            root,
            hosts: 1 + root % 2,
        },
    )
}

fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

#[test]
fn any_execution_order_computes_expected_result() {
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    runner
        .run(
            &(any_case(), prop::sample::select(Carrier::ALL.to_vec()), any::<u64>(), 1usize..4, 1usize..4),
            |(case, carrier, seed, tiles, tiles_per_phase)| {
                let Some(kernel) = case.kernel(carrier) else { return Ok(()) };
                interpret::run(&kernel, 4, Tiling { tiles, tiles_per_phase }, &mut rng(seed))
            },
        )
        .unwrap();
}

/// Kernels of different collectives, algorithms and message formats run on one arena, in random order.
#[test]
fn kernels_on_a_shared_arena_compute_expected_results() {
    let config = Config { cases: 300, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let kernels = prop::collection::vec((any_case(), prop::sample::select(Carrier::ALL.to_vec())), 2..5);
    runner
        .run(&(kernels, 2u32..7, any::<u64>(), 1usize..4, 1usize..4), |(cases, ranks, seed, tiles, tiles_per_phase)| {
            let mut kernels: Vec<Kernel> = cases
                .into_iter()
                .filter_map(|(case, carrier)| Case { ranks, ..case }.kernel(carrier))
                .filter(|kernel| kernel.header.call.collective != Collective::Barrier)
                .collect();
            if kernels.is_empty() {
                return Ok(());
            }
            kernels.iter_mut().for_each(Kernel::wait_for_all_ranks);
            let mut rng = rng(seed);
            let order: Vec<usize> = (0..9).map(|_| rng.next_u32() as usize % kernels.len()).collect();
            let references: Vec<&Kernel> = kernels.iter().collect();
            interpret::run_in_order(&references, &order, Tiling { tiles, tiles_per_phase }, &mut rng)
        })
        .unwrap();
}

/// The slots of every message format, the flags and the counters of a shared arena do not overlap, and have space for
/// the kernels that [`Carrier::for_schedule`] selects.
#[test]
fn shared_arena_has_space_for_kernels_of_its_calls() {
    let mut layouts = 0;
    for ranks in [2, 3, 8] {
        let shared = SharedArena::for_calls(ranks, 64 << 20);
        for (algorithm, collective) in pairs() {
            for elements in [1, 1 << 10, 16 << 10, 2 << 20] {
                let case = Case { channels: 8, hosts: 1, ..Case::plain(algorithm, collective, ranks, elements) };
                let one_sided =
                    matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Direct | Algorithm::Ring);
                let Some(schedule) =
                    case.schedule().filter(|_| one_sided && 4 * elements * u64::from(ranks) <= 64 << 20)
                else {
                    continue;
                };
                let carrier = Carrier::for_schedule(schedule.header()).unwrap();
                let kernel = Kernel::new(&schedule, DataType::F32, carrier).unwrap();
                let arena = kernel.arena_in(&shared, kernel.shape(128));
                // A rank receives the whole input of all others in one step.
                if algorithm == Algorithm::OneShot && carrier == Carrier::Flags && ranks > 2 {
                    continue;
                }
                let arena =
                    arena.unwrap_or_else(|error| panic!("{algorithm} {collective} {ranks} {elements}: {error}"));
                assert!(arena.counters * 8 <= arena.ready && arena.ready + u64::from(ranks) * 8 <= arena.ticks);
                assert!(arena.ticks + arena.counters * u64::from(ranks) * 8 <= arena.slots);
                assert!(arena.slots + 2 * arena.slot_bytes <= arena.bytes && arena.slots.is_multiple_of(512));
                assert!(arena.slot_bytes.is_multiple_of(512) && kernel.slot_bytes <= arena.slot_bytes);
                layouts += 1;
            }
        }
    }
    assert!(layouts > 50, "{layouts}");
}

#[test]
fn every_algorithm_computes_expected_result() {
    for (algorithm, collective) in pairs() {
        let mut ran = 0;
        for ranks in [2, 3, 4, 8] {
            for carrier in Carrier::ALL {
                let case = Case { channels: 2, ..Case::plain(algorithm, collective, ranks, 16) };
                if let Some(kernel) = case.kernel(carrier) {
                    ran += 1;
                    let tiling = Tiling { tiles: 3, tiles_per_phase: 2 };
                    interpret::run(&kernel, 3, tiling, &mut rng(7))
                        .unwrap_or_else(|error| panic!("{case:?} {carrier:?}: {error}"));
                }
            }
        }
        assert!(ran > 0, "{algorithm} {collective}");
    }
}

#[test]
fn ranks_with_equal_roles_share_code() {
    for (algorithm, collective) in [
        (Algorithm::OneShot, Collective::AllReduce),
        (Algorithm::TwoShot, Collective::AllReduce),
        (Algorithm::Ring, Collective::AllReduce),
        (Algorithm::Direct, Collective::AllGather),
        (Algorithm::Direct, Collective::ReduceScatter),
        (Algorithm::Direct, Collective::AllToAll),
    ] {
        for carrier in Carrier::ALL {
            let case =
                Case { channels: 4, chunk: Some(1024), hosts: 1, ..Case::plain(algorithm, collective, 8, 16 << 10) };
            let kernel = case.kernel(carrier).unwrap();
            // The first loop may need a body that differs from that of the later loops.
            assert!(kernel.bodies.len() <= 2, "{algorithm} {collective} {carrier:?}: {}", kernel.bodies.len());
            let rows = &kernel.rounds[0].rows;
            assert!(rows.iter().all(|row| row.0 == rows[0].0), "{algorithm} {collective} {carrier:?}");
        }
    }
}

#[test]
fn tiles_share_phases_unless_values_cross_them() {
    for (algorithm, collective, expected) in [
        (Algorithm::TwoShot, Collective::AllReduce, Tiles::Grouped),
        (Algorithm::OneShot, Collective::AllReduce, Tiles::OneByOne),
        (Algorithm::Ring, Collective::AllReduce, Tiles::Grouped),
        (Algorithm::Direct, Collective::ReduceScatter, Tiles::OneByOne),
        (Algorithm::Direct, Collective::AllToAll, Tiles::Grouped),
        (Algorithm::Ring, Collective::AllGather, Tiles::Grouped),
        // In each step, a rank sends the sum that it computed in the previous step.
        (Algorithm::RecursiveDoubling, Collective::AllReduce, Tiles::OneByOne),
    ] {
        for buffers in [BufferUse::OutOfPlace, BufferUse::InPlace] {
            let case = Case { buffers, ..Case::plain(algorithm, collective, 4, 1024) };
            let Some(kernel) = case.kernel(Carrier::Flags) else { continue };
            assert_eq!(kernel.phases(), expected, "{algorithm} {collective} {buffers:?}");
            assert_eq!(case.kernel(Carrier::Packets).unwrap().phases(), Tiles::OneByOne);
        }
    }
}

#[test]
fn slots_do_not_overlap() {
    let kernel = Case::plain(Algorithm::TwoShot, Collective::AllReduce, 8, 1001).kernel(Carrier::Packets).unwrap();
    let mut slots: Vec<(u32, u64, u64)> =
        kernel.slots.iter().zip(&kernel.receivers).map(|(&(at, words), &to)| (to, at, words)).collect();
    slots.sort_unstable();
    assert!(slots.windows(2).all(|two| two[0].0 != two[1].0 || two[0].1 + two[0].2 * 16 <= two[1].1));
}

#[test]
#[ignore = "writes texts to a folder, to be looked at"]
fn write_kernel_sources() {
    let folder = std::env::var("KERNEL_TEXTS").unwrap();
    for (algorithm, collective) in pairs() {
        for carrier in Carrier::ALL {
            let case = Case { hosts: 1, ..Case::plain(algorithm, collective, 8, 1024) };
            let Some(kernel) = case.kernel(carrier) else { continue };
            let shape = GridShape { threads: 256, split: 4, unroll: 2, tiles_per_phase: 1 };
            let addresses = [Addresses::default(); 8];
            let (parameters, table) = kernel.parameters(3, shape, &addresses, super::WaitMonitor::default());
            println!(
                "{algorithm} {collective} {}: {} lines, {} bodies, {} parameters, table {:?}",
                carrier.name(),
                kernel.lines(),
                kernel.bodies.len(),
                parameters.len(),
                table.map(|table| table.len())
            );
            let text = kernel
                .text(ReduceOp::Sum, shape.variant(kernel.blocks(shape), Alignment::Vectors, Devices::Own), 90)
                .unwrap();
            std::fs::write(format!("{folder}/{algorithm}-{collective}-{}.cu", carrier.name()), text).unwrap();
        }
    }
}

/// Compiles a source. Returns false if NVRTC is missing, and panics on any other error.
fn compiles(text: &str, arch: u32, name: &str) -> bool {
    match compile::compile_uncached(text, crate::cuda::Arch::new(arch), &["--std=c++17"]) {
        Ok(_) => true,
        Err(CompileError::Library(LibraryError::Missing { .. })) => false,
        Err(error) => panic!("{name} for sm_{arch}: {error}"),
    }
}

/// Prints a message that nothing was compiled. Panics if REQUIRE_NVRTC is set.
fn skipped() {
    assert!(std::env::var_os("REQUIRE_NVRTC").is_none(), "NVRTC is required and not there");
    println!("skipped: NVRTC is not on this machine (pip install 'nvidia-cuda-nvrtc==13.0.*')");
}

#[test]
fn every_algorithm_compiles() {
    let cases: Vec<(Algorithm, Carrier, u32)> = algorithms()
        .flat_map(|a| Carrier::ALL.into_iter().flat_map(move |c| [80, 90, 100].map(|arch| (a, c, arch))))
        .collect();
    let compiled = cases.par_iter().all(|&(algorithm, carrier, arch)| {
        let collective = algorithm.collectives()[0];
        // Differences between GPU architectures are in the prelude, so kernels with two ranks cover them if the
        // algorithm supports two.
        let build = |ranks| Case { hosts: 2, ..Case::plain(algorithm, collective, ranks, 1024) }.kernel(carrier);
        let two_ranks = if arch == 90 { None } else { build(2) };
        let kernel = two_ranks.or_else(|| build(4)).unwrap();
        let shape = GridShape { threads: 256, split: 4, unroll: 1, tiles_per_phase: 1 };
        let variant = shape.variant(kernel.blocks(shape), Alignment::Vectors, Devices::Own);
        compiles(&kernel.text(ReduceOp::Sum, variant, arch).unwrap(), arch, &format!("{algorithm} {}", carrier.name()))
    });
    if !compiled {
        skipped();
    }
}

#[test]
fn every_type_compiles() {
    let compiled = DataType::ALL.par_iter().enumerate().all(|(i, &dtype)| {
        let schedule = Case::plain(Algorithm::TwoShot, Collective::AllReduce, 2, 1024).schedule().unwrap();
        let kernel = Kernel::new(&schedule, dtype, Carrier::ALL[i % 3]).unwrap();
        let shape = GridShape { threads: 256, split: 1, unroll: 1, tiles_per_phase: 1 };
        let variant = shape.variant(1, Alignment::Bytes, Devices::Shared);
        compiles(&kernel.text(ReduceOp::ALL[i % 4], variant, 90).unwrap(), 90, dtype.name())
    });
    if !compiled {
        skipped();
    }
}

#[test]
fn unsupported_data_type_is_rejected() {
    let schedule = Case::plain(Algorithm::TwoShot, Collective::AllReduce, 2, 1024).schedule().unwrap();
    let kernel = Kernel::new(&schedule, DataType::F8e4m3, Carrier::Packets).unwrap();
    let shape = GridShape { threads: 256, split: 1, unroll: 1, tiles_per_phase: 1 };
    let variant = shape.variant(1, Alignment::Vectors, Devices::Own);
    assert!(matches!(kernel.text(ReduceOp::Sum, variant, 80), Err(KernelError::NoSuchType { needed: 89, .. })));
    assert!(kernel.text(ReduceOp::Sum, variant, 89).is_ok());
}

#[test]
fn shapes_fit_the_work() {
    for elements in [1, 100, 10_000, 1 << 20, 1 << 26] {
        for carrier in Carrier::ALL {
            let kernel = Case::plain(Algorithm::TwoShot, Collective::AllReduce, 8, elements).kernel(carrier).unwrap();
            for max_blocks in [1, 16, 128] {
                let shape = kernel.shape(max_blocks);
                assert!(kernel.blocks(shape) <= 2 * max_blocks, "{elements} {carrier:?} {max_blocks}: {shape:?}");
                assert!((64..=1024).contains(&shape.threads) && shape.threads.is_multiple_of(32));
                assert!(kernel.tiles(shape) >= u64::from(shape.split));
            }
        }
    }
}
