//! Degrees that nobody named: all that fit are estimated, and the best of them simulated, less those that cannot be faster than
//! one that was (`least`).
//!
//! Tried are tensor-parallel degrees up to the GPUs of a host that divide the heads, stages that divide the layers, each with the
//! stretches of layers (`interleave`) that the estimate likes best, and experts among two, four, eight and more ranks, those that fill a host or
//! a domain, and as many as there are, in parts by tensor-parallel ranks or whole. Sequences are divided
//! between tensor-parallel ranks, which saves memory; of what is simulated, whole ones are, too, and with the best the next fewer and more
//! stretches. Contexts are divided where parts stay long ([`LEAST_PART`]). What does not fit
//! the memory is left out; where nothing fits, what comes nearest is taken.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, NodeId, Picos, Place};

pub use super::TimeError as StepError;
use super::least::LeastTimes;
use super::timing::can_be_followed;
use super::{Course, Efficiency, Estimated, Simulated, Speeds, Step, TimeError, course, step};
use crate::job::{
    Collectives, Degrees, Experts, Footprint, JobError, Layout, Memories, Processes, Sequence, Training, footprint,
};

/// The most of a training job's, whose estimates lie closer together: calls hide behind kernels.
const SIMULATED_TO_TRAIN: usize = 8;

/// What takes so much longer than the best by estimate is not simulated: estimates are wrong by less than that (a test).
const WORTH_A_LOOK: f64 = 1.6;

/// Tokens that a rank keeps of a sequence at least where contexts are looked for: shorter sequences are trained whole.
const LEAST_PART: u64 = 8192;

/// More stretches of layers on a stage are not tried: each hands over as often again.
const MOST_STRETCHES: u32 = 10;

/// So many of the best by estimate of layouts that fit; where none does, of what comes nearest. Less is better; of equals the
/// smaller degrees come first.
///
/// # Errors
/// What `estimate` says.
pub(crate) fn shortlist<E: Ord + Copy>(
    most: usize,
    all: Vec<Layout>,
    fits: impl Fn(&Layout) -> bool,
    total: impl Fn(&Layout) -> Bytes,
    estimate: impl Fn(&Layout) -> Result<E, TimeError>,
) -> Result<Vec<(E, Layout)>, TimeError> {
    let mut fitting: Vec<Layout> = all.iter().copied().filter(fits).collect();
    if fitting.is_empty() {
        fitting = all.into_iter().min_by_key(|layout| (total(layout), layout.degrees)).into_iter().collect();
    }
    let mut ranked = Vec::with_capacity(fitting.len());
    for layout in fitting {
        ranked.push((estimate(&layout)?, layout.degrees, layout));
    }
    ranked.sort_by_key(|&(estimate, degrees, _)| (estimate, degrees));
    // Of layouts that differ in their stretches alone, the best stands for all.
    let mut taken: Vec<(E, Layout)> = Vec::with_capacity(most);
    for (estimate, degrees, layout) in ranked {
        let stages = |degrees: Degrees| Degrees { interleave: 1, ..degrees };
        if taken.len() < most && taken.iter().all(|(_, known)| stages(known.degrees) != stages(degrees)) {
            taken.push((estimate, layout));
        }
    }
    Ok(taken)
}

/// That nothing divides the job; `what` of it does not.
pub(crate) fn indivisible(place: &Place, ranks: usize, what: &str) -> JobError {
    JobError {
        place: place.clone(),
        message: format!("no division of the job over {ranks} ranks: its {what} do not divide"),
        help: Some("name the degrees that were meant to work, to see why they do not".to_owned()),
    }
}

/// Where jobs run.
pub struct Machine<'a> {
    /// Routes of the fabric.
    pub router: &'a Router<'a>,
    /// The device of each rank.
    pub ranks: &'a [NodeId],
    /// What calls take.
    pub simulated: &'a Simulated<'a>,
    /// How long kernels take.
    pub curve: Efficiency,
}

