//! What an operation costs on its way from host to host, beyond what it costs inside one.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::Hop;
use fabricast_topologies::{Bytes, Fabric, LinkKind, NodeId, Picos};

use super::effort::{BLOCK_TIME, whole_bytes};
use crate::profile::{BlockWork, NetworkCosts, ProtocolCosts, largest_message};
use crate::quantity::Work;
use crate::schedule::Protocol;
use crate::sharing::WHOLE;

/// What an operation costs if it leaves its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Crossing {
    /// Before its first byte.
    pub latency: Picos,
    /// On top where the receiving GPU needs a flush.
    pub flush: Picos,
    /// What its bytes take of the sending proxy, in units of [`WHOLE`] for a byte on the wire.
    pub proxy: u64,
    /// Bytes of a two-sided message, which costs by its way whether it leaves the host or not; `None` where it is none.
    pub letter: Option<Bytes>,
}

/// The latency of a way where that of its crossings stood in for what they cost: above all that links add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latency {
    /// Of the links.
    path: Picos,
    /// How often it leaves a host.
    crossings: u64,
    /// How often the receiving GPU needs a flush then.
    flushes: u64,
}

impl Latency {
    const CROSSING: u64 = 1 << 48;
    const FLUSH: u64 = 1 << 56;
    /// Links below this never add up to a crossing: ways have far fewer than 256.
    const LONGEST_LINK: u64 = 1 << 40;

    /// Whether latencies on a fabric can be told from what stands in for costs.
    pub(crate) fn is_told(fabric: &Fabric) -> bool {
        fabric.links().all(|(_, link)| link.latency.0 < Self::LONGEST_LINK)
    }

    /// Taken apart.
    pub(crate) fn of(coded: Picos) -> Self {
        Self {
            path: Picos(coded.0 % Self::CROSSING),
            crossings: coded.0 % Self::FLUSH / Self::CROSSING,
            flushes: coded.0 / Self::FLUSH,
        }
    }

    /// With what its task costs.
    pub(crate) fn with(self, crossing: Crossing) -> Picos {
        let added = |each: Picos, times: u64| each.0.saturating_mul(times);
        let costs = added(crossing.latency, self.crossings).saturating_add(added(crossing.flush, self.flushes));
        Picos(self.path.0.saturating_add(costs))
    }
}

/// What is sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// An operation, in so many slices.
    Slices(u16),
    /// So much, of which an operation may be a piece.
    Whole(Bytes),
}

impl Crossing {
    /// Of an operation that moves `work.bytes`, `on_wire` with their framing.
    ///
    /// A message leaves when it is whole, so its block's passes over it come first: a block that passes on what it
    /// receives over NVLink byte by byte does not over the network.
    pub(super) fn of(
        network: &NetworkCosts,
        (protocol, costs): (Protocol, &ProtocolCosts),
        work: BlockWork,
        message: Message,
        on_wire: Work,
    ) -> Self {
        let message = match message {
            Message::Slices(slices) => Bytes(work.bytes.0.div_ceil(slices.max(1).into())),
            Message::Whole(bytes) => bytes.max(work.bytes),
        };
        let message = message.min(largest_message(protocol));
        let fill = costs.busy(BlockWork { bytes: message, ..work }).unwrap_or(Picos::ZERO);
        let busy = network.proxy(protocol, work.bytes, message, whole_bytes(on_wire));
        let proxy = if on_wire.0 == 0 {
            0
        } else {
            let passed = Work::passed(BLOCK_TIME, busy).0.saturating_mul(u128::from(WHOLE));
            u64::try_from(passed.div_ceil(on_wire.0)).unwrap_or(u64::MAX)
        };
        Self { latency: network.latency(protocol) + fill, flush: network.flush(protocol), proxy, letter: None }
    }

    /// What stands for the costs of a task, whose proxy's share has this code.
    pub(super) fn stand_in(proxy: u64) -> Self {
        Self { latency: Picos(Latency::CROSSING), flush: Picos(Latency::FLUSH), proxy, letter: None }
    }

    /// What it waits on the way to a device, besides the links' latency.
    pub fn latency_to(&self, fabric: &Fabric, to: NodeId) -> Picos {
        if needs_flush(fabric, to) { self.latency + self.flush } else { self.latency }
    }
}

/// Whether a way leaves the host.
pub(super) fn crosses(fabric: &Fabric, hops: &[Hop]) -> bool {
    let is_network = |hop: &Hop| matches!(fabric.link(hop.link).kind, LinkKind::Infiniband | LinkKind::Ethernet);
    hops.iter().any(is_network)
}

/// GPUs before Hopper (compute capability 9.0) may see a counter before the data that came with it (NCCL 2.30.7
/// src/transport/net.cc, `needFlush`).
fn needs_flush(fabric: &Fabric, device: NodeId) -> bool {
    match &fabric.node(device).figures {
        Figures::Gpu(figures) => figures.compute_capability.is_some_and(|capability| capability < 90),
        _ => false,
    }
}
