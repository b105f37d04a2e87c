//! Resources of a GPU that a call uses while it runs.

use fabricast_collectives::strategy::Strategy;
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::Bytes;

use super::exchange::Exchange;

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
