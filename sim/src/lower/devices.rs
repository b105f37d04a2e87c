//! Passages between devices: the links of the route, the memories at its ends, and a channel if the rate of channels is
//! limited.

mod teams;

use fabricast_topologies::route::{
    BufferLocation, Ecmp, Hop, Participants, Router, Share, Staging, Substitution, Summary,
};
use fabricast_topologies::{Fabric, LinkKind, NodeId, Picos};

use super::buffer_access::BufferAccess;
use super::capacities::{COPY_MEMORY_USES, Capacities, REDUCTION_MEMORY_USES, SharedCapacities};
use super::message_route::MessageRoute;
use super::network::{Crossing, crosses};
use super::{Environment, Framing, LowerError, Resource};
use crate::engine::RouteLatency;
use crate::profile::Profile;
use crate::quantity::Rate;
use crate::schedule::{Channel, Header, Protocol, Rank, TeamId};
use crate::sharing::{System, Use, WHOLE};

/// Type of access to the memories at the ends of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MemoryAccess {
    Move,
    MoveAndReduce,
    Copy,
    Reduce,
    /// Multicast to all members of a team, copied by the switch (NVLS).
    Spread(TeamId),
    /// Read from all members of a team, reduced by the switch (NVLS).
    Gather(TeamId),
    /// Read from all members of a team, reduced by the switches of a network, and sent to all members (SHARP).
    AllReduce(TeamId),
    Notify,
}

/// Locations of the caller's buffers, if they lie outside the devices' memory, and the accesses to them.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferRoutes {
    /// Node whose memory holds the sending rank's buffers.
    pub from: NodeId,
    /// Node whose memory holds the receiving rank's buffers.
    pub to: NodeId,
    pub access: BufferAccess,
}

/// Properties of an operation that determine its passage.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferSpec {
    pub from: NodeId,
    pub to: NodeId,
    /// Device that executes the operation.
    pub executor: NodeId,
    pub flavour: MemoryAccess,
    pub channel_use: Option<ChannelUse>,
    /// Additional costs if the operation leaves its host.
    pub crossing: Crossing,
    /// Accesses to buffers outside the two devices.
    pub buffer_routes: BufferRoutes,
    /// Number that distinguishes flows between the same devices if routes are hashed.
    pub label: u64,
}

/// Use of the capacity of a channel by an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChannelUse {
    pub rank: Rank,
    pub channel: Channel,
    /// Use per byte on the wire, in units of [`WHOLE`]; `None`: derived from the payload.
    pub coefficient: Option<u64>,
}

/// Hardware that moves the data of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyHardware {
    /// Thread blocks, or hardware that is not modelled.
    Sms,
    /// Copy engines of the GPUs.
    Engines,
}

/// State of the placeholder costs of network crossings ([`Crossing::placeholder`]): recoverable from latencies and
/// coefficients, or not. They are not recoverable if an operation's cost is the longest of several routes or its bytes
/// are rescaled, as on routes to buffers and to multicast teams that leave the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlaceholderRecovery {
    #[default]
    Recoverable,
    Unrecoverable,
}

/// Creator of passages between devices, and of the capacities on them.
pub(crate) struct Devices<'a> {
    setting: Environment<'a>,
    framing: Framing,
    /// Fraction of PCIe bandwidth that loads and stores between GPUs reach.
    peers: Framing,
    copies: CopyHardware,
    capacities: Capacities<'a>,
    relaying: RelayGpus,
    hops: Vec<Hop>,
    /// Links of the route that `hops` replace; empty if they replace none.
    replaced: Vec<Hop>,
    uses: Vec<Use>,
    codes: PlaceholderRecovery,
}

/// GPUs that may relay traffic if two GPUs have no NVLink between them.
#[derive(Debug)]
enum RelayGpus {
    /// Any GPU of the fabric; no list is needed if no GPU can relay.
    AnyRank,
    /// The devices of a schedule's ranks.
    Among(Participants),
}

impl<'a> Devices<'a> {
    /// Creates passages for plain transfers, in a system that already has the capacities `resources`.
    pub(crate) fn new(setting: Environment<'a>, resources: Vec<Resource>) -> Self {
        let capacities = Capacities::continued(setting, resources);
        let framing = Framing::new(1.0);
        Self::with(setting, framing, CopyHardware::Sms, RelayGpus::AnyRank, capacities)
    }

