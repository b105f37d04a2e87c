//! Folds equal groups of thread blocks before lowering: lowers the first group and multiplies its shared traffic by the
//! number of groups.
//!
//! In most algorithms every thread block executes the same operations on different chunks of the same sizes. In rings
//! and trees over several NICs this holds for every p-th block, where p is the number of rank orders. A group consists
//! of p consecutive blocks, with the smallest p for which groups are equal. If they are equal run for run,
//! corresponding runs of all groups wait for corresponding runs, use the same routes, occupy their block for the same
//! time and compete with the same traffic: that of their own channel on the channel's capacity, that of all channels on
//! every other capacity. They therefore start, flow and end at the same times, by the argument of [`crate::fold`]. Only
//! one group's channels are lowered, and their use of shared capacities is multiplied by the number of groups. This
//! saves the lowering, which dominates the simulation time of an all-to-all on 32 channels.
//!
//! If ranks are rotations of each other ([`Symmetry`]), one representative is examined and its program is rotated for
//! the others. The chunk numbers of the rotated programs differ from the actual ones, but the chunk sizes do not.

use super::{LoweredWorkload, RankClasses, Resource, payload, size_walk};
use crate::schedule::{Dependency, Header, Program, Rank, Run, ScheduleGenerator, StoredPrograms, Symmetry, Walk};
use crate::sharing::{ResourceId, RouteId, System, Use};

/// Limit on the total number of runs of the examined ranks. Above the limit, groups are not compared.
const MAX_RUNS: usize = 1 << 24;

/// Maximum number of operations of a run whose sizes are compared one by one.
const MAX_OPERATIONS: u32 = 1 << 10;

/// First group of blocks of a schedule, which represents all its groups.
#[derive(Debug)]
pub(crate) struct RepresentativeGroup<'a> {
    header: &'a Header,
    classes: Option<&'a RankClasses>,
    groups: u16,
    /// Programs of the first group, by rank or by class of ranks.
    programs: Vec<Program>,
}

/// Division of a schedule's channels into equal groups of consecutive channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grouping {
    groups: u16,
    /// Number of channels of a group.
    channels: u16,
}

impl Grouping {
    /// Returns the divisions of a schedule's channels into two or more groups of whole blocks, smallest groups first.
    fn all(header: &Header) -> impl Iterator<Item = Self> {
        let split = header.blocks.split.channels();
        let blocks = header.channels / split;
        let is_whole = blocks * split == header.channels;
        (1..=blocks / 2)
            .filter(move |period| is_whole && blocks.is_multiple_of(*period))
            .map(move |period| Self { groups: blocks / period, channels: period * split })
    }
}

/// Position of a run in its rank's program: its group, and its number within the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunPosition {
    group: u16,
    /// Index of the run among the rank's runs in that group.
    number: u32,
}

impl<'a> RepresentativeGroup<'a> {
    /// Finds the first group of the division with the smallest equal groups; `None` if there is no such division. The
    /// program of one rank determines the division; the programs of all other ranks must agree with it. With `classes`,
    /// only the programs of the representatives are examined.
    pub(crate) fn find(generator: &'a dyn ScheduleGenerator, classes: Option<&'a RankClasses>) -> Option<Self> {
        let header = generator.header();
        let symmetry = Symmetry::for_equal_chunks(generator);
        let (grouping, group_programs) = first_groups(generator, &symmetry)?;
        let programs = match symmetry.rotation_count() {
            1 => group_programs,
            _ => match rotate_programs(&group_programs, header.call.ranks, &symmetry, classes) {
                Some(programs) => programs,
                None => only_representatives(first_groups(generator, &Symmetry::None)?.1, classes)?,
            },
        };
        Some(Self { header, classes, groups: grouping.groups, programs })
    }

    /// Returns the programs of the first group, by rank or by class of ranks.
    pub(crate) fn into_programs(self) -> Vec<Program> {
        self.programs
    }

    /// Returns the first group as a schedule to lower.
    pub(crate) fn schedule(&self) -> StoredPrograms<'_> {
        StoredPrograms { header: self.header, programs: &self.programs, classes: self.classes }
    }

    /// Returns the number of groups that this one represents.
    pub(crate) fn groups(&self) -> u64 {
        u64::from(self.groups)
    }
}

/// Returns true if the runs of all groups of a program are equivalent, dependencies aside.
fn has_equal_groups(header: &Header, grouping: Grouping, program: &Program) -> bool {
    let Some(positions) = locate_runs(grouping, program) else { return false };
    let firsts: Vec<&Run> =
        program.runs().iter().zip(&positions).filter(|(_, position)| position.group == 0).map(|(run, _)| run).collect();
    program.runs().iter().zip(&positions).all(|(run, position)| {
        let first = firsts.get(position.number as usize);
        first.is_some_and(|first| position.group == 0 || are_equivalent(header, grouping, run, first))
    })
}

