//! Maximum flow in small dense networks, on bit sets.
//!
//! The graphs into which trees are packed have at most some hundred vertices, many of which are adjacent. The arcs with
//! remaining capacity are a bit set per vertex, so that a step of the breadth-first search reads a word instead of a list
//! of arcs. The method is that of [`crate::flow::FlowNetwork`] (Dinitz), which also handles large sparse networks.

use super::digraph::Digraph;

/// Largest capacity and largest total of drains. A flow is at most the total of the drains, so that sums of a capacity and
/// a flow fit in 64 bits.
const MAX_CAPACITY: u64 = 1 << 62;

/// Bits of a word of a set of vertices.
const WORD: usize = u64::BITS as usize;

/// Network of the reversed arcs of a graph, and the residual state of one flow from a vertex into drains.
#[derive(Clone, Debug)]
pub(super) struct DenseFlow {
    vertices: usize,
    /// Words of a set of vertices.
    words: usize,
    /// Capacity of each pair of vertices, by tail, then head.
    capacities: Vec<u64>,
    residuals: Vec<u64>,
    /// Heads of the arcs with capacity, a set for each tail.
    heads: Vec<u64>,
    /// Heads of the arcs with residual capacity, a set for each tail.
    open: Vec<u64>,
    /// Tails whose residuals differ from the capacities.
    touched: Vec<u64>,
    /// Remaining capacity of the drain at each vertex.
    drains: Vec<u64>,
    /// Vertices by distance from the source, less those from which the search of a phase returned.
    layers: Vec<u64>,
    /// Vertices that the last breadth-first search reached.
    reached: Vec<u64>,
    path: Vec<u32>,
}

impl DenseFlow {
    /// Creates a network of the reversed arcs of a graph: flows run from the end of an arc to its start.
    pub(super) fn reversed(graph: &Digraph) -> Self {
        let mut numbers: Vec<Option<usize>> = vec![None; graph.vertices() as usize];
        let mut vertices = graph.terminals() as usize;
        for (terminal, number) in numbers.iter_mut().take(vertices).enumerate() {
            *number = Some(terminal);
        }
        for vertex in graph.arcs().flat_map(|(from, to, _)| [from, to]) {
            numbers[vertex as usize].get_or_insert_with(|| {
                vertices += 1;
                vertices - 1
            });
        }
        let words = vertices.div_ceil(WORD).max(1);
        let mut flow = Self {
            vertices,
            words,
            capacities: vec![0; vertices * vertices],
            residuals: vec![0; vertices * vertices],
            heads: vec![0; vertices * words],
            open: vec![0; vertices * words],
            touched: vec![0; words],
            drains: vec![0; vertices],
            layers: vec![0; (vertices + 2) * words],
            reached: vec![0; words],
            path: Vec::with_capacity(vertices),
        };
        for (from, to, capacity) in graph.arcs() {
            if let (Some(from), Some(to)) = (numbers[from as usize], numbers[to as usize]) {
                flow.set_arc(to, from, capacity);
            }
        }
        flow
    }

    /// Sets the capacity of an arc of the graph, between terminals.
    pub(super) fn set_capacity(&mut self, from: u32, to: u32, capacity: u64) {
        self.set_arc(to as usize, from as usize, capacity);
    }

    fn set_arc(&mut self, tail: usize, head: usize, capacity: u64) {
        self.capacities[tail * self.vertices + head] = capacity.min(MAX_CAPACITY);
        assign(&mut self.heads[tail * self.words..], head, capacity > 0);
        assign(&mut self.touched, tail, true);
    }

    /// Returns the maximum flow from `source` into `drains` (vertex, capacity; excluding the source).
    pub(super) fn run(&mut self, source: u32, drains: impl IntoIterator<Item = (u32, u64)>) -> u64 {
        self.reset();
        let mut wanted = 0u64;
        for (vertex, limit) in drains {
            let limit = limit.min(MAX_CAPACITY - wanted);
            self.drains[vertex as usize] += limit;
            wanted += limit;
        }
        let mut flow = 0;
        while flow < wanted && self.search(source as usize) {
            flow += self.augment(source as usize);
        }
        flow
    }

    /// Returns true if a vertex is on the source side of the minimum cut nearest to the source. Valid after a flow that is
    /// smaller than the total of its drains.
    pub(super) fn is_on_source_side(&self, vertex: u32) -> bool {
        contains(&self.reached, vertex as usize)
    }

