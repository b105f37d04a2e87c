//! Folds equal thread blocks before lowering: lowers the first block and multiplies its shared traffic by the number of
//! blocks.
//!
//! Most algorithms do the same on every thread block, with other chunks of the same sizes. If that holds run for run,
//! corresponding runs of all blocks wait for corresponding runs, use the same routes, cost their block the same and
//! compete with the same traffic: that of their own channel on the channel's capacity, that of all channels on every
//! other capacity. They therefore start, flow and end at the same times, by the argument of [`crate::fold`]. Only one
//! block's channels (one; two if blocks are split) are lowered, and their use of shared capacities is multiplied by the
//! number of blocks. This saves the lowering, which dominates the simulation time of an all-to-all on 32 channels.
//!
//! If ranks are rotations of each other ([`Symmetry`]), one representative is examined and its program is rotated for
//! the others. Their chunk numbers then differ from the actual ones, but not their sizes.

use super::{Lowered, Resource, payload, sized_by};
use crate::schedule::{Dependency, Generate, Header, Program, Rank, Run, Symmetry, Walk, Written};
use crate::sharing::{ResourceId, RouteId, System, Use};

/// Limit on the total runs of the examined ranks; above it blocks are not compared.
const MOST_RUNS: usize = 1 << 24;

/// Largest run, in operations, whose sizes are compared one by one.
const MOST_OPERATIONS: u32 = 1 << 10;

/// First block of a schedule whose blocks are all equal.
#[derive(Debug)]
pub(crate) struct OneBlock<'a> {
    header: &'a Header,
    blocks: u16,
    /// By rank.
    programs: Vec<Program>,
}

/// Position of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    block: u16,
    /// Index among the block's runs of the rank.
    number: u32,
}

impl<'a> OneBlock<'a> {
    /// Returns `None` if there is only one block, or blocks differ.
    pub(crate) fn of(generator: &'a dyn Generate) -> Option<Self> {
        let header = generator.header();
        let blocks = header.channels / header.blocks.split.channels();
        if blocks < 2 || blocks * header.blocks.split.channels() != header.channels {
            return None;
        }
        let symmetry = Symmetry::of_sizes(generator);
        let standing = first_blocks(generator, blocks, &symmetry)?;
        let programs = match symmetry.turns() {
            1 => standing,
            _ => turned(&standing, header.call.ranks, &symmetry)
                .or_else(|| first_blocks(generator, blocks, &Symmetry::None))?,
        };
        Some(Self { header, blocks, programs })
    }

    /// Returns the programs of the first block, by rank.
    pub(crate) fn into_programs(self) -> Vec<Program> {
        self.programs
    }

    /// Returns the first block as a schedule to lower.
    pub(crate) fn written(&self) -> Written<'_> {
        Written { header: self.header, programs: &self.programs }
    }

    /// Number of blocks that this one represents.
    pub(crate) fn blocks(&self) -> u64 {
        u64::from(self.blocks)
    }
}

/// Multiplies the shared traffic of lowered first blocks by the number of blocks that each represents.
pub(crate) fn counted_for_all(blocks: u64, lowered: &mut Lowered) {
    let shared =
        |id: ResourceId, resources: &[Resource]| !matches!(resources.get(id.0 as usize), Some(Resource::Lane(..)));
    let one = std::mem::take(&mut lowered.workload.system);
    let mut all = System::new();
    for id in (0..one.resource_count() as u32).map(ResourceId) {
        all.add_resource(one.capacity(id));
        if shared(id, &lowered.resources) {
            lowered.traffic.multiply(id, blocks);
        }
    }
    let mut uses: Vec<Use> = Vec::new();
    for route in (0..one.route_count() as u32).map(RouteId) {
        uses.clear();
        uses.extend(one.uses(route).map(|mut used| {
            if shared(used.resource, &lowered.resources) {
                used.coefficient = used.coefficient.saturating_mul(blocks);
            }
            used
        }));
        let (cap, weight) = one.cap_and_weight(route);
        all.add_folded_route(&uses, cap, weight, one.solo(route));
    }
    lowered.workload.system = all;
}

