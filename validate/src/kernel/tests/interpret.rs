//! Interpreter that runs the lines of a kernel on the CPU in random order, within the limits that its waits set. A
//! randomly selected block runs one step at a time. A write to a peer arrives at any later time, in any order, but
//! before the next flush or the end of the kernel. Ranks may enter the next call while others are in the previous one.
//! A chunk has one element for each of a few tiles. A block processes tiles and phases one by one or in groups, in the
//! order of the generated text.

use proptest::prelude::*;
use proptest::test_runner::TestRng;
use rustc_hash::FxHashMap;

use fabricast_sim::schedule::{BufferUse, Collective};

use super::super::body::{CodeLine, Operand};
use super::super::phases::{LineRange, Tiles, line_ranges};
use super::super::program::{UserChunk, Value};
use super::super::{Carrier, Kernel};

/// Value of memory that was not written yet.
const POISON: i64 = i64::MIN / 3;

/// Destination of a write to another rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Target {
    /// A tile of a slot: receiver, message format, parity of the call, offset, index of the tile.
    Slot(u32, Carrier, u64, u64, usize),
    /// A tile of an output chunk: rank, chunk, index of the tile.
    Output(u32, u32, usize),
}

/// Write that has not arrived yet.
#[derive(Clone, Copy, Debug)]
struct PendingWrite {
    target: Target,
    value: i64,
    flag: u64,
}

/// State of a thread block.
#[derive(Clone, Debug, Default)]
struct Block {
    /// Number of steps that the block completed in this call.
    next_step: usize,
    /// True if all ranks that must enter before this rank begins have entered.
    entered: bool,
    done: bool,
    values: FxHashMap<(usize, usize, Value), i64>,
    /// Writes of the block that have not arrived yet.
    in_flight: Vec<PendingWrite>,
}

/// Number of tiles of each chunk, and number of tiles that share a phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiling {
    pub(super) tiles: usize,
    pub(super) tiles_per_phase: usize,
}

/// A line in the execution order of a block.
#[derive(Clone, Copy, Debug)]
struct Step {
    round: usize,
    line: usize,
    /// Index of the tile; for a line that runs once for several tiles, the index of the first one.
    tile: usize,
    /// Number of tile groups that the block has begun in the call before this one.
    item: u64,
}

/// Returns the lines of a block in execution order.
fn steps(kernel: &Kernel, rank: u32, channel: usize, tiling: Tiling) -> Vec<Step> {
    let (mut steps, mut item) = (Vec::new(), 0);
    let mine = kernel.rounds.iter().enumerate().filter(|(_, round)| usize::from(round.channel) == channel);
    for (i, round) in mine {
        let lines = &kernel.bodies[round.rows[rank as usize].0 as usize];
        for first in (0..tiling.tiles).step_by(tiling.tiles_per_phase) {
            let tiles = first..tiling.tiles.min(first + tiling.tiles_per_phase);
            for line_range in line_ranges(lines, kernel.tiles) {
                match line_range {
                    LineRange::Once(line) => steps.push(Step { round: i, line, tile: first, item }),
                    LineRange::EachTile(range) => steps.extend(
                        tiles
                            .clone()
                            .flat_map(|tile| range.clone().map(move |line| Step { round: i, line, tile, item })),
                    ),
                }
            }
            item += 1;
        }
    }
    steps
}

/// Kernel with the steps of its blocks.
struct Program<'a> {
    kernel: &'a Kernel,
    /// Steps of every block of every rank, in execution order: indexed by rank, then by channel.
    steps: Vec<Vec<Vec<Step>>>,
    /// Number of flush counter values of a call.
    ticks_per_call: u64,
}

struct Machine<'a> {
    programs: Vec<Program<'a>>,
    /// Index of the program of every call; the first entry is unused.
    order: Vec<usize>,
    /// Distance from the flush counters of a call to those of the next call.
    ticks_per_call: u64,
    tiling: Tiling,
    /// Number of the current call of each rank, from 1; 0 before the first call.
    calls: Vec<u64>,
    blocks: Vec<Vec<Block>>,
    inputs: Vec<Vec<Vec<i64>>>,
    outputs: Vec<Vec<i64>>,
    slots: FxHashMap<Target, (i64, u64)>,
    ready: FxHashMap<(u32, u32), u64>,
    ticks: FxHashMap<(u32, u32, u32), u64>,
}

