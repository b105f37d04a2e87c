//! What one protocol costs on the device, and how long a thread block is busy with an operation.
//!
//! A channel is a thread block of some threads (or a copy-engine stream). An operation that moves c bytes takes
//!
//! ```text
//! software:  step + step_per_warp·w + (reduce | copy) + settle·c/(c + settle_half)    [+ take, where it begins a chain]
//!            − what hides behind later slices: at most (slices − 1)/slices of (passes − 1)·pass, where it passes data on
//!            + reload/w · min(1, c / 16 B), where a block that passes data on was at work just before
//!            + fan, on blocks that are split (trees)
//!            + c ÷ add, where a sum stays with its rank and calls wait for all ranks
//! path:      the latency of its path
//! bytes:     the longer of c ÷ (wire efficiency × its share of the links) and, of its block, (passes − 1)·pass
//! ```
//!
//! with w warps in the block. FIFO protocols handle c bytes in passes of `bytes_per_thread` × threads, each of which
//! loads, polls for flags and stores before the next begins; the first pass is part of the step, but the
//! next of messages that follow each other (in trees) flows when all passes of this one are over. What a pass takes is what it
//! does: `send` loads and sends, `forward` receives and sends (the load of what it adds hides behind the wait), `take` receives
//! and stores, and `store` comes on top where what is sent stays as well. In trees over hosts a block receives from two children, or sends
//! to two, in the same passes ([`Shared`]): what the second one sent is another wait, `take` less its `store`, and what it is sent another
//! store. (On 4 × H200 and one channel a block's pass of ll takes
//! 353 ns on average in reduce_scatter of 16 MiB and 534 ns in all_gather, which differ by such stores; ll128 and simple
//! differ in the same way: validate/runs/2026-11-21-4xh200-forced.) A block executes its
//! operations one after the other: receiving what nobody is told of any more is an operation of its own in NCCL (the
//! last receive of a loop), which a schedule does not have; it is charged as `take` to the send that the block begins
//! with. Between ranks in pairs half of a block's threads send while half of them take what the peer sends: `exchange` is a pass of
//! both, which share an SM. Data without flags in every line is taken when a chunk of it is whole, so that what is sent first
//! and what is taken last are moved alone, in half of that each. (On two H200 a block of send_recv takes 46 ns a KiB of simple, up to a
//! chunk of 512 KiB one half after the other, beyond both at once; of ll 170 from 2 KiB to 4 MiB:
//! validate/runs/2026-11-23-2xh200-sends.) An NVLS chunk is copied into the buffer that the switch reads by some warps of the block, and waits for it.
//!
//! Sources: NCCL 2.28 src/device/prims_ll.h (8 bytes a thread and pass), prims_ll128.h (16 words of 8 bytes for 8 threads, 15
//! of them data, 8 times unrolled: 60 bytes), prims_simple.h, all_reduce.h (the sequence of primitives; up and down a
//! tree on different warps).

use fabricast_topologies::{Bandwidth, Bytes, Picos};

use crate::schedule::Collective;

