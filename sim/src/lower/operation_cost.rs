//! Costs of an operation for its thread block, from the profile: software time, and time during which the block is
//! busy. [`ProtocolCosts`] has the formula of a protocol (LL, LL128, Simple and others); this module applies it to the
//! operations of a schedule.

use fabricast_topologies::{Bytes, Picos};
use rustc_hash::FxHashMap;

use super::Survey;
use super::block_time::BLOCK_TIME;
use super::network::{Crossing, Message};
use super::pieces::{PieceStarts, RunWork};
use crate::engine::{Pace, PerOp, RunOrder};
use crate::profile::{
    BlockWork, ChannelLimit, Destination, LocalStore, MAX_EXCHANGE_PEERS, MessageCosts, NetworkCosts, OperationKind,
    PairwiseExchange, Profile, ProtocolCosts, Role, SendBuffer, SharedPasses,
};
use crate::quantity::Work;
use crate::schedule::{
    BlockSplit, Buffer, BufferUse, ChunkMessages, Collective, Dependency, Header, OpKind, Processor, Protocol, Rank,
    Run,
};
use crate::sharing::WHOLE;

/// Fraction of an NVLS block's threads that copy data into the buffer that the switch reads: 7 of 20 warps with more
/// than six ranks (NCCL 2.28 src/device/all_reduce.h, `RunWorkColl` of NCCL_ALGO_NVLS: `scatterWarps`).
const STAGING_SHARE: (u16, u16) = (7, 20);

/// Costs of a schedule's operations, computed from a profile.
pub(crate) struct OperationCosts<'a> {
    costs: &'a ProtocolCosts,
    protocol: Protocol,
    network: &'a NetworkCosts,
    messages: Option<&'a MessageCosts>,
    workplace: Processor,
    /// Payload of a message in bytes if operations are parts of a message; `None` if each operation is at least one
    /// message.
    message: Option<Bytes>,
    /// Division of a chunk into messages.
    chunk_messages: ChunkMessages,
    /// Number of threads of a thread block.
    threads: u16,
    /// Number of threads for even and for odd channels. They differ if a block is split between two channels.
    channel_threads: [u16; 2],
    split: BlockSplit,
    collective: Collective,
    buffers: BufferUse,
    concurrent_peers: u16,
    /// Limit on the number of peers with which a block exchanges messages concurrently.
    max_partners: u32,
    /// Number of channels of the schedule.
    channels: u32,
    /// Number of ranks whose data a switch reduces.
    team: u64,
}

/// Properties of an operation that determine its costs, except its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Task {
    kind: OpKind,
    role: Role,
    order: RunOrder,
    /// Index of the half of a split block: 0 or 1.
    half: u8,
    /// Number of consecutive messages to one peer.
    turns: u32,
    /// Number of peers with which the block exchanges messages concurrently, for pairwise collectives; otherwise 1.
    partners: u32,
    /// Work of other operations in the same passes of the block.
    shared: SharedPasses,
    /// Destination of the data that the operation produces.
    destination: Destination,
    /// Extent of the relevant connection: for messages in `RunOrder::InTurn`, the one on which they are sent; for others,
    /// the one on which the awaited data arrives.
    extent: ConnectionExtent,
    /// Extent of the connection on which the operation sends.
    outgoing: ConnectionExtent,
    /// Buffer into which a pairwise exchange copies the data that it sends.
    send_buffer: SendBuffer,
    /// Assignment of the peers of a pairwise exchange to blocks.
    peer_blocks: PeerBlocks,
}

/// Assignment of the peers of a pairwise exchange to thread blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PeerBlocks {
    /// Each peer has its own blocks as long as there are enough: a call within a host (NCCL 2.30.7
    /// src/include/channel.h, `ncclP2pChannelBaseForRound`: the channels of a peer begin at a number of its own).
    Separate,
    /// All peers of a channel share a block: a call over several hosts, in which the peers of a group of up to eight
    /// ranks have the same channels, those on the own host as well.
    Shared,
}

/// Extent of a connection: within a host, or over a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum ConnectionExtent {
    /// Connection within a host; also used where the costs do not depend on the connection.
    #[default]
    Host,
    /// Connection over a network.
    Network,
}

