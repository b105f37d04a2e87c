//! Search for the parallel degrees of a job that leaves them open: all layouts that fit are estimated, the best are
//! simulated, and those whose lower bound exceeds the best time are skipped (`step_lower_bound`).
//!
//! The search covers tensor-parallel degrees up to the GPUs of a host that divide the heads, pipeline degrees that
//! divide the layers, each with the best-estimated number of model chunks per stage (`interleave`), and expert degrees
//! that are powers of two, fill a host or a domain, or are as large as possible, with experts split by tensor-parallel
//! ranks or whole. Sequence parallelism is on, which saves memory; simulated layouts are also tried with it off and with
//! neighbouring numbers of model chunks, as long as these are faster. Contexts are split only as long as each part has at least
//! [`MIN_CONTEXT_TOKENS`] tokens. Layouts that do not fit the memory are excluded; if none fits, the one that needs the
//! least memory is used.

use fabricast_topologies::{Bytes, Picos};

use super::machine::Machine;
use super::peak_rates::PeakRates;
use super::prediction::{step, step_timeline};
use super::shortlist::{indivisible_error, shortlist};
use super::step_lower_bound::LowerBoundCosts;
use super::step_result::{Step, TimeError};
use super::step_timing::is_schedulable;
use super::timeline::Timeline;
use crate::communication::{EstimatedCosts, JobDispatch};
use fabricast_workload::job::{
    CollectiveCandidates, Degrees, ExpertSharding, Footprint, JobError, Layout, MemoryLimits, Processes,
    SequenceParallelism, Training, footprint,
};

/// Number of layouts that are simulated for a training job. Hidden communication brings their estimates close together.
const MAX_SIMULATED_LAYOUTS: usize = 8;

/// Largest ratio to the best estimate at which a layout is simulated; a test checks that estimates are more accurate
/// than that.
const MAX_ESTIMATE_RATIO: f64 = 1.6;

/// Smallest number of tokens per rank when sequences are split over context-parallel ranks.
const MIN_CONTEXT_TOKENS: u64 = 8192;

/// Largest number of model chunks per stage; each adds pipeline transfers of all micro-batches.
const MAX_MODEL_CHUNKS: u32 = 10;

/// Predicts the step of a job, with the degrees that it names or the best ones found, and its memory footprint per GPU.
///
/// # Errors
/// [`TimeError`]: a job that does not fit these ranks, or a call without a predicted time.
pub fn best_step(job: &Training, machine: &Machine<'_>) -> Result<(Step, Footprint), TimeError> {
    let ranks = machine.ranks.len() as u32;
    if job.processes == Processes::Single && machine.ranks_per_host() < ranks {
        let message =
            "processes: one process cannot drive the GPUs of several hosts: expected \"per_gpu\", or one host";
        return Err(JobError::at(&job.spans.parallel, message).into());
    }
    match Layout::specified_by(job, ranks)? {
        Some(layout) => {
            JobDispatch::from_training(job).check(machine, &layout)?;
            time_layout(job, machine, &machine.training_rates(job)?, &layout)
        }
        None => search_layouts(job, machine, machine.memories(&job.placement).unwrap_or(MemoryLimits::UNLIMITED)),
    }
}

/// Returns the timeline of a step that [`best_step`] found.
///
/// # Errors
/// See [`best_step`].
pub fn best_step_timeline(job: &Training, machine: &Machine<'_>, step: &Step) -> Result<Timeline, TimeError> {
    let speeds = machine.training_rates(job)?;
    step_timeline(job, &step.layout, &speeds, &machine.curve, &machine.simulated.restricted_to(step.collectives))
}

/// Predicts the best step over all layouts with unlimited GPU memory, regardless of the degrees that the job names.
///
/// # Errors
/// See [`best_step`].
pub fn unbounded_step(job: &Training, machine: &Machine<'_>) -> Result<(Step, Footprint), TimeError> {
    search_layouts(job, machine, MemoryLimits::UNLIMITED)
}

