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

/// No connection, no place.
pub(super) const NONE: u32 = u32::MAX;

/// The connections, by number: in their order.
pub(super) struct Connections {
    pub(super) ways: Vec<Connection>,
    lanes: Vec<LaneKey>,
    /// That of each operation; [`NONE`] for what does not cross.
    pub(super) of: Vec<u32>,
}

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

/// A thread block, its connections by number.
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

/// A lane of a GPU: what it executes of its own comes first, then what it sends because others get it.
type LaneKey = (bool, u16);

impl Assignment {
    /// Assigns everything; relays only if `relaying`.
    pub(super) fn new(plain: &Plain, ranks: u32, relaying: bool) -> Result<Self, WriteError> {
        let connections = Connections::new(plain);
        // What is sent and arrives by each connection, and what each lane of a GPU does alone.
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
        // Neighbours mostly go the same way.
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

/// A thread block for each peer of each lane; the first of a lane also has its local operations.
fn own_blocks(
    plain: &Plain,
    connections: &Connections,
    mut locals: FxHashMap<LaneKey, Vec<Act>>,
    outgoing: &[u32],
    arrivals: &[Vec<u32>],
) -> Vec<Block> {
    let lane_of = |&connection: &u32| (connections.lanes[connection as usize], connection);
    let mut sends: Vec<(LaneKey, u32)> = outgoing.iter().map(lane_of).collect();
    // Of a lane, by peer, which is the order of connections.
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

/// Two lists in order as one in order.
fn merged(plain: &Plain, mut a: Vec<Act>, b: Vec<Act>) -> Vec<Act> {
    a.extend(b);
    a.sort_by_key(|act| match act {
        Act::Local(op) | Act::Send(op) | Act::Receive(op) | Act::Relay(op, _) => (plain.ops[*op as usize].level, *op),
    });
    a
}
