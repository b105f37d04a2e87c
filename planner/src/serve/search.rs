//! Degrees that nobody named: all that fit are estimated, and the best of them simulated.
//!
//! Tried are tensor-parallel degrees up to the GPUs of an NVLink domain that divide the heads, stages that divide the layers,
//! and all ways to divide experts and their second copies among replicas. The best is what answers the most tokens within
//! the job's limits; where nothing keeps them, what answers the most. What does not fit the memory is left out; where
//! nothing fits, what comes nearest is taken.

use super::{Clock, Service, courses, serve};
use crate::job::{
    Arrivals, Degrees, Footprint, JobError, Layout, Limits, Loaded, Memories, Room, Sequence, Serving, room,
    serving_footprint,
};
use crate::plan::PlanError;
use crate::step::{Course, Estimated, Machine, Step, Tariff, TimeError, indivisible, shortlist};

/// How many layouts are simulated, of those that are best by estimate, each with sequences that tensor-parallel ranks divide and with whole
/// ones.
const SIMULATED: usize = 6;

/// A job's steps and what its requests see, with the degrees that it names or the best that are found, and what it takes of a
/// GPU's memory.
///
/// # Errors
/// [`TimeError`]: a job that cannot be on these ranks, or a call without a price.
pub fn best_service(job: &Serving, machine: &Machine<'_>) -> Result<(Step, Footprint, Service), TimeError> {
    within(job, machine, machine.memories(&job.placement))
}

/// The same, were there memory enough; of requests that fill the memory, with what there is.
///
/// # Errors
/// As [`best_service`]; and a memory that is to be filled and holds no request.
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

/// A job with the requests in flight that it says, or as many as memory and limits leave each replica: where a few more break a limit, no
/// more are tried.
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
    // Twice as many until limits break, or the memory is full; then halves between.
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

/// The courses of the steps that [`best_service`] found, as [`courses`] tells them.
///
/// # Errors
/// As [`best_service`].
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

/// The mean step of a job divided so, whose calls take what `tariff` says.
///
/// # Errors
/// As [`best_service`].
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

/// Less is better: limits that are broken, and the time of a token in parts of a second so small that none is the same as another's by
/// rounding.
fn order(service: &Service) -> (bool, u128) {
    (!service.late.is_empty(), (1e24 / service.tokens_per_s.max(f64::MIN_POSITIVE)) as u128)
}

/// The best by estimate, of those that fit.
fn promising(
    job: &Serving,
    machine: &Machine<'_>,
    (clock, memory): (&Clock<'_>, Option<Memories>),
) -> Result<Vec<Layout>, TimeError> {
    // (Requests that limits leave out leave memory, so that what fits full fits.)
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

/// The same with sequences that tensor-parallel ranks divide between matrices (vLLM's sequence parallelism); `None` of one rank.
fn of_divided_sequences(Layout { degrees }: Layout) -> Option<Layout> {
    (degrees.tensor > 1).then_some(Layout { degrees: Degrees { sequence: Sequence::Divided, ..degrees } })
}

/// All that the model and the ranks divide by.
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
