//! Lengths of links with the highest lower bound on an exchange: the dual of the multicommodity flow, solved.
//!
//! ```text
//! maximise  Σ over devices of payment   subject to   Σ over wires of capacity × length ≤ 1,
//!           payment of a device ≤ Σ over its blocks of the length of their path, for all choices of paths
//! ```
//!
//! A choice of paths is added when the payment exceeds it: the shortest paths by given lengths (`cutting_planes`).
//!
//! All wires between vertices of the same two colours have one length, and one device represents all of its colour.
//! Lengths found so are a choice, not a proof: whatever they are, [`super::lengths`] derives a valid bound from them.

use std::collections::BTreeMap;

use super::cut::Direction;
use super::distance::Distances;
use super::lengths::Pairs;
use super::wiring::{Wire, Wiring};
use crate::cutting_planes::{Cut, LowestCuts, PriceProgram, Prices};
use crate::flow::UNLIMITED;

/// Limits on (number of representative devices) × (number of wires) and × (number of lengths) up to which lengths are
/// computed.
const MAX_SEARCH_WORK: usize = 1 << 16;
const MAX_PROGRAM_SIZE: usize = 1 << 15;

/// Length of the longest wire: fine enough for a bound within a hundred-thousandth.
const LARGEST: f64 = (1u64 << 20) as f64;

/// Returns a length of each wire; `None` if the graph is too large, or the solver finds no solution in floating point.
/// `colours`: colour of each vertex; devices of one colour exchange the same amounts.
pub(super) fn best_lengths(
    wiring: &Wiring,
    colours: &[u32],
    devices: usize,
    pairs: Pairs<'_>,
) -> Option<impl Fn(usize) -> u64> {
    let classes = Classes::new(wiring, colours);
    let colours = colours.get(..devices)?;
    let starts = first_of_each_colour(colours);
    let is_small = starts.len() * wiring.wires.len() <= MAX_SEARCH_WORK
        && starts.len() * classes.capacities.len() <= MAX_PROGRAM_SIZE;
    if !is_small || classes.capacities.is_empty() || pairs.denominator == 0 {
        return None;
    }
    let distances = Distances::with_lengths(wiring, devices, Direction::Away, |_| 0);
    let starts = starts.into_iter().map(|device| Start::new(device, colours, pairs)).collect();
    let lengths = Search { classes: &classes, starts, distances }.solve()?;
    let largest = lengths.iter().copied().fold(0.0, f64::max);
    let rounded: Vec<u64> = lengths.iter().map(|length| (length / largest * LARGEST).round() as u64).collect();
    (largest > 0.0).then_some(move |wire: usize| classes.class_of_wire[wire].map_or(0, |class| rounded[class]))
}

/// Returns the first device of each colour, in the order of colours.
fn first_of_each_colour(colours: &[u32]) -> Vec<u32> {
    let mut by_colour: BTreeMap<u32, u32> = BTreeMap::new();
    for (&colour, device) in colours.iter().zip(0..) {
        by_colour.entry(colour).or_insert(device);
    }
    by_colour.into_values().collect()
}

/// Device that represents all devices of its colour.
#[derive(Clone, Debug, PartialEq)]
struct Start {
    device: u32,
    /// Share of all blocks that the devices of the colour send, by receiving device as seen from the representative.
    shares: Vec<f64>,
}

impl Start {
    fn new(device: u32, colours: &[u32], pairs: Pairs<'_>) -> Self {
        let own = colours.get(device as usize);
        let multiplicity = colours.iter().filter(|&colour| Some(colour) == own).count() as f64;
        let share = |to: u32| (pairs.between)(device, to) as f64 / pairs.denominator as f64 * multiplicity;
        Self { device, shares: (0..colours.len() as u32).map(share).collect() }
    }
}

/// Wires with one length each.
struct Classes {
    /// Class of each wire; `None` for wires without a limit.
    class_of_wire: Vec<Option<usize>>,
    /// Total capacity of each class, relative to all capacities.
    capacities: Vec<f64>,
}