/// Expected value of an element of a rank's output. `None` if the collective defines no output there.
fn expected(kernel: &Kernel, inputs: &[Vec<i64>], rank: u32, chunk: u32, index: impl Fn(u32) -> usize) -> Option<i64> {
    let call = &kernel.header.call;
    let (chunks, n) = (kernel.header.layout.chunks(), call.ranks);
    let block = (chunks / n).max(1);
    let input_value = |rank: u32, chunk: u32| Some(inputs[rank as usize][index(chunk)]);
    let sum = || Some(inputs.iter().map(|input| input[index(chunk)]).fold(0i64, i64::wrapping_add));
    match call.collective {
        Collective::AllReduce => sum(),
        Collective::ReduceScatter if chunk / block == rank => sum(),
        Collective::Reduce if rank == call.root.0 => sum(),
        Collective::AllGather => input_value(chunk / block, chunk),
        Collective::Gather if rank == call.root.0 => input_value(chunk / block, chunk),
        Collective::Broadcast => input_value(call.root.0, chunk),
        Collective::Scatter if chunk / block == rank => input_value(call.root.0, chunk),
        Collective::AllToAll => input_value(chunk / block, rank * block + chunk % block),
        Collective::SendRecv => input_value((rank + n - 1) % n, chunk),
        Collective::AllToAllV => {
            let segment = kernel.header.layout.segment_index(chunk) as u32;
            if segment % n == rank && kernel.cut.len(chunk) > 0 { input_value(segment / n, chunk) } else { None }
        }
        _ => None,
    }
}

