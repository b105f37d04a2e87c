//! Dependencies in a plan: the order within a thread block, and its synchronization with others.
//!
//! Loads, local copies and sums block a thread block until they are done. Stores to peers do not: later operations
//! overlap with them, unless they write memory that the stores read. A signal states that all earlier operations are
//! done. It is a separate operation, or is carried by the last stores to the same peer if it follows them directly.

use rustc_hash::FxHashMap;

use super::parse::ChannelKey;
use crate::schedule::chunk_numbering::cell;
use crate::schedule::draft::{Draft, DraftOp};
use crate::schedule::{BufferUse, ChunkRef, OpKind};

/// Dependency of an operation. Some types can be resolved only after the whole plan has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum DependencyKey {
    /// Completion of a single operation of the draft.
    Op(u32),
    /// The n-th signal on a channel, identified by its sending end.
    Signal(ChannelKey, u32),
    /// All arrivals at barrier `id` of a GPU in round n, as (GPU, id, n).
    Barrier(u32, u32, u32),
    /// The n-th acquisition of semaphore `id` of a GPU, as (GPU, id, n).
    Semaphore(u32, u32, u32),
    /// Packets in a scratch chunk of a GPU, as (GPU, chunk).
    Packet(u32, u32),
}

/// First source and destination chunk of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoints {
    pub(super) src: ChunkRef,
    pub(super) dst: ChunkRef,
}

/// Maximum number of dependencies of a thread block before they are joined in one wait operation.
const MAX_WAITS: usize = 16;

/// Store that no operation has waited for so far.
#[derive(Clone, Copy, Debug)]
struct Pending {
    op: u32,
    /// Destination GPU; `None` for all GPUs of a group.
    peer: Option<u32>,
    /// Value of [`BlockOrder::state`] when the store began.
    start_state: u32,
}

/// Operations with their dependencies.
#[derive(Default)]
pub(super) struct OrderedDraft {
    pub(super) draft: Draft,
    pub(super) after: Vec<Vec<DependencyKey>>,
    /// Operations that are done when each signal of a channel arrives.
    pub(super) signals: FxHashMap<ChannelKey, Vec<Vec<u32>>>,
}

impl OrderedDraft {
    fn push(&mut self, op: DraftOp, after: Vec<DependencyKey>) -> u32 {
        self.after.push(after);
        self.draft.push(op)
    }
}

/// Synchronization state of one thread block while its operations are translated.
pub(super) struct BlockOrder<'o> {
    pub(super) ordered: &'o mut OrderedDraft,
    pub(super) rank: u32,
    pub(super) channel: u16,
    pub(super) buffers: BufferUse,
    /// Dependencies of all later operations of the thread block.
    sync: Vec<DependencyKey>,
    /// Number of changes of `sync` so far.
    state: u32,
    /// True if `sync` has a dependency that no operation has waited for so far.
    has_unused_wait: bool,
    pending: Vec<Pending>,
    /// Pending stores that read each chunk.
    reading: FxHashMap<ChunkRef, Vec<u32>>,
}

impl<'o> BlockOrder<'o> {
    pub(super) fn new(ordered: &'o mut OrderedDraft, rank: u32, channel: u16, buffers: BufferUse) -> Self {
        let (sync, pending, reading) = (Vec::new(), Vec::new(), FxHashMap::default());
        Self { ordered, rank, channel, buffers, sync, state: 0, has_unused_wait: false, pending, reading }
    }

    /// Adds an operation that blocks its thread block; returns the number of the operation.
    pub(super) fn push_blocking(&mut self, kind: OpKind, peer: u32, ends: Endpoints, span: u32) -> u32 {
        let mut after = self.sync.clone();
        // Local memory is written only after the pending stores that read it.
        for chunk in cells(ends.dst, span, self.buffers) {
            for store in self.reading.remove(&chunk).into_iter().flatten().map(DependencyKey::Op) {
                if !after.contains(&store) {
                    after.push(store);
                }
            }
        }
        let op = self.op(kind, peer, ends, span);
        let op = self.ordered.push(op, after);
        self.has_unused_wait = false;
        self.sync = vec![DependencyKey::Op(op)];
        self.state += 1;
        op
    }