    /// Creates passages for the operations of a schedule.
    pub(super) fn for_schedule(setting: Environment<'a>, header: &Header, capacities: Capacities<'a>) -> Self {
        let ranks = header.call.ranks as usize;
        let framing = Framing::new(setting.profile.protocol(header.protocol).wire_efficiency);
        let copies = if header.protocol == Protocol::CopyEngine { CopyHardware::Engines } else { CopyHardware::Sms };
        let relaying = match setting.router.has_relays() {
            true => RelayGpus::Among(Participants::new(setting.placement.get(..ranks).unwrap_or(setting.placement))),
            false => RelayGpus::AnyRank,
        };
        Self::with(setting, framing, copies, relaying, capacities)
    }

    fn with(
        setting: Environment<'a>,
        framing: Framing,
        copies: CopyHardware,
        relaying: RelayGpus,
        capacities: Capacities<'a>,
    ) -> Self {
        let (hops, replaced) = (Vec::new(), Vec::new());
        let (uses, codes) = (Vec::new(), PlaceholderRecovery::default());
        let peers = Framing::new(setting.profile.links.pcie_peers);
        Self { setting, framing, peers, copies, capacities, relaying, hops, replaced, uses, codes }
    }

    pub(super) fn framing(&self) -> Framing {
        self.framing
    }

    pub(super) fn limits_channels(&self) -> bool {
        self.capacities.limits_channels()
    }

    /// Returns the label that distinguishes flows between the same two devices.
    pub(super) fn label(&self, channel: Channel) -> u64 {
        label(self.setting.router, channel)
    }

    pub(super) fn codes(&self) -> PlaceholderRecovery {
        self.codes
    }

    pub(crate) fn into_resources(self) -> Vec<Resource> {
        self.capacities.into_resources().0
    }

    pub(super) fn into_capacities(self) -> (Vec<Resource>, SharedCapacities) {
        self.capacities.into_resources()
    }

    /// Returns the passage of a plain transfer.
    pub(crate) fn passage(
        &mut self,
        from: NodeId,
        to: NodeId,
        label: u64,
        system: &mut System,
    ) -> Result<RouteLatency, LowerError> {
        let buffer_routes = BufferRoutes { from, to, access: BufferAccess::default() };
        self.make_passage(
            TransferSpec {
                from,
                to,
                executor: from,
                flavour: MemoryAccess::Move,
                channel_use: None,
                crossing: Crossing::default(),
                buffer_routes,
                label,
            },
            system,
        )
    }

    pub(super) fn make_passage(&mut self, spec: TransferSpec, system: &mut System) -> Result<RouteLatency, LowerError> {
        let TransferSpec { from, to, executor, flavour, channel_use, .. } = spec;
        self.uses.clear();
        let mut latency = match spec.crossing.two_sided_bytes {
            // Ranks on one device exchange messages as well.
            Some(bytes) if from == to && flavour != MemoryAccess::Copy => {
                self.deliver(spec, bytes, &MessageRoute::SAME_DEVICE, system)
            }
            _ if from == to => Picos::ZERO,
            _ => self.add_route(spec, system)?,
        };
        if flavour == MemoryAccess::Notify {
            return Ok(RouteLatency { route: None, latency });
        }
        if spec.buffer_routes.access.any() {
            latency += self.add_buffer_routes(spec, system)?;
        }
        let (read, written) = match flavour {
            MemoryAccess::Copy => (0, COPY_MEMORY_USES),
            MemoryAccess::Reduce | MemoryAccess::MoveAndReduce if from == to => (0, REDUCTION_MEMORY_USES),
            MemoryAccess::MoveAndReduce => (1, REDUCTION_MEMORY_USES),
            MemoryAccess::Move
            | MemoryAccess::Reduce
            | MemoryAccess::Spread(_)
            | MemoryAccess::Gather(_)
            | MemoryAccess::AllReduce(_)
            | MemoryAccess::Notify => (1, 1),
        };
        self.add(Resource::Memory(from), self.framing.coefficient(read), system);
        self.add(Resource::Memory(to), self.framing.coefficient(written), system);
        Ok(self.finish(latency, executor, channel_use, system))
    }

