//! Names what binds a run: a capacity that is mostly used, or latency.

use fabricast_planner::plan::Row;
use fabricast_sim::lower::Resource;
use fabricast_sim::timeline::Utilization;
use fabricast_topologies::Fabric;

/// A capacity used less than this does not bind.
const BINDING: f64 = 0.5;

/// What binds the pick of a row.
pub fn of_row(row: &Row, fabric: &Fabric) -> String {
    match row.pick.busiest {
        Some(busiest) if busiest.fraction >= BINDING => name(busiest.resource, fabric),
        _ => "latency".to_owned(),
    }
}

/// What binds a run.
pub fn of_utilization(utilization: &[Utilization], fabric: &Fabric) -> String {
    match Utilization::busiest(utilization) {
        Some(busiest) if busiest.fraction >= BINDING => name(busiest.resource, fabric),
        _ => "latency".to_owned(),
    }
}

/// The name of a capacity: `gpu0->nvswitch0`, `memory of gpu0`, `channel 3 of rank 0`.
pub fn name(resource: Resource, fabric: &Fabric) -> String {
    match resource {
        Resource::Link(link) => fabric.link_name(link),
        Resource::Memory(node) => format!("memory of {}", fabric.node(node).id),
        Resource::Crossbar(node) => format!("switching of {}", fabric.node(node).id),
        Resource::Lane(rank, channel) => format!("channel {} of rank {}", channel.0, rank.0),
    }
}
