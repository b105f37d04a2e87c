//! GPUs that reach each other over NVLink alone.

use std::sync::OnceLock;

use fabricast_topologies::route::{Path, Router};
use fabricast_topologies::{LinkKind, NodeId};
use fabricast_workload::job::{Dimension, Layout};
use rustc_hash::FxHashSet;

/// Pairs of ranks of a host whose route has only NVLinks and passes no other rank, computed on first use.
#[derive(Debug, Default)]
pub(super) struct NvlinkPeers {
    pairs: OnceLock<FxHashSet<(NodeId, NodeId)>>,
}

impl NvlinkPeers {
    /// Returns true if each group of a dimension is on one host and all its ranks are pairs. `ranks`: device of each
    /// rank, always the same.
    pub(super) fn connect(&self, router: &Router<'_>, ranks: &[NodeId], layout: &Layout, dimension: Dimension) -> bool {
        let pairs = self.pairs.get_or_init(|| pairs(router, ranks));
        let shape = layout.shape(dimension);
        shape.first_ranks(ranks.len() as u64).all(|first| {
            let devices: Vec<NodeId> =
                shape.group(first).filter_map(|rank| ranks.get(rank as usize).copied()).collect();
            devices.iter().all(|&from| devices.iter().all(|&to| from == to || pairs.contains(&(from, to))))
        })
    }
}

fn pairs(router: &Router<'_>, ranks: &[NodeId]) -> FxHashSet<(NodeId, NodeId)> {
    let fabric = router.fabric();
    let gpus: FxHashSet<NodeId> = ranks.iter().copied().collect();
    let is_direct = |path: &Path, to: NodeId| {
        path.hops.iter().all(|hop| {
            let link = fabric.link(hop.link);
            link.kind == LinkKind::Nvlink && (link.to == to || !gpus.contains(&link.to))
        })
    };
    let mut by_host: Vec<NodeId> = ranks.to_vec();
    by_host.sort_unstable_by_key(|&device| (fabric.node(device).host, device));
    let mut found = FxHashSet::default();
    for host in by_host.chunk_by(|&a, &b| fabric.node(a).host == fabric.node(b).host) {
        for &from in host {
            for &to in host.iter().filter(|&&to| to != from) {
                if router.path(from, to).is_ok_and(|path| is_direct(&path, to)) {
                    found.insert((from, to));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::route::RouteOptions;
    use fabricast_topologies::{FabricRequest, load};
    use fabricast_workload::job::Degrees;

    use super::*;

    /// NVSwitches connect all GPUs of a host. PCIe, the cube mesh of a DGX-1, and groups over two hosts of a domain do
    /// not.
    #[test]
    fn only_nvlink_between_all_ranks_connects() {
        let connects = |name: &str, nodes: u32| {
            let mut request = FabricRequest::new(name);
            request.nodes = Some(nodes);
            let fabric = load(&request).unwrap();
            let router = Router::new(&fabric, RouteOptions::default());
            let layout = Layout { degrees: Degrees { tensor: 8, ..Degrees::default() } };
            NvlinkPeers::default().connect(&router, &fabric.gpus()[..8], &layout, Dimension::Tensor)
        };
        assert!(connects("hgx-h100", 1));
        assert!(!connects("l40s-pcie", 1) && !connects("dgx-v100", 1) && !connects("gb200-nvl72", 2));
    }
}