impl Machine<'_> {
    /// The memory of the smallest GPU; `None` where one does not say.
    #[must_use]
    pub fn memory(&self) -> Option<Bytes> {
        let fabric = self.router.fabric();
        let of = |&device: &NodeId| match &fabric.node(device).figures {
            Figures::Gpu(figures) => figures.memory,
            _ => None,
        };
        self.ranks.iter().map(of).collect::<Option<Vec<Bytes>>>()?.into_iter().min()
    }

    /// Ranks of the first rank's NVLink domain.
    pub(crate) fn ranks_per_domain(&self) -> u32 {
        let domain = self.ranks.first().map(|&device| self.router.island_of(device));
        self.ranks.iter().filter(|&&device| Some(self.router.island_of(device)) == domain).count() as u32
    }

    /// Ranks of the first rank's host.
    fn ranks_per_host(&self) -> u32 {
        let fabric = self.router.fabric();
        let host = self.ranks.first().map(|&device| fabric.node(device).host);
        self.ranks.iter().filter(|&&device| Some(fabric.node(device).host) == host).count() as u32
    }
}

/// A job's step, with the degrees that it names or the best that are found, and what it takes of a GPU's memory.
///
/// # Errors
/// [`TimeError`]: a job that cannot be on these ranks, or a call without a price.
pub fn best_step(job: &Training, machine: &Machine<'_>) -> Result<(Step, Footprint), TimeError> {
    let ranks = machine.ranks.len() as u32;
    if job.processes == Processes::Single && machine.ranks_per_host() < ranks {
        let message =
            "processes: one process cannot drive the GPUs of several hosts: expected \"per_gpu\", or one host";
        return Err(JobError::at(&job.places.parallel, message).into());
    }
    match Layout::given(job, ranks)? {
        Some(layout) => timed(job, machine, &machine.speeds_to_train(job)?, &layout),
        None => searched(job, machine, machine.memories(&job.placement).unwrap_or(Memories::UNLIMITED)),
    }
}

/// The course of a step that [`best_step`] found.
///
/// # Errors
/// As [`best_step`].
pub fn course_of_step(job: &Training, machine: &Machine<'_>, found: &Step) -> Result<Course, TimeError> {
    let speeds = machine.speeds_to_train(job)?;
    course(job, &found.layout, &speeds, &machine.curve, &machine.simulated.allowing(found.collectives))
}

/// The best of all divisions on GPUs with memory enough, whatever degrees the job names.
///
/// # Errors
/// As [`best_step`].
pub fn unbounded_step(job: &Training, machine: &Machine<'_>) -> Result<(Step, Footprint), TimeError> {
    searched(job, machine, Memories::UNLIMITED)
}

fn timed(
    job: &Training,
    machine: &Machine<'_>,
    speeds: &Speeds,
    layout: &Layout,
) -> Result<(Step, Footprint), TimeError> {
    let by = |collectives: Collectives| -> Result<Step, TimeError> {
        let allowed = machine.simulated.allowing(collectives);
        Ok(Step { collectives, ..step(job, layout, speeds, &machine.curve, &allowed)? })
    };
    let own = by(job.collectives)?;
    // A call that is the fastest by itself may slow kernels beside it by more: who may do anything may do what the library does.
    let kept = (job.collectives == Collectives::Any).then(|| by(Collectives::Library)).transpose()?;
    let faster = kept.filter(|kept| kept.time < own.time).unwrap_or(own);
    Ok((faster, footprint(job, layout)))
}

/// No more than the step of a layout takes.
fn least_step(job: &Training, machine: &Machine<'_>, speeds: &Speeds, layout: &Layout) -> Result<Picos, TimeError> {
    let allowed = machine.simulated.allowing(job.collectives);
    let least = LeastTimes::of(job, layout, |layout: &Layout, exchange| allowed.least(layout, exchange));
    Ok(step(job, layout, speeds, &machine.curve, &least)?.time)
}

fn searched(job: &Training, machine: &Machine<'_>, memories: Memories) -> Result<(Step, Footprint), TimeError> {
    let speeds = machine.speeds_to_train(job)?;
    let best_of = |mut best: Option<(Step, Footprint)>, layouts: Vec<Layout>| -> Result<_, TimeError> {
        for layout in layouts {
            if let Some((known, _)) = &best
                && least_step(job, machine, &speeds, &layout)? >= known.time
            {
                continue;
            }
            let found = timed(job, machine, &speeds, &layout)?;
            if best.as_ref().is_none_or(|(known, _)| found.0.time < known.time) {
                best = Some(found);
            }
        }
        Ok(best)
    };
    let ranks = machine.ranks.len();
    let that_fits = |degrees: Degrees| {
        let layout = Layout::new(job, ranks as u32, degrees).ok()?;
        (can_be_followed(job, &layout) && footprint(job, &layout).fits(memories)).then_some(layout)
    };
    let with_whole = |layout: Layout| {
        let whole = of_whole_sequences(layout.degrees).and_then(that_fits);
        std::iter::once(layout).chain(whole)
    };
    let mut best =
        best_of(None, promising(job, machine, &speeds, memories)?.into_iter().flat_map(with_whole).collect())?;
    // The estimate is no judge of stretches.
    let mut before = None;
    while let Some((step, _)) = &best
        && before != Some(step.layout.degrees)
    {
        before = Some(step.layout.degrees);
        let near = with_other_stretches(job, step.layout.degrees).into_iter().filter_map(that_fits).collect();
        best = best_of(best, near)?;
    }
    let what = if job.shard.is_some() { "heads, layers, batch or copies by shard" } else { "heads, layers or batch" };
    best.ok_or_else(|| indivisible(&job.places.parallel, ranks, what).into())
}

