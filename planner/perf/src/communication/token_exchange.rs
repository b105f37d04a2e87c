//! Completion times of dispatch and combine by kernels of libraries, with all groups of ranks with different experts
//! concurrent.
//!
//! [`fabricast_experts`] predicts them from the routing of tokens. A kernel of a software's default dispatcher that does
//! not run on the GPUs is replaced by an all_to_all with a copy of a token for each of its experts, as software falls
//! back to NCCL. Jobs that state such a kernel are refused before (`dispatcher`).

use fabricast_experts::{
    Exchange as KernelExchange, ExchangeCosts, ExchangeError, ExchangeKernel, ExchangeRanks, Operation, PairBytes,
    RoutingPattern, Timing, TokenType, UnsupportedExchange,
};
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};
use fabricast_workload::job::{Dimension, GroupShape, Layout, TokenExchange};

use super::calls::StepExchange;
use super::link_load::PairTraffic;
use super::placement::Placement;
use super::sm_usage::SmUsage;

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
        self.check_support(layout, exchange).ok()?;
        let ExpertGroups { first, others } = self.groups(layout)?;
        let (router, routing, links) = (self.placement.router(), exchange.routing().ok()?, &self.profile.links);
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
        let is_supported = self.check_support(layout, exchange).is_ok();
        for group in layout.groups(Dimension::Expert) {
            let devices = self.placement.devices(&group);
            let ranks = ExchangeRanks::new(router, &devices).ok().filter(|_| is_supported);
            let (Some(ranks), Ok(routing)) = (ranks, exchange.routing()) else {
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

    /// Checks that the kernel of an exchange runs between the ranks of the first group, and that the exchange can be
    /// described.
    pub(super) fn check_support(&self, layout: &Layout, exchange: &TokenExchange) -> Result<(), UnsupportedExchange> {
        let kernel = exchange.kernel;
        let tokens = |error: ExchangeError| UnsupportedExchange::tokens(kernel, error);
        let (router, links) = (self.placement.router(), &self.profile.links);
        let group: Vec<u32> = layout.shape(Dimension::Expert).group(0).collect();
        let ranks = ExchangeRanks::new(router, &self.placement.devices(&group)).map_err(tokens)?;
        let routing = exchange.routing().map_err(tokens)?;
        KernelExchange { router, ranks: &ranks, links, routing: &routing, kernel, sms: None }
            .check_support(exchange.token_type)
    }

    fn groups(&self, layout: &Layout) -> Option<ExpertGroups> {
        let groups = self.placement.concurrent_groups(&layout.groups(Dimension::Expert), Collective::AllToAll);
        let mut ranks = groups.iter().map(|devices| ExchangeRanks::new(self.placement.router(), devices).ok());
        let first = ranks.next()??;
        // Groups that stay inside a domain share no link with those of other domains.
        Some(ExpertGroups { first, others: ranks.collect::<Option<Vec<_>>>()? })
    }
}
