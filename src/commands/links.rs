//! Link utilization of a run.

use fabricast_reports::format;
use fabricast_sim::lower::Resource;
use fabricast_sim::utilization::Utilization;
use fabricast_topologies::{Fabric, LinkId};
use schemars::JsonSchema;
use serde::Serialize;

use super::bottleneck;

/// JSON of the utilization of a link direction.
#[derive(Serialize, JsonSchema)]
pub struct LinkJson {
    /// Link direction: ids of both ends.
    link: String,
    /// Bytes that the link carried, and those that it would have carried if no other link had failed.
    bytes: u64,
    /// Mean utilization over the run, as a fraction.
    utilization: f64,
}

/// Maximum number of listed links. If there are more, those with the highest utilization are listed.
const MAX_LINKS: usize = 20_000;

impl LinkJson {
    /// Returns the links in service that carried traffic, in order of id, and the number of omitted ones. Traffic whose
    /// route replaces another after a failure counts on both.
    pub fn list(utilization: &[Utilization], fabric: &Fabric) -> (Vec<Self>, usize) {
        let mut links: Vec<(LinkId, &Utilization)> = utilization
            .iter()
            .filter_map(|used| match used.resource {
                Resource::Link(link) if !fabric.link(link).failed => Some((link, used)),
                _ => None,
            })
            .collect();
        let omitted = links.len().saturating_sub(MAX_LINKS);
        if omitted > 0 {
            links.sort_by(|a, b| b.1.fraction.total_cmp(&a.1.fraction).then(a.0.cmp(&b.0)));
            links.truncate(MAX_LINKS);
        }
        links.sort_by_key(|&(link, _)| link);
        let listed = links.into_iter().map(|(link, used)| Self {
            link: fabric.link_name(link),
            bytes: used.bytes.round() as u64,
            utilization: used.fraction,
        });
        (listed.collect(), omitted)
    }
}

/// Describes the link with the highest utilization, the utilization, and the number of other links with an equal
/// utilization.
pub fn busiest(utilization: &[Utilization], fabric: &Fabric) -> Option<String> {
    let links = || utilization.iter().filter(|used| matches!(used.resource, Resource::Link(_)));
    let busiest_link = links()
        .reduce(|a, b| if b.fraction > a.fraction { b } else { a })
        .filter(|busiest_link| busiest_link.bytes > 0.0)?;
    let equal_count = links().filter(|used| used.fraction >= busiest_link.fraction * 0.999).count();
    let others =
        if equal_count > 1 { format!(" and {} more", format::grouped(equal_count as u64 - 1)) } else { String::new() };
    let share = format::percent(busiest_link.fraction);
    Some(format!("{}{others}, used to {share} %", bottleneck::name(busiest_link.resource, fabric)))
}
