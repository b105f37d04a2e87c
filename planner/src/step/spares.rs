//! Selection of the GPUs that a job uses: all of them, or as many as a job with open degrees can be divided among.
//!
//! Racks have 72 GPUs and jobs use powers of two: 512 sequences and 80 layers do not divide among 72. Users leave eight
//! GPUs of each rack idle then (`placement = "0-63,72-135"`), and `parallel = "auto"` does the same. It uses the
//! largest divisible number of GPUs, the same number in each NVLink domain that it uses, and whole hosts in domains of
//! several hosts. Explicit degrees or placements are used as given.

use std::borrow::Cow;
use std::collections::BTreeMap;

use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeId};
use rustc_hash::FxHashSet;

use super::search::divides;
use crate::job::{Job, JobError, Parallel, Placement, Processes, Training};

/// Returns the device of each rank of a job on a fabric, according to its placement ([`Job::ranks_on`]), without idle
/// GPUs.
///
/// # Errors
/// [`JobError`] at `placement` if it names GPUs that the fabric does not have.
pub fn ranks_at_work<'f>(job: &Job, fabric: &'f Fabric) -> Result<Cow<'f, [NodeId]>, JobError> {
    let all = job.ranks_on(fabric)?;
    let searched = match job {
        Job::Training(job) if job.parallel == Parallel::Auto && job.processes == Processes::PerGpu => job,
        _ => return Ok(all),
    };
    // (An explicit placement lists its GPUs.)
    if searched.placement != Placement::Block {
        return Ok(all);
    }
    let per_host = fabric.most_on_a_host(&all);
    let divides = |ranks: &[NodeId]| divides(searched, ranks.len() as u32, per_host);
    if divides(&all) {
        return Ok(all);
    }
    let shares = Shares::of(fabric, &all);
    let most = shares.largest_first().map(|share| shares.devices(share)).find(|some| divides(some));
    Ok(most.map_or(all, Cow::Owned))
}

/// Returns the next larger batch that divides among these GPUs, up to an eighth more; `None` if there is none.
pub(crate) fn batch_for(job: &Training, fabric: &Fabric, ranks: &[NodeId]) -> Option<u64> {
    let per_host = fabric.most_on_a_host(ranks);
    let mut larger = job.clone();
    let steps = (job.global_batch / 8 / job.micro_batch).min(MOST_BATCHES);
    (1..=steps).map(|step| job.global_batch + step * job.micro_batch).find(|&batch| {
        larger.global_batch = batch;
        divides(&larger, ranks.len() as u32, per_host)
    })
}

/// Largest number of batch sizes that are examined.
const MOST_BATCHES: u64 = 1024;

/// Subset of the GPUs of a machine: `each` GPUs in each of `domains` NVLink domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    domains: usize,
    each: usize,
}

/// Subsets of the GPUs of a machine.
struct Shares<'a> {
    /// All devices, in rank order.
    all: &'a [NodeId],
    /// Hosts of each domain with their GPUs, the fullest host first.
    domains: Vec<Vec<Vec<NodeId>>>,
}

impl<'a> Shares<'a> {
    fn of(fabric: &Fabric, all: &'a [NodeId]) -> Self {
        let router = Router::new(fabric, RouteOptions::default());
        let of_domain = |domain: &[NodeId]| {
            let mut hosts = fabric.by_host(domain);
            hosts.sort_by_key(|host| std::cmp::Reverse(host.len()));
            hosts
        };
        let domains = all.chunk_by(|&a, &b| router.island_of(a) == router.island_of(b));
        Self { all, domains: domains.map(of_domain).collect() }
    }

    /// Possible numbers of GPUs in a domain: any number within one host; whole hosts, as full as the fullest, with
    /// several.
    fn numbers(domain: &[Vec<NodeId>]) -> impl Iterator<Item = usize> {
        let full = domain.first().map_or(0, Vec::len);
        let whole = domain.iter().take_while(move |host| host.len() == full).count();
        (1..full).chain((1..=whole).map(move |hosts| hosts * full))
    }

    /// Returns the subsets, largest first; of equal size only the one with fewest domains.
    fn largest_first(&self) -> impl Iterator<Item = Share> {
        let mut having: BTreeMap<usize, usize> = BTreeMap::new();
        for domain in &self.domains {
            Self::numbers(domain).for_each(|each| *having.entry(each).or_default() += 1);
        }
        let shares = having.into_iter().flat_map(|(each, most)| (1..=most).map(move |domains| Share { domains, each }));
        let mut shares: Vec<Share> = shares.collect();
        shares.sort_by_key(|share| (std::cmp::Reverse(share.domains * share.each), share.domains));
        shares.dedup_by_key(|share| share.domains * share.each);
        shares.into_iter()
    }

