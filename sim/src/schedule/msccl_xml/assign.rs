//! Assignment of operations to thread blocks, and their order.
//!
//! A thread block sends to one GPU and receives from one. Every channel of the schedule therefore becomes one thread
//! block per peer that it sends to (the first also executes its local operations), and every connection one that
//! receives. If received data is forwarded as it arrives, one thread block does both in single steps (`rcs`, `rrcs`). A
//! thread block *relays* a connection if it forwards data from it in order of arrival and waits for nothing else
//! before.
//!
//! Connections between the same GPUs are distinguished by channel. A thread block has one channel for its send and its
//! receive, so all connections along a chain of relays have the same channel.

use rustc_hash::FxHashMap;

use super::relay::{Chains, Relays};
use crate::schedule::OpKind;
use crate::schedule::format::WriteError;
use crate::schedule::plain::{Plain, PlainOp};

/// Route of a transfer: source, destination, and index among the connections between the two, in order of sending
/// channels.
pub(super) type Connection = (u32, u32, u32);

/// Marks a missing connection, step or position.
pub(super) const NONE: u32 = u32::MAX;

/// All connections, sorted and numbered.
pub(super) struct Connections {
    pub(super) ways: Vec<Connection>,
    lanes: Vec<LaneKey>,
    /// Connection of each operation; [`NONE`] for operations within a GPU.
    pub(super) of: Vec<u32>,
}

/// Action of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Copy or reduction in the GPU's memory.
    Local(u32),
    /// Sends the transfer.
    Send(u32),
    /// Receives the transfer.
    Receive(u32),
    /// Receives the transfer `.0` and forwards it by the transfer `.1`.
    Relay(u32, u32),
}

impl Act {
    pub(super) fn sent(self) -> Option<u32> {
        match self {
            Self::Send(op) | Self::Relay(_, op) => Some(op),
            Self::Local(_) | Self::Receive(_) => None,
        }
    }

    pub(super) fn received(self) -> Option<u32> {
        match self {
            Self::Receive(op) | Self::Relay(op, _) => Some(op),
            Self::Local(_) | Self::Send(_) => None,
        }
    }
}

/// A thread block; its connections are given by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) sends: Option<u32>,
    pub(super) receives: Option<u32>,
    pub(super) acts: Vec<Act>,
}

/// The thread blocks of every GPU.
pub(super) struct Assignment {
    pub(super) gpus: Vec<Vec<Block>>,
    pub(super) connections: Connections,
    /// The channel of every connection.
    pub(super) channels: Vec<u32>,
}

/// Channel of a GPU with a flag: true for its sends in response to gets of others. Its own operations sort first.
type LaneKey = (bool, u16);

impl Assignment {
    /// Assigns all operations to thread blocks; uses relays only if `relaying`.
    pub(super) fn new(plain: &Plain, ranks: u32, relaying: bool) -> Result<Self, WriteError> {
        let connections = Connections::new(plain);
        // Transfers on each connection, and local operations of each channel of a GPU.
        let mut arrivals: Vec<Vec<u32>> = vec![Vec::new(); connections.ways.len()];
        let mut locals: Vec<FxHashMap<LaneKey, Vec<Act>>> = vec![FxHashMap::default(); ranks as usize];
        for id in plain.by_level() {
            let op = &plain.ops[id as usize];
            if !op.kind.moves_data() {
                continue;
            }
            if op.crosses() {
                arrivals[connections.of[id as usize] as usize].push(id);
            } else if op.kind == OpKind::PutReduceInput {
                return Err(plain.unsupported(id, "it reduces within a rank into a third place"));
            } else {
                locals[op.rank as usize].entry(lane(op)).or_default().push(Act::Local(id));
            }
        }
        let mut chains = Chains::new(&connections.ways);
        let (mut incoming_of, mut outgoing_of) = (vec![Vec::new(); ranks as usize], vec![Vec::new(); ranks as usize]);
        for (&(from, to, _), connection) in connections.ways.iter().zip(0u32..) {
            outgoing_of[from as usize].push(connection);
            incoming_of[to as usize].push(connection);
        }
        let mut relays = relaying.then(|| Relays::new(plain, &connections.of, &arrivals));
        let mut gpus = Vec::with_capacity(ranks as usize);
        for ((locals, outgoing), mut incoming) in locals.into_iter().zip(outgoing_of).zip(incoming_of) {
            let mut blocks = own_blocks(plain, &connections, locals, &outgoing, &arrivals);
            incoming.sort_unstable_by_key(|&connection: &u32| {
                let (from, _, channel) = connections.ways[connection as usize];
                (channel, from)
            });
            if let Some(relays) = &mut relays {
                relays.give(&mut blocks, &mut incoming, &mut chains);
            }
            for connection in incoming {
                let acts = arrivals[connection as usize].iter().map(|&op| Act::Receive(op)).collect();
                blocks.push(Block { sends: None, receives: Some(connection), acts });
            }
            gpus.push(blocks);
        }
        let channels = chains.channels();
        Ok(Self { gpus, connections, channels })
    }
}

