//! Offloaded state: data stored outside of a GPU's own memory, and the bandwidth to that memory.
//!
//! State in another GPU's or a CPU's memory is accessed over the fabric's route, with all GPUs of the host active, so
//! that links and the CPU's memory are shared by their users. Peer memory is that of the GPU of the next rank on the
//! host.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bandwidth, Bytes, Fabric, HostDrives, LinkId, NodeId, SourceLocation};
use rustc_hash::{FxHashMap, FxHashSet};

use super::machine::Machine;
use super::peak_rates::PeakRates;
use crate::communication::HostClasses;
use fabricast_workload::job::{Job, JobError, JobSpans, MemoryLimits, Placement, Precision, Serving, Tier, Training};

/// Data that a job can offload, with its memory tier and access pattern.
struct OffloadedData<'a> {
    tier: Tier,
    access: AccessPattern,
    /// Key of the job file that sets the memory tier.
    key: &'static str,
    placement: &'a Placement,
}

/// Access pattern of the offloaded data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AccessPattern {
    Read,
    /// The data is read and written concurrently.
    Updated,
}

impl<'a> OffloadedData<'a> {
    fn optimizer_state(job: &'a Training) -> Self {
        let (tier, placement) = (job.optimizer_tier, &job.placement);
        Self { tier, access: AccessPattern::Updated, key: "optimizer_tier", placement }
    }

    /// Weights that are gathered for each pass.
    fn weights(job: &'a Training) -> Self {
        let (tier, placement) = (job.weights_tier, &job.placement);
        Self { tier, access: AccessPattern::Read, key: "weights_tier", placement }
    }

    fn kv_cache(job: &'a Serving) -> Self {
        let (tier, placement) = (job.kv_tier, &job.placement);
        Self { tier, access: AccessPattern::Read, key: "kv_tier", placement }
    }
}

/// Checks that the GPUs of a fabric have a route to the data that a job offloads.
///
/// # Errors
/// [`JobError`] at the job's key for the memory tier, or at its placement if the fabric does not have these GPUs.
pub fn check_tier(job: &Job, fabric: &Fabric) -> Result<(), JobError> {
    let spans = job.spans();
    let data = match job {
        Job::Training(job) => {
            vec![(OffloadedData::optimizer_state(job), &spans.tier), (OffloadedData::weights(job), &spans.weights_tier)]
        }
        Job::Inference(job) => vec![(OffloadedData::kv_cache(job), &spans.tier)],
        Job::Trace(_) => return Ok(()),
    };
    for (data, location) in data.iter().filter(|(data, _)| data.tier != Tier::Hbm) {
        let router = Router::new(fabric, RouteOptions::default());
        let ranks = job.rank_devices(fabric)?;
        offload_bandwidth(data, &router, &ranks, &HostClasses::new(fabric), location)?;
        drive_share(data, fabric, &ranks, location)?;
    }
    Ok(())
}

/// Returns the share of a rank in the bandwidths of its host's drives, on the host with the most ranks; `None` if the
/// data is elsewhere.
fn drive_share(
    data: &OffloadedData<'_>,
    fabric: &Fabric,
    ranks: &[NodeId],
    location: &SourceLocation,
) -> Result<Option<HostDrives>, JobError> {
    if data.tier != Tier::Nvme {
        return Ok(None);
    }
    let Some(HostDrives { read, write }) = fabric.drives() else {
        let message = format!(
            "{} \"nvme\": the bandwidth of the drives of `{}` is not stated: expected nvme = {{ read_gb_per_s = …, \
             write_gb_per_s = … }} in its [[candidate]]",
            data.key,
            fabric.name()
        );
        return Err(JobError::at(location, message));
    };
    let most = fabric.group_by_host(ranks).iter().map(Vec::len).max().unwrap_or_default().max(1) as u64;
    Ok(Some(HostDrives { read: Bandwidth(read.0 / most), write: Bandwidth(write.0 / most) }))
}

