//! Ports of neighbours that replace a device's own ports if none of these is usable.

use std::borrow::Cow;
use std::cmp::Reverse;

use super::attachments::{Attachment, Attachments};
use super::router::{Candidate, Router};
use super::substitute_ports::SubstitutePorts;

impl Router<'_> {
    /// Ports through which incoming traffic reaches a device, among those for which `leads` is true.
    ///
    /// The result contains the device's own ports. If none of them is usable, it contains the same number of
    /// neighbours' ports. Ports of ranks are preferred to those of idle devices.
    pub(super) fn entries<'p>(
        &self,
        ports: &'p Attachments,
        island: u32,
        leads: impl Fn(&Attachment) -> bool,
    ) -> Cow<'p, [Attachment]> {
        let own = &ports.entries[..ports.entries.partition_point(|entry| entry.foreign == 0)];
        if own.iter().any(&leads) { Cow::Borrowed(own) } else { Cow::Owned(self.substitutes(ports, island, leads)) }
    }

    /// Neighbours' ports for which `usable` is true: those with the lowest value of [`Attachment::foreign`] only, at
    /// most as many as the device has own ports.
    fn substitutes(&self, ports: &Attachments, island: u32, usable: impl Fn(&Attachment) -> bool) -> Vec<Attachment> {
        let mut substitutes: Vec<Attachment> =
            ports.entries.iter().filter(|entry| entry.foreign > 0 && usable(entry)).copied().collect();
        let best = substitutes.first().map_or(0, |first| first.foreign);
        substitutes.retain(|entry| entry.foreign == best);
        let key = |entry: &Attachment| {
            let position = ports.substitutes.order(self.device(island, entry.port));
            let is_idle = !self.serves_a_rank(island, entry.port);
            (entry.tier, is_idle, entry.class, entry.hops, position, Reverse(entry.bandwidth), entry.latency)
        };
        substitutes.sort_by_cached_key(key);
        substitutes.truncate(ports.substitutes.max_count as usize);
        substitutes
    }

    /// Returns true if a rank has this port as its own port for incoming traffic.
    fn serves_a_rank(&self, island: u32, port: u32) -> bool {
        let shape = self.islands.shape(island);
        let is_own = |entry: &Attachment| entry.port == port && entry.foreign == 0;
        (0u32..)
            .zip(shape.nodes())
            .any(|(device, node)| node.is_rank && shape.attachments(device, &self.options).entries.iter().any(is_own))
    }

    /// Device of an island to which a port belongs.
    fn device(&self, island: u32, port: u32) -> u32 {
        self.islands.shape(island).ports().get(port as usize).map_or(0, |port| port.node)
    }

    /// Limits the neighbours' ports used for outgoing traffic to the number of own ports.
    pub(super) fn limit_substitute_ports(
        &self,
        candidates: &mut Vec<Candidate>,
        substitutes: SubstitutePorts,
        island: u32,
    ) {
        if candidates.len() < 2 {
            return;
        }
        let port = |candidate: &Candidate| candidate.exit.port;
        let key = |candidate: &Candidate| {
            (
                substitutes.order(self.device(island, port(candidate))),
                Reverse(self.min_link_bandwidth(candidate)),
                self.latency(candidate),
            )
        };
        let mut ranked: Vec<_> = candidates.iter().map(|candidate| (key(candidate), port(candidate))).collect();
        ranked.sort_unstable();
        let mut selected: Vec<u32> = Vec::new();
        for (_, port) in ranked {
            if !selected.contains(&port) && selected.len() < substitutes.max_count as usize {
                selected.push(port);
            }
        }
        candidates.retain(|candidate| selected.contains(&port(candidate)));
    }
}
