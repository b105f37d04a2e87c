//! Operations of a recorded run: rank, channel, kind, end points and chunks.

use fabricast_sim::Timeline;
use fabricast_sim::engine::Span;
use fabricast_sim::schedule::{Channel, OpKind, Program, Rank, ScheduleGenerator};
use rustc_hash::FxHashMap;

/// Programs of selected ranks of a run.
pub struct Operations<'a> {
    timeline: &'a Timeline,
    programs: FxHashMap<Rank, Program>,
}

/// An operation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Rank that executes the operation.
    pub rank: Rank,
    pub channel: Channel,
    pub kind: OpKind,
    /// Rank that holds the source data; for local operations, the executing rank.
    pub from: Rank,
    /// Rank of the destination.
    pub to: Rank,
    /// Index of the first chunk that is written.
    pub chunk: u32,
    /// Number of chunks; 0 if no data moves.
    pub chunks: u32,
}

impl<'a> Operations<'a> {
    /// Creates an empty collection.
    pub fn new(timeline: &'a Timeline) -> Self {
        Self { timeline, programs: FxHashMap::default() }
    }

    /// Adds the program of a rank and returns it.
    pub fn add(&mut self, generator: &dyn ScheduleGenerator, rank: Rank) -> &Program {
        self.programs.entry(rank).or_insert_with(|| {
            let mut program = Program::default();
            generator.program(rank, &mut program);
            program
        })
    }

    /// Returns true if the rank's program was added.
    pub fn has(&self, rank: Rank) -> bool {
        self.programs.contains_key(&rank)
    }

    /// Returns the operation of a span; `None` if the span's rank was not added.
    pub fn get(&self, span: &Span) -> Option<Operation> {
        let rank = self.timeline.run_rank(span.run);
        let first = *self.timeline.rank_starts.get(rank.0 as usize)?;
        let run = self.programs.get(&rank)?.runs().get((span.run - first) as usize)?;
        let (kind, peer) = (run.kind, Rank(run.peer.at(span.index)));
        let (from, to) = match kind {
            OpKind::Copy | OpKind::Reduce | OpKind::Wait => (rank, rank),
            // The peer of a multicast is a group of ranks, not a single rank.
            _ if kind.is_multicast() => (rank, rank),
            _ if kind.reads_peer() => (peer, rank),
            _ => (rank, peer),
        };
        let chunk = run.dst.at(span.index);
        Some(Operation { rank, channel: run.channel, kind, from, to, chunk, chunks: run.span })
    }
}

impl Operation {
    /// Formats the chunk range: `3` or `8–11`; empty if no chunk moves.
    pub fn chunks(&self) -> String {
        match self.chunks {
            0 => String::new(),
            1 => self.chunk.to_string(),
            _ => format!("{}–{}", self.chunk, self.chunk.saturating_add(self.chunks - 1)),
        }
    }
}
