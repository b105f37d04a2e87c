//! Folds ranks before lowering: of the ranks that a symmetry of schedule and fabric maps to each other (a class), only
//! one is lowered.
//!
//! A generator declares rotations of ranks that leave its schedule unchanged ([`Symmetry`]). A rotation, or a multiple
//! of it, that is also a symmetry of the fabric ([`Orbits`]) maps routes to routes, so all ranks of a class behave
//! alike: corresponding operations start, flow and end at the same times. Only representatives are lowered. Each
//! capacity of an orbit carries an equal part of the traffic of the class, so one capacity represents the orbit, and
//! the coefficient of a representative's operation is multiplied by the ranks per class and divided by the capacities
//! per orbit. Rates are identical, as in [`crate::fold`].
//!
//! The time and memory of lowering and folding then depend on the size of the class of hosts that differ, such as the
//! hosts of one leaf switch, and not on the number of hosts.

use std::sync::Arc;

use fabricast_topologies::NodeId;
use fabricast_topologies::route::{BufferLocation, Orbits};
use rustc_hash::FxHashMap;

use super::{LoweredWorkload, Resource, ScheduleInstance};
use crate::schedule::{Dependency, Processor, Rank, RotationDigit, Symmetry};
use crate::sharing::{ResourceId, RouteId, System, Use};

/// Classes of ranks that behave alike: a symmetry of schedule and fabric maps the ranks of a class to each other.
#[derive(Clone, Debug)]
pub(crate) struct RankClasses {
    /// First rank of each class, in ascending order.
    representatives: Vec<Rank>,
    /// Index in `representatives` of each rank's class.
    classes: Vec<u32>,
    /// Number of ranks of each class.
    size: u32,
    orbits: Arc<Orbits>,
}

/// Rotations by all multiples of a step within one digit of the rank number.
#[derive(Clone, Copy)]
struct SubRotation {
    digit: RotationDigit,
    /// Step of the rotations; a divisor of the digit's length.
    step: u32,
}

impl RankClasses {
    /// Returns the classes of a schedule on its fabric; `None` if no two ranks are known to behave alike.
    pub(crate) fn find(party: &ScheduleInstance<'_>) -> Option<Arc<Self>> {
        let (header, setting) = (party.generator.header(), party.setting);
        let ranks = header.call.ranks;
        let placement = setting.placement.get(..ranks as usize)?;
        let is_simple = !setting.has_delays()
            && header.blocks.processor == Processor::Device
            && setting.router.options().buffers == BufferLocation::Device;
        let Symmetry::Rotations(digits) = Symmetry::for_equal_chunks(party.generator) else { return None };
        if !is_simple {
            return None;
        }
        // The smallest rotation of each digit that is a symmetry of the fabric, with the image of each rank.
        let smallest = |&digit: &RotationDigit| {
            let mut steps = (1..=digit.length / 2).filter(|&step| digit.length.is_multiple_of(step));
            steps.find_map(|step| {
                let image = |rank| placement.get(digit.rotate(rank, step) as usize).copied();
                let images = (0..ranks).map(image).collect::<Option<Vec<NodeId>>>()?;
                setting.router.orbits(placement, std::slice::from_ref(&images))?;
                Some((SubRotation { digit, step }, images))
            })
        };
        let (rotations, images): (Vec<SubRotation>, Vec<Vec<NodeId>>) = digits.iter().filter_map(smallest).unzip();
        if rotations.is_empty() {
            return None;
        }
        let orbits = setting.router.orbits(placement, &images)?;
        let representative = |rank: u32| {
            rotations.iter().fold(rank, |rank, rotation| {
                let digit = rotation.digit.digit(rank);
                rank - (digit - digit % rotation.step) * rotation.digit.stride
            })
        };
        let mut representatives = Vec::new();
        let mut classes: Vec<u32> = Vec::with_capacity(ranks as usize);
        for rank in 0..ranks {
            // The representative of a class is its lowest rank.
            let first = representative(rank);
            classes.push(if first == rank {
                representatives.push(Rank(rank));
                representatives.len() as u32 - 1
            } else {
                *classes.get(first as usize)?
            });
        }
        let size = rotations.iter().map(|rotation| rotation.digit.length / rotation.step).product();
        Some(Arc::new(Self { representatives, classes, size, orbits }))
    }

    /// Returns the ranks that are lowered: the first of each class, or all of `ranks` without classes.
    pub(crate) fn lowered_ranks(classes: Option<&Self>, ranks: u32) -> impl Iterator<Item = Rank> {
        let all = if classes.is_none() { ranks } else { 0 };
        classes.map(Self::representatives).unwrap_or_default().iter().copied().chain((0..all).map(Rank))
    }

    /// First rank of each class, in ascending order.
    pub(crate) fn representatives(&self) -> &[Rank] {
        &self.representatives
    }

    /// Returns the index among the representatives of a rank's class; `None` if there is no such rank.
    pub(crate) fn class(&self, rank: Rank) -> Option<u32> {
        self.classes.get(rank.0 as usize).copied()
    }

