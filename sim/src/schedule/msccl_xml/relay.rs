//! Selection of the thread blocks that receive on a connection and forward the data, and of the connections' channels.

use rustc_hash::FxHashMap;

use super::thread_block::{NONE, StepAction, ThreadBlock, TransferRoute};
use crate::schedule::flat::FlatSchedule;

/// Assignment of connections to the thread blocks that relay them.
pub(super) struct Relays<'a> {
    flat: &'a FlatSchedule,
    /// Connection of each operation; [`NONE`] for operations within a GPU.
    connections: &'a [u32],
    /// Operations that arrive on each connection, in order.
    arrivals: &'a [Vec<u32>],
    /// Position of each operation among the arrivals of its connection; [`NONE`] if it does not transfer data between
    /// GPUs.
    arrival_index: Vec<u32>,
    /// Serial number of the last examined thread block that sends each operation, and the operation's position in that
    /// block.
    sent: Vec<(u32, u32)>,
    current_block: u32,
}

impl<'a> Relays<'a> {
    pub(super) fn new(flat: &'a FlatSchedule, connections: &'a [u32], arrivals: &'a [Vec<u32>]) -> Self {
        let mut arrival_index = vec![NONE; flat.ops.len()];
        for operations in arrivals {
            operations.iter().zip(0..).for_each(|(&op, index)| arrival_index[op as usize] = index);
        }
        Self { flat, connections, arrivals, arrival_index, sent: vec![(NONE, 0); flat.ops.len()], current_block: 0 }
    }

    /// Moves incoming connections that thread blocks of a GPU can relay from `incoming` to those blocks.
    pub(super) fn assign(&mut self, blocks: &mut [ThreadBlock], incoming: &mut Vec<u32>, chains: &mut Chains<'_>) {
        for block in blocks.iter_mut() {
            let Some(sends) = block.sends else { continue };
            let candidates = self.candidates(&block.actions);
            if candidates.is_empty() {
                continue;
            }
            self.current_block += 1;
            for (action, position) in block.actions.iter().zip(0..) {
                action.sent().into_iter().for_each(|op| self.sent[op as usize] = (self.current_block, position));
            }
            let mut best: Option<(usize, u32, Vec<StepAction>)> = None;
            let can_join =
                |connection: &u32| candidates.binary_search(connection).is_ok() && chains.can_join(*connection, sends);
            for &connection in incoming.iter().filter(|connection| can_join(connection)) {
                if let Some((count, actions)) = self.relayed(&block.actions, connection)
                    && best.as_ref().is_none_or(|(best_count, ..)| count > *best_count)
                {
                    best = Some((count, connection, actions));
                }
            }
            if let Some((_, connection, actions)) = best {
                chains.join(connection, sends);
                block.receives = Some(connection);
                block.actions = actions;
                incoming.retain(|&other| other != connection);
            }
        }
    }

    /// Returns the connections whose data a thread block forwards, sorted; empty if the block does not only send.
    fn candidates(&self, actions: &[StepAction]) -> Vec<u32> {
        let mut connections = Vec::new();
        for action in actions {
            let StepAction::Send(id) = *action else { return Vec::new() };
            let op = &self.flat.ops[id as usize];
            let sources = self.flat.dependencies(id).iter().filter(|&&on| self.arrival_index[on as usize] != NONE);
            let sources = sources.filter(|&&on| self.flat.ops[on as usize].dst == op.src);
            for connection in sources.map(|&on| self.connections[on as usize]) {
                if connections.last() != Some(&connection) {
                    connections.push(connection);
                }
            }
        }
        connections.sort_unstable();
        connections.dedup();
        connections
    }

