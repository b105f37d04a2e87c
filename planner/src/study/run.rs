//! Makes runs: each job on the fabric of its candidate, on all threads.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fabricast_sim::profile::{Profile, ProfileError};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeId, Picos};
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::answer::{CallRow, CourseRow, LoadRow, ResultRow};
use super::cases::{Case, Cases};
use super::key::Key;
use super::setting::{Load, Setting, Under};
use super::{Study, load, row};
use crate::job::{Collectives, Job, JobError, Layout, Placement, Training};
use crate::plan::PlanError;
use crate::serve::{self, best_service, courses_of_steps};
use crate::step::{Machine, Simulated, Step, StepCall, TimeError, best_step, calls, course_of_step, unbounded_step};

/// A run that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What tells it from others.
    pub key: Key,
    /// What it is a run of, for people.
    pub title: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It runs; without costs, which are no business of runs.
    Done(Box<ResultRow>),
    /// It cannot run under the run's setting, for this reason.
    Refused(String),
}

/// Why there are no results.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StudyError {
    /// A study that cannot be.
    #[error("{0}")]
    Study(Box<JobError>),
    /// A job that cannot be on a candidate.
    #[error("{error} (candidate `{candidate}`)")]
    Job {
        /// The candidate.
        candidate: String,
        /// Why.
        error: Box<JobError>,
    },
    /// A call without a price.
    #[error("{job} on {candidate}: {error}")]
    Plan {
        /// The candidate.
        candidate: String,
        /// The job.
        job: String,
        /// Why.
        error: Box<PlanError>,
    },
    /// No profile for a candidate.
    #[error("{candidate}: {error}")]
    Profile {
        /// The candidate.
        candidate: String,
        /// Why.
        error: Box<ProfileError>,
    },
}

/// Who is told of runs as they end, and how they are stopped.
pub struct Watch<'a> {
    /// Is told of each run, on the thread that made it.
    pub ended: &'a (dyn Fn(&Run) + Sync),
    /// Runs that ended.
    pub done: &'a AtomicUsize,
    /// Set from outside: no further run is begun.
    pub stop: &'a AtomicBool,
}

/// Whether the degrees that jobs name fit the candidates' ranks: told before anything runs.
///
/// # Errors
/// [`StudyError::Job`]: the first in the order of the study.
pub fn check(study: &Study, fabrics: &[Fabric]) -> Result<(), StudyError> {
    for (candidate, fabric) in study.candidates.iter().zip(fabrics) {
        let ranks = fabric.gpus().len() as u32;
        for job in &study.jobs {
            let refused = |error| StudyError::Job { candidate: candidate.name.clone(), error: Box::new(error) };
            job.ranks_on(fabric).map_err(refused)?;
            let given = match job {
                Job::Training(job) => Layout::given(job, ranks),
                Job::Inference(job) => Layout::given_to_serve(job, ranks),
                // A candidate with too few is told among the others.
                Job::Trace(_) => Ok(None),
            };
            given.map_err(refused)?;
        }
    }
    Ok(())
}

