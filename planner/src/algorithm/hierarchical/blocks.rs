//! Hierarchical all_gather and reduce_scatter: rings over the hosts for every position in them, and exchanges within each
//! host, block by block at the same time.
//!
//! With h hosts of g ranks: **all_gather** takes a rank's block round the ring of all hosts' same position in h − 1 steps;
//! whatever has come is put straight into the g − 1 mates' outputs. **reduce_scatter** is the same backwards: what a block
//! gets from one host is summed at the owner's position there, host after host as the ring will need it, then goes round
//! and is added to. Links between hosts carry (h−1)/h · bytes/g per rank, those within (g−1)/g · bytes.
//! With one loop, latency L and bandwidth B within, L' and B' between, let S = L + (g−1)·bytes/(n·B) and
//! T = L' + bytes/(n·B'). If S ≤ T: (h−1)·T + S, for reduce_scatter (h−1)·T + 2S, or S on a single host.
//! Per rank, lane and loop g + 2 runs for all_gather, 4g at most for reduce_scatter.
//!
//! Source: the decomposition of [`super::all_reduce`]; the overlap is that of NCCL's rings over NICs and NVLink.

use fabricast_sim::schedule::{Buffer, BufferUse, Dependency, Generate, Header, OpKind, Program, Rank, Symmetry, Walk};

use super::sum::Sum;
use super::{Levels, rounds};
use crate::algorithm::cut::Cut;
use crate::algorithm::lane::Lane;
use crate::algorithm::ring::copy_own;
use crate::algorithm::{Algorithm, Shape, Unsupported};

/// Hierarchical all_gather.
pub(in crate::algorithm) struct AllGather {
    header: Header,
    cut: Cut,
    levels: Levels,
}

impl AllGather {
    pub(in crate::algorithm) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let levels = Levels::new(shape)?;
        let (cut, layout) = Cut::by_blocks(shape)?;
        Ok(Self { header: shape.header(Algorithm::Hierarchical, layout, 0), cut, levels })
    }

    /// Runs of a loop: the ring's first step and its others, the own block to the mates, what comes to each mate.
    fn runs(&self) -> u32 {
        3 + self.levels.mates()
    }

    fn write_loop(&self, at: Lane, lane: u32, round: u32, program: &mut Program) {
        let Self { levels, ref cut, .. } = *self;
        let (host, position) = levels.place(at.rank);
        let first = program.runs().len() as u32;
        let (start, ring, share) = (first, first + 1, first + 2);
        let own = Walk::fixed(cut.chunk(at.rank, round, lane));
        let back = cut.over_parts(levels.back_from(host, position), round, lane).advanced(1);
        let (input, output) = ((Buffer::Input, own), (Buffer::Output, own));
        let others = (Buffer::Output, back);
        let next = Walk::fixed(levels.on_rail((host, position), 1));
        let previous = Rank(levels.on_rail((host, position), levels.hosts - 1));
        let loop_before =
            |run: u32| (round > 0).then(|| Dependency::shifted(at.rank(), run.wrapping_sub(self.runs()), 0));
        // The block that comes with operation i: the first of the ring, then the others.
        let comes =
            [Dependency { rank: previous, run: start, start: 0, step: 1 }, Dependency::shifted(previous, ring, -1)];
        let steps = levels.hosts - 1;
        // A loop goes round when the one before has: otherwise full FIFOs would wait for each other.
        let round_before = (round > 0).then(|| match steps {
            0 | 1 => Dependency::on(at.rank(), start.wrapping_sub(self.runs()), 0),
            _ => Dependency::on(at.rank(), ring.wrapping_sub(self.runs()), steps - 2),
        });
        program.push(at.put(steps.min(1), next, input, output), round_before.as_slice());
        let awaited: Vec<Dependency> = comes.into_iter().chain(loop_before(ring)).collect();
        program.push(at.put(steps.saturating_sub(1), next, others, others), &awaited);
        let own_to_all = at.put(levels.mates(), levels.mates_of((host, position)), input, output);
        program.push(own_to_all, loop_before(share).as_slice());
        for further in 1..=levels.mates() {
            let to = Walk::fixed(levels.mate((host, position), further));
            let run = share + further;
            // The first follows the own block on its connection, and no other does.
            let own_before =
                Dependency { rank: at.rank(), run: share, start: further as i32 - 1, step: levels.mates() };
            let chunk_before = Dependency::shifted(at.rank(), run, -1);
            let awaited: Vec<Dependency> =
                comes.into_iter().chain([own_before, chunk_before]).chain(loop_before(run)).collect();
            program.push(at.put(steps, to, others, others), &awaited);
        }
    }
}

