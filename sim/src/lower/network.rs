//! Additional costs of an operation that leaves its host.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::Hop;
use fabricast_topologies::{Bytes, Fabric, LinkKind, NodeId, Picos};

use super::block_time::{BLOCK_TIME, whole_bytes};
use crate::profile::{NetworkCosts, largest_message};
use crate::quantity::Work;
use crate::schedule::Protocol;
use crate::sharing::WHOLE;

/// Additional costs of an operation that leaves its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Crossing {
    /// Latency before the operation's first byte.
    pub latency: Picos,
    /// Additional latency if the receiving GPU needs a flush.
    pub flush: Picos,
    /// Minimum time from the start of a message to that of the next one of its connection.
    pub spacing: Picos,
    /// Proxy time per byte on the wire, in units of [`WHOLE`] per byte of [`Resource::Proxy`](super::Resource::Proxy).
    pub proxy: u64,
    /// Bytes of a two-sided message, whose costs depend on its route even within a host; `None` for other operations.
    pub two_sided_bytes: Option<Bytes>,
}

/// Latency of a route, with placeholders for the costs of leaving the host. The placeholders exceed any sum of link
/// latencies, so that the parts can be separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latency {
    /// Sum of the latencies of the route's links.
    path: Picos,
    /// Number of crossings between hosts.
    crossings: u64,
    /// Number of flushes by the receiving GPU.
    flushes: u64,
}

impl Latency {
    const CROSSING: u64 = 1 << 48;
    const FLUSH: u64 = 1 << 56;
    /// Upper limit of a link's latency. Routes have far fewer than 256 links, so these never add up to a crossing.
    const MAX_LINK_LATENCY: u64 = 1 << 40;

    /// Returns true if all link latencies of a fabric are small enough to be separated from placeholder costs.
    pub(crate) fn is_separable(fabric: &Fabric) -> bool {
        fabric.links().all(|(_, link)| link.latency.0 < Self::MAX_LINK_LATENCY)
    }

    /// Splits a latency with placeholders into its parts.
    pub(crate) fn decode(coded: Picos) -> Self {
        Self {
            path: Picos(coded.0 % Self::CROSSING),
            crossings: coded.0 % Self::FLUSH / Self::CROSSING,
            flushes: coded.0 / Self::FLUSH,
        }
    }

    /// Returns the latency with the actual costs of crossings.
    pub(crate) fn with_crossing_costs(self, crossing: Crossing) -> Picos {
        let added = |each: Picos, times: u64| each.0.saturating_mul(times);
        let costs = added(crossing.latency, self.crossings).saturating_add(added(crossing.flush, self.flushes));
        Picos(self.path.0.saturating_add(costs))
    }
}

/// Unit of data that is sent over the network as one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Part of an operation, which is divided into this number of slices.
    Slices(u16),
    /// Message of this size in bytes, of which an operation may be a part.
    Whole(Bytes),
}

impl Crossing {
    /// Costs of an operation that moves `bytes` of payload, and `on_wire` with framing.
    ///
    /// A message is sent when it is complete, so all passes of its thread block over the message come first. A block
    /// that forwards data byte by byte over NVLink cannot do so over the network. `fill`: time of these passes for a
    /// message of a size.
    pub(super) fn new(
        network: &NetworkCosts,
        protocol: Protocol,
        bytes: Bytes,
        message: Message,
        fill: impl FnOnce(Bytes) -> Picos,
        on_wire: Work,
    ) -> Self {
        let message = match message {
            Message::Slices(slices) => Bytes(bytes.0.div_ceil(slices.max(1).into())),
            Message::Whole(whole) => whole.max(bytes),
        };
        let message = message.min(largest_message(protocol));
        let fill = fill(message);
        let busy = network.proxy(protocol, bytes, message, whole_bytes(on_wire));
        let proxy = if on_wire.0 == 0 {
            0
        } else {
            let passed = Work::passed(BLOCK_TIME, busy).0.saturating_mul(u128::from(WHOLE));
            u64::try_from(passed.div_ceil(on_wire.0)).unwrap_or(u64::MAX)
        };
        let message_on_wire = u128::from(whole_bytes(on_wire).0) * u128::from(message.0) / u128::from(bytes.0.max(1));
        let message_on_wire = Bytes(u64::try_from(message_on_wire).unwrap_or(u64::MAX));
        let latency = network.latency(protocol)
            + network.rendezvous(message_on_wire)
            + network.signal_latency(protocol, message_on_wire)
            + fill;
        // An operation that is a part of a message has its share.
        let share = |bytes: Bytes, each: Picos| {
            let parts = u128::from(bytes.0) * u128::from(each.0) / u128::from(message.0.max(1));
            Picos(u64::try_from(parts).unwrap_or(u64::MAX))
        };
        let waiting = share(bytes.min(message), network.spacing(message_on_wire));
        let spacing = waiting.max(share(bytes, network.interval));
        Self { latency, flush: network.flush(protocol), spacing, proxy, two_sided_bytes: None }
    }

    /// Placeholder costs that identify a task by its proxy coefficient (see
    /// [`Tasks::proxy_code`](super::operation_cost::Tasks::proxy_code)).
    pub(super) fn placeholder(proxy: u64) -> Self {
        Self {
            latency: Picos(Latency::CROSSING),
            flush: Picos(Latency::FLUSH),
            spacing: Picos::ZERO,
            proxy,
            two_sided_bytes: None,
        }
    }

    /// Latency of the crossing to a device, in addition to that of the links.
    pub fn latency_to(&self, fabric: &Fabric, to: NodeId) -> Picos {
        if needs_flush(fabric, to) { self.latency + self.flush } else { self.latency }
    }
}

/// Returns true if a route leaves the host.
pub(super) fn crosses(fabric: &Fabric, hops: &[Hop]) -> bool {
    let is_network = |hop: &Hop| matches!(fabric.link(hop.link).kind, LinkKind::Infiniband | LinkKind::Ethernet);
    hops.iter().any(is_network)
}

/// Returns true for GPUs before Hopper (compute capability 9.0), on which a counter may be visible before the data that
/// precedes it (NCCL 2.30.7 src/transport/net.cc, `needFlush`).
fn needs_flush(fabric: &Fabric, device: NodeId) -> bool {
    match &fabric.node(device).figures {
        Figures::Gpu(figures) => figures.compute_capability.is_some_and(|capability| capability < 90),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    /// An operation is never divided into the messages of which smaller operations are parts.
    #[test]
    fn an_operation_is_at_most_one_message() {
        let network = Profile::named("nccl-2.28-h200").unwrap().network;
        let bytes = Bytes(1 << 14);
        let crossing = |message: u64| {
            let fill = |bytes: Bytes| Picos(bytes.0);
            let message = Message::Whole(Bytes(message));
            Crossing::new(&network, Protocol::Simple, bytes, message, fill, Work::from_bytes(bytes.0))
        };
        assert_eq!(crossing(1), crossing(bytes.0));
        assert_ne!(crossing(2 * bytes.0), crossing(bytes.0));
    }
}
