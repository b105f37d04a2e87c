//! Costs of the transfers of packed trees, from a profile, for the estimate that selects trees and loops.

use fabricast_sim::profile::{BlockWork, ChannelLimit, LocalStore, OperationKind, ProtocolCosts, Role, SharedPasses};
use fabricast_topologies::{Bytes, Picos};

/// Size of a message at which the time of a thread block per byte is read from a profile.
const LARGE_MESSAGE: Bytes = Bytes(1 << 20);

/// Threads of a warp.
const WARP: u16 = 32;

/// Costs of the transfers of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferCosts<'a> {
    /// Costs of the protocol.
    pub protocol: &'a ProtocolCosts,
    /// Threads of a thread block.
    pub threads: u16,
    /// Kind of the operations that the ranks execute.
    pub operation: OperationKind,
    /// Share of the links' nominal bandwidth that transfers reach.
    pub link_efficiency: f64,
    /// Size of the largest message; `None` if unlimited.
    pub max_message: Option<Bytes>,
}

impl TransferCosts<'_> {
    /// Time of a call without transfers.
    pub(super) fn startup(&self) -> Picos {
        let warps = u64::from(self.threads.div_ceil(WARP));
        self.protocol.startup + Picos(self.protocol.startup_per_warp.0 * warps)
    }

    /// Software time of a message of `bytes` bytes.
    pub(super) fn message(&self, bytes: Bytes) -> Picos {
        self.protocol.source_software(self.work(bytes))
    }

    /// Time in which a thread block sends a byte, in picoseconds.
    pub(super) fn time_per_byte(&self) -> f64 {
        match self.protocol.channel_limit {
            ChannelLimit::Unlimited => 0.0,
            ChannelLimit::Rate(rate) => 1e12 / rate.0.max(1) as f64,
            ChannelLimit::Passes(_) => {
                let busy = self.protocol.busy(self.work(LARGE_MESSAGE)).unwrap_or_default();
                busy.0 as f64 / LARGE_MESSAGE.0 as f64
            }
        }
    }

    /// Share of the links' bandwidth that payload reaches.
    pub(super) fn efficiency(&self) -> f64 {
        self.protocol.wire_efficiency * self.link_efficiency
    }

    fn work(&self, bytes: Bytes) -> BlockWork {
        BlockWork {
            role: Role::Forward,
            operation: self.operation,
            local_store: LocalStore::Store,
            shared: SharedPasses::None,
            bytes,
            threads: self.threads,
        }
    }
}
