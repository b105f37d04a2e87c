//! Which operations reach for the caller's buffers, where those lie outside the memory of the devices.
//!
//! A device brings its own contribution in when it first uses it, and takes a result out when it has it. What it only
//! passes on stays with it, as in NCCL's FIFO slots: a chunk that arrived is not read again from the output, and a partial
//! sum of an all_reduce is not written there, though the schedule names the chunk of the output that it is for. (The part
//! of an all_reduce that a rank finishes itself is then left out too, one n-th of its output in rings.)
//!
//! Pages of managed memory move once: only the first operation that reads a chunk of the caller's reaches for it, first in
//! the order of ranks and programs. Others that read it at the same time are not made to wait; they end no earlier than
//! the whole, which does wait for the page.

use rustc_hash::FxHashSet;

use crate::schedule::{Buffer, BufferUse, Call, Collective, Dependency, Header, OpKind, Rank, Run};
use crate::verify::contents::Contents;

/// How ranks come by what an all_reduce gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Results {
    /// Finished elsewhere and put there; sums in the output are partial.
    Put,
    /// Summed up there, contribution by contribution.
    Summed,
}

/// What an operation reaches for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Reaches {
    /// The source chunk is read from the buffers of the sending rank.
    pub reads_source: bool,
    /// What is added to is read from the buffers of the receiving rank.
    pub reads_target: bool,
    /// The result is written to the buffers of the receiving rank.
    pub writes_target: bool,
}

impl Reaches {
    /// Of the operations of a run of `rank`, which wait for these.
    pub fn of(call: &Call, results: Results, (rank, run): (Rank, &Run), waits: &[Dependency]) -> Self {
        if !run.kind.moves_data() {
            return Self::default();
        }
        let is_users = |buffer: Buffer| buffer != Buffer::Scratch;
        let passes_on = run.src_buffer != Buffer::Input && waits.iter().any(|wait| wait.rank != rank);
        let partial = call.collective == Collective::AllReduce && results == Results::Put;
        let is_partial = partial && run.kind.reduces();
        Self {
            reads_source: is_users(run.src_buffer) && !passes_on,
            reads_target: match run.kind {
                OpKind::PutReduceInput => true,
                kind => kind.reduces() && is_users(run.dst_buffer),
            },
            writes_target: is_users(run.dst_buffer) && !is_partial,
        }
    }

    /// What is left of it where chunks that were read before are with the device already, as are those that it writes.
    fn at_first_touch(self, header: &Header, ends: [(Rank, Buffer, u32); 2], run: &Run, touched: &mut Touched) -> Self {
        let is_callers = |buffer: Buffer| {
            buffer == Buffer::Input || (buffer == Buffer::Output && header.call.buffers == BufferUse::InPlace)
        };
        let contents = Contents::new(&header.call, &header.layout);
        // In place, what arrived lies where contributions may have lain.
        let brings = |rank: Rank, chunk: u32| contents.is_none_or(|contents| contents.has_input(rank.0, chunk));
        let mut first = |wanted: bool, (rank, buffer, chunk): (Rank, Buffer, u32)| {
            let mut is_new = false;
            if wanted && is_callers(buffer) {
                for chunk in (0..run.span).map(|i| chunk.wrapping_add(i)).filter(|&chunk| brings(rank, chunk)) {
                    is_new |= touched.0.insert((rank, chunk));
                }
            }
            is_new
        };
        let [source, (target, buffer, chunk)] = ends;
        let added_to = if run.kind == OpKind::PutReduceInput { Buffer::Input } else { buffer };
        Self {
            reads_source: first(self.reads_source, source),
            reads_target: first(self.reads_target, (target, added_to, chunk)),
            writes_target: false,
        }
    }

    /// Whether it reaches for anything.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// The chunks of the caller's that were read before, by rank.
#[derive(Debug, Default)]
pub(super) struct Touched(FxHashSet<(Rank, u32)>);

/// What the operations of a run reach for.
#[derive(Clone, Debug)]
pub(super) enum RunReaches {
    /// All the same.
    Same(Reaches),
    /// One for each operation.
    Each(Vec<Reaches>),
}

impl RunReaches {
    /// Of a run in managed memory, all of whose operations would reach for the same in other memory.
    pub fn at_first_touch(reaches: Reaches, header: &Header, (rank, run): (Rank, &Run), touched: &mut Touched) -> Self {
        if !reaches.any() || run.kind.is_multicast() {
            return Self::Same(Reaches::default());
        }
        let of = |index: u32| {
            let peer = Rank(run.peer.at(index));
            let source = if run.kind.reads_peer() { peer } else { rank };
            let target = if run.kind.writes_peer() { peer } else { rank };
            let ends = [(source, run.src_buffer, run.src.at(index)), (target, run.dst_buffer, run.dst.at(index))];
            reaches.at_first_touch(header, ends, run, touched)
        };
        let each: Vec<Reaches> = (0..run.len).map(of).collect();
        match each.split_first() {
            Some((&first, rest)) if rest.iter().all(|&other| other == first) => Self::Same(first),
            Some(_) => Self::Each(each),
            None => Self::Same(Reaches::default()),
        }
    }

    /// Of one operation.
    pub fn at(&self, index: u32) -> Reaches {
        match self {
            Self::Same(reaches) => *reaches,
            Self::Each(each) => each.get(index as usize).copied().unwrap_or_default(),
        }
    }

    /// Whether all operations reach for the same.
    pub fn is_same(&self) -> bool {
        matches!(self, Self::Same(_))
    }
}
