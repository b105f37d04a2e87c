//! Calls of a job with their message sizes and frequencies. They are the input of a plan for the job.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabricast_experts::UnsupportedExchange;
use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, NodeId, Picos};
use rustc_hash::FxHashSet;

use crate::communication::{
    CommunicationCostModel, Exchange, GroupCall, JobDispatch, LibraryChoiceScope, SimulatedCosts, StepCall,
    StepExchange, unsupported_dispatcher,
};
use crate::serve;
use crate::step::{self, Machine, TimeError};
use fabricast_search::plan::{PlanError, PlanRow};
use fabricast_workload::job::{
    Arrivals, CollectiveCandidates, Dimension, Job, JobError, Layout, LoadedServing, Processes, Serving, TokenExchange,
    Training,
};
use fabricast_workload::trace::Trace;

/// Calls of equal collective and message size, made by groups with equivalent placements on the fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct CallGroup {
    /// Collective that the groups call.
    pub collective: Collective,
    /// Message size: the larger buffer, as in nccl-tests.
    pub bytes: Bytes,
    /// Devices of one of the groups.
    pub devices: Vec<NodeId>,
    /// Number of groups that make the call.
    pub groups: usize,
    /// Mean number of calls per group.
    pub calls_per_group: f64,
}

/// Dispatches or combines of a job by the kernel of a library, of equal tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExchangeGroup {
    /// Kernel, operation and tokens of each rank.
    pub exchange: TokenExchange,
    /// Number of ranks of a group.
    pub ranks: u32,
    /// Number of groups that exchange tokens.
    pub groups: usize,
    /// Mean number of exchanges per group.
    pub exchanges_per_group: f64,
    /// Completion time of an exchange with all groups concurrent.
    pub time: Picos,
}

/// Calls of a job on a machine.
#[derive(Clone, Debug, Default)]
pub struct JobCalls {
    /// Parallel layout, which is given or the best one found; `None` for a trace.
    pub layout: Option<Layout>,
    /// Collectives.
    pub calls: Vec<CallGroup>,
    /// Exchanges of tokens by kernels of libraries.
    pub exchanges: Vec<ExchangeGroup>,
    /// Reason that collectives replace the kernels of the software's default dispatcher.
    pub replaced: Option<UnsupportedExchange>,
}

/// Call with its frequency and its row of the plan.
#[derive(Clone, Debug)]
pub struct PlannedCalls {
    /// Call of a group, with the numbers of groups and of calls.
    pub calls: CallGroup,
    /// Best strategy for the call, and the library's choice.
    pub row: PlanRow,
}

/// Collective, number of ranks, numbers of ranks of the group in each NVLink domain (such as `8` or `2 2`), and message
/// size.
type CallKey = (Collective, usize, Vec<usize>, Bytes);

/// Ranks of each group that makes a call.
type CallingGroups = FxHashSet<Arc<[u32]>>;

/// Returns the calls of a trace by collective, group placement and size.
#[must_use]
pub fn trace_calls(trace: &Trace, simulated: &SimulatedCosts<'_>) -> Vec<CallGroup> {
    let mut call_groups: BTreeMap<CallKey, (CallGroup, CallingGroups)> = BTreeMap::new();
    for event in &trace.events {
        let Some(call) = event.kind.call() else { continue };
        let devices = simulated.devices(&call.group);
        let mut ranks_per_island: BTreeMap<u32, usize> = BTreeMap::new();
        for &device in &devices {
            let island = simulated.islands(&[device]).first().copied().unwrap_or_default();
            *ranks_per_island.entry(island).or_default() += 1;
        }
        let key = (call.collective, call.group.len(), ranks_per_island.into_values().collect(), call.bytes);
        let first =
            CallGroup { collective: call.collective, bytes: call.bytes, devices, groups: 0, calls_per_group: 0.0 };
        let (call_group, groups) = call_groups.entry(key).or_insert_with(|| (first, CallingGroups::default()));
        // The field holds the total over all groups until all groups are known.
        call_group.calls_per_group += 1.0;
        groups.insert(Arc::clone(&call.group));
    }
    let with_mean_calls = |(call_group, groups): (CallGroup, CallingGroups)| CallGroup {
        groups: groups.len(),
        calls_per_group: call_group.calls_per_group / groups.len().max(1) as f64,
        ..call_group
    };
    call_groups.into_values().map(with_mean_calls).collect()
}

