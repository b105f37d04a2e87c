//! Device-side cost of a protocol, and the time that an operation occupies its thread block.
//!
//! A channel is a thread block (or a copy-engine stream). The time of an operation that moves c bytes is
//!
//! ```text
//! software:  step + step_per_warp·w + (reduce | copy) + settle·c/(c + settle_half)   [+ take, at the start of a chain]
//!            − overlap with later slices: at most (slices − 1)/slices of (passes − 1)·pass, for forwarded data
//!            + reload/w · min(1, c / 16 B), for a block that forwards data and was busy just before
//!            + fan, on split blocks (trees)
//!            + c ÷ add, if a sum stays with its rank and calls wait for all ranks
//! path:      the latency of its path
//! bytes:     the longer of c ÷ (wire efficiency × its share of the links) and, for its block, (passes − 1)·pass
//! ```
//!
//! with w warps in the block; names of figures are those of profile files. [`Passes`] lists the times of a pass: `take`
//! is its `receive`, and `fan` is [`ProtocolCosts::split_block`]. FIFO protocols handle c bytes in passes of
//! `bytes_per_thread` × threads; each pass loads, polls for flags and stores before the next begins. The first pass is
//! part of the step, but the next of several pipelined messages (in trees) flows only after all passes of this one. The
//! time of a pass depends on its actions: `send` loads and sends; `forward` receives and sends (the load of its addend
//! overlaps with the wait); `receive` receives and stores; `store` is added if the sent data is also stored locally. In
//! inter-host trees a block receives from two children, or sends to two, in the same passes ([`SharedPasses`]): data of
//! the second sender is another wait, `receive` without its `store`, and data for the second receiver another store.
//! (Source: reduce_scatter and all_gather with one channel on 4 × H200, which differ by such stores,
//! validate/runs/2026-11-21-4xh200-forced.)
//!
//! A block executes its operations in sequence. A schedule has no operation for receiving data that is not forwarded
//! (the last receive of a loop in NCCL); it is charged as `receive` to the first send of the block. In pairwise
//! exchanges half of a block's threads send while the other half receives: `exchange` is a pass of both, which share an
//! SM. Data without flags in every line is received only when its chunk is complete, so the first send and the last
//! receive are not overlapped and need half of that time each. (Source: send_recv on two H200,
//! validate/runs/2026-11-23-2xh200-sends.) An NVLS chunk is first copied, by some warps of the block, into the buffer
//! that the switch reads.
//!
//! Sources: NCCL 2.28 src/device/prims_ll.h (8 bytes per thread and pass), prims_ll128.h (16 words of 8 bytes for 8
//! threads, 15 of them data, unrolled 8 times: 60 bytes), prims_simple.h, all_reduce.h (the sequence of primitives; up
//! and down a tree on different warps).

use fabricast_topologies::{Bandwidth, Bytes, Picos};

use crate::schedule::Collective;