impl Generate for AllGather {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        for (at, lane, round) in rounds(&self.header, &self.cut, rank) {
            self.write_loop(at, lane, round, program);
        }
        copy_own(&self.header, &self.cut, rank.0, rank.0, program);
    }

    fn symmetry(&self) -> Symmetry {
        self.levels.symmetry()
    }
}

/// Hierarchical reduce_scatter.
pub(in crate::algorithm) struct ReduceScatter {
    header: Header,
    cut: Cut,
    levels: Levels,
}

impl ReduceScatter {
    pub(in crate::algorithm) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let levels = Levels::new(shape)?;
        let (cut, layout) = Cut::by_blocks(shape)?;
        let slots = layout.chunks();
        Ok(Self { header: shape.header(Algorithm::Hierarchical, layout, slots), cut, levels })
    }

    fn write_loop(&self, at: Lane, lane: u32, round: u32, program: &mut Program) {
        let Self { levels, ref cut, .. } = *self;
        let (host, position) = levels.place(at.rank);
        let steps = levels.hosts - 1;
        let in_place = self.header.call.buffers == BufferUse::InPlace;
        // First the sums for other hosts, that of the previous host before that of the one before it; then the own.
        let away = program.runs().len() as u32;
        let home = away + Sum::runs(levels);
        let ring = home + Sum::runs(levels);
        let runs = ring + 2 - away;
        let loop_before = |run: u32| (round > 0).then(|| Dependency::shifted(at.rank(), run.wrapping_sub(runs), 0));
        // On each connection a loop follows the whole loop before, as the slots of a FIFO are taken.
        let first_after = |last: Dependency| Dependency { start: 0, step: 1, ..last };
        let part = |position: u32| cut.over_parts(levels.back_from(host + steps, position), round, lane);
        let sum = Sum {
            at,
            levels,
            first_run: away,
            items: steps,
            part: &part,
            sums: &|_| Buffer::Scratch,
            in_place,
            after: &|run| loop_before(home + run).map(first_after),
        };
        sum.write(program);
        let own = |position: u32| Walk::fixed(cut.chunk(host * levels.per_host + position, round, lane));
        let last_away = |run: u32| (steps > 0).then(|| Dependency::on(at.rank(), away + run, steps - 1));
        let sum = Sum {
            first_run: home,
            items: 1,
            part: &own,
            sums: &|_| Buffer::Output,
            after: &|run| last_away(run).or_else(|| loop_before(home + run)),
            ..sum
        };
        sum.write(program);

        let next = levels.on_rail((host, position), 1);
        let previous = Rank(levels.on_rail((host, position), levels.hosts - 1));
        let summed = |first_run: u32, rank: u32, shift: i32| {
            let (rank, run) = Sum::done(levels, first_run, rank);
            Dependency::shifted(rank, run, shift)
        };
        let sums = (Buffer::Scratch, part(position));
        let mut awaited =
            vec![Dependency::shifted(previous, ring, -1), summed(away, at.rank, 0), summed(away, next, 1)];
        awaited.extend(loop_before(ring + 1).map(first_after));
        let passing = steps.saturating_sub(1);
        program.push(at.transfer(OpKind::PutReduce, passing, Walk::fixed(next), sums, sums), &awaited);
        // The last is what the next rank keeps.
        let kept = Walk::fixed(cut.chunk(next, round, lane));
        let (src, dst) = ((Buffer::Scratch, kept), (Buffer::Output, kept));
        let mut awaited = vec![summed(away, at.rank, passing as i32), summed(home, next, 0)];
        awaited.extend(passing.checked_sub(1).map(|last| Dependency::on(previous, ring, last)));
        awaited.extend(loop_before(ring + 1));
        program.push(at.transfer(OpKind::PutReduce, steps.min(1), Walk::fixed(next), src, dst), &awaited);
    }
}

impl Generate for ReduceScatter {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        for (at, lane, round) in rounds(&self.header, &self.cut, rank) {
            self.write_loop(at, lane, round, program);
        }
    }

    fn symmetry(&self) -> Symmetry {
        self.levels.symmetry()
    }
}