impl Classes {
    fn new(wiring: &Wiring, colours: &[u32]) -> Self {
        let colour = |vertex: u32| colours.get(vertex as usize).copied();
        let mut numbers = BTreeMap::new();
        let mut capacities: Vec<f64> = Vec::new();
        let mut class = |wire: &Wire| {
            if wire.capacity >= UNLIMITED {
                return None;
            }
            let ends = (colour(wire.from), colour(wire.to), wire.ends, wire.capacity);
            let number = *numbers.entry(ends).or_insert(capacities.len());
            if number == capacities.len() {
                capacities.push(0.0);
            }
            capacities[number] += wire.capacity as f64;
            Some(number)
        };
        let class_of_wire = wiring.wires.iter().map(&mut class).collect();
        let all: f64 = capacities.iter().sum();
        Self { class_of_wire, capacities: capacities.into_iter().map(|capacity| capacity / all.max(1.0)).collect() }
    }

    fn paths_from(&self, start: &Start, distances: &mut Distances) -> Paths {
        // Share of all blocks that go to a vertex or beyond it.
        let mut passing = start.shares.clone();
        passing.resize(distances.vertices(), 0.0);
        let mut paths = Paths { shares: vec![0.0; self.capacities.len()] };
        for reached in distances.tree_from(start.device).iter().rev() {
            let share = passing[reached.edge.to as usize];
            passing[reached.from as usize] += share;
            if let Some(class) = self.class_of_wire[reached.edge.wire as usize] {
                paths.shares[class] += share;
            }
        }
        paths
    }
}

/// Paths of the blocks of all devices of a colour.
struct Paths {
    /// Share of all blocks on the wires of each class.
    shares: Vec<f64>,
}

impl Cut for Paths {
    fn amounts(&self) -> &[f64] {
        &self.shares
    }

    fn constant(&self) -> f64 {
        0.0
    }
}

struct Search<'a> {
    classes: &'a Classes,
    starts: Vec<Start>,
    distances: Distances,
}

impl Search<'_> {
    /// Returns the length of each class with the highest bound.
    fn solve(&mut self) -> Option<Vec<f64>> {
        let program = PriceProgram { weights: self.classes.capacities.clone(), limit: 1.0, cost: 0.0 };
        let first = self.shortest_paths(&vec![1.0; program.weights.len()]);
        let Prices { prices, .. } = program.solve(first, |lengths| {
            let cuts = self.shortest_paths(lengths);
            LowestCuts { lower: cuts.iter().map(|paths| paths.value(lengths)).sum(), cuts }
        })?;
        Some(prices)
    }

    /// Returns the shortest paths of the blocks of each start.
    fn shortest_paths(&mut self, lengths: &[f64]) -> Vec<Paths> {
        let largest = lengths.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        // Searches are exact in whole lengths, which are finer than those of the result.
        let whole = |length: f64| (length / largest * LARGEST * LARGEST).round() as u64;
        let class_of_wire = &self.classes.class_of_wire;
        self.distances.set_lengths(|wire| class_of_wire[wire].map_or(0, |class| whole(lengths[class])));
        self.starts.iter().map(|start| self.classes.paths_from(start, &mut self.distances)).collect()
    }
}

