//! Trees whose edges carry the block of their root once, by three methods.

use std::sync::Arc;

use fabricast_topologies::NodeId;
use rustc_hash::FxHashSet;

use super::super::digraph::Digraph;
use super::super::error::PackingError;
use super::super::forest::{Evidence, Forest, PackedTree};
use super::super::growth::{grow_trees, is_faster, scale};
use super::super::optimum::{Optimum, Ratio, ScaledGraph, optimum_into};
use super::super::requirement::Roots;
use super::super::routes::{Flow, Routes};
use super::super::splitting::{Turn, remove_switches};
use super::super::variant::TreeVariant;
use super::{Need, PackedForest, PackedVariant, TreePacker};

/// Share of the highest throughput from which no further method to find trees is tried: as much as is lost by rounding to
/// whole units.
pub(super) const MIN_SHARE: f64 = 0.99;

/// Largest number of roots whose trees are mixed by a linear program where those of all roots can be packed.
const MAX_MIXED_ROOTS: usize = 8;

impl TreePacker {
    /// Finds trees whose edges carry the block of their root once, by the first method that nearly reaches the highest
    /// throughput.
    pub(super) fn pack(&self, packed: &PackedVariant, need: Need) -> Result<PackedForest, PackingError> {
        let Need { roots, flow, .. } = need;
        if flow == Flow::Collect && self.graph == self.graph.reversed() {
            let spread = self.packed(packed, Need { flow: Flow::Spread, ..need })?;
            let times = [Flow::Spread, Flow::Collect].map(|flow| self.time(&spread.forest, flow));
            // The reverse of a cut of a graph whose links are alike in both directions is a cut of the same capacity.
            let others = |set: &[Box<str>]| {
                let outside = self.names.iter().filter(|&name| !set.contains(name)).cloned();
                let mut outside: Vec<Box<str>> = outside.collect();
                outside.sort_unstable();
                outside.dedup();
                outside
            };
            if times[0] == times[1] && self.check_routes(&spread.forest, flow).is_ok() {
                let evidence = match spread.evidence {
                    Evidence::Cut(sets) => Evidence::Cut(sets.iter().map(|set| others(set)).collect()),
                    prices @ Evidence::Prices(_) => prices,
                };
                return Ok(PackedForest { evidence, ..spread });
            }
        }
        let graph = match flow {
            Flow::Spread => self.graph.clone(),
            Flow::Collect => self.graph.reversed(),
        };
        // Cuts around ranks that are alike have the same capacity.
        let routes = &self.routes_for(roots)?.routes;
        let best = optimum_into(&graph, roots, routes.representatives());
        if best.rate.numerator == 0 {
            let rank = (0..graph.terminals()).find(|&rank| best.sending_side.get(rank as usize) == Some(&false));
            return Err(PackingError::Disconnected { rank: rank.unwrap_or(0) });
        }
        let (lower, set) = self.proven_time(routes, &best, need);
        let limit = lower.value() * f64::from(packed.variant.widening()) / MIN_SHARE;
        let is_near = |forest: &Forest| self.time(forest, flow).is_some_and(|time| time.value() <= limit);
        let methods: [&dyn Fn() -> Result<Arc<Forest>, PackingError>; 3] =
            [&|| self.mix_classes(packed.variant, need), &|| self.pack_all(packed, need, best.rate), &|| {
                self.mix_all(packed.variant, need)
            }];
        let mut found: Result<Arc<Forest>, PackingError> = Err(PackingError::NoTrees);
        for method in methods {
            found = match (found, method()) {
                (Ok(known), Ok(other)) if is_faster(self.time(&other, flow), self.time(&known, flow)) => Ok(other),
                (Ok(known), _) => Ok(known),
                (Err(PackingError::NoTrees), other) | (Err(_), other @ Ok(_)) => other,
                (Err(error), Err(_)) => Err(error),
            };
            if found.as_ref().is_ok_and(|forest| is_near(forest)) {
                break;
            }
        }
        let forest = found?;
        Ok(PackedForest { forest, evidence: Evidence::Cut(vec![self.device_names(&set)]), lower })
    }

    /// Time per byte that a cut proves, with the devices on its sending side.
    fn proven_time(&self, routes: &Routes, best: &Optimum, need: Need) -> (Ratio, FxHashSet<NodeId>) {
        let Need { roots, flow, .. } = need;
        let ranks = self.graph.terminals();
        let is_sending = |rank: &u32| best.sending_side.get(*rank as usize) == Some(&true);
        let crossing_blocks = match roots {
            Roots::All => (0..ranks).filter(is_sending).count(),
            Roots::One(_) => 1,
        };
        let bound = |set: &FxHashSet<NodeId>| match routes.leaving(set) {
            Some(leaving) if leaving > 0 => {
                Ratio::new(crossing_blocks as u128, u128::from(roots.count(ranks)) * leaving)
            }
            _ => Ratio::new(0, 1),
        };
        let sets = self.sending_devices(&best.sending_side, flow).map(|set| (bound(&set), set));
        match sets {
            [(lower, _), other] if other.0.is_above(lower) == Some(true) => other,
            [first, _] => first,
        }
    }

    /// Finds mixtures of trees of one root of each class of alike ranks. Where trees of all roots can be packed, there must be
    /// few classes.
    fn mix_classes(&self, variant: TreeVariant, need: Need) -> Result<Arc<Forest>, PackingError> {
        let set = self.class_routes.as_ref().filter(|_| need.roots == Roots::All).ok_or(PackingError::NoTrees)?;
        if self.all_routes.is_some() && set.routes.representatives().count() > MAX_MIXED_ROOTS {
            return Err(PackingError::NoTrees);
        }
        only(set.fastest(need)?.common_trees(variant)?)
    }

