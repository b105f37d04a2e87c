//! Time of a large call slightly smaller than one already simulated with all groups. It is derived without another
//! simulation, which would take seconds, where the uncertainty is small.

use fabricast_topologies::{Bytes, NodeId, Picos};

use super::super::together::Planned;
use super::{MOST_TOGETHER, Simulated};
use crate::plan::PlanError;

/// Inverse of the largest relative size difference for which the saving of the busiest link is subtracted from the
/// known time (within 0.4 % for PAT of eight groups of 2,048 GPUs on dragonfly, torus and fat tree).
const LITTLE: u64 = 32;

/// Gap between lower and upper bound, in percent, below which their midpoint is returned.
const BETWEEN: u64 = 2;

impl Simulated<'_> {
    /// Completion time of a call with all groups concurrent. `known` is the time of the same call at size `next`, the
    /// size at which the strategy was selected.
    pub(super) fn near(
        &self,
        parties: &[Vec<NodeId>],
        call: &Planned,
        (next, known): (Bytes, Picos),
    ) -> Result<Picos, PlanError> {
        if call.bytes == next {
            return Ok(known);
        }
        if let Some(told) = self.told_in_part(parties, call) {
            return told;
        }
        let time = || self.part(parties, *call);
        let is_near = (next.0 / 2 + 1..next.0).contains(&call.bytes.0);
        let (Some(first), true) = (parties.first(), is_near && parties.len() > 1 && self.ranks.len() > MOST_TOGETHER)
        else {
            return time();
        };
        let less = next.0 - call.bytes.0;
        if less <= next.0 / LITTLE {
            let of_links = self.least_of_links(parties, Planned { bytes: next, ..*call });
            return Ok(known - Picos((u128::from(of_links.0) * u128::from(less) / u128::from(next.0)) as u64));
        }
        let least = self.taken(std::slice::from_ref(first), call)?.max(self.least_of_links(parties, *call));
        match known.0.saturating_sub(least.0) <= known.0 / 100 * BETWEEN {
            true => Ok(Picos(u64::midpoint(least.0.min(known.0), known.0))),
            false => time(),
        }
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::profile::Profile;
    use fabricast_sim::schedule::{Collective, Protocol};
    use fabricast_topologies::route::{Links, RouteOptions, Router};
    use fabricast_topologies::{FabricRequest, load};

    use super::*;
    use crate::algorithm::Algorithm;
    use crate::job::{Degrees, Dimension, Layout};
    use crate::strategy::Strategy;

    /// Groups on separate rails, and groups that share links of a dragonfly.
    #[test]
    fn nearby_sizes_are_within_one_percent_of_simulation() {
        for network in ["rail", "dragonfly"] {
            let network = Some(format!("{network},nic=400Gb/s").parse().unwrap());
            let fabric = load(&FabricRequest { nodes: Some(520), network, ..FabricRequest::of("hgx-h100") }).unwrap();
            let router = Router::listing(&fabric, RouteOptions::default(), Links::OneOfAlike);
            let profile = Profile::for_fabric(&fabric).unwrap();
            let simulated = Simulated::new(&router, &profile, fabric.gpus());
            let layout = Layout { degrees: Degrees { tensor: 8, data: 520, ..Degrees::default() } };
            let collective = Collective::AllGather;
            let groups = simulated.together(&layout.groups(Dimension::Data), collective);
            let (algorithm, protocol) = (Algorithm::Pat, Protocol::Simple);
            let strategy = Strategy { algorithm, protocol, channels: 8, threads: None, chunk: None };
            let call = |kib: u64| Planned { collective, bytes: Bytes(kib * 1024 * 520), strategy };
            let whole = |kib| simulated.slowest(&groups, (collective, call(kib).bytes), strategy).unwrap();
            let known = whole(64);
            for kib in [64, 63, 62, 50, 40] {
                let told = simulated.near(&groups, &call(kib), (call(64).bytes, known)).unwrap();
                let error = told.0 as f64 / whole(kib).0 as f64 - 1.0;
                assert!(error.abs() < 0.01 && (kib < 64 || error == 0.0), "{}: {kib} {error:+.4}", fabric.name());
            }
        }
    }
}
