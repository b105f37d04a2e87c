//! Offloaded state: data kept outside of a GPU's own memory, and the bandwidth to it.
//!
//! State in another GPU's or a CPU's memory is accessed over the fabric's route, with all GPUs of the host active, so
//! that links and the CPU's memory are shared by their users. The peer of a GPU is that of the next rank on its host.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bandwidth, Bytes, Fabric, LinkId, NodeId, Place};
use rustc_hash::{FxHashMap, FxHashSet};

use super::forms::HostForms;
use super::{Machine, Speeds};
use crate::job::{Job, JobError, Memories, Placement, Places, Precision, Serving, Tier, Training};

/// Data that a job can offload, and its location.
struct Kept<'a> {
    tier: Tier,
    work: Work,
    /// Key of the job file.
    key: &'static str,
    placement: &'a Placement,
}

/// Access pattern of the offloaded data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Read,
    /// Read and written concurrently.
    Updated,
}

impl<'a> Kept<'a> {
    fn by_training(job: &'a Training) -> Self {
        let (tier, placement) = (job.optimizer_tier, &job.placement);
        Self { tier, work: Work::Updated, key: "optimizer_tier", placement }
    }

    fn by_serving(job: &'a Serving) -> Self {
        let (tier, placement) = (job.kv_tier, &job.placement);
        Self { tier, work: Work::Read, key: "kv_tier", placement }
    }
}

/// Checks that the GPUs of a fabric have a route to the data that a job offloads.
///
/// # Errors
/// [`JobError`] at the job's key for the location, or at its placement if the fabric does not have these GPUs.
pub fn check_tier(job: &Job, fabric: &Fabric) -> Result<(), JobError> {
    let kept = match job {
        Job::Training(job) => Kept::by_training(job),
        Job::Inference(job) => Kept::by_serving(job),
        Job::Trace(_) => return Ok(()),
    };
    if kept.tier == Tier::Hbm {
        return Ok(());
    }
    let router = Router::new(fabric, RouteOptions::default());
    reach(&kept, (&router, &job.ranks_on(fabric)?, &HostForms::of(fabric)), &job.places().tier).map(drop)
}

impl Machine<'_> {
    /// Returns the peak rates of the GPUs that train a job.
    ///
    /// # Errors
    /// [`JobError`]: see [`Speeds::of`]; or a GPU has no route to the data that the job offloads.
    pub fn speeds_to_train(&self, job: &Training) -> Result<Speeds, JobError> {
        self.speeds(job.precision, &job.places, &Kept::by_training(job))
    }

    /// Returns the peak rates of the GPUs that serve a job.
    ///
    /// # Errors
    /// See [`Machine::speeds_to_train`].
    pub fn speeds_to_serve(&self, job: &Serving) -> Result<Speeds, JobError> {
        self.speeds(job.precision, &job.places, &Kept::by_serving(job))
    }

    /// Memory available to each rank; `None` if a GPU does not state its memory. CPUs that do not state it are assumed
    /// to have enough.
    #[must_use]
    pub fn memories(&self, placement: &Placement) -> Option<Memories> {
        Some(Memories { own: self.memory()?, host: self.host_memory(placement).unwrap_or(Bytes::MAX) })
    }

    /// Smallest share of a rank in the memory of the CPU next to its GPU, divided among all ranks there; `None` if CPUs
    /// do not state their memory or there are none.
    #[must_use]
    pub fn host_memory(&self, placement: &Placement) -> Option<Bytes> {
        let fabric = self.router.fabric();
        let mut sharing: FxHashMap<NodeId, u64> = FxHashMap::default();
        for &gpu in
            neighbours((Tier::Host, placement), (fabric, self.ranks), self.simulated.host_forms()).iter().flatten()
        {
            *sharing.entry(self.router.nearest_cpu(gpu).ok()?).or_default() += 1;
        }
        let part = |(&cpu, &ranks): (&NodeId, &u64)| match &fabric.node(cpu).figures {
            Figures::Cpu(figures) => figures.memory.map(|memory| Bytes(memory.0 / ranks)),
            _ => None,
        };
        sharing.iter().map(part).collect::<Option<Vec<Bytes>>>()?.into_iter().min()
    }

    fn speeds(&self, precision: Precision, places: &Places, kept: &Kept<'_>) -> Result<Speeds, JobError> {
        let elsewhere = reach(kept, (self.router, self.ranks, self.simulated.host_forms()), &places.tier)?;
        Ok(Speeds { elsewhere, ..Speeds::of(self.router.fabric(), precision, places)? })
    }
}

