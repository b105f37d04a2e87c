//! What operations cost their thread block, in the terms of the profile: software time, and how long the block is busy.

use fabricast_topologies::{Bytes, Picos};
use rustc_hash::FxHashMap;

use super::Survey;
use super::network::{Crossing, Message};
use super::pieces::{Pieces, RunWork};
use crate::engine::{Order, Pace, PerOp};
use crate::profile::{
    BlockWork, Deed, Fate, Kept, LaneSpeed, MessageCosts, NetworkCosts, Profile, ProtocolCosts, Role, Shared,
};
use crate::quantity::{Rate, WORK_PER_BYTE, Work};
use crate::schedule::{
    BlockSplit, Buffer, BufferUse, Collective, Dependency, Header, OpKind, Protocol, Rank, Run, Workplace,
};
use crate::sharing::WHOLE;

/// What a lane of a block that works by passes provides: counted so that a byte is ten picoseconds of the block. What
/// an operation takes of it for each byte on the wire is rounded to parts of [`WHOLE`]: at a terabyte a second, where a
/// byte has a picosecond, to a 32,256th.
pub(super) const BLOCK_TIME: Rate = Rate(100_000_000_000_000);
/// The part of an NVLS block's threads that copies into the buffer that the switch reads: 7 of 20 warps where there are
/// more than six ranks (NCCL 2.28 src/device/all_reduce.h, `RunWorkColl` of NCCL_ALGO_NVLS: `scatterWarps`).
const STAGING_SHARE: (u16, u16) = (7, 20);

/// The costs of a schedule's operations.
pub(crate) struct Effort<'a> {
    costs: &'a ProtocolCosts,
    protocol: Protocol,
    network: &'a NetworkCosts,
    messages: Option<&'a MessageCosts>,
    workplace: Workplace,
    /// Payload of a message, where operations are pieces of one.
    message: Option<Bytes>,
    /// Of a block.
    threads: u16,
    /// Of lanes of even and of odd numbers.
    lane_threads: [u16; 2],
    split: BlockSplit,
    collective: Collective,
    buffers: BufferUse,
    peers_at_once: u16,
    /// Peers that a block has messages for at once.
    most_partners: u32,
    /// Ranks for which a switch combines.
    team: u64,
}

/// What decides an operation's costs, its bytes aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Task {
    kind: OpKind,
    role: Role,
    order: Order,
    /// Of the two halves of a split block, which.
    half: u8,
    /// How many follow each other to a peer.
    turns: u32,
    /// Peers of the block's messages that wait for nothing, where ranks exchange data in pairs.
    partners: u32,
    /// What else is done in the same passes.
    shared: Shared,
    /// What becomes of what arrives.
    fate: Fate,
}

impl Task {
    /// With what else is done in its passes.
    pub fn sharing(self, shared: Shared) -> Self {
        Self { shared, ..self }
    }

    /// With what becomes of what arrives.
    pub fn ending(self, fate: Fate) -> Self {
        Self { fate, ..self }
    }
}

/// What one operation costs its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OneEffort {
    /// Before its first byte.
    pub software: Picos,
    /// From its first byte to that of the next, where they go in turn.
    pub spacing: Picos,
    /// How often its bytes pass through its lane, in units of [`WHOLE`]; `None` where lanes have a rate.
    pub lane: Option<u64>,
    /// What it costs if it leaves its host.
    pub crossing: Crossing,
}

/// When a rank starts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    /// None of its operations is ready before.
    pub not_before: Picos,
    /// By how much later than the first rank of its call.
    pub late: Picos,
}

impl OneEffort {
    /// What holds the operation back on a rank that starts so.
    pub fn pace(&self, start: Start) -> Pace {
        let Start { not_before, late } = start;
        Pace { software: self.software, not_before, late, spacing: self.spacing }
    }
}

/// The distinct costs of a schedule's operations, whatever the size of the call: what an operation does and how many
/// chunks it moves. Each has a number, which stands for its costs in a workload that is lowered once for many sizes.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    known: FxHashMap<(Task, u32), u32>,
    pub all: Vec<(Task, u32)>,
}

impl Tasks {
    fn number(&mut self, task: Task, span: u32) -> u32 {
        *self.known.entry((task, span)).or_insert_with(|| {
            self.all.push((task, span));
            self.all.len() as u32 - 1
        })
    }

