//! Constructors for the runs of one rank on one channel.

use fabricast_sim::schedule::{Buffer, Channel, OpKind, Rank, Run, Walk};

/// Chunks that a run accesses: a buffer, and a walk over its chunks.
pub(super) type Chunks = (Buffer, Walk);

/// Rank, and the channel that executes its runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) rank: u32,
    pub(super) channel: u16,
}

impl Lane {
    /// Creates a run of `len` transfers of type `kind`, of one chunk each.
    pub(super) fn transfer(self, kind: OpKind, len: u32, peer: Walk, src: Chunks, dst: Chunks) -> Run {
        Run {
            len,
            kind,
            channel: Channel(self.channel),
            peer,
            src_buffer: src.0,
            src: src.1,
            dst_buffer: dst.0,
            dst: dst.1,
            span: 1,
        }
    }

    /// Creates a run of `len` puts of one chunk each.
    pub(super) fn put(self, len: u32, peer: Walk, src: Chunks, dst: Chunks) -> Run {
        self.transfer(OpKind::Put, len, peer, src, dst)
    }

    /// Creates a run of `len` local operations of one chunk each.
    pub(super) fn local(self, kind: OpKind, len: u32, src: Chunks, dst: Chunks) -> Run {
        self.transfer(kind, len, Walk::fixed(self.rank), src, dst)
    }

    /// Creates a run of `len` operations that only wait for their dependencies.
    pub(super) fn wait(self, len: u32) -> Run {
        let nothing = (Buffer::Output, Walk::fixed(0));
        Run { span: 0, ..self.local(OpKind::Wait, len, nothing, nothing) }
    }

    /// Creates a signal to `peer`, sent once the dependencies are complete.
    pub(super) fn signal(self, peer: u32) -> Run {
        self.signals(1, Walk::fixed(peer))
    }

    /// Creates a run of signals, one to each of `len` peers.
    pub(super) fn signals(self, len: u32, peers: Walk) -> Run {
        let nothing = (Buffer::Output, Walk::fixed(0));
        Run { span: 0, ..self.transfer(OpKind::Signal, len, peers, nothing, nothing) }
    }

    pub(super) fn rank(self) -> Rank {
        Rank(self.rank)
    }
}