    /// Returns the index of a representative; `None` for other ranks.
    pub(crate) fn representative_index(&self, rank: Rank) -> Option<u32> {
        self.class(rank).filter(|&class| self.representatives.get(class as usize) == Some(&rank))
    }

    /// Returns a dependency with the awaited rank replaced by the index of its class's representative.
    pub(super) fn on_representative(&self, dependency: Dependency) -> Option<Dependency> {
        Some(Dependency { rank: Rank(self.class(dependency.rank)?), ..dependency })
    }

    /// Returns the number of ranks of each class.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Returns the capacity that represents the orbit of a capacity, and the number of capacities in the orbit.
    fn orbit(&self, resource: Resource) -> (Resource, u32) {
        let node = |make: fn(NodeId) -> Resource, node: NodeId| {
            let orbit = self.orbits.node_orbit(node);
            (make(orbit.representative), orbit.size)
        };
        match resource {
            Resource::Link(link) => {
                let orbit = self.orbits.link_orbit(link);
                (Resource::Link(orbit.representative), orbit.size)
            }
            Resource::Memory(at) => node(Resource::Memory, at),
            Resource::Crossbar(at) => node(Resource::Crossbar, at),
            Resource::Processors(at) => node(Resource::Processors, at),
            Resource::CopyEngines(at) => node(Resource::CopyEngines, at),
            Resource::Proxy(at) => node(Resource::Proxy, at),
            Resource::Channel(rank, channel) => {
                let first = self.class(rank).and_then(|class| self.representatives.get(class as usize));
                (Resource::Channel(first.copied().unwrap_or(rank), channel), self.size)
            }
        }
    }

    /// Replaces the capacities that the representatives use by the representatives of their orbits, with the traffic of
    /// all ranks. `None` if a coefficient is not an integer, which does not occur for a true symmetry.
    pub(super) fn merge_capacities(&self, mut lowered: LoweredWorkload) -> Option<LoweredWorkload> {
        let one = std::mem::take(&mut lowered.workload.system);
        let mut all = System::new();
        let mut known: FxHashMap<Resource, ResourceId> = FxHashMap::default();
        let mut resources = Vec::new();
        let mut merged: Vec<CapacityOrbit> = Vec::with_capacity(lowered.resources.len());
        for (id, &resource) in (0..).map(ResourceId).zip(&lowered.resources) {
            let (representative, capacities) = self.orbit(resource);
            let id = *known.entry(representative).or_insert_with(|| {
                resources.push(representative);
                all.add_resource(one.capacity(id))
            });
            merged.push(CapacityOrbit { id, capacities });
        }
        let mut uses: Vec<Use> = Vec::new();
        for route in (0..one.route_count() as u32).map(RouteId) {
            uses.clear();
            for used in one.uses(route) {
                let CapacityOrbit { id, capacities } = *merged.get(used.resource.0 as usize)?;
                let coefficient = self.share(used.coefficient.into(), capacities)?;
                let coefficient = u64::try_from(coefficient).ok()?;
                match uses.iter_mut().find(|known| known.resource == id) {
                    Some(known) => known.coefficient = known.coefficient.saturating_add(coefficient),
                    None => uses.push(Use { resource: id, coefficient }),
                }
            }
            all.add_route_of(&one, route, &uses);
        }
        lowered.traffic = lowered.traffic.merged(resources.len(), |id| {
            let CapacityOrbit { id, capacities } = merged.get(id.0 as usize)?;
            Some((*id, u64::from(self.size), u64::from(*capacities)))
        });
        (lowered.workload.system, lowered.resources) = (all, resources);
        Some(lowered)
    }

    /// Returns the share of each of `capacities` capacities if every rank of a class has this load; `None` if it is not
    /// an integer.
    fn share(&self, load: u128, capacities: u32) -> Option<u128> {
        let total = load * u128::from(self.size);
        total.is_multiple_of(capacities.into()).then(|| total / u128::from(capacities))
    }

    /// Calls `visit` with every capacity that a capacity represents. Capacities of channels represent themselves.
    pub(crate) fn for_each_member(&self, resource: Resource, mut visit: impl FnMut(Resource)) {
        let mut visit_nodes =
            |make: fn(NodeId) -> Resource, at| self.orbits.node_members(at).for_each(|at| visit(make(at)));
        match resource {
            Resource::Link(link) => self.orbits.link_members(link).for_each(|link| visit(Resource::Link(link))),
            Resource::Memory(at) => visit_nodes(Resource::Memory, at),
            Resource::Crossbar(at) => visit_nodes(Resource::Crossbar, at),
            Resource::Processors(at) => visit_nodes(Resource::Processors, at),
            Resource::CopyEngines(at) => visit_nodes(Resource::CopyEngines, at),
            Resource::Proxy(at) => visit_nodes(Resource::Proxy, at),
            channel @ Resource::Channel(..) => visit(channel),
        }
    }
}

/// Capacity that represents an orbit of capacities, and the number of capacities in the orbit.
#[derive(Clone, Copy)]
struct CapacityOrbit {
    id: ResourceId,
    capacities: u32,
}
