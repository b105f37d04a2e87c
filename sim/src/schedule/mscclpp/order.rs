//! Who waits for whom in a plan: the order within a thread block, and what it hears from others.
//!
//! Loads, local copies and sums hold a thread block up until they are done; stores to peers do not, whatever comes next
//! runs beside them, but for what writes the memory that they read. A signal says that everything before it is done: on
//! its own, or carried by the last stores to the same peer, which it follows closely.

use rustc_hash::FxHashMap;

use super::parse::ChannelKey;
use crate::schedule::draft::{Draft, DraftOp};
use crate::schedule::places::cell;
use crate::schedule::{BufferUse, ChunkRef, OpKind};

/// What an operation waits for, some of which is known only when all of the plan has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum After {
    /// An operation.
    Op(u32),
    /// The n-th signal that comes by a channel, named by the end that sends.
    Signal(ChannelKey, u32),
    /// All who come to barrier `id` of a GPU for the n-th time.
    Barrier(u32, u32, u32),
    /// The n-th acquisition of semaphore `id` of a GPU.
    Semaphore(u32, u32, u32),
    /// Packets in a scratch chunk of a GPU.
    Packet(u32, u32),
}

/// More than this and a thread block's waits are joined in an operation of their own.
const MOST_WAITS: usize = 16;

/// A store that nothing has waited for yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    op: u32,
    /// `None`: all GPUs of a group.
    peer: Option<u32>,
    /// The state of the thread block's order in which it began.
    began: u32,
}

/// Operations with what they wait for.
#[derive(Default)]
pub(super) struct Ordered {
    pub(super) draft: Draft,
    pub(super) after: Vec<Vec<After>>,
    /// For each signal sent by a channel, what is done by then.
    pub(super) signals: FxHashMap<ChannelKey, Vec<Vec<u32>>>,
}

impl Ordered {
    fn push(&mut self, op: DraftOp, after: Vec<After>) -> u32 {
        self.after.push(after);
        self.draft.push(op)
    }
}

/// The order of one thread block, as its operations are taken in turn.
pub(super) struct Lane<'o> {
    pub(super) all: &'o mut Ordered,
    pub(super) rank: u32,
    pub(super) channel: u16,
    pub(super) buffers: BufferUse,
    /// What everything from here on waits for.
    sync: Vec<After>,
    /// Changes with `sync`.
    state: u32,
    /// Whether it was told to wait for something that nothing has waited for yet.
    unheeded: bool,
    pending: Vec<Pending>,
    /// Chunks that pending stores read.
    reading: FxHashMap<ChunkRef, Vec<u32>>,
}

impl<'o> Lane<'o> {
    pub(super) fn new(all: &'o mut Ordered, rank: u32, channel: u16, buffers: BufferUse) -> Self {
        let (sync, pending, reading) = (Vec::new(), Vec::new(), FxHashMap::default());
        Self { all, rank, channel, buffers, sync, state: 0, unheeded: false, pending, reading }
    }

    /// An operation that holds the thread block up; returns its number.
    pub(super) fn hold(&mut self, kind: OpKind, peer: u32, (src, dst): (ChunkRef, ChunkRef), span: u32) -> u32 {
        let mut after = self.sync.clone();
        // Its own memory is written at the end of all these.
        for chunk in cells(dst, span, self.buffers) {
            for store in self.reading.remove(&chunk).into_iter().flatten().map(After::Op) {
                if !after.contains(&store) {
                    after.push(store);
                }
            }
        }
        let op = self.op(kind, peer, (src, dst), span);
        let op = self.all.push(op, after);
        self.unheeded = false;
        self.sync = vec![After::Op(op)];
        self.state += 1;
        op
    }

    /// A store into a peer's memory; returns its number.
    pub(super) fn store(&mut self, peer: u32, (src, dst): (ChunkRef, ChunkRef), span: u32) -> u32 {
        let op = self.op(OpKind::Put, peer, (src, dst), span);
        let op = self.all.push(op, self.sync.clone());
        self.unheeded = false;
        if self.pending.len() >= MOST_WAITS * MOST_WAITS {
            self.catch_up();
        }
        self.pending.push(Pending { op, peer: Some(peer), began: self.state });
        for chunk in cells(src, span, self.buffers) {
            self.reading.entry(chunk).or_default().push(op);
        }
        op
    }