impl ConnectionExtent {
    /// Buffer into which a pairwise exchange copies the data that it sends on the connection.
    pub fn send_buffer(self) -> SendBuffer {
        match self {
            Self::Host => SendBuffer::Receiver,
            Self::Network => SendBuffer::Sender,
        }
    }
}

/// Extents of the connections on which a run's operations send.
pub(super) enum OutgoingExtents {
    /// One extent of all connections.
    Same(ConnectionExtent),
    /// Extent of each operation's connection, by index.
    Each(Vec<ConnectionExtent>),
}

impl Task {
    /// Returns the task with another buffer for the data that a pairwise exchange sends.
    pub fn with_send_buffer(self, send_buffer: SendBuffer) -> Self {
        Self { send_buffer, ..self }
    }

    /// Returns the task with another assignment of peers to blocks.
    pub fn with_peer_blocks(self, peer_blocks: PeerBlocks) -> Self {
        Self { peer_blocks, ..self }
    }

    /// Returns the task in a schedule of `loops` loops, given that in a schedule of `rounds` loops.
    pub fn in_loops(self, loops: u32, rounds: u32) -> Self {
        match self.order {
            RunOrder::InTurn => Self { turns: self.turns.saturating_mul(loops).div_ceil(rounds.max(1)), ..self },
            RunOrder::Free => self,
        }
    }

    /// Returns the task with another extent of its connection.
    pub fn with_extent(self, extent: ConnectionExtent) -> Self {
        Self { extent, ..self }
    }

    /// Returns the task with another extent of the connection on which it sends.
    pub fn with_outgoing(self, outgoing: ConnectionExtent) -> Self {
        Self { outgoing, ..self }
    }

    /// Returns the task with other work in the same passes.
    pub fn with_shared(self, shared: SharedPasses) -> Self {
        Self { shared, ..self }
    }

    /// Returns the task with another destination of its data.
    pub fn with_destination(self, destination: Destination) -> Self {
        Self { destination, ..self }
    }
}

/// Costs of one operation for its thread block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationCost {
    /// Software time before the operation's first byte.
    pub software: Picos,
    /// Minimum time from the operation's first byte to that of the next one, for runs in `RunOrder::InTurn`.
    pub spacing: Picos,
    /// Channel capacity per byte on the wire, in units of [`WHOLE`]; `None` if the profile states a rate for channels.
    pub channel_cost: Option<u64>,
    /// Additional costs if the operation leaves its host.
    pub crossing: Crossing,
}

/// Start time of a rank, absolute and relative to its call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    /// Earliest time at which an operation of the rank is ready.
    pub not_before: Picos,
    /// Delay of the rank after the first rank of its call.
    pub delay: Picos,
}

impl OperationCost {
    /// Returns the pacing of the operation on a rank with this start time.
    pub fn pace(&self, start: Start) -> Pace {
        let Start { not_before, delay: late } = start;
        Pace { software: self.software, not_before, delay: late, spacing: self.spacing }
    }
}

/// Distinct tasks of a schedule, independent of the size of the call. An entry is a task and its number of chunks. Its
/// index is the placeholder of its costs in a workload that is lowered once for many sizes.
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

    /// Returns the placeholder of a task's channel coefficient. Codes far exceed all actual coefficients, and no code is a
    /// multiple of another task's code or of a proxy code.
    pub fn channel_code(number: u32) -> u64 {
        (1 << 40) + u64::from(number)
    }

    /// Returns the placeholder of a task's proxy coefficient.
    pub fn proxy_code(number: u32) -> u64 {
        (1 << 40) + (1 << 30) + u64::from(number)
    }
}

/// Costs of the operations of a run.
pub(super) enum RunCosts {
    /// Equal costs for all operations.
    Same(OperationCost),
    /// Equal costs within each piece.
    Pieces {
        /// Consecutive operations of equal size.
        pieces: PieceStarts,
        /// Costs of an operation of each piece.
        each: Vec<OperationCost>,
    },
    /// Costs of each operation, by index.
    Each(Vec<OperationCost>),
    /// Costs that depend on the extent of the connection on which an operation sends.
    ByExtent {
        /// Costs of operations on connections within a host.
        host: Box<RunCosts>,
        /// Costs of operations on connections over a network.
        network: Box<RunCosts>,
        /// Extent of each operation's connection, by index.
        extents: Vec<ConnectionExtent>,
    },
}

