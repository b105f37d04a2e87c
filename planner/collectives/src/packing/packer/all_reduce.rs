//! Trees of both phases of an all_reduce that share links, and the lower bound of an all_reduce.
//!
//! Trees that are the fastest of each phase may load the same links. Where they lose by it, a linear program mixes the
//! trees of both phases, each link carrying the sum.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabricast_topologies::NodeId;
use rustc_hash::FxHashSet;

use super::super::forest::{Evidence, Forest, Proof};
use super::super::growth::is_faster;
use super::super::optimum::Ratio;
use super::super::routes::Flow;
use super::super::variant::TreeVariant;
use super::TreePacker;
use super::common_blocks::MIN_SHARE;
use crate::bound::cut::Direction;
use crate::bound::partition::slowest_partition;

/// Lower bound of an all_reduce in which only ranks reduce: k disjoint sets that contain all ranks receive 2(k − 1) buffers
/// in total (Patarasuk & Yuan, JPDC 2009, §3, for single ranks).
#[derive(Clone, Debug)]
pub(super) struct AllReduceBound {
    /// Time in seconds per byte.
    lower: Ratio,
    /// Sets of devices, by id.
    sets: Vec<Vec<Box<str>>>,
}

impl AllReduceBound {
    /// Proof for trees that need a time per byte.
    pub(super) fn proof(&self, upper: Ratio) -> Proof {
        Proof { evidence: Evidence::Cut(self.sets.clone()), lower: self.lower, upper }
    }
}

impl TreePacker {
    /// Returns the lower bound of an all_reduce; `None` if nothing limits it.
    pub(super) fn all_reduce_bound(&self) -> Option<&AllReduceBound> {
        self.all_reduce_bound.get_or_init(|| self.find_all_reduce_bound()).as_ref()
    }

    /// Finds the slowest of the partitions of the ranks into single ranks, into hosts, and the one that a search finds.
    fn find_all_reduce_bound(&self) -> Option<AllReduceBound> {
        let routes = &self.known_routes().ok()?.routes;
        let ranks = self.graph.terminals();
        let device = |rank: u32| self.devices.get(rank as usize).copied();
        let single = (0..ranks).filter_map(device).map(|device| FxHashSet::from_iter([device])).collect();
        let mut by_host: BTreeMap<u32, FxHashSet<NodeId>> = BTreeMap::new();
        for (rank, &host) in (0..).zip(&self.hosts) {
            by_host.entry(host).or_default().extend(device(rank));
        }
        let mut partitions: Vec<Vec<FxHashSet<NodeId>>> = vec![single, by_host.into_values().collect()];
        partitions.extend(self.slowest_partition());
        let mut best: Option<(Ratio, Vec<FxHashSet<NodeId>>)> = None;
        for sets in partitions.into_iter().filter(|sets| sets.len() > 1) {
            let into: Option<u128> = sets.iter().map(|set| routes.entering(set)).sum();
            let Some(into) = into.filter(|&into| into > 0) else { continue };
            let lower = Ratio::new(2 * (sets.len() as u128 - 1), into);
            if best.as_ref().is_none_or(|(other, _)| lower.is_above(*other) == Some(true)) {
                best = Some((lower, sets));
            }
        }
        let (lower, sets) = best?;
        Some(AllReduceBound { lower, sets: sets.iter().map(|set| self.device_names(set)).collect() })
    }

    /// Devices of the sets of the slowest partition, the sets in two readings: a switch of which only some turns are on the
    /// side of a set counts as in it, or as outside.
    fn slowest_partition(&self) -> Vec<Vec<FxHashSet<NodeId>>> {
        let (vertices, ranks) = (self.graph.vertices() as usize, self.graph.terminals() as usize);
        let found = slowest_partition(vertices, &self.graph.flow_arcs(), ranks, Direction::Towards);
        let sets = found.map(|partition| partition.sets).unwrap_or_default();
        let readings: Vec<[FxHashSet<NodeId>; 2]> =
            sets.iter().map(|set| self.sending_devices(set, Flow::Spread)).collect();
        [0, 1].map(|reading| readings.iter().map(|sets| sets[reading].clone()).collect()).into()
    }

    /// Finds trees that collect and spread in less time than those of separate phases, if these are not near the bound.
    pub(super) fn faster_all_reduce(
        &self,
        variant: TreeVariant,
        separate: [&Arc<Forest>; 2],
    ) -> Option<[Arc<Forest>; 2]> {
        let mut best = self.time_of_phases(separate.map(|forest| &**forest));
        let lower = self.all_reduce_bound()?.lower.value() * f64::from(variant.widening());
        let mut found = None;
        for set in [&self.class_routes, &self.all_routes].into_iter().flatten() {
            if best.is_some_and(|time| time.value() <= lower / MIN_SHARE) {
                break;
            }
            let both = set.both_phases().and_then(|mixture| mixture.common_trees(variant)).unwrap_or_default();
            let Ok([collect, spread]) = <[Forest; 2]>::try_from(both) else { continue };
            let time = self.time_of_phases([&collect, &spread]);
            if is_faster(time, best) {
                (best, found) = (time, Some([collect, spread].map(Arc::new)));
            }
        }
        found
    }

    /// Time that the busiest link needs for both phases.
    fn time_of_phases(&self, [collect, spread]: [&Forest; 2]) -> Option<Ratio> {
        let routes = &self.routes_of(collect).ok()?.routes;
        routes.time_per_byte(&[(collect, Flow::Collect), (spread, Flow::Spread)])
    }
}
