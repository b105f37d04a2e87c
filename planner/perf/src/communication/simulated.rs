//! Communication cost model based on planning and simulation.
//!
//! [`plan`](fabricast_search::plan::plan) times candidate strategies for one group. The groups that share resources
//! with it are then simulated concurrently ([`fabricast_sim::simulate_concurrent`]), as they run in the job. The
//! completion time is that of the group that ends last, and the strategy with the shortest such time is selected.
//! Results are cached by query, so jobs on the same fabric share them.
//!
//! Parts of large calls are timed and the rest is extrapolated (`timing_method`): within 1 % of the whole call, or
//! about 5 % if chunk loops interfere, at a hundredth of the cost.

use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Rank, Schedule};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId, Picos};

use super::calls::{CallRequest, CallWithStrategy, PlacedCall, SelectedStrategy, StepCall, StepExchange, TimedCall};
use super::candidate_search::{CandidateSearch, LibraryChoiceScope};
use super::concurrent_calls::ConcurrentCalls;
use super::cost_cache::{CallQuery, CostCache};
use super::cost_model::CommunicationCostModel;
use super::exchange::{Exchange, equivalent_all_to_all};
use super::host_classes::HostClasses;
use super::link_load::LinkLoad;
use super::listed::ListedCall;
use super::placement::Placement;
use super::shared_links::PlacedLayout;
use super::sm_usage::SmUsage;
use super::step_link_load::StepTraffic;
use super::strategy_selector::StrategySelector;
use super::timing_method::{CallTimer, KnownTime};
use super::token_exchange::{TokenExchangeTimer, TokenQuery};
use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::Library;
use fabricast_search::plan::{Plan, PlanError};
use fabricast_workload::job::{CollectiveCandidates, Dimension, Layout, TokenExchange};

/// Communication cost model based on planning and simulation.
pub struct SimulatedCosts<'a> {
    placement: Placement<'a>,
    profile: &'a Profile,
    cache: CostCache,
    monitor: Monitor<'a>,
}

/// Communication cost model restricted to the collectives that a job allows.
pub struct RestrictedCosts<'a> {
    simulated: &'a SimulatedCosts<'a>,
    collectives: CollectiveCandidates,
}

impl<'a> SimulatedCosts<'a> {
    /// Creates a cost model for a cluster whose ranks are on the devices `ranks`.
    #[must_use]
    pub fn new(router: &'a Router<'a>, profile: &'a Profile, ranks: &'a [NodeId]) -> Self {
        let (placement, cache, monitor) = (Placement::new(router, ranks), CostCache::default(), Monitor::default());
        Self { placement, profile, cache, monitor }
    }

    /// Returns the cost model with a monitor of its planned calls and replayed events.
    #[must_use]
    pub fn with_monitor(self, monitor: Monitor<'a>) -> Self {
        Self { monitor, ..self }
    }

