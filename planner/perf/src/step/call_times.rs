//! Completion time of calls with all groups of a dimension concurrent.
//!
//! [`plan`](fabricast_search::plan::plan) times candidate strategies for one group. The groups that share resources with it are
//! then simulated concurrently ([`fabricast_sim::simulate_concurrent`]), as they run in the job. If the group stays
//! inside an NVLink domain, these are the groups of that domain and of one domain of each other wiring. Otherwise they
//! are all groups of the cluster (above [`MAX_CONCURRENT_RANKS`] ranks those on the same hosts), less those that a
//! representative covers. The time is that of the last group to end, and the pick is the strategy with the least such
//! time. Results are cached by query, so jobs on the same fabric share them.
//!
//! Groups over many hosts share one strategy per size class: the one selected at the next power of two. For calls
//! larger than [`search_bytes`], candidates are selected at that size and the fast ones are compared at the actual size.
//! Message sizes between hosts are rounded so that channels divide them evenly. Of large calls, parts are timed and the
//! rest is extrapolated linearly (`size_sampling`): within 1 % of the whole call, or about 5 % where chunk loops
//! interfere, at a hundredth of the cost.

mod near;
mod picks;

use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Rank};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, NodeId, Picos};
use rustc_hash::{FxHashMap, FxHashSet};

use super::concurrent_calls::CallWithStrategy;
use super::host_classes::HostClasses;
use super::interference::{CallExtent, SmUsage};
use super::large_group_candidates::TimingMethod;
use super::link_sharing::Representatives;
use super::rank_scaling::Pattern;
use super::size_sampling::PartKey;
use super::step_calls::{StepCall, TimedCall};
use super::stream_overlap;
use fabricast_collectives::bound::Bounds;
use fabricast_collectives::strategy::Strategy;
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{CollectiveCandidates, Dimension, GroupShape, Layout};
use picks::search_bytes;

/// Call of all groups of a dimension at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exchange {
    /// Dimension whose groups make the call.
    pub dimension: Dimension,
    /// The collective.
    pub collective: Collective,
    /// Message size, by the convention of `--bytes`.
    pub bytes: Bytes,
}

/// Communication cost model: completion times of calls.
pub trait CommunicationCostModel: Sync {
    /// Returns the completion time of a call.
    ///
    /// # Errors
    /// [`PlanError`]: there is no strategy for the call, or it cannot run.
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError>;

    /// Returns the SM usage of a call; the default (no usage) if the model does not know it.
    ///
    /// # Errors
    /// See [`Self::time`].
    fn sm_usage(&self, _layout: &Layout, _exchange: Exchange) -> Result<SmUsage, PlanError> {
        Ok(SmUsage::default())
    }

    /// Returns true if concurrent calls of two dimensions would share links; false if the model does not know.
    fn share_links(&self, _layout: &Layout, _one: Dimension, _other: Dimension) -> bool {
        false
    }
}

/// Group size above which a group that leaves its NVLink domain counts as large.
const LARGE_GROUP_RANKS: usize = 16;

/// Bytes per rank, in large groups, above which the transfer time of a ring's chunks is several times its other step
/// costs: about 20 µs over a 400 Gb/s NIC.
pub(super) const SEARCH_BYTES_PER_RANK: u64 = 1 << 20;

/// Largest group size for which the bounds are searched.
const MAX_BOUNDED_RANKS: usize = 64;

/// Cluster size in ranks above which only groups that share hosts with the first are simulated concurrently. The load
/// of the other groups on an oversubscribed core is ignored then.
const MAX_CONCURRENT_RANKS: usize = 4096;

/// Query for the groups of a dimension; a cache key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CallQuery {
    groups: GroupShape,
    collective: Collective,
    bytes: Bytes,
    /// Collectives that the job allows.
    allowed: CollectiveCandidates,
}

impl CallQuery {
    /// Variant of the query with another message size.
    fn with_bytes(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }
}

/// Sorted rank counts, by NVLink domain and by host.
type RankCounts = [Vec<usize>; 2];

/// Returns true if the ranks are consecutive GPUs in the fabric's numbering.
pub(super) fn are_in_order(router: &Router<'_>, ranks: &[NodeId]) -> bool {
    let gpus = router.fabric().gpus();
    let first = gpus.iter().position(|gpu| Some(gpu) == ranks.first()).unwrap_or_default();
    gpus.get(first..).is_some_and(|from| from.starts_with(ranks))
}

