//! Execution of runs: each job on the fabric of its candidate, in parallel.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fabricast_sim::profile::{Profile, ProfileError};
use fabricast_topologies::route::{Links, RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeId};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::answer::{CallRow, CourseRow, LoadRow, ResultRow};
use super::cases::{Case, Cases};
use super::granted::taken_for_granted;
use super::key::Key;
use super::row::Lacking;
use super::setting::{Load, Under};
use super::{Candidate, Counted, Extent, Study, load, row};
use crate::job::{Job, JobError, Layout, Loaded, Memories, Training};
use crate::plan::PlanError;
use crate::serve::{self, best_service, courses_of_steps, unbounded_service};
use crate::step::{
    Machine, Simulated, Speeds, Step, StepCall, TimeError, best_step, calls, check_tier, course_of_step, ranks_at_work,
    unbounded_step,
};

/// Finished run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Key of the run.
    pub key: Key,
    /// Display name of the run.
    pub title: String,
    /// Result of the run.
    pub outcome: Outcome,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Result row without costs.
    Done(Box<ResultRow>),
    /// Reason why the job cannot run on the candidate.
    Refused(String),
}

/// Reason why a study has no results.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StudyError {
    /// Invalid study.
    #[error("{0}")]
    Study(Box<JobError>),
    /// Job that cannot run on a candidate.
    #[error("{error} (candidate `{candidate}`)")]
    Job {
        /// Name of the candidate.
        candidate: String,
        /// The error.
        error: Box<JobError>,
    },
    /// Call without a predicted time.
    #[error("{job} on {candidate}: {error}")]
    Plan {
        /// Name of the candidate.
        candidate: String,
        /// Name of the job.
        job: String,
        /// The error.
        error: Box<PlanError>,
    },
    /// No profile for a candidate.
    #[error("{candidate}: {error}")]
    Profile {
        /// Name of the candidate.
        candidate: String,
        /// The error.
        error: Box<ProfileError>,
    },
}

/// Progress reporting and cancellation of runs.
pub struct Watch<'a> {
    /// Called with each finished run, on its thread.
    pub ended: &'a (dyn Fn(&Run) + Sync),
    /// Number of finished runs.
    pub done: &'a AtomicUsize,
    /// Set by the caller to cancel: no further run starts.
    pub stop: &'a AtomicBool,
}

/// Checks a study before anything runs: degrees fit the candidates' ranks, each job has a candidate with units for its
/// precision and a route to offloaded data, and listed prices have a number of units.
///
/// # Errors
/// [`StudyError::Job`]: the first in study order.
pub fn check(study: &Study, fabrics: &[Fabric]) -> Result<(), StudyError> {
    for (number, (candidate, fabric)) in study.candidates.iter().zip(fabrics).enumerate() {
        for (_, job) in study.jobs_on(number) {
            let refused = |error| StudyError::Job { candidate: candidate.name.clone(), error: Box::new(error) };
            let ranks = ranks_at_work(job, fabric).map_err(refused)?.len() as u32;
            let given = match job {
                Job::Training(job) => Layout::given(job, ranks),
                Job::Inference(job) => Layout::given_to_serve(job, ranks),
                // A candidate with too few ranks is reported in the results.
                Job::Trace(_) => Ok(None),
            };
            given.map_err(refused)?;
        }
    }
    study.candidates.iter().zip(fabrics).try_for_each(|(candidate, fabric)| counted(candidate, fabric))?;
    study.jobs.iter().enumerate().try_for_each(|(number, job)| {
        let Some(precision) = job.precision() else { return Ok(()) };
        on_some(study, fabrics, (number, job), |fabric| {
            Speeds::of(fabric, precision, job.places())?;
            check_tier(job, fabric)
        })
    })
}

/// Checks that the number of units is known if a price's unit does not determine it for several hosts.
fn counted(candidate: &Candidate, fabric: &Fabric) -> Result<(), StudyError> {
    let hosts = Extent::of(fabric).hosts;
    let is_untold = candidate.price.is_some_and(|price| price.counted == Counted::Untold);
    let Some(listed) = candidate.listed.as_ref().filter(|_| is_untold && hosts > 1) else { return Ok(()) };
    let message = format!("price: the unit of `{}` does not say how many of it {hosts} hosts take", listed.item);
    let help = "write `price_count = …` beside it; of a list of your own, make the unit node, gpu, node_hour or gpu_hour, or \
                rack with hosts";
    let error = JobError { help: Some(help.to_owned()), ..JobError::at(&candidate.price_place, message) };
    Err(StudyError::Job { candidate: candidate.name.clone(), error: Box::new(error) })
}