    /// Returns the GPUs of a subset, from the first domains that have enough.
    fn devices(&self, share: Share) -> Vec<NodeId> {
        let have = self.domains.iter().filter(|domain| Self::numbers(domain).any(|each| each == share.each));
        let taken: FxHashSet<NodeId> =
            have.take(share.domains).flat_map(|domain| domain.iter().flatten().take(share.each)).copied().collect();
        self.all.iter().filter(|device| taken.contains(device)).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::{FabricRequest, load};

    use super::*;
    use crate::step::tests::read;

    /// Indices of the GPUs used by a job with 80 layers, `batch` sequences and extra lines.
    fn at_work(preset: &str, nodes: u32, batch: u32, lines: &str) -> Vec<usize> {
        let fabric = load(&FabricRequest { nodes: Some(nodes), ..FabricRequest::of(preset) }).unwrap();
        let job = read(&format!(
            "name = \"j\"\nglobal_batch = {batch}\n{lines}\n\
             model = {{ layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, vocab = 128256, seq = 8192 }}\n"
        ));
        let found = ranks_at_work(&Job::Training(job), &fabric).unwrap().into_owned();
        found.iter().map(|device| fabric.gpus().iter().position(|gpu| gpu == device).unwrap()).collect()
    }

    #[test]
    fn auto_layout_leaves_indivisible_gpus_idle() {
        let auto = "parallel = \"auto\"";
        assert_eq!(at_work("gb200-nvl72", 18, 512, auto), (0..64).collect::<Vec<_>>());
        assert_eq!(at_work("gb200-nvl72", 36, 512, auto), (0..64).chain(72..136).collect::<Vec<_>>());
        // Nine hundred sequences divide among nine hosts.
        assert_eq!(at_work("gb200-nvl72", 18, 900, auto).len(), 72);
        assert_eq!(at_work("hgx-h100", 4, 512, auto).len(), 32);
        assert_eq!(at_work("gb200-nvl72", 18, 512, "parallel = { tp = 8 }").len(), 72);
    }

    /// If one GPU of nine hosts has failed, the job uses the other eight hosts.
    #[test]
    fn hosts_with_a_failed_gpu_are_left_idle() {
        let given = load(&FabricRequest { nodes: Some(9), ..FabricRequest::of("hgx-h100") }).unwrap();
        let job = Job::Training(read(
            "name = \"j\"\nglobal_batch = 512\nparallel = \"auto\"\n\
             model = { layers = 8, hidden = 1024, heads = 8, vocab = 512, seq = 512 }\n",
        ));
        for failed in ["n0/gpu0", "n8/gpu7"] {
            let fabric = given.without(failed).unwrap();
            let found = ranks_at_work(&job, &fabric).unwrap();
            assert_eq!(found.len(), 64, "{failed}");
            assert!(fabric.by_host(&found).iter().all(|host| host.len() == 8), "{failed}");
        }
    }

    /// Hosts of six GPUs provide four each if nothing larger divides; hosts that lost a GPU provide as many as the
    /// others; few whole hosts are preferred to parts of many.
    #[test]
    fn all_hosts_provide_equally_many_gpus() {
        let by_host = |preset: &str, (nodes, gpus): (u32, u32), failed: &[&str], batch: u32, layers: u32| {
            let request = FabricRequest { nodes: Some(nodes), gpus: Some(gpus), ..FabricRequest::of(preset) };
            let fabric = failed.iter().fold(load(&request).unwrap(), |left, name| left.without(name).unwrap());
            let job = read(&format!(
                "name = \"j\"\nglobal_batch = {batch}\nparallel = \"auto\"\n\
                 model = {{ layers = {layers}, hidden = 1600, heads = 25, vocab = 50257, seq = 1024 }}\n"
            ));
            let found = ranks_at_work(&Job::Training(job), &fabric).unwrap().into_owned();
            fabric.by_host(&found).iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(by_host("hgx-h200", (4, 6), &[], 64, 32), [4, 4, 4, 4]);
        assert_eq!(by_host("hgx-h200", (2, 8), &["n0/gpu0", "n1/gpu0"], 64, 32), [4, 4]);
        assert_eq!(by_host("hgx-h200", (8, 8), &[], 24, 13), [8, 8, 8]);
        assert_eq!(by_host("hgx-h200", (1, 7), &[], 64, 32), [4]);
    }
}
