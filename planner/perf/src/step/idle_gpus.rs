//! Selection of the GPUs that a job uses: all GPUs or, if the job leaves its degrees open, the largest number among
//! which it can be divided.
//!
//! Racks have 72 GPUs and jobs use powers of two: 512 sequences and 80 layers do not divide among 72. Users then leave
//! eight GPUs of each rack idle (`placement = "0-63,72-135"`), and `parallel = "auto"` does the same. It uses the
//! largest divisible number of GPUs, the same number in each NVLink domain that it uses, and whole hosts in domains of
//! several hosts. Explicit degrees or placements are used as given.

use std::borrow::Cow;
use std::collections::BTreeMap;

use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeId};
use rustc_hash::FxHashSet;

use super::search::is_divisible;
use fabricast_workload::job::{Job, JobError, Parallel, Placement, Processes, Training};

/// Returns the device of each rank of a job on a fabric, according to its placement ([`Job::rank_devices`]), without
/// idle GPUs.
///
/// # Errors
/// [`JobError`] at `placement` if it names GPUs that the fabric does not have.
pub fn active_ranks<'f>(job: &Job, fabric: &'f Fabric) -> Result<Cow<'f, [NodeId]>, JobError> {
    let all = job.rank_devices(fabric)?;
    let searched = match job {
        Job::Training(job) if job.parallel == Parallel::Auto && job.processes == Processes::PerGpu => job,
        _ => return Ok(all),
    };
    // An explicit placement lists its GPUs.
    if searched.placement != Placement::Block {
        return Ok(all);
    }
    let per_host = fabric.max_devices_per_host(&all);
    let divides = |ranks: &[NodeId]| is_divisible(searched, ranks.len() as u32, per_host);
    if divides(&all) {
        return Ok(all);
    }
    let subsets = GpuSubsets::new(fabric, &all);
    let largest = subsets.largest_first().map(|subset| subsets.devices(subset)).find(|devices| divides(devices));
    Ok(largest.map_or(all, Cow::Owned))
}

/// Returns the next larger global batch, in sequences, that can be divided among these GPUs and is at most an eighth
/// larger; `None` if there is none.
pub fn divisible_batch(job: &Training, fabric: &Fabric, ranks: &[NodeId]) -> Option<u64> {
    let per_host = fabric.max_devices_per_host(ranks);
    let mut larger = job.clone();
    let steps = (job.global_batch / 8 / job.micro_batch).min(MAX_BATCHES);
    (1..=steps).map(|step| job.global_batch + step * job.micro_batch).find(|&batch| {
        larger.global_batch = batch;
        is_divisible(&larger, ranks.len() as u32, per_host)
    })
}

/// Maximum number of batch sizes that [`divisible_batch`] examines.
const MAX_BATCHES: u64 = 1024;

/// Subset of the GPUs of a machine: `each` GPUs in each of `domains` NVLink domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GpuSubset {
    domains: usize,
    each: usize,
}

/// Enumeration of the subsets of a machine's GPUs that a job may use.
struct GpuSubsets<'a> {
    /// All devices that the job may use, in rank order.
    all: &'a [NodeId],
    /// Hosts of each domain with their GPUs, the host with the most GPUs first.
    domains: Vec<Vec<Vec<NodeId>>>,
}

impl<'a> GpuSubsets<'a> {
    fn new(fabric: &Fabric, all: &'a [NodeId]) -> Self {
        let router = Router::new(fabric, RouteOptions::default());
        let hosts_by_size = |domain: &[NodeId]| {
            let mut hosts = fabric.group_by_host(domain);
            hosts.sort_by_key(|host| std::cmp::Reverse(host.len()));
            hosts
        };
        let domains = all.chunk_by(|&a, &b| router.island_of(a) == router.island_of(b));
        Self { all, domains: domains.map(hosts_by_size).collect() }
    }

    /// Returns the possible numbers of GPUs in a domain: any number of GPUs of one host, or several whole hosts with as
    /// many GPUs as the fullest host.
    fn possible_sizes(domain: &[Vec<NodeId>]) -> impl Iterator<Item = usize> {
        let full = domain.first().map_or(0, Vec::len);
        let full_hosts = domain.iter().take_while(move |host| host.len() == full).count();
        (1..full).chain((1..=full_hosts).map(move |hosts| hosts * full))
    }

    /// Returns the subsets, largest first; of subsets of equal size, only the one with the fewest domains.
    fn largest_first(&self) -> impl Iterator<Item = GpuSubset> {
        let mut domain_counts: BTreeMap<usize, usize> = BTreeMap::new();
        for domain in &self.domains {
            Self::possible_sizes(domain).for_each(|each| *domain_counts.entry(each).or_default() += 1);
        }
        let subsets = domain_counts
            .into_iter()
            .flat_map(|(each, max_domains)| (1..=max_domains).map(move |domains| GpuSubset { domains, each }));
        let mut subsets: Vec<GpuSubset> = subsets.collect();
        subsets.sort_by_key(|subset| (std::cmp::Reverse(subset.domains * subset.each), subset.domains));
        subsets.dedup_by_key(|subset| subset.domains * subset.each);
        subsets.into_iter()
    }