/// What one protocol costs on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProtocolCosts {
    /// Once a call: kernel start, connection set-up, last synchronisation.
    pub startup: Picos,
    /// The same where every pair exchanges data of its own (send_recv, all_to_all, gather, scatter), which other kernels do;
    /// `None`: as `startup`.
    pub startup_p2p: Option<Picos>,
    /// Once a call for each warp of a block.
    pub startup_per_warp: Picos,
    /// Once a call for each peer but the first that a rank exchanges data of its own with at once, on blocks of their own: the call is
    /// over with the last of them. (all_to_all of 2 to 16 KiB takes 0.37 to 0.52 µs longer on 4 × H200 than with as much for each peer
    /// on 2, which is two peers more and two GPUs that start apart: validate/runs/2026-11-21-4xh200, 2026-11-21-2xh200.)
    pub startup_per_peer: Picos,
    /// Before every operation, besides the latency of its path: flags, fences, polling.
    pub step: Picos,
    /// The same for each warp of a block, that must come together.
    pub step_per_warp: Picos,
    /// On top for operations that add what arrives.
    pub reduce: Picos,
    /// On top for operations that only move it.
    pub copy: Picos,
    /// Of one warp, which w warps share: what a block that comes from the chunk before still has to do (barriers, its own
    /// data's way to registers) while the next chunk is there already; a block that waits has done it by then. So rings
    /// pay it at every step, and the chains of trees, whose blocks wait, do not. Ring all_reduce cuts chunks at 16 bytes: of
    /// chunks smaller than that only as many carry data, and a block is through with the others at once. That warps
    /// share it is measured (ll128 rings of 320 and 640 threads), and not seen in NCCL's source. NCCL 2.28
    /// src/device/prims_ll128.h (`GenericOp`: barrier, loads, poll, barrier), all_reduce.h (`runRing`).
    pub reload: Picos,
    /// More before an operation of a block that is split: the primitives of trees are made for three children, and two groups
    /// of warps, each with barriers of its own, share an SM. NCCL 2.28 src/device/all_reduce.h (`runTreeSplit`,
    /// `FanAsymmetric<NCCL_MAX_TREE_ARITY, 1>`).
    pub fan: Picos,
    /// How fast a block adds what has arrived to a sum that stays with its rank, while it sends nothing; `None`: as it comes. A sum
    /// that is sent on leaves as it is made, and where data flow one way the next call's data come meanwhile. (On 2 × H200
    /// reduce_scatter of 256 MiB takes 452 µs where all_gather takes 374, on 2 × H100 443 and 374; all_reduce by one_shot and by
    /// recursive doubling takes 895 and 887 where as many bytes sent take 738, by two_shot, which sends its sums on, 746; reduce of 8 MiB is
    /// no slower than broadcast: validate/runs/2026-11-21-2xh200, 2026-11-24-2xh100.)
    pub add: Option<Bandwidth>,
    /// Until all data of a large operation is visible behind its flags: grows from 0 with the bytes to this.
    pub settle: Picos,
    /// The bytes at which half of `settle` is reached.
    pub settle_half: Bytes,
    /// Payload ÷ bytes on the wire, by the protocol's framing (ll 0.5, ll128 0.9375).
    pub wire_efficiency: f64,
    /// What limits a channel.
    pub lane: LaneSpeed,
    /// Threads of a block unless the schedule says otherwise.
    pub threads: u16,
    /// The part of a block's threads that reduce where it is split to reduce and copy at once (trees); the others copy.
    pub split: f64,
    /// The largest chunk of a step; `None` is the whole.
    pub chunk: Option<Bytes>,
    /// Slices that a chunk is handed on in: what follows it prepares behind all slices but the first.
    pub slices: u16,
    /// The pieces in which chunks stream through a chain of ranks, where data has its flags in every line and is passed on
    /// before the chunk is whole; `None`: chunk by chunk.
    pub stream: Option<Bytes>,
}

/// What limits a channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LaneSpeed {
    /// Nothing.
    Unlimited,
    /// It moves so many bytes of payload a second at most.
    Rate(Bandwidth),
    /// It works pass by pass.
    Passes(Passes),
}

/// A thread block that works pass by pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// Payload that a thread handles in a pass.
    pub bytes_per_thread: Bytes,
    /// A pass that sends what lies there.
    pub send: Picos,
    /// A pass that sends on what arrives.
    pub forward: Picos,
    /// A pass that takes what arrives, and sends nothing.
    pub take: Picos,
    /// More for a pass that also keeps what it sends: the store in the rank's own memory.
    pub store: Picos,
    /// More for each warp of the block.
    pub per_warp: Picos,
    /// Before the first pass that takes.
    pub first_take: Picos,
    /// A pass of a block that sends with half of its threads and takes with the other half; `None`: as a pass of each.
    pub exchange: Option<Picos>,
}

/// What a block does in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends what lies there, after it took what arrived last.
    Send,
    /// Sends on what arrives.
    Forward,
}