/// Device-side cost of a protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProtocolCosts {
    /// Cost per call: kernel start, connection set-up, last synchronisation.
    pub startup: Picos,
    /// Cost per call of the kernels for pairwise exchanges (send_recv, all_to_all, gather, scatter); `None` means
    /// `startup`.
    pub startup_p2p: Option<Picos>,
    /// Cost per call for each warp of a block.
    pub startup_per_warp: Picos,
    /// Cost per call for each concurrent peer, beyond the first, with which a rank exchanges its own data on separate
    /// blocks. The call ends with the last of these blocks. (Source: all_to_all on 2 and 4 × H200,
    /// validate/runs/2026-11-21-2xh200, 2026-11-21-4xh200.)
    pub startup_per_peer: Picos,
    /// Cost of every operation before its data moves, in addition to the latency of its path: flags, fences, polling.
    pub step: Picos,
    /// Additional cost of every operation for each warp of a block, since all warps must synchronize.
    pub step_per_warp: Picos,
    /// Additional cost of operations that reduce arriving data.
    pub reduce: Picos,
    /// Additional cost of operations that only move data.
    pub copy: Picos,
    /// Time until the next chunk's data is processed by a block that comes directly from the previous chunk (barriers,
    /// loads of its own data to registers). In time of one warp, shared by the block's w warps. A block that had to
    /// wait for the data has done this work before; rings therefore incur the cost at every step, and trees, whose
    /// blocks wait, do not.
    ///
    /// Ring all_reduce splits chunks at 16 bytes; of smaller chunks only some carry data, and a block finishes the
    /// others immediately.
    ///
    /// Sources: NCCL 2.28 src/device/prims_ll128.h (`GenericOp`: barrier, loads, poll, barrier), all_reduce.h
    /// (`runRing`). The division among warps is measured (LL128 rings of 320 and 640 threads); NCCL's source does not
    /// show it.
    pub reload: Picos,
    /// Additional cost before an operation of a split block. The primitives of trees support three children, and two
    /// groups of warps with separate barriers share an SM. (NCCL 2.28 src/device/all_reduce.h: `runTreeSplit`,
    /// `FanAsymmetric<NCCL_MAX_TREE_ARITY, 1>`.)
    pub split_block: Picos,
    /// Rate at which a block reduces arrived data into a sum that stays with its rank, while the block sends nothing;
    /// `None` if this costs no time. A forwarded sum is sent while it is computed, and in one-way calls the data of the
    /// next call arrives meanwhile. (Source: reduce_scatter, all_gather and all_reduce of 256 MiB on 2 × H200 and 2 ×
    /// H100, validate/runs/2026-11-21-2xh200, 2026-11-24-2xh100.)
    pub add: Option<Bandwidth>,
    /// Time until all data of a large operation is visible before its flags. Grows with the number of bytes from 0 to
    /// this limit.
    pub settle: Picos,
    /// Number of bytes at which the settling time is half of `settle`.
    pub settle_half: Bytes,
    /// Payload ÷ bytes on the wire, from the protocol's framing (ll 0.5, ll128 0.9375).
    pub wire_efficiency: f64,
    /// Throughput limit of a channel.
    pub channel_limit: ChannelLimit,
    /// Threads per block unless the schedule sets them.
    pub threads: u16,
    /// Fraction of a block's threads that reduce, if the block is split to reduce and copy concurrently (trees). The
    /// other threads copy.
    pub split: f64,
    /// Largest chunk of a step; `None` means unlimited.
    pub chunk: Option<Bytes>,
    /// Slices in which a chunk is forwarded: the next step overlaps with all slices but the first.
    pub slices: u16,
    /// Size of the pieces in which chunks stream through a chain of ranks, for protocols with flags in every line,
    /// whose data is forwarded before the chunk is complete; `None` if chunks are forwarded as a whole.
    pub stream: Option<Bytes>,
}

/// Throughput limit of a channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChannelLimit {
    /// No limit on the channel.
    Unlimited,
    /// Largest payload rate of the channel.
    Rate(Bandwidth),
    /// The channel's rate is limited by the passes of its thread block.
    Passes(Passes),
}

/// Costs of a thread block that moves data in passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// Payload that a thread moves per pass.
    pub bytes_per_thread: Bytes,
    /// Time of a pass that sends local data.
    pub send: Picos,
    /// Time of a pass that forwards arriving data.
    pub forward: Picos,
    /// Time of a pass that only receives.
    pub receive: Picos,
    /// Additional time of a pass that also stores the sent data in the rank's own memory.
    pub store: Picos,
    /// Time added to each pass for each warp of the block.
    pub per_warp: Picos,
    /// Time before the first receiving pass.
    pub first_receive: Picos,
    /// Time of a pass of a block that sends with half of its threads and receives with the other half; `None` means one
    /// pass of each in sequence.
    pub exchange: Option<Picos>,
}

/// Memory of the buffer into which a block copies the data that it sends in a pairwise exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendBuffer {
    /// Memory of the receiver, within a host.
    Receiver,
    /// Memory of the sender, from which a NIC reads.
    Sender,
}

/// Pairwise exchange of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairwiseExchange {
    /// Buffer into which the block copies the data that it sends.
    pub buffer: SendBuffer,
    /// Number of peers with which the block exchanges messages concurrently.
    pub peers: u32,
}

/// Role of a thread block in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends data from local memory, after receiving the last arriving data.
    Send,
    /// Forwards data as it arrives.
    Forward,
}

