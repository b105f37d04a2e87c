//! Time of a large call slightly smaller than one already simulated with all groups. It is derived without another
//! simulation, which would take seconds, where the uncertainty is small.

use fabricast_topologies::{Bytes, NodeId, Picos};

use super::super::concurrent_calls::CallWithStrategy;
use super::{MAX_CONCURRENT_RANKS, SimulatedCosts};
use fabricast_search::plan::PlanError;

/// Inverse of the largest relative size difference for which the saving of the busiest link is subtracted from the
/// known time (within 0.4 % for PAT of eight groups of 2,048 GPUs on dragonfly, torus and fat tree).
const SMALL_DIFFERENCE_DIVISOR: u64 = 32;

/// Gap between lower and upper bound, in percent, below which their midpoint is returned.
const MIDPOINT_GAP_PERCENT: u64 = 2;

impl SimulatedCosts<'_> {
    /// Completion time of a call with all groups concurrent. `known` is the time of the same call at size `next`, the
    /// size at which the strategy was selected.
    pub(super) fn interpolate_time(
        &self,
        groups: &[Vec<NodeId>],
        call: &CallWithStrategy,
        next: Bytes,
        known: Picos,
    ) -> Result<Picos, PlanError> {
        if call.bytes == next {
            return Ok(known);
        }
        if let Some(estimate) = self.sampled_or_extrapolated_time(groups, call) {
            return estimate;
        }
        let simulate = || self.part_time(groups, *call);
        let is_near = (next.0 / 2 + 1..next.0).contains(&call.bytes.0);
        let (Some(first), true) =
            (groups.first(), is_near && groups.len() > 1 && self.ranks.len() > MAX_CONCURRENT_RANKS)
        else {
            return simulate();
        };
        let difference = next.0 - call.bytes.0;
        if difference <= next.0 / SMALL_DIFFERENCE_DIVISOR {
            let link_time = self.busiest_link_bound(groups, CallWithStrategy { bytes: next, ..*call });
            return Ok(known - Picos((u128::from(link_time.0) * u128::from(difference) / u128::from(next.0)) as u64));
        }
        let lower_bound =
            self.call_time(std::slice::from_ref(first), call)?.max(self.busiest_link_bound(groups, *call));
        match known.0.saturating_sub(lower_bound.0) <= known.0 / 100 * MIDPOINT_GAP_PERCENT {
            true => Ok(Picos(u64::midpoint(lower_bound.0.min(known.0), known.0))),
            false => simulate(),
        }
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::profile::Profile;
    use fabricast_sim::schedule::{Collective, Protocol};
    use fabricast_topologies::route::{LinkListing, RouteOptions, Router};
    use fabricast_topologies::{FabricRequest, load};

    use super::*;
    use fabricast_collectives::algorithm::Algorithm;
    use fabricast_collectives::strategy::Strategy;
    use fabricast_workload::job::{Degrees, Dimension, Layout};

    /// Groups on separate rails, and groups that share links of a dragonfly.
    #[test]
    fn nearby_sizes_are_within_one_percent_of_simulation() {
        for network in ["rail", "dragonfly"] {
            let network = Some(format!("{network},nic=400Gb/s").parse().unwrap());
            let fabric = load(&FabricRequest { nodes: Some(520), network, ..FabricRequest::new("hgx-h100") }).unwrap();
            let router = Router::with_link_listing(&fabric, RouteOptions::default(), LinkListing::Representatives);
            let profile = Profile::for_fabric(&fabric).unwrap();
            let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
            let layout = Layout { degrees: Degrees { tensor: 8, data: 520, ..Degrees::default() } };
            let collective = Collective::AllGather;
            let groups = simulated.concurrent_groups(&layout.groups(Dimension::Data), collective);
            let (algorithm, protocol) = (Algorithm::Pat, Protocol::Simple);
            let strategy = Strategy { algorithm, protocol, channels: 8, threads: None, chunk: None };
            let call = |kib: u64| CallWithStrategy { collective, bytes: Bytes(kib * 1024 * 520), strategy };
            let simulate = |kib| simulated.slowest(&groups, collective, call(kib).bytes, strategy).unwrap();
            let known = simulate(64);
            for kib in [64, 63, 62, 50, 40] {
                let interpolated = simulated.interpolate_time(&groups, &call(kib), call(64).bytes, known).unwrap();
                let error = interpolated.0 as f64 / simulate(kib).0 as f64 - 1.0;
                assert!(error.abs() < 0.01 && (kib < 64 || error == 0.0), "{}: {kib} {error:+.4}", fabric.name());
            }
        }
    }
}