/// Programs of the first block, of each representative rank in order.
fn first_blocks(generator: &dyn Generate, blocks: u16, symmetry: &Symmetry) -> Option<Vec<Program>> {
    let header = generator.header();
    let ranks = header.call.ranks;
    let standing: Vec<Rank> = symmetry.standing(ranks).collect();
    let mut places = Places { of: Vec::with_capacity(standing.len()), stands_for: vec![0; ranks as usize] };
    for (number, &rank) in (0..).zip(&standing) {
        for turn in 0..symmetry.turns() {
            *places.stands_for.get_mut(symmetry.turned(rank, turn).0 as usize)? = number;
        }
    }
    let mut scratch = Program::default();
    let mut runs = 0;
    for &rank in &standing {
        let program = generator.read(rank, &mut scratch);
        runs += program.runs().len();
        if runs > MOST_RUNS || program.is_cut() {
            return None;
        }
        places.of.push(places_of(header, blocks, program)?);
    }
    standing.iter().map(|&rank| first_block(header, generator.read(rank, &mut scratch), rank, &places)).collect()
}

/// Rotates the representatives' programs to those of all ranks; `None` if one cannot be rotated.
fn turned(standing: &[Program], ranks: u32, symmetry: &Symmetry) -> Option<Vec<Program>> {
    let mut programs = vec![Program::default(); ranks as usize];
    for (rank, program) in symmetry.standing(ranks).zip(standing) {
        for turn in 0..symmetry.turns() {
            *programs.get_mut(symmetry.turned(rank, turn).0 as usize)? = symmetry.turned_program(program, turn)?;
        }
    }
    Some(programs)
}

/// Positions of runs.
struct Places {
    /// Positions by run, of each representative rank.
    of: Vec<Vec<Place>>,
    /// Index of each rank's representative.
    stands_for: Vec<u32>,
}

impl Places {
    fn of_rank(&self, rank: Rank) -> Option<&Vec<Place>> {
        self.of.get(*self.stands_for.get(rank.0 as usize)? as usize)
    }
}

/// Returns the position of each run of a program; `None` if blocks have different numbers of runs.
fn places_of(header: &Header, blocks: u16, program: &Program) -> Option<Vec<Place>> {
    let split = header.blocks.split.channels();
    let mut counts = vec![0u32; usize::from(blocks)];
    let place = |run: &Run| {
        let block = run.channel.0 / split;
        let count = counts.get_mut(usize::from(block))?;
        *count += 1;
        Some(Place { block, number: *count - 1 })
    };
    let places: Option<Vec<Place>> = program.runs().iter().map(place).collect();
    let are_equal = counts.windows(2).all(|pair| pair[0] == pair[1]);
    places.filter(|_| are_equal)
}

/// Returns the runs of a rank's first block, with dependencies numbered within the block; `None` if the runs of another
/// block differ.
fn first_block(header: &Header, program: &Program, rank: Rank, places: &Places) -> Option<Program> {
    let own = places.of_rank(rank)?;
    let place_of = |dependency: &Dependency| places.of_rank(dependency.rank)?.get(dependency.run as usize).copied();
    let firsts: Vec<usize> = (0..own.len()).filter(|&run| own[run].block == 0).collect();
    for (number, (run, &at)) in program.runs().iter().zip(own).enumerate() {
        if at.block == 0 {
            // The first block needs no comparison, but its dependencies must lie within it.
            if program.dependencies(number).iter().any(|awaited| place_of(awaited).is_none_or(|on| on.block != 0)) {
                return None;
            }
            continue;
        }
        let first = *firsts.get(at.number as usize)?;
        if !are_alike(header, run, program.runs().get(first)?) {
            return None;
        }
        let (awaited, awaited_first) = (program.dependencies(number), program.dependencies(first));
        if awaited.len() != awaited_first.len() {
            return None;
        }
        for (a, b) in awaited.iter().zip(awaited_first) {
            let (on, on_first) = (place_of(a)?, place_of(b)?);
            let same = (a.rank, a.start, a.step) == (b.rank, b.start, b.step);
            if !same || on != (Place { block: at.block, ..on_first }) {
                return None;
            }
        }
    }
    let mut one = Program::default();
    for first in firsts {
        let awaited = program.dependencies(first).iter();
        let awaited = awaited.map(|dependency| Some(Dependency { run: place_of(dependency)?.number, ..*dependency }));
        one.push(*program.runs().get(first)?, &awaited.collect::<Option<Vec<_>>>()?);
    }
    Some(one)
}