/// Communication cost model based on planning and simulation.
pub struct SimulatedCosts<'a> {
    pub(super) router: &'a Router<'a>,
    pub(super) profile: &'a Profile,
    pub(super) ranks: &'a [NodeId],
    /// Fabric number of each GPU; set only if the ranks are in another order.
    numbers: Option<FxHashMap<NodeId, u32>>,
    /// Cache of final answers.
    answers: Cache<CallQuery, TimedStrategy>,
    /// Cache of picks for large groups, by the size at which strategies were compared.
    picks: Cache<CallQuery, TimedStrategy>,
    /// Cache of times of calls as they are.
    timed: Cache<CallQuery, TimedStrategy>,
    /// Cache of times of parts of calls and of calls of fewer ranks.
    pub(super) parts: Cache<PartKey, Picos>,
    /// Cache of the load of the busiest link between domains, by first group, number of groups and communication
    /// pattern.
    pub(super) busiest_links: Cache<(Vec<NodeId>, usize, Pattern), f64>,
    /// Cache of lower bounds of calls of groups that leave their domain.
    lower_bounds: Cache<CallQuery, Picos>,
    /// Cache of representative groups.
    pub(super) representatives: Representatives,
    /// Host classes by wiring, computed on first use.
    host_classes: OnceLock<HostClasses>,
    /// Cache of bounds, by the devices of a group in order.
    bounds: Mutex<FxHashMap<Vec<NodeId>, Arc<Bounds>>>,
}

/// Completion time and strategy of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct TimedStrategy {
    time: Picos,
    /// `None` if the call has nothing to do.
    strategy: Option<Strategy>,
}

/// Thread-safe cache of results by query.
pub(super) struct Cache<K, T>(Mutex<FxHashMap<K, T>>);

impl<K, T> Default for Cache<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, T: Clone> Cache<K, T> {
    /// Returns the cached result or computes it with `compute`. A result of `None` is not cached. Two threads may
    /// compute the same result concurrently.
    pub(super) fn get_or_compute<E>(
        &self,
        key: K,
        compute: impl FnOnce() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if cached.is_some() {
            return Ok(cached);
        }
        let result = compute()?;
        if let Some(result) = &result {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, result.clone());
        }
        Ok(result)
    }
}

/// Communication cost model restricted to the collectives that a job allows.
pub struct RestrictedCosts<'a> {
    simulated: &'a SimulatedCosts<'a>,
    collectives: CollectiveCandidates,
}

impl<'a> SimulatedCosts<'a> {
    /// Creates a cost model for the devices of all ranks.
    #[must_use]
    pub fn new(router: &'a Router<'a>, profile: &'a Profile, ranks: &'a [NodeId]) -> Self {
        let numbers = (!are_in_order(router, ranks)).then(|| router.fabric().gpus().iter().copied().zip(0..).collect());
        let (answers, picks, timed, parts, busiest_links, lower_bounds, representatives, host_classes, bounds) =
            Default::default();
        Self {
            router,
            profile,
            ranks,
            numbers,
            answers,
            picks,
            timed,
            parts,
            busiest_links,
            lower_bounds,
            representatives,
            host_classes,
            bounds,
        }
    }

