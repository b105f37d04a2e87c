//! Passages of operations that switches execute for a team of devices: reduction and multicast.

use fabricast_topologies::{LinkId, NodeId, NodeKind, Picos};

use super::{Devices, MemoryAccess, TransferSpec, hop_coefficient};
use crate::engine::RouteLatency;
use crate::lower::{Framing, LowerError, Resource};
use crate::sharing::System;

impl Devices<'_> {
    /// Returns the passage of a multicast operation of the device `spec.from`. The bytes pass each link between the
    /// device and the members once, the links between the device and the switch in both directions, and every member's
    /// memory. The latency is that of the longest route.
    pub(in crate::lower) fn make_team(
        &mut self,
        spec: TransferSpec,
        members: &[NodeId],
        system: &mut System,
    ) -> Result<RouteLatency, LowerError> {
        let TransferSpec { from: owner, channel_use, flavour, .. } = spec;
        let spreads = matches!(flavour, MemoryAccess::Spread(_));
        self.uses.clear();
        let mut latency = Picos::ZERO;
        let mut others = members.iter().copied().filter(|&member| member != owner).peekable();
        let nearest = others.peek().copied();
        for other in others {
            let (from, to) = if spreads { (owner, other) } else { (other, owner) };
            latency = latency.max(self.add_concurrent_route(TransferSpec { from, to, ..spec }, system)?);
            if let Some(hop) = self.hops.iter().find(|hop| !self.copies(hop.link, to)) {
                let at = self.setting.fabric.ends(hop.link).1;
                return Err(LowerError::NoMulticast { from, to, at });
            }
        }
        if let Some(other) = nearest {
            // The device's own share of the data returns from the switch.
            let (from, to) = if spreads { (other, owner) } else { (owner, other) };
            let (before, _) = (self.uses.len(), self.add_route(TransferSpec { from, to, ..spec }, system)?);
            self.uses.truncate(before);
            let (hops, replaced) = (std::mem::take(&mut self.hops), std::mem::take(&mut self.replaced));
            for hop in hops.iter().chain(&replaced) {
                let (start, end) = self.setting.fabric.ends(hop.link);
                if if spreads { end == owner } else { start == owner } {
                    self.add(Resource::Link(hop.link), hop_coefficient(hop), system);
                }
            }
            (self.hops, self.replaced) = (hops, replaced);
        }
        self.merge_uses(u64::max);
        let reached = Framing::new(self.setting.profile.links.multicast);
        for one in &mut self.uses {
            one.coefficient = reached.scale_coefficient(one.coefficient);
        }
        for &member in members {
            self.add(Resource::Memory(member), self.framing.coefficient(1), system);
        }
        self.add(Resource::Memory(owner), self.framing.coefficient(1), system);
        Ok(self.finish(latency, owner, channel_use, system))
    }

    /// Returns true if a link ends at the destination, or at a switch that multicasts.
    fn copies(&self, link: LinkId, to: NodeId) -> bool {
        let (_, at) = self.setting.fabric.ends(link);
        at == to || self.setting.fabric.node(at).figures.supports_multicast()
    }

    /// Returns the passage of an all_reduce over `members` in the switches of a network. Switches form a tree: each sends
    /// the sum of the data from below up once, and the result down once. Each direction of every link of the tree
    /// therefore carries the bytes once, and the slowest link determines the rate of all members. The latency is that of
    /// the longest path between two members.
    ///
    /// The paths of one member form the tree. In a tree, the member farthest from any vertex is an end of a longest path,
    /// so that the paths of the member farthest from the first one have the longest latency.
    pub(in crate::lower) fn make_network_team(
        &mut self,
        spec: TransferSpec,
        members: &[NodeId],
        system: &mut System,
    ) -> Result<RouteLatency, LowerError> {
        self.uses.clear();
        let Some(&first) = members.first() else {
            return Ok(self.finish(Picos::ZERO, spec.executor, None, system));
        };
        let (mut farthest, mut longest) = (first, Picos::ZERO);
        for &member in members.iter().filter(|&&member| member != first) {
            let latency = self.add_network_path(TransferSpec { from: first, to: member, ..spec }, system)?;
            if latency > longest {
                (farthest, longest) = (member, latency);
            }
        }
        self.uses.clear();
        for &member in members.iter().filter(|&&member| member != farthest) {
            for (from, to) in [(farthest, member), (member, farthest)] {
                longest = longest.max(self.add_network_path(TransferSpec { from, to, ..spec }, system)?);
            }
        }
        self.merge_uses(u64::max);
        for &member in members {
            // Data is read, and the result is written.
            self.add(Resource::Memory(member), self.framing.coefficient(2), system);
        }
        Ok(self.finish(longest, spec.executor, None, system))
    }

    /// Adds one of the paths of an all_reduce in the switches of a network, and returns its latency.
    ///
    /// # Errors
    /// [`LowerError::NoMulticast`] if the path passes no network switch, or one that does not reduce.
    fn add_network_path(&mut self, spec: TransferSpec, system: &mut System) -> Result<Picos, LowerError> {
        let latency = self.add_concurrent_route(spec, system)?;
        let TransferSpec { from, to, .. } = spec;
        let fabric = self.setting.fabric;
        let mut switches = self.hops.iter().map(|hop| fabric.ends(hop.link).1);
        let mut reduces = false;
        let plain = switches.find(|&at| {
            let node = fabric.node(at);
            let is_switch = node.kind == NodeKind::Switch;
            reduces |= is_switch;
            is_switch && !node.figures.supports_multicast()
        });
        match plain {
            Some(at) => Err(LowerError::NoMulticast { from, to, at }),
            None if !reduces => Err(LowerError::NoMulticast { from, to, at: to }),
            None => Ok(latency),
        }
    }
}