/// Returns the calls of a job's step. For a trace, see [`trace_calls`].
///
/// # Errors
/// Returns [`TimeError`] if the job cannot run on these ranks.
pub fn job_calls(job: &Job, machine: &Machine<'_>) -> Result<JobCalls, TimeError> {
    let ranks = machine.ranks.len() as u32;
    let unsupported = |layout: &Layout| unsupported_dispatcher(job, machine, layout);
    let (layout, replaced, calls, exchanges) = match job {
        Job::Training(job) if job.processes == Processes::Single => {
            let message = "processes: the calls of one process are not planned: expected \"per_gpu\"";
            return Err(JobError::at(&job.spans.parallel, message).into());
        }
        Job::Training(job) => {
            let layout = match Layout::specified_by(job, ranks)? {
                Some(layout) => layout,
                None => step::best_step(job, machine)?.0.layout,
            };
            JobDispatch::from_training(job).check(machine, &layout)?;
            let replaced = unsupported(&layout);
            let job = match &replaced {
                Some(_) => &Training { dispatch: job.dispatch.with_collectives(), ..job.clone() },
                None => job,
            };
            (layout, replaced, step::step_calls(job, &layout), step::step_exchanges(job, &layout))
        }
        Job::Inference(job) => {
            let (layout, concurrent_requests) = match (Layout::specified_by_serving(job, ranks)?, job.arrivals) {
                (Some(layout), Arrivals::FixedConcurrency { .. } | Arrivals::Batch { .. }) => {
                    (layout, job.with_concurrency(&layout, machine.memories(&job.placement)).concurrent_requests)
                }
                _ => {
                    let serve::ServiceRun { step, service, .. } = serve::best_service(job, machine)?;
                    (step.layout, service.concurrent_requests)
                }
            };
            JobDispatch::from_serving(job).check(machine, &layout)?;
            let replaced = unsupported(&layout);
            let job = match &replaced {
                Some(_) => &Serving { dispatch: job.dispatch.with_collectives(), ..job.clone() },
                None => job,
            };
            let job = LoadedServing { job, concurrent_requests };
            (layout, replaced, serve::calls(&job, &layout), serve::exchanges(&job, &layout))
        }
        Job::Trace(job) => {
            job.trace.check_ranks(machine.ranks.len(), &job.file)?;
            return Ok(JobCalls { calls: trace_calls(&job.trace, machine.simulated), ..JobCalls::default() });
        }
    };
    Ok(JobCalls {
        layout: Some(layout),
        calls: merge_step_calls(&layout, &calls, machine.simulated),
        exchanges: merge_exchanges(&layout, &exchanges, job.collectives(), machine.simulated)?,
        replaced,
    })
}

/// Merges exchanges of equal tokens over all phases of a step, in their order.
fn merge_exchanges(
    layout: &Layout,
    exchanges: &[StepExchange],
    collectives: CollectiveCandidates,
    simulated: &SimulatedCosts<'_>,
) -> Result<Vec<ExchangeGroup>, PlanError> {
    let costs = simulated.restricted_to(collectives);
    let ranks = layout.size(Dimension::Expert);
    let groups = layout.groups(Dimension::Expert).len();
    let mut merged: Vec<ExchangeGroup> = Vec::new();
    for &StepExchange { exchange, times, .. } in exchanges {
        if let Some(known) = merged.iter_mut().find(|known| known.exchange == exchange) {
            known.exchanges_per_group += times;
            continue;
        }
        let time = costs.token_exchange_time(layout, &exchange)?;
        merged.push(ExchangeGroup { exchange, ranks, groups, exchanges_per_group: times, time });
    }
    Ok(merged)
}