/// Whether an operation adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deed {
    /// It moves.
    Copy,
    /// It adds what arrives.
    Reduce,
}

/// Whether what a block sends stays with its rank as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// Only others have it then.
    No,
    /// It is stored here, too.
    Yes,
}

/// What becomes of the data of an operation where they arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fate {
    /// They are sent on, or nobody waits for them before the next call.
    #[default]
    PassedOn,
    /// They stay, and the call is over when they are there.
    Stays,
}

/// What else a block does with the data of an operation in the same passes, where primitives have several peers to receive from or to
/// send to (NCCL 2.28 src/device/prims_ll128.h, `recvReduceSendCopy` with more than one of `RECV` or `SEND`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shared {
    /// Nothing.
    #[default]
    Nothing,
    /// It adds what a further peer sent: another wait for what arrives.
    Adds,
    /// It sends to this peer what it sends to one before: another store.
    SendsAgain,
    /// All of it: the operation that sends the sum adds, too.
    InPassing,
}

/// An operation as its block sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockWork {
    /// What the block does.
    pub role: Role,
    /// Whether it adds.
    pub deed: Deed,
    /// Whether what it sends stays.
    pub kept: Kept,
    /// What else is done in its passes.
    pub shared: Shared,
    /// Payload, rounded up.
    pub bytes: Bytes,
    /// Threads at work.
    pub threads: u16,
}

/// What is charged for the bytes that do not fill a pass.
#[derive(Clone, Copy)]
enum Rest {
    /// As much as for a full one.
    WholePass,
    /// What they are of it.
    ItsShare,
}

/// Threads of a warp.
const WARP: u16 = 32;
/// What chunks of a ring are cut at.
const ALIGNMENT: u64 = 16;

