//! Search over parallel degrees: estimates all layouts that fit the memory and simulates the best.
//!
//! Candidates are tensor-parallel degrees up to the size of an NVLink domain that divide the heads, pipeline stages
//! that divide the layers, and all divisions of experts and redundant experts among replicas. The best layout has the
//! highest throughput within the job's SLO limits, or the highest throughput if none meets them. Layouts that do not
//! fit the memory are excluded; if none fits, the closest is used.

use super::{Clock, Service, courses, serve};
use crate::job::{
    Arrivals, Degrees, Footprint, JobError, Layout, Limits, Loaded, Memories, Room, Sequence, Serving, room,
    serving_footprint,
};
use crate::plan::PlanError;
use crate::step::{Course, Estimated, Machine, Step, Tariff, TimeError, indivisible, shortlist};

/// Number of layouts simulated, the best by estimate, each with and without sequence parallelism.
const SIMULATED: usize = 6;

/// Returns the mean step, memory footprint and performance of a job, with its own degrees or the best found.
///
/// # Errors
/// [`TimeError`] if the job cannot run on these ranks, or a collective has no strategy.
pub fn best_service(job: &Serving, machine: &Machine<'_>) -> Result<(Step, Footprint, Service), TimeError> {
    within(job, machine, machine.memories(&job.placement))
}

/// Variant of [`best_service`] without a memory limit; for jobs whose concurrency is derived from memory, with the
/// actual memory.
///
/// # Errors
/// Errors of [`best_service`], and an error if the memory from which the concurrency is derived holds no request.
pub fn unbounded_service(job: &Serving, machine: &Machine<'_>) -> Result<Service, TimeError> {
    if !matches!(job.arrivals, Arrivals::AsMany { .. }) {
        return Ok(within(job, machine, None)?.2);
    }
    let service = best_service(job, machine)?.2;
    let lacks = |room: &Room| room.beyond.is_some() || room.beyond_host.is_some();
    match service.room.as_ref().is_some_and(lacks) {
        true => Err(JobError::at(&job.places.job, "the memory holds no request").into()),
        false => Ok(service),
    }
}

fn within(
    job: &Serving,
    machine: &Machine<'_>,
    memory: Option<Memories>,
) -> Result<(Step, Footprint, Service), TimeError> {
    let speeds = machine.speeds_to_serve(job)?;
    let allowed = machine.simulated.allowing(job.collectives);
    let clock = Clock { speeds: &speeds, curve: &machine.curve, tariff: &allowed };
    let timed = |layout: &Layout| {
        let job = loaded(job, layout, memory, &clock)?;
        let (step, service) = serve(&job, layout, &clock)?;
        let service = Service { room: memory.map(|memory| room(&job, layout, memory)), ..service };
        Ok::<_, TimeError>((step, serving_footprint(&job, layout), service))
    };
    if let Some(layout) = Layout::given_to_serve(job, machine.ranks.len() as u32)? {
        return timed(&layout);
    }
    let estimated = Estimated::new(machine.simulated);
    let mut best: Option<(Step, Footprint, Service)> = None;
    let promising = promising(job, machine, (&Clock { tariff: &estimated, ..clock }, memory))?;
    for layout in promising.iter().flat_map(|&layout| [Some(layout), of_divided_sequences(layout)]).flatten() {
        let found = timed(&layout)?;
        if best.as_ref().is_none_or(|known| order(&found.2) < order(&known.2)) {
            best = Some(found);
        }
    }
    best.ok_or_else(|| indivisible(&job.places.parallel, machine.ranks.len(), "heads or layers").into())
}

/// Returns a job with its own number of concurrent requests, or with as many per replica as memory and SLO limits
/// allow. If a number violates a limit, larger ones are not tried.
fn loaded<'j>(
    job: &'j Serving,
    layout: &Layout,
    memory: Option<Memories>,
    clock: &Clock<'_>,
) -> Result<Loaded<'j>, PlanError> {
    let filled = job.filled(layout, memory);
    if !matches!(job.arrivals, Arrivals::AsMany { .. }) || job.limits == Limits::default() {
        return Ok(filled);
    }
    let replicas = u64::from(layout.degrees.data).max(1);
    let of_each = |each: u64| Loaded { in_flight: each * replicas, ..filled };
    let keeps = |each: u64| Ok::<_, PlanError>(serve(&of_each(each), layout, clock)?.1.late.is_empty());
    // Double until a limit is violated or the memory is full, then bisect.
    let most = (filled.in_flight / replicas).max(1);
    let (mut kept, mut broken) = (1, most + 1);
    let mut each = 1;
    while each < broken {
        match keeps(each)? {
            true => (kept, each) = (each, if each == most { broken } else { (2 * each).min(most) }),
            false => broken = each,
        }
    }
    while broken - kept > 1 {
        let each = u64::midpoint(kept, broken);
        if keeps(each)? { kept = each } else { broken = each }
    }
    Ok(of_each(kept))
}

