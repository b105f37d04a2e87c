//! Times of calls with a strategy other than the pick, such as the library default, and of the step with them.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Fabric, NodeId, Picos};

use super::call_times::{CommunicationCostModel, Exchange, SimulatedCosts};
use super::concurrent_calls::CallWithStrategy;
use super::interference::SmUsage;
use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::Library;
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Dimension, Layout};

/// Call with its completion time and SM usage.
#[derive(Clone, Copy, Debug)]
pub struct ListedCall {
    /// The call, with its groups.
    pub exchange: Exchange,
    /// Completion time.
    pub time: Picos,
    /// SMs that it occupies, and its extent.
    pub sm_usage: SmUsage,
}

/// Cost model backed by a list of calls; calls that are not in the list take no time.
pub struct ListedCosts(pub Vec<ListedCall>);

impl ListedCosts {
    fn find(&self, exchange: Exchange) -> Option<&ListedCall> {
        self.0.iter().find(|one| one.exchange == exchange)
    }
}

impl CommunicationCostModel for ListedCosts {
    fn time(&self, _: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        Ok(self.find(exchange).map_or(Picos::ZERO, |one| one.time))
    }

    fn sm_usage(&self, _: &Layout, exchange: Exchange) -> Result<SmUsage, PlanError> {
        Ok(self.find(exchange).map_or_else(SmUsage::default, |one| one.sm_usage))
    }
}

impl SimulatedCosts<'_> {
    /// The library of the profile.
    pub(super) fn library(&self) -> Library {
        self.profile.library.parse().unwrap_or(Library::NEWEST_NCCL)
    }

    /// Returns the library that jobs keep to if it does not run on these GPUs, in which case all strategies are
    /// allowed.
    #[must_use]
    pub fn unsupported_library(&self) -> Option<Library> {
        let library = self.library();
        (!library.runs_on(self.router.fabric(), self.ranks)).then_some(library)
    }

    /// The fabric.
    pub fn fabric(&self) -> &Fabric {
        self.router.fabric()
    }

    /// Returns the group of a dimension that represents all groups in strategy selection.
    pub fn first_group(&self, layout: &Layout, dimension: Dimension, collective: Collective) -> Option<Vec<NodeId>> {
        self.concurrent_groups(&layout.groups(dimension), collective).into_iter().next()
    }

    /// Completion time of a call with the given strategy, all groups concurrent.
    pub fn time_with_strategy(
        &self,
        layout: &Layout,
        exchange: Exchange,
        strategy: Strategy,
    ) -> Result<Picos, PlanError> {
        let Exchange { dimension, collective, bytes } = exchange;
        let groups = self.concurrent_groups(&layout.groups(dimension), collective);
        let Some(first) = groups.first() else { return Ok(Picos::ZERO) };
        match self.sampled_streaming_time(&groups, &CallWithStrategy { collective, bytes, strategy }) {
            Some(time) => time,
            None => self
                .sample(first, bytes)
                .extrapolate(|bytes| self.call_time(&groups, &CallWithStrategy { collective, bytes, strategy })),
        }
    }

    /// Creates the list entry of a call with this time and strategy.
    pub fn list_call(&self, layout: &Layout, exchange: Exchange, strategy: &Strategy, time: Picos) -> ListedCall {
        ListedCall { exchange, time, sm_usage: self.strategy_sm_usage(layout, exchange, strategy) }
    }
}
