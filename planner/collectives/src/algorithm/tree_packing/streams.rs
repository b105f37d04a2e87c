//! Division of the edges of packed trees among channels, so that connections share links in the ratio of their loads.
//!
//! Transfers that share a link get equal rates. A connection that carries more units per loop than another therefore
//! needs more transfers at a time: each *stream*, a channel of a connection, carries at most q units per loop, where q
//! is common to all streams that share links. A link whose connections carry U units then has U/q streams, and each of
//! them at least q/U of its bandwidth, so that every slot ends in the time of the busiest link.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabricast_sim::schedule::{Collective, Rank, Symmetry};

use super::edges::TreeEdge;
use crate::packing::{Connection, DividedLoad, Forests, LinkSharing};

/// Part of an edge that one stream carries.
#[derive(Clone, Debug)]
pub(super) struct EdgePiece {
    /// Number of the edge.
    pub edge: usize,
    pub first_unit: u32,
    pub units: u32,
    pub channel: u16,
    /// Position among the pieces that leave the edge's sender, which is that of its images.
    pub position: u32,
    /// Pieces whose chunks of the same loop must have arrived.
    pub waits: Vec<usize>,
}

impl EdgePiece {
    /// Returns true if another piece has some of the units of this one.
    pub fn overlaps(&self, other: &Self) -> bool {
        other.first_unit < self.first_unit + self.units && self.first_unit < other.first_unit + other.units
    }
}

/// Pieces of all edges.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    pub pieces: Vec<EdgePiece>,
    /// Connection of a representative rank of which that of each edge is an image.
    connections: Vec<Connection>,
    /// Pieces of which each rank sends an image, by representative rank: by receiver, then channel, then slot.
    pub leaving: Vec<Vec<usize>>,
}

/// Connection of a representative rank of which the connection of an edge is an image.
pub(super) fn first_connection(symmetry: &Symmetry, edge: &TreeEdge) -> Connection {
    let first = symmetry.representative(Rank(edge.from));
    Connection { from: first.0, to: symmetry.carry(Rank(edge.from), first, Rank(edge.to)).0 }
}

/// Loads of connections, which determine how many streams each of them has.
#[derive(Clone, Debug)]
pub(crate) struct StreamDivision {
    /// Units per loop that each connection of a representative rank carries.
    loads: BTreeMap<Connection, u32>,
    symmetry: Symmetry,
    sharing: Option<Arc<LinkSharing>>,
    /// Load of the busiest connection of each group that shares links.
    busiest: BTreeMap<u32, u32>,
}

/// Streams of a number of channels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams<'a> {
    division: &'a StreamDivision,
    channels: u32,
    /// Parts into which each unit of a packing is divided, so that the busiest connection has a stream on each channel.
    pub times: u32,
}

impl StreamDivision {
    /// Adds up the loads of a collective of `ranks` ranks over the trees of a packing.
    pub fn new(collective: Collective, forests: &Forests, ranks: u32) -> Self {
        let (collect, spread) = (forests.collect.as_deref(), forests.spread.as_deref());
        let edges = super::common_edges(collective, ranks, collect, spread, 1);
        Self::from_edges(&edges, forests.symmetry(), forests.sharing.clone())
    }

    pub(super) fn from_edges(edges: &[TreeEdge], symmetry: Symmetry, sharing: Option<Arc<LinkSharing>>) -> Self {
        let mut loads = BTreeMap::new();
        for edge in edges {
            *loads.entry(first_connection(&symmetry, edge)).or_default() += edge.units;
        }
        let mut division = Self { loads, symmetry, sharing, busiest: BTreeMap::new() };
        let mut busiest = BTreeMap::new();
        for (&connection, &load) in &division.loads {
            let of_group: &mut u32 = busiest.entry(division.group(connection)).or_default();
            *of_group = load.max(*of_group);
        }
        division.busiest = busiest;
        division
    }

    fn group(&self, connection: Connection) -> u32 {
        self.sharing.as_ref().map_or(0, |sharing| sharing.group(connection.from, connection.to))
    }

    /// Upper bound on the time of a loop over `channels` channels, relative to that of the busiest link.
    pub fn slowdown(&self, channels: u16) -> f64 {
        let streams = self.streams(channels);
        self.sharing
            .as_ref()
            .map_or(1.0, |sharing| sharing.slowdown(&self.loads, |connection, load| streams.divide(connection, load)))
    }

    /// Units per loop of all connections of representative ranks.
    pub fn units(&self) -> u64 {
        self.loads.values().copied().map(u64::from).sum()
    }

    /// Units per loop of the busiest connection.
    pub fn busiest(&self) -> u32 {
        self.busiest.values().copied().max().unwrap_or(1).max(1)
    }

    /// Returns the streams of `channels` channels.
    pub fn streams(&self, channels: u16) -> Streams<'_> {
        let channels = u32::from(channels.max(1));
        Streams { division: self, channels, times: channels.div_ceil(self.busiest()) }
    }
}

impl Streams<'_> {
    /// Number of streams of a connection that carries `load` undivided units per loop: as many as channels for the
    /// busiest of the connections with which it shares links, and in the ratio of the loads for the others.
    pub fn count(self, connection: Connection, load: u32) -> u32 {
        let busiest = self.division.busiest.get(&self.division.group(connection)).copied().unwrap_or(load).max(1);
        let units = (busiest * self.times).div_ceil(self.channels).max(1);
        (load * self.times).div_ceil(units)
    }

    /// Division of the load of a connection among its streams.
    fn divide(self, connection: Connection, load: u32) -> DividedLoad {
        let transfers = self.count(connection, load);
        let parts = (load * self.times).div_ceil(transfers.max(1));
        DividedLoad { transfers, largest: f64::from(parts) / f64::from(self.times) }
    }
}