#[cfg(test)]
mod tests {
    use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};
    use proptest::prelude::*;

    use super::super::colour::colours;
    use super::super::lengths::all_pairs;
    use super::super::tests::wirings;
    use super::super::twins::InterchangeableDevices;
    use super::*;
    use fabricast_topologies::{Bytes, Picos};

    /// Time per byte of the fastest flows, in picoseconds: a program in the flow of each source on each wire, which is
    /// independent of shortest paths. `None` if a device does not reach another.
    fn fastest_flows(wiring: &Wiring, devices: usize, pairs: Pairs<'_>) -> Option<f64> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let time = problem.add_var(1.0, (0.0, f64::INFINITY));
        let all = pairs.denominator as f64;
        let mut carried: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); wiring.wires.len()];
        for source in 0..devices as u32 {
            let flows: Vec<Variable> =
                wiring.wires.iter().map(|_| problem.add_var(0.0, (0.0, f64::INFINITY))).collect();
            for (carried, &flow) in carried.iter_mut().zip(&flows) {
                carried.push((flow, 1.0));
            }
            for vertex in (0..wiring.vertices).filter(|&vertex| vertex != source) {
                let mut balance: BTreeMap<usize, f64> = BTreeMap::new();
                for (number, wire) in wiring.wires.iter().enumerate().filter(|(_, wire)| wire.from != wire.to) {
                    if wire.to == vertex {
                        *balance.entry(number).or_default() += 1.0;
                    } else if wire.from == vertex {
                        *balance.entry(number).or_default() -= 1.0;
                    }
                }
                let is_device = (vertex as usize) < devices;
                let kept = if is_device { (pairs.between)(source, vertex) as f64 / all } else { 0.0 };
                let terms: Vec<(Variable, f64)> =
                    balance.into_iter().map(|(number, sign)| (flows[number], sign)).collect();
                problem.add_constraint(terms, ComparisonOp::Eq, kept);
            }
        }
        for (wire, mut carried) in wiring.wires.iter().zip(carried) {
            if wire.capacity < UNLIMITED {
                carried.push((time, -(wire.capacity as f64)));
                problem.add_constraint(carried, ComparisonOp::Le, 0.0);
            }
        }
        let solution = problem.solve().ok()?.into_solution().ok()?;
        Some(solution.var_value(time) * 1e12)
    }

    proptest! {
        /// The best lengths prove the time of the fastest flows, for equal blocks and for the blocks of a matrix.
        #[test]
        fn best_lengths_match_the_fastest_flows(
            (wiring, ranks) in wirings(),
            blocks in proptest::collection::vec(0u64..1000, 64),
        ) {
            let devices = ranks.len();
            let each: Vec<(u32, u32)> = (0..devices as u32).map(|device| (device, 1)).collect();
            let twins = InterchangeableDevices::new(&wiring, &ranks);
            let equal = |from: u32, to: u32| u128::from(ranks[from as usize]) * u128::from(ranks[to as usize]);
            let uneven = |from: u32, to: u32| {
                let bytes = blocks.get(from as usize * devices + to as usize).copied().unwrap_or(0);
                if from == to { 0 } else { u128::from(bytes) }
            };
            let different: Vec<u32> = (0..wiring.vertices).collect();
            let between: [&dyn Fn(u32, u32) -> u128; 2] = [&equal, &uneven];
            let starts = [twins.sets(), &each];
            let colours = [colours(&wiring, &ranks, None), different];
            for ((between, starts), colours) in between.into_iter().zip(starts).zip(colours) {
                let pairs = Pairs { between, denominator: 1000 };
                let Some(fastest) = fastest_flows(&wiring, devices, pairs) else { continue };
                let bytes = Bytes(1000);
                let lines = all_pairs(&wiring, starts, || colours, pairs, Picos::ZERO);
                let bound = lines.iter().map(|line| line.at(bytes).transfer.0).max().unwrap_or(0) as f64;
                let fastest = fastest * bytes.0 as f64;
                // The solver meets constraints within a millionth of all bytes, here over the slowest wire.
                let slowest = wiring.wires.iter().map(|wire| wire.capacity).min().unwrap_or(UNLIMITED) as f64;
                let slack = 1.0 + 1e-6 * 1e12 * bytes.0 as f64 / slowest;
                prop_assert!(bound <= fastest * (1.0 + 1e-6) + slack, "{bound} above {fastest}");
                prop_assert!(bound >= fastest * (1.0 - 1e-4) - slack, "{bound} below {fastest}");
            }
        }
    }
}
