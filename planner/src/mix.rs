//! Calls of a job and their frequencies, which are the sizes and weights of a plan for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, NodeId};
use rayon::prelude::*;

use crate::job::{Arrivals, Collectives, Job, JobError, Layout, Loaded, Processes};
use crate::plan::{PlanError, Row};
use crate::serve;
use crate::step::{self, Exchange, Machine, OwnChoice, Simulated, StepCall, TimeError};
use crate::trace::Trace;

/// Identical call by groups with equivalent placements on the fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeated {
    /// The collective.
    pub collective: Collective,
    /// Message size: the larger buffer, as in nccl-tests.
    pub bytes: Bytes,
    /// Devices of the first group.
    pub devices: Vec<NodeId>,
    /// Number of groups that make the call.
    pub groups: usize,
    /// Mean number of calls per group.
    pub each: f64,
}

/// Call with its plan.
#[derive(Clone, Debug)]
pub struct Weighted {
    /// The call and its frequency.
    pub repeated: Repeated,
    /// Best strategy for the call, and the library's choice.
    pub row: Row,
}

/// Collective, number of ranks, ranks of the group on each NVLink domain (`8`, `2 2`), and bytes.
type Alike = (Collective, usize, Vec<usize>, Bytes);

/// Ranks of each group.
type Groups = Vec<Arc<[u32]>>;

/// Returns the calls of a trace by collective, group placement and size.
#[must_use]
pub fn of_trace(trace: &Trace, simulated: &Simulated<'_>) -> Vec<Repeated> {
    let mut found: BTreeMap<Alike, (Repeated, Groups)> = BTreeMap::new();
    for event in &trace.events {
        let Some(call) = event.what.call() else { continue };
        let devices = simulated.devices(&call.group);
        let mut spread: BTreeMap<u32, usize> = BTreeMap::new();
        for &device in &devices {
            let island = simulated.islands(&[device]).first().copied().unwrap_or_default();
            *spread.entry(island).or_default() += 1;
        }
        let key = (call.collective, call.group.len(), spread.into_values().collect(), call.bytes);
        let first = Repeated { collective: call.collective, bytes: call.bytes, devices, groups: 0, each: 0.0 };
        let (repeated, known) = found.entry(key).or_insert_with(|| (first, Groups::new()));
        // Total over all groups, until all groups are known.
        repeated.each += 1.0;
        if !known.contains(&call.group) {
            known.push(Arc::clone(&call.group));
        }
    }
    let of = |(repeated, groups): (Repeated, Groups)| Repeated {
        groups: groups.len(),
        each: repeated.each / groups.len().max(1) as f64,
        ..repeated
    };
    found.into_values().map(of).collect()
}

/// Returns the calls of a job's step and its parallelism layout, which is given or the best one found. For a trace, see
/// [`of_trace`].
///
/// # Errors
/// Returns [`TimeError`] if the job cannot run on these ranks.
pub fn of_job(job: &Job, machine: &Machine<'_>) -> Result<(Option<Layout>, Vec<Repeated>), TimeError> {
    let ranks = machine.ranks.len() as u32;
    let (layout, calls) = match job {
        Job::Training(job) if job.processes == Processes::Single => {
            let message = "processes: the calls of one process are not planned: expected \"per_gpu\"";
            return Err(JobError::at(&job.places.parallel, message).into());
        }
        Job::Training(job) => {
            let layout = match Layout::given(job, ranks)? {
                Some(layout) => layout,
                None => step::best_step(job, machine)?.0.layout,
            };
            (layout, step::calls(job, &layout))
        }
        Job::Inference(job) => {
            let (layout, in_flight) = match (Layout::given_to_serve(job, ranks)?, job.arrivals) {
                (Some(layout), Arrivals::OneByOne { .. } | Arrivals::Together { .. }) => {
                    (layout, job.filled(&layout, machine.memories(&job.placement)).in_flight)
                }
                _ => {
                    let (step, _, service) = serve::best_service(job, machine)?;
                    (step.layout, service.in_flight)
                }
            };
            (layout, serve::calls(&Loaded { job, in_flight }, &layout))
        }
        Job::Trace(job) => {
            job.trace.check_ranks(machine.ranks.len(), &job.file)?;
            return Ok((None, of_trace(&job.trace, machine.simulated)));
        }
    };
    Ok((Some(layout), of_step(&layout, &calls, machine.simulated)))
}

