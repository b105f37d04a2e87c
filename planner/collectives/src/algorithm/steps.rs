//! Step-by-step execution, shared by the algorithms with few large messages.
//!
//! In each step a rank sends one message and receives one, each of several pieces. It starts a step once the previous
//! one is complete: all data sent in it has left and all data received in it has arrived. A run of waits at the end of
//! each step represents this. Loops overlap: a step waits only for the same step of the previous loop.

use fabricast_sim::schedule::{Buffer, Dependency, Header, OpKind, Program, Rank, Run, Walk};

use super::cut::{Chunking, lane_channel};
use super::lane::{Chunks, Lane};

/// Parts of a buffer in the order of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    buffer: Buffer,
    /// Index of the region of scratch, from 0; each region is as large as the buffer.
    region: u32,
    walk: Walk,
}

impl Parts {
    pub(super) fn new(buffer: Buffer, walk: Walk) -> Self {
        Self { buffer, region: 0, walk }
    }

    pub(super) fn scratch(region: u32, walk: Walk) -> Self {
        Self { buffer: Buffer::Scratch, region, walk }
    }
}

/// Piece of a message: transfers of one type. All go to one rank, unless the piece is the only one of its step.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessagePiece {
    pub(super) kind: OpKind,
    pub(super) to: Walk,
    pub(super) src: Parts,
    pub(super) dst: Parts,
    /// Number of transfers; 0 if the rank has nothing to send.
    pub(super) len: u32,
    /// Contiguous parts per transfer; more than one only in a buffer divided by loops.
    pub(super) span: u32,
}

impl MessagePiece {
    /// Creates a piece of `len` local copies of one part each.
    pub(super) fn copy(rank: u32, src: Parts, dst: Parts, len: u32) -> Self {
        Self { kind: OpKind::Copy, ..Self::put(rank, src, dst, len) }
    }

    /// Creates a piece of `len` puts of one part each.
    pub(super) fn put(to: u32, src: Parts, dst: Parts, len: u32) -> Self {
        Self { kind: OpKind::Put, to: Walk::fixed(to), src, dst, len, span: 1 }
    }

    /// Creates an empty piece, for a rank that sends fewer pieces than others.
    pub(super) fn empty(rank: u32) -> Self {
        let parts = Parts::new(Buffer::Output, Walk::fixed(0));
        Self::put(rank, parts, parts, 0)
    }

    /// Returns this piece with another kind of operation, which reduces.
    pub(super) fn reducing(self, kind: OpKind) -> Self {
        Self { kind, ..self }
    }
}

/// Communication pattern: the messages of every rank in every step.
pub(super) trait MessagePattern {
    /// True if every piece has at most one transfer. A piece is then a single run over all loops; otherwise it has one
    /// run per loop.
    const SINGLE: bool = false;

    /// Number of steps of the pattern, equal on all ranks.
    fn steps(&self) -> u32;

    /// Returns the pieces that a rank sends in a step; their number is equal on all ranks.
    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece>;

    /// Returns the rank whose message `rank` receives in a step; `None` if it receives none.
    fn source(&self, rank: u32, step: u32) -> Option<u32>;

    /// Returns the index of this rank's transfer in a message that consists of one piece to many ranks; `None` if the
    /// message is only for this rank.
    fn share(&self, _rank: u32, _step: u32) -> Option<u32> {
        None
    }

    /// Returns, for each piece, the maximum of the numbers of transfers that the rank sends and receives. If pieces
    /// reduce into existing sums, the result must be equal on all ranks.
    fn widths(&self, rank: u32, step: u32) -> Vec<u32> {
        let mut widths: Vec<u32> = self.pieces(rank, step).iter().map(|piece| piece.len).collect();
        if let (Some(source), None) = (self.source(rank, step), self.share(rank, step)) {
            for (width, piece) in widths.iter_mut().zip(self.pieces(source, step)) {
                *width = piece.len.max(*width);
            }
        }
        widths
    }
}

/// Step of one rank, with its messages. Run numbers are relative to the first run of the first step.
struct RankStep {
    pieces: Vec<MessagePiece>,
    source: Option<u32>,
    share: Option<u32>,
    first_run: u32,
    /// Maximum number of transfers of each piece.
    widths: Vec<u32>,
}

impl RankStep {
    fn wait_run(&self) -> u32 {
        self.first_run + self.pieces.len() as u32
    }

    /// Returns the number of waits at the end of the step: one per transfer, piece by piece, in the order in which
    /// transfers are sent and occupy FIFO slots.
    fn waits(&self) -> u32 {
        self.widths.iter().sum::<u32>().max(1)
    }
}

/// Writes all lanes of a rank's steps.
pub(super) fn write<P: MessagePattern>(
    pattern: &P,
    header: &Header,
    cut: &Chunking,
    rank: Rank,
    program: &mut Program,
) {
    let steps = build_steps(pattern, rank.0);
    for lane in 0..cut.lanes {
        write_steps::<P>(&steps, header, cut, rank, lane, program);
    }
}

/// Writes one lane of a rank's steps, for patterns that differ by lane.
pub(super) fn write_lane<P: MessagePattern>(
    pattern: &P,
    header: &Header,
    cut: &Chunking,
    rank: Rank,
    lane: u32,
    program: &mut Program,
) {
    write_steps::<P>(&build_steps(pattern, rank.0), header, cut, rank, lane, program);
}

fn build_steps(pattern: &impl MessagePattern, rank: u32) -> Vec<RankStep> {
    let mut runs = 0;
    let steps = (0..pattern.steps()).map(|number| {
        let step = RankStep {
            pieces: pattern.pieces(rank, number),
            source: pattern.source(rank, number),
            share: pattern.share(rank, number),
            first_run: runs,
            widths: pattern.widths(rank, number),
        };
        runs = step.wait_run() + 1;
        step
    });
    steps.collect()
}