/// Multiplies the shared traffic of lowered first groups by the number of groups that each represents.
pub(crate) fn multiply_shared_traffic(groups: u64, lowered: &mut LoweredWorkload) {
    let shared =
        |id: ResourceId, resources: &[Resource]| !matches!(resources.get(id.0 as usize), Some(Resource::Channel(..)));
    let one = std::mem::take(&mut lowered.workload.system);
    let mut all = System::new();
    for id in (0..one.resource_count() as u32).map(ResourceId) {
        all.add_resource(one.capacity(id));
        if shared(id, &lowered.resources) {
            lowered.traffic.multiply(id, groups);
        }
    }
    let mut uses: Vec<Use> = Vec::new();
    for route in (0..one.route_count() as u32).map(RouteId) {
        uses.clear();
        uses.extend(one.uses(route).map(|used| match shared(used.resource, &lowered.resources) {
            true => Use { coefficient: used.coefficient.saturating_mul(groups), ..used },
            false => used,
        }));
        all.add_route_of(&one, route, &uses);
    }
    lowered.workload.system = all;
}

/// Returns the division into groups that the first program determines, and the first group's program of each
/// representative rank, in order; `None` if groups differ or there are more than [`MAX_RUNS`] runs in total.
fn first_groups(generator: &dyn ScheduleGenerator, symmetry: &Symmetry) -> Option<(Grouping, Vec<Program>)> {
    let header = generator.header();
    let ranks = header.call.ranks;
    let representatives: Vec<Rank> = symmetry.representatives(ranks).collect();
    let mut positions = RunPositions {
        by_representative: Vec::with_capacity(representatives.len()),
        representatives: vec![0; ranks as usize],
    };
    for (number, &rank) in (0..).zip(&representatives) {
        for turn in 0..symmetry.rotation_count() {
            *positions.representatives.get_mut(symmetry.rotate(rank, turn).0 as usize)? = number;
        }
    }
    let mut scratch = Program::default();
    let mut runs = 0;
    let mut known = None;
    for &rank in &representatives {
        let program = generator.read(rank, &mut scratch);
        runs += program.runs().len();
        if runs > MAX_RUNS || program.is_truncated() {
            return None;
        }
        let smallest = || Grouping::all(header).find(|&grouping| has_equal_groups(header, grouping, program));
        let grouping = known.or_else(smallest)?;
        known = Some(grouping);
        positions.by_representative.push(locate_runs(grouping, program)?);
    }
    let grouping = known?;
    let program = |&rank| first_group(header, grouping, generator.read(rank, &mut scratch), rank, &positions);
    let programs = representatives.iter().map(program).collect::<Option<_>>()?;
    Some((grouping, programs))
}

/// Rotates the representatives' programs to those of all ranks, or of the first rank of each class; `None` if a program
/// cannot be rotated.
fn rotate_programs(
    representatives: &[Program],
    ranks: u32,
    symmetry: &Symmetry,
    classes: Option<&RankClasses>,
) -> Option<Vec<Program>> {
    let index = |rank: Rank| match classes {
        Some(classes) => classes.representative_index(rank),
        None => Some(rank.0),
    };
    let count = classes.map_or(ranks as usize, |classes| classes.representatives().len());
    let mut programs = vec![Program::default(); count];
    for (rank, program) in symmetry.representatives(ranks).zip(representatives) {
        for turn in 0..symmetry.rotation_count() {
            if let Some(index) = index(symmetry.rotate(rank, turn)) {
                *programs.get_mut(index as usize)? = symmetry.rotate_program(program, turn)?;
            }
        }
    }
    Some(programs)
}

/// Returns the programs of the first rank of each class, or of all ranks if there are no classes.
fn only_representatives(mut by_rank: Vec<Program>, classes: Option<&RankClasses>) -> Option<Vec<Program>> {
    let Some(classes) = classes else { return Some(by_rank) };
    classes.representatives().iter().map(|rank| by_rank.get_mut(rank.0 as usize).map(std::mem::take)).collect()
}

/// Positions of the runs of all ranks.
struct RunPositions {
    /// Positions by run, of each representative rank.
    by_representative: Vec<Vec<RunPosition>>,
    /// Index in `by_representative` of each rank's representative.
    representatives: Vec<u32>,
}