impl Connections {
    fn new(plain: &Plain) -> Self {
        let key = |op: &PlainOp| (op.source(), op.target(), lane(op));
        // Consecutive operations mostly use the same connection.
        let mut keys: Vec<(u32, u32, LaneKey)> = Vec::new();
        for key in plain.ops.iter().filter(|op| op.crosses()).map(key) {
            if keys.last() != Some(&key) {
                keys.push(key);
            }
        }
        keys.sort_unstable();
        keys.dedup();
        let mut last = None;
        let of = plain.ops.iter().map(|op| {
            if !op.crosses() {
                return NONE;
            }
            let key = key(op);
            match last {
                Some((known, at)) if known == key => at,
                _ => {
                    let at = keys.binary_search(&key).map_or(NONE, |at| at as u32);
                    last = Some((key, at));
                    at
                }
            }
        });
        let of = of.collect();
        let between_two = keys.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1));
        let ways = between_two.flat_map(|keys| keys.iter().zip(0..).map(|(key, number)| (key.0, key.1, number)));
        Self { ways: ways.collect(), lanes: keys.iter().map(|key| key.2).collect(), of }
    }
}

/// One thread block per peer of each channel; the first of a channel also executes its local operations.
fn own_blocks(
    plain: &Plain,
    connections: &Connections,
    mut locals: FxHashMap<LaneKey, Vec<Act>>,
    outgoing: &[u32],
    arrivals: &[Vec<u32>],
) -> Vec<Block> {
    let lane_of = |&connection: &u32| (connections.lanes[connection as usize], connection);
    let mut sends: Vec<(LaneKey, u32)> = outgoing.iter().map(lane_of).collect();
    // By channel, then by connection, that is by peer.
    sends.sort_unstable();
    let mut lanes: Vec<LaneKey> = locals.keys().copied().chain(sends.iter().map(|(lane, _)| *lane)).collect();
    lanes.sort_unstable();
    lanes.dedup();
    let mut blocks: Vec<Block> = Vec::new();
    let mut sends = sends.into_iter().peekable();
    for lane in lanes {
        let mut local = locals.remove(&lane);
        while let Some((_, connection)) = sends.next_if(|(own, _)| *own == lane) {
            let acts = arrivals[connection as usize].iter().map(|&op| Act::Send(op)).collect();
            let acts = match local.take() {
                Some(local) => merged(plain, local, acts),
                None => acts,
            };
            blocks.push(Block { sends: Some(connection), receives: None, acts });
        }
        blocks.extend(local.map(|acts| Block { acts, ..Block::default() }));
    }
    blocks
}

fn lane(op: &PlainOp) -> LaneKey {
    (op.kind.reads_peer() && op.crosses(), op.channel)
}

/// Merges two sorted lists of acts.
fn merged(plain: &Plain, mut a: Vec<Act>, b: Vec<Act>) -> Vec<Act> {
    a.extend(b);
    a.sort_by_key(|act| match act {
        Act::Local(op) | Act::Send(op) | Act::Receive(op) | Act::Relay(op, _) => (plain.ops[*op as usize].level, *op),
    });
    a
}
