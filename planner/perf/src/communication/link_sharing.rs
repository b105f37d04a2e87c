//! Selection of the groups to simulate among several groups that make the same call concurrently.
//!
//! Groups that share no link, directly or through other groups, do not affect each other. Sets of groups that share
//! links are equivalent if they have the same number of groups, the same routes between the same ranks, and links with
//! the same bandwidths and the same numbers of routes. The first of several equivalent sets represents the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabricast_sim::schedule::{Program, Rank, ScheduleGenerator};
use fabricast_topologies::route::{Ecmp, Router, Summary, charged_hops};
use fabricast_topologies::{Bandwidth, LinkId, NodeId};
use rustc_hash::FxHashMap;

use super::cache::Cache;

/// Maximum number of communicating rank pairs whose routes are examined.
const MAX_PAIRS: usize = 1 << 16;

/// Cache key: communicating rank pairs, and the devices of each group.
type SharingKey = (Arc<BTreeSet<(u32, u32)>>, Vec<Vec<NodeId>>);

/// Cache of representative groups, by index, for groups of at least [`MIN_CACHED_DEVICES`] devices in total.
#[derive(Default)]
pub(super) struct Representatives(Cache<SharingKey, Arc<[usize]>>);

/// Total number of devices below which results are not cached, because computing them is as fast as a look-up.
const MIN_CACHED_DEVICES: usize = 1024;

impl Representatives {
    /// Returns the indices of the representative groups; all groups if routes are not known in advance (hashed ECMP).
    pub(super) fn select(
        &self,
        router: &Router<'_>,
        generator: &dyn ScheduleGenerator,
        groups: &[&[NodeId]],
    ) -> Arc<[usize]> {
        let all = || (0..groups.len()).collect();
        let pairs = match router.options().ecmp {
            Ecmp::Averaged => pairs(generator),
            Ecmp::Hashed { .. } => None,
        };
        let Some(pairs) = pairs.map(Arc::new) else { return all() };
        let compute = || representatives(router, &pairs, groups).map_or_else(all, Arc::from);
        if groups.iter().map(|group| group.len()).sum::<usize>() < MIN_CACHED_DEVICES {
            return compute();
        }
        let key = (Arc::clone(&pairs), groups.iter().map(|group| group.to_vec()).collect());
        self.0.get_or_compute(key, compute)
    }
}

/// Returns the indices of the representative groups, given the communicating rank pairs; `None` if a route is missing.
fn representatives(router: &Router<'_>, pairs: &BTreeSet<(u32, u32)>, groups: &[&[NodeId]]) -> Option<Vec<usize>> {
    let routes: Vec<GroupRoutes> =
        groups.iter().map(|group| GroupRoutes::new(router, pairs, group)).collect::<Option<_>>()?;
    let mut known: Vec<SetSignature<'_>> = Vec::new();
    let mut selected = Vec::new();
    for set in link_sharing_sets(&routes) {
        let signature = SetSignature::new(router, &routes, &set);
        if !known.contains(&signature) {
            known.push(signature);
            selected.extend(set);
        }
    }
    Some(selected)
}

/// Returns the pairs of ranks that communicate; `None` for in-network operations or more than [`MAX_PAIRS`] pairs.
fn pairs(generator: &dyn ScheduleGenerator) -> Option<BTreeSet<(u32, u32)>> {
    let mut pairs = BTreeSet::default();
    let mut scratch = Program::default();
    let symmetry = generator.symmetry();
    for rank in symmetry.representatives(generator.header().call.ranks) {
        let mut last = None;
        let program = generator.read(rank, &mut scratch);
        if program.is_truncated() {
            return None;
        }
        for run in program.runs().iter().filter(|run| run.kind.is_transfer()) {
            if run.kind.is_multicast() || pairs.len() > MAX_PAIRS {
                return None;
            }
            for peer in (0..run.peer.distinct_steps(run.len)).map(|i| run.peer.at(i)) {
                if last.replace(peer) != Some(peer) {
                    pairs.insert((rank, Rank(peer)));
                }
            }
        }
    }
    if pairs.len().saturating_mul(symmetry.rotation_count() as usize) > MAX_PAIRS {
        return None;
    }
    let turned = |turn| pairs.iter().map(move |&(rank, peer)| (turn, rank, peer));
    let turned = (0..symmetry.rotation_count()).flat_map(turned);
    Some(turned.map(|(turn, rank, peer)| (symmetry.rotate(rank, turn).0, symmetry.rotate(peer, turn).0)).collect())
}

