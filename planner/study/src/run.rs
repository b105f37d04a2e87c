//! Execution of runs in parallel: each job on the fabric of its candidate.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fabricast_sim::profile::{Profile, ProfileError};
use fabricast_topologies::route::{LinkListing, RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeId};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::assumption_notes::{assumption_notes, replaced_dispatcher, waiting_requests};
use super::cases::{Cases, RunSpec};
use super::job_class::JobClass;
use super::key::Key;
use super::predict::{
    InferenceRun, StepCommunication, TraceRun, TrainingRun, inference_prediction, predicted_call, predicted_exchange,
    trace_prediction, training_prediction,
};
use super::prediction::{MissingMemory, Prediction, StepTimeline, StepVariant};
use super::setting::{Load, SettingEffect};
use super::step_interval::{StepInterval, prediction_error, training_interval};
use super::{Candidate, MachineSize, Study, UnitCount, link_utilization};
use fabricast_perf::communication::{CommunicationCostModel, SimulatedCosts, StepCall, StepExchange};
use fabricast_perf::serve::{
    self, DisaggregatedService, ServiceRun, best_service, check_pools, service_without_memory_limit, step_timelines,
};
use fabricast_perf::step::{
    Machine, PeakRates, Step, TimeError, active_ranks, best_step, best_step_timeline, check_tier, step_calls,
    step_exchanges, unbounded_step,
};
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Job, JobError, Layout, LoadedServing, MemoryLimits, Training};

/// Finished run: a job on a candidate under a setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Key of the run, by which its outcome is stored.
    pub key: Key,
    /// Display name of the run.
    pub title: String,
    /// Result of the run.
    pub outcome: Outcome,
}

/// Result of a run: the prediction of its job, or the reason why the job cannot run.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Prediction of the job.
    Done(Box<Prediction>),
    /// Reason why the job cannot run on the candidate.
    Refused(String),
}

/// Reason why a study cannot run or has no results.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StudyError {
    /// The study is invalid, or none of its runs succeeded.
    #[error("{0}")]
    Study(Box<JobError>),
    /// A job cannot run on a candidate.
    #[error("{error} (candidate `{candidate}`)")]
    Job {
        /// Name of the candidate.
        candidate: String,
        /// Error of the job.
        error: Box<JobError>,
    },
    /// A call has no strategy or cannot be simulated.
    #[error("{job} on {candidate}: {error}")]
    Plan {
        /// Name of the candidate.
        candidate: String,
        /// Name of the job.
        job: String,
        /// Error of the call.
        error: Box<PlanError>,
    },
    /// There is no cost profile for a candidate's GPUs.
    #[error("{candidate}: {error}")]
    Profile {
        /// Name of the candidate.
        candidate: String,
        /// Error of the profile.
        error: Box<ProfileError>,
    },
}

/// Progress reporting and cancellation of runs.
pub struct Watch<'a> {
    /// Function that is called with each finished run, on the run's thread.
    pub ended: &'a (dyn Fn(&Run) + Sync),
    /// Number of finished runs, updated by the runs.
    pub done: &'a AtomicUsize,
    /// Flag that the caller sets to cancel. No further run starts then.
    pub stop: &'a AtomicBool,
}

/// Checks a study before its runs start: the degrees of parallelism fit the numbers of ranks of the candidates, each
/// job has a candidate whose GPUs support its precision and have a route to offloaded data, and listed prices have a
/// number of units.
///
/// # Errors
/// [`StudyError::Job`]: the first error, in the order of the study.
pub fn check(study: &Study, fabrics: &[Fabric]) -> Result<(), StudyError> {
    for (number, (candidate, fabric)) in study.candidates.iter().zip(fabrics).enumerate() {
        for (_, job) in study.jobs_on(number) {
            let job_error = |error| StudyError::Job { candidate: candidate.name.clone(), error: Box::new(error) };
            let ranks = active_ranks(job, fabric).map_err(job_error)?.len() as u32;
            let specified = match job {
                Job::Training(job) => Layout::specified_by(job, ranks),
                Job::Inference(job) => match &job.prefill_pool {
                    None => Layout::specified_by_serving(job, ranks),
                    Some(pool) => check_pools(job, pool, ranks).map(|()| None),
                },
                // A candidate with too few ranks is not an error; the results report it.
                Job::Trace(_) => Ok(None),
            };
            specified.map_err(job_error)?;
        }
    }
    study.candidates.iter().zip(fabrics).try_for_each(|(candidate, fabric)| check_unit_count(candidate, fabric))?;
    study.jobs.iter().enumerate().try_for_each(|(number, job)| {
        let Some(precision) = job.precision() else { return Ok(()) };
        check_some_candidate(study, fabrics, number, job, |fabric| {
            PeakRates::new(fabric, precision, job.spans())?;
            check_tier(job, fabric)
        })
    })
}

