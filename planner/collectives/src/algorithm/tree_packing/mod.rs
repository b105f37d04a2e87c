//! Trees packed into the links of a fabric: all collectives but all_to_allv, send_recv and barrier at the bandwidth bound of
//! any fabric, whole or damaged.
//!
//! Every root divides its block among spanning trees in proportion to their rates ([`crate::packing`]). An all_gather
//! sends the parts from the roots to the leaves; a reduce_scatter sends partial sums from the leaves to the roots, and
//! each rank adds the sums of its children, one child after the other; an all_reduce is a reduce_scatter followed by an
//! all_gather. In an all_to_all or scatter, the part of the block of a rank moves along its path in each tree, and in a
//! gather against it. Data travels along the edges of the trees, so that transfers go only between neighbours. Without trees
//! from a fabric, every rank is linked to every other, and each tree is a star; the closed forms below are those of
//! stars.
//!
//! **Pipeline.** A part moves in loops. Each edge has a *lag*, larger than those of all edges that it waits for: in slot
//! s, the edges of a rank to one peer send the chunk of loop s − lag, in order of lag. Each slot thus needs only data of
//! earlier slots and carries every tree once. A connection uses channels in proportion to its load, so that connections
//! share a link in the ratio of their loads and a slot lasts as long as the busiest link needs for one loop, but at least
//! the latency of a message. For l loops and a largest lag d, the time is (l + d)/l of the bandwidth bound if no slot is
//! shorter than a latency. The trees and the number of loops are selected by the size of the call ([`pipelined`]).
//!
//! Steps of stars: 1 for an all_gather and a broadcast, n−1 for a reduce_scatter and a reduce, n for an all_reduce.
//! Runs per rank: one for each pair of an outgoing edge and a channel that carries part of its data.
//!
//! Source: Zhao et al., *ForestColl: Throughput-Optimal Collective Communications on Heterogeneous Network Fabrics*
//! (arXiv 2402.06787).
//!
//! # Example
//!
//! An all_gather of eight V100 whose NVLinks are unequal: every transfer is between neighbours.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_collectives::packing::TreePacker;
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_sim::verify::{VerifyOptions, verify};
//! use fabricast_topologies::route::{PathClass, RouteOptions, Router};
//! use fabricast_topologies::{Bytes, FabricRequest, load};
//!
//! let fabric = load(&FabricRequest::new("dgx-v100"))?;
//! let router = Router::new(&fabric, RouteOptions::default());
//! let packer = TreePacker::new(&fabric, &router, fabric.gpus(), 0, None)?;
//! let (collective, buffers) = (Collective::AllGather, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 30), ranks: 8, root: Rank(0), buffers };
//! let forests = Some(packer.forests(collective)?);
//! let shape = Shape { forests, ..Shape::new(call, Protocol::Simple) };
//! let schedule = Schedule::build(&*generator(Algorithm::TreePacking, &shape)?)?;
//! verify(&schedule, &VerifyOptions::default())?;
//! for op in schedule.operations().filter(|op| op.kind.is_transfer()) {
//!     let path = router.path(fabric.gpus()[op.rank.0 as usize], fabric.gpus()[op.peer.0 as usize])?;
//!     assert_eq!((path.class, path.hops.len()), (PathClass::Nvl, 1));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod block_paths;
mod edges;
mod pipelined;
mod streams;
mod transfer_costs;

use std::sync::Arc;

use fabricast_sim::schedule::{
    Buffer, BufferUse, Collective, Dependency, Header, OpKind, Program, Rank, Run, ScheduleGenerator, Symmetry, Walk,
};
use fabricast_topologies::{Bytes, Picos};

use super::cut::{Chunking, check_chunks};
use super::lane::Lane;
use super::{Algorithm, Shape, Unsupported};
use crate::bound::line::gcd;
use crate::packing::{BlockKind, Forest, Forests, LinkSharing, Roots, TreeUse};
use block_paths::block_edges;
use edges::{Part, Place, TreeEdge, tree_edges};
pub(crate) use pipelined::PipelinedTrees;
pub(crate) use streams::StreamDivision;
use streams::{EdgePiece, Pieces};
pub(crate) use transfer_costs::TransferCosts;

/// Schedule generator of collectives over packed trees.
pub(super) struct TreePacking {
    header: Header,
    cut: Chunking,
    layout: TreeLayout,
    /// First part of scratch for the blocks of an all_to_all in place; `None` for other calls.
    swap_parts: Option<u32>,
}