    /// What stands for a lane's coefficient: far above those of anything else, and of the codes of different tasks, and of
    /// lanes and proxies, none is a multiple of another.
    pub fn lane_code(number: u32) -> u64 {
        (1 << 40) + u64::from(number)
    }

    /// The same for a proxy's.
    pub fn proxy_code(number: u32) -> u64 {
        (1 << 40) + (1 << 30) + u64::from(number)
    }
}

/// What the operations of a run cost.
pub(super) enum Efforts {
    /// All the same.
    Same(OneEffort),
    /// By pieces.
    Pieces {
        /// The pieces.
        pieces: Pieces,
        /// One for each.
        each: Vec<OneEffort>,
    },
    /// One by one.
    Each(Vec<OneEffort>),
}

impl Efforts {
    /// Of one operation.
    fn at(&self, index: u32) -> Option<&OneEffort> {
        match self {
            Self::Same(one) => Some(one),
            Self::Pieces { pieces, each } => each.get(pieces.index_of(index)),
            Self::Each(each) => each.get(index as usize),
        }
    }

    /// The costs that differ, in order.
    fn distinct(&self) -> &[OneEffort] {
        match self {
            Self::Same(one) => std::slice::from_ref(one),
            Self::Pieces { each, .. } | Self::Each(each) => each,
        }
    }

    /// What one operation takes of its lane for each byte.
    pub fn lane(&self, index: u32) -> Option<u64> {
        self.at(index).and_then(|one| one.lane)
    }

    /// What one operation costs if it leaves its host.
    pub fn crossing(&self, index: u32) -> Crossing {
        self.at(index).map(|one| one.crossing).unwrap_or_default()
    }

    /// Whether all operations cost the same on the way to another host.
    pub fn cross_alike(&self) -> bool {
        self.distinct().windows(2).all(|pair| pair[0].crossing == pair[1].crossing)
    }

    /// Whether all operations take the same of their lane.
    pub fn is_even(&self) -> bool {
        self.distinct().windows(2).all(|pair| pair[0].lane == pair[1].lane)
    }
}

impl<'a> Effort<'a> {
    pub fn new(profile: &'a Profile, header: &Header) -> Self {
        let costs = profile.protocol(header.protocol);
        let threads = header.blocks.threads.unwrap_or(costs.threads);
        let lane_threads = match header.blocks.split {
            BlockSplit::Whole => [threads; 2],
            BlockSplit::ReduceAndCopy => costs.split_threads(threads),
        };
        let network = &profile.network;
        Self {
            costs,
            protocol: header.protocol,
            network,
            messages: profile.messages.as_ref(),
            workplace: header.blocks.workplace,
            message: header.blocks.message,
            threads,
            lane_threads,
            split: header.blocks.split,
            collective: header.call.collective,
            buffers: header.call.buffers,
            peers_at_once: header.peers_at_once(),
            most_partners: most_partners(header),
            team: header.teams.first().map_or(0, |team| team.len() as u64),
        }
    }

    /// What the call costs before its first operation.
    pub fn startup(&self) -> Picos {
        self.costs.startup(self.collective, self.threads, self.peers_at_once)
    }

    /// Whether the channels on which data arrives must be known.
    pub fn tells_channels_apart(&self) -> bool {
        self.split == BlockSplit::ReduceAndCopy && matches!(self.costs.lane, LaneSpeed::Passes(_))
    }

    /// Whether it must be known what becomes of sums.
    pub fn tells_fates(&self) -> bool {
        self.costs.add.is_some() && !self.collective.is_one_way()
    }

    /// Whether a run passes on what others sent on its channel.
    pub(super) fn role(&self, rank: Rank, run: &Run, waits: &[Dependency], survey: &Survey) -> Role {
        let arrives = |wait: &Dependency| wait.rank != rank && survey.channel(*wait).is_none_or(|c| c == run.channel);
        let passes_on = run.src_buffer != Buffer::Input && waits.iter().any(arrives);
        if passes_on { Role::Forward } else { Role::Send }
    }

    /// How the operations of a run follow each other: those of one connection, or sums of a block, that wait for the one before go in
    /// turn. To another peer a rank sends when the operation waited for is done.
    pub fn order(&self, rank: Rank, number: u32, run: &Run, waits: &[Dependency]) -> Order {
        let is_turn = |wait: &Dependency| *wait == Dependency::shifted(rank, number, -1);
        let is_connection = (run.kind.is_transfer() && run.peer.is_fixed()) || run.kind == OpKind::Reduce;
        let in_turn = is_connection && run.len > 1 && waits.iter().any(is_turn);
        if in_turn { Order::InTurn } else { Order::Free }
    }

