//! What a call of very many takes that is smaller than one that was timed with all groups, where that leaves little doubt: each such
//! simulation takes seconds.

use fabricast_topologies::{Bytes, NodeId, Picos};

use super::super::together::Planned;
use super::{MOST_TOGETHER, Simulated};
use crate::plan::PlanError;

/// Up to this part less is told by what the busiest link is spared. (Of a dragonfly, a torus and a fat tree of 16,384 GPUs, of which
/// eight groups of 2,048 do PAT: 125 MiB told from 128 within 0.4 %.)
const LITTLE: u64 = 32;

/// What is known to lie between two times that are so near each other, in percent, is in the middle.
const BETWEEN: u64 = 2;

impl Simulated<'_> {
    /// What a call takes with all groups; `known` is the next larger size, and what a call of it takes that is done the same way.
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

    /// Groups that the network keeps apart, and groups that meet there: within what is told of it.
    #[test]
    fn what_is_little_smaller_is_told() {
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
