//! Assumptions behind the figures of a job on a machine: properties that the fabric does not state, or requests that it
//! cannot satisfy.

use crate::job::{Attention, Collectives, Job, Recompute, Tier};
use crate::step::{Machine, batch_for};

/// Returns the assumptions of a run, each a sentence without its period. They name no candidates or jobs, because runs
/// are cached and reused for others.
pub(super) fn taken_for_granted(job: &Job, machine: &Machine<'_>) -> Vec<String> {
    let of_machine = [other_library(job, machine), unknown_memory(job, machine), spares(job, machine)];
    of_machine.into_iter().chain([nothing_selected(job)]).flatten().collect()
}

/// Notes that selective recomputation has no effect with flash attention, which never stores the scores.
fn nothing_selected(job: &Job) -> Option<String> {
    let Job::Training(job) = job else { return None };
    let has_none = job.recompute == Recompute::Selective && job.attention != Attention::Unfused;
    has_none.then(|| "recompute = \"selective\" changes nothing: flash_attention does as much by itself".to_owned())
}

/// Notes that the layout search left GPUs idle.
fn spares(job: &Job, machine: &Machine<'_>) -> Option<String> {
    // (A trace uses the first GPUs.)
    let Job::Training(training) = job else { return None };
    let (fabric, at_work) = (machine.router.fabric(), machine.ranks.len());
    let all = job.ranks_on(fabric).ok().filter(|all| at_work < all.len())?;
    let batch = batch_for(training, fabric, &all);
    let would = batch.map_or_else(String::new, |batch| format!(" (all would be at work with global_batch = {batch})"));
    let (spares, all) = (all.len() - at_work, all.len());
    Some(format!("{spares} of {all} GPUs are spares: nothing divides the job among more, and all are paid for{would}"))
}

/// Notes that data is offloaded to CPU memory of unknown size.
fn unknown_memory(job: &Job, machine: &Machine<'_>) -> Option<String> {
    let (tier, key, placement) = match job {
        Job::Training(job) => (job.optimizer_tier, "optimizer_tier", &job.placement),
        Job::Inference(job) => (job.kv_tier, "kv_tier", &job.placement),
        Job::Trace(_) => return None,
    };
    let is_unknown = tier == Tier::Host && machine.host_memory(placement).is_none();
    is_unknown.then(|| format!("how much memory CPUs have is not stated: what {key} keeps there is taken to fit"))
}

/// Notes that the requested library does not support the GPUs.
fn other_library(job: &Job, machine: &Machine<'_>) -> Option<String> {
    let library = machine.simulated.library_not_for_these().filter(|_| job.collectives() == Collectives::Library)?;
    Some(format!(
        "{library} does not run on these GPUs, and what their own library would do is not known: calls take the fastest way that there is"
    ))
}
