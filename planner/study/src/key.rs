//! Keys of runs: fingerprints of exactly the inputs of a run.
//!
//! Names, prices and weights are not part of a key: a study with changed prices reuses its runs, and two candidates
//! with the same fabric share theirs. The hash is 128-bit FNV-1a (Fowler, Noll, Vo; draft-eastlake-fnv), which does not
//! resist attacks but is the same on every machine and in every build.

use std::fmt::{self, Write};

use fabricast_sim::profile::Profile;
use fabricast_topologies::Fabric;
use fabricast_topologies::route::Routing;

use super::answer::FORMAT;
use fabricast_perf::step::Efficiency;
use fabricast_workload::job::{Job, JobSpans, Placement, Serving, Training};

/// Key of a run: 128-bit fingerprint, displayed as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u128);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for Key {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

/// Incremental FNV-1a hasher of texts.
#[derive(Debug)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// Creates a hasher in its initial state.
    #[must_use]
    pub fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    /// Adds the debug output of a value and a line break to the hash.
    pub fn hash(&mut self, value: &dyn fmt::Debug) {
        // Writing cannot fail, because the target is a number.
        let _ = writeln!(self, "{value:?}");
    }

    /// Adds raw bytes to the hash.
    pub fn hash_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }

    /// Returns the fingerprint of all values hashed so far.
    #[must_use]
    pub fn key(&self) -> Key {
        Key(self.0)
    }
}

impl Default for Fingerprint {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.hash_bytes(text.as_bytes());
        Ok(())
    }
}

/// Returns the fingerprint of a fabric: its name (which is part of error messages), devices, links and ranks, and its
/// cost profile, which may differ between builds.
#[must_use]
pub fn fabric_key(fabric: &Fabric) -> Key {
    let mut fingerprint = Fingerprint::new();
    fingerprint.hash(&(fabric.name(), fabric.gpus(), fabric.host_grid()));
    if fabric.routing() != Routing::default() {
        fingerprint.hash(&fabric.routing());
    }
    // Without a profile there are no runs.
    fingerprint.hash(&Profile::for_fabric(fabric).ok());
    for (_, node) in fabric.nodes() {
        fingerprint.hash(&(&node.id, node.kind, node.host, &node.figures));
    }
    for (_, link) in fabric.links() {
        fingerprint.hash(&(link.from.0, link.to.0, link.kind, link.lanes, link.bandwidth, link.latency.0, link.failed));
    }
    if let Some(drives) = fabric.drives() {
        fingerprint.hash(&drives);
    }
    fingerprint.key()
}

/// Returns the fingerprint of the inputs that a job contributes to its runs. For a trace these are its events; the file
/// name has no effect.
#[must_use]
pub fn job_key(job: &Job) -> Key {
    let mut fingerprint = Fingerprint::new();
    match job {
        Job::Trace(job) => {
            fingerprint.hash(&(job.trace.ranks, job.collectives));
            for event in &job.trace.events {
                fingerprint.hash(&(&event.kind, &event.after, event.start));
            }
        }
        other => fingerprint.hash(&without_labels(other)),
    }
    fingerprint.key()
}

/// Job on a fabric, identified by its fingerprint.
#[derive(Clone, Copy, Debug)]
pub struct ListedJob {
    /// Fingerprint of the job.
    pub key: Key,
    /// Number of GPUs that the job's placement lists; `None` if the job uses all GPUs of the fabric.
    pub listed_count: Option<usize>,
}

/// Returns the fingerprint of a job on a fabric with an efficiency curve.
#[must_use]
pub fn run_key(fabric: Key, job: ListedJob, curve: &Efficiency) -> Key {
    let ListedJob { key: job, listed_count } = job;
    let mut fingerprint = Fingerprint::new();
    if let Some(listed_count) = listed_count {
        fingerprint.hash(&listed_count);
    }
    fingerprint.hash(&(env!("CARGO_PKG_VERSION"), FORMAT, fabric, job));
    fingerprint.hash(curve);
    fingerprint.key()
}

/// Returns a job without the fields that do not affect its run: name, weight, training tokens, checkpoints and source
/// locations.
fn without_labels(job: &Job) -> Job {
    let mut job = job.clone();
    if let (true, Job::Training(Training { placement, .. }) | Job::Inference(Serving { placement, .. })) =
        (job.placement().is_in_order(), &mut job)
    {
        *placement = Placement::Block;
    }
    match &mut job {
        Job::Training(job) => {
            (job.name, job.weight, job.train_tokens, job.spans) = (String::new(), 1.0, None, JobSpans::default());
            job.checkpoint = None;
        }
        Job::Inference(job) => (job.name, job.weight, job.spans) = (String::new(), 1.0, JobSpans::default()),
        Job::Trace(job) => (job.name, job.weight, job.spans) = (String::new(), 1.0, JobSpans::default()),
    }
    job
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::{FabricRequest, load};

    use super::*;
    use crate::read_study;

    #[test]
    fn key_covers_exactly_the_inputs_of_a_run() {
        let study = |job: &str| {
            let text = format!(
                "[[candidate]]\nname = \"c\"\nfabric = \"hgx-h100\"\n[[job]]\n{job}\nparallel = \"auto\"\n\
                 model = {{ layers = 2, hidden = 64, heads = 2, vocab = 64, seq = 8 }}\n"
            );
            read_study(&text, "s").unwrap()
        };
        let fabric =
            |nodes| fabric_key(&load(&FabricRequest { nodes: Some(nodes), ..FabricRequest::new("hgx-h100") }).unwrap());
        let key = |job: &str, fabric| {
            let study = study(job);
            run_key(fabric, ListedJob { key: job_key(&study.jobs[0]), listed_count: None }, &Efficiency::default())
        };
        let (single_node, two_nodes) = (fabric(1), fabric(2));
        let base = key("name = \"a\"\nglobal_batch = 8", single_node);
        assert_eq!(
            base,
            key("# a comment\n name = \"b\"\nglobal_batch = 8\nweight = 3\ntrain_tokens = 1e9", single_node)
        );
        assert_eq!(base, key("name = \"a\"\nglobal_batch = 8\ncheckpoint = { interval_s = 60 }", single_node));
        assert_ne!(base, key("name = \"a\"\nglobal_batch = 16", single_node));
        assert_ne!(base, key("name = \"a\"\nglobal_batch = 8\nzero = 1", single_node));
        assert_ne!(base, key("name = \"a\"\nglobal_batch = 8", two_nodes));
        assert_eq!(base.to_string().parse::<Key>().unwrap(), base);
        // For empty input the hash is the FNV offset basis, as in the draft.
        assert_eq!(Fingerprint::new().key().to_string(), "6c62272e07bb014262b821756295c58d");
    }
}