impl RunCosts {
    /// Returns the costs of the operation at `index`; `None` if the run has no such operation.
    pub fn at(&self, index: u32) -> Option<&OperationCost> {
        match self {
            Self::Same(one) => Some(one),
            Self::Pieces { pieces, each } => each.get(pieces.piece_index(index)),
            Self::Each(each) => each.get(index as usize),
            Self::ByExtent { host, network, extents } => match extents.get(index as usize)? {
                ConnectionExtent::Host => host.at(index),
                ConnectionExtent::Network => network.at(index),
            },
        }
    }

    /// Returns true if a property is the same for all operations.
    fn is_equal<T: PartialEq>(&self, property: fn(&OperationCost) -> T) -> bool {
        let are_equal = |each: &[OperationCost]| each.windows(2).all(|pair| property(&pair[0]) == property(&pair[1]));
        match self {
            Self::Same(_) => true,
            Self::Pieces { each, .. } | Self::Each(each) => are_equal(each),
            Self::ByExtent { host, network, .. } => {
                let first = |costs: &Self| costs.at(0).map(property);
                host.is_equal(property) && network.is_equal(property) && first(host) == first(network)
            }
        }
    }

    /// Returns the channel capacity of the operation at `index`, per byte on the wire; `None` if the profile states a rate
    /// for channels.
    pub fn channel_cost(&self, index: u32) -> Option<u64> {
        self.at(index).and_then(|one| one.channel_cost)
    }

    /// Returns the additional costs that the operation at `index` has if it leaves its host.
    pub fn crossing(&self, index: u32) -> Crossing {
        self.at(index).map(|one| one.crossing).unwrap_or_default()
    }

    /// Returns true if the additional costs of leaving the host are the same for all operations.
    pub fn has_equal_crossings(&self) -> bool {
        self.is_equal(|cost| cost.crossing)
    }

    /// Returns true if all operations use the same channel capacity per byte.
    pub fn is_even(&self) -> bool {
        self.is_equal(|cost| cost.channel_cost)
    }
}

impl<'a> OperationCosts<'a> {
    pub fn new(profile: &'a Profile, header: &Header) -> Self {
        let costs = profile.protocol(header.protocol);
        let threads = header.blocks.threads.unwrap_or(costs.threads);
        let channel_threads = match header.blocks.split {
            BlockSplit::OneChannel => [threads; 2],
            BlockSplit::ReduceAndCopy => costs.split_threads(threads),
        };
        let network = &profile.network;
        Self {
            costs,
            protocol: header.protocol,
            network,
            messages: profile.messages.as_ref(),
            workplace: header.blocks.processor,
            message: header.blocks.message,
            chunk_messages: header.blocks.chunk_messages,
            threads,
            channel_threads,
            split: header.blocks.split,
            collective: header.call.collective,
            buffers: header.call.buffers,
            concurrent_peers: header.concurrent_peers(),
            max_partners: max_partners(header),
            channels: header.channels.into(),
            team: header.teams.first().map_or(0, |team| team.len() as u64),
        }
    }

    /// Returns the start-up time of the call, before its first operation.
    pub fn startup(&self) -> Picos {
        self.costs.startup(self.collective, self.threads, self.concurrent_peers)
    }

    /// Returns true if costs depend on the channels on which data arrives.
    pub fn depends_on_arrival_channels(&self) -> bool {
        self.split == BlockSplit::ReduceAndCopy && matches!(self.costs.channel_limit, ChannelLimit::Passes(_))
    }

    /// Returns true if costs depend on the destination of local sums.
    pub fn depends_on_sum_destinations(&self) -> bool {
        self.costs.add.is_some() && !self.collective.is_one_way()
    }

    /// Returns [`Role::Forward`] if a run sends data that other ranks sent on its channel, otherwise [`Role::Send`].
    pub(super) fn role(&self, rank: Rank, run: &Run, waits: &[Dependency], survey: &Survey<'_>) -> Role {
        let arrives = |wait: &Dependency| wait.rank != rank && survey.channel(*wait).is_none_or(|c| c == run.channel);
        let passes_on = run.src_buffer != Buffer::Input && waits.iter().any(arrives);
        if passes_on { Role::Forward } else { Role::Send }
    }