    /// The costs of a run's operations, which put `on_wire` on the wire and carry `payload`.
    pub(super) fn of_run(
        &self,
        run: &Run,
        task: Task,
        work: &RunWork,
        payload: impl Fn(u32) -> Bytes,
        on_wire: impl Fn(u32) -> Work,
    ) -> Efforts {
        if run.len == 0 {
            return Efforts::Same(self.of(task, Bytes(0), Work(0)));
        }
        let at = |i: u32| self.of(task, payload(i), on_wire(i));
        match (work.work, &work.pieces) {
            (PerOp::Same(_), _) => Efforts::Same(at(0)),
            (PerOp::Each(_), Some(pieces)) => {
                Efforts::Pieces { pieces: pieces.clone(), each: pieces.starts().map(at).collect() }
            }
            (PerOp::Each(_), None) => Efforts::Each((0..run.len).map(at).collect()),
        }
    }

    /// What stands for the costs of operations of `span` chunks: the number of what they do instead of software time, codes
    /// instead of what they take of a lane and cost on the way to another host.
    pub fn stand_in(&self, tasks: &mut Tasks, task: Task, span: u32) -> OneEffort {
        let number = tasks.number(task, if task.kind.moves_data() { span } else { 0 });
        let lane = self.counts_passes().then(|| Tasks::lane_code(number));
        let crossing = match self.pays_to_leave(task.kind) {
            true => Crossing::stand_in(Tasks::proxy_code(number)),
            false => Crossing::default(),
        };
        OneEffort { software: Picos(number.into()), spacing: Picos::ZERO, lane, crossing }
    }

    /// Whether what a block sends stays with its rank: sums on their way do not, results do, and so does a rank's own part
    /// where it is part of the result (NCCL 2.28 src/device/all_gather.h, all_reduce.h, broadcast.h: `copySend`,
    /// `recvCopySend`, `recvReduceCopySend` against `send`, `recvReduceSend`). The root of a tree, which stores the sum as well,
    /// has all of its block for it, and is charged for the sends of a half only.
    fn kept(&self, role: Role, deed: Deed) -> Kept {
        let own_is_result = matches!(self.collective, Collective::AllGather | Collective::Broadcast);
        let stays = match (deed, role) {
            (Deed::Reduce, _) => false,
            (Deed::Copy, Role::Forward) => !self.collective.is_between_pairs(),
            (Deed::Copy, Role::Send) => own_is_result && self.buffers == BufferUse::OutOfPlace,
        };
        if stays { Kept::Yes } else { Kept::No }
    }

    /// Whether operations may cost more by the way they take.
    fn pays_to_leave(&self, kind: OpKind) -> bool {
        (*self.network != NetworkCosts::FREE || self.messages.is_some())
            && (kind.is_transfer() || kind == OpKind::Signal)
    }

    /// What decides the costs of a run's operations, their bytes aside.
    pub fn task(run: &Run, (role, order): (Role, Order), partners: u32) -> Task {
        let turns = if order == Order::InTurn { run.len } else { 1 };
        let (half, shared) = ((run.channel.0 % 2) as u8, Shared::Nothing);
        Task { kind: run.kind, role, order, half, turns, partners, shared, fate: Fate::PassedOn }
    }

    /// Whether blocks work by passes, so that what an operation takes of its lane depends on its bytes.
    fn counts_passes(&self) -> bool {
        matches!(self.costs.lane, LaneSpeed::Passes(_))
    }