/// The same with sequences that tensor-parallel ranks keep whole.
fn of_whole_sequences(degrees: Degrees) -> Option<Degrees> {
    (degrees.sequence == Sequence::Divided).then_some(Degrees { sequence: Sequence::Whole, ..degrees })
}

/// The same with the next fewer stretches of layers on each stage, and the next more.
fn with_other_stretches(job: &Training, degrees: Degrees) -> Vec<Degrees> {
    let all: Vec<u32> = stretches(job, degrees).collect();
    let here = all.iter().position(|&one| one == degrees.interleave);
    let near = here.into_iter().flat_map(|here| [here.checked_sub(1), Some(here + 1)]).flatten();
    near.filter_map(|at| all.get(at)).map(|&interleave| Degrees { interleave, ..degrees }).collect()
}

/// The best by estimate, of those that fit.
fn promising(
    job: &Training,
    machine: &Machine<'_>,
    speeds: &Speeds,
    memories: Memories,
) -> Result<Vec<Layout>, TimeError> {
    let estimated = Estimated::new(machine.simulated);
    let found = shortlist(
        SIMULATED_TO_TRAIN,
        possible(job, machine),
        |layout| footprint(job, layout).fits(memories),
        |layout| {
            let has = footprint(job, layout);
            Bytes(has.total().0 + has.host.0)
        },
        |layout| Ok(step(job, layout, speeds, &machine.curve, &estimated)?.time),
    )?;
    let least = found.first().map_or(0.0, |(estimate, _)| estimate.0 as f64);
    let is_worth = |(estimate, _): &(Picos, Layout)| estimate.0 as f64 <= least * WORTH_A_LOOK;
    Ok(found.into_iter().filter(is_worth).map(|(_, layout)| layout).collect())
}

/// Whether there is any division of a job among so many ranks, so many to a host.
pub(super) fn divides(job: &Training, ranks: u32, per_host: u32) -> bool {
    degrees(job, ranks, per_host).any(|degrees| {
        let layout = Layout::new(job, ranks, degrees).ok();
        layout.is_some_and(|layout| can_be_followed(job, &layout))
    })
}

/// All that the model, the batch and the ranks divide by.
fn possible(job: &Training, machine: &Machine<'_>) -> Vec<Layout> {
    let ranks = machine.ranks.len() as u32;
    let fill = [machine.ranks_per_host(), machine.ranks_per_domain()];
    let mut found = Vec::new();
    for one in degrees(job, ranks, machine.ranks_per_host()) {
        for degrees in with_experts(job, one, fill) {
            found.extend(stretches(job, degrees).filter_map(|interleave| {
                let layout = Layout::new(job, ranks, Degrees { interleave, ..degrees }).ok();
                layout.filter(|layout| can_be_followed(job, layout))
            }));
        }
    }
    found
}

/// How many stretches of layers a stage may have.
fn stretches(job: &Training, degrees: Degrees) -> impl Iterator<Item = u32> {
    let layers = (job.model.layers / u64::from(degrees.pipeline)) as u32;
    divisors(layers, if degrees.pipeline > 1 { MOST_STRETCHES } else { 1 })
}

fn divisors(of: u32, most: u32) -> impl Iterator<Item = u32> {
    (1..=most.min(of)).filter(move |by| of.is_multiple_of(*by))
}

/// All ways to go round so many ranks, so many to a host: without stretches, and experts on each.
fn degrees(job: &Training, ranks: u32, per_host: u32) -> impl Iterator<Item = Degrees> {
    let layers = u32::try_from(job.model.layers).unwrap_or(u32::MAX);
    let contexts = u32::try_from(job.model.seq / LEAST_PART).unwrap_or(u32::MAX).max(1);
    divisors(ranks, per_host).flat_map(move |tensor| {
        let sequence = if tensor > 1 { Sequence::Divided } else { Sequence::Whole };
        divisors(ranks / tensor, layers).flat_map(move |pipeline| {
            let copies = ranks / tensor / pipeline;
            divisors(copies, contexts).map(move |context| {
                let data = copies / context;
                Degrees { tensor, pipeline, context, data, sequence, ..Degrees::default() }
            })
        })
    })
}

