//! Placement of ranks on devices: groups in the library's order, their NVLink domains, and the groups whose calls are
//! concurrent on shared resources.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use fabricast_sim::schedule::Collective;
use fabricast_topologies::route::Router;
use fabricast_topologies::{Fabric, NodeId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::host_classes::HostClasses;
use super::nvlink_peers::NvlinkPeers;
use super::sm_usage::CallExtent;

/// Number of ranks above which a group that leaves its NVLink domain counts as large.
const LARGE_GROUP_RANKS: usize = 16;

/// Number of ranks of the cluster above which only groups that share hosts with the first are simulated concurrently.
/// The load of the other groups on an oversubscribed core is then ignored.
const MAX_CONCURRENT_RANKS: usize = 4096;

/// Numbers of ranks of a group in each NVLink domain and on each host, sorted. They determine the available strategies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RankCounts {
    by_domain: Vec<usize>,
    by_host: Vec<usize>,
}

/// Placement of all ranks on the devices of a fabric.
pub(super) struct Placement<'a> {
    router: &'a Router<'a>,
    /// Device of each rank, indexed by rank.
    ranks: &'a [NodeId],
    /// Fabric number of each GPU; `None` if the ranks are in the fabric's order.
    numbers: Option<FxHashMap<NodeId, u32>>,
    /// Host classes by wiring, computed on first use.
    host_classes: OnceLock<HostClasses>,
    nvlink_peers: Arc<NvlinkPeers>,
}

impl<'a> Placement<'a> {
    /// Creates the placement of ranks on these devices.
    pub(super) fn new(router: &'a Router<'a>, ranks: &'a [NodeId]) -> Self {
        let is_in_order = is_consecutive(router.fabric().gpus(), ranks);
        let numbers = (!is_in_order).then(|| router.fabric().gpus().iter().copied().zip(0..).collect());
        Self { router, ranks, numbers, host_classes: OnceLock::new(), nvlink_peers: Arc::default() }
    }

    pub(super) fn router(&self) -> &'a Router<'a> {
        self.router
    }

    pub(super) fn nvlink_peers(&self) -> &Arc<NvlinkPeers> {
        &self.nvlink_peers
    }

