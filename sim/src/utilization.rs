//! Utilization of capacities in a run.

use fabricast_topologies::Picos;

use crate::lower::{Resource, Traffic};
use crate::quantity::Work;
use crate::sharing::{ResourceId, System};

/// Slices of a load over time.
pub const LOAD_SLICES: usize = 100;

/// Utilization of a capacity in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utilization {
    /// Capacity.
    pub resource: Resource,
    /// Bytes that passed (coefficients included).
    pub bytes: f64,
    /// Bytes ÷ the maximum that could have passed until the end.
    pub fraction: f64,
}

impl Utilization {
    /// Returns the most used capacity, the first of equals.
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
