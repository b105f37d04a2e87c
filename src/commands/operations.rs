//! The operations of a recorded run by name: who does what with whom.

use fabricast_sim::Timeline;
use fabricast_sim::engine::Span;
use fabricast_sim::schedule::{Channel, Generate, OpKind, Program, Rank};
use rustc_hash::FxHashMap;

/// What some ranks do.
pub struct Operations<'a> {
    timeline: &'a Timeline,
    programs: FxHashMap<Rank, Program>,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who executes it.
    pub rank: Rank,
    pub channel: Channel,
    pub kind: OpKind,
    /// Where the data lies; the executing rank where nothing moves between ranks.
    pub from: Rank,
    /// Where it goes.
    pub to: Rank,
    /// The first chunk written.
    pub chunk: u32,
    /// Number of chunks.
    pub chunks: u32,
}

impl<'a> Operations<'a> {
    /// Those of no rank.
    pub fn new(timeline: &'a Timeline) -> Self {
        Self { timeline, programs: FxHashMap::default() }
    }

    /// Those of one rank more; returns what it does.
    pub fn add(&mut self, generator: &dyn Generate, rank: Rank) -> &Program {
        self.programs.entry(rank).or_insert_with(|| {
            let mut program = Program::default();
            generator.program(rank, &mut program);
            program
        })
    }

    /// Whether a rank is among them.
    pub fn has(&self, rank: Rank) -> bool {
        self.programs.contains_key(&rank)
    }

    /// The operation that a span tells of; `None` where it belongs to none of the ranks.
    pub fn get(&self, span: &Span) -> Option<Operation> {
        let rank = self.timeline.rank_of(span.run);
        let first = *self.timeline.rank_starts.get(rank.0 as usize)?;
        let run = self.programs.get(&rank)?.runs().get((span.run - first) as usize)?;
        let (kind, peer) = (run.kind, Rank(run.peer.at(span.index)));
        let (from, to) = match kind {
            OpKind::Copy | OpKind::Reduce | OpKind::Wait => (rank, rank),
            // A team's number is no rank.
            _ if kind.is_multicast() => (rank, rank),
            _ if kind.reads_peer() => (peer, rank),
            _ => (rank, peer),
        };
        let chunk = run.dst.at(span.index);
        Some(Operation { rank, channel: run.channel, kind, from, to, chunk, chunks: run.span })
    }
}

impl Operation {
    /// The chunks: `3`, `8–11`; nothing where none is moved.
    pub fn chunks(&self) -> String {
        match self.chunks {
            0 => String::new(),
            1 => self.chunk.to_string(),
            _ => format!("{}–{}", self.chunk, self.chunk.saturating_add(self.chunks - 1)),
        }
    }
}
