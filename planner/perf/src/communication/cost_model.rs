//! Interface of communication cost models: calls of groups, their completion time, and the SMs that they occupy.

use fabricast_search::plan::PlanError;
use fabricast_topologies::Picos;
use fabricast_workload::job::{Dimension, Layout, TokenExchange};

use super::exchange::{Exchange, equivalent_all_to_all};
use super::sm_usage::SmUsage;

/// Communication cost model: completion times of calls.
pub trait CommunicationCostModel: Sync {
    /// Returns the completion time of a call.
    ///
    /// # Errors
    /// [`PlanError`]: there is no strategy for the call, or it cannot run.
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError>;

    /// Returns the SM usage of a call; the default (no usage) if the model does not know it.
    ///
    /// # Errors
    /// See [`Self::time`].
    fn sm_usage(&self, _layout: &Layout, _exchange: Exchange) -> Result<SmUsage, PlanError> {
        Ok(SmUsage::default())
    }

    /// Returns true if the kernel of a library exchanges these tokens between the ranks of a layout; true if the model
    /// does not know.
    fn supports_exchange(&self, _layout: &Layout, _exchange: &TokenExchange) -> bool {
        true
    }

    /// Returns the completion time of a dispatch or combine by the kernel of a library; the default is that of an
    /// all_to_all with a copy of a token for each of its experts.
    ///
    /// # Errors
    /// See [`Self::time`].
    fn token_exchange_time(&self, layout: &Layout, exchange: &TokenExchange) -> Result<Picos, PlanError> {
        self.time(layout, equivalent_all_to_all(layout, exchange))
    }

    /// Returns the SM usage of a dispatch or combine; the default is that of the all_to_all.
    ///
    /// # Errors
    /// See [`Self::time`].
    fn token_exchange_sm_usage(&self, layout: &Layout, exchange: &TokenExchange) -> Result<SmUsage, PlanError> {
        self.sm_usage(layout, equivalent_all_to_all(layout, exchange))
    }

    /// Returns true if each group of a dimension is on one host, with NVLink (or xGMI) between all its ranks; false if the
    /// model does not know.
    fn is_connected_by_nvlink(&self, _layout: &Layout, _dimension: Dimension) -> bool {
        false
    }

    /// Returns true if the ranks are GPUs of AMD; false if the model does not know.
    fn has_amd_gpus(&self) -> bool {
        false
    }

    /// Returns true if concurrent calls of two dimensions would share links; false if the model does not know.
    fn share_links(&self, _layout: &Layout, _one: Dimension, _other: Dimension) -> bool {
        false
    }
}