/// Merges calls of equal dimension, collective and message size over all phases of a step; sorted in this order.
fn merge_step_calls(layout: &Layout, calls: &[StepCall], simulated: &SimulatedCosts<'_>) -> Vec<CallGroup> {
    let mut merged: Vec<(Exchange, CallGroup)> = Vec::new();
    for call in calls {
        let Exchange { dimension, collective, bytes } = call.exchange;
        let each = call.calls_per_rank() / f64::from(call.stages(layout));
        if let Some((_, known)) = merged.iter_mut().find(|(exchange, _)| *exchange == call.exchange) {
            known.calls_per_group += each;
            continue;
        }
        let Some(devices) = simulated.first_group(layout, dimension, collective) else { continue };
        let groups = layout.groups(dimension).len();
        merged.push((call.exchange, CallGroup { collective, bytes, devices, groups, calls_per_group: each }));
    }
    merged.sort_by_key(|(exchange, _)| (exchange.dimension, exchange.collective, exchange.bytes));
    merged.into_iter().map(|(_, call_group)| call_group).collect()
}

/// Plans calls in parallel, on all threads of the current pool.
///
/// # Errors
/// [`PlanError`] for a call without a plan.
pub fn plan_calls(
    calls: Vec<CallGroup>,
    simulated: &SimulatedCosts<'_>,
    collectives: CollectiveCandidates,
) -> Result<Vec<PlannedCalls>, PlanError> {
    let group_calls: Vec<GroupCall<'_>> = calls
        .iter()
        .map(|CallGroup { collective, bytes, devices, .. }| GroupCall {
            devices,
            collective: *collective,
            bytes: *bytes,
        })
        .collect();
    let rows = simulated.plan_calls(&group_calls, collectives, LibraryChoiceScope::Everywhere, |row| row);
    calls.into_iter().zip(rows).map(|(calls, row)| Ok(PlannedCalls { calls, row: row? })).collect()
}

#[cfg(test)]
mod tests {
    use fabricast_sim::profile::Profile;
    use fabricast_topologies::route::{RouteOptions, Router};
    use fabricast_topologies::{FabricRequest, load};

    use super::*;
    use crate::step::Efficiency;
    use fabricast_workload::job::read_job;
    use fabricast_workload::trace::read_table;

    #[test]
    fn calls_of_equivalent_groups_are_merged() {
        let fabric = load(&FabricRequest { nodes: Some(2), ..FabricRequest::new("hgx-h100") }).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::ideal();
        let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
        let text = "collective,bytes,ranks,count\nall_reduce,1MiB,0-3,10\nall_reduce,1MiB,8-11,10\nall_reduce,1MiB,2-3 8-9,5\n\
                    all_reduce,2MiB,0-3,1\ncompute,,0,\n".replace("compute,,0,\n", "");
        let mix = trace_calls(&read_table(&text, "t.csv", 16).unwrap(), &simulated);
        let actual: Vec<(u64, usize, f64)> =
            mix.iter().map(|calls| (calls.bytes.0 >> 20, calls.groups, calls.calls_per_group)).collect();
        assert_eq!(actual, [(1, 1, 5.0), (1, 2, 10.0), (2, 1, 1.0)]);
    }