/// Kind of an operation: copy or reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Moves data without reducing it.
    Copy,
    /// Reduces arriving data with local data.
    Reduce,
}

/// Use of local memory for the data that a block sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalStore {
    /// The data is only sent.
    None,
    /// The data is also stored at the sending rank.
    Store,
}

/// Destination of an operation's data at the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Destination {
    /// The data is forwarded, or the call does not wait for it.
    #[default]
    Forwarded,
    /// The data is stored, and the call ends only when it has arrived.
    Stored,
}

/// Work that an operation shares with another one in the same passes of a block, for primitives that receive from or
/// send to several peers (NCCL 2.28 src/device/prims_ll128.h, `recvReduceSendCopy` with more than one of `RECV` or
/// `SEND`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SharedPasses {
    /// Shares no passes with another operation.
    #[default]
    None,
    /// Adds the data of a further peer to the passes: another wait for arriving data.
    AdditionalReceive,
    /// Sends the data of the passes to a further peer: another store.
    AdditionalSend,
    /// The operation has no separate passes: it is part of the operation that sends the sum.
    Merged,
}

/// Work of a thread block in one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockWork {
    /// Role of the block.
    pub role: Role,
    /// Kind of the operation: copy or reduction.
    pub operation: OperationKind,
    /// Local storage of the sent data.
    pub local_store: LocalStore,
    /// Passes shared with another operation.
    pub shared: SharedPasses,
    /// Payload of the operation, rounded up to whole bytes.
    pub bytes: Bytes,
    /// Number of threads of the block.
    pub threads: u16,
}

/// Charge for the last pass of an operation if its bytes do not fill the pass.
#[derive(Clone, Copy)]
enum PartialPass {
    /// Charged as a full pass.
    Full,
    /// Charged as a proportional part of a pass.
    Proportional,
}

/// Number of threads of a warp.
const WARP: u16 = 32;
/// Maximum number of concurrent peers of a send/receive block (NCCL 2.28 src/include/device.h:
/// NCCL_MAX_DEV_WORK_P2P_PER_BATCH).
pub(crate) const MAX_EXCHANGE_PEERS: u32 = 8;
/// Alignment of a ring's chunks in bytes.
const ALIGNMENT: u64 = 16;

impl ProtocolCosts {
    /// Costs of a protocol without software costs and without rate limits.
    pub const FREE: Self = Self {
        startup: Picos::ZERO,
        startup_p2p: None,
        startup_per_warp: Picos::ZERO,
        startup_per_peer: Picos::ZERO,
        step: Picos::ZERO,
        step_per_warp: Picos::ZERO,
        reduce: Picos::ZERO,
        copy: Picos::ZERO,
        reload: Picos::ZERO,
        split_block: Picos::ZERO,
        add: None,
        settle: Picos::ZERO,
        settle_half: Bytes(0),
        wire_efficiency: 1.0,
        channel_limit: ChannelLimit::Unlimited,
        threads: 512,
        split: 0.5,
        chunk: None,
        slices: 1,
        stream: None,
    };

    /// Cost of a call before its first operation. `threads`: threads per block; `peers`: concurrent peers per rank
    /// ([`Header::concurrent_peers`](crate::schedule::Header::concurrent_peers)).
    #[must_use]
    pub fn startup(&self, collective: Collective, threads: u16, peers: u16) -> Picos {
        self.min_startup(collective)
            + times(self.startup_per_warp, warps(threads))
            + times(self.startup_per_peer, peers.saturating_sub(1))
    }

    /// Size of a slot of a connection's buffer; `None` if chunks are unlimited. A chunk with slices spans two slots per
    /// slice (NCCL 2.28 src/include/collectives.h: a chunk has four slots, a slice two).
    #[must_use]
    pub fn slot(&self) -> Option<Bytes> {
        let slots = if self.slices > 1 { 2 * u64::from(self.slices) } else { 1 };
        self.chunk.map(|chunk| Bytes(chunk.0 / slots))
    }

    /// Lower bound on [`Self::startup`] for any number of threads and peers.
    #[must_use]
    pub fn min_startup(&self, collective: Collective) -> Picos {
        match self.startup_p2p {
            Some(startup) if collective.is_pairwise() => startup,
            _ => self.startup,
        }
    }