/// Returns the timelines of the steps that [`best_service`] found, as [`courses`] does.
///
/// # Errors
/// Errors of [`best_service`].
pub fn courses_of_steps(
    job: &Loaded<'_>,
    machine: &Machine<'_>,
    found: &Step,
) -> Result<[Option<Course>; 2], TimeError> {
    let speeds = machine.speeds_to_serve(job)?;
    let allowed = machine.simulated.allowing(job.collectives);
    let clock = Clock { speeds: &speeds, curve: &machine.curve, tariff: &allowed };
    Ok(courses(job, &found.layout, &clock)?)
}

/// Returns the mean step of a job with a given layout, with collective times from `tariff`.
///
/// # Errors
/// Errors of [`best_service`].
pub(crate) fn step_of(
    job: &Loaded<'_>,
    layout: &Layout,
    machine: &Machine<'_>,
    tariff: &dyn Tariff,
) -> Result<Step, TimeError> {
    let speeds = machine.speeds_to_serve(job)?;
    let clock = Clock { speeds: &speeds, curve: &machine.curve, tariff };
    Ok(serve(job, layout, &clock)?.0)
}

/// Sort key, smaller is better: SLO violation, then the inverse throughput in units small enough to avoid ties from
/// rounding.
fn order(service: &Service) -> (bool, u128) {
    (!service.late.is_empty(), (1e24 / service.tokens_per_s.max(f64::MIN_POSITIVE)) as u128)
}

/// Returns the best layouts by estimate among those that fit the memory.
fn promising(
    job: &Serving,
    machine: &Machine<'_>,
    (clock, memory): (&Clock<'_>, Option<Memories>),
) -> Result<Vec<Layout>, TimeError> {
    // SLO limits only reduce the requests, so a layout that fits at full load fits in any case.
    let filled = |layout: &Layout| job.filled(layout, memory);
    let found = shortlist(
        SIMULATED,
        possible(job, machine),
        |layout| {
            let room = room(&filled(layout), layout, memory.unwrap_or(Memories::UNLIMITED));
            room.beyond.is_none() && room.beyond_host.is_none()
        },
        |layout| serving_footprint(&filled(layout), layout).total(),
        |layout| Ok(order(&serve(&loaded(job, layout, memory, clock)?, layout, clock)?.1)),
    )?;
    Ok(found.into_iter().map(|(_, layout)| layout).collect())
}

/// Returns the layout with sequence parallelism (as in vLLM); `None` for a single tensor-parallel rank.
fn of_divided_sequences(Layout { degrees }: Layout) -> Option<Layout> {
    (degrees.tensor > 1).then_some(Layout { degrees: Degrees { sequence: Sequence::Divided, ..degrees } })
}

/// Returns all layouts whose degrees divide the model and the ranks.
fn possible(job: &Serving, machine: &Machine<'_>) -> Vec<Layout> {
    let ranks = machine.ranks.len() as u32;
    let near = machine.ranks_per_domain();
    let divisors = |of: u32, most: u32| (1..=most.min(of)).filter(move |by| of.is_multiple_of(*by));
    let stages = u32::try_from(job.model.layers).unwrap_or(u32::MAX);
    let mut found = Vec::new();
    for tensor in divisors(ranks, near) {
        for pipeline in divisors(ranks / tensor, stages) {
            let data = ranks / tensor / pipeline;
            let most = u32::try_from(job.expert_slots()).unwrap_or(u32::MAX).max(1);
            for expert in divisors(data, most) {
                let degrees = Degrees { tensor, pipeline, data, expert, ..Degrees::default() };
                found.extend(Layout::serving(job, ranks, degrees).ok());
            }
        }
    }
    found
}