    /// Finds mixtures of trees of all roots over the routes between ranks, which differ from those that the removal of
    /// switches assumes where pairs of ranks are linked in several ways.
    fn mix_all(&self, variant: TreeVariant, need: Need) -> Result<Arc<Forest>, PackingError> {
        let set = self.all_routes()?;
        if need.roots.count(self.graph.terminals()) as usize > MAX_MIXED_ROOTS {
            return Err(PackingError::NoTrees);
        }
        only(set.fastest(need)?.common_trees(variant)?)
    }

    /// Packs trees of all roots. `rate`: the highest rate of a root.
    fn pack_all(&self, packed: &PackedVariant, need: Need, rate: Ratio) -> Result<Arc<Forest>, PackingError> {
        let Need { roots, flow, .. } = need;
        let core = match flow {
            Flow::Spread => self.core.clone(),
            Flow::Collect => self.core.reversed(),
        };
        let routes = &self.all_routes()?.routes;
        let variant = packed.variant;
        let mut scaled = scale(&core, roots, rate, variant).ok_or(PackingError::NoTrees)?;
        let first = self.variants.first().filter(|first| first.variant != variant && variant.widening() == 1);
        if let Some(first) = first.filter(|first| scale(&core, roots, rate, first.variant).as_ref() == Some(&scaled)) {
            let forest = self.packed(first, need)?.forest;
            if u64::from(forest.units) <= scaled.requirement.units {
                return Ok(forest);
            }
        }
        scaled.graph = scaled.graph.map(|capacity| capacity.saturating_mul(variant.widening().into()));
        let logical = self.without_switches(routes, &scaled, flow);
        let lenient = grow_trees(&scaled, &logical, variant)?;
        let time = |forest: &Forest| routes.time_per_byte(&[(forest, flow)]);
        let roots_count = u128::from(roots.count(self.graph.terminals()));
        let ideal = Ratio::new(
            scaled.unit.denominator,
            scaled.unit.numerator * u128::from(scaled.requirement.units) * roots_count,
        );
        // Routes that differ from the assumed ones may overload links; trees without such edges may be faster.
        let is_ideal = |forest: &Forest| time(forest).is_some_and(|time| time.is_above(ideal) != Some(true));
        let forest = match is_ideal(&lenient) {
            true => lenient,
            false => {
                match without_detours(routes, &logical, flow).map(|direct| grow_trees(&scaled, &direct, variant)) {
                    Some(Ok(strict)) if is_faster(time(&strict), time(&lenient)) => strict,
                    _ => lenient,
                }
            }
        };
        self.check_routes(&forest, flow)?;
        Ok(Arc::new(forest))
    }

    /// Returns the devices on the side of a cut that sends in the fabric. A device of which only some turns are on that
    /// side counts as on it in the first set, and not in the second.
    pub(super) fn sending_devices(&self, sending_side: &[bool], flow: Flow) -> [FxHashSet<NodeId>; 2] {
        let on_side = |is_sending: bool| -> FxHashSet<NodeId> {
            let sides = sending_side.iter().zip(&self.devices);
            sides
                .filter(|&(&sends, _)| (sends == (flow == Flow::Spread)) == is_sending)
                .map(|(_, &device)| device)
                .collect()
        };
        let (sending, others) = (on_side(true), on_side(false));
        let only_sending = sending.difference(&others).copied().collect();
        [sending, only_sending]
    }

    fn check_routes(&self, forest: &Forest, flow: Flow) -> Result<(), PackingError> {
        let routes = &self.routes_of(forest)?.routes;
        let edges = forest.trees.iter().flat_map(PackedTree::edges);
        for (from, to) in edges.map(|(parent, child)| flow.ends(parent, child)) {
            if !routes.is_reachable(from, to) {
                return Err(PackingError::NoRoute { from, to });
            }
        }
        Ok(())
    }

    /// Returns a scaled graph whose switches are removed.
    fn without_switches(&self, routes: &Routes, scaled: &ScaledGraph, flow: Flow) -> Digraph {
        let terminals = scaled.graph.terminals();
        let turn = |from: u32, switch: u32, to: u32| {
            if from >= terminals || to >= terminals {
                return Turn::Routed;
            }
            let (from, to) = flow.ends(from, to);
            let device = self.devices.get(switch as usize);
            match device.is_some_and(|&device| routes.is_direct_through(from, to, device)) {
                true => Turn::Direct,
                false => Turn::Unrouted,
            }
        };
        remove_switches(&scaled.graph, scaled.requirement, &turn)
    }
}

/// Returns the trees of a mixture of one network.
fn only(forests: Vec<Forest>) -> Result<Arc<Forest>, PackingError> {
    forests.into_iter().next().map(Arc::new).ok_or(PackingError::NoTrees)
}

/// Returns a graph of ranks without the edges whose routes pass other ranks; `None` if there are none.
fn without_detours(routes: &Routes, logical: &Digraph, flow: Flow) -> Option<Digraph> {
    let mut direct = logical.clone();
    for (from, to, _) in logical.arcs() {
        let (sender, receiver) = flow.ends(from, to);
        if !routes.is_direct(sender, receiver) {
            direct.reduce(from, to, u64::MAX);
        }
    }
    (direct != *logical).then_some(direct)
}