/// Edges of packed trees, divided among the channels of a call.
struct TreeLayout {
    /// Units into which a root's block is divided.
    units: u32,
    /// Edges of the trees of representative roots.
    edges: Vec<TreeEdge>,
    pieces: Pieces,
    symmetry: Symmetry,
}

impl TreeLayout {
    fn new(
        collective: Collective,
        ranks: u32,
        channels: u16,
        collect: Option<&Forest>,
        spread: Option<&Forest>,
        symmetry: Symmetry,
        sharing: Option<Arc<LinkSharing>>,
    ) -> Self {
        let edges = |times| common_edges(collective, ranks, collect, spread, times);
        let coarse = edges(1);
        let division = StreamDivision::from_edges(&coarse, symmetry.clone(), sharing);
        let streams = division.streams(channels);
        let edges = if streams.times > 1 { edges(streams.times) } else { coarse };
        let pieces = Pieces::new(&edges, ranks, streams);
        Self { units: common_units(collect, spread) * streams.times, edges, pieces, symmetry }
    }

    /// Number of parts of scratch that blocks need at the rank that relays most of them.
    fn relay_parts(&self) -> u32 {
        let places = self.edges.iter().flat_map(|edge| [edge.src, edge.dst]);
        places.filter(|place| place.buffer == Buffer::Scratch).map(|place| place.part.number() + 1).max().unwrap_or(0)
    }

    /// Pieces of which a rank sends an image.
    fn leaving(&self, rank: Rank) -> &[usize] {
        let first = self.symmetry.representative(rank);
        self.pieces.leaving.get(first.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// The image of a piece that `rank` sends.
    fn sent_by(&self, rank: Rank, piece: &EdgePiece) -> PieceImage<'_> {
        PieceImage { symmetry: &self.symmetry, from: Rank(self.edges[piece.edge].from), to: rank }
    }

    /// The image of a piece that `rank` receives.
    fn received_by(&self, rank: Rank, piece: &EdgePiece) -> PieceImage<'_> {
        PieceImage { symmetry: &self.symmetry, from: Rank(self.edges[piece.edge].to), to: rank }
    }
}

/// Image of a piece under the rotation that maps one rank to another.
#[derive(Clone, Copy)]
struct PieceImage<'a> {
    symmetry: &'a Symmetry,
    from: Rank,
    to: Rank,
}

impl PieceImage<'_> {
    fn rank(self, rank: u32) -> Rank {
        self.symmetry.carry(self.from, self.to, Rank(rank))
    }

    /// Number of the part of a place.
    fn part(self, place: Place) -> u32 {
        match place.part {
            Part::OfRank(rank) => self.rank(rank).0,
            Part::Numbered(number) => number,
        }
    }
}

/// Units into which both phases divide a root's block.
fn common_units(collect: Option<&Forest>, spread: Option<&Forest>) -> u32 {
    [collect, spread].into_iter().flatten().map(|forest| forest.units).fold(1, lcm)
}

/// Returns the edges of both phases. Both phases number the units of a block in the same order, and each unit is
/// divided into `times` parts.
fn common_edges(
    collective: Collective,
    ranks: u32,
    collect: Option<&Forest>,
    spread: Option<&Forest>,
    times: u32,
) -> Vec<TreeEdge> {
    let units = common_units(collect, spread) * times;
    let refine = |forest: Option<&Forest>| forest.map(|forest| forest.refined(units / forest.units.max(1)));
    let (collect, spread) = (refine(collect), refine(spread));
    let per_rank = [&collect, &spread].into_iter().flatten().find(|forest| forest.blocks == BlockKind::PerRank);
    if let Some(forest) = per_rank {
        return block_edges(collective, forest);
    }
    tree_edges(collective, ranks, sum_buffer(collective), collect.as_ref(), spread.as_ref())
}