impl Machine<'_> {
    /// Kernel of the current call of a rank.
    fn kernel(&self, rank: u32) -> &Kernel {
        self.programs[self.order[self.calls[rank as usize] as usize]].kernel
    }

    fn element(&self, chunk: u32, tile: usize) -> usize {
        chunk as usize * self.tiling.tiles + tile
    }

    fn enter(&mut self, rank: u32) {
        let call = self.calls[rank as usize] + 1;
        self.calls[rank as usize] = call;
        let input = &self.inputs[call as usize][rank as usize];
        let kernel = self.programs[self.order[call as usize]].kernel;
        self.outputs[rank as usize] = match kernel.header.call.buffers {
            BufferUse::InPlace => input.clone(),
            BufferUse::OutOfPlace => vec![POISON; input.len()],
        };
        self.blocks[rank as usize] = vec![Block::default(); usize::from(kernel.header.channels.max(1))];
        for peer in 0..kernel.ranks() {
            if kernel.notify_on_entry[rank as usize] >> peer & 1 == 1 {
                self.ready.insert((peer, rank), call);
            }
        }
    }

    fn check(&self, rank: u32) -> Result<(), TestCaseError> {
        let call = self.calls[rank as usize];
        let kernel = self.kernel(rank);
        for chunk in 0..kernel.header.layout.chunks() {
            for tile in 0..self.tiling.tiles {
                let index = |chunk: u32| self.element(chunk, tile);
                if let Some(expected) = expected(kernel, &self.inputs[call as usize], rank, chunk, index) {
                    let actual = self.outputs[rank as usize][index(chunk)];
                    prop_assert_eq!(actual, expected, "call {} rank {} chunk {} tile {}", call, rank, chunk, tile);
                }
            }
        }
        Ok(())
    }

    fn all_entered(&self, rank: u32, set: u64) -> bool {
        let call = self.calls[rank as usize];
        (0..self.kernel(rank).ranks())
            .filter(|peer| set >> peer & 1 == 1)
            .all(|peer| self.ready.get(&(rank, peer)).is_some_and(|&entered| entered >= call))
    }

    fn arrive(&mut self, write: PendingWrite) {
        let PendingWrite { target, value, flag } = write;
        match target {
            Target::Output(rank, chunk, tile) => {
                let index = self.element(chunk, tile);
                self.outputs[rank as usize][index] = value;
            }
            slot @ Target::Slot(..) => {
                self.slots.insert(slot, (value, flag));
            }
        }
    }

    /// Runs one step of a block. Returns false if the step must wait.
    fn step(&mut self, rank: u32, number: usize) -> bool {
        let call = self.calls[rank as usize];
        let program = self.order[call as usize];
        let mut block = std::mem::take(&mut self.blocks[rank as usize][number]);
        let moved = self.try_step(program, rank, number, call, &mut block);
        self.blocks[rank as usize][number] = block;
        moved
    }

    fn try_step(&mut self, program: usize, rank: u32, number: usize, call: u64, block: &mut Block) -> bool {
        let Program { kernel, .. } = self.programs[program];
        if !block.entered {
            block.entered = self.all_entered(rank, kernel.wait_before_start[rank as usize]);
            return block.entered;
        }
        if let Some(&Step { round: i, line, tile, item }) =
            self.programs[program].steps[rank as usize][number].get(block.next_step)
        {
            let (body, operands) = &kernel.rounds[i].rows[rank as usize];
            let ticks_per_call = self.ticks_per_call;
            let operand = |i: u32| operands[i as usize];
            let value = |block: &Block, value: Value| block.values.get(&(i, tile, value)).copied().unwrap();
            let tick = |flush: u32| call * ticks_per_call + item * u64::from(kernel.flushes) + u64::from(flush) + 1;
            let slot = |i: u32| match operand(i) {
                Operand::Slot { message } => {
                    let (receiver, offset) = (kernel.receivers[message as usize], kernel.slots[message as usize].0);
                    Target::Slot(receiver, kernel.carrier, call & 1, offset, tile)
                }
                other => panic!("{other:?} is no slot"),
            };
            match kernel.bodies[*body as usize][line] {
                CodeLine::Load { value, operand: at } => {
                    let Operand::User { rank: owner, place } = operand(at) else { panic!("no place") };
                    assert_eq!(owner, rank, "a peer's memory is read");
                    let loaded = match place {
                        UserChunk::Input(chunk) => self.inputs[call as usize][rank as usize][self.element(chunk, tile)],
                        UserChunk::Output(chunk) => self.outputs[rank as usize][self.element(chunk, tile)],
                    };
                    block.values.insert((i, tile, value), loaded);
                }
                CodeLine::Store { value: of, operand: at } => {
                    let Operand::User { rank: owner, place: UserChunk::Output(chunk) } = operand(at) else {
                        panic!("no output")
                    };
                    let target = Target::Output(owner, chunk, tile);
                    let stored = PendingWrite { target, value: value(block, of), flag: 0 };
                    if owner == rank { self.arrive(stored) } else { block.in_flight.push(stored) }
                }
                CodeLine::Send { value: of, operand: at } => {
                    let write = PendingWrite { target: slot(at), value: value(block, of), flag: call };
                    block.in_flight.push(write);
                }
                CodeLine::Receive { value: into, operand: at } => {
                    let arrived = self.slots.get(&slot(at)).copied();
                    let received = match (kernel.carrier, arrived) {
                        (Carrier::Flags, arrived) => arrived.map_or(POISON, |arrived| arrived.0),
                        (_, Some((received, flag))) if flag == call => received,
                        _ => return false,
                    };
                    block.values.insert((i, tile, into), received);
                }
                CodeLine::Reduce { value: into, left, right } => {
                    let sum = value(block, left).wrapping_add(value(block, right));
                    block.values.insert((i, tile, into), sum);
                }
                CodeLine::Token { value } => {
                    block.values.insert((i, tile, value), 0);
                }
                CodeLine::Flush { flush, operand: at, count } => {
                    for write in std::mem::take(&mut block.in_flight) {
                        self.arrive(write);
                    }
                    for at in at..at + count {
                        let Operand::Peer { rank: peer } = operand(at) else { panic!("no peer") };
                        self.ticks.insert((peer, number as u32, rank), tick(flush));
                    }
                }
                CodeLine::Wait { operand: at, count } => {
                    let is_here = |at: u32| {
                        let Operand::Flushed { rank: peer, flush } = operand(at) else { panic!("no flush") };
                        self.ticks.get(&(rank, number as u32, peer)).is_some_and(|&reached| reached >= tick(flush))
                    };
                    if !(at..at + count).all(is_here) {
                        return false;
                    }
                }
            }
            block.next_step += 1;
            return true;
        }
        if number == 0 && !self.all_entered(rank, kernel.wait_before_exit[rank as usize]) {
            return false;
        }
        for write in std::mem::take(&mut block.in_flight) {
            self.arrive(write);
        }
        block.done = true;
        true
    }
}

