//! Trees packed into the links of a fabric: all_gather, reduce_scatter, all_reduce, broadcast and reduce at the bandwidth
//! bound of any fabric, whole or damaged.
//!
//! Every root divides its block among spanning trees in proportion to their rates ([`crate::packing`]). An all_gather
//! sends the parts from the roots to the leaves; a reduce_scatter sends partial sums from the leaves to the roots, and
//! each rank adds what its children send, one child after the other; an all_reduce does the second, then the first. A
//! GPU relays what its trees say, so that transfers go only between neighbours. Without trees from a fabric, every rank
//! is linked to every other, and each tree is a star; the closed forms below are those of stars.
//!
//! **Pipeline.** A part moves in loops. Each edge has a *lag*, larger than those of all edges that it waits for: in slot
//! s, the edges of a rank to one peer send the chunk of loop s − lag, in order of lag. Each slot thus needs only data of
//! earlier slots and carries every tree once, so that it lasts as long as the busiest link needs for one loop. For l
//! loops and a largest lag d, the time is (l + d)/l of the bandwidth bound, plus latencies.
//!
//! Steps of stars: 1 for an all_gather and a broadcast, n−1 for a reduce_scatter and a reduce, n for an all_reduce. Runs
//! per rank and lane: one per edge that leaves the rank.
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
//! use fabricast_collectives::packing::{TreeCount, TreePacker};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_sim::verify::{VerifyOptions, verify};
//! use fabricast_topologies::route::{PathClass, RouteOptions, Router};
//! use fabricast_topologies::{Bytes, FabricRequest, load};
//!
//! let fabric = load(&FabricRequest::new("dgx1-v100"))?;
//! let router = Router::new(&fabric, RouteOptions::default());
//! let packer = TreePacker::new(&fabric, &router, fabric.gpus(), 0, TreeCount::Optimal)?;
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

use std::sync::Arc;

use fabricast_sim::schedule::{
    Buffer, BufferUse, Collective, Dependency, Header, OpKind, Program, Rank, Run, ScheduleGenerator, Walk,
};

use super::cut::{Chunking, lane_channel};
use super::lane::Lane;
use super::{Algorithm, Shape, Unsupported};
use crate::packing::{Forest, Forests, PackedTree, Roots};

/// Edge of a tree, over which one part of a root's block moves in each loop.
#[derive(Clone, Debug)]
struct Edge {
    from: u32,
    to: u32,
    kind: OpKind,
    src: Buffer,
    dst: Buffer,
    root: u32,
    /// First unit of the part within the root's block.
    first_unit: u32,
    units: u32,
    /// Slot of the first loop.
    lag: u32,
    /// Edges whose chunks of the same loop must have arrived.
    waits: Vec<usize>,
    /// Position among the edges that leave `from`.
    position: u32,
}

/// Edges of both phases, under construction.
struct Edges {
    edges: Vec<Edge>,
    ranks: u32,
    /// Buffer in which ranks other than the root accumulate sums.
    sums: Buffer,
}

/// Edge that completes the sum of some units at their root.
struct Completion {
    root: u32,
    first_unit: u32,
    units: u32,
    edge: usize,
}

/// Schedule generator of collectives over packed trees.
pub(super) struct TreePacking {
    header: Header,
    cut: Chunking,
    /// Units into which a root's block is divided.
    units: u32,
    edges: Vec<Edge>,
    /// Edges that leave each rank, by receiver, then lag.
    leaving: Vec<Vec<usize>>,
}

/// Longest chain of edges of a forest of `ranks` ranks, each of which waits for the one before: one more than the
/// largest lag.
pub(crate) fn pipeline_depth(collective: Collective, forests: &Forests, ranks: u32) -> u32 {
    let mut edges = Edges { edges: Vec::new(), ranks, sums: Buffer::Output };
    edges.add(collective, forests.collect.as_deref(), forests.spread.as_deref());
    edges.edges.iter().map(|edge| edge.lag + 1).max().unwrap_or(1)
}