/// Bandwidth at which each GPU reads, and concurrently writes if needed, offloaded data; `None` if the data is in its
/// own memory.
fn reach(
    kept: &Kept<'_>,
    (router, ranks, forms): (&Router<'_>, &[NodeId], &HostForms),
    place: &Place,
) -> Result<Option<Bandwidth>, JobError> {
    if kept.tier == Tier::Hbm {
        return Ok(None);
    }
    let fabric = router.fabric();
    let refuse = |why: String| JobError::at(place, format!("{} \"{}\": {why}", kept.key, kept.tier.name()));
    let mut ways = Vec::new();
    let mut users: FxHashMap<LinkId, f64> = FxHashMap::default();
    let mut keepers: FxHashMap<NodeId, f64> = FxHashMap::default();
    for near in neighbours((kept.tier, kept.placement), (fabric, ranks), forms) {
        for (number, &gpu) in near.iter().enumerate() {
            let keeper = match kept.tier {
                Tier::Host => router.nearest_cpu(gpu).map_err(|error| refuse(error.to_string()))?,
                _ => near
                    .get((number + 1) % near.len())
                    .copied()
                    .filter(|&peer| peer != gpu)
                    .ok_or_else(|| refuse(format!("{} has no peer", fabric.node(gpu).id)))?,
            };
            let back = (kept.work == Work::Updated).then_some((gpu, keeper));
            for (from, to) in [(keeper, gpu)].into_iter().chain(back) {
                let path = router.path(from, to).map_err(|error| refuse(error.to_string()))?;
                for hop in &path.hops {
                    *users.entry(hop.link).or_default() += hop.share.fraction();
                }
                *keepers.entry(keeper).or_default() += 1.0;
                ways.push((keeper, path));
            }
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

/// GPUs of each host in rank order: of the first host of each wiring class, or of all hosts if ranks were placed
/// explicitly. For peer memory, if a host has a single GPU, all ranks form one list, since its peer is on another host.
fn neighbours(
    (tier, placement): (Tier, &Placement),
    (fabric, ranks): (&Fabric, &[NodeId]),
    forms: &HostForms,
) -> Vec<Vec<NodeId>> {
    let mut hosts = fabric.by_host(ranks);
    if placement.is_in_order() {
        let mut seen = FxHashSet::default();
        hosts.retain(|host| host.first().is_some_and(|&gpu| seen.insert(forms.form(fabric.node(gpu).host))));
    }
    match tier != Tier::Host && hosts.iter().any(|host| host.len() < 2) {
        true => vec![ranks.to_vec()],
        false => hosts,
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::{FabricRequest, load};

    use super::super::tests::{on, read};
    use crate::job::Placement;
    use crate::job::serving_tests::served;

    /// Bandwidths for offloaded keys and values, and for an offloaded optimizer state.
    fn rates(fabric: &str, tier: &str) -> [Option<u64>; 2] {
        let fabric = load(&FabricRequest::of(fabric)).unwrap();
        let served = served(&format!("kv_tier = \"{tier}\"\n"));
        let trained = read(&format!(
            "name = \"j\"\nglobal_batch = 8\noptimizer_tier = \"{tier}\"\nparallel = {{ tp = 1 }}\n\
             model = {{ layers = 1, hidden = 64, heads = 1, vocab = 64, seq = 64 }}\n"
        ));
        on(&fabric, |machine| [machine.speeds_to_serve(&served), machine.speeds_to_train(&trained)])
            .map(|speeds| speeds.unwrap().elsewhere.map(|rate| rate.0))
    }

    /// Half of 2 TB for the four GPUs of a socket, a Grace for two GPUs or for one, and nothing if it is not stated.
    #[test]
    fn ranks_share_cpu_memory_evenly() {
        let of = |fabric: &str| {
            let fabric = load(&FabricRequest::of(fabric)).unwrap();
            on(&fabric, |machine| machine.host_memory(&Placement::Block)).map(|memory| memory.0 / 1_000_000_000)
        };
        assert_eq!(["hgx-h200", "gb200-nvl72", "gh200", "l40s-pcie"].map(of), [Some(256), Some(240), Some(120), None]);
    }

    #[test]
    fn offload_bandwidth_matches_the_route() {
        assert_eq!(rates("hgx-h200", "hbm"), [None, None]);
        // 900 GB/s of NVLink 4 are 450 per direction; each GPU reads from the next, and writes there concurrently with
        // the previous one's reads.
        assert_eq!(rates("hgx-h200", "peer"), [Some(450_000_000_000), Some(225_000_000_000)]);
        // On NVL72 a Grace has 225 GB/s per direction for each of its two GPUs, and 500 GB/s of memory for both
        // directions of both.
        assert_eq!(rates("gb200-nvl72", "host"), [Some(225_000_000_000), Some(125_000_000_000)]);
        // Bounded by PCIe 5 x16 and its switches.
        for pcie in rates("hgx-h200", "host").map(Option::unwrap) {
            assert!(pcie <= 64_000_000_000 && pcie > 10_000_000_000, "{pcie}");
        }
    }
}
