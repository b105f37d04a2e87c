//! Adjacency of devices.

use fabricast_topologies::{Fabric, NodeId};

/// Devices that are linked to each device, once per parallel link. Failed links count, since they are drawn.
#[derive(Clone, Debug)]
pub(super) struct Neighbours(Vec<Vec<NodeId>>);

impl Neighbours {
    pub(super) fn new(fabric: &Fabric) -> Self {
        let mut neighbours = vec![Vec::new(); fabric.node_count()];
        for (_, link) in fabric.links() {
            if let Some(list) = neighbours.get_mut(link.from.0 as usize) {
                list.push(link.to);
            }
        }
        Self(neighbours)
    }

    pub(super) fn get(&self, id: NodeId) -> &[NodeId] {
        self.0.get(id.0 as usize).map(Vec::as_slice).unwrap_or_default()
    }
}
