//! Passages between devices: the links of the route, the memories at its ends, and a lane if lanes are limited.

use fabricast_topologies::route::{BufferPlace, Ecmp, Hop, Participants, Router, Share, Staging, Summary};
use fabricast_topologies::{Fabric, LinkId, LinkKind, NodeId, Picos};

use super::capacities::{COPY_MEMORY_USES, Capacities, REDUCTION_MEMORY_USES, Shared};
use super::message::Way;
use super::network::{Crossing, crosses};
use super::reaches::Reaches;
use super::{Framing, LowerError, Resource, Setting};
use crate::engine::Passage;
use crate::profile::Profile;
use crate::quantity::Rate;
use crate::schedule::{Channel, Header, Protocol, Rank, TeamId};
use crate::sharing::{System, Use, WHOLE};

/// Kind of access to the memories at the ends of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Flavour {
    Move,
    MoveAndReduce,
    Copy,
    Reduce,
    /// Multicast to all members of a team, copied by the switch (NVLS).
    Spread(TeamId),
    /// Read from all members of a team, reduced by the switch (NVLS).
    Gather(TeamId),
    Notify,
}

/// Locations of the caller's buffers, if they lie outside the devices' memory, and the accesses to them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Legs {
    /// Node whose memory holds the sending rank's buffers.
    pub from: NodeId,
    /// Node whose memory holds the receiving rank's buffers.
    pub to: NodeId,
    pub reaches: Reaches,
}

/// Everything that determines the passage of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trip {
    pub from: NodeId,
    pub to: NodeId,
    /// Device that executes the operation.
    pub by: NodeId,
    pub flavour: Flavour,
    pub lane: Option<LaneUse>,
    /// Costs if the operation leaves the host.
    pub crossing: Crossing,
    /// Accesses to buffers outside the two devices.
    pub legs: Legs,
    /// Distinguishes flows between the same devices if routes are hashed.
    pub label: u64,
}

/// Use of a channel's lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LaneUse {
    pub rank: Rank,
    pub channel: Channel,
    /// Use per wire byte in units of [`WHOLE`]; `None`: derived from the payload.
    pub coefficient: Option<u64>,
}

/// Hardware that moves the data of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopiedBy {
    /// Thread blocks, or hardware that is not modelled.
    Sms,
    /// Copy engines.
    Engines,
}

/// Recoverability of the placeholder costs of network crossings ([`Crossing::stand_in`]) from latencies and
/// coefficients. They cannot be recovered if the longest of several routes counts or bytes are rescaled, as on routes
/// to buffers and to multicast teams that leave the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Codes {
    #[default]
    Told,
    Blurred,
}

/// Creates passages between devices, and the capacities on them.
pub(crate) struct Devices<'a> {
    setting: Setting<'a>,
    framing: Framing,
    /// Fraction of PCIe bandwidth that loads and stores between GPUs reach.
    peers: Framing,
    copies: CopiedBy,
    capacities: Capacities<'a>,
    relaying: Relaying,
    hops: Vec<Hop>,
    uses: Vec<Use>,
    codes: Codes,
}

/// GPUs that may relay traffic in place of missing NVLinks.
#[derive(Debug)]
enum Relaying {
    /// Any rank of the fabric, or none if no GPU could relay.
    AnyRank,
    /// The devices of a schedule's ranks.
    Among(Participants),
}

impl<'a> Devices<'a> {
    /// Creates passages for plain transfers, in a system that already has the capacities `resources`.
    pub(crate) fn new(setting: Setting<'a>, resources: Vec<Resource>) -> Self {
        let capacities = Capacities::continued(setting, resources);
        let framing = Framing::new(1.0);
        Self::with(setting, (framing, CopiedBy::Sms), Relaying::AnyRank, capacities)
    }

    /// Creates passages for the operations of a schedule.
    pub(super) fn for_schedule(setting: Setting<'a>, header: &Header, capacities: Capacities<'a>) -> Self {
        let ranks = header.call.ranks as usize;
        let framing = Framing::new(setting.profile.protocol(header.protocol).wire_efficiency);
        let copies = if header.protocol == Protocol::CopyEngine { CopiedBy::Engines } else { CopiedBy::Sms };
        let relaying = match setting.router.has_relays() {
            true => Relaying::Among(Participants::new(setting.placement.get(..ranks).unwrap_or(setting.placement))),
            false => Relaying::AnyRank,
        };
        Self::with(setting, (framing, copies), relaying, capacities)
    }

