//! Routes between devices: the links of the way, the memories at its ends, a lane where lanes limit.

use fabricast_topologies::route::{Ecmp, Hop};
use fabricast_topologies::{NodeId, Picos};

use super::capacities::{COPY_MEMORY_USES, Capacities, REDUCTION_MEMORY_USES};
use super::{Framing, LowerError, Resource, Setting};
use crate::engine::Passage;
use crate::quantity::Rate;
use crate::schedule::{Channel, Header, Rank};
use crate::sharing::{System, Use, WHOLE};

/// What an operation does to the memories at its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Flavour {
    Move,
    MoveAndReduce,
    Copy,
    Reduce,
    Notify,
}

/// A way to travel: everything that decides a route.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trip {
    pub from: NodeId,
    pub to: NodeId,
    pub flavour: Flavour,
    pub lane: Option<(Rank, Channel)>,
    /// Tells flows between the same devices apart, where ways are chosen by hash.
    pub label: u64,
}

/// Makes passages between devices, and the capacities on them.
pub(crate) struct Devices<'a> {
    setting: Setting<'a>,
    framing: Framing,
    capacities: Capacities<'a>,
    hops: Vec<Hop>,
    uses: Vec<Use>,
}

impl<'a> Devices<'a> {
    /// For plain transfers, in a system that has these capacities already.
    pub(crate) fn new(setting: Setting<'a>, resources: Vec<Resource>) -> Self {
        let capacities = Capacities::continued(setting, resources);
        Self { setting, framing: Framing::new(1.0), capacities, hops: Vec::new(), uses: Vec::new() }
    }

    /// For the operations of a schedule.
    pub(super) fn for_schedule(setting: Setting<'a>, header: &Header, has_local_work: bool) -> Self {
        let framing = Framing::new(setting.profile.protocol(header.protocol).wire_efficiency);
        let capacities = Capacities::new(setting, header, has_local_work);
        Self { setting, framing, capacities, hops: Vec::new(), uses: Vec::new() }
    }

    pub(super) fn framing(&self) -> Framing {
        self.framing
    }

    pub(super) fn has_lanes(&self) -> bool {
        self.capacities.has_lanes()
    }

    /// Whether flows between the same devices may take different ways.
    pub(super) fn tells_flows_apart(&self) -> bool {
        matches!(self.setting.router.options().ecmp, Ecmp::Hashed { .. })
    }

    pub(crate) fn into_resources(self) -> Vec<Resource> {
        self.capacities.into_resources()
    }

    /// The passage of a plain transfer.
    pub(crate) fn passage(
        &mut self,
        from: NodeId,
        to: NodeId,
        label: u64,
        system: &mut System,
    ) -> Result<Passage, LowerError> {
        self.make(Trip { from, to, flavour: Flavour::Move, lane: None, label }, system)
    }

    pub(super) fn make(&mut self, trip: Trip, system: &mut System) -> Result<Passage, LowerError> {
        let Trip { from, to, flavour, lane, .. } = trip;
        self.uses.clear();
        let latency = if from == to { Picos::ZERO } else { self.travel(trip, system)? };
        if flavour == Flavour::Notify {
            return Ok(Passage { route: None, latency });
        }
        let (read, written) = match flavour {
            Flavour::Copy => (0, COPY_MEMORY_USES),
            Flavour::Reduce | Flavour::MoveAndReduce if from == to => (0, REDUCTION_MEMORY_USES),
            Flavour::MoveAndReduce => (1, REDUCTION_MEMORY_USES),
            Flavour::Move | Flavour::Reduce | Flavour::Notify => (1, 1),
        };
        self.add(Resource::Memory(from), self.framing.coefficient(read), system);
        self.add(Resource::Memory(to), self.framing.coefficient(written), system);
        if let Some((rank, channel)) = lane {
            self.add(Resource::Lane(rank, channel), self.framing.coefficient(1), system);
        }
        self.merge_uses();
        if self.uses.is_empty() {
            return Ok(Passage { route: None, latency });
        }
        Ok(Passage { route: Some(system.add_route(&self.uses, Rate::UNLIMITED, 1)), latency })
    }

    /// Adds the links and switches of the way between two devices; returns its latency.
    fn travel(&mut self, trip: Trip, system: &mut System) -> Result<Picos, LowerError> {
        let mut hops = std::mem::take(&mut self.hops);
        hops.clear();
        let summary = self.setting.router.route_into(trip.from, trip.to, trip.label, &mut hops);
        if trip.flavour != Flavour::Notify {
            for hop in &hops {
                let share = WHOLE * u64::from(hop.share.numerator);
                let coefficient = share.div_ceil(u64::from(hop.share.denominator.max(1)));
                self.add(Resource::Link(hop.link), coefficient, system);
                let (_, into) = self.setting.fabric.ends(hop.link);
                self.add(Resource::Crossbar(into), coefficient, system);
            }
        }
        self.hops = hops;
        Ok(summary?.latency)
    }

    fn add(&mut self, resource: Resource, coefficient: u64, system: &mut System) {
        if coefficient == 0 {
            return;
        }
        if let Some(resource) = self.capacities.id(resource, system) {
            self.uses.push(Use { resource, coefficient });
        }
    }

    /// One use per capacity.
    fn merge_uses(&mut self) {
        self.uses.sort_unstable();
        self.uses.dedup_by(|next, kept| {
            let same = next.resource == kept.resource;
            if same {
                kept.coefficient += next.coefficient;
            }
            same
        });
    }
}