/// Checks that at least one candidate of a job satisfies a condition; the others are reported in the results.
fn on_some(
    study: &Study,
    fabrics: &[Fabric],
    (number, job): (usize, &Job),
    has_it: impl Fn(&Fabric) -> Result<(), JobError>,
) -> Result<(), StudyError> {
    let mut first = None;
    let candidates = study.candidates.iter().zip(fabrics).enumerate();
    for (_, (candidate, fabric)) in candidates.filter(|(candidate, _)| study.pairs.has(*candidate, number)) {
        match has_it(fabric) {
            Ok(()) => return Ok(()),
            Err(error) => drop(first.get_or_insert((candidate, error))),
        }
    }
    match first {
        Some((candidate, error)) => Err(StudyError::of_job(&candidate.name, job, TimeError::Job(error))),
        None => Ok(()),
    }
}

/// Checks that at least one run of the unchanged study succeeded; otherwise there is nothing to rank.
///
/// # Errors
/// [`StudyError::Study`] at the first job, with the reason of the first candidate.
pub fn check_outcomes(study: &Study, cases: &Cases, outcomes: &FxHashMap<Key, Outcome>) -> Result<(), StudyError> {
    let mut first = None;
    for (number, candidate) in study.candidates.iter().enumerate() {
        for (job_number, job) in study.jobs_on(number) {
            match cases.key(0, number, job_number).and_then(|key| outcomes.get(&key)) {
                Some(Outcome::Refused(why)) => drop(first.get_or_insert((candidate, job, why))),
                Some(Outcome::Done(_)) | None => return Ok(()),
            }
        }
    }
    let Some((candidate, job, why)) = first else { return Ok(()) };
    let place = match job {
        Job::Training(_) | Job::Inference(_) => &job.places().parallel,
        Job::Trace(_) => &job.places().job,
    };
    let message = format!("no candidate can run a job; on `{}` {}: {why}", candidate.name, job.name());
    let help = "`parallel` with named degrees says what they do not divide by; or change nodes, gpus or the job";
    Err(StudyError::Study(Box::new(JobError { help: Some(help.to_owned()), ..JobError::at(place, message) })))
}