impl Machine<'_> {
    /// Returns the peak rates of the GPUs that train a job.
    ///
    /// # Errors
    /// [`JobError`] of [`PeakRates::new`], or if a GPU has no route to the data that the job offloads.
    pub fn training_rates(&self, job: &Training) -> Result<PeakRates, JobError> {
        let (states, weights) = (OffloadedData::optimizer_state(job), OffloadedData::weights(job));
        let fabric = self.router.fabric();
        let classes = self.simulated.host_classes();
        let drives = [(&states, &job.spans.tier), (&weights, &job.spans.weights_tier)]
            .map(|(data, location)| drive_share(data, fabric, self.ranks, location));
        let [state_drives, weight_drives] = drives;
        let path = offload_bandwidth(&weights, self.router, self.ranks, classes, &job.spans.weights_tier)?;
        let weight_drives = weight_drives?;
        // Weights on drives pass through the memory of the CPU.
        let weights_bandwidth = path.map(|path| weight_drives.map_or(path, |drives| path.min(drives.read)));
        let rates = self.peak_rates(job.precision, &job.spans, &states)?;
        Ok(PeakRates { weights_bandwidth, drives: state_drives?.or(weight_drives), ..rates })
    }

    /// Returns the peak rates of the GPUs that serve a job.
    ///
    /// # Errors
    /// See [`Machine::training_rates`].
    pub fn serving_rates(&self, job: &Serving) -> Result<PeakRates, JobError> {
        let rates = self.peak_rates(job.precision, &job.spans, &OffloadedData::kv_cache(job))?;
        if job.adapters.is_none() {
            return Ok(rates);
        }
        let host =
            OffloadedData { tier: Tier::Host, access: AccessPattern::Read, key: "adapters", placement: &job.placement };
        let path = offload_bandwidth(&host, self.router, self.ranks, self.simulated.host_classes(), &job.spans.job);
        // Hosts whose CPUs are not part of the fabric have no path.
        Ok(PeakRates { adapter_bandwidth: path.ok().flatten(), ..rates })
    }

    /// Returns the memory available to each rank; `None` if a GPU does not state its memory. CPUs that do not state
    /// their memory are assumed to have enough.
    #[must_use]
    pub fn memories(&self, placement: &Placement) -> Option<MemoryLimits> {
        Some(MemoryLimits { gpu: self.memory()?, host: self.host_memory(placement).unwrap_or(Bytes::MAX) })
    }

    /// Returns the host memory available to each rank: the memory of the CPU next to a GPU divided by the number of
    /// ranks there, smallest over all CPUs. `None` if CPUs do not state their memory or there are none.
    #[must_use]
    pub fn host_memory(&self, placement: &Placement) -> Option<Bytes> {
        let fabric = self.router.fabric();
        let mut ranks_by_cpu: FxHashMap<NodeId, u64> = FxHashMap::default();
        for &gpu in
            gpus_by_host(Tier::Host, placement, fabric, self.ranks, self.simulated.host_classes()).iter().flatten()
        {
            *ranks_by_cpu.entry(self.router.nearest_cpu(gpu).ok()?).or_default() += 1;
        }
        let memory_share = |(&cpu, &ranks): (&NodeId, &u64)| match &fabric.node(cpu).figures {
            Figures::Cpu(figures) => figures.memory.map(|memory| Bytes(memory.0 / ranks)),
            _ => None,
        };
        ranks_by_cpu.iter().map(memory_share).collect::<Option<Vec<Bytes>>>()?.into_iter().min()
    }

    fn peak_rates(
        &self,
        precision: Precision,
        spans: &JobSpans,
        data: &OffloadedData<'_>,
    ) -> Result<PeakRates, JobError> {
        let bandwidth = offload_bandwidth(data, self.router, self.ranks, self.simulated.host_classes(), &spans.tier)?;
        let host_memory_bandwidth =
            data.tier.is_behind_cpu().then(|| self.host_memory_bandwidth(data.placement)).flatten();
        let rates = PeakRates::new(self.router.fabric(), precision, spans)?;
        Ok(PeakRates { offload_bandwidth: bandwidth, host_memory_bandwidth, ..rates })
    }

    /// Returns the share of a rank in the memory bandwidth of the CPU next to its GPU, smallest over all ranks; `None`
    /// if CPUs do not state it or there are none.
    fn host_memory_bandwidth(&self, placement: &Placement) -> Option<Bandwidth> {
        let share = |cpu: &NodeId, ranks: u64| match &self.router.fabric().node(*cpu).figures {
            Figures::Cpu(figures) => figures.memory_bandwidth.map(|rate| Bandwidth(rate.0 / ranks.max(1))),
            _ => None,
        };
        let shares: Option<Vec<Bandwidth>> =
            self.ranks_by_cpu(placement).iter().map(|(cpu, &ranks)| share(cpu, ranks)).collect();
        shares?.into_iter().min()
    }

    /// Returns the number of ranks of each CPU, on hosts that differ in wiring.
    fn ranks_by_cpu(&self, placement: &Placement) -> FxHashMap<NodeId, u64> {
        let fabric = self.router.fabric();
        let mut ranks_by_cpu: FxHashMap<NodeId, u64> = FxHashMap::default();
        let hosts = gpus_by_host(Tier::Host, placement, fabric, self.ranks, self.simulated.host_classes());
        for cpu in hosts.iter().flatten().filter_map(|&gpu| self.router.nearest_cpu(gpu).ok()) {
            *ranks_by_cpu.entry(cpu).or_default() += 1;
        }
        ranks_by_cpu
    }
}

