//! Messages that explain why no path joins two devices.

use std::collections::VecDeque;

use crate::fabric::Link;
use crate::{Fabric, LinkId, NodeId};

/// Maximum number of failed links that a message names.
const MAX_NAMED: usize = 4;

/// The reason why no path joins two devices.
pub(super) fn explain_unreachable(fabric: &Fabric, from: NodeId, to: NodeId) -> String {
    let isolated = [from, to].into_iter().find(|&node| fabric.outgoing_links(node).is_empty());
    let before = failed_links_before(fabric, from, |link| (link.from, link.to));
    let fewest = before[to.0 as usize];
    if let Some(fewest @ 1..) = fewest {
        let after = failed_links_before(fabric, to, |link| (link.to, link.from));
        let is_on_shortest_chain = |link: &Link| {
            let others = before[link.from.0 as usize].zip(after[link.to.0 as usize]);
            others.is_some_and(|(before, after)| before + 1 + after == fewest)
        };
        let crossed = fabric.links().filter(|(_, link)| link.failed && is_on_shortest_chain(link));
        let mut names: Vec<String> = crossed.map(|(id, _)| failed_link_name(fabric, id)).collect();
        // All parallel links have failed and have the same name.
        names.dedup();
        let others = names.len().saturating_sub(MAX_NAMED);
        if others > 0 {
            names.truncate(MAX_NAMED);
            names.push(format!("and {others} more"));
        }
        return format!("all paths are out of service ({} failed)", names.join(", "));
    }
    if let Some(node) = isolated {
        return format!("{} has no usable link", fabric.node(node).id);
    }
    if fewest.is_some() {
        "links join them only through devices that do not forward (a GPU in use forwards over one NVLink, an AMD GPU over none, a NIC only between its host and the network) or that the options rule out"
            .to_owned()
    } else {
        "no chain of links joins them".to_owned()
    }
}

/// Name of a failed link as `--fail` accepts it: `a-b`, or `a->b` if only this direction has failed.
fn failed_link_name(fabric: &Fabric, direction: LinkId) -> String {
    let reverse = direction.reverse();
    let (link, separator) = match fabric.link(reverse).failed {
        true => (direction.min(reverse), "-"),
        false => (direction, "->"),
    };
    let (a, b) = fabric.ends(link);
    format!("{}{separator}{}", fabric.node(a).id, fabric.node(b).id)
}

/// Returns, by [`NodeId`], the smallest number of failed links on a chain of links between `start` and the device;
/// `None` if there is no chain. Devices on the chain need not forward traffic. `ends` returns the end of a link nearer
/// to `start`, then the other end.
fn failed_links_before(fabric: &Fabric, start: NodeId, ends: impl Fn(&Link) -> (NodeId, NodeId)) -> Vec<Option<u32>> {
    let mut neighbours = vec![Vec::new(); fabric.node_count()];
    for (_, link) in fabric.links() {
        let (near, far) = ends(link);
        neighbours[near.0 as usize].push((far, link.failed));
    }
    let mut counts = vec![None; fabric.node_count()];
    // Devices in order of their count; working links add 0 and are examined first.
    let mut queue = VecDeque::from([(start, 0)]);
    while let Some((node, count)) = queue.pop_front() {
        if counts[node.0 as usize].is_some() {
            continue;
        }
        counts[node.0 as usize] = Some(count);
        for &(next, failed) in &neighbours[node.0 as usize] {
            match failed {
                true => queue.push_back((next, count + 1)),
                false => queue.push_front((next, count)),
            }
        }
    }
    counts
}