    /// Returns the GPUs of a subset, from the first domains that have enough GPUs.
    fn devices(&self, subset: GpuSubset) -> Vec<NodeId> {
        let domains = self.domains.iter().filter(|domain| Self::possible_sizes(domain).any(|each| each == subset.each));
        let selected: FxHashSet<NodeId> = domains
            .take(subset.domains)
            .flat_map(|domain| domain.iter().flatten().take(subset.each))
            .copied()
            .collect();
        self.all.iter().filter(|device| selected.contains(device)).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::{FabricRequest, load};

    use super::*;
    use crate::step::tests::read;

    /// Returns the indices of the GPUs used by a job with 80 layers, `batch` sequences and the additional keys `lines`.
    fn used_gpus(preset: &str, nodes: u32, batch: u32, lines: &str) -> Vec<usize> {
        let fabric = load(&FabricRequest { nodes: Some(nodes), ..FabricRequest::new(preset) }).unwrap();
        let job = read(&format!(
            "name = \"j\"\nglobal_batch = {batch}\n{lines}\n\
             model = {{ layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, vocab = 128256, seq = 8192 }}\n"
        ));
        let ranks = active_ranks(&Job::Training(job), &fabric).unwrap().into_owned();
        ranks.iter().map(|device| fabric.gpus().iter().position(|gpu| gpu == device).unwrap()).collect()
    }

    #[test]
    fn auto_layout_leaves_indivisible_gpus_idle() {
        let auto = "parallel = \"auto\"";
        assert_eq!(used_gpus("gb200-nvl72", 18, 512, auto), (0..64).collect::<Vec<_>>());
        assert_eq!(used_gpus("gb200-nvl72", 36, 512, auto), (0..64).chain(72..136).collect::<Vec<_>>());
        // Nine hundred sequences can be divided among nine hosts.
        assert_eq!(used_gpus("gb200-nvl72", 18, 900, auto).len(), 72);
        assert_eq!(used_gpus("hgx-h100", 4, 512, auto).len(), 32);
        assert_eq!(used_gpus("gb200-nvl72", 18, 512, "parallel = { tp = 8 }").len(), 72);
    }

    /// If one GPU of nine hosts has failed, the job uses the other eight hosts.
    #[test]
    fn hosts_with_a_failed_gpu_are_left_idle() {
        let intact = load(&FabricRequest { nodes: Some(9), ..FabricRequest::new("hgx-h100") }).unwrap();
        let job = Job::Training(read(
            "name = \"j\"\nglobal_batch = 512\nparallel = \"auto\"\n\
             model = { layers = 8, hidden = 1024, heads = 8, vocab = 512, seq = 512 }\n",
        ));
        for failed in ["n0/gpu0", "n8/gpu7"] {
            let fabric = intact.with_failed(failed).unwrap();
            let ranks = active_ranks(&job, &fabric).unwrap();
            assert_eq!(ranks.len(), 64, "{failed}");
            assert!(fabric.group_by_host(&ranks).iter().all(|host| host.len() == 8), "{failed}");
        }
    }

    /// Hosts of six GPUs provide four each if no larger number divides the job. Hosts that lost a GPU provide as many
    /// as the others. Few whole hosts are preferred to parts of many.
    #[test]
    fn all_hosts_provide_equally_many_gpus() {
        let by_host = |preset: &str, (nodes, gpus): (u32, u32), failed: &[&str], batch: u32, layers: u32| {
            let request = FabricRequest { nodes: Some(nodes), gpus: Some(gpus), ..FabricRequest::new(preset) };
            let fabric =
                failed.iter().fold(load(&request).unwrap(), |damaged, name| damaged.with_failed(name).unwrap());
            let job = read(&format!(
                "name = \"j\"\nglobal_batch = {batch}\nparallel = \"auto\"\n\
                 model = {{ layers = {layers}, hidden = 1600, heads = 25, vocab = 50257, seq = 1024 }}\n"
            ));
            let ranks = active_ranks(&Job::Training(job), &fabric).unwrap().into_owned();
            fabric.group_by_host(&ranks).iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(by_host("hgx-h200", (4, 6), &[], 64, 32), [4, 4, 4, 4]);
        assert_eq!(by_host("hgx-h200", (2, 8), &["n0/gpu0", "n1/gpu0"], 64, 32), [4, 4]);
        assert_eq!(by_host("hgx-h200", (8, 8), &[], 24, 13), [8, 8, 8]);
        assert_eq!(by_host("hgx-h200", (1, 7), &[], 64, 32), [4]);
    }
}
