//! Costs of a two-sided message on its route, which depend on its size, on the memory at its ends and on the hardware
//! that carries it.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{Hop, Staging};
use fabricast_topologies::{Bandwidth, Bytes, NodeId, Picos};

use super::Resource;
use super::block_time::BLOCK_TIME;
use super::devices::{Devices, MemoryAccess, TransferSpec};
use super::message_route::MessageRoute;
use crate::profile::{DataPath, MemoryKind, MessageCosts};
use crate::quantity::Work;
use crate::sharing::{System, WHOLE};

impl Devices<'_> {
    /// Adds the time of the sending process for a message of `bytes` to the capacities used; returns the latency in
    /// addition to that of the path.
    pub(super) fn deliver(
        &mut self,
        trip: TransferSpec,
        bytes: Bytes,
        route: &MessageRoute,
        system: &mut System,
    ) -> Picos {
        let Some(costs) = self.messages() else { return Picos::ZERO };
        let ends = match self.is_cpu(trip.from) {
            true => MemoryKind::Hosts,
            false => MemoryKind::Devices,
        };
        let carried = route.carried();
        let latency = costs.latency(bytes, route.latency, ends, carried);
        if trip.flavour == MemoryAccess::Notify || bytes.0 == 0 {
            return latency;
        }
        // Messages in host memory are copied by their process; its channel is charged instead.
        if ends == MemoryKind::Devices {
            let busy = Work::passed(BLOCK_TIME, costs.busy(bytes, carried)).0.saturating_mul(u128::from(WHOLE));
            let payload = Work::from_bytes(bytes.0).0.max(1);
            self.add(Resource::Proxy(trip.from), u64::try_from(busy.div_ceil(payload)).unwrap_or(u64::MAX), system);
        }
        if carried == DataPath::HostStaged && ends == MemoryKind::Devices && !costs.is_eager(bytes) {
            return latency + route.filling(costs.fragment.min(bytes));
        }
        latency
    }

    /// Returns the bandwidth of each section of a route that is divided by staging in host memory; empty if nothing is
    /// staged.
    pub(super) fn first_fragment(&self, hops: &[Hop], staging: Staging) -> Vec<Bandwidth> {
        if staging == Staging::default() {
            return Vec::new();
        }
        let mut legs = Vec::new();
        let mut slowest: Option<Bandwidth> = None;
        for hop in hops {
            let link = self.fabric().link(hop.link);
            let link_rate = link.bandwidth.map(|rate| hop.share.whole_bandwidth(rate));
            slowest = slowest.into_iter().chain(link_rate).min();
            let (_, end) = self.fabric().ends(hop.link);
            if staging.cpus().any(|cpu| cpu == end) {
                legs.extend(slowest.take());
            }
        }
        legs.extend(slowest);
        legs
    }

    fn is_cpu(&self, node: NodeId) -> bool {
        matches!(self.fabric().node(node).figures, Figures::Cpu(_))
    }

    fn messages(&self) -> Option<MessageCosts> {
        self.profile().messages
    }
}