    /// Creates a cost model for other ranks on the same fabric.
    #[must_use]
    pub fn for_ranks<'b>(&self, ranks: &'b [NodeId]) -> SimulatedCosts<'b>
    where
        'a: 'b,
    {
        SimulatedCosts::new(self.placement.router(), self.profile, ranks)
    }

    /// Returns the cost model restricted to `collectives`.
    #[must_use]
    pub fn restricted_to(&'a self, collectives: CollectiveCandidates) -> RestrictedCosts<'a> {
        RestrictedCosts { simulated: self, collectives }
    }

    /// Monitor of planned calls and replayed events.
    pub(crate) fn monitor(&self) -> Monitor<'a> {
        self.monitor
    }

    /// Returns the placement of the ranks on devices.
    pub(super) fn placement(&self) -> &Placement<'a> {
        &self.placement
    }

    /// Returns the cost profile of the simulation.
    pub(crate) fn profile(&self) -> &'a Profile {
        self.profile
    }

    /// Returns the simulation of concurrent calls of several groups.
    pub(super) fn calls(&self) -> ConcurrentCalls<'_> {
        let representatives = &self.cache.representatives;
        ConcurrentCalls { router: self.placement.router(), profile: self.profile, representatives }
    }

    /// Returns the timer of calls with a given strategy.
    pub(super) fn timer(&self) -> CallTimer<'_> {
        CallTimer { placement: &self.placement, calls: self.calls(), cache: &self.cache }
    }

    /// Returns the completion time of a dispatch or combine by the kernel of a library; `None` if the kernel does not run
    /// on these GPUs.
    pub(crate) fn token_exchange_time(&self, layout: &Layout, exchange: &TokenExchange) -> Option<Picos> {
        let query = TokenQuery::new(layout, exchange);
        let exchanges = &self.cache.token_exchanges;
        exchanges.get(&query).unwrap_or_else(|| {
            let time = self.token_exchanges().time(layout, exchange);
            exchanges.insert(query, time);
            time
        })
    }

    pub(super) fn token_exchanges(&self) -> TokenExchangeTimer<'_> {
        TokenExchangeTimer { placement: &self.placement, profile: self.profile }
    }

    /// Returns the search of candidate strategies for one group.
    pub(super) fn search(&self) -> CandidateSearch<'_> {
        CandidateSearch { timer: self.timer(), interrupt: self.monitor.interrupt }
    }

    /// Returns the selector of strategies for calls of several groups.
    pub(super) fn selector(&self) -> StrategySelector<'_> {
        StrategySelector { search: self.search(), timer: self.timer() }
    }

    /// Returns the fabric on which calls are simulated.
    pub fn fabric(&self) -> &Fabric {
        self.placement.fabric()
    }

    /// Returns the devices of a group, in rank order.
    pub(crate) fn devices(&self, group: &[u32]) -> Vec<NodeId> {
        self.placement.devices(group)
    }

    /// Returns the numbers of the NVLink domains that these devices are in, sorted and without duplicates.
    pub fn islands(&self, devices: &[NodeId]) -> Vec<u32> {
        self.placement.islands(devices)
    }

    /// Returns the wiring classes of the fabric's hosts.
    pub(crate) fn host_classes(&self) -> &HostClasses {
        self.placement.host_classes()
    }

    /// Returns the devices of the group of a dimension that represents all groups in strategy selection; `None` if
    /// there is no group.
    pub fn first_group(&self, layout: &Layout, dimension: Dimension, collective: Collective) -> Option<Vec<NodeId>> {
        self.placement.concurrent_groups(&layout.groups(dimension), collective).into_iter().next()
    }

    /// Returns the library of the profile if it does not run on these GPUs, in which case all strategies are allowed;
    /// `None` if it runs.
    #[must_use]
    pub fn unsupported_library(&self) -> Option<Library> {
        let library = self.search().library();
        (!library.runs_on(self.fabric(), self.placement.ranks())).then_some(library)
    }

    /// Plans a call of one group at several message sizes.
    ///
    /// # Errors
    /// [`PlanError`]: there is no strategy for the call, or it cannot run.
    pub fn plan(
        &self,
        group: &[NodeId],
        collective: Collective,
        sizes: &[Bytes],
        collectives: CollectiveCandidates,
        scope: LibraryChoiceScope,
    ) -> Result<Plan, PlanError> {
        self.search().plan(group, collective, sizes, collectives, scope)
    }

    /// Builds the full schedule of one call; `None` if it cannot be generated.
    pub fn schedule(&self, call: CallWithStrategy, devices: &[NodeId]) -> Option<Schedule> {
        self.calls().schedule(call, devices)
    }

    /// Returns the end times of several concurrent calls, in their order.
    pub(crate) fn concurrent_end_times(&self, calls: &[PlacedCall<'_>]) -> Result<Vec<Picos>, PlanError> {
        self.calls().end_times(calls)
    }

    /// Completion time of a call with the given strategy, all groups concurrent.
    ///
    /// # Errors
    /// [`PlanError`]: the call cannot run.
    pub fn time_with_strategy(
        &self,
        layout: &Layout,
        exchange: Exchange,
        strategy: Strategy,
    ) -> Result<Picos, PlanError> {
        let Exchange { dimension, collective, bytes } = exchange;
        let groups = self.placement.concurrent_groups(&layout.groups(dimension), collective);
        let call = CallWithStrategy { collective, bytes, strategy };
        self.timer().whole_call_time(&groups, call, KnownTime::Unknown)
    }

    /// Creates the entry of a [`ListedCosts`](super::ListedCosts) for a call with this time and strategy.
    pub fn list_call(&self, layout: &Layout, exchange: Exchange, strategy: &Strategy, time: Picos) -> ListedCall {
        ListedCall { exchange, time, sm_usage: self.strategy_sm_usage(layout, exchange, strategy) }
    }

    /// Bytes that each link carries in a step with these calls and exchanges of tokens.
    #[must_use]
    pub fn load(&self, layout: &Layout, calls: &[TimedCall], exchanges: &[StepExchange]) -> LinkLoad {
        StepTraffic { placement: &self.placement, calls: self.calls() }.load(layout, calls, exchanges)
    }

    /// Returns the SM usage of a call with a given strategy.
    fn strategy_sm_usage(&self, layout: &Layout, exchange: Exchange, strategy: &Strategy) -> SmUsage {
        let extent = self.placement.extent(&layout.groups(exchange.dimension));
        SmUsage::new(strategy, &exchange, layout.size(exchange.dimension), extent)
    }

    /// Lower bound on the completion time of a call, from the bounds of the representative group. `None` if that group
    /// does not leave its domain: its time is then cheap to compute.
    fn lower_bound(&self, groups: &[Vec<u32>], collective: Collective, bytes: Bytes) -> Option<Picos> {
        let device_groups = self.placement.concurrent_groups(groups, collective);
        let first = device_groups.first().filter(|first| self.placement.spans_domains(first))?;
        // The extrapolated rest of a large call adds at least zero.
        let bytes = self.timer().size_sample(first, bytes).largest();
        let (ranks, buffers) = (first.len() as u32, BufferUse::OutOfPlace);
        let call = Call { collective, bytes, ranks, root: Rank(0), buffers };
        Some(self.cache.bounds(self.placement.router(), first).bound(&call).time)
    }
}