impl TreePacking {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let collective = shape.call.collective;
        let ranks = shape.call.ranks;
        let tree_use = TreeUse::of(collective, shape.call.root.0)
            .ok_or(Unsupported::Collective { algorithm: Algorithm::TreePacking, collective })?;
        let TreeUse { roots, blocks, collects, spreads } = tree_use;
        let stars = || Arc::new(Forest::stars(ranks, roots, blocks));
        let forests = shape.forests.clone().unwrap_or_else(|| Forests {
            variant: None,
            collect: collects.then(stars),
            spread: spreads.then(stars),
            proof: None,
            channels: 1,
            parallel_channels: 1,
            sharing: None,
            latency: Picos::ZERO,
        });
        let of_call = |forest: &Option<Arc<Forest>>, is_needed: bool| match forest {
            Some(forest) if is_needed => {
                let fits = (forest.roots, forest.blocks) == (roots, blocks)
                    && forest.trees.iter().all(|tree| tree.parents.len() == ranks as usize);
                fits.then(|| Some(forest.clone())).ok_or(Unsupported::OtherTrees { ranks, collective })
            }
            None if is_needed => Err(Unsupported::OtherTrees { ranks, collective }),
            _ => Ok(None),
        };
        let collect = of_call(&forests.collect, collects)?;
        let spread = of_call(&forests.spread, spreads)?;
        let (symmetry, sharing) = (forests.symmetry(), forests.sharing.clone());
        let trees = TreeLayout::new(
            collective,
            ranks,
            shape.channels,
            collect.as_deref(),
            spread.as_deref(),
            symmetry,
            sharing,
        );
        let widest = u64::from(trees.pieces.widest());
        let shape = Shape { chunk: shape.chunk.map(|chunk| Bytes((chunk.0 / widest).max(1))), ..shape.clone() };
        let (cut, layout) = match (roots, blocks) {
            (Roots::One(_), BlockKind::Common) => Chunking::by_loops(&shape, trees.units, 1)?,
            _ => Chunking::by_blocks_in_lanes(&shape, trees.units)?,
        };
        let relay_parts = trees.relay_parts();
        // In an all_to_all in place, blocks that arrive replace those that are sent.
        let swaps = collective == Collective::AllToAll && shape.call.buffers == BufferUse::InPlace;
        let swap_parts = swaps.then_some(relay_parts);
        let slots = match blocks {
            BlockKind::PerRank => {
                let parts = swap_parts.map_or(relay_parts, |first| first + ranks);
                check_chunks(u64::from(parts) * u64::from(layout.chunks() / ranks))?
            }
            BlockKind::Common if tree_use.reduces() && sum_buffer(collective) == Buffer::Scratch => layout.chunks(),
            BlockKind::Common => 0,
        };
        Ok(Self { header: shape.header(Algorithm::TreePacking, layout, slots), cut, layout: trees, swap_parts })
    }

    /// Buffer, and number of its part, in which a block arrives. In place, the output of an all_to_all is the input that is
    /// still being sent.
    fn arrival(&self, edge: &TreeEdge, image: PieceImage<'_>) -> (Buffer, u32) {
        match (self.swap_parts, edge.dst.buffer) {
            (Some(first), Buffer::Output) => (Buffer::Scratch, first + image.part(edge.dst)),
            (_, buffer) => (buffer, image.part(edge.dst)),
        }
    }

    /// Copies the blocks that arrived at a rank in scratch to the output, each when it has arrived and the block that it
    /// replaces was sent.
    fn swap(&self, rank: Rank, program: &mut Program) {
        let TreeLayout { edges, pieces: Pieces { pieces, .. }, symmetry, .. } = &self.layout;
        let sent = self.layout.leaving(rank).iter().map(|&number| &pieces[number]);
        let sent: Vec<&EdgePiece> = sent.filter(|piece| edges[piece.edge].src.buffer == Buffer::Input).collect();
        for piece in pieces {
            let edge = &edges[piece.edge];
            let is_received = symmetry.representative(Rank(edge.to)) == symmetry.representative(rank);
            if !is_received || edge.dst.buffer != Buffer::Output {
                continue;
            }
            let image = self.layout.received_by(rank, piece);
            let replaced = image.part(edge.dst);
            let is_replaced = |other: &&&EdgePiece| {
                let part = self.layout.sent_by(rank, other).part(edges[other.edge].src);
                part == replaced && other.overlaps(piece)
            };
            let sent = sent.iter().filter(is_replaced).map(|other| Dependency::shifted(rank, other.position, 0));
            let arrived = Dependency::shifted(image.rank(edge.from), piece.position, 0);
            let dependencies: Vec<Dependency> = sent.chain([arrived]).collect();
            let chunks = |(buffer, part)| (buffer, self.cut.over_loops(part, piece.first_unit));
            let at = Lane { rank: rank.0, channel: piece.channel };
            let (src, dst) = (chunks(self.arrival(edge, image)), chunks((edge.dst.buffer, replaced)));
            program.push(Run { span: piece.units, ..at.local(OpKind::Copy, self.cut.loops, src, dst) }, &dependencies);
        }
    }

    /// Dependencies of the image of a piece that a rank sends on data, and on the operations before it on its stream.
    fn dependencies(&self, rank: Rank, number: usize) -> Vec<Dependency> {
        let TreeLayout { edges, pieces: all, .. } = &self.layout;
        let pieces = &all.pieces;
        let piece = &pieces[number];
        let image = self.layout.sent_by(rank, piece);
        let lag = edges[piece.edge].lag;
        let (loops, connection) = (self.cut.loops, all.connection(piece));
        let arrival = |&wait: &usize| {
            let awaited = &pieces[wait];
            Dependency::shifted(image.rank(edges[awaited.edge].from), awaited.position, 0)
        };
        let mut dependencies: Vec<Dependency> = piece.waits.iter().map(arrival).collect();
        if loops > 1 {
            dependencies.push(Dependency::shifted(rank, piece.position, -1));
        }
        let list = self.layout.leaving(rank);
        let on_stream = |&&other: &&usize| {
            let other = &pieces[other];
            all.connection(other) == connection && other.channel == piece.channel
        };
        let lag_of = |other: usize| edges[pieces[other].edge].lag;
        let before = piece.position.checked_sub(1).and_then(|before| list.get(before as usize)).filter(on_stream);
        match before {
            Some(&before) => {
                let (other, shift) = (pieces[before].position, lag - lag_of(before));
                dependencies.push(match shift < loops {
                    true => Dependency::shifted(rank, other, shift as i32),
                    false => Dependency::on_operation(rank, other, loops - 1),
                });
            }
            None => {
                // The first piece of a slot follows the last piece of the previous slot.
                let last = list.iter().skip(piece.position as usize).take_while(|other| on_stream(other)).last();
                if let Some(&last) = last.filter(|&&last| last != number) {
                    let shift = lag as i32 - lag_of(last) as i32 - 1;
                    dependencies.push(Dependency::shifted(rank, pieces[last].position, shift));
                }
            }
        }
        dependencies
    }
}