/// Returns the bandwidth at which each GPU reads offloaded data and, if needed, writes it concurrently; `None` if the
/// data is in the GPU's own memory.
fn offload_bandwidth(
    data: &OffloadedData<'_>,
    router: &Router<'_>,
    ranks: &[NodeId],
    host_classes: &HostClasses,
    location: &SourceLocation,
) -> Result<Option<Bandwidth>, JobError> {
    if data.tier == Tier::Hbm {
        return Ok(None);
    }
    let fabric = router.fabric();
    let refuse = |reason: String| JobError::at(location, format!("{} \"{}\": {reason}", data.key, data.tier.name()));
    let mut paths = Vec::new();
    let mut users: FxHashMap<LinkId, f64> = FxHashMap::default();
    let mut memory_users: FxHashMap<NodeId, f64> = FxHashMap::default();
    for host_gpus in gpus_by_host(data.tier, data.placement, fabric, ranks, host_classes) {
        for (index, &gpu) in host_gpus.iter().enumerate() {
            let memory_node = match data.tier {
                Tier::Host | Tier::Nvme => router.nearest_cpu(gpu).map_err(|error| refuse(error.to_string()))?,
                _ => host_gpus
                    .get((index + 1) % host_gpus.len())
                    .copied()
                    .filter(|&peer| peer != gpu)
                    .ok_or_else(|| refuse(format!("{} has no peer", fabric.node(gpu).id)))?,
            };
            let write = (data.access == AccessPattern::Updated).then_some((gpu, memory_node));
            for (from, to) in [(memory_node, gpu)].into_iter().chain(write) {
                let path = router.path(from, to).map_err(|error| refuse(error.to_string()))?;
                for hop in &path.hops {
                    *users.entry(hop.link).or_default() += hop.share.fraction();
                }
                *memory_users.entry(memory_node).or_default() += 1.0;
                paths.push((memory_node, path));
            }
        }
    }
    let mut slowest: Option<f64> = None;
    for (memory_node, path) in &paths {
        let links = path.hops.iter().filter_map(|hop| {
            let link_users = users.get(&hop.link).copied().unwrap_or(1.0);
            fabric.link(hop.link).bandwidth.map(|link| link.0 as f64 / link_users)
        });
        let memory = match &fabric.node(*memory_node).figures {
            Figures::Cpu(figures) => figures.memory_bandwidth,
            Figures::Gpu(figures) => figures.memory_bandwidth,
            _ => None,
        };
        let node_users = memory_users.get(memory_node).copied().unwrap_or(1.0);
        let memory_rate = memory.map(|memory| memory.0 as f64 / node_users);
        slowest = links.chain(memory_rate).chain(slowest).min_by(f64::total_cmp);
    }
    let no_bandwidth = || refuse("the fabric states no bandwidth on the path".to_owned());
    slowest.map(|rate| Some(Bandwidth(rate as u64))).ok_or_else(no_bandwidth)
}