    fn with(
        setting: Setting<'a>,
        (framing, copies): (Framing, CopiedBy),
        relaying: Relaying,
        capacities: Capacities<'a>,
    ) -> Self {
        let (hops, uses, codes) = (Vec::new(), Vec::new(), Codes::default());
        let peers = Framing::new(setting.profile.links.pcie_peers);
        Self { setting, framing, peers, copies, capacities, relaying, hops, uses, codes }
    }

    pub(super) fn framing(&self) -> Framing {
        self.framing
    }

    pub(super) fn has_lanes(&self) -> bool {
        self.capacities.has_lanes()
    }

    /// Label that distinguishes flows between the same two devices.
    pub(super) fn label(&self, channel: Channel) -> u64 {
        label(self.setting.router, channel)
    }

    pub(super) fn codes(&self) -> Codes {
        self.codes
    }

    pub(crate) fn into_resources(self) -> Vec<Resource> {
        self.capacities.into_resources().0
    }

    pub(super) fn into_capacities(self) -> (Vec<Resource>, Shared) {
        self.capacities.into_resources()
    }

    /// Returns the passage of a plain transfer.
    pub(crate) fn passage(
        &mut self,
        from: NodeId,
        to: NodeId,
        label: u64,
        system: &mut System,
    ) -> Result<Passage, LowerError> {
        let legs = Legs { from, to, reaches: Reaches::default() };
        self.make(
            Trip { from, to, by: from, flavour: Flavour::Move, lane: None, crossing: Crossing::default(), legs, label },
            system,
        )
    }

    pub(super) fn make(&mut self, trip: Trip, system: &mut System) -> Result<Passage, LowerError> {
        let Trip { from, to, by, flavour, lane, .. } = trip;
        self.uses.clear();
        let mut latency = match trip.crossing.letter {
            // Ranks on one device exchange messages as well.
            Some(bytes) if from == to && flavour != Flavour::Copy => self.deliver(trip, bytes, &Way::WITHIN, system),
            _ if from == to => Picos::ZERO,
            _ => self.travel(trip, system)?,
        };
        if flavour == Flavour::Notify {
            return Ok(Passage { route: None, latency });
        }
        if trip.legs.reaches.any() {
            latency += self.reach(trip, system)?;
        }
        let (read, written) = match flavour {
            Flavour::Copy => (0, COPY_MEMORY_USES),
            Flavour::Reduce | Flavour::MoveAndReduce if from == to => (0, REDUCTION_MEMORY_USES),
            Flavour::MoveAndReduce => (1, REDUCTION_MEMORY_USES),
            Flavour::Move | Flavour::Reduce | Flavour::Spread(_) | Flavour::Gather(_) | Flavour::Notify => (1, 1),
        };
        self.add(Resource::Memory(from), self.framing.coefficient(read), system);
        self.add(Resource::Memory(to), self.framing.coefficient(written), system);
        Ok(self.finish(latency, by, lane, system))
    }