/// Checks that the number of units is stated if the unit of a price does not determine it for several hosts.
///
/// # Errors
/// [`StudyError::Job`] at the price otherwise.
fn check_unit_count(candidate: &Candidate, fabric: &Fabric) -> Result<(), StudyError> {
    let hosts = MachineSize::new(fabric).hosts;
    let is_unknown = candidate.price.is_some_and(|price| price.unit_count == UnitCount::Unknown);
    let Some(listed) = candidate.price_entry.as_ref().filter(|_| is_unknown && hosts > 1) else { return Ok(()) };
    let message = format!("price: the unit of `{}` does not determine how many {hosts} hosts need", listed.item);
    let help = "add `price_count = …`; in a list of your own, use the unit node, gpu, node_hour or gpu_hour, or \
                rack with hosts";
    let error = JobError { help: Some(help.to_owned()), ..JobError::at(&candidate.price_location, message) };
    Err(StudyError::Job { candidate: candidate.name.clone(), error: Box::new(error) })
}

/// Checks that at least one candidate of a job satisfies a condition. The results report the candidates that do not.
///
/// # Errors
/// [`StudyError::Job`] with the error of the first candidate if none satisfies it.
fn check_some_candidate(
    study: &Study,
    fabrics: &[Fabric],
    number: usize,
    job: &Job,
    check_fabric: impl Fn(&Fabric) -> Result<(), JobError>,
) -> Result<(), StudyError> {
    let mut first = None;
    let candidates = study.candidates.iter().zip(fabrics).enumerate();
    for (_, (candidate, fabric)) in candidates.filter(|(candidate, _)| study.assignment.is_assigned(*candidate, number))
    {
        match check_fabric(fabric) {
            Ok(()) => return Ok(()),
            Err(error) => drop(first.get_or_insert((candidate, error))),
        }
    }
    match first {
        Some((candidate, error)) => Err(StudyError::from_time_error(&candidate.name, job, TimeError::Job(error))),
        None => Ok(()),
    }
}

/// Checks that at least one run of the unchanged study succeeded; otherwise there are no candidates to rank.
///
/// # Errors
/// [`StudyError::Study`] at the first job, with the reason of the first candidate.
pub fn check_outcomes(study: &Study, cases: &Cases, outcomes: &FxHashMap<Key, Outcome>) -> Result<(), StudyError> {
    let mut first = None;
    for (number, candidate) in study.candidates.iter().enumerate() {
        for (job_number, job) in study.jobs_on(number) {
            match cases.key(0, number, job_number).and_then(|key| outcomes.get(&key)) {
                Some(Outcome::Refused(reason)) => drop(first.get_or_insert((candidate, job, reason))),
                Some(Outcome::Done(_)) | None => return Ok(()),
            }
        }
    }
    let Some((candidate, job, reason)) = first else { return Ok(()) };
    let location = match job {
        Job::Training(_) | Job::Inference(_) => &job.spans().parallel,
        Job::Trace(_) => &job.spans().job,
    };
    let message = format!("no candidate can run a job; on `{}` {}: {reason}", candidate.name, job.name());
    let help = "name the degrees in `parallel` to see what they do not divide; or change nodes, gpus or the job";
    Err(StudyError::Study(Box::new(JobError { help: Some(help.to_owned()), ..JobError::at(location, message) })))
}

