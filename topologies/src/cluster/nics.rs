//! NICs of the copied hosts: the preset's own, or new ones at the same attachment points if the network states their
//! number or figures.

use std::sync::Arc;

use super::network::{DEFAULT_NIC, DEFAULT_NICS};
use super::template::Template;
use crate::error::{Error, Result};
use crate::fabric::{FabricBuilder, Figures, LinkKind, LinkSpec, NicFigures, Node, NodeKind};
use crate::keys::Keyed;
use crate::network_spec::{NetworkKind, NetworkSpec};
use crate::{Bandwidth, Fabric, HostId, LinkId, NodeId, Picos};

/// NICs of the copied hosts: the template's own or new ones.
#[derive(Debug)]
pub(super) struct NicPlan {
    /// New NICs of each host of the template; `None` copies the template's own.
    hosts: Option<Vec<Vec<NewNic>>>,
    ports: PortSettings,
}

/// Settings of the ports of NICs that a network states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PortSettings {
    link: Option<LinkKind>,
    adaptive_routing: Option<bool>,
    queue_pairs: Option<u32>,
}

impl PortSettings {
    fn new(spec: &NetworkSpec) -> Self {
        let &NetworkSpec { link, adaptive_routing, queue_pairs, .. } = spec;
        Self { link, adaptive_routing, queue_pairs }
    }

    /// Sets the stated settings of a NIC.
    fn apply(self, figures: &mut NicFigures) {
        figures.link = self.link.or(figures.link);
        figures.adaptive_routing = self.adaptive_routing.or(figures.adaptive_routing);
        figures.queue_pairs = self.queue_pairs.or(figures.queue_pairs);
    }
}

#[derive(Clone, Debug)]
struct NewNic {
    figures: Arc<NicFigures>,
    /// Devices of the template that the NIC is attached to, with the link to each.
    links: Vec<(NodeId, LinkSpec)>,
}

impl NicPlan {
    pub fn new(template: &Template<'_>, spec: &NetworkSpec) -> Self {
        let has_nics = template.fabric.nodes().any(|(_, node)| node.kind == NodeKind::Nic);
        let keep = spec.nics_per_node.is_none() && spec.nic.is_none() && spec.mtu.is_none() && has_nics;
        let ports = PortSettings::new(spec);
        if keep || matches!(spec.kind, NetworkKind::Mnnvl | NetworkKind::TcpLoopback) {
            return Self { hosts: None, ports };
        }
        let hosts = (0..template.hosts()).map(|host| new_nics(template, host, spec)).collect();
        Self { hosts: Some(hosts), ports }
    }

    /// Returns true if the template's NICs are not copied.
    pub fn replaces_nics(&self) -> bool {
        self.hosts.is_some()
    }

    /// Sets the settings of a copied NIC's ports to those that the network states.
    pub fn apply_port_settings(&self, mut node: Node) -> Node {
        if let Figures::Nic(figures) = &mut node.figures
            && self.ports != PortSettings::default()
        {
            self.ports.apply(Arc::make_mut(figures));
        }
        node
    }

    /// Adds the new NICs of a host and appends their ids to `nics`. `map` gives the copy of each device of the
    /// template.
    ///
    /// # Errors
    /// The id of the NIC, if it is already in use.
    pub fn add(
        &self,
        builder: &mut FabricBuilder,
        template_host: usize,
        prefix: &str,
        host: HostId,
        map: &[Option<NodeId>],
        nics: &mut Vec<NodeId>,
    ) -> Result<(), String> {
        let planned = self.hosts.as_ref().and_then(|hosts| hosts.get(template_host));
        for (number, nic) in planned.into_iter().flatten().enumerate() {
            let id = format!("{prefix}nic{number}");
            let figures = Figures::Nic(Arc::clone(&nic.figures));
            let node = Node { id: id.as_str().into(), kind: NodeKind::Nic, host, figures, attributes: Box::default() };
            let added = builder.add_node(node).ok_or(id)?;
            for (end, link) in &nic.links {
                if let Some(end) = map.get(end.0 as usize).copied().flatten() {
                    builder.link(added, end, link);
                }
            }
            nics.push(added);
        }
        Ok(())
    }
}

