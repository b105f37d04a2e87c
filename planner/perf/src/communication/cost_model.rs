//! Interface of communication cost models: calls of groups, their completion time, and the SMs that they occupy.

use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::{Bytes, Picos};

use super::token_exchange::equivalent_all_to_all;
use fabricast_collectives::strategy::Strategy;
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Dimension, GroupCall, Layout, TokenExchange};

/// Call of all groups of a dimension at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exchange {
    /// Dimension whose groups make the call.
    pub dimension: Dimension,
    /// Collective that the groups call.
    pub collective: Collective,
    /// Message size: the larger buffer, as in nccl-tests.
    pub bytes: Bytes,
}

impl Exchange {
    /// Creates the exchange of a job's call with the given message size.
    pub(crate) fn new(call: &GroupCall, bytes: Bytes) -> Self {
        Self { dimension: call.dimension, collective: call.collective, bytes }
    }
}

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

    /// Returns true if concurrent calls of two dimensions would share links; false if the model does not know.
    fn share_links(&self, _layout: &Layout, _one: Dimension, _other: Dimension) -> bool {
        false
    }
}

/// Extent of a call within the fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallExtent {
    /// All ranks are in one NVLink domain.
    #[default]
    Inside,
    /// Some ranks communicate through PCIe or a network.
    Beyond,
}

/// Resources that a call uses on each of its GPUs while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmUsage {
    /// Extent of the call within the fabric.
    pub extent: CallExtent,
    /// Number of SMs that the call occupies: one per channel.
    pub sms: u32,
    /// Bytes that the call reads from and writes to the GPU's memory.
    pub memory: Bytes,
}

impl SmUsage {
    /// Computes the usage of a call with a strategy among `ranks` ranks. A byte that arrives through a FIFO is written
    /// there by its sender, read, and written to its destination or added to the value there
    /// (nccl/src/device/prims_simple.h). Copy engines and one-sided stores read it once and write it once.
    #[must_use]
    pub fn new(strategy: &Strategy, exchange: &Exchange, ranks: u32, extent: CallExtent) -> Self {
        let (sms, accesses) = match strategy.protocol {
            Protocol::CopyEngine => (0, 2.0),
            Protocol::Symmetric => (u32::from(strategy.channels), 2.0),
            Protocol::Ll | Protocol::Ll128 | Protocol::Simple => (u32::from(strategy.channels), 3.0),
        };
        let received = exchange.bytes.0 as f64 * exchange.collective.busbw_factor(ranks);
        Self { extent, sms, memory: Bytes((received * accesses) as u64) }
    }
}