    /// Software time before an operation moves its first byte.
    #[must_use]
    pub fn software(&self, work: BlockWork) -> Picos {
        Picos(self.step_time(work).0.saturating_sub(self.hidden(work).0)) + self.preceding_receive(work)
    }

    /// Software time of an operation whose data arrives over a network; in all other respects it is that of
    /// [`Self::software`]. A block receives slices as they arrive, so only the last slice remains to be received when
    /// all data has arrived.
    #[must_use]
    pub fn software_after_network(&self, work: BlockWork) -> Picos {
        let slice = Bytes(work.bytes.0.div_ceil(u64::from(self.slices.max(1))));
        let received = self.preceding_receive(BlockWork { bytes: slice, ..work });
        Picos(self.step_time(work).0.saturating_sub(self.hidden(work).0)) + received
    }

    /// Software time of an operation on a rank that receives no data during the call.
    #[must_use]
    pub fn source_software(&self, work: BlockWork) -> Picos {
        self.step_time(work)
    }

    fn step_time(&self, work: BlockWork) -> Picos {
        let kind = match work.operation {
            OperationKind::Copy => self.copy,
            OperationKind::Reduce => self.reduce,
        };
        let bytes = work.bytes.0;
        let settled = match bytes.checked_add(self.settle_half.0) {
            Some(0) | None => self.settle,
            Some(sum) => Picos((u128::from(self.settle.0) * u128::from(bytes) / u128::from(sum)) as u64),
        };
        self.step + times(self.step_per_warp, warps(work.threads)) + kind + settled
    }

    /// Time that a block needs to add `bytes` to a sum that stays with its rank.
    #[must_use]
    pub fn reduction_time(&self, bytes: Bytes) -> Picos {
        self.add.map_or(Picos::ZERO, |rate| rate.transfer_time(bytes))
    }

    /// Part of a step that overlaps with the arrival of its data: data arrives in slices, and the sending block is
    /// still busy with later slices.
    fn hidden(&self, work: BlockWork) -> Picos {
        match (work.role, self.busy(work)) {
            (Role::Forward, Some(busy)) => {
                let slices = u64::from(self.slices.max(1));
                Picos(busy.0 / slices * (slices - 1))
            }
            _ => Picos::ZERO,
        }
    }

    /// Additional time of a block that was busy just before the data of an operation arrives, from the figure `reload`.
    #[must_use]
    pub fn reload(&self, work: BlockWork) -> Picos {
        let full = self.reload.0 / u64::from(warps(work.threads).max(1));
        Picos((u128::from(full) * u128::from(work.bytes.0.min(ALIGNMENT)) / u128::from(ALIGNMENT)) as u64)
    }

    /// Software time before a message of a pairwise exchange: the software time of a step and, for protocols without
    /// flags in every line, the receiver's time for the last message of `received` bytes, which does not overlap.
    #[must_use]
    pub fn exchange_software(&self, work: BlockWork, received: Bytes, exchange: PairwiseExchange) -> Picos {
        let alone = match self.channel_limit {
            ChannelLimit::Passes(passes) if self.stream.is_none() => {
                self.exchange_time(&passes, received, work.threads, exchange).0 / 2
            }
            _ => 0,
        };
        self.step_time(work) + Picos(alone)
    }

    /// Time of a pairwise exchange of `bytes` in each direction by a block.
    fn exchange_time(&self, passes: &Passes, bytes: Bytes, threads: u16, exchange: PairwiseExchange) -> Picos {
        let time = passes.exchanging(bytes, threads, exchange.buffer);
        let [alone, shared] = [1, exchange.peers].map(|peers| u128::from(self.copying_warps(threads, peers)));
        Picos(u64::try_from(u128::from(time.0) * alone / shared.max(1)).unwrap_or(u64::MAX))
    }

    /// Number of a block's warps that copy the data for `peers` peers, each of which has an equal number. Warps that are
    /// left over do nothing, and of three or more warps that send without flags in every line, one signals while the
    /// others copy (NCCL 2.30.7 src/device/sendrecv.h: `nWarpPerWork`; prims_simple.h: `nworkers`).
    fn copying_warps(&self, threads: u16, peers: u32) -> u32 {
        let block = u32::from(warps(threads));
        let peers = peers.clamp(1, MAX_EXCHANGE_PEERS).min(block / 2).max(1);
        let each = block / peers;
        let sending = if each <= 4 { each / 2 } else { (each - 1) / 2 + 1 };
        let signalling = u32::from(self.stream.is_none() && sending >= 3);
        peers * (sending - signalling).max(1)
    }

