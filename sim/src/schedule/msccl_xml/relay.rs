//! Selection of thread blocks that receive a connection and forward its data, and the channels of the connections.

use rustc_hash::FxHashMap;

use super::assign::{Act, Block, Connection, NONE};
use crate::schedule::plain::Plain;

/// Assigns connections to the thread blocks that relay them.
pub(super) struct Relays<'a> {
    plain: &'a Plain,
    /// Connection of each operation.
    connections: &'a [u32],
    /// Operations that arrive on each connection, in order.
    arrivals: &'a [Vec<u32>],
    /// Position of each operation among the arrivals of its connection; [`NONE`] if it does not move between GPUs.
    place: Vec<u32>,
    /// For each operation, the last examined thread block that sends it (by a serial number) and the position there.
    sent: Vec<(u32, u32)>,
    looked_at: u32,
}

impl<'a> Relays<'a> {
    pub(super) fn new(plain: &'a Plain, connections: &'a [u32], arrivals: &'a [Vec<u32>]) -> Self {
        let mut place = vec![NONE; plain.ops.len()];
        for arriving in arrivals {
            arriving.iter().zip(0..).for_each(|(&op, at)| place[op as usize] = at);
        }
        Self { plain, connections, arrivals, place, sent: vec![(NONE, 0); plain.ops.len()], looked_at: 0 }
    }

    /// Moves the incoming connections that the thread blocks of a GPU can relay from `incoming` to those blocks.
    pub(super) fn give(&mut self, blocks: &mut [Block], incoming: &mut Vec<u32>, chains: &mut Chains<'_>) {
        for block in blocks.iter_mut() {
            let Some(sends) = block.sends else { continue };
            let candidates = self.candidates(&block.acts);
            if candidates.is_empty() {
                continue;
            }
            self.looked_at += 1;
            for (act, at) in block.acts.iter().zip(0..) {
                act.sent().into_iter().for_each(|op| self.sent[op as usize] = (self.looked_at, at));
            }
            let mut best: Option<(usize, u32, Vec<Act>)> = None;
            let can_join = |one: &u32| candidates.binary_search(one).is_ok() && chains.can_join(*one, sends);
            for &connection in incoming.iter().filter(|one| can_join(one)) {
                if let Some((count, acts)) = self.relayed(&block.acts, connection)
                    && best.as_ref().is_none_or(|(most, ..)| count > *most)
                {
                    best = Some((count, connection, acts));
                }
            }
            if let Some((_, connection, acts)) = best {
                chains.join(connection, sends);
                block.receives = Some(connection);
                block.acts = acts;
                incoming.retain(|&other| other != connection);
            }
        }
    }

