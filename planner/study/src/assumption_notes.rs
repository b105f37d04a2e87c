//! Assumptions behind the figures of a job on a machine: properties that the fabric does not state, and requests that
//! it cannot satisfy.

use fabricast_perf::communication::unsupported_dispatcher;
use fabricast_perf::serve::Service;
use fabricast_perf::step::{Efficiency, GemmEvidence, Machine, divisible_batch};
use fabricast_workload::job::{Attention, CollectiveCandidates, Job, Layout, LoadedServing, Recompute, Serving, Tier};

/// Returns the assumptions of a run. Each is a sentence without the final period. They name no candidates or jobs,
/// because runs are cached and used for other ones.
pub(super) fn assumption_notes(job: &Job, machine: &Machine<'_>) -> Vec<String> {
    let machine_notes = [other_library(job, machine), unknown_memory(job, machine), idle_gpus(job, machine)];
    let others = [ineffective_recompute(job), unstated_software(job), derived_curve(machine)];
    machine_notes.into_iter().chain(others).flatten().collect()
}

/// Returns a note that selective recomputation has no effect with flash attention, which never stores the attention
/// scores.
fn ineffective_recompute(job: &Job) -> Option<String> {
    let Job::Training(job) = job else { return None };
    let is_ineffective = job.recompute == Recompute::Selective && job.attention != Attention::Unfused;
    is_ineffective
        .then(|| "recompute = \"selective\" has no effect: flash_attention already recomputes attention".to_owned())
}

/// Returns a note that some requests of a fixed concurrency wait, because their keys and values do not fit in memory
/// or their adapters are not resident.
pub(super) fn waiting_requests(job: &Serving, service: &Service) -> Option<String> {
    if service.disaggregation.is_some() {
        return None;
    }
    let has_room = service.memory_check.as_ref().is_none_or(|check| check.missing.is_none());
    let running = Some(service.concurrent_requests).filter(|_| has_room)?;
    let waiting = LoadedServing { job, concurrent_requests: running }.waiting_requests();
    let limits = match &job.adapters {
        Some(served) if served.resident < served.number => {
            format!("the memory, max_num_seqs or {} resident adapters of {} admit", served.resident, served.number)
        }
        _ => "the memory or max_num_seqs admits".to_owned(),
    };
    (waiting > 0).then(|| {
        format!(
            "{running} of {} concurrent requests run: {limits} no more, and TTFT includes the wait of the others",
            running + waiting
        )
    })
}

/// Returns a note that the kernels of the software's dispatcher do not run on the GPUs of a layout.
pub(super) fn replaced_dispatcher(job: &Job, machine: &Machine<'_>, layout: &Layout) -> Option<String> {
    let reason = unsupported_dispatcher(job, machine, layout)?;
    Some(format!("{reason}: an all_to_all exchanges the tokens of experts instead"))
}

/// Returns a note that the job does not state its software.
fn unstated_software(job: &Job) -> Option<String> {
    let Job::Training(job) = job else { return None };
    job.fusion.is_none().then(|| {
        "neither the job nor its framework states `kernels`: the step time is the middle of fused and eager ones, and the memory that of fused ones"
            .to_owned()
    })
}

/// Returns a note that the GEMM throughput of the GPUs was not measured.
fn derived_curve(machine: &Machine<'_>) -> Option<String> {
    let basis = match Efficiency::evidence(machine.router.fabric()) {
        GemmEvidence::Steps | GemmEvidence::Measured => return None,
        GemmEvidence::PowerLimit => "derived from another board of the generation by the power limit",
        GemmEvidence::Assumed => "assumed to be the usual share of the peak",
    };
    Some(format!("the GEMM throughput of these GPUs was not measured: it is {basis}"))
}

/// Returns a note that the layout search left GPUs idle.
fn idle_gpus(job: &Job, machine: &Machine<'_>) -> Option<String> {
    // A trace always uses the first GPUs.
    let Job::Training(training) = job else { return None };
    let (fabric, active) = (machine.router.fabric(), machine.ranks.len());
    let gpus = job.rank_devices(fabric).ok().filter(|gpus| active < gpus.len())?;
    let batch = divisible_batch(training, fabric, &gpus);
    let suggestion = batch.map_or_else(String::new, |batch| format!(" (global_batch = {batch} would use all)"));
    let (idle, gpus) = (gpus.len() - active, gpus.len());
    Some(format!("{idle} of {gpus} GPUs are idle: no layout of the job uses more, and all are paid for{suggestion}"))
}

/// Returns a note that data is offloaded to CPU memory of unknown size.
fn unknown_memory(job: &Job, machine: &Machine<'_>) -> Option<String> {
    let (tier, key, placement) = match job {
        Job::Training(job) => (job.optimizer_tier, "optimizer_tier", &job.placement),
        Job::Inference(job) => (job.kv_tier, "kv_tier", &job.placement),
        Job::Trace(_) => return None,
    };
    let is_unknown = tier == Tier::Host && machine.host_memory(placement).is_none();
    is_unknown.then(|| format!("the memory of the CPUs is not stated: data that {key} stores there is assumed to fit"))
}

/// Returns a note that the requested library does not support the GPUs.
fn other_library(job: &Job, machine: &Machine<'_>) -> Option<String> {
    let library =
        machine.simulated.unsupported_library().filter(|_| job.collectives() == CollectiveCandidates::Library)?;
    Some(format!(
        "{library} does not run on these GPUs, and the choices of their own library cannot be predicted: calls use the fastest strategy"
    ))
}