    /// Returns the order of a run's operations. Operations of one connection, and reductions of a block, are executed
    /// one after another ([`RunOrder::InTurn`]) if each waits for the previous one. A rank sends to another peer as soon
    /// as the awaited operation is done.
    pub fn order(&self, rank: Rank, number: u32, run: &Run, waits: &[Dependency]) -> RunOrder {
        let is_turn = |wait: &Dependency| *wait == Dependency::shifted(rank, number, -1);
        let is_connection = (run.kind.is_transfer() && run.peer.is_fixed()) || run.kind == OpKind::Reduce;
        let in_turn = is_connection && run.len > 1 && waits.iter().any(is_turn);
        if in_turn { RunOrder::InTurn } else { RunOrder::Free }
    }

    /// Computes the costs of a run's operations, from their bytes on the wire and their payload.
    pub(super) fn run_costs(
        &self,
        run: &Run,
        task: Task,
        work: &RunWork,
        payload: impl Fn(u32) -> Bytes,
        on_wire: impl Fn(u32) -> Work,
    ) -> RunCosts {
        if run.len == 0 {
            return RunCosts::Same(self.operation_cost(task, Bytes(0), Work(0)));
        }
        let at = |i: u32| self.operation_cost(task, payload(i), on_wire(i));
        match (work.work, &work.pieces) {
            (PerOp::Same(_), _) => RunCosts::Same(at(0)),
            (PerOp::Each(_), Some(pieces)) => {
                RunCosts::Pieces { pieces: pieces.clone(), each: pieces.starts().map(at).collect() }
            }
            (PerOp::Each(_), None) => RunCosts::Each((0..run.len).map(at).collect()),
        }
    }

    /// Returns placeholder costs of operations of `span` chunks: the task number as software time, and codes as channel
    /// coefficient and as costs of leaving the host.
    pub fn placeholder_cost(&self, tasks: &mut Tasks, task: Task, span: u32) -> OperationCost {
        let number = tasks.number(task, if task.kind.moves_data() { span } else { 0 });
        let channel_cost = self.works_in_passes().then(|| Tasks::channel_code(number));
        let crossing = match self.may_cross_hosts_at_cost(task.kind) {
            true => Crossing::placeholder(Tasks::proxy_code(number)),
            false => Crossing::default(),
        };
        OperationCost { software: Picos(number.into()), spacing: Picos::ZERO, channel_cost, crossing }
    }

    /// Returns the local store with which a block also writes sent data to its rank's output. Partial sums are not
    /// stored; results are, and so is a rank's own contribution if it is part of the result (NCCL 2.28
    /// src/device/all_gather.h, all_reduce.h, broadcast.h: `copySend`, `recvCopySend`, `recvReduceCopySend` compared
    /// with `send`, `recvReduceSend`). The root of a tree also stores the sum, but with its whole block, and is charged
    /// only for the sends of one half.
    fn output_storage(&self, role: Role, operation: OperationKind) -> LocalStore {
        let input_is_result = matches!(self.collective, Collective::AllGather | Collective::Broadcast);
        let is_stored = match (operation, role) {
            (OperationKind::Reduce, _) => false,
            (OperationKind::Copy, Role::Forward) => !self.collective.is_pairwise(),
            (OperationKind::Copy, Role::Send) => input_is_result && self.buffers == BufferUse::OutOfPlace,
        };
        if is_stored { LocalStore::Store } else { LocalStore::None }
    }

    /// Returns true if operations of this kind may have additional costs when they leave their host.
    fn may_cross_hosts_at_cost(&self, kind: OpKind) -> bool {
        (*self.network != NetworkCosts::FREE || self.messages.is_some())
            && (kind.is_transfer() || kind == OpKind::Signal)
    }

    /// Returns the properties that determine the costs of a run's operations, except their bytes.
    pub fn task(run: &Run, role: Role, order: RunOrder, partners: u32) -> Task {
        let turns = if order == RunOrder::InTurn { run.len } else { 1 };
        let (half, shared) = ((run.channel.0 % 2) as u8, SharedPasses::None);
        Task {
            kind: run.kind,
            role,
            order,
            half,
            turns,
            partners,
            shared,
            destination: Destination::Forwarded,
            extent: ConnectionExtent::Host,
            outgoing: ConnectionExtent::Host,
            send_buffer: SendBuffer::Receiver,
            peer_blocks: PeerBlocks::Separate,
        }
    }

    /// Returns true if blocks work in passes, so that the channel use of an operation depends on its size.
    fn works_in_passes(&self) -> bool {
        matches!(self.costs.channel_limit, ChannelLimit::Passes(_))
    }