    pub(super) fn fabric(&self) -> &'a Fabric {
        self.router.fabric()
    }

    pub(super) fn ranks(&self) -> &'a [NodeId] {
        self.ranks
    }

    /// Returns true if the ranks are consecutive GPUs in the fabric's numbering.
    pub(super) fn is_in_fabric_order(&self) -> bool {
        self.numbers.is_none()
    }

    /// Returns true if the cluster has so many ranks that only some of the concurrent groups are simulated.
    pub(super) fn exceeds_concurrent_ranks(&self) -> bool {
        self.ranks.len() > MAX_CONCURRENT_RANKS
    }

    /// Returns the devices of a group, in rank order.
    pub(super) fn devices(&self, group: &[u32]) -> Vec<NodeId> {
        group.iter().filter_map(|&rank| self.ranks.get(rank as usize).copied()).collect()
    }

    /// Returns the devices of a group in the library's order. A library determines its rings and trees from the
    /// machine, independent of the placement of ranks (NCCL 2.30.7 src/graph/search.cc), so the time depends only on
    /// the set of GPUs. Groups that transfer data to neighbours (`SendRecv`) stay in rank order.
    pub(super) fn ordered_devices(&self, group: &[u32], collective: Collective) -> Vec<NodeId> {
        let mut devices = self.devices(group);
        if let (Some(numbers), false) = (&self.numbers, collective == Collective::SendRecv) {
            devices.sort_by_key(|device| numbers.get(device).copied());
        }
        devices
    }

    /// Returns the numbers of the NVLink domains that contain these devices, sorted and without duplicates.
    pub(super) fn islands(&self, devices: &[NodeId]) -> Vec<u32> {
        let mut islands: Vec<u32> = devices.iter().map(|&device| self.router.island_of(device)).collect();
        islands.sort_unstable();
        islands.dedup();
        islands
    }

    /// Returns true if the devices of a group are in several NVLink domains.
    pub(super) fn spans_domains(&self, group: &[NodeId]) -> bool {
        self.islands(group).len() > 1
    }

    /// Returns true if a group is large (more than [`LARGE_GROUP_RANKS`] ranks) and spans NVLink domains.
    pub(super) fn is_large_group(&self, group: &[NodeId]) -> bool {
        group.len() > LARGE_GROUP_RANKS && self.spans_domains(group)
    }

    /// Returns the extent of the calls of these groups: [`CallExtent::Beyond`] if any group leaves its NVLink domain.
    pub(super) fn extent(&self, groups: &[Vec<u32>]) -> CallExtent {
        match groups.iter().any(|group| self.spans_domains(&self.devices(group))) {
            true => CallExtent::Beyond,
            false => CallExtent::Inside,
        }
    }

    /// Returns the lengths of the sequences of consecutive ranks in one NVLink domain, in rank order.
    pub(super) fn ranks_by_domain(&self, group: &[NodeId]) -> Vec<usize> {
        let islands: Vec<u32> = group.iter().map(|&device| self.router.island_of(device)).collect();
        islands.chunk_by(|a, b| a == b).map(<[u32]>::len).collect()
    }

    /// Returns the numbers of ranks of a group by NVLink domain and by host.
    pub(super) fn rank_counts(&self, devices: &[NodeId]) -> RankCounts {
        let counts = |location: &dyn Fn(NodeId) -> u32| {
            let mut locations: Vec<u32> = devices.iter().map(|&device| location(device)).collect();
            locations.sort_unstable();
            let mut counts: Vec<usize> = locations.chunk_by(|a, b| a == b).map(<[u32]>::len).collect();
            counts.sort_unstable();
            counts
        };
        RankCounts {
            by_domain: counts(&|device| self.router.island_of(device)),
            by_host: counts(&|device| self.fabric().node(device).host.0),
        }
    }

    /// Returns true if the groups have different numbers of ranks per domain or host, which happens if a scheduler
    /// placed the ranks.
    pub(super) fn has_unequal_rank_counts(&self, groups: &[Vec<NodeId>]) -> bool {
        !self.is_in_fabric_order()
            && groups.windows(2).any(|pair| self.rank_counts(&pair[0]) != self.rank_counts(&pair[1]))
    }

    /// Returns the wiring classes of the hosts, which are computed on the first call; concurrent callers wait.
    pub(super) fn host_classes(&self) -> &HostClasses {
        self.host_classes.get_or_init(|| HostClasses::new(self.router.fabric()))
    }

    /// Returns the groups that run concurrently on shared resources. The representative is first: the first group that
    /// leaves its NVLink domain, if there is one. If no group leaves its domain, the groups are those of one domain of
    /// each wiring. Otherwise they are all groups of the cluster or, in clusters of more than [`MAX_CONCURRENT_RANKS`]
    /// ranks, those on the hosts of the representative.
    pub(super) fn concurrent_groups(&self, groups: &[Vec<u32>], collective: Collective) -> Vec<Vec<NodeId>> {
        let placed: Vec<Vec<NodeId>> = groups.iter().map(|group| self.ordered_devices(group, collective)).collect();
        match placed.iter().position(|devices| self.spans_domains(devices)) {
            Some(first) => {
                let (before, from) = placed.split_at(first);
                let all: Vec<Vec<NodeId>> = from.iter().chain(before).cloned().collect();
                if self.exceeds_concurrent_ranks() { self.groups_on_first_hosts(all) } else { all }
            }
            // All domains behave alike, unless a scheduler placed the ranks.
            None if self.is_in_fabric_order() => self.one_domain_per_wiring(placed),
            None => placed,
        }
    }

    /// Returns the groups of one domain of each wiring, for groups that stay inside their domains.
    fn one_domain_per_wiring(&self, groups: Vec<Vec<NodeId>>) -> Vec<Vec<NodeId>> {
        let domain = |group: &Vec<NodeId>| group.first().map(|&device| self.router.island_of(device));
        let mut wirings: FxHashMap<Option<u32>, BTreeSet<Option<u32>>> = FxHashMap::default();
        for group in &groups {
            let classes = group.iter().map(|&device| self.host_classes().class(self.fabric().node(device).host));
            wirings.entry(domain(group)).or_default().extend(classes);
        }
        // First domain of each wiring, in group order.
        let mut representatives: FxHashMap<&BTreeSet<Option<u32>>, Option<u32>> = FxHashMap::default();
        let is_representative = |group: &Vec<NodeId>| {
            let group_domain = domain(group);
            let wiring = wirings.get(&group_domain);
            wiring.is_some_and(|wiring| *representatives.entry(wiring).or_insert(group_domain) == group_domain)
        };
        let is_representative: Vec<bool> = groups.iter().map(is_representative).collect();
        let groups = groups.into_iter().zip(is_representative);
        groups.filter_map(|(group, is_representative)| is_representative.then_some(group)).collect()
    }

    fn groups_on_first_hosts(&self, groups: Vec<Vec<NodeId>>) -> Vec<Vec<NodeId>> {
        let host = |device: &NodeId| self.fabric().node(*device).host;
        let hosts: FxHashSet<_> = groups.iter().take(1).flatten().map(host).collect();
        groups.into_iter().filter(|group| group.iter().any(|device| hosts.contains(&host(device)))).collect()
    }
}

/// Returns true if `ranks` is a contiguous part of `gpus`.
fn is_consecutive(gpus: &[NodeId], ranks: &[NodeId]) -> bool {
    let first = gpus.iter().position(|gpu| Some(gpu) == ranks.first()).unwrap_or_default();
    gpus.get(first..).is_some_and(|from| from.starts_with(ranks))
}
