//! Tests that run the steps of every algorithm on the CPU, byte by byte, in random order: ranks are up to one call
//! ahead of each other, and puts may arrive late. The expected result depends only on the call.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustc_hash::FxHashMap;

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};

use super::*;

#[derive(Clone, Copy, Debug)]
struct Case {
    algorithm: Algorithm,
    collective: Collective,
    ranks: u32,
    bytes: u64,
    channels: u16,
    buffers: BufferUse,
    root: u32,
}

fn schedule(case: Case) -> Option<Schedule> {
    let n = u64::from(case.ranks);
    let rooted = matches!(
        case.collective,
        Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
    );
    let call = Call {
        collective: case.collective,
        bytes: Bytes(if case.collective == Collective::Barrier { 0 } else { case.bytes * n }),
        ranks: case.ranks,
        root: Rank(if rooted { case.root % case.ranks } else { 0 }),
        buffers: case.buffers,
    };
    let ranks_per_node = if case.ranks.is_multiple_of(2) { case.ranks / 2 } else { case.ranks };
    let shape = Shape {
        channels: case.channels,
        ranks_per_node,
        ranks_per_team: if case.algorithm == Algorithm::NvlsTree { case.ranks / 2 } else { case.ranks },
        ..Shape::new(call, Protocol::Symmetric)
    };
    Schedule::build(generator(case.algorithm, &shape).ok()?.as_ref()).ok()
}

/// Expected byte at `index` of a rank's output. `None` if the collective defines no output there.
fn expected(call: &Call, input: &dyn Fn(u32, u64) -> u8, rank: u32, index: u64) -> Option<u8> {
    let n = call.ranks;
    let block = (call.bytes.0 / u64::from(n)).max(1);
    let owner = (index / block) as u32;
    let sum = || Some((0..n).fold(0u8, |sum, from| sum.wrapping_add(input(from, index))));
    match call.collective {
        Collective::AllReduce => sum(),
        Collective::ReduceScatter if owner == rank => sum(),
        Collective::Reduce if rank == call.root.0 => sum(),
        Collective::AllGather => Some(input(owner, index)),
        Collective::Gather if rank == call.root.0 => Some(input(owner, index)),
        Collective::Broadcast => Some(input(call.root.0, index)),
        Collective::Scatter if owner == rank => Some(input(call.root.0, index)),
        Collective::AllToAll => Some(input(owner, u64::from(rank) * block + index % block)),
        Collective::SendRecv => Some(input((rank + n - 1) % n, index)),
        _ => None,
    }
}

const POISON: u8 = 0xab;
const CALLS: u32 = 3;

/// Memory and progress of all ranks, with messages that have not arrived yet.
struct Machine<'a> {
    steps: &'a Steps,
    call: Call,
    calls: Vec<u32>,
    next: Vec<usize>,
    input: Vec<Vec<u8>>,
    output: Vec<Vec<u8>>,
    slots: Vec<Vec<u8>>,
    scratch: Vec<Vec<u8>>,
    /// For each pair of sender and receiver, true if the receiver has entered the call.
    ready: FxHashMap<(usize, usize), bool>,
    /// For each receiver and message, true if the message has arrived.
    come: FxHashMap<(usize, u32), bool>,
    flying: Vec<(usize, u32, Location, Vec<u8>)>,
}

fn content(call: u32, rank: u32, index: u64) -> u8 {
    (u64::from(call) * 101 + u64::from(rank) * 37 + index * 13 + index / 256) as u8
}