    pub(super) fn fabric(&self) -> &'a Fabric {
        self.setting.fabric
    }

    pub(super) fn profile(&self) -> &'a Profile {
        self.setting.profile
    }

    /// Returns the location of the caller's buffers.
    pub(super) fn buffers(&self) -> BufferLocation {
        self.setting.router.options().buffers
    }

    /// Adds the routes to the caller's buffers and returns their latency. Reads at both ends start at the same time, so
    /// the longer one counts.
    fn add_buffer_routes(&mut self, spec: TransferSpec, system: &mut System) -> Result<Picos, LowerError> {
        let TransferSpec { from, to, buffer_routes: legs, .. } = spec;
        let BufferAccess { reads_source, reads_target, writes_target } = legs.access;
        let source = if reads_source {
            self.add_buffer_route(TransferSpec { from: legs.from, to: from, ..spec }, system)?
        } else {
            Picos::ZERO
        };
        let target = if reads_target {
            self.add_buffer_route(TransferSpec { from: legs.to, to, ..spec }, system)?
        } else {
            Picos::ZERO
        };
        let result = if writes_target {
            self.add_buffer_route(TransferSpec { from: to, to: legs.to, ..spec }, system)?
        } else {
            Picos::ZERO
        };
        Ok(source.max(target) + result)
    }

    /// Adds the route of a payload between a device and a buffer, and the load on the buffer's memory.
    fn add_buffer_route(&mut self, spec: TransferSpec, system: &mut System) -> Result<Picos, LowerError> {
        let TransferSpec { from, to, .. } = spec;
        if from == to {
            return Ok(Picos::ZERO);
        }
        let before = self.uses.len();
        // The access to a buffer is not a message of its own.
        let crossing = Crossing { two_sided_bytes: None, ..spec.crossing };
        let latency = self.add_concurrent_route(TransferSpec { crossing, ..spec }, system)?;
        for one in self.uses.iter_mut().skip(before) {
            one.coefficient = self.framing.unframed(one.coefficient);
        }
        let buffers = if from == spec.buffer_routes.from || from == spec.buffer_routes.to { from } else { to };
        let copies = match self.buffers() {
            BufferLocation::Pageable => COPY_MEMORY_USES,
            _ => 0,
        };
        self.add(Resource::Memory(buffers), self.framing.coefficient(1 + copies), system);
        Ok(latency)
    }

    /// Returns the passage over the capacities collected so far, and through a channel of the executing device.
    fn finish(
        &mut self,
        latency: Picos,
        executor: NodeId,
        channel_use: Option<ChannelUse>,
        system: &mut System,
    ) -> RouteLatency {
        if let Some(ChannelUse { rank, channel, coefficient }) = channel_use {
            let demand = coefficient.unwrap_or_else(|| self.framing.coefficient(1));
            self.add(Resource::Channel(rank, channel), demand, system);
            self.add(Resource::Processors(executor), self.capacities.processor_share(demand), system);
        }
        self.merge_uses(|a, b| a + b);
        let route = (!self.uses.is_empty()).then(|| system.add_route(&self.uses, Rate::UNLIMITED, 1));
        RouteLatency { route, latency }
    }

    /// Adds the route between two devices as [`Self::add_path`] does. A route that replaces another after a failure is
    /// charged with both ([`Substitution`]). Returns the latency.
    fn add_route(&mut self, spec: TransferSpec, system: &mut System) -> Result<Picos, LowerError> {
        let (mut hops, mut replaced) = (std::mem::take(&mut self.hops), std::mem::take(&mut self.replaced));
        hops.clear();
        replaced.clear();
        let TransferSpec { from, to, label, .. } = spec;
        let participants = match &self.relaying {
            RelayGpus::AnyRank => None,
            RelayGpus::Among(ranks) => Some(ranks),
        };
        let found = self.setting.router.route_and_replaced(participants, from, to, label, &mut hops, &mut replaced);
        let latency = found.map(|route| self.add_substitution(spec, &hops, &replaced, route, system));
        (self.hops, self.replaced) = (hops, replaced);
        Ok(latency?)
    }

    /// Adds a route and, if it replaces another, that one: every capacity serves the route that uses it more, and the
    /// latency is the longer one.
    fn add_substitution(
        &mut self,
        spec: TransferSpec,
        hops: &[Hop],
        replaced: &[Hop],
        route: Substitution,
        system: &mut System,
    ) -> Picos {
        let first = self.uses.len();
        let latency = self.add_path(spec, hops, route.used, system);
        let Some(summary) = route.replaced else { return latency };
        let second = self.uses.len();
        let built_latency = self.add_path(spec, replaced, summary, system);
        let mut uses = self.uses.split_off(second);
        let mut own = self.uses.split_off(first);
        merge(&mut own, |a, b| a + b);
        merge(&mut uses, |a, b| a + b);
        uses.append(&mut own);
        merge(&mut uses, u64::max);
        self.uses.append(&mut uses);
        latency.max(built_latency)
    }

    /// Adds the links and switches of a route between two devices, the memories that stage the data (those of relaying
    /// GPUs, and host memory) and the copy engines that move it. Returns the latency.
    fn add_path(&mut self, spec: TransferSpec, hops: &[Hop], summary: Summary, system: &mut System) -> Picos {
        let router = self.setting.router;
        let Summary { mut latency, staging, .. } = summary;
        let leaves = crosses(self.setting.fabric, hops);
        if spec.flavour != MemoryAccess::Notify {
            let is_gpu = |device: NodeId| self.setting.fabric.node(device).kind.is_rank();
            let copied_by_sms = self.copies == CopyHardware::Sms && !leaves && is_gpu(spec.from) && is_gpu(spec.to);
            for hop in hops {
                let is_pcie = self.setting.fabric.link(hop.link).kind == LinkKind::Pcie;
                let share = hop_coefficient(hop);
                let link_share = if copied_by_sms && is_pcie { self.peers.scale_coefficient(share) } else { share };
                self.add(Resource::Link(hop.link), link_share, system);
                let (_, into) = self.setting.fabric.ends(hop.link);
                self.add(Resource::Crossbar(into), share, system);
            }
            for (relay, share) in router.relays(hops, spec.to) {
                self.add(Resource::Memory(relay), COPY_MEMORY_USES * share_coefficient(share), system);
            }
        }
        if let Some(bytes) = spec.crossing.two_sided_bytes {
            let message_route = MessageRoute { latency, staging, leaves, sections: self.first_fragment(hops, staging) };
            latency += self.deliver(spec, bytes, &message_route, system);
        }
        if leaves {
            latency += spec.crossing.latency_to(self.setting.fabric, spec.to);
            if spec.flavour != MemoryAccess::Notify {
                self.add(Resource::Proxy(spec.from), spec.crossing.proxy, system);
            }
        }
        if spec.flavour != MemoryAccess::Notify {
            for cpu in staging.cpus() {
                self.add(Resource::Memory(cpu), COPY_MEMORY_USES * WHOLE, system);
            }
            if self.copies == CopyHardware::Engines {
                // A put or get occupies one engine; through host memory, one engine at each end moves the data.
                let both = staging != Staging::default();
                for device in [spec.from, spec.to].into_iter().filter(|&device| both || device == spec.executor) {
                    self.add(Resource::CopyEngines(device), self.framing.coefficient(1), system);
                }
            }
        }
        latency
    }

    /// Adds one of several concurrent routes of an operation, as [`Self::add_route`] adds a single one.
    fn add_concurrent_route(&mut self, spec: TransferSpec, system: &mut System) -> Result<Picos, LowerError> {
        let latency = self.add_route(spec, system)?;
        if spec.crossing != Crossing::default() && crosses(self.setting.fabric, &self.hops) {
            self.codes = PlaceholderRecovery::Unrecoverable;
        }
        Ok(latency)
    }

    pub(super) fn add(&mut self, resource: Resource, coefficient: u64, system: &mut System) {
        if coefficient == 0 {
            return;
        }
        if let Some(resource) = self.capacities.id(resource, system) {
            self.uses.push(Use { resource, coefficient });
        }
    }

    /// Merges several uses of one capacity into one, whose coefficient is computed by `combine`.
    fn merge_uses(&mut self, combine: fn(u64, u64) -> u64) {
        merge(&mut self.uses, combine);
    }
}

/// Merges several uses of one capacity into one, whose coefficient is computed by `combine`.
fn merge(uses: &mut Vec<Use>, combine: fn(u64, u64) -> u64) {
    uses.sort_unstable();
    uses.dedup_by(|next, previous| {
        let same = next.resource == previous.resource;
        if same {
            previous.coefficient = combine(previous.coefficient, next.coefficient);
        }
        same
    });
}

/// Returns the label that distinguishes flows between the same two devices: the channel if routes are hashed, otherwise
/// 0.
pub(super) fn label(router: &Router<'_>, channel: Channel) -> u64 {
    match router.options().ecmp {
        Ecmp::Hashed { .. } => channel.0.into(),
        Ecmp::Averaged => 0,
    }
}

/// Share of a transfer that passes a hop, in units of [`WHOLE`].
pub(super) fn hop_coefficient(hop: &Hop) -> u64 {
    share_coefficient(hop.share)
}

/// Share of a transfer, in units of [`WHOLE`].
fn share_coefficient(share: Share) -> u64 {
    (WHOLE * u64::from(share.numerator)).div_ceil(u64::from(share.denominator.max(1)))
}
