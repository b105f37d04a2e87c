//! Fabrics whose ranks are linked unevenly, on which packed trees can be faster than fixed patterns.

use std::collections::BTreeMap;

use fabricast_topologies::{Fabric, NodeId};

/// Returns true if ranks are linked unevenly: their devices have different links, or some pairs of a host are linked
/// directly and others of the same host by fewer or slower links or none. Failed links do not count, and slowed ones
/// count at their rate.
#[must_use]
pub fn has_uneven_links(fabric: &Fabric, placement: &[NodeId]) -> bool {
    let mut first: Option<Vec<Option<u64>>> = None;
    for &device in placement {
        let mut rates: BTreeMap<NodeId, Option<u64>> = BTreeMap::new();
        for link in fabric.outgoing_links(device) {
            let rate = fabric.link(link).bandwidth.map(|rate| rate.0);
            let sum = rates.entry(fabric.ends(link).1).or_insert(Some(0));
            *sum = sum.zip(rate).map(|(sum, rate)| sum.saturating_add(rate));
        }
        let host = fabric.node(device).host;
        let peers = placement.iter().filter(|&&peer| peer != device && fabric.node(peer).host == host);
        let mut direct: Vec<Option<Option<u64>>> = peers.map(|peer| rates.get(peer).copied()).collect();
        direct.dedup();
        if direct.len() > 1 {
            return true;
        }
        let mut rates: Vec<Option<u64>> = rates.into_values().collect();
        rates.sort_unstable();
        match &first {
            Some(first) if *first != rates => return true,
            Some(_) => {}
            None => first = Some(rates),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::{FabricRequest, load};

    use super::*;

    #[test]
    fn meshes_with_equal_links_and_switches_are_even_until_a_link_fails() {
        let uneven = |fabric: &Fabric| has_uneven_links(fabric, fabric.gpus());
        for (name, is_uneven) in [("hgx-h100", false), ("mi300x", false), ("dgx-v100", true), ("l40s-pcie", false)] {
            assert_eq!(uneven(&load(&FabricRequest::new(name)).unwrap()), is_uneven, "{name}");
        }
        for name in ["hgx-h100", "mi300x"] {
            let fabric = load(&FabricRequest::new(name)).unwrap();
            let link = fabric.outgoing_links(fabric.gpus()[0])[0];
            assert!(uneven(&fabric.with_failed_links(&[link])), "{name}");
        }
    }
}