    /// Connections whose data a thread block forwards, sorted; empty if the block does anything other than send.
    fn candidates(&self, acts: &[Act]) -> Vec<u32> {
        let mut found = Vec::new();
        for act in acts {
            let Act::Send(id) = *act else { return Vec::new() };
            let op = &self.plain.ops[id as usize];
            let from = self.plain.after(id).iter().filter(|&&on| self.place[on as usize] != NONE);
            let from = from.filter(|&&on| self.plain.ops[on as usize].dst == op.src);
            for connection in from.map(|&on| self.connections[on as usize]) {
                if found.last() != Some(&connection) {
                    found.push(connection);
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Acts of a thread block that also receives `connection`, and the number of transfers that it relays; `None` if it
    /// cannot relay that connection.
    fn relayed(&self, acts: &[Act], connection: u32) -> Option<(usize, Vec<Act>)> {
        let arrivals = self.arrivals.get(connection as usize)?;
        let mut result = Vec::with_capacity(acts.len() + arrivals.len());
        let (mut taken, mut count) = (0, 0);
        // Position of an operation among the arrivals of the connection.
        let arrives = |on: u32| {
            let place = self.place[on as usize];
            (place != NONE && self.connections[on as usize] == connection).then_some(place as usize)
        };
        for (&act, turn) in acts.iter().zip(0u32..) {
            let Act::Send(id) = act else { return None };
            let op = &self.plain.ops[id as usize];
            let own = |on: u32| {
                let (block, at) = self.sent[on as usize];
                block == self.looked_at && at < turn
            };
            let after = self.plain.after(id);
            let source = after.iter().find(|&&on| {
                arrives(on).is_some_and(|place| place >= taken) && self.plain.ops[on as usize].dst == op.src
            });
            let forwards = source.and_then(|&source| arrives(source));
            let known = forwards.map_or(taken, |at| at + 1);
            let waits_for_others = after.iter().any(|&on| !own(on) && arrives(on).is_none_or(|place| place >= known));
            match forwards {
                Some(_) if waits_for_others => return None,
                Some(at) => {
                    result.extend(arrivals[taken..at].iter().map(|&op| Act::Receive(op)));
                    result.push(Act::Relay(arrivals[at], id));
                    (taken, count) = (at + 1, count + 1);
                }
                // It must not wait for data that this thread block receives only later.
                None if after.iter().any(|&on| arrives(on).is_some_and(|place| place >= taken)) => return None,
                None => result.push(act),
            }
        }
        result.extend(arrivals[taken..].iter().map(|&op| Act::Receive(op)));
        (count > 0).then_some((count, result))
    }
}

/// Chains of connections that must have the same channel.
pub(super) struct Chains<'a> {
    ways: &'a [Connection],
    /// Index of each connection's chain.
    chain_of: Vec<u32>,
    chains: Vec<Vec<u32>>,
}

impl<'a> Chains<'a> {
    /// Creates one chain per connection.
    pub(super) fn new(ways: &'a [Connection]) -> Self {
        let numbers = 0..ways.len() as u32;
        Self { ways, chain_of: numbers.clone().collect(), chains: numbers.map(|connection| vec![connection]).collect() }
    }

    /// Source and destination GPU of a connection.
    fn ends(&self, connection: u32) -> (u32, u32) {
        let (from, to, _) = self.ways[connection as usize];
        (from, to)
    }

    /// Returns true if two chains can be joined: they must not contain connections between the same GPUs.
    fn can_join(&self, a: u32, b: u32) -> bool {
        let (a, b) = (self.chain_of[a as usize] as usize, self.chain_of[b as usize] as usize);
        let ends = |chain: usize| self.chains[chain].iter().map(|&connection| self.ends(connection));
        if self.chains[a].len() == 1 || self.chains[b].len() == 1 {
            return a == b || ends(a).all(|own| ends(b).all(|other| own != other));
        }
        let mut own: Vec<(u32, u32)> = ends(a).collect();
        own.sort_unstable();
        a == b || ends(b).all(|other| own.binary_search(&other).is_err())
    }

    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.chain_of[a as usize], self.chain_of[b as usize]);
        if a == b {
            return;
        }
        let longer = self.chains[a as usize].len() >= self.chains[b as usize].len();
        let (kept, gone) = if longer { (a, b) } else { (b, a) };
        for connection in std::mem::take(&mut self.chains[gone as usize]) {
            self.chain_of[connection as usize] = kept;
            self.chains[kept as usize].push(connection);
        }
    }

    /// Channel of each connection: the lowest for each chain that is free between all of its GPU pairs, chain by chain.
    pub(super) fn channels(mut self) -> Vec<u32> {
        self.chains.iter_mut().for_each(|chain| chain.sort_unstable());
        self.chains.sort_unstable();
        // Bit set of occupied channels between each pair of GPUs.
        let mut taken: FxHashMap<(u32, u32), Vec<u64>> = FxHashMap::default();
        let mut channels = vec![0; self.ways.len()];
        for chain in &self.chains {
            let word = |&connection: &u32, at: usize| {
                taken.get(&self.ends(connection)).and_then(|words| words.get(at)).copied().unwrap_or(0)
            };
            let free = (0..).find_map(|at| {
                let all = chain.iter().fold(0, |all, connection| all | word(connection, at));
                (all != u64::MAX).then_some((at, all.trailing_ones()))
            });
            let (at, bit) = free.unwrap_or((0, 0));
            for &connection in chain {
                let words = taken.entry(self.ends(connection)).or_default();
                if words.len() <= at {
                    words.resize(at + 1, 0);
                }
                words[at] |= 1 << bit;
                channels[connection as usize] = at as u32 * u64::BITS + bit;
            }
        }
        channels
    }
}