    /// Returns the number of peers among which the warps of a block are divided if the rank sends to `partners` peers on the
    /// block's channel. A schedule divides the data of each peer of a host over all channels, which represents separate
    /// blocks for each peer. Of the peers that share a channel within a host, those of a group of eight run concurrently,
    /// and the groups in sequence (NCCL 2.30.7 src/enqueue.cc, `ncclAddWorkBatchToPlan`).
    fn peers_of_block(&self, peer_blocks: PeerBlocks, partners: u32) -> u32 {
        match peer_blocks {
            PeerBlocks::Separate => partners.min(MAX_EXCHANGE_PEERS).div_ceil(self.channels.max(1)),
            PeerBlocks::Shared => partners,
        }
    }

    /// Computes the costs of an operation that moves `bytes` of payload and `on_wire` with framing.
    pub fn operation_cost(&self, task: Task, bytes: Bytes, on_wire: Work) -> OperationCost {
        let Task {
            kind, role, order, half, turns, partners, shared, destination, extent, outgoing, send_buffer, ..
        } = task;
        let partners = partners.min(self.max_partners);
        let exchange = PairwiseExchange { buffer: send_buffer, peers: self.peers_of_block(task.peer_blocks, partners) };
        let threads = self.channel_threads[usize::from(half % 2)];
        let operation =
            if kind.reduces() || kind == OpKind::MulticastReduce { OperationKind::Reduce } else { OperationKind::Copy };
        // Network adapters send the data of an all_reduce in the switches of a network, after thread blocks have completed it.
        let is_moved_by_adapters = kind == OpKind::SwitchAllReduce;
        let work =
            BlockWork { role, operation, local_store: self.output_storage(role, operation), shared, bytes, threads };
        // In a split block other threads receive; messages in `RunOrder::InTurn` overlap with receiving.
        let alone = self.split == BlockSplit::OneChannel && order == RunOrder::Free;
        // In pairwise exchanges some warps of a block send and others receive (NCCL 2.28 src/device/sendrecv.h).
        let pairs = self.split == BlockSplit::OneChannel && self.collective.is_pairwise();
        // If data flow in one direction along a chain or tree, the source receives nothing.
        let is_source = alone && role == Role::Send && self.collective.is_one_way();
        let role_before = if alone { role } else { Role::Forward };
        let software = match kind {
            OpKind::Signal | OpKind::SwitchAllReduce => {
                self.costs.software(BlockWork { role: Role::Forward, bytes: Bytes(0), ..work })
            }
            kind if kind.is_transfer() && pairs => {
                let received = Bytes(bytes.0.saturating_mul(partners.into()));
                self.costs.exchange_software(work, received, exchange)
            }
            kind if kind.is_transfer() && is_source => self.costs.source_software(work),
            kind if kind.is_transfer() => {
                let work = BlockWork { role: role_before, ..work };
                match (extent, self.chunk_messages) {
                    (ConnectionExtent::Network, ChunkMessages::Slices) => self.costs.software_after_network(work),
                    _ => self.costs.software(work),
                }
            }
            // Copy between a device's memory and host memory.
            OpKind::Copy if self.workplace == Processor::Host => {
                self.messages.map_or(Picos::ZERO, |messages| messages.launch)
            }
            _ => Picos::ZERO,
        };
        let forwards_in_passes =
            alone && role == Role::Forward && kind.is_transfer() && self.works_in_passes() && !is_moved_by_adapters;
        let reload = if forwards_in_passes { self.costs.reload(work) } else { Picos::ZERO };
        let is_split = self.split == BlockSplit::ReduceAndCopy && kind.is_transfer() && self.works_in_passes();
        let fan = if is_split { self.costs.split_block } else { Picos::ZERO };
        // Only the reduction is staged: the result for all ranks is sent from the buffer as it arrives.
        let staging = if kind == OpKind::MulticastReduce {
            let (some, all) = STAGING_SHARE;
            self.costs.staging_time(Bytes(bytes.0.saturating_mul(self.team)), (threads * some / all).max(1))
        } else {
            Picos::ZERO
        };
        let adding = match (operation, destination) {
            (OperationKind::Reduce, Destination::Stored) => self.costs.reduction_time(bytes),
            _ => Picos::ZERO,
        };
        let software = software + reload + fan + staging + adding;
        // Time until a message of a pairwise exchange to a NIC is complete.
        let fill = |bytes: Bytes| match send_buffer {
            SendBuffer::Sender if pairs && self.may_cross_hosts_at_cost(kind) => {
                self.costs.fill_exchange_buffers(bytes, threads, partners)
            }
            _ => None,
        };
        let busy = match kind {
            // The rank's own part of the data is copied by the send that reads the same bytes (NCCL's copy-send). In
            // pairwise exchanges separate blocks copy it (NCCL 2.30.7 src/enqueue.cc: channels of the round in which a
            // rank is its own peer).
            OpKind::Copy | OpKind::SwitchAllReduce => self.costs.busy(work).map(|_| Picos::ZERO),
            // The first message to a NIC is complete before it is sent.
            _ if pairs => self.costs.busy_exchanging(work, turns, exchange).map(|busy| {
                let first = fill(bytes).map_or(0, |fill| fill.0 / u64::from(turns.max(1)));
                Picos(busy.0.saturating_sub(first))
            }),
            _ => self.costs.busy(work),
        };
        let spacing = match order {
            RunOrder::InTurn if pairs => {
                let alone = busy.map_or(Picos::ZERO, |busy| busy + self.costs.step);
                let all = |one: Picos| Picos(one.0.saturating_mul(partners.into()));
                match (task.peer_blocks, extent) {
                    (PeerBlocks::Separate, ConnectionExtent::Host) => all(alone),
                    // Each peer of a block has its own warps, so that waiting for one peer overlaps with copying for
                    // the others.
                    (PeerBlocks::Shared, ConnectionExtent::Host) => alone.max(all(busy.unwrap_or_default())),
                    // A block has finished a message once the proxy can see it.
                    (_, ConnectionExtent::Network) => {
                        let visible = alone + self.network.visible_after(self.protocol);
                        visible.max(all(busy.unwrap_or_default()))
                    }
                }
            }
            RunOrder::InTurn if is_moved_by_adapters => Picos::ZERO,
            RunOrder::InTurn => self.costs.spacing(work, self.message),
            RunOrder::Free => Picos::ZERO,
        };
        let channel_cost = busy.map(|busy| {
            let passed = Work::passed(BLOCK_TIME, busy).0.saturating_mul(u128::from(WHOLE));
            u64::try_from(passed.div_ceil(on_wire.0.max(1))).unwrap_or(u64::MAX)
        });
        let crossing = if self.may_cross_hosts_at_cost(kind) {
            // Consecutive chunks (trees, chains) and chunks of sends occupy one slot each; chunks of rings are sent
            // slice by slice (NCCL 2.30.7 src/device/all_reduce.h: `ProtoSimple<1, 1>` of trees and NVLS, chunk and
            // slice steps of rings; src/device/sendrecv.h).
            let message = match (self.message, order) {
                (Some(bytes), _) => Message::Whole(bytes),
                (None, RunOrder::InTurn) => Message::Slices(1),
                (None, RunOrder::Free) if self.chunk_messages == ChunkMessages::One => Message::Slices(1),
                (None, RunOrder::Free) => Message::Slices(self.costs.slices),
            };
            let letter = self.messages.map(|_| bytes);
            // The block copies the messages for all partners concurrently (NCCL 2.30.7 src/device/sendrecv.h: as many
            // warps for each), so the first is complete when all are.
            let fill = |message: Bytes| {
                if is_moved_by_adapters {
                    return Picos::ZERO;
                }
                let exchanged = fill(Bytes(message.0.saturating_mul(partners.into())));
                exchanged.or_else(|| self.costs.busy(BlockWork { bytes: message, ..work })).unwrap_or_default()
            };
            Crossing {
                two_sided_bytes: letter,
                ..Crossing::new(self.network, self.protocol, work.bytes, message, fill, on_wire)
            }
        } else {
            Crossing::default()
        };
        let spacing = match outgoing {
            ConnectionExtent::Host => spacing,
            ConnectionExtent::Network => spacing.max(crossing.spacing),
        };
        OperationCost { software, spacing, channel_cost, crossing }
    }
}

/// Returns the maximum number of peers with which a block of a schedule exchanges messages concurrently.
pub(super) fn max_partners(header: &Header) -> u32 {
    u32::from(header.channels).saturating_mul(MAX_EXCHANGE_PEERS).max(1)
}