/// Routes between the communicating rank pairs of a group.
struct GroupRoutes {
    /// Route summaries of each pair, forward and back.
    summaries: Vec<Summary>,
    /// Number of routes that are charged to each link, in either direction.
    crossing: FxHashMap<LinkId, u32>,
}

impl GroupRoutes {
    /// Finds the routes of all pairs; `None` if a route is missing.
    fn new(router: &Router<'_>, pairs: &BTreeSet<(u32, u32)>, group: &[NodeId]) -> Option<Self> {
        let mut routes = Self { summaries: Vec::with_capacity(2 * pairs.len()), crossing: FxHashMap::default() };
        let (mut hops, mut replaced) = (Vec::new(), Vec::new());
        for &(rank, peer) in pairs {
            let (&device, &peer_device) = (group.get(rank as usize)?, group.get(peer as usize)?);
            for (from, to) in [(device, peer_device), (peer_device, device)] {
                hops.clear();
                replaced.clear();
                let route = router.route_and_replaced(None, from, to, 0, &mut hops, &mut replaced).ok()?;
                routes.summaries.push(route.used);
                for hop in charged_hops(&hops, &replaced) {
                    *routes.crossing.entry(hop.link).or_default() += 1;
                }
            }
        }
        Some(routes)
    }
}

/// Partitions groups, by index, into sets that share links directly or through other groups of the set.
fn link_sharing_sets(routes: &[GroupRoutes]) -> Vec<Vec<usize>> {
    let mut set_by_link: FxHashMap<LinkId, usize> = FxHashMap::default();
    let mut sets: Vec<Vec<usize>> = Vec::new();
    for (group, group_routes) in routes.iter().enumerate() {
        let sharing_sets: BTreeSet<usize> =
            group_routes.crossing.keys().filter_map(|link| set_by_link.get(link).copied()).collect();
        let index = sharing_sets.first().copied().unwrap_or(sets.len());
        if index == sets.len() {
            sets.push(Vec::new());
        }
        let mut merged = Vec::new();
        for &set in &sharing_sets {
            merged.extend(sets.get_mut(set).map(std::mem::take).unwrap_or_default());
        }
        if let Some(set) = sets.get_mut(index) {
            *set = merged;
            set.push(group);
        }
        set_by_link.values_mut().filter(|set| sharing_sets.contains(set)).for_each(|set| *set = index);
        set_by_link.extend(group_routes.crossing.keys().map(|&link| (link, index)));
    }
    sets.retain(|set| !set.is_empty());
    sets
}

/// Signature of a set of groups that share links; sets with equal signatures are equivalent.
#[derive(PartialEq)]
struct SetSignature<'a> {
    /// Route summaries of each group of the set, in group order.
    routes: Vec<&'a [Summary]>,
    /// Bandwidth of each link that the set uses and number of routes that cross it, sorted.
    links: Vec<(Option<Bandwidth>, u32)>,
}