    /// Time until a block has copied messages of `bytes` in total, one for each of its peers, into the buffers from
    /// which NICs read them; `None` if blocks do not work in passes, or if messages have flags in every line.
    #[must_use]
    pub fn fill_exchange_buffers(&self, bytes: Bytes, threads: u16, peers: u32) -> Option<Picos> {
        let exchange = PairwiseExchange { buffer: SendBuffer::Sender, peers };
        match self.channel_limit {
            ChannelLimit::Passes(passes) if self.stream.is_none() => {
                Some(Picos(self.exchange_time(&passes, bytes, threads, exchange).0 / 2))
            }
            _ => None,
        }
    }

    /// Time for which each of `turns` consecutive messages to a peer occupies a block that also receives from that
    /// peer; `None` if blocks do not work in passes. The first message does not overlap.
    #[must_use]
    pub fn busy_exchanging(&self, work: BlockWork, turns: u32, exchange: PairwiseExchange) -> Option<Picos> {
        let ChannelLimit::Passes(passes) = self.channel_limit else { return None };
        let both = self.exchange_time(&passes, work.bytes, work.threads, exchange);
        let alone = if self.stream.is_some() { 0 } else { both.0 / 2 / u64::from(turns.max(1)) };
        Some(both - Picos(alone))
    }

    /// Time that `threads` threads of a block need to copy `bytes` into a buffer of the library.
    #[must_use]
    pub fn staging_time(&self, bytes: Bytes, threads: u16) -> Picos {
        let ChannelLimit::Passes(passes) = self.channel_limit else { return Picos::ZERO };
        passes.streaming(passes.receive, bytes, threads)
    }

    /// Returns true if part of a step may overlap with the arrival of its data, because the protocol divides chunks into
    /// slices.
    #[must_use]
    pub fn overlaps_steps(&self) -> bool {
        matches!(self.channel_limit, ChannelLimit::Passes(_)) && self.slices > 1
    }

    /// Lower bound on the software time of a step that does not overlap with the arrival of its data
    /// ([`Self::overlaps_steps`]).
    #[must_use]
    pub fn min_software(&self) -> Picos {
        self.step + self.copy.min(self.reduce)
    }

    /// Time of the receive that precedes a send: the block receives the last arriving data before it sends.
    fn preceding_receive(&self, work: BlockWork) -> Picos {
        match (self.channel_limit, work.role) {
            (ChannelLimit::Passes(passes), Role::Send) => {
                passes.first_receive
                    + passes.after_the_first(passes.divide_by_warps(passes.receive, work.threads), work, self.rest())
            }
            _ => Picos::ZERO,
        }
    }

    /// Time for which an operation occupies a block in addition to its software time; `None` if blocks do not work in
    /// passes.
    #[must_use]
    pub fn busy(&self, work: BlockWork) -> Option<Picos> {
        let ChannelLimit::Passes(passes) = self.channel_limit else { return None };
        Some(passes.after_the_first(passes.pass_time(work), work, self.rest()))
    }

    /// Charge for the last pass, if it is only partly filled. With flags in every line, all threads wait for the flags
    /// of a line (NCCL src/device/prims_ll.h, prims_ll128.h); a copy without flags ends with smaller steps for the
    /// remainder (src/device/common_kernel.h, `reduceCopy`).
    fn rest(&self) -> PartialPass {
        if self.stream.is_some() { PartialPass::Full } else { PartialPass::Proportional }
    }

    /// Minimum time from the first byte of an operation to that of the next one of a block. `message`: size of the
    /// message if operations are parts of one; a message needs whole passes.
    #[must_use]
    pub fn spacing(&self, work: BlockWork, message: Option<Bytes>) -> Picos {
        let ChannelLimit::Passes(passes) = self.channel_limit else { return Picos::ZERO };
        let streaming = passes.passes(passes.pass_time(work), work.bytes, work.threads);
        match message {
            Some(Bytes(message)) if message > 0 => {
                let quantum = passes.quantum(work.threads);
                let padded = u128::from(message.div_ceil(quantum)) * u128::from(quantum);
                let all = u128::from(streaming.0) * padded / u128::from(message);
                Picos(u64::try_from(all).unwrap_or(u64::MAX))
            }
            _ => streaming,
        }
    }

