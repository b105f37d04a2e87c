//! Conversion of the nodes and links of a spec to devices and links of a fabric.

use super::{Spec, SpecLink};
use crate::error::{Error, Origin, Result};
use crate::fabric::{Fabric, FabricBuilder, Node, NodeId, suggest_names};
use crate::gpus;
use crate::route::Routing;

impl Spec {
    fn origin(&self) -> Origin<'_> {
        Origin::new(&self.source, &self.text).with_line_index(&self.lines)
    }

    /// Builds the fabric of the explicit nodes and links, without the cluster.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a duplicate id, a link to a missing node or from a node to itself, or an invalid rank
    /// order.
    pub fn build_nodes(&self) -> Result<Fabric> {
        let mut builder = FabricBuilder::new(&self.name);
        self.add_to(&mut builder)?;
        Ok(builder.finish())
    }

    /// Adds sources, nodes, links and the rank order to a fabric under construction. Links may end at nodes that exist
    /// already (such as `n0/gpu0` of a cluster).
    ///
    /// # Errors
    /// The errors of [`Spec::build_nodes`].
    pub fn add_to(&self, builder: &mut FabricBuilder) -> Result<()> {
        for source in &self.sources {
            builder.add_source(source);
        }
        for (i, node) in self.nodes.iter().enumerate() {
            let host = builder.host(&node.host);
            let vertex = Node {
                id: node.id.clone(),
                kind: node.kind,
                host,
                figures: node.figures.clone(),
                attributes: node.attributes.clone(),
            };
            if builder.add_node(vertex).is_none() {
                return Err(self.duplicate(i));
            }
        }
        for link in &self.links {
            self.add_link(link, builder)?;
        }
        for gpu in &self.idle {
            let id =
                builder.find(&gpu.id).ok_or_else(|| self.missing_node_error(&gpu.id, gpu.bytes.clone(), "no node"))?;
            if !builder.get(id).kind.is_rank() {
                let message = format!("`{}` is idle anyway: it is no GPU or accelerator", gpu.id);
                return Err(self.origin().invalid(gpu.bytes.clone(), message));
            }
            builder.set_idle(id);
        }
        if self.routing != Routing::default() {
            builder.set_routing(self.routing);
        }
        if !self.host_grid.is_empty() {
            builder.set_host_grid(self.host_grid.clone());
        }
        if !self.ranks.is_empty() {
            let order = self.rank_order(builder)?;
            builder.set_rank_order(order);
        }
        if !self.gpu_candidates.is_empty() {
            builder.gpu_candidates(self.gpu_candidates.clone());
        }
        gpus::complete(builder);
        Ok(())
    }

    fn duplicate(&self, index: usize) -> Error {
        let Some(node) = self.nodes.get(index) else {
            return Error::Request("a node is given twice".to_owned());
        };
        let first = self.nodes.iter().take(index).find(|earlier| earlier.id == node.id);
        let message = format!("the id `{}` is taken", node.id);
        let help = first.map_or_else(
            || "the cluster has a node of this id".to_owned(),
            |first| format!("it is first given in line {}", self.origin().locate(first.bytes.clone()).line),
        );
        self.origin().invalid_with_help(node.bytes.clone(), message, help)
    }

    fn add_link(&self, link: &SpecLink, builder: &mut FabricBuilder) -> Result<()> {
        let end = |id: &str, bytes: &std::ops::Range<usize>| {
            builder.find(id).ok_or_else(|| self.missing_node_error(id, bytes.clone(), "there is no node"))
        };
        let (a, b) = (end(&link.a, &link.a_bytes)?, end(&link.b, &link.b_bytes)?);
        if a == b {
            let message = format!("a link joins `{}` to itself", link.a);
            return Err(self.origin().invalid(link.b_bytes.clone(), message));
        }
        let added = builder.link(a, b, &link.spec);
        builder.degrade(added, link.failed, link.slowed);
        Ok(())
    }

    fn missing_node_error(&self, id: &str, bytes: std::ops::Range<usize>, item: &str) -> Error {
        let message = format!("{item} `{id}`");
        match suggest_names(id, self.nodes.iter().map(|node| &*node.id)).as_slice() {
            [] => self.origin().invalid(bytes, message),
            near => self.origin().invalid_with_help(bytes, message, format!("did you mean {}?", near.join(", "))),
        }
    }

    /// The rank order, which must contain every GPU exactly once.
    fn rank_order(&self, builder: &FabricBuilder) -> Result<Vec<NodeId>> {
        let known: rustc_hash::FxHashSet<NodeId> = builder.ranks().iter().copied().collect();
        let mut order = Vec::with_capacity(self.ranks.len());
        let mut seen = rustc_hash::FxHashSet::default();
        for rank in &self.ranks {
            let refuse = |message: String| self.origin().invalid(rank.bytes.clone(), message);
            let id = builder
                .find(&rank.id)
                .ok_or_else(|| self.missing_node_error(&rank.id, rank.bytes.clone(), "no node"))?;
            if !builder.get(id).kind.is_rank() {
                return Err(refuse(format!("`{}` cannot be a rank: it is no GPU or accelerator", rank.id)));
            }
            if !known.contains(&id) {
                return Err(refuse(format!(
                    "`{}` cannot be a rank: it is idle, or its MIG instances are ranks",
                    rank.id
                )));
            }
            if !seen.insert(id) {
                return Err(refuse(format!("`{}` is two ranks", rank.id)));
            }
            order.push(id);
        }
        let ranks = self.ranks.first().zip(self.ranks.last()).map(|(a, b)| a.bytes.start..b.bytes.end);
        if let Some(left_out) = builder.ranks().iter().find(|id| !seen.contains(id)) {
            let id = &builder.get(*left_out).id;
            return Err(self.origin().invalid(ranks.unwrap_or_default(), format!("ranks omits `{id}`")));
        }
        Ok(order)
    }
}