fn time_layout(
    job: &Training,
    machine: &Machine<'_>,
    speeds: &PeakRates,
    layout: &Layout,
) -> Result<(Step, Footprint), TimeError> {
    let time_with = |collectives: CollectiveCandidates| -> Result<Step, TimeError> {
        let costs = machine.simulated.restricted_to(collectives);
        Ok(Step { collectives, ..step(job, layout, speeds, &machine.curve, &costs)? })
    };
    let requested = time_with(job.collectives)?;
    // The fastest strategy of a call may slow overlapping kernels more, so a job that allows any strategy also tries
    // the library default.
    let library_default =
        (job.collectives == CollectiveCandidates::Any).then(|| time_with(CollectiveCandidates::Library)).transpose()?;
    let faster = library_default.filter(|library_default| library_default.time < requested.time).unwrap_or(requested);
    Ok((faster, footprint(job, layout)))
}

/// Lower bound on the completion time of a step with a layout.
fn step_lower_bound(
    job: &Training,
    machine: &Machine<'_>,
    speeds: &PeakRates,
    layout: &Layout,
) -> Result<Picos, TimeError> {
    let costs = machine.simulated.restricted_to(job.collectives);
    let lower_bounds =
        LowerBoundCosts::new(job, layout, |layout: &Layout, exchange| costs.lower_bound(layout, exchange), &costs);
    Ok(step(job, layout, speeds, &machine.curve, &lower_bounds)?.time)
}

fn search_layouts(
    job: &Training,
    machine: &Machine<'_>,
    memories: MemoryLimits,
) -> Result<(Step, Footprint), TimeError> {
    let speeds = machine.training_rates(job)?;
    // Returns the fastest of `best` and some layouts. Those whose lower bound is not faster are not simulated.
    let update_best = |mut best: Option<(Step, Footprint)>, layouts: Vec<Layout>| -> Result<_, TimeError> {
        for layout in layouts {
            if let Some((known, _)) = &best
                && step_lower_bound(job, machine, &speeds, &layout)? >= known.time
            {
                continue;
            }
            let timed = time_layout(job, machine, &speeds, &layout)?;
            if best.as_ref().is_none_or(|(known, _)| timed.0.time < known.time) {
                best = Some(timed);
            }
        }
        Ok(best)
    };
    let ranks = machine.ranks.len();
    let fitting_layout = |degrees: Degrees| {
        let layout = Layout::new(job, ranks as u32, degrees).ok()?;
        (is_schedulable(job, &layout) && footprint(job, &layout).fits(memories)).then_some(layout)
    };
    let sequence_variants = |layout: Layout| {
        let undivided = without_sequence_parallelism(layout.degrees).and_then(fitting_layout);
        std::iter::once(layout).chain(undivided)
    };
    let mut best: Option<(Step, Footprint)> = None;
    for layout in shortlisted_layouts(job, machine, &speeds, memories)? {
        best = update_best(best, sequence_variants(layout).collect())?;
        // Estimates do not rank numbers of model chunks well.
        let mut interleave = layout.degrees.interleave;
        let mut examined = vec![interleave];
        loop {
            let neighbours = with_neighbouring_chunks(job, Degrees { interleave, ..layout.degrees }).into_iter();
            let unknown = neighbours.filter(|degrees| !examined.contains(&degrees.interleave));
            let layouts: Vec<Layout> = unknown.filter_map(fitting_layout).collect();
            examined.extend(layouts.iter().map(|layout| layout.degrees.interleave));
            let previous_time = best.as_ref().map(|(step, _)| step.time);
            best = update_best(best, layouts.into_iter().flat_map(sequence_variants).collect())?;
            match &best {
                Some((step, _)) if Some(step.time) < previous_time => interleave = step.layout.degrees.interleave,
                _ => break,
            }
        }
    }
    let quantities =
        if job.shard.is_some() { "heads, layers, batch or replicas by shard" } else { "heads, layers or batch" };
    best.ok_or_else(|| indivisible_error(&job.spans.parallel, ranks, quantities).into())
}

/// Returns the degrees with sequence parallelism off; `None` if it is off already.
fn without_sequence_parallelism(degrees: Degrees) -> Option<Degrees> {
    (degrees.sequence == SequenceParallelism::TensorSharded)
        .then_some(Degrees { sequence: SequenceParallelism::Undivided, ..degrees })
}

/// Returns the degrees with the next smaller and the next larger number of model chunks per stage.
fn with_neighbouring_chunks(job: &Training, degrees: Degrees) -> Vec<Degrees> {
    let all: Vec<u32> = model_chunks(job, degrees).collect();
    let index = all.iter().position(|&one| one == degrees.interleave);
    let neighbours = index.into_iter().flat_map(|index| [index.checked_sub(1), Some(index + 1)]).flatten();
    neighbours.filter_map(|at| all.get(at)).map(|&interleave| Degrees { interleave, ..degrees }).collect()
}

