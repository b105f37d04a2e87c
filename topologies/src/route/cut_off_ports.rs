//! Ports that some ranks of other islands no longer reach because of failures.
//!
//! A sender that cannot reach a receiver's own ports uses ports of the receiver's neighbours. On separate rails (a
//! network that connects each NIC of a host only to its counterparts), the loss of a NIC, or of the route to it, forces
//! a rank to do so although the receiver's ports are in service. If this rank's traffic arrived at a neighbour's port
//! and that of other senders at the receiver's own port, the receiver would gain bandwidth by the failure. All senders
//! therefore avoid a port that some rank has lost, as long as the island has another.

use rustc_hash::FxHashMap;

use super::attach::exit;
use super::attachments::Attachment;
use super::{RouteOptions, Router};
use crate::LinkId;

/// Far end of the link from a port to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Remote {
    /// The network switch (or other forwarding device) with this number.
    Switch(u32),
    /// A port of another island, at the other end of this link direction.
    Cable(LinkId),
}

/// Islands whose ranks can no longer reach a remote end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Losers {
    One(u32),
    Several,
}

impl Losers {
    fn with(self, island: u32) -> Self {
        if self == Self::One(island) { self } else { Self::Several }
    }

    fn include_others(self, island: u32) -> bool {
        self != Self::One(island)
    }
}

/// Ports to which some rank has lost the route that it had on the fabric as built. Ranks that cannot send to the
/// network at all are ignored.
#[derive(Debug, Default)]
pub(super) struct CutOffPorts {
    losers: FxHashMap<Remote, Losers>,
}

/// Exit ports of a device, in ascending order.
struct ExitPorts {
    as_built: Vec<u32>,
    remaining: Vec<u32>,
}

/// Connectivity of the forwarding devices of a network.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Connectivity {
    /// Every device reaches every other.
    Joined,
    /// Some devices do not reach each other.
    Partitioned,
}

impl CutOffPorts {
    fn new(router: &Router<'_>) -> Self {
        let mut losers: FxHashMap<Remote, Losers> = FxHashMap::default();
        if router.fabric.links().all(|(_, link)| !link.failed) {
            return Self { losers };
        }
        let (islands, trunks_failed) = (&router.islands, router.network.has_failed_links());
        let connectivity = if router.network.is_joined() { Connectivity::Joined } else { Connectivity::Partitioned };
        // Devices of islands of one shape have the same exits, and many ranks have the same remote ends.
        let mut known_exits: FxHashMap<(u32, u32), ExitPorts> = FxHashMap::default();
        let mut known_losses: FxHashMap<[Vec<Remote>; 2], Vec<Remote>> = FxHashMap::default();
        for &rank in router.fabric.gpus() {
            let (island, device) = (islands.island_of(rank), islands.local(rank));
            let exits = known_exits
                .entry((islands.shape_number(island), device))
                .or_insert_with(|| ExitPorts::new(router, island, device));
            if exits.remaining.is_empty() || (exits.remaining == exits.as_built && !trunks_failed) {
                continue;
            }
            let remotes = [&exits.as_built, &exits.remaining].map(|ports| router.remotes(island, ports));
            let losses = known_losses
                .entry(remotes)
                .or_insert_with_key(|[before, after]| router.lost_remotes(before, after, connectivity));
            for &remote in &*losses {
                losers.entry(remote).and_modify(|losers| *losers = losers.with(island)).or_insert(Losers::One(island));
            }
        }
        Self { losers }
    }
}

impl ExitPorts {
    fn new(router: &Router<'_>, island: u32, device: u32) -> Self {
        let (shape, options): (_, &RouteOptions) = (router.islands.shape(island), &router.options);
        let ports = 0..shape.ports().len() as u32;
        let mut remaining: Vec<u32> = shape.attachments(device, options).exits.iter().map(|exit| exit.port).collect();
        remaining.sort_unstable();
        let as_built = ports.filter(|&port| exit(shape.as_built(), device, port, options).is_some()).collect();
        Self { as_built, remaining }
    }
}

impl Router<'_> {
    /// Returns true if a failure has cut off the port of `entry` from some rank of another island.
    pub(super) fn is_cut_off(&self, island: u32, entry: &Attachment) -> bool {
        let CutOffPorts { losers } = self.cut_off_ports.get_or_init(|| CutOffPorts::new(self));
        let out = self.islands.port(island, entry.port);
        let remote = self.network.number(self.fabric.link(out).to).map_or(Remote::Cable(out.reverse()), Remote::Switch);
        losers.get(&remote).is_some_and(|losers| losers.include_others(island))
    }

    /// Remote ends of an island's ports, in ascending order.
    fn remotes(&self, island: u32, ports: &[u32]) -> Vec<Remote> {
        let remote = |&port: &u32| {
            let out = self.islands.port(island, port);
            self.network.number(self.fabric.link(out).to).map_or(Remote::Cable(out), Remote::Switch)
        };
        let mut remotes: Vec<Remote> = ports.iter().map(remote).collect();
        remotes.sort_unstable();
        remotes.dedup();
        remotes
    }

    /// Remote ends that are reachable from `before` on the fabric as built and no longer reachable from `after`.
    fn lost_remotes(&self, before: &[Remote], after: &[Remote], connectivity: Connectivity) -> Vec<Remote> {
        let is_cable = |remote: &Remote| matches!(remote, Remote::Cable(_));
        let mut lost: Vec<Remote> =
            before.iter().filter(|remote| is_cable(remote) && !after.contains(remote)).copied().collect();
        let switches = |remotes: &[Remote]| -> Vec<u32> {
            let number = |remote: &Remote| if let Remote::Switch(number) = remote { Some(*number) } else { None };
            remotes.iter().filter_map(number).collect()
        };
        let remaining = switches(after);
        if connectivity == Connectivity::Partitioned || remaining.is_empty() {
            let reached = self.network.reached_from(&remaining);
            let reached_before = self.network.reached_as_built(&switches(before));
            let numbers = (0..).zip(reached_before.into_iter().zip(reached));
            lost.extend(numbers.filter(|&(_, (before, now))| before && !now).map(|(number, _)| Remote::Switch(number)));
        }
        lost
    }
}
