//! Degraded copies of a fabric: links or devices out of service, or links slowed, with unchanged ids.

use petgraph::graph::EdgeIndex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Fabric, Link, LinkId, LinkKind, NodeId, NodeKind};
use crate::Bandwidth;
use crate::error::{Error, Result};

impl Fabric {
    /// Returns a copy with these link directions out of service.
    #[must_use]
    pub fn with_failed_links(&self, links: &[LinkId]) -> Self {
        let mut copy = self.clone();
        for link in links {
            if let Some(link) = copy.graph.edge_weight_mut(EdgeIndex::new(link.0 as usize)) {
                link.failed = true;
            }
        }
        copy
    }

    /// Returns a copy with these devices and all their links out of service. The MIG instances of a failed GPU fail
    /// with it. Failed devices keep their ids but are no longer ranks.
    #[must_use]
    pub fn with_failed_devices(&self, devices: &[NodeId]) -> Self {
        let mut devices: FxHashSet<NodeId> = devices.iter().copied().collect();
        let instances = self.links().filter(|(_, link)| devices.contains(&link.from) && self.is_mig_link(link));
        let instances: Vec<NodeId> = instances.map(|(_, link)| link.to).collect();
        devices.extend(instances);
        let touched = |link: &Link| devices.contains(&link.from) || devices.contains(&link.to);
        let links: Vec<LinkId> = self.links().filter(|(_, link)| touched(link)).map(|(id, _)| id).collect();
        let mut copy = self.with_failed_links(&links);
        copy.gpus.retain(|gpu| !devices.contains(gpu));
        copy
    }

    /// Returns a copy with the named part out of service: a link (`a->b`, `a-b`, `a-b#1`), a device, or a host.
    ///
    /// # Errors
    /// [`Error::Unknown`] with similar names if nothing has this name.
    pub fn with_failed(&self, name: &str) -> Result<Self> {
        let name = name.trim();
        if let Some(device) = self.find(name) {
            return Ok(self.with_failed_devices(&[device]));
        }
        if let Some(host) = self.hosts().iter().position(|host| **host == *name) {
            let inside = self.nodes().filter(|(_, node)| node.host.0 as usize == host);
            let devices: Vec<NodeId> = inside.map(|(id, _)| id).collect();
            return Ok(self.with_failed_devices(&devices));
        }
        match self.find_link(name) {
            Ok(links) => Ok(self.with_failed_links(&links)),
            Err(_) if !name.contains('-') => Err(self.unknown_device_error(name)),
            Err(error) => Err(error),
        }
    }

    /// Returns a copy in which these link directions have the fraction `part` of their bandwidth. Returns `None` if a
    /// link has no stated bandwidth, if `links` is empty, or if `part` is outside (0, 1].
    #[must_use]
    pub fn with_slowed_links(&self, links: &[LinkId], part: f64) -> Option<Self> {
        if links.is_empty() || !(part > 0.0 && part <= 1.0) {
            return None;
        }
        let mut copy = self.clone();
        for link in links {
            let link = copy.graph.edge_weight_mut(EdgeIndex::new(link.0 as usize))?;
            link.bandwidth = Some(Bandwidth(((link.bandwidth?.0 as f64 * part).round() as u64).max(1)));
        }
        Some(copy)
    }

    /// Returns a copy in which the named links (see [`Fabric::with_failed`]) have the fraction `part` of their
    /// bandwidth.
    ///
    /// # Errors
    /// [`Error::Unknown`] as in [`Fabric::with_failed`]; [`Error::Request`] if `part` is outside (0, 1] or a link has
    /// no stated bandwidth.
    pub fn with_slowed(&self, name: &str, part: f64) -> Result<Self> {
        if !(part > 0.0 && part <= 1.0) {
            return Err(Error::Request(format!("`{name}={part}`: expected a fraction above 0 and at most 1")));
        }
        let broken = self.with_failed(name)?;
        let mut copy = self.clone();
        for (id, link) in broken.links() {
            // The links to slow are those that would fail if `name` failed and that have not failed already.
            if !link.failed
                || self.link(id).failed
                || self.is_mig_link(link)
                || self.is_mig_link(self.link(id.reverse()))
            {
                continue;
            }
            let Some(bandwidth) = link.bandwidth else {
                let (a, b) = (&self.node(link.from).id, &self.node(link.to).id);
                return Err(Error::Request(format!("`{name}`: the link {a}->{b} has no bandwidth to reduce")));
            };
            if let Some(link) = copy.graph.edge_weight_mut(EdgeIndex::new(id.0 as usize)) {
                link.bandwidth = Some(Bandwidth(((bandwidth.0 as f64 * part).round() as u64).max(1)));
            }
        }
        Ok(copy)
    }