    /// Returns the actions of a thread block if it also receives on `connection`, and the number of transfers that it
    /// relays; `None` if it cannot relay that connection.
    fn relayed(&self, actions: &[StepAction], connection: u32) -> Option<(usize, Vec<StepAction>)> {
        let arrivals = self.arrivals.get(connection as usize)?;
        let mut result = Vec::with_capacity(actions.len() + arrivals.len());
        let (mut received, mut count) = (0, 0);
        // Position of an operation among the arrivals of the connection.
        let arrival_position = |on: u32| {
            let position = self.arrival_index[on as usize];
            (position != NONE && self.connections[on as usize] == connection).then_some(position as usize)
        };
        for (&action, index) in actions.iter().zip(0u32..) {
            let StepAction::Send(id) = action else { return None };
            let op = &self.flat.ops[id as usize];
            let is_sent_before = |on: u32| {
                let (block, position) = self.sent[on as usize];
                block == self.current_block && position < index
            };
            let after = self.flat.dependencies(id);
            let source = after.iter().find(|&&on| {
                arrival_position(on).is_some_and(|position| position >= received)
                    && self.flat.ops[on as usize].dst == op.src
            });
            let forwards = source.and_then(|&source| arrival_position(source));
            let received_after = forwards.map_or(received, |position| position + 1);
            let waits_for_others = after.iter().any(|&on| {
                !is_sent_before(on) && arrival_position(on).is_none_or(|position| position >= received_after)
            });
            match forwards {
                Some(_) if waits_for_others => return None,
                Some(position) => {
                    result.extend(arrivals[received..position].iter().map(|&op| StepAction::Receive(op)));
                    result.push(StepAction::Relay(arrivals[position], id));
                    (received, count) = (position + 1, count + 1);
                }
                // The transfer must not depend on data that this thread block receives later.
                None if after.iter().any(|&on| arrival_position(on).is_some_and(|position| position >= received)) => {
                    return None;
                }
                None => result.push(action),
            }
        }
        result.extend(arrivals[received..].iter().map(|&op| StepAction::Receive(op)));
        (count > 0).then_some((count, result))
    }
}

/// Chains of connections that must all have the same channel.
pub(super) struct Chains<'a> {
    routes: &'a [TransferRoute],
    /// Index of each connection's chain.
    chain_by_connection: Vec<u32>,
    chains: Vec<Vec<u32>>,
}

impl<'a> Chains<'a> {
    /// Creates one chain per connection.
    pub(super) fn new(routes: &'a [TransferRoute]) -> Self {
        let numbers = 0..routes.len() as u32;
        Self {
            routes,
            chain_by_connection: numbers.clone().collect(),
            chains: numbers.map(|connection| vec![connection]).collect(),
        }
    }

    /// Returns the source and destination GPU of a connection.
    fn ends(&self, connection: u32) -> (u32, u32) {
        let (from, to, _) = self.routes[connection as usize];
        (from, to)
    }

    /// Returns true if two chains can be joined: they must not contain connections between the same GPUs.
    fn can_join(&self, a: u32, b: u32) -> bool {
        let (a, b) = (self.chain_by_connection[a as usize] as usize, self.chain_by_connection[b as usize] as usize);
        let ends = |chain: usize| self.chains[chain].iter().map(|&connection| self.ends(connection));
        if self.chains[a].len() == 1 || self.chains[b].len() == 1 {
            return a == b || ends(a).all(|first| ends(b).all(|second| first != second));
        }
        let mut first_ends: Vec<(u32, u32)> = ends(a).collect();
        first_ends.sort_unstable();
        a == b || ends(b).all(|end| first_ends.binary_search(&end).is_err())
    }

    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.chain_by_connection[a as usize], self.chain_by_connection[b as usize]);
        if a == b {
            return;
        }
        let longer = self.chains[a as usize].len() >= self.chains[b as usize].len();
        let (target, source) = if longer { (a, b) } else { (b, a) };
        for connection in std::mem::take(&mut self.chains[source as usize]) {
            self.chain_by_connection[connection as usize] = target;
            self.chains[target as usize].push(connection);
        }
    }

    /// Returns the channel of each connection: for each chain in order, the lowest channel that is not used between any
    /// of its GPU pairs.
    pub(super) fn channels(mut self) -> Vec<u32> {
        self.chains.iter_mut().for_each(|chain| chain.sort_unstable());
        self.chains.sort_unstable();
        // Bit set of occupied channels between each pair of GPUs.
        let mut occupied: FxHashMap<(u32, u32), Vec<u64>> = FxHashMap::default();
        let mut channels = vec![0; self.routes.len()];
        for chain in &self.chains {
            let word = |&connection: &u32, word_index: usize| {
                occupied.get(&self.ends(connection)).and_then(|words| words.get(word_index)).copied().unwrap_or(0)
            };
            let free = (0..).find_map(|word_index| {
                let bits = chain.iter().fold(0, |bits, connection| bits | word(connection, word_index));
                (bits != u64::MAX).then_some((word_index, bits.trailing_ones()))
            });
            let (word_index, bit) = free.unwrap_or((0, 0));
            for &connection in chain {
                let words = occupied.entry(self.ends(connection)).or_default();
                if words.len() <= word_index {
                    words.resize(word_index + 1, 0);
                }
                words[word_index] |= 1 << bit;
                channels[connection as usize] = word_index as u32 * u64::BITS + bit;
            }
        }
        channels
    }
}
