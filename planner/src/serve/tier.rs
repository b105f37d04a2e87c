//! Where keys and values are kept, and how fast a GPU reads them there.
//!
//! In its own memory: as all else. In another GPU's or a CPU's: over the way that the fabric has there, with all GPUs of the
//! host at it, so that links and the CPU's memory are shared by those who use them. A GPU's peer is that of the next rank of its
//! host.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Bandwidth, LinkId, NodeId};
use rustc_hash::FxHashMap;

use crate::job::{JobError, KvTier, Serving};
use crate::step::Machine;

/// How fast each GPU reads what is kept elsewhere; `None`: it is kept in its own memory.
///
/// # Errors
/// [`JobError`] where a GPU has no way to such a place.
pub(crate) fn reach(job: &Serving, machine: &Machine<'_>) -> Result<Option<Bandwidth>, JobError> {
    if job.kv_tier == KvTier::Hbm {
        return Ok(None);
    }
    let fabric = machine.router.fabric();
    let refuse = |why: String| JobError::at(&job.places.job, format!("kv_tier \"{}\": {why}", job.kv_tier.name()));
    let mut ways = Vec::new();
    let mut users: FxHashMap<LinkId, f64> = FxHashMap::default();
    let mut keepers: FxHashMap<NodeId, f64> = FxHashMap::default();
    for near in neighbours(job, machine) {
        for (number, &gpu) in near.iter().enumerate() {
            let keeper = match job.kv_tier {
                KvTier::Host => machine.router.nearest_cpu(gpu).map_err(|error| refuse(error.to_string()))?,
                _ => near
                    .get((number + 1) % near.len())
                    .copied()
                    .filter(|&peer| peer != gpu)
                    .ok_or_else(|| refuse(format!("{} has no peer", fabric.node(gpu).id)))?,
            };
            let path = machine.router.path(keeper, gpu).map_err(|error| refuse(error.to_string()))?;
            for hop in &path.hops {
                *users.entry(hop.link).or_default() += hop.share.fraction();
            }
            *keepers.entry(keeper).or_default() += 1.0;
            ways.push((keeper, path));
        }
    }
    let mut slowest: Option<f64> = None;
    for (keeper, path) in &ways {
        let links = path.hops.iter().filter_map(|hop| {
            let all = users.get(&hop.link).copied().unwrap_or(1.0);
            fabric.link(hop.link).bandwidth.map(|link| link.0 as f64 / all)
        });
        let memory = match &fabric.node(*keeper).figures {
            Figures::Cpu(figures) => figures.memory_bandwidth,
            Figures::Gpu(figures) => figures.memory_bandwidth,
            _ => None,
        };
        let shared = keepers.get(keeper).copied().unwrap_or(1.0);
        let own = memory.map(|memory| memory.0 as f64 / shared);
        slowest = links.chain(own).chain(slowest).min_by(f64::total_cmp);
    }
    let nothing = || refuse("the fabric states no bandwidth on the way".to_owned());
    slowest.map(|rate| Some(Bandwidth(rate as u64))).ok_or_else(nothing)
}

/// The GPUs of a host in the order of their ranks: of the first rank's, which stands for all, or of each, where somebody placed ranks.
/// Where a host has one GPU its peer is on another.
fn neighbours(job: &Serving, machine: &Machine<'_>) -> Vec<Vec<NodeId>> {
    let fabric = machine.router.fabric();
    let mut hosts = fabric.by_host(machine.ranks);
    if job.placement.is_in_order() {
        hosts.truncate(1);
    }
    match job.kv_tier != KvTier::Host && hosts.iter().any(|host| host.len() < 2) {
        true => vec![machine.ranks.to_vec()],
        false => hosts,
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::profile::Profile;
    use fabricast_topologies::route::{RouteOptions, Router};
    use fabricast_topologies::{FabricRequest, load};

    use super::*;
    use crate::job::serving_tests::served;
    use crate::step::{Efficiency, Simulated};

    fn rate(fabric: &str, tier: &str) -> Option<Bandwidth> {
        let fabric = load(&FabricRequest::of(fabric)).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::for_fabric(&fabric).unwrap();
        let simulated = Simulated::new(&router, &profile, fabric.gpus());
        let machine =
            Machine { router: &router, ranks: fabric.gpus(), simulated: &simulated, curve: Efficiency::default() };
        reach(&served(&format!("kv_tier = \"{tier}\"\n")), &machine).unwrap()
    }

    #[test]
    fn places_are_as_fast_as_the_way_there() {
        assert_eq!(rate("hgx-h200", "hbm"), None);
        // 900 GB/s of NVLink 4 are 450 each way; every GPU reads from the next.
        assert_eq!(rate("hgx-h200", "peer"), Some(Bandwidth(450_000_000_000)));
        // A Grace has 225 GB/s each way for each of its two GPUs on NVL72, and 500 GB/s of memory for both.
        assert_eq!(rate("gb200-nvl72", "host"), Some(Bandwidth(225_000_000_000)));
        // PCIe 5 x16 and its switches at most.
        let pcie = rate("hgx-h200", "host").unwrap();
        assert!(pcie.0 <= 64_000_000_000 && pcie.0 > 10_000_000_000, "{pcie:?}");
    }
}