/// Returns true if runs of different blocks do the same with chunks of the same sizes.
fn are_alike(header: &Header, a: &Run, b: &Run) -> bool {
    let split = header.blocks.split.channels();
    let done =
        |run: &Run| (run.len, run.kind, run.peer, run.span, run.src_buffer, run.dst_buffer, run.channel.0 % split);
    done(a) == done(b) && (!a.kind.moves_data() || a.len == 0 || are_as_large(header, a, b))
}

/// Returns true if the operations of two runs of equal length and span move the same amounts.
fn are_as_large(header: &Header, a: &Run, b: &Run) -> bool {
    let layout = &header.layout;
    let (of_a, of_b) = (sized_by(a), sized_by(b));
    let work = |walk: Walk, i: u32| payload(header, walk.at(i), a.span);
    if layout.is_even() {
        return work(of_a, 0) == work(of_b, 0);
    }
    let passed = |walk, run| stretches(header, walk, run, usize::MAX);
    match (passed(of_a, a), passed(of_b, b)) {
        (Some(at_a), Some(at_b)) => at_a == at_b,
        _ => a.len <= MOST_OPERATIONS && (0..a.len).all(|i| work(of_a, i) == work(of_b, i)),
    }
}

/// Returns the ranges of equal chunks that a run passes, each with its first operation. `None` if the run does not go
/// up through the buffer one chunk at a time, or passes more than `most` ranges. There is at most one entry per
/// operation, regardless of the number of segments.
pub(super) fn stretches(header: &Header, walk: Walk, run: &Run, most: usize) -> Option<Vec<(usize, u64)>> {
    let (layout, len) = (&header.layout, u64::from(run.len));
    let goes_up = run.span == 1 && (walk.modulus == 0 || walk.is_fixed()) && len > 0;
    let first = u64::from(walk.at(0) % layout.chunks().max(1));
    let step = if walk.is_fixed() { 0 } else { u64::from(walk.step) * u64::from(walk.stride) };
    let last = first + step.checked_mul(len - 1)?;
    if !goes_up || last >= u64::from(layout.chunks()) {
        return None;
    }
    let mut passed = Vec::new();
    let mut operation = 0;
    while passed.len() < most {
        let stretch = layout.stretch_of((first + step * operation) as u32);
        passed.push((stretch, operation));
        let next = layout.next_stretch(stretch).filter(|_| step > 0);
        match next.map(|start| (u64::from(start) - first).div_ceil(step)).filter(|&next| next < len) {
            Some(next) => operation = next,
            None => return Some(passed),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use fabricast_topologies::Bytes;

    use super::*;
    use crate::schedule::{
        Blocks, Buffer, BufferUse, Call, Channel, Collective, Layout, OpKind, Protocol, RotationDigit, Segment,
    };

    /// Schedule in which every rank puts the same chunk on the next rank repeatedly, on every channel.
    struct Round {
        header: Header,
        runs: u32,
        read: AtomicUsize,
    }

    impl Generate for Round {
        fn header(&self) -> &Header {
            &self.header
        }

        fn program(&self, rank: Rank, program: &mut Program) {
            self.read.fetch_add(1, Ordering::Relaxed);
            let next = Walk::fixed((rank.0 + 1) % self.header.call.ranks);
            for channel in (0..self.header.channels).map(Channel) {
                let run = Run {
                    len: 1,
                    kind: OpKind::Put,
                    channel,
                    peer: next,
                    src_buffer: Buffer::Input,
                    src: Walk::fixed(rank.0),
                    dst_buffer: Buffer::Output,
                    dst: Walk::fixed(rank.0),
                    span: 1,
                };
                for _ in 0..self.runs {
                    program.push(run, &[]);
                }
            }
        }

        fn symmetry(&self) -> Symmetry {
            Symmetry::Rotations(vec![RotationDigit { stride: 1, length: self.header.call.ranks }])
        }
    }

    fn round(layout: Layout, (ranks, channels, runs): (u32, u16, u32)) -> Round {
        let call = Call {
            collective: Collective::AllGather,
            bytes: Bytes(1 << 30),
            ranks,
            root: Rank(0),
            buffers: BufferUse::OutOfPlace,
        };
        let header = Header {
            name: "round".to_owned(),
            call,
            protocol: Protocol::Simple,
            channels,
            blocks: Blocks::default(),
            layout,
            scratch_chunks: 0,
            teams: Vec::new(),
        };
        Round { header, runs, read: AtomicUsize::new(0) }
    }

    /// The schedule exceeds the run limit, but only the representative rank's runs must be compared.
    #[test]
    fn only_representative_ranks_count_toward_the_run_limit() {
        let (ranks, channels, runs) = (2048, 64, 129);
        assert!(ranks as usize * usize::from(channels) * runs as usize > MOST_RUNS);
        let round = round(Layout::equal(Bytes(1 << 30), ranks), (ranks, channels, runs));
        let one = OneBlock::of(&round).unwrap();
        assert_eq!((one.blocks(), one.programs.len()), (u64::from(channels), ranks as usize));
        assert!(one.programs.iter().all(|program| program.runs().len() == runs as usize));
        assert_eq!(one.programs[7].runs()[0].peer, Walk::fixed(8));
        assert!(round.read.into_inner() <= 2);
    }

    /// An all_to_allv has one segment per block, regardless of the block sizes.
    #[test]
    fn equal_segments_make_an_even_layout() {
        let ranks = 2048;
        let segment = Segment { bytes: Bytes(1 << 20), parts: 1 };
        let round = round(Layout::new(vec![segment; ranks as usize]), (ranks, 4, 1));
        assert!(OneBlock::of(&round).is_some() && round.header.layout.is_even());
        assert!(round.read.into_inner() <= 2);
    }

    /// In a layout of a million segments, only those that a run passes are examined.
    #[test]
    fn only_ranges_that_a_run_passes_are_examined() {
        let segment = |number: u64| Segment { bytes: Bytes(1 + number % 3), parts: 2 };
        let header = round(Layout::new((0..1 << 20).map(segment).collect()), (2, 2, 1)).header;
        let run = |len, walk| Run {
            len,
            kind: OpKind::Put,
            channel: Channel(0),
            peer: Walk::fixed(1),
            src_buffer: Buffer::Input,
            src: walk,
            dst_buffer: Buffer::Output,
            dst: walk,
            span: 1,
        };
        let passed = |len, walk: Walk| stretches(&header, walk, &run(len, walk), usize::MAX);
        assert_eq!(passed(4, Walk::linear(2_000_000, 1)), Some(vec![(1_000_000, 0), (1_000_001, 2)]));
        assert_eq!(passed(5, Walk::linear(9, 3)), Some(vec![(4, 0), (6, 1), (7, 2), (9, 3), (10, 4)]));
        assert_eq!(passed(7, Walk::fixed(9)), Some(vec![(4, 0)]));
        assert_eq!(passed(2, Walk::linear((1 << 21) - 1, 1)), None);
    }
}