    fn reset(&mut self) {
        self.drains.fill(0);
        let (vertices, words) = (self.vertices, self.words);
        for word in 0..words {
            let mut tails = std::mem::take(&mut self.touched[word]);
            while tails != 0 {
                let tail = word * WORD + tails.trailing_zeros() as usize;
                tails &= tails - 1;
                let row = tail * vertices..(tail + 1) * vertices;
                self.residuals[row.clone()].copy_from_slice(&self.capacities[row]);
                let row = tail * words..(tail + 1) * words;
                self.open[row.clone()].copy_from_slice(&self.heads[row]);
            }
        }
    }

    /// Computes layers by distance from the source. Returns true if a drain with remaining capacity is reached.
    fn search(&mut self, source: usize) -> bool {
        let words = self.words;
        self.reached.fill(0);
        self.layers[..words].fill(0);
        assign(&mut self.reached, source, true);
        assign(&mut self.layers, source, true);
        let mut reaches_drain = false;
        let mut depth = 0;
        loop {
            let (near, next) = self.layers[depth * words..(depth + 2) * words].split_at_mut(words);
            next.fill(0);
            for (word, &set) in near.iter().enumerate() {
                let mut set = set;
                while set != 0 {
                    let at = word * WORD + set.trailing_zeros() as usize;
                    set &= set - 1;
                    reaches_drain |= self.drains[at] > 0;
                    for (next, &heads) in next.iter_mut().zip(&self.open[at * words..(at + 1) * words]) {
                        *next |= heads;
                    }
                }
            }
            let mut is_last = true;
            for (next, reached) in next.iter_mut().zip(&mut self.reached) {
                *next &= !*reached;
                *reached |= *next;
                is_last &= *next == 0;
            }
            if is_last {
                return reaches_drain;
            }
            depth += 1;
        }
    }

    /// Pushes flow along paths through the layers until none is left; returns the added flow.
    fn augment(&mut self, source: usize) -> u64 {
        let mut flow = 0;
        self.path.clear();
        self.path.push(source as u32);
        while let Some(&at) = self.path.last() {
            if self.drains[at as usize] > 0 {
                flow += self.push(at as usize);
                continue;
            }
            let depth = self.path.len();
            let onward = self.onward(at as usize, depth);
            match onward {
                Some(next) => self.path.push(next),
                None => {
                    let layer = (depth - 1) * self.words;
                    assign(&mut self.layers[layer..], at as usize, false);
                    self.path.pop();
                }
            }
        }
        flow
    }

    /// Returns a vertex of the layer at `depth` that an arc with residual capacity enters from `at`.
    fn onward(&self, at: usize, depth: usize) -> Option<u32> {
        let words = self.words;
        let heads = &self.open[at * words..(at + 1) * words];
        let layer = &self.layers[depth * words..(depth + 1) * words];
        let mut both = heads.iter().zip(layer).map(|(heads, layer)| heads & layer).zip(0u32..);
        both.find(|&(set, _)| set != 0).map(|(set, word)| word * WORD as u32 + set.trailing_zeros())
    }

    /// Adds as much flow as possible along the path to the drain at `end`; returns the amount. The path then ends at the
    /// start of its first saturated arc, or at the drain if no arc is saturated.
    fn push(&mut self, end: usize) -> u64 {
        let (vertices, words) = (self.vertices, self.words);
        let mut amount = self.drains[end];
        for arc in self.path.windows(2) {
            amount = amount.min(self.residuals[arc[0] as usize * vertices + arc[1] as usize]);
        }
        self.drains[end] -= amount;
        let mut kept = self.path.len();
        assign(&mut self.touched, end, true);
        for (length, arc) in (1..).zip(self.path.windows(2)) {
            let (tail, head) = (arc[0] as usize, arc[1] as usize);
            assign(&mut self.touched, tail, true);
            let forth = &mut self.residuals[tail * vertices + head];
            *forth -= amount;
            if *forth == 0 {
                assign(&mut self.open[tail * words..], head, false);
                kept = kept.min(length);
            }
            let back = &mut self.residuals[head * vertices + tail];
            if *back == 0 {
                assign(&mut self.open[head * words..], tail, true);
            }
            *back += amount;
        }
        self.path.truncate(kept);
        amount
    }
}

/// Adds a vertex to a set, or removes it.
#[inline]
fn assign(set: &mut [u64], vertex: usize, is_member: bool) {
    let bit = 1 << (vertex % WORD);
    let word = &mut set[vertex / WORD];
    if is_member { *word |= bit } else { *word &= !bit }
}

fn contains(set: &[u64], vertex: usize) -> bool {
    set[vertex / WORD] >> (vertex % WORD) & 1 == 1
}