impl ProtocolCosts {
    /// No cost, no limit.
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
        fan: Picos::ZERO,
        add: None,
        settle: Picos::ZERO,
        settle_half: Bytes(0),
        wire_efficiency: 1.0,
        lane: LaneSpeed::Unlimited,
        threads: 512,
        split: 0.5,
        chunk: None,
        slices: 1,
        stream: None,
    };

    /// What a call costs before its first operation, on blocks of so many threads, where a rank exchanges data of its own with so
    /// many peers at once ([`Header::peers_at_once`](crate::schedule::Header::peers_at_once)).
    #[must_use]
    pub fn startup(&self, collective: Collective, threads: u16, peers: u16) -> Picos {
        self.least_startup(collective)
            + times(self.startup_per_warp, warps(threads))
            + times(self.startup_per_peer, peers.saturating_sub(1))
    }

    /// What a slot of a connection's buffer holds: a chunk that is cut into slices is as many times two of them (NCCL 2.28
    /// src/include/collectives.h: of four slots of a chunk two a slice).
    #[must_use]
    pub fn slot(&self) -> Option<Bytes> {
        let slots = if self.slices > 1 { 2 * u64::from(self.slices) } else { 1 };
        self.chunk.map(|chunk| Bytes(chunk.0 / slots))
    }

    /// The same on any blocks at least.
    #[must_use]
    pub fn least_startup(&self, collective: Collective) -> Picos {
        match self.startup_p2p {
            Some(startup) if collective.is_between_pairs() => startup,
            _ => self.startup,
        }
    }

    /// Software time before an operation moves its first byte.
    #[must_use]
    pub fn software(&self, work: BlockWork) -> Picos {
        Picos(self.step_of(work).0.saturating_sub(self.hidden(work).0)) + self.taking(work)
    }

    /// The same on a rank that receives nothing in the whole call.
    #[must_use]
    pub fn software_of_source(&self, work: BlockWork) -> Picos {
        self.step_of(work)
    }

    fn step_of(&self, work: BlockWork) -> Picos {
        let kind = match work.deed {
            Deed::Copy => self.copy,
            Deed::Reduce => self.reduce,
        };
        let bytes = work.bytes.0;
        let settled = match bytes.checked_add(self.settle_half.0) {
            Some(0) | None => self.settle,
            Some(sum) => Picos((u128::from(self.settle.0) * u128::from(bytes) / u128::from(sum)) as u64),
        };
        self.step + times(self.step_per_warp, warps(work.threads)) + kind + settled
    }

    /// How long a block adds so many bytes to a sum that stays.
    #[must_use]
    pub fn adding(&self, bytes: Bytes) -> Picos {
        self.add.map_or(Picos::ZERO, |rate| super::time_at_rate(bytes, rate))
    }

    /// What of a step is over before all of the data has come that it waits for: that comes in slices, of which the block
    /// before is busy with the later ones.
    fn hidden(&self, work: BlockWork) -> Picos {
        match (work.role, self.busy(work)) {
            (Role::Forward, Some(busy)) => {
                let slices = u64::from(self.slices.max(1));
                Picos(busy.0 / slices * (slices - 1))
            }
            _ => Picos::ZERO,
        }
    }

    /// What a block that is at work all the time has yet to do when the data of an operation has come.
    #[must_use]
    pub fn reload(&self, work: BlockWork) -> Picos {
        let full = self.reload.0 / u64::from(warps(work.threads).max(1));
        Picos((u128::from(full) * u128::from(work.bytes.0.min(ALIGNMENT)) / u128::from(ALIGNMENT)) as u64)
    }

    /// Software time before a message of one pair of ranks: that of a step and, of data that is taken when it is whole, how long the
    /// receiver has to do with the last message, of so many bytes, when nothing else is under way.
    #[must_use]
    pub fn software_of_exchange(&self, work: BlockWork, taken: Bytes) -> Picos {
        let alone = match self.lane {
            LaneSpeed::Passes(passes) if self.stream.is_none() => passes.exchanging(taken, work.threads).0 / 2,
            _ => 0,
        };
        self.step_of(work) + Picos(alone)
    }

    /// How long a block is busy with one of so many messages that follow each other to a peer, while it takes what the peer sends;
    /// `None` where blocks do not work by passes. The first is sent alone.
    #[must_use]
    pub fn busy_exchanging(&self, work: BlockWork, turns: u32) -> Option<Picos> {
        let LaneSpeed::Passes(passes) = self.lane else { return None };
        let both = passes.exchanging(work.bytes, work.threads);
        let alone = if self.stream.is_some() { 0 } else { both.0 / 2 / u64::from(turns.max(1)) };
        Some(both - Picos(alone))
    }

    /// How soon after a message's first byte its block can send that of the next to the same peer: it tells of each before.
    #[must_use]
    pub fn spacing_of_exchange(&self, work: BlockWork, turns: u32) -> Picos {
        self.busy_exchanging(work, turns).map_or(Picos::ZERO, |busy| busy + self.step)
    }

    /// How long some threads of a block take to copy what it works on into a buffer of the library's.
    #[must_use]
    pub fn staging(&self, bytes: Bytes, threads: u16) -> Picos {
        let LaneSpeed::Passes(passes) = self.lane else { return Picos::ZERO };
        passes.streaming(passes.take, bytes, threads)
    }

    /// The least software time of any operation.
    #[must_use]
    pub fn least_software(&self) -> Picos {
        self.step + self.copy.min(self.reduce)
    }

    /// What a send waits for first: its block takes what arrived last.
    fn taking(&self, work: BlockWork) -> Picos {
        match (self.lane, work.role) {
            (LaneSpeed::Passes(passes), Role::Send) => {
                passes.first_take + passes.after_the_first(passes.each(passes.take, work.threads), work, self.rest())
            }
            _ => Picos::ZERO,
        }
    }

    /// How long a block is busy with an operation beyond its software time; `None` where blocks do not work by passes.
    #[must_use]
    pub fn busy(&self, work: BlockWork) -> Option<Picos> {
        let LaneSpeed::Passes(passes) = self.lane else { return None };
        Some(passes.after_the_first(passes.of(work), work, self.rest()))
    }

    /// What the last pass takes of one that fills its block: all threads wait for the flags of a line (NCCL
    /// src/device/prims_ll.h, prims_ll128.h), while a copy without flags ends with smaller steps for the rest
    /// (src/device/common_kernel.h, `reduceCopy`).
    fn rest(&self) -> Rest {
        if self.stream.is_some() { Rest::WholePass } else { Rest::ItsShare }
    }

    /// How soon after an operation's first byte its block can send that of the next. Where operations are pieces of
    /// messages, a message takes whole passes.
    #[must_use]
    pub fn spacing(&self, work: BlockWork, message: Option<Bytes>) -> Picos {
        let LaneSpeed::Passes(passes) = self.lane else { return Picos::ZERO };
        let streaming = passes.passes(passes.of(work), work.bytes, work.threads);
        match message {
            Some(Bytes(message)) if message > 0 => {
                let quantum = passes.quantum(work.threads);
                let whole = u128::from(message.div_ceil(quantum)) * u128::from(quantum);
                let all = u128::from(streaming.0) * whole / u128::from(message);
                Picos(u64::try_from(all).unwrap_or(u64::MAX))
            }
            _ => streaming,
        }
    }

    /// Threads of a split block that reduce, and that copy, in whole warps.
    #[must_use]
    pub fn split_threads(&self, threads: u16) -> [u16; 2] {
        let all = warps(threads).max(2);
        let reducing = ((f64::from(all) * self.split) as u16).clamp(1, all - 1);
        [reducing * WARP, (all - reducing) * WARP]
    }
}

