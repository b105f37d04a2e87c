//! Assignment of operations to thread blocks, and their order.
//!
//! A thread block sends to one GPU and receives from one. Every channel of the schedule therefore becomes one thread
//! block per peer that it sends to (the first also executes the channel's local operations), and every connection
//! becomes one thread block that receives. If received data is forwarded as it arrives, one thread block receives and
//! forwards in single steps (`rcs`, `rrcs`). A thread block *relays* a connection if it forwards data from it in order
//! of arrival and waits for nothing else before.
//!
//! Connections between the same GPUs are distinguished by channel. A thread block has one channel for its send and its
//! receive, so all connections along a chain of relays have the same channel.

use rustc_hash::FxHashMap;

use super::relay::{Chains, Relays};
use super::thread_block::{NONE, StepAction, ThreadBlock, TransferRoute};
use crate::schedule::OpKind;
use crate::schedule::file_format::WriteError;
use crate::schedule::flat::{FlatOp, FlatSchedule};

/// All connections, sorted and numbered.
pub(super) struct Connections {
    pub(super) routes: Vec<TransferRoute>,
    lanes: Vec<ChannelSortKey>,
    /// Connection of each operation; [`NONE`] for operations within a GPU.
    pub(super) connection_of_op: Vec<u32>,
}

/// Thread blocks of every GPU, and the connections between them.
pub(super) struct Assignment {
    pub(super) gpus: Vec<Vec<ThreadBlock>>,
    pub(super) connections: Connections,
    /// Channel of every connection.
    pub(super) channels: Vec<u32>,
}

/// Sort key of a GPU's channel. The flag is true for sends in response to gets of other GPUs, so that the GPU's own
/// operations come first.
type ChannelSortKey = (bool, u16);

/// Use of steps that relay received data: `rcs` and `rrcs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelayUse {
    Allowed,
    Forbidden,
}

impl Assignment {
    /// Assigns all operations to thread blocks, with or without relays.
    ///
    /// # Errors
    /// [`WriteError`] for a local operation that reduces two chunks into a third one.
    pub(super) fn new(flat: &FlatSchedule, ranks: u32, relay_use: RelayUse) -> Result<Self, WriteError> {
        let connections = Connections::new(flat);
        // Transfers on each connection, and local operations of each channel of a GPU.
        let mut arrivals: Vec<Vec<u32>> = vec![Vec::new(); connections.routes.len()];
        let mut locals: Vec<FxHashMap<ChannelSortKey, Vec<StepAction>>> = vec![FxHashMap::default(); ranks as usize];
        for id in flat.level_order() {
            let op = &flat.ops[id as usize];
            if !op.kind.moves_data() {
                continue;
            }
            if op.crosses() {
                arrivals[connections.connection_of_op[id as usize] as usize].push(id);
            } else if op.kind == OpKind::PutReduceInput {
                return Err(flat.unsupported(id, "it reduces within a rank into a third location"));
            } else {
                locals[op.rank as usize].entry(channel_key(op)).or_default().push(StepAction::Local(id));
            }
        }
        let mut chains = Chains::new(&connections.routes);
        let (mut incoming_by_rank, mut outgoing_by_rank) =
            (vec![Vec::new(); ranks as usize], vec![Vec::new(); ranks as usize]);
        for (&(from, to, _), connection) in connections.routes.iter().zip(0u32..) {
            outgoing_by_rank[from as usize].push(connection);
            incoming_by_rank[to as usize].push(connection);
        }
        let mut relays =
            (relay_use == RelayUse::Allowed).then(|| Relays::new(flat, &connections.connection_of_op, &arrivals));
        let mut gpus = Vec::with_capacity(ranks as usize);
        for ((locals, outgoing), mut incoming) in locals.into_iter().zip(outgoing_by_rank).zip(incoming_by_rank) {
            let mut blocks = sending_blocks(flat, &connections, locals, &outgoing, &arrivals);
            incoming.sort_unstable_by_key(|&connection: &u32| {
                let (from, _, channel) = connections.routes[connection as usize];
                (channel, from)
            });
            if let Some(relays) = &mut relays {
                relays.assign(&mut blocks, &mut incoming, &mut chains);
            }
            for connection in incoming {
                let actions = arrivals[connection as usize].iter().map(|&op| StepAction::Receive(op)).collect();
                blocks.push(ThreadBlock { sends: None, receives: Some(connection), actions });
            }
            gpus.push(blocks);
        }
        let channels = chains.channels();
        Ok(Self { gpus, connections, channels })
    }
}