    /// Creates a cost model for other ranks on the same fabric.
    #[must_use]
    pub fn for_ranks<'b>(&self, ranks: &'b [NodeId]) -> SimulatedCosts<'b>
    where
        'a: 'b,
    {
        SimulatedCosts::new(self.router, self.profile, ranks)
    }

    /// Returns the cost model restricted to `collectives`.
    #[must_use]
    pub fn restricted_to(&'a self, collectives: CollectiveCandidates) -> RestrictedCosts<'a> {
        RestrictedCosts { simulated: self, collectives }
    }

    pub(crate) fn devices(&self, group: &[u32]) -> Vec<NodeId> {
        group.iter().filter_map(|&rank| self.ranks.get(rank as usize).copied()).collect()
    }

    /// Returns the devices of a group in the library's order. A library finds its rings and trees on the machine, no
    /// matter which rank the scheduler placed where (NCCL 2.30.7 src/graph/search.cc), so the time depends only on the
    /// set of GPUs. Groups that transfer to neighbours (`SendRecv`) keep their order.
    pub(super) fn ordered_devices(&self, group: &[u32], collective: Collective) -> Vec<NodeId> {
        let mut devices = self.devices(group);
        if let (Some(numbers), false) = (&self.numbers, collective == Collective::SendRecv) {
            devices.sort_by_key(|device| numbers.get(device).copied());
        }
        devices
    }

    /// Returns the NVLink domains of a group, sorted and without duplicates.
    pub fn islands(&self, devices: &[NodeId]) -> Vec<u32> {
        let mut islands: Vec<u32> = devices.iter().map(|&device| self.router.island_of(device)).collect();
        islands.sort_unstable();
        islands.dedup();
        islands
    }

    /// Returns the groups that run concurrently on shared resources, starting with the representative: the first group
    /// that leaves its NVLink domain, if there is one.
    pub(super) fn concurrent_groups(&self, groups: &[Vec<u32>], collective: Collective) -> Vec<Vec<NodeId>> {
        let placed: Vec<Vec<NodeId>> = groups.iter().map(|group| self.ordered_devices(group, collective)).collect();
        let islands: Vec<Vec<u32>> = placed.iter().map(|devices| self.islands(devices)).collect();
        match islands.iter().position(|domains| domains.len() > 1) {
            Some(first) => {
                let (before, from) = placed.split_at(first);
                let all: Vec<Vec<NodeId>> = from.iter().chain(before).cloned().collect();
                if self.ranks.len() <= MAX_CONCURRENT_RANKS { all } else { self.groups_on_first_hosts(all) }
            }
            // All domains behave alike, unless a scheduler placed the ranks.
            None if self.numbers.is_some() => placed,
            None => self.one_domain_per_wiring(placed),
        }
    }

    /// Returns the groups of one domain of each wiring, for groups that stay inside their domains.
    fn one_domain_per_wiring(&self, groups: Vec<Vec<NodeId>>) -> Vec<Vec<NodeId>> {
        let fabric = self.router.fabric();
        let domain = |group: &Vec<NodeId>| group.first().map(|&device| self.router.island_of(device));
        let mut wirings: FxHashMap<Option<u32>, BTreeSet<Option<u32>>> = FxHashMap::default();
        for group in &groups {
            let classes = group.iter().map(|&device| self.host_classes().class(fabric.node(device).host));
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

    /// Host classes by wiring. (Initialized once; other threads wait.)
    pub(super) fn host_classes(&self) -> &HostClasses {
        self.host_classes.get_or_init(|| HostClasses::new(self.router.fabric()))
    }

    fn groups_on_first_hosts(&self, groups: Vec<Vec<NodeId>>) -> Vec<Vec<NodeId>> {
        let host = |device: &NodeId| self.router.fabric().node(*device).host;
        let hosts: FxHashSet<_> = groups.iter().take(1).flatten().map(host).collect();
        groups.into_iter().filter(|group| group.iter().any(|device| hosts.contains(&host(device)))).collect()
    }

    fn time_call(&self, groups: &[Vec<u32>], query: CallQuery) -> Result<TimedStrategy, PlanError> {
        let CallQuery { collective, bytes, .. } = query;
        let device_groups = self.concurrent_groups(groups, collective);
        let Some(first) = device_groups.first() else { return Ok(TimedStrategy::default()) };
        let sample = self.sample(first, bytes);
        let sampled_bytes = sample.largest();
        if self.is_large_group(first) && !self.has_unequal_rank_counts(&device_groups) {
            let (selected_bytes, pick) = self.select_strategy(&device_groups, query.with_bytes(sampled_bytes))?;
            let time = pick.strategy.map_or(Ok(Picos::ZERO), |strategy| {
                let call = CallWithStrategy { collective, bytes, strategy };
                let part_time = |bytes| {
                    self.interpolate_time(
                        &device_groups,
                        &CallWithStrategy { bytes, ..call },
                        selected_bytes,
                        pick.time,
                    )
                };
                self.sampled_streaming_time(&device_groups, &call).unwrap_or_else(|| sample.extrapolate(part_time))
            });
            return Ok(TimedStrategy { time: time?, strategy: pick.strategy });
        }
        let time_at = |bytes| {
            let query = query.with_bytes(bytes);
            Ok(self
                .timed
                .get_or_compute(query, || self.time_unsampled_call(&device_groups, query).map(Some))?
                .unwrap_or_default())
        };
        let time = sample.extrapolate(|bytes| time_at(bytes).map(|timed| timed.time))?;
        let strategy = time_at(sampled_bytes)?.strategy;
        Ok(TimedStrategy { time, strategy })
    }

    /// Lower bound on the completion time of a call, from the [`Bounds`] of the representative group. `None` if that
    /// group does not leave its domain: its time is then cheap to compute.
    fn lower_bound(&self, groups: &[Vec<u32>], collective: Collective, bytes: Bytes) -> Option<Picos> {
        let device_groups = self.concurrent_groups(groups, collective);
        let first = device_groups.first().filter(|first| self.spans_domains(first))?;
        // The extrapolated rest of a large call adds at least zero.
        let bytes = self.sample(first, bytes).largest();
        let (ranks, buffers) = (first.len() as u32, BufferUse::OutOfPlace);
        let call = Call { collective, bytes, ranks, root: Rank(0), buffers };
        Some(self.bounds(first).bound(&call).time)
    }

    /// Times a call at its own size, without sampling.
    fn time_unsampled_call(&self, groups: &[Vec<NodeId>], query: CallQuery) -> Result<TimedStrategy, PlanError> {
        let CallQuery { collective, bytes, allowed, .. } = query;
        match self.has_unequal_rank_counts(groups) {
            true => self.time_by_rank_counts(groups, query),
            false => self.best(groups, collective, bytes, allowed),
        }
    }

    /// Variant of [`Self::time_unsampled_call`] for groups of different forms: each form gets its own best strategy, and the
    /// slowest group determines the time.
    fn time_by_rank_counts(&self, groups: &[Vec<NodeId>], query: CallQuery) -> Result<TimedStrategy, PlanError> {
        let CallQuery { collective, bytes, allowed, .. } = query;
        let mut picks: FxHashMap<RankCounts, Option<Strategy>> = FxHashMap::default();
        let mut calls = Vec::with_capacity(groups.len());
        for devices in groups {
            let counts = self.rank_counts(devices);
            let strategy = match picks.get(&counts) {
                Some(known) => *known,
                None => {
                    let max_bytes = if self.is_large_group(devices) { search_bytes(devices.len()) } else { Bytes::MAX };
                    let candidates =
                        self.candidates(&TimingMethod::ALL, devices, collective, bytes.min(max_bytes), allowed)?;
                    *picks.entry(counts).or_insert(candidates.first().map(|&(_, strategy)| strategy))
                }
            };
            calls.extend(
                strategy.map(|strategy| {
                    (CallWithStrategy { collective, bytes, strategy }, devices.as_slice(), Picos::ZERO)
                }),
            );
        }
        let times = self.concurrent_end_times(&calls)?;
        let slowest = times.into_iter().zip(&calls).max_by_key(|&(time, _)| time);
        Ok(slowest.map_or_else(TimedStrategy::default, |(time, call)| TimedStrategy {
            time,
            strategy: Some(call.0.strategy),
        }))
    }

    /// Returns true if groups have different forms because a scheduler placed the ranks.
    fn has_unequal_rank_counts(&self, groups: &[Vec<NodeId>]) -> bool {
        self.numbers.is_some() && groups.windows(2).any(|pair| self.rank_counts(&pair[0]) != self.rank_counts(&pair[1]))
    }

    /// Rank counts of a group by domain and by host, which determine the available strategies.
    fn rank_counts(&self, devices: &[NodeId]) -> RankCounts {
        let counts = |location: &dyn Fn(NodeId) -> u32| {
            let mut locations: Vec<u32> = devices.iter().map(|&device| location(device)).collect();
            locations.sort_unstable();
            let mut counts: Vec<usize> = locations.chunk_by(|a, b| a == b).map(<[u32]>::len).collect();
            counts.sort_unstable();
            counts
        };
        let fabric = self.router.fabric();
        [counts(&|device| self.router.island_of(device)), counts(&|device| fabric.node(device).host.0)]
    }

    /// Returns true if a group spans several NVLink domains.
    pub(super) fn spans_domains(&self, group: &[NodeId]) -> bool {
        self.islands(group).len() > 1
    }

    /// Extent of the groups of a dimension: beyond the domain if any of them leaves it.
    fn extent(&self, groups: &[Vec<u32>]) -> CallExtent {
        match groups.iter().any(|group| self.spans_domains(&self.devices(group))) {
            true => CallExtent::Beyond,
            false => CallExtent::Inside,
        }
    }

    /// SM usage of a call with a given strategy.
    pub(super) fn strategy_sm_usage(&self, layout: &Layout, exchange: Exchange, strategy: &Strategy) -> SmUsage {
        let extent = self.extent(&layout.groups(exchange.dimension));
        SmUsage::new(strategy, &exchange, layout.size(exchange.dimension), extent)
    }

    /// Returns true if a group is large (more than [`LARGE_GROUP_RANKS`] ranks) and spans NVLink domains.
    pub(super) fn is_large_group(&self, group: &[NodeId]) -> bool {
        group.len() > LARGE_GROUP_RANKS && self.spans_domains(group)
    }

    /// Cached lower bounds of a group. (Two threads may compute the same bounds concurrently.)
    pub(super) fn bounds(&self, group: &[NodeId]) -> Arc<Bounds> {
        let cached = self.bounds.lock().unwrap_or_else(PoisonError::into_inner).get(group).cloned();
        cached.unwrap_or_else(|| {
            // For large groups, searching the bounds takes longer than simulating the candidates that they would rule
            // out.
            let bounds = if group.len() > MAX_BOUNDED_RANKS { Bounds::from_parts } else { Bounds::new };
            let bounds = Arc::new(bounds(self.router.fabric(), self.router, group, 0));
            self.bounds.lock().unwrap_or_else(PoisonError::into_inner).insert(group.to_vec(), Arc::clone(&bounds));
            bounds
        })
    }
}

impl RestrictedCosts<'_> {
    fn query(&self, layout: &Layout, Exchange { dimension, collective, bytes }: Exchange) -> CallQuery {
        CallQuery { groups: layout.shape(dimension), collective, bytes, allowed: self.collectives }
    }

    fn timed(&self, layout: &Layout, exchange: Exchange) -> Result<TimedStrategy, PlanError> {
        let query = self.query(layout, exchange);
        let compute = || self.simulated.time_call(&layout.groups(exchange.dimension), query).map(Some);
        Ok(self.simulated.answers.get_or_compute(query, compute)?.unwrap_or_default())
    }

    /// Lower bound on [`CommunicationCostModel::time`] that is usually cheaper to compute: the schedule-independent bound for groups
    /// that leave their domain, otherwise the time itself.
    ///
    /// # Errors
    /// See [`CommunicationCostModel::time`].
    pub(super) fn lower_bound(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        let (query, Exchange { dimension, collective, bytes }) = (self.query(layout, exchange), exchange);
        let compute = || Ok(self.simulated.lower_bound(&layout.groups(dimension), collective, bytes));
        match self.simulated.lower_bounds.get_or_compute(query, compute)? {
            Some(lower_bound) => Ok(lower_bound),
            None => self.time(layout, exchange),
        }
    }

    /// Returns calls with their strategies and times. Calls with nothing to do are omitted.
    ///
    /// # Errors
    /// See [`CommunicationCostModel::time`].
    pub fn timed_calls(&self, layout: &Layout, calls: &[StepCall]) -> Result<Vec<TimedCall>, PlanError> {
        let mut timed = Vec::with_capacity(calls.len());
        for &call in calls {
            let TimedStrategy { time, strategy } = self.timed(layout, call.exchange)?;
            timed.extend(strategy.map(|strategy| TimedCall { call, strategy, time }));
        }
        Ok(timed)
    }
}

impl CommunicationCostModel for RestrictedCosts<'_> {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        Ok(self.timed(layout, exchange)?.time)
    }

    fn sm_usage(&self, layout: &Layout, exchange: Exchange) -> Result<SmUsage, PlanError> {
        let strategy = self.timed(layout, exchange)?.strategy;
        Ok(strategy
            .map_or_else(SmUsage::default, |strategy| self.simulated.strategy_sm_usage(layout, exchange, &strategy)))
    }

    fn share_links(&self, layout: &Layout, one: Dimension, other: Dimension) -> bool {
        let SimulatedCosts { router, ranks, .. } = *self.simulated;
        stream_overlap::share_links(router, ranks, layout, one, other)
    }
}

#[cfg(test)]
mod tests;
