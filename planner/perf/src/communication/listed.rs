//! Cost model backed by a list of calls with known times, such as those of the library default.

use fabricast_topologies::Picos;

use super::cost_model::CommunicationCostModel;
use super::exchange::Exchange;
use super::sm_usage::SmUsage;
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Dimension, Layout, TokenExchange};

/// Call with its completion time and SM usage.
#[derive(Clone, Copy, Debug)]
pub struct ListedCall {
    /// The call of all groups of a dimension.
    pub exchange: Exchange,
    /// Completion time of the call with all groups concurrent.
    pub time: Picos,
    /// SMs that the call occupies, and its extent.
    pub sm_usage: SmUsage,
}

/// Cost model backed by a list of calls; calls that are not in the list have a time of 0.
pub struct ListedCosts<'a> {
    /// The calls.
    pub calls: Vec<ListedCall>,
    /// Cost model of token exchanges by kernels of libraries, which are not collectives; it knows the machine.
    pub exchanges: &'a dyn CommunicationCostModel,
}

impl ListedCosts<'_> {
    fn find(&self, exchange: Exchange) -> Option<&ListedCall> {
        self.calls.iter().find(|one| one.exchange == exchange)
    }
}

impl CommunicationCostModel for ListedCosts<'_> {
    fn time(&self, _: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        Ok(self.find(exchange).map_or(Picos::ZERO, |one| one.time))
    }

    fn sm_usage(&self, _: &Layout, exchange: Exchange) -> Result<SmUsage, PlanError> {
        Ok(self.find(exchange).map_or_else(SmUsage::default, |one| one.sm_usage))
    }

    fn supports_exchange(&self, layout: &Layout, exchange: &TokenExchange) -> bool {
        self.exchanges.supports_exchange(layout, exchange)
    }

    fn is_connected_by_nvlink(&self, layout: &Layout, dimension: Dimension) -> bool {
        self.exchanges.is_connected_by_nvlink(layout, dimension)
    }

    fn has_amd_gpus(&self) -> bool {
        self.exchanges.has_amd_gpus()
    }

    fn token_exchange_time(&self, layout: &Layout, exchange: &TokenExchange) -> Result<Picos, PlanError> {
        self.exchanges.token_exchange_time(layout, exchange)
    }

    fn token_exchange_sm_usage(&self, layout: &Layout, exchange: &TokenExchange) -> Result<SmUsage, PlanError> {
        self.exchanges.token_exchange_sm_usage(layout, exchange)
    }
}
