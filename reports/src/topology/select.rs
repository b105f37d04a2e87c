//! Selection of the devices to draw, and of the part of the picture in which each is drawn.

use fabricast_topologies::{Fabric, HostId, Node, NodeId, NodeKind};

use super::neighbours::Neighbours;
use super::rows;

/// Maximum number of devices next to each other in a readable picture.
const COLUMNS: usize = 20;
/// Maximum number of switches that are drawn per tier.
const TIER: usize = 18;

/// Part of a fabric that is drawn.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// Hosts that are drawn as boxes, with their devices in ascending order of id.
    pub hosts: Vec<(HostId, Vec<NodeId>)>,
    /// Number of hosts that are not drawn.
    pub more_hosts: usize,
    /// Network switches by tier, starting with the tier next to the hosts.
    pub tiers: Vec<Tier>,
    /// NVSwitches that several hosts share.
    pub shared: Tier,
}

/// Row of switches in a picture.
#[derive(Clone, Debug, Default)]
pub(super) struct Tier {
    pub switches: Vec<NodeId>,
    /// Number of switches of the tier that are not drawn.
    pub more: usize,
}

impl Tier {
    fn new(mut switches: Vec<NodeId>) -> Self {
        let more = switches.len().saturating_sub(TIER);
        switches.truncate(TIER);
        Self { switches, more }
    }
}

/// Part of the picture in which a device is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PictureArea {
    /// The device is drawn in the box of its host.
    Local,
    /// The device is drawn among the network switches.
    Network,
    /// The device is drawn among the NVSwitches below the hosts.
    Shared,
}

impl Selection {
    pub(super) fn new(fabric: &Fabric, neighbours: &Neighbours, max_hosts: Option<usize>) -> Self {
        let parts = parts(fabric, neighbours);
        let part = |id: NodeId| parts.get(id.0 as usize).copied().unwrap_or(PictureArea::Local);

        let mut local: Vec<Vec<NodeId>> = vec![Vec::new(); fabric.hosts().len()];
        for (id, node) in fabric.nodes().filter(|&(id, _)| part(id) == PictureArea::Local) {
            if let Some(devices) = local.get_mut(node.host.0 as usize) {
                devices.push(id);
            }
        }
        let machines: Vec<(HostId, Vec<NodeId>)> =
            (0..).map(HostId).zip(local).filter(|(_, devices)| !devices.is_empty()).collect();
        let shown = max_hosts.unwrap_or_else(|| readable(fabric, &machines)).max(1);
        let more_hosts = machines.len().saturating_sub(shown);
        let hosts: Vec<_> = machines.into_iter().take(shown).collect();

        let mut drawn = vec![false; fabric.node_count()];
        let mark = |drawn: &mut Vec<bool>, id: NodeId| {
            if let Some(drawn) = drawn.get_mut(id.0 as usize) {
                *drawn = true;
            }
        };
        let inside: Vec<NodeId> = hosts.iter().flat_map(|(_, devices)| devices.iter().copied()).collect();
        inside.iter().for_each(|&id| mark(&mut drawn, id));
        let reachable = |from: &[NodeId], drawn: &[bool], region: PictureArea| {
            let mut reachable: Vec<NodeId> = from
                .iter()
                .flat_map(|&id| neighbours.get(id).iter().copied())
                .filter(|&id| part(id) == region && !drawn.get(id.0 as usize).copied().unwrap_or(true))
                .collect();
            reachable.sort_unstable();
            reachable.dedup();
            reachable
        };
        let shared = Tier::new(reachable(&inside, &drawn, PictureArea::Shared));
        let mut tiers = Vec::new();
        let mut below = inside;
        below.extend(&shared.switches);
        loop {
            let network = reachable(&below, &drawn, PictureArea::Network);
            if network.is_empty() {
                break;
            }
            // Hidden switches are marked as well, so that they do not appear in a higher tier.
            network.iter().for_each(|&id| mark(&mut drawn, id));
            let tier = Tier::new(network);
            below.clone_from(&tier.switches);
            tiers.push(tier);
        }
        Self { hosts, more_hosts, tiers, shared }
    }
}

fn parts(fabric: &Fabric, neighbours: &Neighbours) -> Vec<PictureArea> {
    let is_switch = |kind| matches!(kind, NodeKind::Switch | NodeKind::Nvswitch);
    let mut has_machine = vec![false; fabric.hosts().len()];
    for (_, node) in fabric.nodes().filter(|(_, node)| !is_switch(node.kind)) {
        if let Some(has) = has_machine.get_mut(node.host.0 as usize) {
            *has = true;
        }
    }
    let is_machine = |host: HostId| has_machine.get(host.0 as usize).copied().unwrap_or(false);
    let part = |(id, node): (NodeId, &Node)| match node.kind {
        NodeKind::Switch => PictureArea::Network,
        NodeKind::Nvswitch => {
            let is_external = neighbours.get(id).iter().any(|&neighbour| {
                let neighbour = fabric.node(neighbour);
                !is_switch(neighbour.kind) && neighbour.host != node.host
            });
            if is_external || !is_machine(node.host) { PictureArea::Shared } else { PictureArea::Local }
        }
        _ => PictureArea::Local,
    };
    fabric.nodes().map(part).collect()
}

/// Returns the number of hosts that fit next to each other, which is at least one.
fn readable(fabric: &Fabric, machines: &[(HostId, Vec<NodeId>)]) -> usize {
    let mut columns = 0;
    let mut fitting = 0;
    for (_, devices) in machines {
        let ranks = devices.iter().filter(|&&id| fabric.node(id).kind.is_rank()).count();
        columns += ranks.clamp(3, rows::LINE);
        if columns > COLUMNS {
            break;
        }
        fitting += 1;
    }
    fitting.max(1)
}