    /// What an operation costs that puts `on_wire` on the wire and carries `bytes`.
    pub fn of(&self, task: Task, bytes: Bytes, on_wire: Work) -> OneEffort {
        let Task { kind, role, order, half, turns, partners, shared, fate } = task;
        let partners = partners.min(self.most_partners);
        let threads = self.lane_threads[usize::from(half % 2)];
        let deed = if kind.reduces() || kind == OpKind::MulticastReduce { Deed::Reduce } else { Deed::Copy };
        let work = BlockWork { role, deed, kept: self.kept(role, deed), shared, bytes, threads };
        // Other threads of a split block take what arrives, and of messages in turn nobody waits for that.
        let alone = self.split == BlockSplit::Whole && order == Order::Free;
        // Between pairs some warps of a block send, others take (NCCL 2.28 src/device/sendrecv.h).
        let pairs = self.split == BlockSplit::Whole && self.collective.is_between_pairs();
        // Where data flow one way along a chain or tree, who sends what lies there receives nothing.
        let is_source = alone && role == Role::Send && self.collective.is_one_way();
        let role_before = if alone { role } else { Role::Forward };
        let software = match kind {
            OpKind::Signal => self.costs.software(BlockWork { role: Role::Forward, bytes: Bytes(0), ..work }),
            kind if kind.is_transfer() && pairs => {
                self.costs.software_of_exchange(work, Bytes(bytes.0.saturating_mul(partners.into())))
            }
            kind if kind.is_transfer() && is_source => self.costs.software_of_source(work),
            kind if kind.is_transfer() => self.costs.software(BlockWork { role: role_before, ..work }),
            // Between a device's memory and that of its host.
            OpKind::Copy if self.workplace == Workplace::Host => {
                self.messages.map_or(Picos::ZERO, |messages| messages.launch)
            }
            _ => Picos::ZERO,
        };
        let goes_on = alone && role == Role::Forward && kind.is_transfer() && self.counts_passes();
        let reload = if goes_on { self.costs.reload(work) } else { Picos::ZERO };
        let is_split = self.split == BlockSplit::ReduceAndCopy && kind.is_transfer() && self.counts_passes();
        let fan = if is_split { self.costs.fan } else { Picos::ZERO };
        // What all ranks are given back streams out of the buffer as it comes.
        let staging = if kind == OpKind::MulticastReduce {
            let (some, all) = STAGING_SHARE;
            self.costs.staging(Bytes(bytes.0.saturating_mul(self.team)), (threads * some / all).max(1))
        } else {
            Picos::ZERO
        };
        let adding = match (deed, fate) {
            (Deed::Reduce, Fate::Stays) => self.costs.adding(bytes),
            _ => Picos::ZERO,
        };
        let software = software + reload + fan + staging + adding;
        let busy = match kind {
            // The part that stays is copied in passing, by the send that reads the same bytes (NCCL's copy-send); between
            // pairs it has blocks of its own (NCCL 2.30.7 src/enqueue.cc: channels of the round in which a rank is its own peer).
            OpKind::Copy => self.costs.busy(work).map(|_| Picos::ZERO),
            _ if pairs => self.costs.busy_exchanging(work, turns),
            _ => self.costs.busy(work),
        };
        let spacing = match order {
            Order::InTurn if pairs => {
                Picos(self.costs.spacing_of_exchange(work, turns).0.saturating_mul(partners.into()))
            }
            Order::InTurn => self.costs.spacing(work, self.message),
            Order::Free => Picos::ZERO,
        };
        let lane = busy.map(|busy| {
            let passed = Work::passed(BLOCK_TIME, busy).0.saturating_mul(u128::from(WHOLE));
            u64::try_from(passed.div_ceil(on_wire.0.max(1))).unwrap_or(u64::MAX)
        });
        let crossing = if self.pays_to_leave(kind) {
            // Chunks that follow each other (trees, chains) are slots of their own; those of rings are sent slice by slice
            // (NCCL 2.30.7 src/device/all_reduce.h: `ProtoSimple<1, 1>` of trees and NVLS, chunk and slice steps of rings).
            let message = match (self.message, order) {
                (Some(bytes), _) => Message::Whole(bytes),
                (None, Order::InTurn) => Message::Slices(1),
                (None, Order::Free) => Message::Slices(self.costs.slices),
            };
            let letter = self.messages.map(|_| bytes);
            Crossing { letter, ..Crossing::of(self.network, (self.protocol, self.costs), work, message, on_wire) }
        } else {
            Crossing::default()
        };
        OneEffort { software, spacing, lane, crossing }
    }
}

/// The works of a block of sends that run at once (NCCL 2.28 src/include/device.h: NCCL_MAX_DEV_WORK_P2P_PER_BATCH).
const WORKS_OF_BLOCK: u32 = 8;

/// Peers that a block of a schedule has messages for at once, at most.
pub(super) fn most_partners(header: &Header) -> u32 {
    u32::from(header.channels).saturating_mul(WORKS_OF_BLOCK).max(1)
}

/// Bytes that a [`Work`] holds, rounded up.
pub(crate) fn whole_bytes(work: Work) -> Bytes {
    Bytes(u64::try_from(work.0.div_ceil(WORK_PER_BYTE)).unwrap_or(u64::MAX))
}