impl RunPositions {
    fn rank_positions(&self, rank: Rank) -> Option<&Vec<RunPosition>> {
        self.by_representative.get(*self.representatives.get(rank.0 as usize)? as usize)
    }
}

/// Returns the position of each run of a program; `None` if groups have different numbers of runs.
fn locate_runs(grouping: Grouping, program: &Program) -> Option<Vec<RunPosition>> {
    let mut counts = vec![0u32; usize::from(grouping.groups)];
    let locate_run = |run: &Run| {
        let group = run.channel.0 / grouping.channels;
        let count = counts.get_mut(usize::from(group))?;
        *count += 1;
        Some(RunPosition { group, number: *count - 1 })
    };
    let positions: Option<Vec<RunPosition>> = program.runs().iter().map(locate_run).collect();
    let are_equal = counts.windows(2).all(|pair| pair[0] == pair[1]);
    positions.filter(|_| are_equal)
}

/// Returns the runs of a rank's first group, with dependencies numbered within the group; `None` if the runs of another
/// group differ from them.
fn first_group(
    header: &Header,
    grouping: Grouping,
    program: &Program,
    rank: Rank,
    positions: &RunPositions,
) -> Option<Program> {
    let rank_positions = positions.rank_positions(rank)?;
    let position_of =
        |dependency: &Dependency| positions.rank_positions(dependency.rank)?.get(dependency.run as usize).copied();
    let firsts: Vec<usize> = (0..rank_positions.len()).filter(|&run| rank_positions[run].group == 0).collect();
    for (number, (run, &position)) in program.runs().iter().zip(rank_positions).enumerate() {
        if position.group == 0 {
            // The first group needs no comparison, but its dependencies must lie within it.
            if program
                .dependencies(number)
                .iter()
                .any(|awaited| position_of(awaited).is_none_or(|awaited_position| awaited_position.group != 0))
            {
                return None;
            }
            continue;
        }
        let first = *firsts.get(position.number as usize)?;
        if !are_equivalent(header, grouping, run, program.runs().get(first)?) {
            return None;
        }
        let (awaited, awaited_first) = (program.dependencies(number), program.dependencies(first));
        if awaited.len() != awaited_first.len() {
            return None;
        }
        for (a, b) in awaited.iter().zip(awaited_first) {
            let (awaited_position, first_awaited_position) = (position_of(a)?, position_of(b)?);
            let same = (a.rank, a.start, a.step) == (b.rank, b.start, b.step);
            if !same || awaited_position != (RunPosition { group: position.group, ..first_awaited_position }) {
                return None;
            }
        }
    }
    let mut group_program = Program::default();
    for first in firsts {
        let awaited = program.dependencies(first).iter();
        let awaited =
            awaited.map(|dependency| Some(Dependency { run: position_of(dependency)?.number, ..*dependency }));
        group_program.push(*program.runs().get(first)?, &awaited.collect::<Option<Vec<_>>>()?);
    }
    Some(group_program)
}

/// Returns true if runs of different groups execute the same operations on chunks of the same sizes.
fn are_equivalent(header: &Header, grouping: Grouping, a: &Run, b: &Run) -> bool {
    let done = |run: &Run| {
        (run.len, run.kind, run.peer, run.span, run.src_buffer, run.dst_buffer, run.channel.0 % grouping.channels)
    };
    done(a) == done(b) && (!a.kind.moves_data() || a.len == 0 || are_as_large(header, a, b))
}

/// Returns true if corresponding operations of two runs of equal length and span move the same amounts of data.
fn are_as_large(header: &Header, a: &Run, b: &Run) -> bool {
    let layout = &header.layout;
    let (walk_a, walk_b) = (size_walk(a), size_walk(b));
    let work = |walk: Walk, i: u32| payload(header, walk.at(i), a.span);
    if layout.is_even() {
        return work(walk_a, 0) == work(walk_b, 0);
    }
    let size_ranges = |walk, run| uniform_ranges(header, walk, run, usize::MAX);
    match (size_ranges(walk_a, a), size_ranges(walk_b, b)) {
        (Some(at_a), Some(at_b)) => at_a == at_b,
        _ => a.len <= MAX_OPERATIONS && (0..a.len).all(|i| work(walk_a, i) == work(walk_b, i)),
    }
}

