//! Utilization of capacities in a run.

use fabricast_topologies::Picos;

use crate::lower::{RankClasses, Resource, Traffic};
use crate::quantity::Work;
use crate::sharing::{ResourceId, System};

/// Number of equal time slices of a [`LoadOverTime`](crate::load::LoadOverTime) that simulations record.
pub const LOAD_SLICES: usize = 100;

/// Utilization of a capacity in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utilization {
    /// Capacity that the values describe.
    pub resource: Resource,
    /// Bytes that passed through the capacity, each multiplied by the coefficient of its route.
    pub bytes: f64,
    /// `bytes` ÷ the number of bytes that could have passed until the end of the run, 0 to 1.
    pub fraction: f64,
}

impl Utilization {
    /// Returns the entry with the largest `fraction` (the first one if several are equal); `None` if `all` is empty.
    #[must_use]
    pub fn busiest(all: &[Self]) -> Option<Self> {
        let best = |a: Self, b: &Self| if b.fraction > a.fraction { *b } else { a };
        all.split_first().map(|(first, rest)| rest.iter().fold(*first, best))
    }
}

/// Returns the utilization of each capacity until `end`.
pub(crate) fn utilization(system: &System, resources: &[Resource], traffic: &Traffic, end: Picos) -> Vec<Utilization> {
    let resource_utilization = |(id, &resource): (u32, &Resource)| {
        let (id, passed) = (ResourceId(id), traffic.resource_work(ResourceId(id)));
        let could = Work::passed(system.capacity(id), end);
        let fraction = if could.0 == 0 { 0.0 } else { passed.0 as f64 / could.0 as f64 };
        Utilization { resource, bytes: passed.bytes(), fraction }
    };
    (0..).zip(resources).map(resource_utilization).collect()
}

/// Adds the utilization of the capacities that others represent.
pub(crate) fn expand(representatives: Vec<Utilization>, classes: &RankClasses) -> Vec<Utilization> {
    let mut all = Vec::with_capacity(representatives.len());
    for one in representatives {
        classes.for_each_member(one.resource, |resource| all.push(Utilization { resource, ..one }));
    }
    all
}