impl TreePacking {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let collective = shape.call.collective;
        let ranks = shape.call.ranks;
        let root = shape.call.root.0;
        let roots = match collective {
            Collective::Broadcast | Collective::Reduce => Roots::One(root),
            _ => Roots::All,
        };
        let stars = || Arc::new(Forest::stars(ranks, roots));
        let forests = shape.forests.clone().unwrap_or_else(|| Forests {
            collect: collects(collective).then(stars),
            spread: spreads(collective).then(stars),
            proof: None,
        });
        let of_call = |forest: &Option<Arc<Forest>>, is_needed: bool| match forest {
            Some(forest) if is_needed => {
                let fits =
                    forest.roots == roots && forest.trees.iter().all(|tree| tree.parents.len() == ranks as usize);
                fits.then(|| Some(forest.clone())).ok_or(Unsupported::OtherTrees { ranks, collective })
            }
            None if is_needed => Err(Unsupported::OtherTrees { ranks, collective }),
            _ => Ok(None),
        };
        let collect = of_call(&forests.collect, collects(collective))?;
        let spread = of_call(&forests.spread, spreads(collective))?;
        // Both phases number the units of a block alike.
        let units = [&collect, &spread].into_iter().flatten().map(|forest| forest.units).fold(1, lcm);
        let refine = |forest: Option<Arc<Forest>>| forest.map(|forest| forest.refined(units / forest.units.max(1)));
        let (collect, spread) = (refine(collect), refine(spread));
        let lanes = u32::from(shape.channels).checked_mul(units);
        let lanes = lanes.ok_or(Unsupported::TooManyChunks { chunks: u64::from(units) * u64::from(shape.channels) })?;
        let (cut, layout) = match roots {
            Roots::All => Chunking::by_blocks_in_lanes(shape, lanes)?,
            Roots::One(_) => Chunking::by_loops(shape, lanes, 1)?,
        };
        let sums = if collective == Collective::AllReduce { Buffer::Output } else { Buffer::Scratch };
        let mut edges = Edges { edges: Vec::new(), ranks, sums };
        edges.add(collective, collect.as_ref(), spread.as_ref());
        let mut edges = edges.edges;
        let mut leaving = vec![Vec::new(); ranks as usize];
        for (number, edge) in edges.iter().enumerate() {
            leaving[edge.from as usize].push(number);
        }
        for list in &mut leaving {
            list.sort_by_key(|&edge| (edges[edge].to, edges[edge].lag, edge));
            for (position, &edge) in (0..).zip(list.iter()) {
                edges[edge].position = position;
            }
        }
        let slots = if collects(collective) && sums == Buffer::Scratch { layout.chunks() } else { 0 };
        Ok(Self { header: shape.header(Algorithm::TreePacking, layout, slots), cut, units, edges, leaving })
    }

    /// Number of a rank's run on a lane.
    fn run_number(&self, edge: usize, lane: u32) -> u32 {
        let Edge { from, position, .. } = self.edges[edge];
        lane * self.leaving[from as usize].len() as u32 + position
    }

    /// Chunks of units of a root's block in all loops.
    fn walk(&self, root: u32, first_unit: u32, lane: u32) -> Walk {
        let part = match self.header.call.collective {
            Collective::Broadcast | Collective::Reduce => 0,
            _ => root,
        };
        self.cut.over_loops(part, lane * self.units + first_unit)
    }

    /// Dependencies of an edge on data, and on the operations before it on its connection.
    fn dependencies(&self, edge: usize, lane: u32) -> Vec<Dependency> {
        let Edge { from, to, lag, ref waits, position, .. } = self.edges[edge];
        let (rank, loops) = (Rank(from), self.cut.loops);
        let run = self.run_number(edge, lane);
        let arrival = |&wait: &usize| Dependency::shifted(Rank(self.edges[wait].from), self.run_number(wait, lane), 0);
        let mut dependencies: Vec<Dependency> = waits.iter().map(arrival).collect();
        if loops > 1 {
            dependencies.push(Dependency::shifted(rank, run, -1));
        }
        let list = &self.leaving[from as usize];
        let on_connection = |&&other: &&usize| self.edges[other].to == to;
        let before = position.checked_sub(1).and_then(|before| list.get(before as usize)).filter(on_connection);
        match before {
            Some(&before) => {
                let (other, shift) = (self.run_number(before, lane), lag - self.edges[before].lag);
                dependencies.push(match shift < loops {
                    true => Dependency::shifted(rank, other, shift as i32),
                    false => Dependency::on_operation(rank, other, loops - 1),
                });
            }
            None => {
                // The first of a slot follows the last of the slot before.
                let last = list.iter().skip(position as usize).take_while(|other| on_connection(other)).last();
                if let Some(&last) = last.filter(|&&last| last != edge) {
                    let shift = lag as i32 - self.edges[last].lag as i32 - 1;
                    dependencies.push(Dependency::shifted(rank, self.run_number(last, lane), shift));
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

    fn program(&self, rank: Rank, program: &mut Program) {
        let call = &self.header.call;
        let Some(leaving) = self.leaving.get(rank.0 as usize) else { return };
        let lanes = self.cut.lanes / self.units;
        for lane in 0..lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            for &number in leaving {
                let edge = &self.edges[number];
                let chunks = self.walk(edge.root, edge.first_unit, lane);
                let (src, dst) = ((edge.src, chunks), (edge.dst, chunks));
                let run = at.transfer(edge.kind, self.cut.loops, Walk::fixed(edge.to), src, dst);
                program.push(Run { span: edge.units, ..run }, &self.dependencies(number, lane));
            }
        }
        let owns_block = match call.collective {
            Collective::AllGather => true,
            Collective::Broadcast => rank == call.root,
            _ => false,
        };
        if owns_block && call.buffers == BufferUse::OutOfPlace {
            for lane in 0..lanes {
                let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
                let chunks = self.walk(rank.0, 0, lane);
                let copy = at.local(OpKind::Copy, self.cut.loops, (Buffer::Input, chunks), (Buffer::Output, chunks));
                program.push(Run { span: self.units, ..copy }, &[]);
            }
        }
    }
}

impl Edges {
    fn add(&mut self, collective: Collective, collect: Option<&Forest>, spread: Option<&Forest>) {
        let mut completions = Vec::new();
        if let Some(forest) = collect {
            for_each_tree(forest, |tree, first_unit| self.collect(tree, first_unit, &mut completions));
        }
        let start = self.edges.iter().map(|edge| edge.lag + 1).max().unwrap_or(0);
        if let Some(forest) = spread {
            for_each_tree(forest, |tree, first_unit| self.spread(collective, tree, first_unit, start, &completions));
        }
    }

    /// Adds the edges over which the parts of a tree reach its leaves. `start`: lag of the root's edges.
    fn spread(
        &mut self,
        collective: Collective,
        tree: &PackedTree,
        first_unit: u32,
        start: u32,
        completions: &[Completion],
    ) {
        let mut arrival: Vec<Option<usize>> = vec![None; self.ranks as usize];
        let children = children(tree);
        let mut open = std::collections::VecDeque::from([(tree.root, start)]);
        let overlaps = |done: &&Completion| {
            done.root == tree.root
                && done.first_unit < first_unit + tree.units
                && first_unit < done.first_unit + done.units
        };
        let sums: Vec<usize> = completions.iter().filter(overlaps).map(|done| done.edge).collect();
        while let Some((from, lag)) = open.pop_front() {
            let is_root = from == tree.root;
            for &to in &children[from as usize] {
                let waits = if is_root { sums.clone() } else { arrival[from as usize].into_iter().collect() };
                let src = if is_root && collective != Collective::AllReduce { Buffer::Input } else { Buffer::Output };
                arrival[to as usize] = Some(self.edges.len());
                self.edges.push(Edge {
                    from,
                    to,
                    kind: OpKind::Put,
                    src,
                    dst: Buffer::Output,
                    root: tree.root,
                    first_unit,
                    units: tree.units,
                    lag,
                    waits,
                    position: 0,
                });
                open.push_back((to, lag + 1));
            }
        }
    }

    /// Adds the edges over which the sums of a tree reach its root.
    fn collect(&mut self, tree: &PackedTree, first_unit: u32, completions: &mut Vec<Completion>) {
        let children = children(tree);
        // Ranks by decreasing distance from the root, so that children come before parents.
        let mut order = vec![tree.root];
        let mut next = 0;
        while let Some(&rank) = order.get(next) {
            order.extend(&children[rank as usize]);
            next += 1;
        }
        // Slot in which the sum of a rank is complete, and the edge that completes it.
        let mut ready: Vec<(u32, Option<usize>)> = vec![(0, None); self.ranks as usize];
        for &parent in order.iter().rev() {
            let distance = |rank: u32| (rank + self.ranks - tree.root) % self.ranks;
            let mut by_readiness = children[parent as usize].clone();
            by_readiness.sort_by_key(|&child| (ready[child as usize].0, distance(child)));
            let mut previous: Option<usize> = None;
            for child in by_readiness {
                let (slot, sum) = ready[child as usize];
                let after = previous.map_or(0, |previous| self.edges[previous].lag + 1);
                let edge = Edge {
                    from: child,
                    to: parent,
                    kind: if previous.is_none() { OpKind::PutReduceInput } else { OpKind::PutReduce },
                    src: if sum.is_none() { Buffer::Input } else { self.sums },
                    dst: if parent == tree.root { Buffer::Output } else { self.sums },
                    root: tree.root,
                    first_unit,
                    units: tree.units,
                    lag: slot.max(after),
                    waits: sum.into_iter().chain(previous).collect(),
                    position: 0,
                };
                ready[parent as usize] = (edge.lag + 1, Some(self.edges.len()));
                previous = Some(self.edges.len());
                self.edges.push(edge);
            }
        }
        if let Some(edge) = ready[tree.root as usize].1 {
            completions.push(Completion { root: tree.root, first_unit, units: tree.units, edge });
        }
    }
}

/// Calls a function for each tree, with the first of the units of its root's block that it carries.
fn for_each_tree(forest: &Forest, mut action: impl FnMut(&PackedTree, u32)) {
    let mut used: std::collections::BTreeMap<u32, u32> = std::collections::BTreeMap::new();
    for tree in &forest.trees {
        let first = used.entry(tree.root).or_default();
        action(tree, *first);
        *first += tree.units;
    }
}

fn children(tree: &PackedTree) -> Vec<Vec<u32>> {
    let mut children = vec![Vec::new(); tree.parents.len()];
    for (parent, child) in tree.edges() {
        children[parent as usize].push(child);
    }
    children
}

/// Returns true if a collective reduces over the trees.
fn collects(collective: Collective) -> bool {
    matches!(collective, Collective::ReduceScatter | Collective::Reduce | Collective::AllReduce)
}

/// Returns true if a collective copies over the trees.
fn spreads(collective: Collective) -> bool {
    matches!(collective, Collective::AllGather | Collective::Broadcast | Collective::AllReduce)
}

fn lcm(a: u32, b: u32) -> u32 {
    fn gcd(a: u32, b: u32) -> u32 {
        if b == 0 { a.max(1) } else { gcd(b, a % b) }
    }
    (a / gcd(a, b)).saturating_mul(b)
}
