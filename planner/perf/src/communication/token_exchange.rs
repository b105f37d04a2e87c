//! Completion times of dispatch and combine by kernels of libraries, with all groups of ranks with different experts
//! concurrent.
//!
//! [`fabricast_experts`] predicts them from the routing of tokens. A kernel that does not run on the GPUs is replaced
//! by an all_to_all with a copy of a token for each of its experts, just as software falls back to NCCL; jobs that name
//! such a kernel are rejected earlier ([`check_dispatcher`]).

use fabricast_experts::{
    Exchange as KernelExchange, ExchangeCosts, ExchangeKernel, ExchangeRanks, Operation, PairBytes, RoutingPattern,
    Timing, TokenType, UnsupportedGpus,
};
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};
use fabricast_workload::job::{
    Dimension, Dispatch, Dispatcher, DispatcherOrigin, GroupShape, Job, JobError, Layout, StepKind, TokenExchange,
};

use super::calls::StepExchange;
use super::cost_model::{CommunicationCostModel, Exchange, SmUsage};
use super::link_load::PairTraffic;
use super::placement::Placement;
use crate::step::Machine;

/// Messages are rounded to a multiple of this number of bytes per rank, as the fastest algorithms of libraries require.
const BYTES_PER_RANK: u64 = 16;

/// Cache key: an exchange of tokens by all groups of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenQuery {
    groups: GroupShape,
    kernel: ExchangeKernel,
    operation: Operation,
    token_type: TokenType,
    tokens: u64,
    sizes: [u32; 3],
    pattern: RoutingPattern,
    skew_bits: u64,
}

impl TokenQuery {
    pub(super) fn new(layout: &Layout, exchange: &TokenExchange) -> Self {
        let TokenExchange { kernel, operation, token_type, tokens, hidden, experts, top_k, pattern, skew } = *exchange;
        Self {
            groups: layout.shape(Dimension::Expert),
            kernel,
            operation,
            token_type,
            tokens,
            sizes: [hidden, experts, top_k],
            pattern,
            skew_bits: skew.to_bits(),
        }
    }
}

/// Devices of the groups of ranks with different experts: the first group, which represents all, and the groups that
/// exchange tokens concurrently.
struct ExpertGroups {
    first: ExchangeRanks,
    others: Vec<ExchangeRanks>,
}

/// Timer of exchanges on the devices of a cluster.
pub(super) struct TokenExchangeTimer<'a> {
    pub placement: &'a Placement<'a>,
    pub profile: &'a Profile,
}

impl TokenExchangeTimer<'_> {
    /// Completion time of an exchange; `None` if its kernel does not run on these GPUs, or the exchange cannot be
    /// described.
    pub(super) fn time(&self, layout: &Layout, exchange: &TokenExchange) -> Option<Picos> {
        let ExpertGroups { first, others } = self.groups(layout)?;
        let router = self.placement.router();
        if exchange.kernel.unsupported(router, &first).is_some() {
            return None;
        }
        let routing = exchange.routing()?;
        let links = &self.profile.links;
        let kernel =
            KernelExchange { router, ranks: &first, links, routing: &routing, kernel: exchange.kernel, sms: None };
        let load = kernel.concurrent_load(exchange.operation, exchange.token_type, &others).ok()?;
        Some(kernel.time(&load, &ExchangeCosts::FITTED, Timing::Kernel).total())
    }

    /// Resources that an exchange uses on each GPU: SMs of the kernel, and the bytes of tokens, each read and written.
    pub(super) fn sm_usage(&self, layout: &Layout, exchange: &TokenExchange) -> SmUsage {
        let extent = self.placement.extent(&layout.groups(Dimension::Expert));
        let sms = if exchange.kernel.holds_sms() { exchange.kernel.default_sms() } else { 0 };
        SmUsage { extent, sms, memory: Bytes(2 * exchange.copied_bytes().0) }
    }

    /// Adds the bytes that the devices of all groups send to each other in `times` exchanges. An all_to_all replaces a
    /// kernel that does not run.
    pub(super) fn add_traffic(
        &self,
        layout: &Layout,
        StepExchange { exchange, times, .. }: &StepExchange,
        pair_bytes: &mut PairTraffic,
    ) {
        let router = self.placement.router();
        let runs = self.unsupported(layout, exchange.kernel).is_none();
        for group in layout.groups(Dimension::Expert) {
            let devices = self.placement.devices(&group);
            let Ok(ranks) = ExchangeRanks::new(router, &devices) else { continue };
            let Some(routing) = exchange.routing().filter(|_| runs) else {
                let each = exchange.copied_bytes().0 as f64 / devices.len().max(1) as f64;
                for &from in &devices {
                    for &to in devices.iter().filter(|&&to| to != from) {
                        *pair_bytes.entry((from, to)).or_default() += each * times;
                    }
                }
                continue;
            };
            let (links, kernel) = (&self.profile.links, exchange.kernel);
            let sent = KernelExchange { router, ranks: &ranks, links, routing: &routing, kernel, sms: None }
                .pair_bytes(exchange.operation, exchange.token_type);
            for PairBytes { from, to, bytes } in sent.unwrap_or_default() {
                if let (Some(&from), Some(&to)) = (devices.get(from as usize), devices.get(to as usize)) {
                    *pair_bytes.entry((from, to)).or_default() += bytes * times;
                }
            }
        }
    }

    /// Returns the reason that a kernel does not run between the ranks with different experts; `None` if it runs.
    pub(super) fn unsupported(&self, layout: &Layout, kernel: ExchangeKernel) -> Option<UnsupportedGpus> {
        kernel.unsupported(self.placement.router(), &self.groups(layout)?.first)
    }

    fn groups(&self, layout: &Layout) -> Option<ExpertGroups> {
        let groups = self.placement.concurrent_groups(&layout.groups(Dimension::Expert), Collective::AllToAll);
        let mut ranks = groups.iter().map(|devices| ExchangeRanks::new(self.placement.router(), devices).ok());
        let first = ranks.next()??;
        // Groups that stay inside a domain share no link with those of other domains.
        Some(ExpertGroups { first, others: ranks.collect::<Option<Vec<_>>>()? })
    }
}