impl Machine<'_> {
    fn memory(&mut self, rank: usize, spot: Location) -> (&mut Vec<u8>, usize) {
        match spot {
            Location::User(UserBuffer::Input, at) if self.call.buffers == BufferUse::OutOfPlace => {
                (&mut self.input[rank], at.0 as usize)
            }
            Location::User(_, at) => (&mut self.output[rank], at.0 as usize),
            Location::Slot(at) => (&mut self.slots[rank], at.0 as usize),
            Location::Scratch(at) => (&mut self.scratch[rank], at.0 as usize),
        }
    }

    fn read(&mut self, rank: usize, spot: Location, bytes: Bytes) -> Vec<u8> {
        let (memory, offset) = self.memory(rank, spot);
        memory[offset..offset + bytes.0 as usize].to_vec()
    }

    fn write(&mut self, rank: usize, spot: Location, content: &[u8]) {
        let (memory, offset) = self.memory(rank, spot);
        memory[offset..offset + content.len()].copy_from_slice(content);
    }

    fn enter(&mut self, rank: usize) {
        let call = self.calls[rank];
        let fresh: Vec<u8> = (0..self.call.bytes.0).map(|at| content(call, rank as u32, at)).collect();
        self.output[rank] =
            if self.call.buffers == BufferUse::InPlace { fresh.clone() } else { vec![POISON; fresh.len()] };
        self.input[rank] = fresh;
        for sender in self.steps.senders(rank) {
            assert_eq!(self.ready.insert((sender, rank), true), Some(false));
        }
    }

    /// Runs one step of a rank, unless the step must wait.
    fn step(&mut self, rank: usize) -> Result<(), TestCaseError> {
        let receivers = self.steps.receivers(rank);
        let steps = &self.steps.by_rank[rank];
        if self.next[rank] == 0 {
            self.enter(rank);
            self.next[rank] = 1;
        } else if self.next[rank] == 1 {
            if receivers.iter().all(|&to| self.ready[&(rank, to)]) {
                receivers.iter().for_each(|&to| _ = self.ready.insert((rank, to), false));
                self.next[rank] = 2;
            }
        } else if let Some(&step) = steps.get(self.next[rank] - 2) {
            match step {
                Step::Send { message, to, from, destination: at, bytes } => {
                    let content = self.read(rank, from, bytes);
                    self.flying.push((to as usize, message, at, content));
                }
                Step::Await { message, .. } => {
                    if !self.come.insert((rank, message), false).unwrap_or(false) {
                        return Ok(());
                    }
                }
                Step::Copy { from, to, bytes } => {
                    let content = self.read(rank, from, bytes);
                    self.write(rank, to, &content);
                }
                Step::Reduce { left, right, to, bytes } => {
                    let (left, right) = (self.read(rank, left, bytes), self.read(rank, right, bytes));
                    let sums: Vec<u8> = left.iter().zip(right).map(|(a, b)| a.wrapping_add(b)).collect();
                    self.write(rank, to, &sums);
                }
            }
            self.next[rank] += 1;
        } else {
            self.check(rank)?;
            self.next[rank] = 0;
            self.calls[rank] += 1;
        }
        Ok(())
    }

    fn check(&self, rank: usize) -> Result<(), TestCaseError> {
        let call = self.calls[rank];
        for index in 0..self.call.bytes.0 {
            let input = |rank: u32, index: u64| content(call, rank, index);
            if let Some(expected) = expected(&self.call, &input, rank as u32, index) {
                let actual = self.output[rank][index as usize];
                prop_assert_eq!(actual, expected, "call {} rank {} byte {}", call, rank, index);
            }
        }
        Ok(())
    }
}

