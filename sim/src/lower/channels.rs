//! Equal blocks, folded before anything is lowered: the program of one, and what it stands for.
//!
//! Most algorithms do on every thread block what they do on the first, with other chunks of the same sizes. Where that is
//! so, run for run, the runs that are alike on all blocks wait for runs that are alike, travel alike, cost their block
//! alike, and meet alike traffic (each channel's own capacity the part of its channel, every other capacity that of all
//! channels), so they start, flow and end together, by the argument of [`crate::fold`]. One block's channels (one; two where blocks are
//! split) are lowered, and what they put on the capacities that all share counts as often as there are blocks. What
//! this saves is the lowering, which for an exchange of all pairs on 32 channels is all of the time. Of ranks that are turned into each
//! other ([`Symmetry`]) one is looked at, and what the others do is what it does, turned; the chunks that they are then said to move are
//! others than theirs, of the same sizes.

use super::{Lowered, Resource, payload, sized_by};
use crate::schedule::{Dependency, Generate, Header, Program, Rank, Run, Symmetry, Walk, Written};
use crate::sharing::{ResourceId, RouteId, System, Use};

/// Runs of all channels, of the ranks that are looked at, up to which blocks are compared.
const MOST_RUNS: usize = 1 << 24;

/// Operations of a run up to which sizes are compared one by one.
const MOST_OPERATIONS: u32 = 1 << 10;

/// The first block of a schedule whose blocks are all alike.
#[derive(Debug)]
pub(crate) struct OneBlock<'a> {
    header: &'a Header,
    blocks: u16,
    /// By rank.
    programs: Vec<Program>,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    block: u16,
    /// Among the block's runs of the rank.
    number: u32,
}

impl<'a> OneBlock<'a> {
    /// `None` where there is one block, or blocks differ.
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

    /// What the first block does, by rank.
    pub(crate) fn into_programs(self) -> Vec<Program> {
        self.programs
    }

    /// The same to be lowered.
    pub(crate) fn written(&self) -> Written<'_> {
        Written { header: self.header, programs: &self.programs }
    }

    /// How many blocks this stands for.
    pub(crate) fn blocks(&self) -> u64 {
        u64::from(self.blocks)
    }
}

/// What was lowered of first blocks as that of so many blocks each.
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

/// What the first block does, of each rank that stands for others, in their order.
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

/// The programs of all ranks, from those of the ranks that stand for others; `None` where one cannot be turned.
fn turned(standing: &[Program], ranks: u32, symmetry: &Symmetry) -> Option<Vec<Program>> {
    let mut programs = vec![Program::default(); ranks as usize];
    for (rank, program) in symmetry.standing(ranks).zip(standing) {
        for turn in 0..symmetry.turns() {
            *programs.get_mut(symmetry.turned(rank, turn).0 as usize)? = symmetry.turned_program(program, turn)?;
        }
    }
    Some(programs)
}

/// Where runs stand.
struct Places {
    /// Of each rank that stands for others.
    of: Vec<Vec<Place>>,
    /// By rank: which of them stands for it.
    stands_for: Vec<u32>,
}

impl Places {
    fn of_rank(&self, rank: Rank) -> Option<&Vec<Place>> {
        self.of.get(*self.stands_for.get(rank.0 as usize)? as usize)
    }
}

/// Where each run of a program stands; `None` where a block has more runs than another.
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

/// The runs of a rank's first block, waiting for each other by their places there; `None` where a run of another block
/// is not like it.
fn first_block(header: &Header, program: &Program, rank: Rank, places: &Places) -> Option<Program> {
    let own = places.of_rank(rank)?;
    let place_of = |dependency: &Dependency| places.of_rank(dependency.rank)?.get(dependency.run as usize).copied();
    let firsts: Vec<usize> = (0..own.len()).filter(|&run| own[run].block == 0).collect();
    for (number, (run, &at)) in program.runs().iter().zip(own).enumerate() {
        if at.block == 0 {
            // It is like itself; what it waits for must lie in its block.
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

/// Whether runs of different blocks do the same with other chunks of the same sizes.
fn are_alike(header: &Header, a: &Run, b: &Run) -> bool {
    let split = header.blocks.split.channels();
    let done =
        |run: &Run| (run.len, run.kind, run.peer, run.span, run.src_buffer, run.dst_buffer, run.channel.0 % split);
    done(a) == done(b) && (!a.kind.moves_data() || a.len == 0 || are_as_large(header, a, b))
}

/// Whether the operations of two runs of one length and span move as much each.
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

/// The stretches of equal chunks that a run passes, each with the first operation in it, where the run goes up through the
/// buffer, a chunk each; `None` where it does not, or passes more than `most`. At most one entry for each operation, however many segments
/// there are.
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

    /// Every rank puts the same on the next, over and over on every channel.
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

    /// More runs in all than are compared, few of which have to be: those of the rank that stands for all.
    #[test]
    fn ranks_that_others_stand_for_count_for_nothing() {
        let (ranks, channels, runs) = (2048, 64, 129);
        assert!(ranks as usize * usize::from(channels) * runs as usize > MOST_RUNS);
        let round = round(Layout::equal(Bytes(1 << 30), ranks), (ranks, channels, runs));
        let one = OneBlock::of(&round).unwrap();
        assert_eq!((one.blocks(), one.programs.len()), (u64::from(channels), ranks as usize));
        assert!(one.programs.iter().all(|program| program.runs().len() == runs as usize));
        assert_eq!(one.programs[7].runs()[0].peer, Walk::fixed(8));
        assert!(round.read.into_inner() <= 2);
    }

    /// As an all_to_allv has them: a segment for each block, whatever the blocks.
    #[test]
    fn equal_segments_count_as_one() {
        let ranks = 2048;
        let segment = Segment { bytes: Bytes(1 << 20), parts: 1 };
        let round = round(Layout::new(vec![segment; ranks as usize]), (ranks, 4, 1));
        assert!(OneBlock::of(&round).is_some() && round.header.layout.is_even());
        assert!(round.read.into_inner() <= 2);
    }

    /// Of a run that passes a few of a million segments, only those are looked at.
    #[test]
    fn runs_are_compared_by_the_stretches_that_they_pass() {
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
