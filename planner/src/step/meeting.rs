//! Selects the groups to simulate out of several groups that make the same call concurrently.
//!
//! Groups that share no link, directly or through other groups, do not affect each other. Sets of groups that share
//! links are equivalent if they have the same number of groups, the same routes between the same ranks, and links of
//! the same bandwidths crossed by the same number of routes. The first of equivalent sets represents the others.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

use fabricast_sim::schedule::{Generate, Program, Rank};
use fabricast_topologies::route::{Ecmp, Router, Summary};
use fabricast_topologies::{Bandwidth, LinkId, NodeId};
use rustc_hash::FxHashMap;

use super::price::Kept;

/// Largest number of communicating rank pairs whose routes are examined.
const MOST_PAIRS: usize = 1 << 16;

/// Cache key: communicating rank pairs, and the devices of each group.
type Meeting = (Arc<BTreeSet<(u32, u32)>>, Vec<Vec<NodeId>>);

/// Cache of representative groups, by index, for groups of at least [`KEPT`] devices in total.
#[derive(Default)]
pub(super) struct Standing(Kept<Meeting, Arc<[usize]>>);

/// Total number of devices below which results are recomputed, as that is as fast as a lookup.
const KEPT: usize = 1024;

impl Standing {
    /// Returns the indices of the representative groups; all groups if routes are not known in advance (hashed ECMP).
    pub(super) fn of(&self, router: &Router<'_>, generator: &dyn Generate, groups: &[&[NodeId]]) -> Arc<[usize]> {
        let all = || (0..groups.len()).collect();
        let pairs = match router.options().ecmp {
            Ecmp::Averaged => pairs(generator),
            Ecmp::Hashed { .. } => None,
        };
        let Some(pairs) = pairs.map(Arc::new) else { return all() };
        let find = || that_stand_for_all(router, &pairs, groups).map_or_else(all, Arc::from);
        if groups.iter().map(|group| group.len()).sum::<usize>() < KEPT {
            return find();
        }
        let meeting = (Arc::clone(&pairs), groups.iter().map(|group| group.to_vec()).collect());
        self.0.or_find(meeting, || Ok::<_, Infallible>(Some(find()))).ok().flatten().unwrap_or_else(all)
    }
}

/// Returns the indices of the representative groups, given the communicating rank pairs; `None` if a route is missing.
fn that_stand_for_all(router: &Router<'_>, pairs: &BTreeSet<(u32, u32)>, groups: &[&[NodeId]]) -> Option<Vec<usize>> {
    let ways: Vec<Ways> = groups.iter().map(|group| Ways::of(router, pairs, group)).collect::<Option<_>>()?;
    let mut known: Vec<Form<'_>> = Vec::new();
    let mut standing = Vec::new();
    for set in sets_that_meet(&ways) {
        let form = Form::of(router, &ways, &set);
        if !known.contains(&form) {
            known.push(form);
            standing.extend(set);
        }
    }
    Some(standing)
}

/// Returns the communicating rank pairs; `None` for in-network operations or too many pairs.
fn pairs(generator: &dyn Generate) -> Option<BTreeSet<(u32, u32)>> {
    let mut pairs = BTreeSet::default();
    let mut scratch = Program::default();
    let symmetry = generator.symmetry();
    for rank in symmetry.standing(generator.header().call.ranks) {
        let mut last = None;
        let program = generator.read(rank, &mut scratch);
        if program.is_cut() {
            return None;
        }
        for run in program.runs().iter().filter(|run| run.kind.is_transfer()) {
            if run.kind.is_multicast() || pairs.len() > MOST_PAIRS {
                return None;
            }
            for peer in (0..run.peer.steps_apart(run.len)).map(|i| run.peer.at(i)) {
                if last.replace(peer) != Some(peer) {
                    pairs.insert((rank, Rank(peer)));
                }
            }
        }
    }
    if pairs.len().saturating_mul(symmetry.turns() as usize) > MOST_PAIRS {
        return None;
    }
    let turned = |turn| pairs.iter().map(move |&(rank, peer)| (turn, rank, peer));
    let turned = (0..symmetry.turns()).flat_map(turned);
    Some(turned.map(|(turn, rank, peer)| (symmetry.turned(rank, turn).0, symmetry.turned(peer, turn).0)).collect())
}

/// Routes of a group.
struct Ways {
    /// Route summaries of each pair, forward and back.
    summaries: Vec<Summary>,
    /// Number of routes that cross each link, in either direction.
    crossing: FxHashMap<LinkId, u32>,
}

