//! Names of bottlenecks: the busiest resource of a run, or its largest cost.

use fabricast_search::plan::PlanRow;
use fabricast_sim::Timeline;
use fabricast_sim::lower::Resource;
use fabricast_sim::utilization::Utilization;
use fabricast_topologies::{Fabric, NodeId};

/// Utilization, as a fraction, from which a resource is called the bottleneck.
const BOTTLENECK_UTILIZATION: f64 = 0.5;

/// Returns the bottleneck of the strategy selected in a plan's row: the resource with the highest utilization if that
/// exceeds [`BOTTLENECK_UTILIZATION`], otherwise `latency`.
pub fn bottleneck_of_row(row: &PlanRow, fabric: &Fabric) -> String {
    match row.pick.busiest {
        Some(busiest) if busiest.fraction >= BOTTLENECK_UTILIZATION => name(busiest.resource, fabric),
        _ => "latency".to_owned(),
    }
}

/// Returns the bottleneck of a run by utilization alone: the resource with the highest utilization if that exceeds
/// [`BOTTLENECK_UTILIZATION`], otherwise `latency`.
pub fn bottleneck_of_utilization(utilization: &[Utilization], fabric: &Fabric) -> String {
    match Utilization::busiest(utilization) {
        Some(busiest) if busiest.fraction >= BOTTLENECK_UTILIZATION => name(busiest.resource, fabric),
        _ => "latency".to_owned(),
    }
}

/// Returns the bottleneck of a collective's run: the resource with the highest utilization if that is high, otherwise
/// the largest cost on the critical path. `last_starter` is the device that starts last.
pub fn bottleneck_of_run(timeline: &Timeline, fabric: &Fabric, last_starter: Option<NodeId>) -> String {
    let busiest = Utilization::busiest(&timeline.utilization).filter(|busiest| busiest.bytes > 0.0);
    let busiest_above =
        |min: f64| busiest.filter(|busiest| busiest.fraction >= min).map(|busiest| name(busiest.resource, fabric));
    if let Some(name) = busiest_above(BOTTLENECK_UTILIZATION) {
        return name;
    }
    let costs = timeline.costs;
    let transfer = costs.bandwidth + costs.sharing();
    let kinds = [costs.software, costs.latency, transfer, costs.start_delay];
    let largest = kinds.into_iter().max().unwrap_or_default();
    if costs.start_delay == largest
        && let Some(device) = last_starter
    {
        return format!("late start of {}", fabric.node(device).id);
    }
    if transfer == largest
        && let Some(name) = busiest_above(0.0)
    {
        return name;
    }
    if costs.software > costs.latency { "software".to_owned() } else { "latency".to_owned() }
}

/// Name of a resource: `gpu0->nvswitch0`, `memory of gpu0`, `channel 3 of rank 0`, `SMs of gpu0`. A link out of service
/// limits the routes that replace it: `gpu0->gpu1 (replaced)`.
pub fn name(resource: Resource, fabric: &Fabric) -> String {
    match resource {
        Resource::Link(link) if fabric.link(link).failed => format!("{} (replaced)", fabric.link_name(link)),
        Resource::Link(link) => fabric.link_name(link),
        Resource::Memory(node) => format!("memory of {}", fabric.node(node).id),
        Resource::Crossbar(node) => format!("switching of {}", fabric.node(node).id),
        Resource::Processors(node) => format!("SMs of {}", fabric.node(node).id),
        Resource::Proxy(node) => format!("network thread of {}", fabric.node(node).id),
        Resource::CopyEngines(node) => format!("copy engines of {}", fabric.node(node).id),
        Resource::Channel(rank, channel) => format!("channel {} of rank {}", channel.0, rank.0),
    }
}