/// Executes runs of a study on all threads of the current pool, and returns them in the order of `specs`. A job that
/// cannot run is an outcome, not an error.
///
/// # Errors
/// [`StudyError::Profile`]: no profile for a candidate.
pub fn run(
    study: &Study,
    fabrics: &[Fabric],
    cases: &Cases,
    specs: &[RunSpec],
    load: Load<'_>,
    watch: &Watch<'_>,
) -> Result<Vec<Run>, StudyError> {
    let groups: Vec<&[RunSpec]> = specs.chunk_by(|a, b| (a.setting, a.candidate) == (b.setting, b.candidate)).collect();
    let run_group = |group: &&[RunSpec]| -> Result<Vec<Run>, StudyError> {
        let Some(first) = group.first() else { return Ok(Vec::new()) };
        let (Some(setting), Some(candidate), Some(base_fabric)) =
            (cases.settings.get(first.setting), study.candidates.get(first.candidate), fabrics.get(first.candidate))
        else {
            return Ok(Vec::new());
        };
        if watch.stop.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let setting_fabric = setting.fabric(candidate, base_fabric, load);
        let fabric = if let SettingEffect::Changed(fabric) = &setting_fabric { fabric.as_ref() } else { base_fabric };
        let router = Router::with_link_listing(fabric, RouteOptions::default(), LinkListing::Representatives);
        let profile = Profile::for_fabric(fabric)
            .map_err(|error| StudyError::Profile { candidate: candidate.name.clone(), error: error.into() })?;
        // Jobs on the same devices share one cache of call times.
        let mut placements: Vec<Cow<'_, [NodeId]>> = Vec::new();
        let mut job_placements: Vec<(usize, Result<usize, JobError>)> = Vec::new();
        for (number, job) in group.iter().filter_map(|case| Some((case.job, study.jobs.get(case.job)?))) {
            let index = active_ranks(job, fabric).map(|ranks| {
                placements.iter().position(|known| *known == ranks).unwrap_or_else(|| {
                    placements.push(ranks);
                    placements.len() - 1
                })
            });
            job_placements.push((number, index));
        }
        let placements: Vec<_> =
            placements.iter().map(|ranks| (ranks, SimulatedCosts::new(&router, &profile, ranks))).collect();
        let curve = candidate.efficiency.resolve(fabric);
        let run_placed_job = |number: usize, job: &Job| -> Option<Result<Prediction, TimeError>> {
            let (_, index) = job_placements.iter().find(|(known, _)| *known == number)?;
            Some(match index {
                Ok(index) => {
                    let (ranks, simulated) = placements.get(*index)?;
                    run_job(&candidate.name, job, &Machine { router: &router, ranks, simulated, curve })
                }
                Err(error) => Err(TimeError::Job(error.clone())),
            })
        };
        let run_case = |case: &RunSpec| -> Option<Run> {
            let job = study.jobs.get(case.job)?;
            if watch.stop.load(Ordering::Relaxed) {
                return None;
            }
            let outcome = match run_placed_job(case.job, job)? {
                Ok(prediction) => Outcome::Done(Box::new(prediction)),
                Err(error) => Outcome::Refused(refusal_reason(&error)),
            };
            let run = Run { key: case.key, title: cases.title(study, case), outcome };
            (watch.ended)(&run);
            watch.done.fetch_add(1, Ordering::Relaxed);
            Some(run)
        };
        Ok(group.par_iter().with_max_len(1).filter_map(run_case).collect())
    };
    let results: Vec<Result<Vec<Run>, StudyError>> = groups.par_iter().with_max_len(1).map(run_group).collect();
    Ok(results.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Predicts a job on the machine of a candidate. Its notes state the assumptions behind its figures.
///
/// # Errors
/// [`TimeError`] if the job cannot run on the machine.
fn run_job(candidate: &str, whole_job: &Job, machine: &Machine<'_>) -> Result<Prediction, TimeError> {
    let ranks = machine.ranks.len();
    let notes = |layout: &Layout| -> Vec<String> {
        replaced_dispatcher(whole_job, machine, layout)
            .into_iter()
            .chain(assumption_notes(whole_job, machine))
            .collect()
    };
    match whole_job {
        Job::Training(job) => {
            let (step, footprint) = best_step(job, machine)?;
            let memories = machine.memories(&job.placement).unwrap_or(MemoryLimits::UNLIMITED);
            let missing =
                MissingMemory { gpu: footprint.excess(memories.gpu), host: footprint.host_excess(memories.host) };
            // Sharding groups may span several hosts, so a single host runs without them.
            let (hosts, single_host_time) = run_on_first_host(machine, step.time, |host| {
                Ok(unbounded_step(&Training { shard: None, ..job.clone() }, host)?.0.time)
            });
            let timeline = StepTimeline::new(StepVariant::Training, best_step_timeline(job, machine, &step)?);
            let (calls, exchanges) = (step_calls(job, &step.layout), step_exchanges(job, &step.layout));
            let run = TrainingRun {
                candidate,
                ranks,
                hosts,
                step: &step,
                footprint,
                missing,
                single_host_time,
                interval: training_interval(job, machine, &step),
                timeline,
                communication: step_communication(machine, &step, &calls, &exchanges)?,
                notes: notes(&step.layout),
            };
            Ok(training_prediction(job, run))
        }
        Job::Inference(job) => {
            let ServiceRun { step, footprint, service } = best_service(job, machine)?;
            let variants = [StepVariant::WithPrefill, StepVariant::DecodeOnly];
            let (timelines, communication) = match job.prefill_pool.as_ref().zip(service.disaggregation) {
                None => {
                    let loaded = LoadedServing { job, concurrent_requests: service.concurrent_requests };
                    let (calls, exchanges) =
                        (serve::calls(&loaded, &step.layout), serve::exchanges(&loaded, &step.layout));
                    let communication = step_communication(machine, &step, &calls, &exchanges)?;
                    (step_timelines(&loaded, machine, &step)?, communication)
                }
                // Calls and loads of links are those of all ranks, which make different steps here.
                Some((pool, DisaggregatedService { prefill, decode, .. })) => {
                    let part = job.decode_part(pool);
                    let loaded = LoadedServing { job: &part, concurrent_requests: decode.requests };
                    let ranks = machine.ranks.get(prefill.ranks as usize..).unwrap_or_default();
                    let simulated = machine.simulated.for_ranks(ranks);
                    let decode_machine = Machine { ranks, simulated: &simulated, ..*machine };
                    (step_timelines(&loaded, &decode_machine, &step)?, StepCommunication::default())
                }
            };
            let timelines = timelines.into_iter().zip(variants);
            let timelines = timelines.filter_map(|(timeline, step)| Some(StepTimeline::new(step, timeline?))).collect();
            let (hosts, single_host_throughput) = run_on_first_host(machine, service.tokens_per_s, |host| {
                Ok(service_without_memory_limit(job, host)?.tokens_per_s)
            });
            let run = InferenceRun {
                candidate,
                ranks,
                hosts,
                step: &step,
                footprint,
                service: &service,
                single_host_throughput,
                interval: StepInterval::with_error(step.time, prediction_error(JobClass::from_serving(job), machine)),
                timelines,
                communication,
                notes: notes(&step.layout).into_iter().chain(waiting_requests(job, &service)).collect(),
            };
            Ok(inference_prediction(job, run))
        }
        Job::Trace(job) => {
            let outcome =
                fabricast_perf::replay::replay(&job.trace, machine.simulated, ranks, job.collectives, &job.file)?;
            let notes = assumption_notes(whole_job, machine);
            Ok(trace_prediction(job, TraceRun { candidate, outcome: &outcome, notes }))
        }
    }
}

/// Returns the reason why a job cannot run. It contains no names and source locations, because runs are cached and
/// files change.
fn refusal_reason(error: &TimeError) -> String {
    match error {
        TimeError::Job(error) => error.message.clone(),
        TimeError::Plan(error) => error.to_string(),
    }
}

/// Times the calls of a step and computes the load of the links.
fn step_communication(
    machine: &Machine<'_>,
    step: &Step,
    calls: &[StepCall],
    exchanges: &[StepExchange],
) -> Result<StepCommunication, TimeError> {
    let (simulated, layout) = (machine.simulated, &step.layout);
    let costs = simulated.restricted_to(step.collectives);
    let timed_calls = costs.timed_calls(layout, calls)?;
    let utilization = simulated.load(layout, &timed_calls, exchanges).utilization(machine.router, step.time);
    let exchanges = exchanges.iter().map(|one| {
        let time = costs.token_exchange_time(layout, &one.exchange)?;
        let kernel = costs.supports_exchange(layout, &one.exchange).then_some(one.exchange.kernel);
        Ok::<_, TimeError>(predicted_exchange(one, layout, kernel, time))
    });
    Ok(StepCommunication {
        calls: timed_calls.iter().map(|timed_call| predicted_call(timed_call, layout)).collect(),
        exchanges: exchanges.collect::<Result<_, _>>()?,
        load: link_utilization::link_class_loads(machine.router.fabric(), &utilization),
    })
}

/// Returns the number of hosts, and the result of the job on the GPUs of the first host alone, with the best layout on
/// it and unlimited memory. The result is `total` if the machine has one host, and `None` if the job cannot be divided
/// among the GPUs of a host.
fn run_on_first_host<T>(
    machine: &Machine<'_>,
    total: T,
    evaluate: impl Fn(&Machine<'_>) -> Result<T, TimeError>,
) -> (usize, Option<T>) {
    let hosts = machine.router.fabric().group_by_host(machine.ranks);
    let single = match hosts.as_slice() {
        [_] => Some(total),
        [first, ..] => {
            let simulated = machine.simulated.for_ranks(first);
            evaluate(&Machine { ranks: first, simulated: &simulated, ..*machine }).ok()
        }
        [] => None,
    };
    (hosts.len(), single)
}

impl StudyError {
    /// Creates the error of a job whose time on a candidate cannot be predicted.
    #[must_use]
    pub fn from_time_error(candidate: &str, job: &Job, error: TimeError) -> Self {
        let candidate = candidate.to_owned();
        match error {
            TimeError::Job(error) => Self::Job { candidate, error: error.into() },
            TimeError::Plan(error) => Self::Plan { candidate, job: job.name().to_owned(), error: error.into() },
        }
    }
}