/// Returns the layouts with the lowest estimates among those that fit the memory, best first.
fn shortlisted_layouts(
    job: &Training,
    machine: &Machine<'_>,
    speeds: &PeakRates,
    memories: MemoryLimits,
) -> Result<Vec<Layout>, TimeError> {
    let estimated = EstimatedCosts::new(machine.simulated);
    let shortlisted = shortlist(
        MAX_SIMULATED_LAYOUTS,
        JobDispatch::from_training(job).supported_layouts(machine, possible_layouts(job, machine))?,
        |layout| footprint(job, layout).fits(memories),
        |layout| {
            let required = footprint(job, layout);
            Bytes(required.total().0 + required.host.0)
        },
        |layout| Ok(step(job, layout, speeds, &machine.curve, &estimated)?.time),
    )?;
    let best_estimate = shortlisted.first().map_or(0.0, |(estimate, _)| estimate.0 as f64);
    let is_promising = |(estimate, _): &(Picos, Layout)| estimate.0 as f64 <= best_estimate * MAX_ESTIMATE_RATIO;
    Ok(shortlisted.into_iter().filter(is_promising).map(|(_, layout)| layout).collect())
}

/// Returns true if some layout divides the job among `ranks` ranks with `per_host` ranks per host.
pub(super) fn is_divisible(job: &Training, ranks: u32, per_host: u32) -> bool {
    degrees(job, ranks, per_host).any(|degrees| {
        let layout = Layout::new(job, ranks, degrees).ok();
        layout.is_some_and(|layout| is_schedulable(job, &layout))
    })
}

/// Returns all layouts that the model, the batch and the ranks allow.
fn possible_layouts(job: &Training, machine: &Machine<'_>) -> Vec<Layout> {
    let ranks = machine.ranks.len() as u32;
    let fill = [machine.ranks_per_host(), machine.ranks_per_domain()];
    let mut layouts = Vec::new();
    for one in degrees(job, ranks, machine.ranks_per_host()) {
        for degrees in with_experts(job, one, fill) {
            layouts.extend(model_chunks(job, degrees).filter_map(|interleave| {
                let layout = Layout::new(job, ranks, Degrees { interleave, ..degrees }).ok();
                layout.filter(|layout| is_schedulable(job, layout))
            }));
        }
    }
    layouts
}

/// Possible numbers of model chunks per stage for these degrees, ascending.
fn model_chunks(job: &Training, degrees: Degrees) -> impl Iterator<Item = u32> {
    let layers = (job.model.layers / u64::from(degrees.pipeline)) as u32;
    divisors(layers, if degrees.pipeline > 1 { MAX_MODEL_CHUNKS } else { 1 })
}

fn divisors(n: u32, max: u32) -> impl Iterator<Item = u32> {
    (1..=max.min(n)).filter(move |divisor| n.is_multiple_of(*divisor))
}

/// All degrees for `ranks` ranks with `per_host` per host, without interleaving and with one expert rank.
fn degrees(job: &Training, ranks: u32, per_host: u32) -> impl Iterator<Item = Degrees> {
    let layers = u32::try_from(job.model.layers).unwrap_or(u32::MAX);
    let contexts = u32::try_from(job.model.seq / MIN_CONTEXT_TOKENS).unwrap_or(u32::MAX).max(1);
    divisors(ranks, per_host).flat_map(move |tensor| {
        let sequence = if tensor > 1 { SequenceParallelism::TensorSharded } else { SequenceParallelism::Undivided };
        divisors(ranks / tensor, layers).flat_map(move |pipeline| {
            let replicas = ranks / tensor / pipeline;
            divisors(replicas, contexts).map(move |context| {
                let data = replicas / context;
                Degrees { tensor, pipeline, context, data, sequence, ..Degrees::default() }
            })
        })
    })
}