    /// Calls of four layers and two micro-batches of tensor-parallel pairs, forward and backward, are merged; replicas
    /// reduce their gradients once per step.
    #[test]
    fn calls_of_a_step_are_merged() {
        let fabric = load(&FabricRequest::new("hgx-h100")).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::ideal();
        let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
        let curve = Efficiency::default();
        let machine = Machine { router: &router, ranks: fabric.gpus(), simulated: &simulated, curve };
        let job = |parallel: &str| {
            let text = format!(
                "name = \"j\"\nglobal_batch = 8\nbucket_mb = 1000\nparallel = {parallel}\n\
                 model = {{ layers = 4, hidden = 1024, heads = 8, vocab = 32000, seq = 512 }}\n"
            );
            read_job(&text, "j").unwrap()
        };
        let JobCalls { layout, calls: mix, .. } = job_calls(&job("{ tp = 2, dp = 4 }"), &machine).unwrap();
        assert_eq!(layout.unwrap().degrees.data, 4);
        let actual: Vec<_> = mix
            .iter()
            .map(|calls| (calls.collective, calls.devices.len(), calls.groups, calls.calls_per_group))
            .collect();
        let all_reduce = Collective::AllReduce;
        // Two calls per layer and direction, plus the calls of the embedding and the logits.
        assert_eq!(actual, [(all_reduce, 2, 4, 2.0 * (4.0 * 4.0 + 2.0)), (all_reduce, 4, 2, 1.0)]);
        assert_eq!(mix[0].bytes, Bytes(2 * 512 * 1024));
        // The embedding is on the first of two stages and the logits on the last; each stage has half of the layers.
        let mix = job_calls(&job("{ tp = 2, pp = 2, dp = 2 }"), &machine).unwrap().calls;
        let tensor =
            mix.iter().find(|calls| calls.collective == all_reduce && calls.bytes == Bytes(2 * 512 * 1024)).unwrap();
        assert_eq!((tensor.groups, tensor.calls_per_group), (4, 4.0 * (2.0 * 4.0 + 2.0 / 2.0)));
        let JobCalls { layout: actual, calls: mix, .. } = job_calls(&job("\"auto\""), &machine).unwrap();
        assert_eq!((actual.unwrap().degrees.ranks(), mix.is_empty()), (8, false));
    }

    /// The exchanges of a job are those of its step, with the times that the step has.
    #[test]
    fn exchanges_of_a_step_are_listed_with_their_times() {
        let network = Some("rail,nics_per_node=8,nic=400Gb/s".parse().unwrap());
        let request = FabricRequest { nodes: Some(2), network, ..FabricRequest::new("hgx-h100") };
        let fabric = load(&request).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::for_fabric(&fabric).unwrap();
        let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
        let curve = Efficiency::default();
        let machine = Machine { router: &router, ranks: fabric.gpus(), simulated: &simulated, curve };
        let text = "name = \"j\"\nglobal_batch = 64\nmicro_batch = 1\ndispatcher = \"deepep\"\nprecision = \"fp8\"\nparallel = { dp = 16, ep = 16 }\n\
                    model = { layers = 2, hidden = 2048, heads = 16, ffn = 512, vocab = 32000, seq = 2048, experts = 64, experts_per_token = 4 }\n";
        let job = read_job(text, "j").unwrap();
        let JobCalls { exchanges, replaced, .. } = job_calls(&job, &machine).unwrap();
        assert!(replaced.is_none());
        // Dispatch and combine of two layers and four micro-batches, forward and backward.
        let listed: Vec<_> = exchanges.iter().map(|one| (one.ranks, one.groups, one.exchanges_per_group)).collect();
        assert_eq!(listed, [(16, 1, 16.0), (16, 1, 16.0)]);
        let Job::Training(training) = &job else { panic!() };
        let step = step::best_step(training, &machine).unwrap().0;
        let total: u64 = exchanges.iter().map(|one| one.time.0 * one.exchanges_per_group as u64).sum();
        assert_eq!(step.share_time(step::Share::Expert), Picos(total));
        // Kernels that do not run are refused if the job states them, as the step is.
        let stated = read_job(&text.replace("\"deepep\"", "\"trtllm\""), "j").unwrap();
        let error = job_calls(&stated, &machine).unwrap_err().to_string();
        assert!(error.contains("dispatcher: trtllm needs all ranks in one NVLink domain"), "{error}");
    }
}
