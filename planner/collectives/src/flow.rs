//! Exact maximum flow on flat arrays, from one vertex into drains at any vertices.
//!
//! The method is Dinitz's: layers by breadth-first search, then augmenting paths through the layers until none is left.
//! A phase fills the drains of all layers, not only those of the nearest layer. A drain that still has capacity
//! afterwards is at least one layer further away in the next phase, so the number of phases is at most the number of
//! vertices, and with drains everywhere at most the depth.

use std::collections::VecDeque;

/// Capacity that represents infinity. It exceeds any sum of finite capacities: links have at most 10¹⁵ B/s, there are
/// fewer than 2³² of them, and they are scaled by fewer than 2³² ranks.
pub(crate) const UNLIMITED: u128 = 1 << 120;

/// Returns the sum of two capacities. A sum with [`UNLIMITED`] is unlimited.
pub(crate) fn sum(a: u128, b: u128) -> u128 {
    (a + b).min(UNLIMITED)
}

/// Arc as (start vertex, end vertex, capacity).
pub(crate) type Arc = (u32, u32, u128);

/// Network, and residual state of one flow in it.
#[derive(Clone, Debug)]
pub(crate) struct FlowNetwork {
    /// First arc of each vertex, followed by the number of arcs.
    start: Vec<u32>,
    head: Vec<u32>,
    /// Number of the reverse arc of each arc.
    twin: Vec<u32>,
    capacity: Vec<u128>,
    residual: Vec<u128>,
    /// Arcs whose residual differs from their scaled capacity.
    touched: Vec<u32>,
    scale: u128,
    /// Remaining capacity of the drain at each vertex; 0 if the vertex has no drain.
    open: Vec<u128>,
    layer: Vec<u32>,
    next: Vec<u32>,
    queue: VecDeque<u32>,
    path: Vec<u32>,
}

const UNREACHED: u32 = u32::MAX;

impl FlowNetwork {
    /// Creates a network of `vertices` vertices.
    pub(crate) fn new(vertices: usize, arcs: &[Arc]) -> Self {
        let mut start = vec![0u32; vertices + 1];
        for &(from, to, _) in arcs {
            start[from as usize + 1] += 1;
            start[to as usize + 1] += 1;
        }
        for i in 1..start.len() {
            start[i] += start[i - 1];
        }
        let mut next_slot = start.clone();
        let count = 2 * arcs.len();
        let (mut head, mut twin, mut capacity) = (vec![0; count], vec![0; count], vec![0; count]);
        let mut next_arc = |vertex: u32| {
            let slot = &mut next_slot[vertex as usize];
            *slot += 1;
            *slot - 1
        };
        for &(from, to, limit) in arcs {
            let (forth, back) = (next_arc(from), next_arc(to));
            (head[forth as usize], twin[forth as usize], capacity[forth as usize]) = (to, back, limit);
            (head[back as usize], twin[back as usize]) = (from, forth);
        }
        Self {
            start,
            head,
            twin,
            residual: capacity.clone(),
            capacity,
            touched: Vec::new(),
            scale: 1,
            open: vec![0; vertices],
            layer: vec![UNREACHED; vertices],
            next: vec![0; vertices],
            queue: VecDeque::new(),
            path: Vec::new(),
        }
    }

    /// Returns the maximum flow from `source` into `drains` (vertex, capacity; excluding the source), with finite
    /// capacities of arcs multiplied by `scale`; [`UNLIMITED`] if the flow is unbounded.
    pub(crate) fn run(&mut self, source: u32, drains: impl IntoIterator<Item = (u32, u128)>, scale: u128) -> u128 {
        self.reset(scale);
        self.open.fill(0);
        for (vertex, limit) in drains {
            self.open[vertex as usize] += limit;
        }
        let mut flow = 0;
        while flow < UNLIMITED && self.layers(source) {
            flow += self.augment(source);
        }
        flow.min(UNLIMITED)
    }

    /// Returns true if the last flow could still grow to this vertex, that is, if it is on the source side of the
    /// minimum cut nearest to the source.
    pub(crate) fn on_source_side(&self, vertex: u32) -> bool {
        self.layer[vertex as usize] != UNREACHED
    }

