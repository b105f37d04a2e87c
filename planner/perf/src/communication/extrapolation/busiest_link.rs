//! Load of the busiest link between NVLink domains under the communication pattern of an algorithm. Scaled-down groups
//! represent the full groups only if they put the same load on it.

use fabricast_topologies::fabric::Link;
use fabricast_topologies::route::{Router, charged_hops};
use fabricast_topologies::{LinkId, NodeId};
use rayon::prelude::*;

use super::scaling_law::ScalingLaw;

/// Largest relative difference between the load of the busiest link with the scaled-down groups and with the full
/// groups. Counter-example: on the way back, rings over an odd number of dragonfly groups put twice the load on a link.
const LOAD_TOLERANCE: f64 = 0.01;

/// Number of partial sums of link loads that are computed in parallel. It is fixed, so that results do not depend on
/// the number of threads.
const PARTIAL_SUMS: usize = 16;

/// Communication pattern of the ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::communication) enum Pattern {
    /// Each rank sends all of its bytes to the next rank.
    Ring,
    /// Each rank sends half of its bytes to the next rank, a quarter to the rank two positions away, an eighth to the
    /// rank four positions away, and so on.
    PowersOfTwo,
}

impl Pattern {
    /// Returns the communication pattern of algorithms with this growth law.
    pub(in crate::communication) fn new(law: ScalingLaw) -> Self {
        match law {
            ScalingLaw::Rank | ScalingLaw::Doubling => Self::Ring,
            ScalingLaw::RankIfConfirmed => Self::PowersOfTwo,
        }
    }

    /// Returns all communicating pairs as sender, receiver and share of the sender's bytes.
    fn pairs(self, group: &[NodeId]) -> impl Iterator<Item = (&NodeId, &NodeId, f64)> {
        let ranks = group.len();
        let distances = match self {
            Self::Ring => 1,
            Self::PowersOfTwo => ranks.checked_ilog2().unwrap_or(0),
        };
        (0..distances).flat_map(move |power| {
            let share = if self == Self::Ring { 1.0 } else { 0.5f64.powi(power as i32 + 1) };
            group.iter().zip(group.iter().cycle().skip(1 << power)).map(move |(from, to)| (from, to, share))
        })
    }

    /// Largest relative difference of the busiest link's load at which a sample represents the full groups. (In larger
    /// groups, PAT sends additional, smaller shares.)
    fn load_tolerance(self) -> f64 {
        match self {
            Self::Ring => LOAD_TOLERANCE,
            Self::PowersOfTwo => 2.0 * LOAD_TOLERANCE,
        }
    }

    /// Returns true if the transfer time of the busiest link in a sample differs from that in the full groups by at
    /// most [`Self::load_tolerance`].
    pub(in crate::communication) fn is_within_tolerance(self, sample_time: f64, full_time: f64) -> bool {
        (sample_time - full_time).abs() <= self.load_tolerance() * full_time
    }
}

/// Returns the transfer time of the busiest link, in seconds, if each rank sends one byte in total to its partners.
/// Only transfers between domains count.
pub(in crate::communication) fn busiest_link_time(
    router: &Router<'_>,
    groups: &[Vec<NodeId>],
    pattern: Pattern,
) -> f64 {
    let fabric = router.fabric();
    // The order of summation does not depend on the number of threads.
    let groups_per_task = groups.len().div_ceil(PARTIAL_SUMS).max(1);
    let partial_loads: Vec<Vec<f64>> = groups
        .par_chunks(groups_per_task)
        .with_max_len(1)
        .map(|groups| load_between_domains(router, groups, pattern))
        .collect();
    let mut loads = vec![0.0; fabric.links().len()];
    for partial in &partial_loads {
        loads.iter_mut().zip(partial).for_each(|(sum, load)| *sum += load);
    }
    let seconds =
        |((_, link), load): ((LinkId, &Link), f64)| link.bandwidth.map_or(0.0, |bandwidth| load / bandwidth.0 as f64);
    fabric.links().zip(loads).map(seconds).fold(0.0, f64::max)
}

/// Returns the load of each link, indexed by [`LinkId`], if each rank of the groups sends one byte in total to its
/// partners. Transfers inside domains do not count.
fn load_between_domains(router: &Router<'_>, groups: &[Vec<NodeId>], pattern: Pattern) -> Vec<f64> {
    let mut loads = vec![0.0; router.fabric().links().len()];
    let (mut hops, mut replaced) = (Vec::new(), Vec::new());
    for (&from, &to, share) in groups.iter().flat_map(|group| pattern.pairs(group)) {
        hops.clear();
        replaced.clear();
        // Unreachable pairs are rejected by the simulation.
        if router.island_of(from) == router.island_of(to)
            || router.route_and_replaced(None, from, to, 0, &mut hops, &mut replaced).is_err()
        {
            continue;
        }
        for hop in charged_hops(&hops, &replaced) {
            if let Some(load) = loads.get_mut(hop.link.0 as usize) {
                *load += share * hop.share.fraction();
            }
        }
    }
    loads
}
