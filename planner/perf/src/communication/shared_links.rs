//! Links that the calls of two dimensions share.

use fabricast_topologies::route::Router;
use fabricast_topologies::{LinkId, NodeId};

use fabricast_workload::job::{Dimension, Layout};

/// Devices of the ranks of a layout and the routes between them.
#[derive(Clone, Copy)]
pub(super) struct PlacedLayout<'a> {
    pub router: &'a Router<'a>,
    /// Device of each rank, indexed by rank.
    pub ranks: &'a [NodeId],
    pub layout: &'a Layout,
}

impl PlacedLayout<'_> {
    /// Returns true if calls of two dimensions share links: both stay in their hosts or NVLink domains, both leave
    /// them, or their bottleneck routes share a link, such as a PCIe link. Determined from the groups of the first
    /// rank.
    pub(super) fn share_links(&self, one: Dimension, other: Dimension) -> bool {
        let [one, other] = [one, other].map(|dimension| self.first_rank_route(dimension));
        one.leaves_domain == other.leaves_domain || one.route.iter().any(|link| other.route.contains(link))
    }

    fn first_rank_route(&self, dimension: Dimension) -> FirstRankRoute {
        let Self { router, ranks, layout } = *self;
        let mut group = layout.shape(dimension).group(0).filter_map(|rank| ranks.get(rank as usize).copied());
        let Some(first) = group.next() else { return FirstRankRoute::default() };
        let others: Vec<NodeId> = group.collect();
        let is_far = |device: &&NodeId| router.island_of(**device) != router.island_of(first);
        let far = others.iter().find(is_far);
        let mut hops = Vec::new();
        // Unreachable pairs are rejected when the call is timed.
        let route = far.or(others.first()).and_then(|&to| router.route_into(first, to, 0, &mut hops).ok());
        let route = route.map_or_else(Vec::new, |_| hops.iter().map(|hop| hop.link).collect());
        FirstRankRoute { leaves_domain: far.is_some(), route }
    }
}

/// Route of the first rank to other ranks of its group.
#[derive(Default)]
struct FirstRankRoute {
    /// True if some ranks of the group are in another host or NVLink domain.
    leaves_domain: bool,
    /// Links of the route to the first rank in another domain; if there is none, to the neighbour.
    route: Vec<LinkId>,
}
