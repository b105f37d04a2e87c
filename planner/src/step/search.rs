//! Search for the parallel degrees of a job that leaves them open: all layouts that fit are estimated, the best are
//! simulated, and those whose lower bound exceeds the best time are skipped (`least`).
//!
//! Searched are tensor-parallel degrees up to the GPUs of a host that divide the heads, pipeline degrees that divide
//! the layers, each with the best-estimated number of model chunks per stage (`interleave`), and expert degrees that
//! are powers of two, fill a host or a domain, or are as large as possible, with experts split by tensor-parallel ranks
//! or whole. Sequence parallelism is on, which saves memory; simulated layouts are also tried with it off, and the best
//! one with neighbouring numbers of model chunks. Contexts are split only as long as parts stay long ([`LEAST_PART`]).
//! Layouts that do not fit the memory are left out; if none fits, the one that needs the least memory is used.

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

/// Number of layouts that are simulated for a training job, where hidden communication brings estimates close together.
const SIMULATED_TO_TRAIN: usize = 8;

/// Largest ratio to the best estimate at which a layout is simulated: estimates are more accurate than that (a test).
const WORTH_A_LOOK: f64 = 1.6;

/// Smallest number of tokens per rank when sequences are split over context-parallel ranks.
const LEAST_PART: u64 = 8192;

/// Largest number of model chunks per stage; each adds as many pipeline transfers again.
const MOST_STRETCHES: u32 = 10;

/// Returns the `most` layouts with the least estimates among those that fit; if none fits, the one that needs the least
/// memory. Ties are broken by smaller degrees.
///
/// # Errors
/// Errors of `estimate`.
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
    // Of layouts that differ only in `interleave`, the best represents all.
    let mut taken: Vec<(E, Layout)> = Vec::with_capacity(most);
    for (estimate, degrees, layout) in ranked {
        let stages = |degrees: Degrees| Degrees { interleave: 1, ..degrees };
        if taken.len() < most && taken.iter().all(|(_, known)| stages(known.degrees) != stages(degrees)) {
            taken.push((estimate, layout));
        }
    }
    Ok(taken)
}

/// Error for a job that no layout divides; `what` names its indivisible quantities.
pub(crate) fn indivisible(place: &Place, ranks: usize, what: &str) -> JobError {
    JobError {
        place: place.clone(),
        message: format!("no division of the job over {ranks} ranks: its {what} do not divide"),
        help: Some("name the degrees that were meant to work, to see why they do not".to_owned()),
    }
}

/// Machine on which jobs run.
pub struct Machine<'a> {
    /// Routes of the fabric.
    pub router: &'a Router<'a>,
    /// Device of each rank.
    pub ranks: &'a [NodeId],
    /// Communication cost model.
    pub simulated: &'a Simulated<'a>,
    /// Kernel efficiency.
    pub curve: Efficiency,
}

impl Machine<'_> {
    /// Memory of the smallest GPU; `None` if a GPU does not state it.
    #[must_use]
    pub fn memory(&self) -> Option<Bytes> {
        let fabric = self.router.fabric();
        let of = |&device: &NodeId| match &fabric.node(device).figures {
            Figures::Gpu(figures) => figures.memory,
            _ => None,
        };
        self.ranks.iter().map(of).collect::<Option<Vec<Bytes>>>()?.into_iter().min()
    }

    /// Number of ranks in the first rank's NVLink domain.
    pub(crate) fn ranks_per_domain(&self) -> u32 {
        let domain = self.ranks.first().map(|&device| self.router.island_of(device));
        self.ranks.iter().filter(|&&device| Some(self.router.island_of(device)) == domain).count() as u32
    }

    /// Number of ranks on the first rank's host.
    fn ranks_per_host(&self) -> u32 {
        let fabric = self.router.fabric();
        let host = self.ranks.first().map(|&device| fabric.node(device).host);
        self.ranks.iter().filter(|&&device| Some(fabric.node(device).host) == host).count() as u32
    }
}

/// Predicts the step of a job, with the degrees that it names or the best ones found, and its memory footprint per GPU.
///
/// # Errors
/// [`TimeError`]: a job that does not fit these ranks, or a call without a predicted time.
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

/// Returns the timeline of a step that [`best_step`] found.
///
/// # Errors
/// See [`best_step`].
pub fn course_of_step(job: &Training, machine: &Machine<'_>, found: &Step) -> Result<Course, TimeError> {
    let speeds = machine.speeds_to_train(job)?;
    course(job, &found.layout, &speeds, &machine.curve, &machine.simulated.allowing(found.collectives))
}

/// Best step over all layouts with unlimited GPU memory, regardless of the degrees that the job names.
///
/// # Errors
/// See [`best_step`].
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
    // The fastest strategy of a call may slow overlapping kernels more, so a job that allows any strategy also tries
    // the library default.
    let kept = (job.collectives == Collectives::Any).then(|| by(Collectives::Library)).transpose()?;
    let faster = kept.filter(|kept| kept.time < own.time).unwrap_or(own);
    Ok((faster, footprint(job, layout)))
}

/// Lower bound on the step of a layout.
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
    // Estimates do not rank numbers of model chunks well.
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

/// Variant of the degrees with sequence parallelism off; `None` if it is off already.
fn of_whole_sequences(degrees: Degrees) -> Option<Degrees> {
    (degrees.sequence == Sequence::Divided).then_some(Degrees { sequence: Sequence::Whole, ..degrees })
}

/// Variants of the degrees with the next smaller and the next larger number of model chunks per stage.
fn with_other_stretches(job: &Training, degrees: Degrees) -> Vec<Degrees> {
    let all: Vec<u32> = stretches(job, degrees).collect();
    let here = all.iter().position(|&one| one == degrees.interleave);
    let near = here.into_iter().flat_map(|here| [here.checked_sub(1), Some(here + 1)]).flatten();
    near.filter_map(|at| all.get(at)).map(|&interleave| Degrees { interleave, ..degrees }).collect()
}

/// Returns the layouts that fit with the least estimates.
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

/// Returns true if the job can be divided among `ranks` ranks with `per_host` ranks per host.
pub(super) fn divides(job: &Training, ranks: u32, per_host: u32) -> bool {
    degrees(job, ranks, per_host).any(|degrees| {
        let layout = Layout::new(job, ranks, degrees).ok();
        layout.is_some_and(|layout| can_be_followed(job, &layout))
    })
}

/// Returns all layouts that the model, the batch and the ranks allow.
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

/// Possible numbers of model chunks per stage.
fn stretches(job: &Training, degrees: Degrees) -> impl Iterator<Item = u32> {
    let layers = (job.model.layers / u64::from(degrees.pipeline)) as u32;
    divisors(layers, if degrees.pipeline > 1 { MOST_STRETCHES } else { 1 })
}

fn divisors(of: u32, most: u32) -> impl Iterator<Item = u32> {
    (1..=most.min(of)).filter(move |by| of.is_multiple_of(*by))
}

/// All degrees for `ranks` ranks with `per_host` per host, without interleaving and with one expert rank.
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

/// Adds expert degrees: powers of two, those that fill a host or a domain (`fill`), and the largest possible. Experts
/// are split by tensor-parallel ranks, or whole as a second variant if there are several such ranks.
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

    /// Contexts are split into parts of at least 8,192 tokens; shorter sequences are not split. Experts spread over all
    /// ranks with other tokens.
    #[test]
    fn context_and_expert_degrees_cover_their_range() {
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

    /// Layouts pruned by their lower bound could not have been the best.
    #[test]
    fn pruned_search_finds_best_shortlisted_layout() {
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
