//! Load of the links of a fabric by certified trees, for pictures of the fabric.

use std::collections::BTreeMap;

use fabricast_sim::certify::{Certificate, Phase};
use fabricast_sim::schedule::{Collective, Rank};
use fabricast_topologies::route::{Participants, Router};
use fabricast_topologies::{Fabric, NodeId};

/// Returns the time for which each link direction carries the data of trees, relative to the busiest one of them, indexed
/// by [`LinkId`](fabricast_topologies::LinkId). `root`: root of the trees; those of all roots if `None`. Edges without a
/// route carry nothing, and links without a rate need no time.
#[must_use]
pub fn link_loads(
    certificate: &Certificate,
    collective: Collective,
    fabric: &Fabric,
    router: &Router<'_>,
    placement: &[NodeId],
    root: Option<Rank>,
) -> Vec<f64> {
    let mut units: BTreeMap<(Phase, Rank), f64> = BTreeMap::new();
    for tree in &certificate.trees {
        *units.entry((tree.phase, tree.root)).or_default() += f64::from(tree.units);
    }
    let mut carried: BTreeMap<(Rank, Rank), f64> = BTreeMap::new();
    for tree in certificate.trees.iter().filter(|tree| root.is_none_or(|root| root == tree.root)) {
        let share = f64::from(tree.units) / units.get(&(tree.phase, tree.root)).copied().unwrap_or(1.0).max(1.0);
        for ends in tree.transfers(collective) {
            *carried.entry(ends).or_default() += share;
        }
    }
    let participants = Participants::new(placement);
    let device = |rank: Rank| placement.get(rank.0 as usize).copied();
    let mut loads = vec![0.0; fabric.link_count()];
    for ((from, to), blocks) in carried {
        let Some((from, to)) = device(from).zip(device(to)) else { continue };
        let Ok(path) = router.path_for_participants(&participants, from, to) else { continue };
        for hop in path.hops {
            let Some(rate) = fabric.link(hop.link).bandwidth else { continue };
            let share = f64::from(hop.share.numerator) / f64::from(hop.share.denominator);
            if let Some(load) = loads.get_mut(hop.link.0 as usize) {
                *load += blocks * share / rate.0.max(1) as f64;
            }
        }
    }
    let busiest = loads.iter().copied().fold(0.0, f64::max);
    if busiest > 0.0 {
        loads.iter_mut().for_each(|load| *load /= busiest);
    }
    loads
}

#[cfg(test)]
mod tests {
    use fabricast_sim::certify::CertifiedTree;
    use fabricast_topologies::route::RouteOptions;
    use fabricast_topologies::{FabricRequest, load};

    use super::*;

    /// Ranks in a chain on the links of one host of MI300X: gpu0 to gpu1 to gpu2, and gpu0 to all others.
    fn chain() -> CertifiedTree {
        let parents = [0, 0, 1, 0, 0, 0, 0, 0].map(Rank).to_vec();
        CertifiedTree { phase: Phase::Spread, root: Rank(0), units: 1, parents }
    }

    /// Loads of the links gpu0→gpu1, gpu1→gpu2, gpu0→gpu3 and back.
    fn loads(collective: Collective, root: Option<Rank>, trees: Vec<CertifiedTree>) -> Vec<f64> {
        let fabric = load(&FabricRequest::new("mi300x")).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let certificate = Certificate { cut: vec![], prices: BTreeMap::new(), bound_ps: 0, packed_ps: 1, trees };
        let loads = link_loads(&certificate, collective, &fabric, &router, fabric.gpus(), root);
        let link = |from: usize, to: usize| {
            let ends = (fabric.gpus()[from], fabric.gpus()[to]);
            let found = fabric.links().find(|(_, link)| (link.from, link.to) == ends).unwrap().0;
            loads[found.0 as usize]
        };
        vec![link(0, 1), link(1, 2), link(0, 3), link(1, 0)]
    }

    #[test]
    fn edges_carry_common_blocks_once_and_blocks_of_ranks_along_paths() {
        assert_eq!(loads(Collective::AllGather, None, vec![chain()]), [1.0, 1.0, 1.0, 0.0]);
        assert_eq!(loads(Collective::AllToAll, None, vec![chain()]), [1.0, 0.5, 0.5, 0.0]);
        let collect = CertifiedTree { phase: Phase::Collect, ..chain() };
        assert_eq!(loads(Collective::ReduceScatter, None, vec![collect]), [0.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn only_trees_of_the_root_count() {
        assert_eq!(loads(Collective::AllGather, Some(Rank(1)), vec![chain()]), [0.0; 4]);
        let other = CertifiedTree { root: Rank(1), parents: vec![Rank(1); 8], ..chain() };
        assert_eq!(loads(Collective::AllGather, Some(Rank(1)), vec![chain(), other]), [0.0, 1.0, 0.0, 1.0]);
    }
}