impl Pieces {
    /// Divides edges between `ranks` ranks, in parts of units, evenly among the streams of their connections.
    pub fn new(edges: &[TreeEdge], ranks: u32, streams: Streams<'_>) -> Self {
        let symmetry = &streams.division.symmetry;
        let connections: Vec<Connection> = edges.iter().map(|edge| first_connection(symmetry, edge)).collect();
        let mut order: Vec<usize> = (0..edges.len()).collect();
        order.sort_by_key(|&edge| (connections[edge], edges[edge].lag, edge));
        let mut pieces: Vec<EdgePiece> = Vec::with_capacity(edges.len());
        let mut of_edge: Vec<std::ops::Range<usize>> = vec![0..0; edges.len()];
        let (mut last, mut used) = (None, 0);
        for &number in &order {
            let edge = &edges[number];
            let connection = connections[number];
            if last != Some(connection) {
                (last, used) = (Some(connection), 0);
            }
            let load = streams.division.loads.get(&connection).copied().unwrap_or(1);
            let (count, load) = (u64::from(streams.count(connection, load)), u64::from(load * streams.times));
            let first_piece = pieces.len();
            let mut done = 0;
            while done < edge.units {
                // Stream i carries the units from ⌊i·load/count⌋ on.
                let channel = ((u64::from(used) + 1) * count - 1) / load;
                let end = ((channel + 1) * load / count) as u32;
                let part = (edge.units - done).min(end - used);
                let channel = channel as u16;
                let first_unit = edge.first_unit + done;
                pieces.push(EdgePiece {
                    edge: number,
                    first_unit,
                    units: part,
                    channel,
                    position: 0,
                    waits: Vec::new(),
                });
                (done, used) = (done + part, used + part);
            }
            of_edge[number] = first_piece..pieces.len();
        }
        for index in 0..pieces.len() {
            let piece = &pieces[index];
            let awaited = edges[piece.edge].waits.iter().flat_map(|&wait| of_edge[wait].clone());
            pieces[index].waits = awaited.filter(|&other| pieces[other].overlaps(piece)).collect();
        }
        let mut leaving = vec![Vec::new(); ranks as usize];
        for (number, piece) in pieces.iter().enumerate() {
            leaving[connections[piece.edge].from as usize].push(number);
        }
        for list in &mut leaving {
            list.sort_by_key(|&piece| {
                let edge = pieces[piece].edge;
                (connections[edge].to, pieces[piece].channel, edges[edge].lag, piece)
            });
            for (position, &piece) in (0..).zip(list.iter()) {
                pieces[piece].position = position;
            }
        }
        Self { pieces, connections, leaving }
    }

    /// Connection of a representative rank of which that of a piece is an image.
    pub fn connection(&self, piece: &EdgePiece) -> Connection {
        self.connections[piece.edge]
    }

    /// Largest number of units that a message carries.
    pub fn widest(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.units).max().unwrap_or(1)
    }

    /// Largest number of messages that a stream sends per loop.
    pub fn messages_per_stream(&self) -> u32 {
        let mut counts: BTreeMap<(Connection, u16), u32> = BTreeMap::new();
        for piece in &self.pieces {
            *counts.entry((self.connection(piece), piece.channel)).or_default() += 1;
        }
        counts.into_values().max().unwrap_or(1)
    }

    /// Largest number of units that a thread block, a channel of a rank, sends per loop.
    pub fn units_per_block(&self) -> u32 {
        let mut sums: BTreeMap<(u32, u16), u32> = BTreeMap::new();
        for piece in &self.pieces {
            *sums.entry((self.connection(piece).from, piece.channel)).or_default() += piece.units;
        }
        sums.into_values().max().unwrap_or(1)
    }

    /// Largest number of units that a stream sends per loop.
    pub fn units_per_stream(&self) -> u32 {
        let mut sums: BTreeMap<(Connection, u16), u32> = BTreeMap::new();
        for piece in &self.pieces {
            *sums.entry((self.connection(piece), piece.channel)).or_default() += piece.units;
        }
        sums.into_values().max().unwrap_or(1)
    }

    /// Lengths of the longest chains of a loop, in which each message waits for those of its data and for the previous one
    /// of its stream.
    pub fn longest_chains(&self, edges: &[TreeEdge]) -> Chain {
        let mut order: Vec<usize> = (0..self.pieces.len()).collect();
        order.sort_by_key(|&piece| (edges[self.pieces[piece].edge].lag, piece));
        let mut ends = vec![Chain::default(); self.pieces.len()];
        let mut streams: BTreeMap<(Connection, u16), Chain> = BTreeMap::new();
        for number in order {
            let piece = &self.pieces[number];
            let previous = streams.entry((self.connection(piece), piece.channel)).or_default();
            let start = piece.waits.iter().fold(*previous, |start, &wait| start.max(ends[wait]));
            let end = Chain { messages: start.messages + 1, units: start.units + piece.units };
            (ends[number], *previous) = (end, end);
        }
        ends.into_iter().fold(Chain::default(), Chain::max)
    }
}

/// Lengths of a chain of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    /// Number of messages.
    pub messages: u32,
    /// Units that all messages carry.
    pub units: u32,
}

impl Chain {
    /// The larger of both numbers.
    fn max(self, other: Self) -> Self {
        Self { messages: self.messages.max(other.messages), units: self.units.max(other.units) }
    }
}
