//! Ordering of messages on connections. Messages between a channel and one peer, in one direction, are delivered one
//! after another, as on any ordered connection. Different peers of a channel are served concurrently.

use rustc_hash::FxHashMap;

use crate::engine::{LinePosition, PerOp, RunOrder, Workload};
use crate::schedule::{Program, Run, Walk, gcd};

/// Lines (ordered connections) of one rank.
#[derive(Debug, Default)]
pub(super) struct ConnectionLines {
    connections: FxHashMap<Connection, Messages>,
    /// Number of runs that move data between ranks, by channel.
    transfers: Vec<u32>,
    /// Number of runs that have a position on a line so far, by channel.
    next_positions: Vec<u32>,
}

/// Connection between a channel of the rank and a peer, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Connection {
    channel: u16,
    peer: u32,
    direction: Direction,
}

/// Direction of a data transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Direction {
    ToPeer,
    FromPeer,
}

/// Messages of a connection: number of runs, number of messages, and the connection's line once it has one.
#[derive(Clone, Copy, Debug, Default)]
struct Messages {
    runs: u32,
    count: u32,
    line: Option<u32>,
}

impl ConnectionLines {
    /// Records the connections of a rank that uses `channels` channels, and the number of their messages.
    pub fn read(&mut self, channels: u16, program: &Program) {
        self.connections.clear();
        for counts in [&mut self.transfers, &mut self.next_positions] {
            counts.clear();
            counts.resize(usize::from(channels), 0);
        }
        let transfers = || program.runs().iter().filter_map(|run| Some((run, transfer_direction(run)?)));
        for (run, _) in transfers() {
            if let Some(count) = self.transfers.get_mut(usize::from(run.channel.0)) {
                *count += 1;
            }
        }
        for (run, direction) in transfers() {
            if self.is_one_message_each(run) {
                continue;
            }
            let mut add = |peer: u32, count: u32| {
                let connection = Connection { channel: run.channel.0, peer, direction };
                let messages = self.connections.entry(connection).or_default();
                messages.runs += 1;
                messages.count += count;
            };
            match run.peer.is_fixed() {
                true => add(run.peer.at(0), run.len),
                false => (0..run.len).for_each(|i| add(run.peer.at(i), 1)),
            }
        }
    }

    /// Returns the position of a run on its lines. New lines are numbered from `next`. `None` if the run's messages
    /// need no line. Must be called for all runs of a rank, in order.
    pub fn add_run(
        &mut self,
        run: &Run,
        order: RunOrder,
        next: &mut u32,
        workload: &mut Workload,
    ) -> Option<LinePosition> {
        let direction = transfer_direction(run)?;
        if !self.has_line(run, order) {
            return None;
        }
        let connection = |peer: u32| Connection { channel: run.channel.0, peer, direction };
        let first = workload.lines.len() as u32;
        for i in 0..run.peer.distinct_steps(run.len) {
            let messages = self.connections.entry(connection(run.peer.at(i))).or_default();
            let line = *messages.line.get_or_insert_with(|| {
                let line = *next;
                *next = line.saturating_add(1);
                line
            });
            workload.lines.push(line);
        }
        let line = if run.peer.is_fixed() { PerOp::Same(first) } else { PerOp::Each(first) };
        let next_position = self.next_positions.get_mut(usize::from(run.channel.0))?;
        let line_position = LinePosition { line, position: *next_position };
        *next_position += 1;
        Some(line_position)
    }

    /// Returns true if a run's messages need lines.
    pub fn has_line(&self, run: &Run, order: RunOrder) -> bool {
        let Some(direction) = transfer_direction(run).filter(|_| !self.is_one_message_each(run)) else { return false };
        let messages = |peer: u32| {
            let connection = Connection { channel: run.channel.0, peer, direction };
            self.connections.get(&connection).copied().unwrap_or_default()
        };
        match run.peer.is_fixed() {
            // The messages of a run in `RunOrder::InTurn` are ordered already.
            true => {
                let Messages { runs, count, .. } = messages(run.peer.at(0));
                count > 1 && (runs > 1 || order == RunOrder::Free)
            }
            false => (0..run.len).any(|i| messages(run.peer.at(i)).count > 1),
        }
    }

    /// Returns true if a run is the only one that transfers data on its channel, and has at most one message for each
    /// peer.
    fn is_one_message_each(&self, run: &Run) -> bool {
        let is_alone = self.transfers.get(usize::from(run.channel.0)) == Some(&1);
        is_alone && (run.len == 1 || has_no_value_twice(run.peer, run.len))
    }
}

/// Returns the direction of a run's transfer between two ranks; `None` if it is not a transfer.
fn transfer_direction(run: &Run) -> Option<Direction> {
    match run.kind {
        _ if run.len == 0 => None,
        kind if kind.writes_peer() => Some(Direction::ToPeer),
        kind if kind.reads_peer() => Some(Direction::FromPeer),
        _ => None,
    }
}

/// Returns true if the first `len` values of a walk are known to be distinct.
fn has_no_value_twice(walk: Walk, len: u32) -> bool {
    let period = u128::from(walk.modulus) / gcd(walk.modulus.into(), walk.step.into()).max(1);
    !walk.is_fixed() && walk.modulus > 0 && u128::from(len) <= period
}