/// All_to_all with the tokens of an exchange, a copy of each token for each of its experts.
#[must_use]
pub(crate) fn equivalent_all_to_all(layout: &Layout, exchange: &TokenExchange) -> Exchange {
    let ranks = u64::from(layout.size(Dimension::Expert)).max(1);
    let bytes = exchange.copied_bytes().0.next_multiple_of(BYTES_PER_RANK * ranks);
    Exchange { dimension: Dimension::Expert, collective: Collective::AllToAll, bytes: Bytes(bytes) }
}

/// Returns the reason that the kernels of a job's dispatcher do not run on a machine with a layout; `None` if they run or
/// the job has none.
#[must_use]
pub fn unsupported_dispatcher(job: &Job, machine: &Machine<'_>, layout: &Layout) -> Option<UnsupportedGpus> {
    let steps: &[StepKind] = match job {
        Job::Training(_) => &[StepKind::Prefill],
        Job::Inference(_) => &[StepKind::Prefill, StepKind::Decode],
        Job::Trace(_) => &[],
    };
    let dispatch = job_dispatch(job)?;
    if layout.size(Dimension::Expert) <= 1 {
        return None;
    }
    let timer = TokenExchangeTimer { placement: machine.simulated.placement(), profile: machine.simulated.profile() };
    let mut kernels = steps.iter().filter_map(|&step| dispatch.dispatcher.kernel(step));
    kernels.find_map(|kernel| timer.unsupported(layout, kernel))
}

/// Returns an error for a job that names a dispatcher whose kernels do not run on a machine.
///
/// # Errors
/// [`JobError`] at `dispatcher`.
pub fn check_dispatcher(job: &Job, machine: &Machine<'_>, layout: &Layout) -> Result<(), JobError> {
    if job_dispatch(job).is_none_or(|dispatch| dispatch.origin == DispatcherOrigin::Software) {
        return Ok(());
    }
    match unsupported_dispatcher(job, machine, layout) {
        None => Ok(()),
        Some(reason) => {
            let help = Some("all_to_all runs on all GPUs".to_owned());
            Err(JobError { help, ..JobError::at(&job.spans().dispatcher, format!("dispatcher: {reason}")) })
        }
    }
}

/// Returns the dispatch with an all_to_all in place of kernels that do not run in a kind of step; `None` if they run or
/// there are none.
pub(crate) fn replaced_dispatch(
    dispatch: Dispatch,
    step: StepKind,
    layout: &Layout,
    costs: &dyn CommunicationCostModel,
) -> Option<Dispatch> {
    let kernel = dispatch.dispatcher.kernel(step).filter(|_| layout.size(Dimension::Expert) > 1)?;
    (!costs.runs_kernel(layout, kernel)).then_some(Dispatch { dispatcher: Dispatcher::AllToAll, ..dispatch })
}

fn job_dispatch(job: &Job) -> Option<Dispatch> {
    match job {
        Job::Training(job) => Some(job.dispatch),
        Job::Inference(job) => Some(job.dispatch),
        Job::Trace(_) => None,
    }
}