impl Connections {
    fn new(flat: &FlatSchedule) -> Self {
        let key = |op: &FlatOp| (op.source(), op.target(), channel_key(op));
        // Consecutive operations mostly use the same connection.
        let mut keys: Vec<(u32, u32, ChannelSortKey)> = Vec::new();
        for key in flat.ops.iter().filter(|op| op.crosses()).map(key) {
            if keys.last() != Some(&key) {
                keys.push(key);
            }
        }
        keys.sort_unstable();
        keys.dedup();
        let mut last = None;
        let connection_numbers = flat.ops.iter().map(|op| {
            if !op.crosses() {
                return NONE;
            }
            let key = key(op);
            match last {
                Some((known, index)) if known == key => index,
                _ => {
                    let index = keys.binary_search(&key).map_or(NONE, |index| index as u32);
                    last = Some((key, index));
                    index
                }
            }
        });
        let connection_of_op = connection_numbers.collect();
        let groups = keys.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1));
        let routes = groups.flat_map(|keys| keys.iter().zip(0..).map(|(key, number)| (key.0, key.1, number)));
        Self { routes: routes.collect(), lanes: keys.iter().map(|key| key.2).collect(), connection_of_op }
    }
}

/// Returns one thread block per peer of each channel. The first block of a channel also executes the channel's local
/// operations.
fn sending_blocks(
    flat: &FlatSchedule,
    connections: &Connections,
    mut locals: FxHashMap<ChannelSortKey, Vec<StepAction>>,
    outgoing: &[u32],
    arrivals: &[Vec<u32>],
) -> Vec<ThreadBlock> {
    let with_lane = |&connection: &u32| (connections.lanes[connection as usize], connection);
    let mut sends: Vec<(ChannelSortKey, u32)> = outgoing.iter().map(with_lane).collect();
    // Sorted by channel, then by connection and thereby by peer.
    sends.sort_unstable();
    let mut lanes: Vec<ChannelSortKey> = locals.keys().copied().chain(sends.iter().map(|(lane, _)| *lane)).collect();
    lanes.sort_unstable();
    lanes.dedup();
    let mut blocks: Vec<ThreadBlock> = Vec::new();
    let mut sends = sends.into_iter().peekable();
    for lane in lanes {
        let mut local = locals.remove(&lane);
        while let Some((_, connection)) = sends.next_if(|(next_lane, _)| *next_lane == lane) {
            let actions = arrivals[connection as usize].iter().map(|&op| StepAction::Send(op)).collect();
            let actions = match local.take() {
                Some(local) => merged(flat, local, actions),
                None => actions,
            };
            blocks.push(ThreadBlock { sends: Some(connection), receives: None, actions });
        }
        blocks.extend(local.map(|actions| ThreadBlock { actions, ..ThreadBlock::default() }));
    }
    blocks
}

fn channel_key(op: &FlatOp) -> ChannelSortKey {
    (op.kind.reads_peer() && op.crosses(), op.channel)
}

/// Merges two lists of actions, each sorted by level and operation.
fn merged(flat: &FlatSchedule, mut a: Vec<StepAction>, b: Vec<StepAction>) -> Vec<StepAction> {
    a.extend(b);
    a.sort_by_key(|action| match action {
        StepAction::Local(op) | StepAction::Send(op) | StepAction::Receive(op) | StepAction::Relay(op, _) => {
            (flat.ops[*op as usize].level, *op)
        }
    });
    a
}