    /// Returns, for each vertex, true if it is not on the source side of that cut.
    pub(crate) fn far_side(&self) -> Vec<bool> {
        self.layer.iter().map(|&layer| layer == UNREACHED).collect()
    }

    fn reset(&mut self, scale: u128) {
        if self.scale == scale {
            for arc in self.touched.drain(..) {
                self.residual[arc as usize] = scaled(self.capacity[arc as usize], scale);
            }
            return;
        }
        self.scale = scale;
        self.touched.clear();
        for (residual, &capacity) in self.residual.iter_mut().zip(&self.capacity) {
            *residual = scaled(capacity, scale);
        }
    }

    /// Computes layers by distance from the source; returns true if a drain with remaining capacity is reached.
    fn layers(&mut self, source: u32) -> bool {
        self.layer.fill(UNREACHED);
        self.next.copy_from_slice(&self.start[..self.open.len()]);
        self.layer[source as usize] = 0;
        self.queue.clear();
        self.queue.push_back(source);
        let mut reaches_drain = false;
        while let Some(at) = self.queue.pop_front() {
            let open = self.open[at as usize];
            reaches_drain |= open > 0;
            // An unlimited drain absorbs all flow, so no flow needs to pass through it.
            if open >= UNLIMITED {
                continue;
            }
            for arc in self.start[at as usize]..self.start[at as usize + 1] {
                let to = self.head[arc as usize] as usize;
                if self.residual[arc as usize] > 0 && self.layer[to] == UNREACHED {
                    self.layer[to] = self.layer[at as usize] + 1;
                    self.queue.push_back(to as u32);
                }
            }
        }
        reaches_drain
    }

    /// Pushes flow along augmenting paths through the layers until none is left; returns the added flow.
    fn augment(&mut self, source: u32) -> u128 {
        let mut flow = 0;
        let mut at = source;
        self.path.clear();
        loop {
            if self.open[at as usize] > 0 {
                let narrowest = self.path.iter().map(|&arc| self.residual[arc as usize]).min();
                let amount = narrowest.unwrap_or(UNLIMITED).min(self.open[at as usize]);
                flow += amount;
                if amount >= UNLIMITED {
                    return flow;
                }
                if self.open[at as usize] < UNLIMITED {
                    self.open[at as usize] -= amount;
                }
                // The search continues at the start of the first saturated arc, or at this vertex if there is none.
                if let Some(full) = self.push(amount) {
                    at = self.tail(self.path[full]);
                    self.path.truncate(full);
                }
                continue;
            }
            if let Some(arc) = self.onward(at) {
                self.path.push(arc);
                at = self.head[arc as usize];
            } else if let Some(arc) = self.path.pop() {
                at = self.tail(arc);
                self.next[at as usize] += 1;
            } else {
                return flow;
            }
        }
    }

    /// Adds `amount` to the flow along the path. Returns the index of the first saturated arc of the path; `None` if no
    /// arc is saturated.
    fn push(&mut self, amount: u128) -> Option<usize> {
        let mut full = None;
        for (index, &arc) in self.path.iter().enumerate() {
            let back = self.twin[arc as usize];
            if self.residual[arc as usize] < UNLIMITED {
                self.residual[arc as usize] -= amount;
            }
            if self.residual[back as usize] < UNLIMITED {
                self.residual[back as usize] += amount;
            }
            self.touched.extend([arc, back]);
            if self.residual[arc as usize] == 0 && full.is_none() {
                full = Some(index);
            }
        }
        full
    }

    /// Returns the next arc from a vertex to the next deeper layer; `None` if there is none left.
    fn onward(&mut self, at: u32) -> Option<u32> {
        let end = self.start[at as usize + 1];
        let deeper = self.layer[at as usize] + 1;
        while self.next[at as usize] < end {
            let arc = self.next[at as usize];
            if self.residual[arc as usize] > 0 && self.layer[self.head[arc as usize] as usize] == deeper {
                return Some(arc);
            }
            self.next[at as usize] += 1;
        }
        None
    }

    fn tail(&self, arc: u32) -> u32 {
        self.head[self.twin[arc as usize] as usize]
    }
}

fn scaled(capacity: u128, scale: u128) -> u128 {
    if capacity >= UNLIMITED { UNLIMITED } else { capacity * scale }
}