    /// Adds a store into a peer's memory, which does not block its thread block; returns the number of the operation.
    pub(super) fn store(&mut self, peer: u32, ends: Endpoints, span: u32) -> u32 {
        let op = self.op(OpKind::Put, peer, ends, span);
        let op = self.ordered.push(op, self.sync.clone());
        self.has_unused_wait = false;
        if self.pending.len() >= MAX_WAITS * MAX_WAITS {
            self.join_pending();
        }
        self.pending.push(Pending { op, peer: Some(peer), start_state: self.state });
        for chunk in cells(ends.src, span, self.buffers) {
            self.reading.entry(chunk).or_default().push(op);
        }
        op
    }

    /// Adds a store to all GPUs of a team, including the rank's own. It blocks its thread block, and can carry a
    /// subsequent signal.
    pub(super) fn store_to_all(&mut self, team: u32, ends: Endpoints, span: u32) {
        let op = self.push_blocking(OpKind::MulticastPut, team, ends, span);
        if self.pending.len() >= MAX_WAITS * MAX_WAITS {
            self.join_pending();
        }
        self.pending.push(Pending { op, peer: None, start_state: self.state });
    }

    /// Makes all later operations wait for `on`.
    pub(super) fn wait(&mut self, on: DependencyKey) {
        if !self.sync.contains(&on) {
            self.sync.push(on);
            self.state += 1;
            self.has_unused_wait = !matches!(on, DependencyKey::Op(_)) || self.has_unused_wait;
        }
        if self.sync.len() > MAX_WAITS {
            let op = self.op_without_data(OpKind::Wait, self.rank);
            let op = self.ordered.push(op, std::mem::take(&mut self.sync));
            self.sync = vec![DependencyKey::Op(op)];
        }
    }

    /// Makes all later operations wait for the pending stores.
    pub(super) fn flush(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            self.wait(DependencyKey::Op(pending.op));
        }
        self.reading.clear();
    }

    /// Ends the thread block. Adds a wait operation for dependencies that no operation has waited for.
    pub(super) fn finish(&mut self) {
        if self.has_unused_wait {
            let op = self.op_without_data(OpKind::Wait, self.rank);
            let op = self.ordered.push(op, std::mem::take(&mut self.sync));
            self.sync = vec![DependencyKey::Op(op)];
        }
    }

    /// Returns an operation that completes after all earlier ones; `None` if there are no earlier operations.
    pub(super) fn join(&mut self) -> Option<u32> {
        let dependencies: Vec<DependencyKey> =
            self.sync.iter().copied().chain(self.pending.iter().map(|p| DependencyKey::Op(p.op))).collect();
        match dependencies[..] {
            [] => None,
            [DependencyKey::Op(op)] => Some(op),
            _ => {
                let op = self.op_without_data(OpKind::Wait, self.rank);
                Some(self.ordered.push(op, dependencies))
            }
        }
    }

    /// Adds a signal to a peer that all earlier operations are done.
    pub(super) fn signal(&mut self, channel: ChannelKey, peer: u32) {
        let carried = self
            .pending
            .iter()
            .any(|pending| pending.peer.is_none_or(|to| to == peer) && pending.start_state == self.state);
        let completed = if carried {
            if self.pending.len() > MAX_WAITS {
                self.join_pending();
            }
            self.pending.iter().map(|pending| pending.op).collect()
        } else {
            let after = self.sync.iter().copied().chain(self.pending.iter().map(|p| DependencyKey::Op(p.op))).collect();
            let op = self.op_without_data(OpKind::Signal, peer);
            vec![self.ordered.push(op, after)]
        };
        self.ordered.signals.entry(channel).or_default().push(completed);
    }

    /// Replaces all pending stores by one wait operation.
    fn join_pending(&mut self) {
        let op = self.op_without_data(OpKind::Wait, self.rank);
        let op = self.ordered.push(op, self.pending.iter().map(|pending| DependencyKey::Op(pending.op)).collect());
        // The stores have different peers, so a later signal is a separate operation or is carried by a later store.
        self.pending = vec![Pending { op, peer: Some(self.rank), start_state: self.state }];
    }

    fn op(&self, kind: OpKind, peer: u32, ends: Endpoints, span: u32) -> DraftOp {
        let Endpoints { src, dst } = ends;
        DraftOp { rank: self.rank, peer, channel: self.channel, kind, src, dst, span, dependencies: Vec::new() }
    }

    fn op_without_data(&self, kind: OpKind, peer: u32) -> DraftOp {
        DraftOp::without_data(kind, self.rank, peer, self.channel)
    }
}

fn cells(first: ChunkRef, span: u32, buffers: BufferUse) -> impl Iterator<Item = ChunkRef> {
    (0..span).map(move |i| cell(ChunkRef { index: first.index + i, ..first }, buffers))
}