impl Ways {
    /// Finds the routes of all pairs; `None` if a route is missing.
    fn of(router: &Router<'_>, pairs: &BTreeSet<(u32, u32)>, group: &[NodeId]) -> Option<Self> {
        let mut ways = Self { summaries: Vec::with_capacity(2 * pairs.len()), crossing: FxHashMap::default() };
        let mut hops = Vec::new();
        for &(rank, peer) in pairs {
            let (&own, &other) = (group.get(rank as usize)?, group.get(peer as usize)?);
            for (from, to) in [(own, other), (other, own)] {
                hops.clear();
                ways.summaries.push(router.route_into(from, to, 0, &mut hops).ok()?);
                for hop in &hops {
                    *ways.crossing.entry(hop.link).or_default() += 1;
                }
            }
        }
        Some(ways)
    }
}

/// Partitions groups, by index, into sets that share links, directly or through other groups of the set.
fn sets_that_meet(ways: &[Ways]) -> Vec<Vec<usize>> {
    let mut set_of_link: FxHashMap<LinkId, usize> = FxHashMap::default();
    let mut sets: Vec<Vec<usize>> = Vec::new();
    for (group, own) in ways.iter().enumerate() {
        let met: BTreeSet<usize> = own.crossing.keys().filter_map(|link| set_of_link.get(link).copied()).collect();
        let number = met.first().copied().unwrap_or(sets.len());
        if number == sets.len() {
            sets.push(Vec::new());
        }
        let mut joined = Vec::new();
        for &set in &met {
            joined.extend(sets.get_mut(set).map(std::mem::take).unwrap_or_default());
        }
        if let Some(set) = sets.get_mut(number) {
            *set = joined;
            set.push(group);
        }
        set_of_link.values_mut().filter(|set| met.contains(set)).for_each(|set| *set = number);
        set_of_link.extend(own.crossing.keys().map(|&link| (link, number)));
    }
    sets.retain(|set| !set.is_empty());
    sets
}

/// Signature by which sets of groups are compared.
#[derive(PartialEq)]
struct Form<'a> {
    /// Route summaries of each group.
    ways: Vec<&'a [Summary]>,
    /// Bandwidth of each link and number of routes that cross it, sorted.
    links: Vec<(Option<Bandwidth>, u32)>,
}

impl<'a> Form<'a> {
    fn of(router: &Router<'_>, ways: &'a [Ways], set: &[usize]) -> Self {
        let mut crossing: FxHashMap<LinkId, u32> = FxHashMap::default();
        let of_set = || set.iter().filter_map(|&group| ways.get(group));
        for (&link, times) in of_set().flat_map(|one| &one.crossing) {
            *crossing.entry(link).or_default() += times;
        }
        let rate = |link: LinkId| router.fabric().link(link).bandwidth;
        let mut links: Vec<(Option<Bandwidth>, u32)> =
            crossing.into_iter().map(|(link, times)| (rate(link), times)).collect();
        links.sort_unstable();
        Self { ways: of_set().map(|one| one.summaries.as_slice()).collect(), links }
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::{BufferUse, Call, Collective, Header, Protocol};
    use fabricast_topologies::route::RouteOptions;
    use fabricast_topologies::{Bytes, FabricRequest, load};

    use super::*;
    use crate::algorithm::{Algorithm, Shape, generator};

    /// Returns the representatives of groups of four GPUs on eight hosts.
    fn standing(network: &str, groups: &[[usize; 4]]) -> Vec<usize> {
        let network = Some(network.parse().unwrap());
        let request = FabricRequest { nodes: Some(8), network, ..FabricRequest::of("hgx-h100") };
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
        Standing::default().of(&router, ring.as_ref(), &groups).to_vec()
    }

    /// Wrapper that hides a generator's symmetry.
    struct Silent<'a>(&'a dyn Generate);

    impl Generate for Silent<'_> {
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
            let found = pairs(one.as_ref()).unwrap();
            assert_eq!(Some(&found), pairs(&Silent(one.as_ref())).as_ref(), "{algorithm:?}");
            assert!(found.len() >= ranks as usize - 1);
        }
    }

    #[test]
    fn groups_that_share_links_form_one_set() {
        // Two groups on every other host, on neighbouring GPUs.
        let groups = [0, 1, 2, 3].map(|number| [0, 2, 4, 6].map(|host| 8 * (host + number / 2) + number % 2));
        // Rails with a NIC per GPU; one NIC per host; leaf switches below a spine that all groups cross.
        assert_eq!(standing("rail,nics_per_node=8,nic=400Gb/s", &groups), [0]);
        assert_eq!(standing("rail,nics_per_node=1,nic=400Gb/s", &groups), [0, 1]);
        assert_eq!(standing("fat_tree,nics_per_node=1,nic=400Gb/s,radix=4", &groups), [0, 1, 2, 3]);
    }

    /// Sets that share no links and differ: the third resembles the first, but changes rails on its route.
    #[test]
    fn dissimilar_groups_represent_themselves() {
        let groups = [[0, 8, 16, 24], [33, 41, 49, 57], [34, 42, 50, 59], [4, 5, 6, 7]];
        assert_eq!(standing("rail,nics_per_node=8,nic=400Gb/s", &groups), [0, 2, 3]);
    }
}