fn write_steps<P: MessagePattern>(
    steps: &[RankStep],
    header: &Header,
    cut: &Chunking,
    rank: Rank,
    lane: u32,
    program: &mut Program,
) {
    let at = Lane { rank: rank.0, channel: lane_channel(header.channels, lane) };
    let runs = steps.last().map_or(0, |last| last.wait_run() + 1);
    let mut writer = Writer { at, cut, header, lane, first_run: program.runs().len() as u32, runs };
    if P::SINGLE {
        writer.write_over_loops(steps, program);
        return;
    }
    for round in 0..cut.loops {
        writer.write_loop(steps, round, program);
        writer.first_run += runs;
    }
}

struct Writer<'a> {
    at: Lane,
    cut: &'a Chunking,
    header: &'a Header,
    lane: u32,
    /// Number of the first run of this lane or loop, equal on all ranks.
    first_run: u32,
    /// Number of runs in a loop.
    runs: u32,
}

impl Writer<'_> {
    fn region(&self, parts: Parts) -> u32 {
        parts.region * self.header.layout.chunks()
    }

    fn write_over_loops(&self, steps: &[RankStep], program: &mut Program) {
        let rank = self.at.rank();
        let chunks = |parts: Parts| -> Chunks {
            let walk = self.cut.over_loops(parts.walk.at(0), self.lane);
            (parts.buffer, Walk { base: walk.base + self.region(parts), ..walk })
        };
        let mut before: Option<u32> = None;
        for step in steps {
            let number = |run: u32| self.first_run + run;
            for (run, piece) in (step.first_run..).zip(&step.pieces) {
                let len = piece.len * self.cut.loops;
                let transfer = self.at.transfer(piece.kind, len, piece.to, chunks(piece.src), chunks(piece.dst));
                let mut awaited = vec![Dependency::shifted(rank, number(run), -1)];
                awaited.extend(before.map(|wait| Dependency::shifted(rank, wait, 0)));
                awaited.extend(
                    before
                        .filter(|_| reduces_at_peer(piece))
                        .map(|wait| Dependency::shifted(Rank(piece.to.at(0)), wait, 0)),
                );
                program.push(Run { span: piece.span, ..transfer }, &awaited);
            }
            let mut awaited = self.transfer_dependencies(step, &vec![0; step.pieces.len()]);
            awaited.extend(before.map(|wait| Dependency::shifted(rank, wait, 0)));
            program.push(self.at.wait(self.cut.loops), &awaited);
            before = Some(number(step.wait_run()));
        }
    }

    fn write_loop(&self, steps: &[RankStep], round: u32, program: &mut Program) {
        let rank = self.at.rank();
        let chunks = |parts: Parts| -> Chunks {
            let walk = self.cut.over_parts(parts.walk, round, self.lane);
            (parts.buffer, Walk { base: walk.base + self.region(parts), ..walk })
        };
        // Last wait of the previous step.
        let mut before: Option<(u32, u32)> = None;
        for step in steps {
            let number = |run: u32| self.first_run + run;
            for (run, piece) in (step.first_run..).zip(&step.pieces) {
                let transfer = self.at.transfer(piece.kind, piece.len, piece.to, chunks(piece.src), chunks(piece.dst));
                let mut awaited = Vec::with_capacity(3);
                awaited.extend(before.map(|(wait, last)| Dependency::on_operation(rank, wait, last)));
                let adds = before.filter(|_| reduces_at_peer(piece));
                awaited.extend(adds.map(|(wait, last)| Dependency::on_operation(Rank(piece.to.at(0)), wait, last)));
                if round > 0 {
                    awaited.push(Dependency::shifted(rank, number(run) - self.runs, 0));
                }
                program.push(Run { span: piece.span, ..transfer }, if piece.len > 0 { &awaited } else { &[] });
            }
            let wait = number(step.wait_run());
            let offsets: Vec<u32> =
                step.widths.iter().scan(0, |sum, width| Some(std::mem::replace(sum, *sum + width))).collect();
            let mut awaited = self.transfer_dependencies(step, &offsets);
            awaited.push(Dependency::shifted(rank, wait, -1));
            // The first wait continues from the last wait of the previous step.
            awaited.extend(before.map(|(run, last)| Dependency { rank, run, start: last as i32, step: 1 }));
            program.push(self.at.wait(step.waits()), &awaited);
            before = Some((wait, step.waits() - 1));
        }
    }

    /// Returns the dependencies on the transfers sent and received in a step. The waits of each piece start at the
    /// given offset.
    fn transfer_dependencies(&self, step: &RankStep, offsets: &[u32]) -> Vec<Dependency> {
        let mut awaited = Vec::with_capacity(2 * offsets.len() + 2);
        for ((run, piece), &offset) in (self.first_run + step.first_run..).zip(&step.pieces).zip(offsets) {
            let from = |rank| Dependency::shifted(rank, run, -(offset as i32));
            awaited.extend(step.source.map(|source| match step.share {
                Some(index) => Dependency::on_operation(Rank(source), run, index),
                None => from(Rank(source)),
            }));
            if piece.len > 0 {
                awaited.push(from(self.at.rank()));
            }
        }
        awaited
    }
}

/// Returns true if a piece reduces into a sum at another rank. That rank must have completed the previous step before.
fn reduces_at_peer(piece: &MessagePiece) -> bool {
    piece.kind.reduces() && piece.len > 0
}

/// Returns a walk over the parts `first..first + count` except `excluded`, starting after `excluded`.
pub(super) fn all_but(excluded: u32, first: u32, count: u32) -> Walk {
    Walk::cyclic(first, excluded + 1 - first, 1, count)
}