/// Returns the ranges of equal chunks that a run passes through, each with the first operation in it. `None` if the run
/// does not move up through the buffer one chunk at a time, or passes through more than `limit` ranges. There is at
/// most one entry per operation, regardless of the number of segments.
pub(super) fn uniform_ranges(header: &Header, walk: Walk, run: &Run, limit: usize) -> Option<Vec<(usize, u64)>> {
    let (layout, len) = (&header.layout, u64::from(run.len));
    let is_increasing = run.span == 1 && (walk.modulus == 0 || walk.is_fixed()) && len > 0;
    let first = u64::from(walk.at(0) % layout.chunks().max(1));
    let step = if walk.is_fixed() { 0 } else { u64::from(walk.step) * u64::from(walk.stride) };
    let last = first + step.checked_mul(len - 1)?;
    if !is_increasing || last >= u64::from(layout.chunks()) {
        return None;
    }
    let mut ranges = Vec::new();
    let mut operation = 0;
    while ranges.len() < limit {
        let range = layout.uniform_range_index((first + step * operation) as u32);
        ranges.push((range, operation));
        let next = layout.next_uniform_range(range).filter(|_| step > 0);
        match next.map(|start| (u64::from(start) - first).div_ceil(step)).filter(|&next| next < len) {
            Some(next) => operation = next,
            None => return Some(ranges),
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

    impl ScheduleGenerator for Round {
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
            certificate: None,
        };
        Round { header, runs, read: AtomicUsize::new(0) }
    }

    /// Only the runs of the representative rank count towards the run limit; the schedule as a whole exceeds it.
    #[test]
    fn only_representative_ranks_count_toward_the_run_limit() {
        let (ranks, channels, runs) = (2048, 64, 129);
        assert!(ranks as usize * usize::from(channels) * runs as usize > MAX_RUNS);
        let round = round(Layout::equal(Bytes(1 << 30), ranks), (ranks, channels, runs));
        let one = RepresentativeGroup::find(&round, None).unwrap();
        assert_eq!((one.groups(), one.programs.len()), (u64::from(channels), ranks as usize));
        assert!(one.programs.iter().all(|program| program.runs().len() == runs as usize));
        assert_eq!(one.programs[7].runs()[0].peer, Walk::fixed(8));
        assert!(round.read.into_inner() <= 2);
    }

    /// Schedule whose channels alternate between the next and the previous rank.
    struct Alternating(Round);

    impl ScheduleGenerator for Alternating {
        fn header(&self) -> &Header {
            &self.0.header
        }

        fn program(&self, rank: Rank, program: &mut Program) {
            let ranks = self.0.header.call.ranks;
            let mut all = Program::default();
            self.0.program(rank, &mut all);
            for run in all.runs() {
                let distance = if run.channel.0.is_multiple_of(2) { 1 } else { ranks - 1 };
                program.push(Run { peer: Walk::fixed((rank.0 + distance) % ranks), ..*run }, &[]);
            }
        }
    }

    /// The first group consists of the first two channels. With an odd number of channels no groups are equal.
    #[test]
    fn channels_that_alternate_form_groups_of_two() {
        let alternating = |channels: u16| Alternating(round(Layout::equal(Bytes(1 << 30), 4), (4, channels, 3)));
        let six = alternating(6);
        let group = RepresentativeGroup::find(&six, None).unwrap();
        assert_eq!(group.groups(), 3);
        let peers = |program: &Program| program.runs().iter().map(|run| run.peer.at(0)).collect::<Vec<_>>();
        assert_eq!(group.programs.iter().map(peers).collect::<Vec<_>>()[1], [2, 2, 2, 0, 0, 0]);
        assert!(RepresentativeGroup::find(&alternating(5), None).is_none());
        assert!(RepresentativeGroup::find(&alternating(2), None).is_none());
    }

    /// A layout of equal segments, as of an all_to_allv with equal blocks, counts as even, so few programs are read.
    #[test]
    fn equal_segments_make_an_even_layout() {
        let ranks = 2048;
        let segment = Segment { bytes: Bytes(1 << 20), parts: 1 };
        let round = round(Layout::new(vec![segment; ranks as usize]), (ranks, 4, 1));
        assert!(RepresentativeGroup::find(&round, None).is_some() && round.header.layout.is_even());
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
        let size_ranges = |len, walk: Walk| uniform_ranges(&header, walk, &run(len, walk), usize::MAX);
        assert_eq!(size_ranges(4, Walk::linear(2_000_000, 1)), Some(vec![(1_000_000, 0), (1_000_001, 2)]));
        assert_eq!(size_ranges(5, Walk::linear(9, 3)), Some(vec![(4, 0), (6, 1), (7, 2), (9, 3), (10, 4)]));
        assert_eq!(size_ranges(7, Walk::fixed(9)), Some(vec![(4, 0)]));
        assert_eq!(size_ranges(2, Walk::linear((1 << 21) - 1, 1)), None);
    }
}