fn run(case: Case, mut random: impl FnMut(usize) -> usize) -> Result<bool, TestCaseError> {
    let Some(schedule) = schedule(case) else { return Ok(false) };
    let steps = Steps::new(&schedule, DataType::U8).unwrap();
    let ranks = case.ranks as usize;
    let allocate = |bytes: u64| vec![vec![POISON; bytes as usize]; ranks];
    let call = schedule.header().call;
    let mut machine = Machine {
        steps: &steps,
        call,
        calls: vec![0; ranks],
        next: vec![0; ranks],
        input: allocate(call.bytes.0),
        output: allocate(call.bytes.0),
        slots: allocate(steps.slots.0),
        scratch: allocate(steps.scratch.0),
        ready: (0..ranks).flat_map(|sender| (0..ranks).map(move |receiver| ((sender, receiver), false))).collect(),
        come: FxHashMap::default(),
        flying: Vec::new(),
    };
    let mut turns = 0;
    while machine.calls.iter().any(|&calls| calls < CALLS) {
        turns += 1;
        prop_assert!(turns < 2_000_000, "it hangs");
        if !machine.flying.is_empty() && random(3) == 0 {
            let pick = random(machine.flying.len());
            let (to, message, at, content) = machine.flying.swap_remove(pick);
            machine.write(to, at, &content);
            prop_assert_eq!(machine.come.insert((to, message), true).unwrap_or(false), false, "a signal was lost");
        }
        let rank = random(ranks);
        if machine.calls[rank] < CALLS {
            machine.step(rank)?;
        }
    }
    Ok(true)
}

#[test]
fn every_algorithm_computes_expected_result() {
    // Kernels cannot run reduction in the switches of a network.
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.needs_network_reduction()) {
        for &collective in algorithm.collectives() {
            let mut ran = 0;
            for ranks in [2, 3, 4, 8] {
                for buffers in [BufferUse::OutOfPlace, BufferUse::InPlace] {
                    let case = Case { algorithm, collective, ranks, bytes: 40, channels: 2, buffers, root: 1 };
                    let mut state = 1u64;
                    let random = move |below: usize| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        (state >> 33) as usize % below
                    };
                    ran += u32::from(run(case, random).unwrap_or_else(|error| panic!("{case:?}: {error}")));
                }
            }
            assert!(ran > 0 || collective == Collective::AllToAllV, "{algorithm} {collective}");
        }
    }
}

#[test]
fn any_execution_order_computes_expected_result() {
    let pairs: Vec<(Algorithm, Collective)> =
        Algorithm::ALL.iter().flat_map(|a| a.collectives().iter().map(|c| (*a, *c))).collect();
    let pairs: Vec<_> = pairs.into_iter().filter(|(algorithm, _)| !algorithm.needs_network_reduction()).collect();
    let cases = (prop::sample::select(pairs), 1u32..7, 1u64..90, 1u16..4, any::<bool>(), 0u32..7, any::<u64>());
    let config = Config { cases: 300, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&cases, |((algorithm, collective), ranks, bytes, channels, in_place, root, seed)| {
            let buffers = if in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
            let mut state = seed | 1;
            let random = move |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % below
            };
            run(Case { algorithm, collective, ranks, bytes, channels, buffers, root }, random).map(|_| ())
        })
        .unwrap();
}

#[test]
fn gathered_data_needs_no_slots() {
    let gather = |collective| Case {
        algorithm: Algorithm::Direct,
        collective,
        ranks: 4,
        bytes: 64,
        channels: 1,
        buffers: BufferUse::OutOfPlace,
        root: 0,
    };
    for collective in [Collective::AllGather, Collective::AllToAll] {
        let steps = Steps::new(&schedule(gather(collective)).unwrap(), DataType::F32).unwrap();
        assert_eq!((steps.slots, steps.scratch), (Bytes(0), Bytes(0)), "{collective}");
    }
}

#[test]
fn memory_accessed_by_receiver_is_written_via_slots() {
    let two_shot = |buffers| {
        let (algorithm, collective) = (Algorithm::TwoShot, Collective::AllReduce);
        let case = Case { algorithm, collective, ranks: 4, bytes: 64, channels: 1, buffers, root: 0 };
        let steps = Steps::new(&schedule(case).unwrap(), DataType::F32).unwrap();
        let is_straight = |step: &&Step| matches!(step, Step::Send { destination: Location::User(..), .. });
        steps.by_rank.iter().flatten().filter(is_straight).count()
    };
    // In place, chunks that are received back are those that were sent before. Out of place, the destination was not
    // accessed before.
    assert_eq!(two_shot(BufferUse::InPlace), 0);
    assert_eq!(two_shot(BufferUse::OutOfPlace), 12);
}