/// Runs `calls` calls of a kernel on an arena of its own, each with new inputs, and checks the outputs.
pub(super) fn run(kernel: &Kernel, calls: u64, tiling: Tiling, rng: &mut TestRng) -> Result<(), TestCaseError> {
    run_in_order(&[kernel], &vec![0; calls as usize + 1], tiling, rng)
}

/// Runs calls of several kernels on a shared arena, each with new inputs, and checks the outputs. `order`: index of the
/// kernel of every call; the first entry is unused.
pub(super) fn run_in_order(
    kernels: &[&Kernel],
    order: &[usize],
    tiling: Tiling,
    rng: &mut TestRng,
) -> Result<(), TestCaseError> {
    let (ranks, calls) = (kernels[0].ranks(), order.len() as u64 - 1);
    let chunks = kernels.iter().map(|kernel| kernel.header.layout.chunks()).max().unwrap_or(1) as usize;
    let elements = chunks * tiling.tiles;
    let mut fresh = || (0..ranks).map(|_| (0..elements).map(|_| i64::from(rng.next_u32())).collect()).collect();
    let inputs: Vec<Vec<Vec<i64>>> = (0..=calls).map(|_| fresh()).collect();
    let program = |kernel: &&'_ Kernel| {
        // Without grouped tiles, each group has a single tile.
        let tiling = if kernel.tiles == Tiles::OneByOne { Tiling { tiles_per_phase: 1, ..tiling } } else { tiling };
        let blocks = usize::from(kernel.header.channels.max(1));
        let of_rank = |rank| (0..blocks).map(|channel| steps(kernel, rank, channel, tiling)).collect();
        let steps: Vec<Vec<Vec<Step>>> = (0..ranks).map(of_rank).collect();
        let last = steps.iter().flatten().filter_map(|steps| steps.last());
        let items = last.map(|step| step.item + 1).max().unwrap_or(1);
        (steps, items * u64::from(kernel.flushes))
    };
    let programs: Vec<Program<'_>> = kernels
        .iter()
        .map(|kernel| {
            let (steps, ticks_per_call) = program(kernel);
            Program { kernel, steps, ticks_per_call }
        })
        .collect();
    let ticks_per_call = programs.iter().map(|program| program.ticks_per_call).max().unwrap_or(1);
    let mut machine = Machine {
        programs,
        order: order.to_vec(),
        ticks_per_call,
        tiling,
        calls: vec![0; ranks as usize],
        blocks: vec![Vec::new(); ranks as usize],
        inputs,
        outputs: vec![vec![POISON; elements]; ranks as usize],
        slots: FxHashMap::default(),
        ready: FxHashMap::default(),
        ticks: FxHashMap::default(),
    };
    // Some ranks run slower, so that others are ahead of them.
    let slow = rng.next_u32();
    let mut idle = 0;
    loop {
        let rank = rng.next_u32() % ranks;
        if slow >> rank & 1 == 1 && !rng.next_u32().is_multiple_of(8) {
            continue;
        }
        if machine.blocks[rank as usize].iter().all(|block| block.done) {
            if machine.calls[rank as usize] > 0 {
                machine.check(rank)?;
            }
            if machine.calls[rank as usize] < calls {
                machine.enter(rank);
                idle = 0;
            } else if machine.calls.iter().all(|&done| done == calls)
                && machine.blocks.iter().flatten().all(|block| block.done)
            {
                break;
            }
            continue;
        }
        let number = rng.next_u32() as usize % machine.blocks[rank as usize].len();
        let flying = machine.blocks[rank as usize][number].in_flight.len();
        if flying > 0 && rng.next_u32().is_multiple_of(2) {
            let index = rng.next_u32() as usize % flying;
            let write = machine.blocks[rank as usize][number].in_flight.swap_remove(index);
            machine.arrive(write);
            continue;
        }
        if !machine.blocks[rank as usize][number].done && machine.step(rank, number) {
            idle = 0;
        } else {
            idle += 1;
            prop_assert!(idle < 200_000, "nobody gets on");
        }
    }
    for rank in 0..ranks {
        machine.check(rank)?;
    }
    Ok(())
}