    /// A store to all GPUs of a team, its own included: it holds the thread block up, and a signal that follows is carried
    /// by it.
    pub(super) fn store_to_all(&mut self, team: u32, ends: (ChunkRef, ChunkRef), span: u32) {
        let op = self.hold(OpKind::MulticastPut, team, ends, span);
        if self.pending.len() >= MOST_WAITS * MOST_WAITS {
            self.catch_up();
        }
        self.pending.push(Pending { op, peer: None, began: self.state });
    }

    /// Everything from here on waits for something.
    pub(super) fn wait(&mut self, on: After) {
        if !self.sync.contains(&on) {
            self.sync.push(on);
            self.state += 1;
            self.unheeded = !matches!(on, After::Op(_)) || self.unheeded;
        }
        if self.sync.len() > MOST_WAITS {
            let op = self.still(OpKind::Wait, self.rank);
            let op = self.all.push(op, std::mem::take(&mut self.sync));
            self.sync = vec![After::Op(op)];
        }
    }

    /// Everything from here on waits for the stores before.
    pub(super) fn flush(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            self.wait(After::Op(pending.op));
        }
        self.reading.clear();
    }

    /// The end of the thread block, which waits for what it was told to.
    pub(super) fn finish(&mut self) {
        if self.unheeded {
            let op = self.still(OpKind::Wait, self.rank);
            let op = self.all.push(op, std::mem::take(&mut self.sync));
            self.sync = vec![After::Op(op)];
        }
    }

    /// An operation that is done when everything before is; none where nothing is before.
    pub(super) fn join(&mut self) -> Option<u32> {
        let all: Vec<After> = self.sync.iter().copied().chain(self.pending.iter().map(|p| After::Op(p.op))).collect();
        match all[..] {
            [] => None,
            [After::Op(op)] => Some(op),
            _ => {
                let op = self.still(OpKind::Wait, self.rank);
                Some(self.all.push(op, all))
            }
        }
    }

    /// A signal to a peer that everything before is done.
    pub(super) fn signal(&mut self, channel: ChannelKey, peer: u32) {
        let carried =
            self.pending.iter().any(|pending| pending.peer.is_none_or(|to| to == peer) && pending.began == self.state);
        let done = if carried {
            if self.pending.len() > MOST_WAITS {
                self.catch_up();
            }
            self.pending.iter().map(|pending| pending.op).collect()
        } else {
            let after = self.sync.iter().copied().chain(self.pending.iter().map(|p| After::Op(p.op))).collect();
            let op = self.still(OpKind::Signal, peer);
            vec![self.all.push(op, after)]
        };
        self.all.signals.entry(channel).or_default().push(done);
    }

    /// One operation stands for all pending stores.
    fn catch_up(&mut self) {
        let op = self.still(OpKind::Wait, self.rank);
        let op = self.all.push(op, self.pending.iter().map(|pending| After::Op(pending.op)).collect());
        // Peers differ; whoever signals next does so on its own or by a later store.
        self.pending = vec![Pending { op, peer: Some(self.rank), began: self.state }];
    }

    fn op(&self, kind: OpKind, peer: u32, (src, dst): (ChunkRef, ChunkRef), span: u32) -> DraftOp {
        DraftOp { rank: self.rank, peer, channel: self.channel, kind, src, dst, span, after: Vec::new() }
    }

    fn still(&self, kind: OpKind, peer: u32) -> DraftOp {
        DraftOp::still(kind, self.rank, peer, self.channel)
    }
}

fn cells(first: ChunkRef, span: u32, buffers: BufferUse) -> impl Iterator<Item = ChunkRef> {
    (0..span).map(move |i| cell(ChunkRef { index: first.index + i, ..first }, buffers))
}
