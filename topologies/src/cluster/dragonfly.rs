//! Dragonfly network: groups of routers, all-to-all within a group and between groups.
//!
//! After Kim, Dally, Scott and Abts, "Technology-driven, highly-scalable dragonfly topology" (ISCA 2008): with *p*
//! ports to hosts, a balanced router has 2*p* ports to its group and *p* to other groups. Here a router serves one
//! host.

use super::network::NetworkFigures;
use crate::NodeId;
use crate::error::Result;
use crate::fabric::FabricBuilder;

/// Joins hosts by one router each, in `groups` groups (default: about the square root of the number of hosts).
pub(super) fn join(builder: &mut FabricBuilder, network: &NetworkFigures, hosts: &[Vec<NodeId>]) -> Result<()> {
    let groups = network.spec.groups.map_or_else(|| (hosts.len() as f64).sqrt().round() as usize, |n| n as usize);
    let size = hosts.len().div_ceil(groups.max(1)).max(1);
    let mut routers: Vec<Vec<NodeId>> = Vec::new();
    for (number, group) in hosts.chunks(size).enumerate() {
        let mut members = Vec::new();
        for (position, nics) in group.iter().enumerate() {
            let router = network.switch(builder, &format!("g{number}/router{position}"))?;
            for (rail, &nic) in nics.iter().enumerate() {
                network.plug(builder, nic, rail, router);
            }
            members.push(router);
        }
        routers.push(members);
    }

    let injected = network.host_rate();
    let local = network.uplink_bandwidth(injected.saturating_mul(2) / size.saturating_sub(1).max(1) as u64);
    for group in &routers {
        for (i, &a) in group.iter().enumerate() {
            for &b in group.iter().skip(i + 1) {
                network.trunk(builder, a, b, local);
            }
        }
    }

    // Each pair of groups has the same number of cables, distributed round-robin over the routers.
    let count = routers.len();
    let other_groups = count.saturating_sub(1).max(1);
    let cables = (size / other_groups).max(1);
    let global = network.uplink_bandwidth(injected.saturating_mul(size as u64) / (other_groups * cables) as u64);
    for (i, first_group) in routers.iter().enumerate() {
        for (j, second_group) in routers.iter().enumerate().skip(i + 1) {
            for cable in 0..cables {
                let deal = |offset: usize, group: &[NodeId]| {
                    group.get(((offset - 1) * cables + cable) % group.len().max(1)).copied()
                };
                if let (Some(a), Some(b)) = (deal(j - i, first_group), deal(count - (j - i), second_group)) {
                    network.trunk(builder, a, b, global);
                }
            }
        }
    }
    Ok(())
}