impl RestrictedCosts<'_> {
    fn query(&self, layout: &Layout, Exchange { dimension, collective, bytes }: Exchange) -> CallQuery {
        let request = CallRequest { collective, bytes, allowed: self.collectives };
        CallQuery { groups: layout.shape(dimension), request }
    }

    fn select(&self, layout: &Layout, exchange: Exchange) -> Result<SelectedStrategy, PlanError> {
        let query = self.query(layout, exchange);
        let select = || self.simulated.selector().select(&layout.groups(exchange.dimension), query);
        self.simulated.cache.answers.get_or_try(query, select)
    }

    /// Lower bound on [`CommunicationCostModel::time`] that is usually cheaper to compute: the schedule-independent
    /// bound for groups that leave their domain, otherwise the time itself.
    ///
    /// # Errors
    /// See [`CommunicationCostModel::time`].
    pub(crate) fn lower_bound(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        let (query, Exchange { dimension, collective, bytes }) = (self.query(layout, exchange), exchange);
        let lower_bounds = &self.simulated.cache.lower_bounds;
        if let Some(known) = lower_bounds.get(&query) {
            return Ok(known);
        }
        match self.simulated.lower_bound(&layout.groups(dimension), collective, bytes) {
            Some(lower_bound) => {
                lower_bounds.insert(query, lower_bound);
                Ok(lower_bound)
            }
            None => self.time(layout, exchange),
        }
    }

    /// Returns calls with their strategies and times. Calls with nothing to do are omitted.
    ///
    /// # Errors
    /// See [`CommunicationCostModel::time`].
    pub fn timed_calls(&self, layout: &Layout, calls: &[StepCall]) -> Result<Vec<TimedCall>, PlanError> {
        let mut timed = Vec::with_capacity(calls.len());
        for &call in calls {
            let SelectedStrategy { time, strategy } = self.select(layout, call.exchange)?;
            timed.extend(strategy.map(|strategy| TimedCall { call, strategy, time }));
        }
        Ok(timed)
    }
}

impl CommunicationCostModel for RestrictedCosts<'_> {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        Ok(self.select(layout, exchange)?.time)
    }

    fn sm_usage(&self, layout: &Layout, exchange: Exchange) -> Result<SmUsage, PlanError> {
        let strategy = self.select(layout, exchange)?.strategy;
        Ok(strategy
            .map_or_else(SmUsage::default, |strategy| self.simulated.strategy_sm_usage(layout, exchange, &strategy)))
    }

    fn supports_exchange(&self, layout: &Layout, exchange: &TokenExchange) -> bool {
        self.simulated.token_exchanges().check_support(layout, exchange).is_ok()
    }

    fn token_exchange_time(&self, layout: &Layout, exchange: &TokenExchange) -> Result<Picos, PlanError> {
        match self.simulated.token_exchange_time(layout, exchange) {
            Some(time) => Ok(time),
            None => self.time(layout, equivalent_all_to_all(layout, exchange)),
        }
    }

    fn token_exchange_sm_usage(&self, layout: &Layout, exchange: &TokenExchange) -> Result<SmUsage, PlanError> {
        match self.simulated.token_exchange_time(layout, exchange) {
            Some(_) => Ok(self.simulated.token_exchanges().sm_usage(layout, exchange)),
            None => self.sm_usage(layout, equivalent_all_to_all(layout, exchange)),
        }
    }

    fn is_connected_by_nvlink(&self, layout: &Layout, dimension: Dimension) -> bool {
        let placement = self.simulated.placement();
        placement.nvlink_peers().connect(placement.router(), placement.ranks(), layout, dimension)
    }

    fn has_amd_gpus(&self) -> bool {
        let (ranks, fabric) = (self.simulated.placement().ranks(), self.simulated.fabric());
        ranks.first().is_some_and(|&rank| fabric.node(rank).is_amd())
    }

    fn share_links(&self, layout: &Layout, one: Dimension, other: Dimension) -> bool {
        let placement = self.simulated.placement();
        PlacedLayout { router: placement.router(), ranks: placement.ranks(), layout }.share_links(one, other)
    }
}