/// Returns an error if the hosts have no NICs and the network does not state both their number and their line rate.
/// NICs are never added without stated figures.
pub(super) fn check_nics_are_specified(host: &Fabric, spec: &NetworkSpec) -> Result<()> {
    let has_nics = host.nodes().any(|(_, node)| node.kind == NodeKind::Nic);
    if has_nics || matches!(spec.kind, NetworkKind::Mnnvl | NetworkKind::TcpLoopback) {
        return Ok(());
    }
    let missing = match (spec.nics_per_node, spec.nic) {
        (Some(_), Some(_)) => return Ok(()),
        (None, None) => "how many it has and how fast they are",
        (None, Some(_)) => "how many it has",
        (Some(_), None) => "how fast they are",
    };
    let name = host.name();
    Err(Error::Request(format!(
        "{name} describes no NIC: expected {missing} in the network, as in {},nics_per_node=2,nic=200Gb/s",
        spec.kind.write().trim_matches('"')
    )))
}

/// Adds a warning if the line rate of some NIC is unknown, because a default rate is then assumed.
pub(super) fn warn_assumed_rate(builder: &mut FabricBuilder, hosts: &[Vec<NodeId>]) {
    let unknown = hosts.iter().flatten().find(|&&nic| match &builder.get(nic).figures {
        Figures::Nic(figures) => figures.speed.is_none(),
        _ => true,
    });
    if unknown.is_some() {
        builder.warn(format!(
            "the line rate of the NICs is not stated: {} Gb/s is assumed (--network …,nic=RATE sets another)",
            DEFAULT_NIC.0 / 125_000_000
        ));
    }
}

/// New NICs of a host, spread evenly over the attachment points of its own NICs.
fn new_nics(template: &Template<'_>, host: usize, spec: &NetworkSpec) -> Vec<NewNic> {
    let fabric = template.fabric;
    let members = template.members(host);
    let existing: Vec<NodeId> = members.iter().copied().filter(|&id| fabric.node(id).kind == NodeKind::Nic).collect();
    let attachments: Vec<NewNic> = if existing.is_empty() {
        default_attachment_points(template, host)
    } else {
        let copy_nic = |&nic: &NodeId| {
            let figures = match &fabric.node(nic).figures {
                Figures::Nic(figures) => Arc::clone(figures),
                _ => Arc::default(),
            };
            let links = outgoing_links(template, nic).map(|link| (fabric.ends(link).1, fabric.link_spec(link)));
            // The template's own network, if any, is not copied.
            let inside =
                |end: &(NodeId, LinkSpec)| !matches!(fabric.node(end.0).kind, NodeKind::Switch | NodeKind::Nic);
            NewNic { figures, links: links.filter(inside).collect() }
        };
        existing.iter().map(copy_nic).collect()
    };
    let count = spec.nics_per_node.map_or(if existing.is_empty() { DEFAULT_NICS } else { existing.len() as u32 }, |n| n)
        as usize;
    (0..count)
        .filter_map(|number| {
            let mut nic = attachments.get(number * attachments.len() / count)?.clone();
            let figures = Arc::make_mut(&mut nic.figures);
            if let Some(speed) = spec.nic {
                if figures.speed != Some(speed) {
                    figures.model = None;
                }
                figures.speed = Some(speed);
            }
            figures.speed = figures.speed.or(Some(DEFAULT_NIC));
            figures.mtu = spec.mtu.or(figures.mtu);
            PortSettings::new(spec).apply(figures);
            Some(nic)
        })
        .collect()
}

/// Attachment points of NICs on a host without NICs: its PCIe switches, otherwise its CPUs, otherwise each of its GPUs.
fn default_attachment_points(template: &Template<'_>, host: usize) -> Vec<NewNic> {
    let fabric = template.fabric;
    let members_of_kind = |test: fn(NodeKind) -> bool| {
        let members = template.members(host).iter().copied();
        members.filter(|&id| test(fabric.node(id).kind)).collect::<Vec<_>>()
    };
    let points = [
        members_of_kind(|kind| kind == NodeKind::PcieSwitch),
        members_of_kind(|kind| kind == NodeKind::Cpu),
        members_of_kind(NodeKind::is_rank),
    ];
    let points = points.into_iter().find(|points| !points.is_empty()).unwrap_or_default();
    // PCIe 5.0 x16: 32 GT/s x 16 lanes x 128/130 / 8.
    let link = LinkSpec::symmetric(LinkKind::Pcie, Bandwidth(63_000_000_000), Picos(150_000)).lanes(16);
    let figures = Arc::new(NicFigures::default());
    points.into_iter().map(|point| NewNic { figures: figures.clone(), links: vec![(point, link.clone())] }).collect()
}

fn outgoing_links(template: &Template<'_>, node: NodeId) -> impl Iterator<Item = LinkId> {
    template.fabric.outgoing_links(node).into_iter()
}
