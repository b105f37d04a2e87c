//! Which thread block does what, and in which order.
//!
//! A thread block sends to one GPU and receives from one. So every lane becomes a thread block for each peer that it sends
//! to (the first of them also has its local operations), and every connection one that receives. Where what is received is
//! sent on as it comes, one thread block does both, in single steps (`rcs`, `rrcs`): a thread block *relays* a connection
//! if it sends on, in their order, things that it takes from there, and waits for nothing else before doing so.
//!
//! Connections between the same GPUs are told apart by channel. A thread block has one channel for both its ways, so all
//! connections along a chain of relays have the same.

use rustc_hash::FxHashMap;

use super::relay::{Chains, Relays};
use crate::schedule::OpKind;
use crate::schedule::format::WriteError;
use crate::schedule::plain::{Plain, PlainOp};

/// A transfer's way: from, to, and which of several between them, in the order of the lanes that send.
pub(super) type Connection = (u32, u32, u32);

/// What one step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// A copy or sum in the GPU's memory.
    Local(u32),
    /// The transfer `.0` is sent.
    Send(u32),
    /// The transfer `.0` is received.
    Receive(u32),
    /// The transfer `.0` is received and `.1` sends it on.
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

/// A thread block.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) sends: Option<Connection>,
    pub(super) receives: Option<Connection>,
    pub(super) acts: Vec<Act>,
}

/// The thread blocks of every GPU.
pub(super) struct Assignment {
    pub(super) gpus: Vec<Vec<Block>>,
    /// The channel of every connection.
    pub(super) channels: FxHashMap<Connection, u32>,
}

/// A lane of a GPU: what it executes of its own comes first, then what it sends because others get it.
type LaneKey = (bool, u16);

/// What a GPU does without receiving: by lane and, for what it sends, by peer.
type Own = FxHashMap<(LaneKey, Option<u32>), Vec<Act>>;

impl Assignment {
    /// Assigns everything; relays only if `relaying`.
    pub(super) fn new(plain: &Plain, ranks: u32, relaying: bool) -> Result<Self, WriteError> {
        // By level, then by id: an order in which nothing waits for what comes later.
        let mut order: Vec<u32> = (0..plain.ops.len() as u32).collect();
        order.sort_by_key(|&op| (plain.ops[op as usize].level, op));
        let connections = connections(plain);
        let mut owns: Vec<Own> = vec![Own::default(); ranks as usize];
        let mut arrivals: FxHashMap<Connection, Vec<u32>> = FxHashMap::default();
        for &id in &order {
            let op = &plain.ops[id as usize];
            if !op.kind.moves_data() {
                continue;
            }
            if op.crosses() {
                let connection = connections[id as usize];
                owns[connection.0 as usize].entry((lane(op), Some(op.target()))).or_default().push(Act::Send(id));
                arrivals.entry(connection).or_default().push(id);
            } else if op.kind == OpKind::PutReduceInput {
                return Err(plain.unsupported(id, "it reduces within a rank into a third place"));
            } else {
                owns[op.rank as usize].entry((lane(op), None)).or_default().push(Act::Local(id));
            }
        }
        let mut chains = Chains::new(arrivals.keys().copied().collect());
        let mut incoming_of: Vec<Vec<Connection>> = vec![Vec::new(); ranks as usize];
        arrivals.keys().for_each(|&connection| incoming_of[connection.1 as usize].push(connection));
        let mut relays = relaying.then(|| Relays::new(plain, &connections, &arrivals));
        let mut gpus = Vec::with_capacity(ranks as usize);
        for (own, mut incoming) in owns.into_iter().zip(incoming_of) {
            let mut blocks = own_blocks(plain, own, &connections);
            incoming.sort_unstable_by_key(|&(from, _, channel)| (channel, from));
            if let Some(relays) = &mut relays {
                relays.give(&mut blocks, &mut incoming, &mut chains);
            }
            for connection in incoming {
                let acts = arrivals[&connection].iter().map(|&op| Act::Receive(op)).collect();
                blocks.push(Block { sends: None, receives: Some(connection), acts });
            }
            gpus.push(blocks);
        }
        Ok(Self { gpus, channels: chains.channels() })
    }
}

/// A thread block for each peer of each lane; the first of a lane also has its local operations.
fn own_blocks(plain: &Plain, mut own: Own, connections: &[Connection]) -> Vec<Block> {
    let mut keys: Vec<(LaneKey, Option<u32>)> = own.keys().copied().collect();
    keys.sort_unstable();
    let mut blocks: Vec<Block> = Vec::new();
    let mut locals: Option<(LaneKey, Vec<Act>)> = None;
    let alone = |acts| Block { acts, ..Block::default() };
    for key in keys {
        let acts = own.remove(&key).unwrap_or_default();
        if key.1.is_none() {
            blocks.extend(locals.replace((key.0, acts)).map(|(_, acts)| alone(acts)));
            continue;
        }
        let sends = acts.first().and_then(|act| act.sent()).map(|op| connections[op as usize]);
        let acts = match locals.take() {
            Some((lane, local)) if lane == key.0 => merged(plain, local, acts),
            Some((_, local)) => {
                blocks.push(alone(local));
                acts
            }
            None => acts,
        };
        blocks.push(Block { sends, receives: None, acts });
    }
    blocks.extend(locals.map(|(_, acts)| alone(acts)));
    blocks
}

fn lane(op: &PlainOp) -> LaneKey {
    (op.kind.reads_peer() && op.crosses(), op.channel)
}

/// The connection of every transfer.
fn connections(plain: &Plain) -> Vec<Connection> {
    let mut lanes: FxHashMap<(u32, u32), Vec<LaneKey>> = FxHashMap::default();
    for op in plain.ops.iter().filter(|op| op.crosses()) {
        lanes.entry((op.source(), op.target())).or_default().push(lane(op));
    }
    for known in lanes.values_mut() {
        known.sort_unstable();
        known.dedup();
    }
    let channel = |op: &PlainOp| {
        let known = lanes.get(&(op.source(), op.target()))?;
        known.binary_search(&lane(op)).ok().map(|at| at as u32)
    };
    plain.ops.iter().map(|op| (op.source(), op.target(), channel(op).unwrap_or(0))).collect()
}

/// Two lists in order as one in order.
fn merged(plain: &Plain, mut a: Vec<Act>, b: Vec<Act>) -> Vec<Act> {
    a.extend(b);
    a.sort_by_key(|act| match act {
        Act::Local(op) | Act::Send(op) | Act::Receive(op) | Act::Relay(op, _) => (plain.ops[*op as usize].level, *op),
    });
    a
}