/// Returns the GPUs of each host in rank order: of the first host of each wiring class, or of all hosts if ranks were
/// placed explicitly. For peer memory on hosts with a single GPU, all ranks form one list, since the peer is on another
/// host.
fn gpus_by_host(
    tier: Tier,
    placement: &Placement,
    fabric: &Fabric,
    ranks: &[NodeId],
    host_classes: &HostClasses,
) -> Vec<Vec<NodeId>> {
    let mut hosts = fabric.group_by_host(ranks);
    if placement.is_in_order() {
        let mut seen = FxHashSet::default();
        hosts.retain(|host| host.first().is_some_and(|&gpu| seen.insert(host_classes.class(fabric.node(gpu).host))));
    }
    match !tier.is_behind_cpu() && hosts.iter().any(|host| host.len() < 2) {
        true => vec![ranks.to_vec()],
        false => hosts,
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::{FabricRequest, load};

    use super::super::tests::{read, with_machine};
    use crate::serve::tests::served;
    use fabricast_workload::job::Placement;

    /// Returns the bandwidths, in bytes per second, to an offloaded KV cache and to an offloaded optimizer state;
    /// `None` if the data is in the GPU's own memory.
    fn rates(fabric: &str, tier: &str) -> [Option<u64>; 2] {
        let fabric = load(&FabricRequest::new(fabric)).unwrap();
        let served = served(&format!("kv_tier = \"{tier}\"\n"));
        let trained = read(&format!(
            "name = \"j\"\nglobal_batch = 8\noptimizer_tier = \"{tier}\"\nparallel = {{ tp = 1 }}\n\
             model = {{ layers = 1, hidden = 64, heads = 1, vocab = 64, seq = 64 }}\n"
        ));
        with_machine(&fabric, |machine| [machine.serving_rates(&served), machine.training_rates(&trained)])
            .map(|speeds| speeds.unwrap().offload_bandwidth.map(|rate| rate.0))
    }

    /// The share of a rank is that of one of four GPUs of a socket in 2 TB for both sockets, that of two GPUs or one in
    /// the memory of a Grace CPU, or `None` if the fabric does not state the memory.
    #[test]
    fn ranks_share_cpu_memory_evenly() {
        let memory_gb = |fabric: &str| {
            let fabric = load(&FabricRequest::new(fabric)).unwrap();
            with_machine(&fabric, |machine| machine.host_memory(&Placement::Block))
                .map(|memory| memory.0 / 1_000_000_000)
        };
        assert_eq!(
            ["hgx-h200", "gb200-nvl72", "gh200", "l40s-pcie"].map(memory_gb),
            [Some(256), Some(240), Some(120), None]
        );
    }

    #[test]
    fn offload_bandwidth_matches_the_route() {
        assert_eq!(rates("hgx-h200", "hbm"), [None, None]);
        // NVLink 4 has 900 GB/s, 450 per direction. Each GPU reads from the next one, and concurrently writes there
        // while the previous GPU reads.
        assert_eq!(rates("hgx-h200", "peer"), [Some(450_000_000_000), Some(225_000_000_000)]);
        // On NVL72 a Grace CPU has 225 GB/s per direction for each of its two GPUs, and 500 GB/s of memory bandwidth
        // for both directions of both.
        assert_eq!(rates("gb200-nvl72", "host"), [Some(225_000_000_000), Some(125_000_000_000)]);
        // The bandwidth is limited by PCIe 5 x16 and its switches.
        for pcie in rates("hgx-h200", "host").map(Option::unwrap) {
            assert!(pcie <= 64_000_000_000 && pcie > 10_000_000_000, "{pcie}");
        }
    }
}