/// Merges calls of the same groups and size at any time, by dimension, collective and size.
fn of_step(layout: &Layout, calls: &[StepCall], simulated: &Simulated<'_>) -> Vec<Repeated> {
    let mut found: Vec<(Exchange, Repeated)> = Vec::new();
    for call in calls {
        let Exchange { dimension, collective, bytes } = call.exchange;
        let each = call.times() / f64::from(call.stages(layout));
        if let Some((_, known)) = found.iter_mut().find(|(exchange, _)| *exchange == call.exchange) {
            known.each += each;
            continue;
        }
        let Some(devices) = simulated.first_group(layout, dimension, collective) else { continue };
        let groups = layout.groups(dimension).len();
        found.push((call.exchange, Repeated { collective, bytes, devices, groups, each }));
    }
    found.sort_by_key(|(exchange, _)| (exchange.dimension, exchange.collective, exchange.bytes));
    found.into_iter().map(|(_, repeated)| repeated).collect()
}

/// Plans calls on all threads of the current pool.
///
/// # Errors
/// Returns [`PlanError`] for a call without a plan.
pub fn weighed(
    calls: Vec<Repeated>,
    simulated: &Simulated<'_>,
    collectives: Collectives,
) -> Result<Vec<Weighted>, PlanError> {
    let of = |repeated: Repeated| {
        let Repeated { collective, bytes, devices, .. } = &repeated;
        let row = simulated.row(devices, *collective, *bytes, collectives, OwnChoice::Everywhere)?;
        Ok(row.map(|row| Weighted { repeated, row }))
    };
    let found: Vec<Result<Option<Weighted>, PlanError>> = calls.into_par_iter().with_max_len(1).map(of).collect();
    Ok(found.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use fabricast_sim::profile::Profile;
    use fabricast_topologies::route::{RouteOptions, Router};
    use fabricast_topologies::{FabricRequest, load};

    use super::*;
    use crate::job::read_job;
    use crate::step::Efficiency;
    use crate::trace::read_table;

    #[test]
    fn calls_of_equivalent_groups_are_merged() {
        let fabric = load(&FabricRequest { nodes: Some(2), ..FabricRequest::of("hgx-h100") }).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::ideal();
        let simulated = Simulated::new(&router, &profile, fabric.gpus());
        let text = "collective,bytes,ranks,count\nall_reduce,1MiB,0-3,10\nall_reduce,1MiB,8-11,10\nall_reduce,1MiB,2-3 8-9,5\n\
                    all_reduce,2MiB,0-3,1\ncompute,,0,\n".replace("compute,,0,\n", "");
        let mix = of_trace(&read_table(&text, "t.csv", 16).unwrap(), &simulated);
        let found: Vec<(u64, usize, f64)> = mix.iter().map(|one| (one.bytes.0 >> 20, one.groups, one.each)).collect();
        assert_eq!(found, [(1, 1, 5.0), (1, 2, 10.0), (2, 1, 1.0)]);
    }

    /// Calls of four layers and two micro-batches of tensor-parallel pairs, forward and backward, are merged; replicas
    /// reduce their gradients once.
    #[test]
    fn calls_of_a_step_are_merged() {
        let fabric = load(&FabricRequest::of("hgx-h100")).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::ideal();
        let simulated = Simulated::new(&router, &profile, fabric.gpus());
        let curve = Efficiency::default();
        let machine = Machine { router: &router, ranks: fabric.gpus(), simulated: &simulated, curve };
        let job = |parallel: &str| {
            let text = format!(
                "name = \"j\"\nglobal_batch = 8\nbucket_mb = 1000\nparallel = {parallel}\n\
                 model = {{ layers = 4, hidden = 1024, heads = 8, vocab = 32000, seq = 512 }}\n"
            );
            read_job(&text, "j").unwrap()
        };
        let (layout, mix) = of_job(&job("{ tp = 2, dp = 4 }"), &machine).unwrap();
        assert_eq!(layout.unwrap().degrees.data, 4);
        let found: Vec<_> = mix.iter().map(|one| (one.collective, one.devices.len(), one.groups, one.each)).collect();
        let all = Collective::AllReduce;
        // Two calls per layer in each direction, and those of the embedding and the logits.
        assert_eq!(found, [(all, 2, 4, 2.0 * (4.0 * 4.0 + 2.0)), (all, 4, 2, 1.0)]);
        assert_eq!(mix[0].bytes, Bytes(2 * 512 * 1024));
        // The embedding is on the first of two stages and the logits on the last; each stage has half of the layers.
        let (_, mix) = of_job(&job("{ tp = 2, pp = 2, dp = 2 }"), &machine).unwrap();
        let tensor = mix.iter().find(|one| one.collective == all && one.bytes == Bytes(2 * 512 * 1024)).unwrap();
        assert_eq!((tensor.groups, tensor.each), (4, 4.0 * (2.0 * 4.0 + 2.0 / 2.0)));
        let (found, mix) = of_job(&job("\"auto\""), &machine).unwrap();
        assert_eq!((found.unwrap().degrees.ranks(), mix.is_empty()), (8, false));
    }
}
