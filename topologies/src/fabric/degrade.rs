//! A fabric with something out of service or slowed down: the same ids, another mask.

use petgraph::graph::EdgeIndex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Fabric, Link, LinkId, LinkKind, NodeId, NodeKind};
use crate::Bandwidth;
use crate::error::{Error, Result};

impl Fabric {
    /// A copy with these link directions out of service.
    #[must_use]
    pub fn without_links(&self, links: &[LinkId]) -> Self {
        let mut copy = self.clone();
        for link in links {
            if let Some(link) = copy.graph.edge_weight_mut(EdgeIndex::new(link.0 as usize)) {
                link.failed = true;
            }
        }
        copy
    }

    /// A copy with these devices out of service, the MIG instances of GPUs among them, and all of their links. They keep
    /// their ids, and are ranks no more.
    #[must_use]
    pub fn without_devices(&self, devices: &[NodeId]) -> Self {
        let mut devices: FxHashSet<NodeId> = devices.iter().copied().collect();
        let instances = self.links().filter(|(_, link)| devices.contains(&link.from) && self.is_inside(link));
        let instances: Vec<NodeId> = instances.map(|(_, link)| link.to).collect();
        devices.extend(instances);
        let touched = |link: &Link| devices.contains(&link.from) || devices.contains(&link.to);
        let links: Vec<LinkId> = self.links().filter(|(_, link)| touched(link)).map(|(id, _)| id).collect();
        let mut copy = self.without_links(&links);
        copy.gpus.retain(|gpu| !devices.contains(gpu));
        copy
    }

    /// A copy with what `name` means out of service: a link (`a->b`, `a-b`, `a-b#1`), a device, or a host.
    ///
    /// # Errors
    /// [`Error::Unknown`] where nothing has this name, with names that look like it.
    pub fn without(&self, name: &str) -> Result<Self> {
        let name = name.trim();
        if let Some(device) = self.find(name) {
            return Ok(self.without_devices(&[device]));
        }
        if let Some(host) = self.hosts().iter().position(|host| **host == *name) {
            let inside = self.nodes().filter(|(_, node)| node.host.0 as usize == host);
            let devices: Vec<NodeId> = inside.map(|(id, _)| id).collect();
            return Ok(self.without_devices(&devices));
        }
        match self.find_link(name) {
            Ok(links) => Ok(self.without_links(&links)),
            Err(_) if !name.contains('-') => Err(self.unknown_part(name)),
            Err(error) => Err(error),
        }
    }

    /// A copy in which what `name` means (as in [`Fabric::without`]) keeps this part of its bandwidth.
    ///
    /// # Errors
    /// [`Error::Unknown`] as in [`Fabric::without`]; [`Error::Request`] for a part that is not above 0 and at most 1,
    /// and for a link without a stated bandwidth.
    pub fn slowed(&self, name: &str, part: f64) -> Result<Self> {
        if !(part > 0.0 && part <= 1.0) {
            return Err(Error::Request(format!("`{name}={part}`: what is left of a link is above 0 and at most 1")));
        }
        let broken = self.without(name)?;
        let mut copy = self.clone();
        for (id, link) in broken.links() {
            // What failing it would newly take out is what is meant.
            if !link.failed || self.link(id).failed || self.is_inside(link) || self.is_inside(self.link(id.reverse())) {
                continue;
            }
            let Some(bandwidth) = link.bandwidth else {
                let (a, b) = (&self.node(link.from).id, &self.node(link.to).id);
                return Err(Error::Request(format!("`{name}`: the link {a}->{b} has no bandwidth to take a part of")));
            };
            if let Some(link) = copy.graph.edge_weight_mut(EdgeIndex::new(id.0 as usize)) {
                link.bandwidth = Some(Bandwidth(((bandwidth.0 as f64 * part).round() as u64).max(1)));
            }
        }
        Ok(copy)
    }

    /// A copy whose links of some kinds carry so many times as much; `None` where there are none. What is known of devices, the line rate
    /// of NICs too, stays: only the links change.
    #[must_use]
    pub fn with_rates_times(&self, kinds: &[LinkKind], factor: f64) -> Option<Self> {
        let mut copy = self.clone();
        let mut any = false;
        for link in copy.graph.edge_weights_mut().filter(|link| kinds.contains(&link.kind)) {
            any = true;
            for rate in [&mut link.bandwidth, &mut link.built] {
                *rate = rate.map(|rate| Bandwidth(((rate.0 as f64 * factor).round() as u64).max(1)));
            }
        }
        any.then_some(copy)
    }

    /// A copy with these devices alone and the links between them, numbered anew in the same order.
    #[must_use]
    pub fn part(&self, keep: &FxHashSet<NodeId>) -> Self {
        let mut builder = super::FabricBuilder::new(&self.name);
        self.sources.iter().for_each(|source| builder.source(source));
        self.warnings.iter().for_each(|warning| builder.warn(warning));
        builder.host_grid(self.host_grid.clone());
        builder.routing(self.routing);
        let mut place: FxHashMap<NodeId, NodeId> = FxHashMap::default();
        for (id, node) in self.nodes().filter(|(id, _)| keep.contains(id)) {
            let host = builder.host(self.hosts.get(node.host.0 as usize).map_or("", |host| host));
            if let Some(copy) = builder.node_with(super::Node { host, ..node.clone() }) {
                place.insert(id, copy);
            }
        }
        for (id, link) in self.links().filter(|(id, _)| id.0 % 2 == 0) {
            if let (Some(&a), Some(&b)) = (place.get(&link.from), place.get(&link.to)) {
                let back = self.link(id.reverse());
                let spec = super::LinkSpec {
                    kind: link.kind,
                    lanes: link.lanes,
                    forward: link.built,
                    backward: back.built,
                    latency: link.latency,
                };
                let copy = builder.link(a, b, &spec);
                let both = [link, back];
                builder.degrade(copy, both.map(|link| link.failed), both.map(|link| link.bandwidth));
            }
        }
        builder.rank_order(self.gpus.iter().filter_map(|gpu| place.get(gpu)).copied().collect());
        builder.finish()
    }

    /// Whether a link leads from a GPU to one of its MIG instances.
    fn is_inside(&self, link: &Link) -> bool {
        (self.node(link.from).kind, self.node(link.to).kind) == (NodeKind::Gpu, NodeKind::Mig)
    }

    fn unknown_part(&self, name: &str) -> Error {
        let devices = self.nodes().map(|(_, node)| &*node.id);
        let near = super::near_misses(name, devices.chain(self.hosts().iter().map(|host| &**host)));
        Error::Unknown { what: "device", name: name.to_owned(), near }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FabricRequest, load};

    #[test]
    fn a_faster_network_is_the_same_fabric_with_other_cables() {
        let one = FabricRequest::of("hgx-h100");
        assert!(load(&one).unwrap().with_rates_times(&LinkKind::NETWORK, 2.0).is_none());
        let two = load(&FabricRequest { nodes: Some(2), ..one }).unwrap();
        let fast = two.with_rates_times(&LinkKind::NETWORK, 2.0).unwrap();
        let mut cables = 0;
        for ((_, before), (_, after)) in two.links().zip(fast.links()) {
            let is_cable = matches!(before.kind, LinkKind::Infiniband | LinkKind::Ethernet);
            cables += usize::from(is_cable);
            let expected = before.bandwidth.map(|rate| Bandwidth(rate.0 * if is_cable { 2 } else { 1 }));
            assert_eq!((after.bandwidth, after.latency, after.kind), (expected, before.latency, before.kind));
        }
        assert!(cables > 0 && two.gpus() == fast.gpus());
    }
}