    pub(super) fn fabric(&self) -> &'a Fabric {
        self.setting.fabric
    }

    pub(super) fn profile(&self) -> &'a Profile {
        self.setting.profile
    }

    /// Location of the caller's buffers.
    pub(super) fn buffers(&self) -> BufferPlace {
        self.setting.router.options().buffers
    }

    /// Adds the routes to the caller's buffers and returns their latency. Reads at both ends start at the same time.
    fn reach(&mut self, trip: Trip, system: &mut System) -> Result<Picos, LowerError> {
        let Trip { from, to, legs, .. } = trip;
        let Reaches { reads_source, reads_target, writes_target } = legs.reaches;
        let source = if reads_source { self.leg(trip, (legs.from, from), system)? } else { Picos::ZERO };
        let target = if reads_target { self.leg(trip, (legs.to, to), system)? } else { Picos::ZERO };
        let result = if writes_target { self.leg(trip, (to, legs.to), system)? } else { Picos::ZERO };
        Ok(source.max(target) + result)
    }

    /// Adds the route of a payload between a device and a buffer, and the load on the buffer's memory.
    fn leg(&mut self, trip: Trip, (from, to): (NodeId, NodeId), system: &mut System) -> Result<Picos, LowerError> {
        if from == to {
            return Ok(Picos::ZERO);
        }
        let before = self.uses.len();
        // A leg is not a message of its own.
        let crossing = Crossing { letter: None, ..trip.crossing };
        let latency = self.travel_aside(Trip { from, to, crossing, ..trip }, system)?;
        for one in self.uses.iter_mut().skip(before) {
            one.coefficient = self.framing.unframed(one.coefficient);
        }
        let buffers = if from == trip.legs.from || from == trip.legs.to { from } else { to };
        let copies = match self.buffers() {
            BufferPlace::Pageable => COPY_MEMORY_USES,
            _ => 0,
        };
        self.add(Resource::Memory(buffers), self.framing.coefficient(1 + copies), system);
        Ok(latency)
    }

    /// Returns the passage over the collected uses, through a lane of a device.
    fn finish(&mut self, latency: Picos, by: NodeId, lane: Option<LaneUse>, system: &mut System) -> Passage {
        if let Some(LaneUse { rank, channel, coefficient }) = lane {
            let taken = coefficient.unwrap_or_else(|| self.framing.coefficient(1));
            self.add(Resource::Lane(rank, channel), taken, system);
            self.add(Resource::Processors(by), self.capacities.processor_share(taken), system);
        }
        self.merge_uses(|a, b| a + b);
        let route = (!self.uses.is_empty()).then(|| system.add_route(&self.uses, Rate::UNLIMITED, 1));
        Passage { route, latency }
    }

    /// Returns the passage of a multicast operation of the device `trip.from`. The bytes pass each link between the
    /// device and the members once, the links between the device itself and the switch in both directions, and every
    /// member's memory. The latency is that of the longest route.
    pub(super) fn make_team(
        &mut self,
        trip: Trip,
        members: &[NodeId],
        system: &mut System,
    ) -> Result<Passage, LowerError> {
        let Trip { from: own, lane, flavour, .. } = trip;
        let spreads = matches!(flavour, Flavour::Spread(_));
        self.uses.clear();
        let mut latency = Picos::ZERO;
        let mut others = members.iter().copied().filter(|&member| member != own).peekable();
        let nearest = others.peek().copied();
        for other in others {
            let (from, to) = if spreads { (own, other) } else { (other, own) };
            latency = latency.max(self.travel_aside(Trip { from, to, ..trip }, system)?);
            if let Some(hop) = self.hops.iter().find(|hop| !self.copies(hop.link, to)) {
                let at = self.setting.fabric.ends(hop.link).1;
                return Err(LowerError::NoMulticast { from, to, at });
            }
        }
        if let Some(other) = nearest {
            // The device's own part returns from the switch.
            let (from, to) = if spreads { (other, own) } else { (own, other) };
            let (before, _) = (self.uses.len(), self.travel(Trip { from, to, ..trip }, system)?);
            self.uses.truncate(before);
            let hops = std::mem::take(&mut self.hops);
            for hop in &hops {
                let (start, end) = self.setting.fabric.ends(hop.link);
                if if spreads { end == own } else { start == own } {
                    self.add(Resource::Link(hop.link), share_of(hop), system);
                }
            }
            self.hops = hops;
        }
        self.merge_uses(u64::max);
        let reached = Framing::new(self.setting.profile.links.multicast);
        for one in &mut self.uses {
            one.coefficient = reached.stretched(one.coefficient);
        }
        for &member in members {
            self.add(Resource::Memory(member), self.framing.coefficient(1), system);
        }
        self.add(Resource::Memory(own), self.framing.coefficient(1), system);
        Ok(self.finish(latency, own, lane, system))
    }

    /// Returns true if a link ends at the destination, or at a switch that multicasts.
    fn copies(&self, link: LinkId, to: NodeId) -> bool {
        let (_, at) = self.setting.fabric.ends(link);
        at == to || self.setting.fabric.node(at).figures.multicasts()
    }

    /// Adds the links and switches of the route between two devices, the memories that stage the data (those of
    /// relaying GPUs, and host memory) and the copy engines that move it. Returns the latency.
    fn travel(&mut self, trip: Trip, system: &mut System) -> Result<Picos, LowerError> {
        let mut hops = std::mem::take(&mut self.hops);
        hops.clear();
        let router = self.setting.router;
        let summary = match &self.relaying {
            Relaying::AnyRank => router.route_into(trip.from, trip.to, trip.label, &mut hops),
            Relaying::Among(ranks) => router.route_among(ranks, (trip.from, trip.to), trip.label, &mut hops),
        };
        let leaves = crosses(self.setting.fabric, &hops);
        if trip.flavour != Flavour::Notify {
            let is_gpu = |device: NodeId| self.setting.fabric.node(device).kind.is_rank();
            let by_sms = self.copies == CopiedBy::Sms && !leaves && is_gpu(trip.from) && is_gpu(trip.to);
            for hop in &hops {
                let is_pcie = self.setting.fabric.link(hop.link).kind == LinkKind::Pcie;
                let share = share_of(hop);
                let on_link = if by_sms && is_pcie { self.peers.stretched(share) } else { share };
                self.add(Resource::Link(hop.link), on_link, system);
                let (_, into) = self.setting.fabric.ends(hop.link);
                self.add(Resource::Crossbar(into), share, system);
            }
            for (relay, share) in router.relays(&hops, trip.to) {
                self.add(Resource::Memory(relay), COPY_MEMORY_USES * part_of(share), system);
            }
        }
        let rest = match &summary {
            Ok(summary) if trip.crossing.letter.is_some() => self.first_fragment(&hops, summary.staging),
            _ => Vec::new(),
        };
        self.hops = hops;
        let Summary { mut latency, staging, .. } = summary?;
        if let Some(bytes) = trip.crossing.letter {
            let way = Way { latency, staging, leaves, legs: rest };
            latency += self.deliver(trip, bytes, &way, system);
        }
        if leaves {
            latency += trip.crossing.latency_to(self.setting.fabric, trip.to);
            if trip.flavour != Flavour::Notify {
                self.add(Resource::Proxy(trip.from), trip.crossing.proxy, system);
            }
        }
        if trip.flavour != Flavour::Notify {
            for cpu in staging.cpus() {
                self.add(Resource::Memory(cpu), COPY_MEMORY_USES * WHOLE, system);
            }
            if self.copies == CopiedBy::Engines {
                // One engine puts or gets; through host memory, one engine at each end moves the data.
                let both = staging != Staging::default();
                for device in [trip.from, trip.to].into_iter().filter(|&device| both || device == trip.by) {
                    self.add(Resource::CopyEngines(device), self.framing.coefficient(1), system);
                }
            }
        }
        Ok(latency)
    }

    /// Variant of [`Self::travel`] for one of several concurrent routes of an operation.
    fn travel_aside(&mut self, trip: Trip, system: &mut System) -> Result<Picos, LowerError> {
        let latency = self.travel(trip, system)?;
        if trip.crossing != Crossing::default() && crosses(self.setting.fabric, &self.hops) {
            self.codes = Codes::Blurred;
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

    /// Merges uses of one capacity with `together`.
    fn merge_uses(&mut self, together: fn(u64, u64) -> u64) {
        self.uses.sort_unstable();
        self.uses.dedup_by(|next, kept| {
            let same = next.resource == kept.resource;
            if same {
                kept.coefficient = together(kept.coefficient, next.coefficient);
            }
            same
        });
    }
}

/// Label that distinguishes flows between the same two devices: the channel, if routes are hashed.
pub(super) fn label(router: &Router<'_>, channel: Channel) -> u64 {
    match router.options().ecmp {
        Ecmp::Hashed { .. } => channel.0.into(),
        Ecmp::Averaged => 0,
    }
}

/// Share of a transfer that passes a hop, in units of [`WHOLE`].
pub(super) fn share_of(hop: &Hop) -> u64 {
    part_of(hop.share)
}

/// Share of a transfer, in units of [`WHOLE`].
fn part_of(share: Share) -> u64 {
    (WHOLE * u64::from(share.numerator)).div_ceil(u64::from(share.denominator.max(1)))
}