impl<'a> SetSignature<'a> {
    fn new(router: &Router<'_>, routes: &'a [GroupRoutes], set: &[usize]) -> Self {
        let mut crossing: FxHashMap<LinkId, u32> = FxHashMap::default();
        let set_routes = || set.iter().filter_map(|&group| routes.get(group));
        for (&link, times) in set_routes().flat_map(|one| &one.crossing) {
            *crossing.entry(link).or_default() += times;
        }
        let rate = |link: LinkId| router.fabric().link(link).bandwidth;
        let mut links: Vec<(Option<Bandwidth>, u32)> =
            crossing.into_iter().map(|(link, times)| (rate(link), times)).collect();
        links.sort_unstable();
        Self { routes: set_routes().map(|one| one.summaries.as_slice()).collect(), links }
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::{BufferUse, Call, Collective, Header, Protocol};
    use fabricast_topologies::route::RouteOptions;
    use fabricast_topologies::{Bytes, FabricRequest, load};

    use super::*;
    use fabricast_collectives::algorithm::{Algorithm, Shape, generator};

    /// Returns the indices of the groups that represent `groups`, each of four GPUs, on a cluster of eight hosts.
    fn select_representatives(network: &str, groups: &[[usize; 4]]) -> Vec<usize> {
        let network = Some(network.parse().unwrap());
        let request = FabricRequest { nodes: Some(8), network, ..FabricRequest::new("hgx-h100") };
        let fabric = load(&request).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let placed: Vec<[NodeId; 4]> = groups.iter().map(|group| group.map(|number| fabric.gpus()[number])).collect();
        let call = Call {
            collective: Collective::AllGather,
            bytes: Bytes(1 << 20),
            ranks: 4,
            root: Rank(0),
            buffers: BufferUse::OutOfPlace,
        };
        let ring = generator(Algorithm::Ring, &Shape::new(call, Protocol::Simple)).unwrap();
        let groups: Vec<&[NodeId]> = placed.iter().map(<[NodeId; 4]>::as_slice).collect();
        Representatives::default().select(&router, ring.as_ref(), &groups).to_vec()
    }

    /// Schedule generator that does not declare the symmetry of another generator.
    struct Silent<'a>(&'a dyn ScheduleGenerator);

    impl ScheduleGenerator for Silent<'_> {
        fn header(&self) -> &Header {
            self.0.header()
        }

        fn program(&self, rank: Rank, program: &mut Program) {
            self.0.program(rank, program);
        }
    }

    #[test]
    fn symmetry_expands_to_all_pairs() {
        for (collective, algorithm, ranks) in [
            (Collective::AllGather, Algorithm::Ring, 5),
            (Collective::AllReduce, Algorithm::Tree, 8),
            (Collective::ReduceScatter, Algorithm::Pat, 12),
            (Collective::AllToAll, Algorithm::Direct, 6),
        ] {
            let call = Call { collective, bytes: Bytes(1000), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
            let one = generator(algorithm, &Shape::new(call, Protocol::Simple)).unwrap();
            let expanded = pairs(one.as_ref()).unwrap();
            assert_eq!(Some(&expanded), pairs(&Silent(one.as_ref())).as_ref(), "{algorithm:?}");
            assert!(expanded.len() >= ranks as usize - 1);
        }
    }

    #[test]
    fn groups_that_share_links_form_one_set() {
        // Two groups on every other host, on adjacent GPUs.
        let groups = [0, 1, 2, 3].map(|number| [0, 2, 4, 6].map(|host| 8 * (host + number / 2) + number % 2));
        // Networks: rails with a NIC per GPU; one NIC per host; leaf switches below a spine that all groups cross.
        assert_eq!(select_representatives("rail,nics_per_node=8,nic=400Gb/s", &groups), [0]);
        assert_eq!(select_representatives("rail,nics_per_node=1,nic=400Gb/s", &groups), [0, 1]);
        assert_eq!(select_representatives("fat_tree,nics_per_node=1,nic=400Gb/s,radix=4", &groups), [0, 1, 2, 3]);
    }

    /// Sets that share no links and differ. The third set resembles the first, but its route changes rails.
    #[test]
    fn dissimilar_groups_represent_themselves() {
        let groups = [[0, 8, 16, 24], [33, 41, 49, 57], [34, 42, 50, 59], [4, 5, 6, 7]];
        assert_eq!(select_representatives("rail,nics_per_node=8,nic=400Gb/s", &groups), [0, 2, 3]);
    }
}