/// Makes these runs of a study on all threads of the current pool; they come in the order of `wanted`, which is that of
/// `cases`.
///
/// # Errors
/// [`StudyError`]: the first in that order of what cannot run as given. Under a setting that is an outcome.
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
        let router = Router::new(fabric, RouteOptions::default());
        let profile = Profile::for_fabric(fabric)
            .map_err(|error| StudyError::Profile { candidate: candidate.name.clone(), error: error.into() })?;
        // Jobs that are placed alike share what calls take.
        let mut placed: Vec<(&Placement, Cow<'_, [NodeId]>)> = Vec::new();
        for job in group.iter().filter_map(|case| study.jobs.get(case.job)) {
            if placed.iter().all(|(known, _)| *known != job.placement()) {
                let refused = |error| StudyError::of_job(&candidate.name, job, TimeError::Job(error));
                placed.push((job.placement(), job.ranks_on(fabric).map_err(refused)?));
            }
        }
        let simulated: Vec<Simulated<'_>> =
            placed.iter().map(|(_, ranks)| Simulated::new(&router, &profile, ranks)).collect();
        let curve = study.efficiency.on(fabric);
        let machine_of = |job: &Job| {
            let mut places = placed.iter().zip(&simulated);
            let ((_, ranks), simulated) = places.find(|((placement, _), _)| *placement == job.placement())?;
            Some(Machine { router: &router, ranks, simulated, curve })
        };
        let of_case = |case: &Case| -> Option<Result<Run, StudyError>> {
            let job = study.jobs.get(case.job)?;
            if watch.stop.load(Ordering::Relaxed) {
                return None;
            }
            let outcome = match one(job, &machine_of(job)?) {
                Err(error) if too_few(job, fabric) => Outcome::Refused(format!("{}: {error}", job.name())),
                Ok(row) => Outcome::Done(Box::new(ResultRow { candidate: candidate.name.clone(), ..row })),
                Err(error) if *setting == Setting::AsGiven => {
                    return Some(Err(StudyError::of_job(&candidate.name, job, error)));
                }
                Err(error) => Outcome::Refused(StudyError::of_job(&candidate.name, job, error).to_string()),
            };
            let run = Run { key: case.key, title: cases.title(study, case), outcome };
            (watch.ended)(&run);
            watch.done.fetch_add(1, Ordering::Relaxed);
            Some(Ok(run))
        };
        group.par_iter().with_max_len(1).filter_map(of_case).collect::<Vec<_>>().into_iter().collect()
    };
    let all: Vec<Result<Vec<Run>, StudyError>> = groups.par_iter().with_max_len(1).map(of_group).collect();
    Ok(all.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// A job on a machine.
fn one(job: &Job, machine: &Machine<'_>) -> Result<ResultRow, TimeError> {
    let ranks = machine.ranks.len();
    match job {
        Job::Training(job) => {
            let (step, footprint) = best_step(job, machine)?;
            let beyond = machine.memory().and_then(|memory| footprint.beyond(memory));
            let fabric = machine.router.fabric();
            let hosts: FxHashSet<_> = machine.ranks.iter().map(|&device| fabric.node(device).host).collect();
            let of_one_host = match hosts.len() {
                1 => Some(step.time),
                _ => on_one_host(job, machine),
            };
            let course = course_of_step(job, machine, &step)?;
            let row = row::trained(job, (ranks, hosts.len()), (&step, footprint, beyond), of_one_host);
            let carried = carried(machine, &step, job.collectives, &calls(job, &step.layout))?;
            Ok(ResultRow { courses: vec![CourseRow::of("step", course)], calls: carried.0, load: carried.1, ..row })
        }
        Job::Inference(job) => {
            let (step, footprint, service) = best_service(job, machine)?;
            let courses = courses_of_steps(job, machine, &step)?.into_iter().zip(["with prompts", "without prompts"]);
            let courses = courses.filter_map(|(course, name)| Some(CourseRow::of(name, course?))).collect();
            let carried = carried(machine, &step, job.collectives, &serve::calls(job, &step.layout))?;
            Ok(ResultRow {
                courses,
                calls: carried.0,
                load: carried.1,
                ..row::served(job, ranks, &step, &footprint, &service)
            })
        }
        Job::Trace(job) => {
            let outcome = job.trace.run(machine.simulated, ranks, job.collectives, &job.file)?;
            Ok(row::traced(job, &outcome))
        }
    }
}

/// Whether a machine has fewer GPUs than a trace has ranks: no error of the study, but a candidate that does not do.
fn too_few(job: &Job, fabric: &Fabric) -> bool {
    matches!(job, Job::Trace(job) if job.trace.ranks as usize > fabric.gpus().len())
}

/// The calls of a step, and how busy they keep links.
fn carried(
    machine: &Machine<'_>,
    step: &Step,
    collectives: Collectives,
    calls: &[StepCall],
) -> Result<(Vec<CallRow>, Vec<LoadRow>), TimeError> {
    let simulated = machine.simulated;
    let priced = simulated.allowing(collectives).priced(&step.layout, calls)?;
    let utilization = simulated.load(&step.layout, &priced).utilization(machine.router, step.time);
    let rows = priced.iter().map(|one| row::call(one, &step.layout)).collect();
    Ok((rows, load::by_class(machine.router.fabric(), &utilization)))
}

/// The time of a step on the GPUs of the first host alone, memory or not, divided as is best there; `None` where the job
/// cannot be divided among them.
fn on_one_host(job: &Training, machine: &Machine<'_>) -> Option<Picos> {
    let fabric = machine.router.fabric();
    let first = fabric.node(*machine.ranks.first()?).host;
    let ranks: Vec<NodeId> =
        machine.ranks.iter().copied().filter(|&device| fabric.node(device).host == first).collect();
    let simulated = machine.simulated.on(&ranks);
    let host = Machine { ranks: &ranks, simulated: &simulated, ..*machine };
    unbounded_step(job, &host).ok().map(|(step, _)| step.time)
}

impl StudyError {
    /// Why a job has no time on a candidate.
    #[must_use]
    pub fn of_job(candidate: &str, job: &Job, error: TimeError) -> Self {
        let candidate = candidate.to_owned();
        match error {
            TimeError::Job(error) => Self::Job { candidate, error: error.into() },
            TimeError::Plan(error) => Self::Plan { candidate, job: job.name().to_owned(), error: error.into() },
        }
    }
}