/// Returns the degrees with each candidate for the expert degree: powers of two, those that fill a host or a domain
/// (`fill`, in ranks), and the largest possible. Experts are split by tensor-parallel ranks, or whole as a second
/// variant if there are several such ranks.
fn with_experts(job: &Training, degrees: Degrees, fill: [u32; 2]) -> impl Iterator<Item = Degrees> {
    let expert_count = u32::try_from(job.model.experts).unwrap_or(u32::MAX);
    let whole_experts = (degrees.tensor > 1 && expert_count > 0).then_some(ExpertSharding::Whole);
    [ExpertSharding::Divided].into_iter().chain(whole_experts).flat_map(move |experts| {
        let degrees = Degrees { experts, ..degrees };
        let ranks = degrees.expert_ranks();
        let divides = move |degree: &u32| ranks.is_multiple_of(*degree) && expert_count.is_multiple_of(*degree);
        let max_degree = (1..=expert_count.clamp(1, ranks)).rev().find(divides).unwrap_or(1);
        // Ranks that share an expert are neighbours.
        let fills = move |degree: u32| fill.contains(&degree.saturating_mul(degrees.expert_tensor()));
        let is_candidate = move |degree: &u32| degree.is_power_of_two() || fills(*degree) || *degree == max_degree;
        (1..=max_degree).filter(divides).filter(is_candidate).map(move |expert| Degrees { expert, ..degrees })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::tests::{rails, read, with_machine};

    /// Contexts are split into parts of at least 8,192 tokens; shorter sequences are not split. Experts spread over all
    /// ranks with other tokens.
    #[test]
    fn context_and_expert_degrees_cover_their_range() {
        let fabric = rails(2);
        let possible_degrees = |seq: u64, experts: u64| {
            let job = read(&format!(
                "name = \"j\"\nglobal_batch = 16\nparallel = \"auto\"\nmodel = {{ layers = 8, hidden = 1024, heads = 8, vocab = 1024, \
                 seq = {seq}, experts = {experts}, experts_per_token = {} }}\n",
                experts.min(1)
            ));
            with_machine(&fabric, |machine| possible_layouts(&job, machine))
                .into_iter()
                .map(|layout| layout.degrees)
                .collect::<Vec<_>>()
        };
        let max_context = |all: &[Degrees]| all.iter().map(|degrees| degrees.context).max().unwrap();
        assert_eq!([8192, 65_536, 1 << 20].map(|seq| max_context(&possible_degrees(seq, 0))), [1, 8, 16]);
        let all_degrees = possible_degrees(65_536, 64);
        let contains = |degrees: Degrees| all_degrees.contains(&degrees);
        let base = Degrees {
            tensor: 4,
            data: 2,
            context: 2,
            sequence: SequenceParallelism::TensorSharded,
            ..Degrees::default()
        };
        assert!(
            contains(Degrees { expert: 4, ..base })
                && contains(Degrees { expert: 16, experts: ExpertSharding::Whole, ..base })
        );
    }

    /// Layouts pruned by their lower bound could not have been the best.
    #[test]
    fn pruned_search_finds_best_shortlisted_layout() {
        let fabric = rails(4);
        let pruned = with_machine(&fabric, |machine| {
            let mut pruned = 0;
            for (layers, hidden, batch, zero) in
                [(8, 1024, 64, 1), (32, 4096, 256, 0), (16, 8192, 64, 3), (24, 2048, 32, 2)]
            {
                let job = read(&format!(
                    "name = \"j\"\nglobal_batch = {batch}\nzero = {zero}\nflash_attention = true\nparallel = \"auto\"\n\
                     model = {{ layers = {layers}, hidden = {hidden}, heads = 32, vocab = 32000, seq = 2048 }}\n",
                ));
                let speeds = machine.training_rates(&job).unwrap();
                let layouts = shortlisted_layouts(&job, machine, &speeds, MemoryLimits::UNLIMITED).unwrap();
                let steps: Vec<Step> =
                    layouts.iter().map(|layout| time_layout(&job, machine, &speeds, layout).unwrap().0).collect();
                let best = steps.iter().min_by_key(|step| step.time).unwrap();
                assert_eq!(&unbounded_step(&job, machine).unwrap().0, best);
                for (layout, step) in layouts.iter().zip(&steps) {
                    let lower_bound = step_lower_bound(&job, machine, &speeds, layout).unwrap();
                    assert!(lower_bound <= step.time, "{lower_bound} {}", step.time);
                    pruned += usize::from(lower_bound >= best.time && step != best);
                }
            }
            pruned
        });
        assert!(pruned > 0);
    }
}