/// With experts divided among two, four and so on, among those of a host and of a domain (`fill`), and as far as they go: in parts by
/// tensor-parallel ranks, and whole where there are several of these.
fn with_experts(job: &Training, degrees: Degrees, fill: [u32; 2]) -> impl Iterator<Item = Degrees> {
    let all = u32::try_from(job.model.experts).unwrap_or(u32::MAX);
    let whole = (degrees.tensor > 1 && all > 0).then_some(Experts::Whole);
    [Experts::Divided].into_iter().chain(whole).flat_map(move |experts| {
        let degrees = Degrees { experts, ..degrees };
        let among = degrees.expert_ranks();
        let divides = move |by: &u32| among.is_multiple_of(*by) && all.is_multiple_of(*by);
        let most = (1..=all.clamp(1, among)).rev().find(divides).unwrap_or(1);
        // Ranks that share an expert are neighbours.
        let fills = move |by: u32| fill.contains(&by.saturating_mul(degrees.expert_tensor()));
        let some = move |by: &u32| by.is_power_of_two() || fills(*by) || *by == most;
        (1..=most).filter(divides).filter(some).map(move |expert| Degrees { expert, ..degrees })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::tests::{on, rails, read};

    /// Long sequences are divided into parts of 8,192 tokens at least, shorter ones are not; experts go round all that have other tokens.
    #[test]
    fn contexts_and_experts_are_divided_as_far_as_they_go() {
        let fabric = rails(2);
        let found = |seq: u64, experts: u64| {
            let job = read(&format!(
                "name = \"j\"\nglobal_batch = 16\nparallel = \"auto\"\nmodel = {{ layers = 8, hidden = 1024, heads = 8, vocab = 1024, \
                 seq = {seq}, experts = {experts}, experts_per_token = {} }}\n",
                experts.min(1)
            ));
            on(&fabric, |machine| possible(&job, machine)).into_iter().map(|layout| layout.degrees).collect::<Vec<_>>()
        };
        let most = |found: &[Degrees]| found.iter().map(|degrees| degrees.context).max().unwrap();
        assert_eq!([8192, 65_536, 1 << 20].map(|seq| most(&found(seq, 0))), [1, 8, 16]);
        let ways = found(65_536, 64);
        let has = |of: Degrees| ways.contains(&of);
        let one = Degrees { tensor: 4, data: 2, context: 2, sequence: Sequence::Divided, ..Degrees::default() };
        assert!(has(Degrees { expert: 4, ..one }) && has(Degrees { expert: 16, experts: Experts::Whole, ..one }));
    }

    /// What is left out could not have been the best.
    #[test]
    fn searches_find_what_is_best_of_all_that_are_promising() {
        let fabric = rails(4);
        let left_out = on(&fabric, |machine| {
            let mut left_out = 0;
            for (layers, hidden, batch, zero) in
                [(8, 1024, 64, 1), (32, 4096, 256, 0), (16, 8192, 64, 3), (24, 2048, 32, 2)]
            {
                let job = read(&format!(
                    "name = \"j\"\nglobal_batch = {batch}\nzero = {zero}\nflash_attention = true\nparallel = \"auto\"\n\
                     model = {{ layers = {layers}, hidden = {hidden}, heads = 32, vocab = 32000, seq = 2048 }}\n",
                ));
                let speeds = machine.speeds_to_train(&job).unwrap();
                let layouts = promising(&job, machine, &speeds, Memories::UNLIMITED).unwrap();
                let all: Vec<Step> =
                    layouts.iter().map(|layout| timed(&job, machine, &speeds, layout).unwrap().0).collect();
                let best = all.iter().min_by_key(|step| step.time).unwrap();
                assert_eq!(&unbounded_step(&job, machine).unwrap().0, best);
                for (layout, step) in layouts.iter().zip(&all) {
                    let least = least_step(&job, machine, &speeds, layout).unwrap();
                    assert!(least <= step.time, "{least} {}", step.time);
                    left_out += usize::from(least >= best.time && step != best);
                }
            }
            left_out
        });
        assert!(left_out > 0);
    }
}
