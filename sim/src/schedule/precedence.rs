//! Precedence queries on arbitrary numbered items with dependencies.

use fabricast_topologies::Bytes;

use super::order::{Graph, TotalOrder};
use super::{
    Blocks, Buffer, BufferUse, Call, Channel, Collective, Dependency, Header, Layout, OpKind, Protocol, Rank, Run,
    Schedule, Walk,
};
use crate::verify::precedence::{Precedence, Reachability};

/// Creates a schedule of one rank with operations that move no data. `after` lists the dependencies of each operation.
pub(super) fn wait_only_schedule(after: impl Iterator<Item: IntoIterator<Item = u32>>) -> Schedule {
    let call = Call {
        collective: Collective::SendRecv,
        bytes: Bytes(0),
        ranks: 1,
        root: Rank(0),
        buffers: BufferUse::OutOfPlace,
    };
    let header = Header {
        name: String::new(),
        call,
        protocol: Protocol::Simple,
        channels: 1,
        blocks: Blocks::default(),
        layout: Layout::default(),
        scratch_chunks: 0,
        teams: Vec::new(),
        certificate: None,
    };
    let (mut dependencies, mut dependency_starts) = (Vec::new(), vec![0]);
    for after in after {
        dependencies.extend(after.into_iter().map(|on| Dependency::on_operation(Rank(0), on, 0)));
        dependency_starts.push(dependencies.len() as u32);
    }
    let count = dependency_starts.len() as u32 - 1;
    let wait = Run {
        len: 1,
        kind: OpKind::Wait,
        channel: Channel(0),
        peer: Walk::fixed(0),
        src_buffer: Buffer::Output,
        src: Walk::fixed(0),
        dst_buffer: Buffer::Output,
        dst: Walk::fixed(0),
        span: 0,
    };
    Schedule {
        header,
        rank_starts: vec![0, count],
        runs: vec![wait; count as usize],
        first_ops: (0..=count).collect(),
        dependency_starts,
        dependencies,
    }
}

/// Returns, for each pair, true if the first operation precedes the second.
pub(super) fn precedes_each(graph: &Graph<'_>, order: &TotalOrder, pairs: &[(u32, u32)]) -> Vec<bool> {
    let position = |op: u32| order.positions[op as usize];
    let mut pairs_by_later: Vec<usize> = (0..pairs.len()).collect();
    pairs_by_later.sort_unstable_by_key(|&i| position(pairs[i].1));
    let mut reachability = Reachability::new(graph, order);
    let mut results = vec![false; pairs.len()];
    let (mut deferred, mut current) = (Vec::new(), u32::MAX);
    for i in pairs_by_later {
        let (earlier, later) = (position(pairs[i].0), position(pairs[i].1));
        if earlier >= later {
            continue;
        }
        if current != later {
            reachability.enter(later);
            current = later;
        }
        match reachability.before_current(earlier) {
            Precedence::Before => results[i] = true,
            Precedence::NotBefore => {}
            Precedence::Deferred => deferred.push((i, (earlier, later))),
        }
    }
    let queries: Vec<(u32, u32)> = deferred.iter().map(|(_, query)| *query).collect();
    for ((i, _), result) in deferred.iter().zip(reachability.resolve(&queries)) {
        results[*i] = result;
    }
    results
}