impl ScheduleGenerator for TreePacking {
    fn header(&self) -> &Header {
        &self.header
    }

    fn symmetry(&self) -> Symmetry {
        self.layout.symmetry.clone()
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let call = &self.header.call;
        let TreeLayout { units, edges, pieces: Pieces { pieces, .. }, .. } = &self.layout;
        for &number in self.layout.leaving(rank) {
            let piece = &pieces[number];
            let edge = &edges[piece.edge];
            let image = self.layout.sent_by(rank, piece);
            let at = Lane { rank: rank.0, channel: piece.channel };
            let chunks = |(buffer, part)| (buffer, self.cut.over_loops(part, piece.first_unit));
            let (src, dst) = (chunks((edge.src.buffer, image.part(edge.src))), chunks(self.arrival(edge, image)));
            let run = at.transfer(edge.kind, self.cut.loops, Walk::fixed(image.rank(edge.to).0), src, dst);
            program.push(Run { span: piece.units, ..run }, &self.dependencies(rank, number));
        }
        if self.swap_parts.is_some() {
            self.swap(rank, program);
        }
        let owns_block = match call.collective {
            Collective::AllGather | Collective::AllToAll => true,
            Collective::Broadcast | Collective::Scatter | Collective::Gather => rank == call.root,
            _ => false,
        };
        if owns_block && call.buffers == BufferUse::OutOfPlace {
            let channels = u32::from(self.header.channels.max(1));
            let first_unit = |channel: u32| (u64::from(*units) * u64::from(channel) / u64::from(channels)) as u32;
            for channel in 0..channels {
                let (first, end) = (first_unit(channel), first_unit(channel + 1));
                let at = Lane { rank: rank.0, channel: channel as u16 };
                let part = if call.collective == Collective::Broadcast { 0 } else { rank.0 };
                let chunks = self.cut.over_loops(part, first);
                if first < end {
                    let copy =
                        at.local(OpKind::Copy, self.cut.loops, (Buffer::Input, chunks), (Buffer::Output, chunks));
                    program.push(Run { span: end - first, ..copy }, &[]);
                }
            }
        }
    }
}

/// Buffer in which ranks other than the root accumulate sums.
fn sum_buffer(collective: Collective) -> Buffer {
    if collective == Collective::AllReduce { Buffer::Output } else { Buffer::Scratch }
}

fn lcm(a: u32, b: u32) -> u32 {
    let common = gcd(a.into(), b.into());
    u32::try_from(u128::from(a) / common * u128::from(b)).unwrap_or(u32::MAX)
}