    /// Numbers of threads of a split block that reduce and that copy, in whole warps.
    #[must_use]
    pub fn split_threads(&self, threads: u16) -> [u16; 2] {
        let all = warps(threads).max(2);
        let reducing = ((f64::from(all) * self.split) as u16).clamp(1, all - 1);
        [reducing * WARP, (all - reducing) * WARP]
    }
}

impl Passes {
    /// Time of one pass of an operation.
    fn pass_time(&self, work: BlockWork) -> Picos {
        let pass = match work.role {
            Role::Send => self.send,
            Role::Forward => self.forward,
        };
        let store_time = match work.local_store {
            LocalStore::None => Picos::ZERO,
            LocalStore::Store => self.store,
        };
        match work.shared {
            SharedPasses::None => self.divide_by_warps(pass + store_time, work.threads),
            SharedPasses::AdditionalReceive => self.divide_by_warps(pass + store_time + self.arrival(), work.threads),
            SharedPasses::AdditionalSend => self.store,
            SharedPasses::Merged => Picos::ZERO,
        }
    }

    /// Time of waiting for arriving data in a pass: a receiving pass without its store.
    fn arrival(&self) -> Picos {
        Picos(self.receive.0.saturating_sub(self.store.0))
    }

    /// Time of a pairwise exchange of `bytes` in each direction. A copy into a buffer of the sender reads and writes
    /// local memory as a receiving pass does, and takes as long.
    fn exchanging(&self, bytes: Bytes, threads: u16, buffer: SendBuffer) -> Picos {
        let half = (threads / 2).max(1);
        let send = match buffer {
            SendBuffer::Receiver => self.send,
            SendBuffer::Sender => self.send.min(self.receive),
        };
        let Some(pass) = self.exchange else {
            return self.streaming(send, bytes, half) + self.streaming(self.receive, bytes, half);
        };
        if send == self.send {
            return self.passes(pass, bytes, half);
        }
        let [local, remote] = [send, self.send].map(|pass| u128::from(self.divide_by_warps(pass, threads).0));
        let pass = u128::from(pass.0) * local / remote.max(1);
        self.passes(Picos(u64::try_from(pass).unwrap_or(u64::MAX)), bytes, half)
    }

    fn after_the_first(&self, each: Picos, BlockWork { bytes, threads, .. }: BlockWork, rest: PartialPass) -> Picos {
        let quantum = self.quantum(threads);
        match rest {
            PartialPass::Full => Picos(each.0.saturating_mul(bytes.0.div_ceil(quantum).saturating_sub(1))),
            PartialPass::Proportional => self.passes(each, Bytes(bytes.0.saturating_sub(quantum)), threads),
        }
    }

    fn streaming(&self, pass: Picos, bytes: Bytes, threads: u16) -> Picos {
        self.passes(self.divide_by_warps(pass, threads), bytes, threads)
    }

    /// Time of the passes over `bytes` by `threads` threads, with time `each` per pass. The last pass counts in
    /// proportion to its bytes.
    fn passes(&self, each: Picos, bytes: Bytes, threads: u16) -> Picos {
        let all = u128::from(each.0) * u128::from(bytes.0) / u128::from(self.quantum(threads));
        Picos(u64::try_from(all).unwrap_or(u64::MAX))
    }

    /// Payload bytes that a block of `threads` threads moves in one pass.
    fn quantum(&self, threads: u16) -> u64 {
        self.bytes_per_thread.0.saturating_mul(threads.into()).max(1)
    }

    fn divide_by_warps(&self, pass: Picos, threads: u16) -> Picos {
        pass + times(self.per_warp, warps(threads))
    }
}

fn warps(threads: u16) -> u16 {
    threads.div_ceil(WARP)
}

fn times(each: Picos, count: u16) -> Picos {
    Picos(each.0.saturating_mul(count.into()))
}
