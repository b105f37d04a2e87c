//! Rounding of a mixture of trees to whole units of blocks.

use std::collections::BTreeMap;

use super::linear_program::Mixture;
use super::network::Network;
use crate::packing::forest::{Forest, PackedTree};

/// Trees of a mixture with whole units of the blocks of their roots.
pub(super) struct Division<'a> {
    mixture: &'a Mixture,
    networks: &'a [Network],
    /// Units into which each block is divided.
    units: u32,
    /// Units of each tree.
    counts: Vec<u32>,
    /// Time of each link for all units, a unit taking the time of a block.
    busy: Vec<f64>,
    /// Trees of each network and root.
    trees_by_root: Vec<Vec<usize>>,
}

/// Time of the busiest link, and the sum of the squares of the times of all links, which weighs busy ones most.
type Load = [f64; 2];

/// Relative difference by which a change must improve a load.
const IMPROVEMENT: f64 = 1e-9;

impl<'a> Division<'a> {
    /// Divides the block of each root into `units` units, and gives every tree a whole number of them: its share rounded
    /// down, and of the remaining units each to the tree with which the busiest link is least busy. Then single units move
    /// between trees of a root as long as that shortens the time.
    pub(super) fn new(networks: &'a [Network], mixture: &'a Mixture, units: u32) -> Self {
        let units = units.max(1);
        let mut trees_by_root: BTreeMap<(usize, u32), Vec<usize>> = BTreeMap::new();
        for (tree, mixed) in mixture.trees.iter().enumerate() {
            trees_by_root.entry((mixed.tree.network, mixed.tree.tree.root)).or_default().push(tree);
        }
        let mut division = Self {
            mixture,
            networks,
            units,
            counts: vec![0; mixture.trees.len()],
            busy: vec![0.0; networks.first().map_or(0, Network::links)],
            trees_by_root: trees_by_root.into_values().collect(),
        };
        for (tree, mixed) in mixture.trees.iter().enumerate() {
            division.add(tree, (mixed.share * f64::from(units) + 1e-9) as u32);
        }
        for root in 0..division.trees_by_root.len() {
            let trees = division.trees_by_root[root].clone();
            let given: u32 = trees.iter().map(|&tree| division.counts[tree]).sum();
            for _ in given..units {
                let Some((_, best)) = division.least_busy(trees.iter().copied(), None) else { break };
                division.add(best, 1);
            }
        }
        for _ in 0..units as usize * division.trees_by_root.len() {
            if !division.improve() {
                break;
            }
        }
        division
    }

    /// Time of the busiest link, in units of the time of the slowest link for a block.
    pub(super) fn time(&self) -> f64 {
        self.load(None, None)[0] / f64::from(self.units)
    }

    /// Returns the trees of each network that have units.
    pub(super) fn forests(&self) -> Vec<Forest> {
        let forest = |(number, network): (usize, &Network)| {
            let trees = self.mixture.trees.iter().zip(&self.counts);
            let used = trees.filter(|(mixed, count)| mixed.tree.network == number && **count > 0);
            let trees = used.map(|(mixed, &units)| PackedTree { units, ..mixed.tree.tree.clone() });
            Forest {
                roots: network.roots(),
                symmetry: network.symmetry().clone(),
                units: self.units,
                trees: trees.collect(),
                blocks: network.blocks(),
            }
        };
        self.networks.iter().enumerate().map(forest).collect()
    }

    fn add(&mut self, tree: usize, count: u32) {
        self.counts[tree] += count;
        for (busy, time) in self.busy.iter_mut().zip(&self.mixture.trees[tree].times) {
            *busy += time * f64::from(count);
        }
    }

    fn remove(&mut self, tree: usize) {
        self.counts[tree] -= 1;
        for (busy, time) in self.busy.iter_mut().zip(&self.mixture.trees[tree].times) {
            *busy -= time;
        }
    }

    /// Load with a unit of `to` more and one of `from` less.
    fn load(&self, to: Option<usize>, from: Option<usize>) -> Load {
        let time = |tree: Option<usize>, link: usize| tree.map_or(0.0, |tree| self.mixture.trees[tree].times[link]);
        let times = self.busy.iter().enumerate().map(|(link, busy)| busy + time(to, link) - time(from, link));
        times.fold([0.0; 2], |[largest, squares], time: f64| [largest.max(time), squares + time * time])
    }

    /// Returns the tree whose additional unit loads the busiest link least, after that load.
    fn least_busy(&self, trees: impl Iterator<Item = usize>, from: Option<usize>) -> Option<(Load, usize)> {
        let loads = trees.map(|tree| (self.load(Some(tree), from), tree));
        loads.min_by(|(a, _), (b, _)| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])))
    }

    /// Moves the unit whose move improves the load most, from trees that use a busiest link; returns false if none does.
    fn improve(&mut self) -> bool {
        let [largest, squares] = self.load(None, None);
        let is_busiest = |link: &usize| self.busy[*link] >= largest * (1.0 - IMPROVEMENT);
        let busiest: Vec<usize> = (0..self.busy.len()).filter(is_busiest).collect();
        let mut best: Option<(Load, usize, usize)> = None;
        for trees in &self.trees_by_root {
            for &from in trees {
                let is_on_busiest = busiest.iter().any(|&link| self.mixture.trees[from].times[link] > 0.0);
                if self.counts[from] == 0 || !is_on_busiest {
                    continue;
                }
                let others = trees.iter().copied().filter(|&tree| tree != from);
                let Some((load, to)) = self.least_busy(others, Some(from)) else { continue };
                if best.is_none_or(|(known, ..)| load < known) {
                    best = Some((load, from, to));
                }
            }
        }
        let is_better = |load: Load| {
            load[0] < largest * (1.0 - IMPROVEMENT) || load[0] <= largest && load[1] < squares * (1.0 - IMPROVEMENT)
        };
        match best.filter(|&(load, ..)| is_better(load)) {
            Some((_, from, to)) => {
                self.remove(from);
                self.add(to, 1);
                true
            }
            None => false,
        }
    }
}