    /// Returns a copy with the bandwidth of all links of `kinds` multiplied by `factor`; `None` if the fabric has no
    /// such link. Figures of devices, including the line rate of NICs, are unchanged.
    #[must_use]
    pub fn with_scaled_bandwidth(&self, kinds: &[LinkKind], factor: f64) -> Option<Self> {
        let mut copy = self.clone();
        let mut any = false;
        for link in copy.graph.edge_weights_mut().filter(|link| kinds.contains(&link.kind)) {
            any = true;
            for rate in [&mut link.bandwidth, &mut link.nominal_bandwidth] {
                *rate = rate.map(|rate| Bandwidth(((rate.0 as f64 * factor).round() as u64).max(1)));
            }
        }
        any.then_some(copy)
    }

    /// Returns the sub-fabric of these devices and the links between them, renumbered in the same order.
    #[must_use]
    pub fn subfabric(&self, keep: &FxHashSet<NodeId>) -> Self {
        let mut builder = super::FabricBuilder::derived_from(self, &self.name);
        builder.set_host_grid(self.host_grid.clone());
        let mut copies: FxHashMap<NodeId, NodeId> = FxHashMap::default();
        for (id, node) in self.nodes().filter(|(id, _)| keep.contains(id)) {
            let host = builder.host(self.hosts.get(node.host.0 as usize).map_or("", |host| host));
            if let Some(copy) = builder.add_node(super::Node { host, ..node.clone() }) {
                copies.insert(id, copy);
            }
        }
        for (id, [link, _]) in self.link_pairs() {
            if let (Some(&a), Some(&b)) = (copies.get(&link.from), copies.get(&link.to)) {
                builder.copy_link(self, id, a, b);
            }
        }
        builder.set_rank_order(self.gpus.iter().filter_map(|gpu| copies.get(gpu)).copied().collect());
        builder.finish()
    }

    /// Returns true if a link leads from a GPU to one of its MIG instances.
    fn is_mig_link(&self, link: &Link) -> bool {
        (self.node(link.from).kind, self.node(link.to).kind) == (NodeKind::Gpu, NodeKind::Mig)
    }

    fn unknown_device_error(&self, name: &str) -> Error {
        let devices = self.nodes().map(|(_, node)| &*node.id);
        let near = super::suggest_names(name, devices.chain(self.hosts().iter().map(|host| &**host)));
        Error::Unknown { item: "device", name: name.to_owned(), suggestions: near }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FabricRequest, load};

    #[test]
    fn subfabrics_keep_warnings_and_candidate_models() {
        let mut builder = crate::FabricBuilder::reopen(load(&FabricRequest::new("hgx-h100")).unwrap());
        builder.warn("a warning");
        builder.gpu_candidates(vec!["h100-sxm".to_owned(), "h200-sxm".to_owned()]);
        let fabric = builder.finish();
        let part = fabric.subfabric(&fabric.gpus().iter().copied().take(2).collect());
        assert_eq!((part.gpus().len(), part.gpu_candidates()), (2, fabric.gpu_candidates()));
        assert_eq!((part.warnings(), part.sources()), (fabric.warnings(), fabric.sources()));
    }

    #[test]
    fn scaled_network_rates_leave_other_links_unchanged() {
        let one = FabricRequest::new("hgx-h100");
        assert!(load(&one).unwrap().with_scaled_bandwidth(&LinkKind::NETWORK, 2.0).is_none());
        let two = load(&FabricRequest { nodes: Some(2), ..one }).unwrap();
        let fast = two.with_scaled_bandwidth(&LinkKind::NETWORK, 2.0).unwrap();
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
