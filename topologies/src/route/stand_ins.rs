//! Ports of neighbours for devices of which no own port is usable.

use std::borrow::Cow;
use std::cmp::Reverse;

use super::Router;
use super::attach::{Attachment, Attachments};
use super::router::Candidate;

/// Substitute ports of neighbours; at most as many as the device's own ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StandIns {
    /// Maximum number of substitute ports.
    most: u32,
    /// First device that is considered. It differs between devices, so that several that lost their ports use different
    /// neighbours.
    first: u32,
    /// Number of devices of the shape.
    devices: u32,
}

impl StandIns {
    /// Creates the substitutes of a device: their maximum number, the first device considered, and the number of devices
    /// of the shape.
    pub fn new(most: u32, first: u32, devices: u32) -> Self {
        Self { most, first, devices }
    }

    /// Position of a device in the order of consideration.
    fn place(self, device: u32) -> u32 {
        let devices = self.devices.max(1);
        (device + devices - self.first % devices) % devices
    }
}

impl Router<'_> {
    /// Ports through which incoming traffic reaches a device, among those for which `leads` is true. These are its own
    /// ports; otherwise the same number of neighbours' ports, independent of the sender, so that no more arrives than
    /// by its own ports. Ports of ranks are preferred to those of idle devices.
    pub(super) fn entries<'p>(
        &self,
        ports: &'p Attachments,
        island: u32,
        leads: impl Fn(&Attachment) -> bool,
    ) -> Cow<'p, [Attachment]> {
        let Some(first) = ports.entries.iter().position(&leads) else { return Cow::Borrowed(&[]) };
        let rest = &ports.entries[first..];
        let count = rest.iter().take_while(|entry| entry.foreign == rest[0].foreign).count();
        let equal = &rest[..count];
        if rest[0].foreign == 0 {
            return Cow::Borrowed(equal);
        }
        let key = |entry: &Attachment| {
            let place = ports.stand_ins.place(self.device(island, entry.port));
            let is_idle = !self.serves_a_rank(island, entry.port);
            (entry.tier, is_idle, entry.class, entry.hops, place, Reverse(entry.bandwidth), entry.latency)
        };
        let mut usable: Vec<Attachment> = equal.iter().filter(|entry| leads(entry)).copied().collect();
        usable.sort_by_cached_key(key);
        usable.truncate(ports.stand_ins.most as usize);
        Cow::Owned(usable)
    }

    /// Returns true if incoming traffic of some rank uses this port as the rank's own.
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
    pub(super) fn take_stand_ins(&self, ways: &mut Vec<Candidate>, stand_ins: StandIns, island: u32) {
        if ways.len() < 2 {
            return;
        }
        let port = |way: &Candidate| way.exit.port;
        let key = |way: &Candidate| {
            (stand_ins.place(self.device(island, port(way))), Reverse(self.narrowest(way)), self.latency(way))
        };
        let mut ranked: Vec<_> = ways.iter().map(|way| (key(way), port(way))).collect();
        ranked.sort_unstable();
        let mut taken: Vec<u32> = Vec::new();
        for (_, port) in ranked {
            if !taken.contains(&port) && taken.len() < stand_ins.most as usize {
                taken.push(port);
            }
        }
        ways.retain(|way| taken.contains(&port(way)));
    }
}