impl Passes {
    /// A pass of an operation.
    fn of(&self, work: BlockWork) -> Picos {
        let pass = match work.role {
            Role::Send => self.send,
            Role::Forward => self.forward,
        };
        let kept = match work.kept {
            Kept::No => Picos::ZERO,
            Kept::Yes => self.store,
        };
        match work.shared {
            Shared::Nothing => self.each(pass + kept, work.threads),
            Shared::Adds => self.each(pass + kept + self.arrival(), work.threads),
            Shared::SendsAgain => self.store,
            Shared::InPassing => Picos::ZERO,
        }
    }

    /// What a pass waits for that arrives: that of one which takes, but for its store.
    fn arrival(&self) -> Picos {
        Picos(self.take.0.saturating_sub(self.store.0))
    }

    /// So many bytes each way.
    fn exchanging(&self, bytes: Bytes, threads: u16) -> Picos {
        let half = (threads / 2).max(1);
        match self.exchange {
            Some(pass) => self.passes(pass, bytes, half),
            None => self.streaming(self.send, bytes, half) + self.streaming(self.take, bytes, half),
        }
    }

    fn after_the_first(&self, each: Picos, BlockWork { bytes, threads, .. }: BlockWork, rest: Rest) -> Picos {
        let quantum = self.quantum(threads);
        match rest {
            Rest::WholePass => Picos(each.0.saturating_mul(bytes.0.div_ceil(quantum).saturating_sub(1))),
            Rest::ItsShare => self.passes(each, Bytes(bytes.0.saturating_sub(quantum)), threads),
        }
    }

    fn streaming(&self, pass: Picos, bytes: Bytes, threads: u16) -> Picos {
        self.passes(self.each(pass, threads), bytes, threads)
    }

    /// As many passes, each of so long, as bytes take of so many threads, the last in part.
    fn passes(&self, each: Picos, bytes: Bytes, threads: u16) -> Picos {
        let all = u128::from(each.0) * u128::from(bytes.0) / u128::from(self.quantum(threads));
        Picos(u64::try_from(all).unwrap_or(u64::MAX))
    }

    /// What a block handles in a pass.
    fn quantum(&self, threads: u16) -> u64 {
        self.bytes_per_thread.0.saturating_mul(threads.into()).max(1)
    }

    fn each(&self, pass: Picos, threads: u16) -> Picos {
        pass + times(self.per_warp, warps(threads))
    }
}

fn warps(threads: u16) -> u16 {
    threads.div_ceil(WARP)
}

fn times(each: Picos, count: u16) -> Picos {
    Picos(each.0.saturating_mul(count.into()))
}