/// Executes runs of a study on all threads of the current pool and returns them in the order of `wanted`, which is that
/// of `cases`. A job that cannot run is an outcome, not an error.
///
/// # Errors
/// [`StudyError::Profile`]: no profile for a candidate.
pub fn run(
    study: &Study,
    fabrics: &[Fabric],
    cases: &Cases,
    wanted: &[Case],
    load: Load<'_>,
    watch: &Watch<'_>,
) -> Result<Vec<Run>, StudyError> {
    let groups: Vec<&[Case]> = wanted.chunk_by(|a, b| (a.setting, a.candidate) == (b.setting, b.candidate)).collect();
    let of_group = |group: &&[Case]| -> Result<Vec<Run>, StudyError> {
        let Some(first) = group.first() else { return Ok(Vec::new()) };
        let (Some(setting), Some(candidate), Some(given)) =
            (cases.settings.get(first.setting), study.candidates.get(first.candidate), fabrics.get(first.candidate))
        else {
            return Ok(Vec::new());
        };
        if watch.stop.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let under = setting.fabric(candidate, given, load);
        let fabric = if let Under::Changed(fabric) = &under { fabric.as_ref() } else { given };
        let router = Router::listing(fabric, RouteOptions::default(), Links::OneOfAlike);
        let profile = Profile::for_fabric(fabric)
            .map_err(|error| StudyError::Profile { candidate: candidate.name.clone(), error: error.into() })?;
        // Jobs on the same devices share the cache of call times.
        let mut placed: Vec<Cow<'_, [NodeId]>> = Vec::new();
        let mut of_jobs: Vec<(usize, Result<usize, JobError>)> = Vec::new();
        for (number, job) in group.iter().filter_map(|case| Some((case.job, study.jobs.get(case.job)?))) {
            let found = ranks_at_work(job, fabric).map(|ranks| {
                placed.iter().position(|known| *known == ranks).unwrap_or_else(|| {
                    placed.push(ranks);
                    placed.len() - 1
                })
            });
            of_jobs.push((number, found));
        }
        let placed: Vec<_> = placed.iter().map(|ranks| (ranks, Simulated::new(&router, &profile, ranks))).collect();
        let curve = candidate.efficiency.on(fabric);
        let of_job = |number: usize, job: &Job| -> Option<Result<ResultRow, TimeError>> {
            let (_, found) = of_jobs.iter().find(|(known, _)| *known == number)?;
            Some(match found {
                Ok(place) => {
                    let (ranks, simulated) = placed.get(*place)?;
                    one(job, &Machine { router: &router, ranks, simulated, curve })
                }
                Err(error) => Err(TimeError::Job(error.clone())),
            })
        };
        let of_case = |case: &Case| -> Option<Run> {
            let job = study.jobs.get(case.job)?;
            if watch.stop.load(Ordering::Relaxed) {
                return None;
            }
            let outcome = match of_job(case.job, job)? {
                Ok(row) => Outcome::Done(Box::new(ResultRow { candidate: candidate.name.clone(), ..row })),
                Err(error) => Outcome::Refused(reason(&error)),
            };
            let run = Run { key: case.key, title: cases.title(study, case), outcome };
            (watch.ended)(&run);
            watch.done.fetch_add(1, Ordering::Relaxed);
            Some(run)
        };
        Ok(group.par_iter().with_max_len(1).filter_map(of_case).collect())
    };
    let all: Vec<Result<Vec<Run>, StudyError>> = groups.par_iter().with_max_len(1).map(of_group).collect();
    Ok(all.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Result of a job on a machine, with the assumptions behind its figures.
fn one(job: &Job, machine: &Machine<'_>) -> Result<ResultRow, TimeError> {
    let row = on_machine(job, machine)?;
    Ok(ResultRow { notes: taken_for_granted(job, machine), ..row })
}

fn on_machine(job: &Job, machine: &Machine<'_>) -> Result<ResultRow, TimeError> {
    let ranks = machine.ranks.len();
    match job {
        Job::Training(job) => {
            let (step, footprint) = best_step(job, machine)?;
            let memories = machine.memories(&job.placement).unwrap_or(Memories::UNLIMITED);
            let beyond = Lacking { own: footprint.beyond(memories.own), host: footprint.beyond_host(memories.host) };
            // (Sharding groups may span several hosts.)
            let (hosts, of_one_host) = on_one_host(machine, step.time, |host| {
                Ok(unbounded_step(&Training { shard: None, ..job.clone() }, host)?.0.time)
            });
            let course = course_of_step(job, machine, &step)?;
            let row = row::trained(job, (ranks, hosts), (&step, footprint, beyond), of_one_host);
            let carried = carried(machine, &step, &calls(job, &step.layout))?;
            Ok(ResultRow { courses: vec![CourseRow::of("step", course)], calls: carried.0, load: carried.1, ..row })
        }
        Job::Inference(job) => {
            let (step, footprint, service) = best_service(job, machine)?;
            let loaded = Loaded { job, in_flight: service.in_flight };
            let courses =
                courses_of_steps(&loaded, machine, &step)?.into_iter().zip(["with prompts", "without prompts"]);
            let courses = courses.filter_map(|(course, name)| Some(CourseRow::of(name, course?))).collect();
            let (hosts, of_one_host) =
                on_one_host(machine, service.tokens_per_s, |host| Ok(unbounded_service(job, host)?.tokens_per_s));
            let carried = carried(machine, &step, &serve::calls(&loaded, &step.layout))?;
            Ok(ResultRow {
                courses,
                calls: carried.0,
                load: carried.1,
                efficiency_node: of_one_host.map(|one| service.tokens_per_s / (one * hosts.max(1) as f64)),
                ..row::served(job, ranks, &step, &footprint, &service)
            })
        }
        Job::Trace(job) => {
            let outcome = job.trace.run(machine.simulated, ranks, job.collectives, &job.file)?;
            Ok(row::traced(job, &outcome))
        }
    }
}

/// Reason why a job cannot run, without names and source locations: runs are cached, and files change.
fn reason(error: &TimeError) -> String {
    match error {
        TimeError::Job(error) => error.message.clone(),
        TimeError::Plan(error) => error.to_string(),
    }
}

/// Calls of a step and the load of the links.
fn carried(machine: &Machine<'_>, step: &Step, calls: &[StepCall]) -> Result<(Vec<CallRow>, Vec<LoadRow>), TimeError> {
    let simulated = machine.simulated;
    let priced = simulated.allowing(step.collectives).priced(&step.layout, calls)?;
    let utilization = simulated.load(&step.layout, &priced).utilization(machine.router, step.time);
    let rows = priced.iter().map(|one| row::call(one, &step.layout)).collect();
    Ok((rows, load::by_class(machine.router.fabric(), &utilization)))
}

/// Result of a job on the GPUs of the first host alone, with the best layout there and unlimited memory, and the number
/// of hosts. It is `whole` if the machine has one host, and `None` if the job cannot be divided among the host's GPUs.
fn on_one_host<T>(
    machine: &Machine<'_>,
    whole: T,
    job: impl Fn(&Machine<'_>) -> Result<T, TimeError>,
) -> (usize, Option<T>) {
    let hosts = machine.router.fabric().by_host(machine.ranks);
    let alone = match hosts.as_slice() {
        [_] => Some(whole),
        [first, ..] => {
            let simulated = machine.simulated.on(first);
            job(&Machine { ranks: first, simulated: &simulated, ..*machine }).ok()
        }
        [] => None,
    };
    (hosts.len(), alone)
}

impl StudyError {
    /// Creates the error of a job without a predicted time on a candidate.
    #[must_use]
    pub fn of_job(candidate: &str, job: &Job, error: TimeError) -> Self {
        let candidate = candidate.to_owned();
        match error {
            TimeError::Job(error) => Self::Job { candidate, error: error.into() },
            TimeError::Plan(error) => Self::Plan { candidate, job: job.name().to_owned(), error: error.into() },
        }
    }
}
