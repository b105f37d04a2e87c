//! Messages that explain why no path joins two devices.

use std::collections::VecDeque;

use crate::{Fabric, NodeId};

/// Maximum number of failed links that a message names.
const MAX_NAMED: usize = 4;

/// The reason why no path joins two devices.
pub(super) fn explain_unreachable(fabric: &Fabric, from: NodeId, to: NodeId) -> String {
    let isolated = [from, to].into_iter().find(|&node| fabric.outgoing_links(node).is_empty());
    let joined = connected(fabric, from, to, Failed::Avoided);
    if !joined && connected(fabric, from, to, Failed::Crossed) {
        let failed = || fabric.links().filter(|(id, link)| link.failed && id.0 % 2 == 0);
        let mut names: Vec<String> = failed()
            .take(MAX_NAMED)
            .map(|(_, link)| format!("{}-{}", fabric.node(link.from).id, fabric.node(link.to).id))
            .collect();
        let others = failed().count().saturating_sub(MAX_NAMED);
        if others > 0 {
            names.push(format!("and {others} more"));
        }
        return format!("all paths are out of service ({} failed)", names.join(", "));
    }
    if let Some(node) = isolated {
        return format!("{} has no usable link", fabric.node(node).id);
    }
    if joined {
        "links join them only through devices that do not forward (a GPU in use forwards over one NVLink, an AMD GPU over none, a NIC only between its host and the network) or that the options rule out"
            .to_owned()
    } else {
        "no chain of links joins them".to_owned()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Failed {
    Avoided,
    Crossed,
}

/// Returns true if links join two devices, whether or not the devices between them forward.
fn connected(fabric: &Fabric, from: NodeId, to: NodeId, failed: Failed) -> bool {
    let mut neighbours = vec![Vec::new(); fabric.node_count()];
    for (_, link) in fabric.links() {
        if !link.failed || failed == Failed::Crossed {
            neighbours[link.from.0 as usize].push(link.to);
        }
    }
    let mut seen = vec![false; fabric.node_count()];
    let mut queue = VecDeque::from([from]);
    while let Some(node) = queue.pop_front() {
        if node == to {
            return true;
        }
        for &next in &neighbours[node.0 as usize] {
            if !std::mem::replace(&mut seen[next.0 as usize], true) {
                queue.push_back(next);
            }
        }
    }
    false
}
