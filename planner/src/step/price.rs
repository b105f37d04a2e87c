//! Completion time of calls with all groups of a dimension concurrent.
//!
//! [`plan`](crate::plan::plan) times candidate strategies for one group. The groups that share resources with it are
//! then simulated concurrently ([`fabricast_sim::simulate_together`]), as they run in the job. If the group stays
//! inside an NVLink domain, these are the groups of that domain and of one domain of each other wiring. Otherwise they
//! are all groups of the cluster (above [`MOST_TOGETHER`] ranks those on the same hosts), less those that a
//! representative covers. The time is that of the last group to end, and the pick is the strategy with the least such
//! time. Results are cached by query, so jobs on the same fabric share them.
//!
//! Groups over many hosts share one strategy per size class: the one selected at the next power of two. For calls
//! larger than [`looked_at`], candidates are selected at that size and the fast ones are compared at the actual size.
//! Message sizes between hosts are rounded so that channels divide them evenly. Of large calls, parts are timed and the
//! rest is extrapolated linearly (`sample`): within 1 % of the whole call, or about 5 % where chunk loops interfere, at
//! a hundredth of the cost.

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

use super::calls::{PricedCall, StepCall};
use super::fewer::Partners;
use super::forms::HostForms;
use super::meeting::Standing;
use super::of_many::Kind;
use super::rows;
use super::sample::Part;
use super::slowing::{Claim, Reach};
use super::together::Planned;
use crate::bound::Bounds;
use crate::job::{Collectives, Dimension, GroupShape, Layout};
use crate::plan::PlanError;
use crate::strategy::Strategy;
use picks::looked_at;

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
pub trait Tariff: Sync {
    /// Returns the completion time of a call.
    ///
    /// # Errors
    /// [`PlanError`]: there is no strategy for the call, or it cannot run.
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError>;

    /// Returns the SM usage of a call; the default (no usage) if the model does not know it.
    ///
    /// # Errors
    /// See [`Self::time`].
    fn claim(&self, _layout: &Layout, _exchange: Exchange) -> Result<Claim, PlanError> {
        Ok(Claim::default())
    }

    /// Returns true if concurrent calls of two dimensions would share links; false if the model does not know.
    fn meet(&self, _layout: &Layout, _one: Dimension, _other: Dimension) -> bool {
        false
    }
}

/// Group size above which a group that leaves its NVLink domain counts as large.
const MANY: usize = 16;

/// Bytes per rank, in large groups, above which the transfer time of a ring's chunks is several times its other step
/// costs: about 20 µs over a 400 Gb/s NIC.
pub(super) const LOOKED_AT: u64 = 1 << 20;

/// Largest group size for which the bounds are searched.
const MOST_BOUNDED: usize = 64;

/// Cluster size in ranks above which only groups that share hosts with the first are simulated concurrently. The load
/// of the other groups on an oversubscribed core is ignored then.
const MOST_TOGETHER: usize = 4096;

/// Query for the groups of a dimension; a cache key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asked {
    groups: GroupShape,
    collective: Collective,
    bytes: Bytes,
    /// Collectives that the job allows.
    allowed: Collectives,
}

impl Asked {
    /// Variant of the query with another message size.
    fn of(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }
}

/// Sorted rank counts, by NVLink domain and by host.
type Form = [Vec<usize>; 2];

/// Returns true if the ranks are consecutive GPUs in the fabric's numbering.
pub(super) fn are_in_order(router: &Router<'_>, ranks: &[NodeId]) -> bool {
    let gpus = router.fabric().gpus();
    let first = gpus.iter().position(|gpu| Some(gpu) == ranks.first()).unwrap_or_default();
    gpus.get(first..).is_some_and(|from| from.starts_with(ranks))
}

/// Communication cost model based on planning and simulation.
pub struct Simulated<'a> {
    pub(super) router: &'a Router<'a>,
    pub(super) profile: &'a Profile,
    pub(super) ranks: &'a [NodeId],
    /// Fabric number of each GPU; set only if the ranks are in another order.
    numbers: Option<FxHashMap<NodeId, u32>>,
    /// Cache of final answers.
    known: Kept<Asked, Timed>,
    /// Cache of picks for large groups, by the size at which strategies were compared.
    picked: Kept<Asked, Timed>,
    /// Cache of times of calls as they are.
    timed: Kept<Asked, Timed>,
    /// Cache of times of parts of calls and of calls of fewer ranks.
    pub(super) parts: Kept<Part, Picos>,
    /// Cache of the load of the busiest link between domains, by first group, number of groups and communication
    /// pattern.
    pub(super) busiest: Kept<(Vec<NodeId>, usize, Partners), f64>,
    /// Cache of lower bounds of calls of groups that leave their domain.
    least: Kept<Asked, Picos>,
    /// Cache of representative groups.
    pub(super) standing: Standing,
    /// Host classes by wiring, computed on first use.
    forms: OnceLock<HostForms>,
    /// Cache of bounds, by the devices of a group in order.
    bounds: Mutex<FxHashMap<Vec<NodeId>, Arc<Bounds>>>,
}

/// Completion time and strategy of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Timed {
    time: Picos,
    /// `None` if the call has nothing to do.
    strategy: Option<Strategy>,
}

/// Thread-safe cache of results by query.
pub(super) struct Kept<K, T>(Mutex<FxHashMap<K, T>>);

impl<K, T> Default for Kept<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, T: Clone> Kept<K, T> {
    /// Returns the cached result or computes it with `find`. A result of `None` is not cached. Two threads may compute
    /// the same result concurrently.
    pub(super) fn or_find<E>(&self, asked: K, find: impl FnOnce() -> Result<Option<T>, E>) -> Result<Option<T>, E> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&asked).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let found = find()?;
        if let Some(found) = &found {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(asked, found.clone());
        }
        Ok(found)
    }
}

/// Communication cost model restricted to the collectives that a job allows.
pub struct Allowed<'a> {
    simulated: &'a Simulated<'a>,
    collectives: Collectives,
}

impl<'a> Simulated<'a> {
    /// Creates a cost model for the devices of all ranks.
    #[must_use]
    pub fn new(router: &'a Router<'a>, profile: &'a Profile, ranks: &'a [NodeId]) -> Self {
        let numbers = (!are_in_order(router, ranks)).then(|| router.fabric().gpus().iter().copied().zip(0..).collect());
        let (known, picked, timed, parts, busiest, least, standing, forms, bounds) = Default::default();
        Self { router, profile, ranks, numbers, known, picked, timed, parts, busiest, least, standing, forms, bounds }
    }

    /// Creates a cost model for other ranks on the same fabric.
    #[must_use]
    pub fn on<'b>(&self, ranks: &'b [NodeId]) -> Simulated<'b>
    where
        'a: 'b,
    {
        Simulated::new(self.router, self.profile, ranks)
    }

    /// Returns the cost model restricted to `collectives`.
    #[must_use]
    pub fn allowing(&'a self, collectives: Collectives) -> Allowed<'a> {
        Allowed { simulated: self, collectives }
    }

    pub(crate) fn devices(&self, group: &[u32]) -> Vec<NodeId> {
        group.iter().filter_map(|&rank| self.ranks.get(rank as usize).copied()).collect()
    }

    /// Returns the devices of a group in the library's order. A library finds its rings and trees on the machine, no
    /// matter which rank the scheduler placed where (NCCL 2.30.7 src/graph/search.cc), so the time depends only on the
    /// set of GPUs. Groups that transfer to neighbours (`SendRecv`) keep their order.
    pub(super) fn members(&self, group: &[u32], collective: Collective) -> Vec<NodeId> {
        let mut devices = self.devices(group);
        if let (Some(numbers), false) = (&self.numbers, collective == Collective::SendRecv) {
            devices.sort_by_key(|device| numbers.get(device).copied());
        }
        devices
    }

    /// Returns the NVLink domains of a group, sorted and without duplicates.
    pub(crate) fn islands(&self, devices: &[NodeId]) -> Vec<u32> {
        let mut islands: Vec<u32> = devices.iter().map(|&device| self.router.island_of(device)).collect();
        islands.sort_unstable();
        islands.dedup();
        islands
    }

    /// Returns the groups that run concurrently on shared resources, starting with the representative: the first group
    /// that leaves its NVLink domain, if there is one.
    pub(super) fn together(&self, groups: &[Vec<u32>], collective: Collective) -> Vec<Vec<NodeId>> {
        let placed: Vec<Vec<NodeId>> = groups.iter().map(|group| self.members(group, collective)).collect();
        let islands: Vec<Vec<u32>> = placed.iter().map(|devices| self.islands(devices)).collect();
        match islands.iter().position(|of| of.len() > 1) {
            Some(first) => {
                let (before, from) = placed.split_at(first);
                let all: Vec<Vec<NodeId>> = from.iter().chain(before).cloned().collect();
                if self.ranks.len() <= MOST_TOGETHER { all } else { self.on_the_hosts_of_the_first(all) }
            }
            // All domains behave alike, unless a scheduler placed the ranks.
            None if self.numbers.is_some() => placed,
            None => self.of_unlike_domains(placed),
        }
    }

    /// Returns the groups of one domain of each wiring, for groups that stay inside their domains.
    fn of_unlike_domains(&self, groups: Vec<Vec<NodeId>>) -> Vec<Vec<NodeId>> {
        let fabric = self.router.fabric();
        let domain = |group: &Vec<NodeId>| group.first().map(|&device| self.router.island_of(device));
        let mut forms: FxHashMap<Option<u32>, BTreeSet<Option<u32>>> = FxHashMap::default();
        for group in &groups {
            let of_hosts = group.iter().map(|&device| self.host_forms().form(fabric.node(device).host));
            forms.entry(domain(group)).or_default().extend(of_hosts);
        }
        // First domain of each wiring, in group order.
        let mut standing: FxHashMap<&BTreeSet<Option<u32>>, Option<u32>> = FxHashMap::default();
        let stands = |group: &Vec<NodeId>| {
            let of = domain(group);
            forms.get(&of).is_some_and(|forms| *standing.entry(forms).or_insert(of) == of)
        };
        let stands: Vec<bool> = groups.iter().map(stands).collect();
        groups.into_iter().zip(stands).filter_map(|(group, stands)| stands.then_some(group)).collect()
    }

    /// Host classes by wiring. (Initialized once; other threads wait.)
    pub(super) fn host_forms(&self) -> &HostForms {
        self.forms.get_or_init(|| HostForms::of(self.router.fabric()))
    }

    fn on_the_hosts_of_the_first(&self, groups: Vec<Vec<NodeId>>) -> Vec<Vec<NodeId>> {
        let host = |device: &NodeId| self.router.fabric().node(*device).host;
        let hosts: FxHashSet<_> = groups.iter().take(1).flatten().map(host).collect();
        groups.into_iter().filter(|group| group.iter().any(|device| hosts.contains(&host(device)))).collect()
    }

    fn price(&self, groups: &[Vec<u32>], asked: Asked) -> Result<Timed, PlanError> {
        let Asked { collective, bytes, .. } = asked;
        let parties = self.together(groups, collective);
        let Some(first) = parties.first() else { return Ok(Timed::default()) };
        let sample = self.sample(first, bytes);
        let last = sample.last();
        if self.is_spread(first) && !self.differ(&parties) {
            let (at, picked) = self.pick(&parties, asked.of(last))?;
            let time = picked.strategy.map_or(Ok(Picos::ZERO), |strategy| {
                let call = Planned { collective, bytes, strategy };
                let of_part = |bytes| self.near(&parties, &Planned { bytes, ..call }, (at, picked.time));
                self.streamed(&parties, &call).unwrap_or_else(|| sample.time(of_part))
            });
            return Ok(Timed { time: time?, strategy: picked.strategy });
        }
        let at = |bytes| {
            let asked = asked.of(bytes);
            Ok(self.timed.or_find(asked, || self.price_whole(&parties, asked).map(Some))?.unwrap_or_default())
        };
        let time = sample.time(|bytes| at(bytes).map(|timed| timed.time))?;
        let strategy = at(last)?.strategy;
        Ok(Timed { time, strategy })
    }

    /// Lower bound on the completion time of a call, from the [`Bounds`] of the representative group. `None` if that
    /// group does not leave its domain: its time is then cheap to compute.
    fn least(&self, groups: &[Vec<u32>], (collective, bytes): (Collective, Bytes)) -> Option<Picos> {
        let parties = self.together(groups, collective);
        let first = parties.first().filter(|first| self.leaves_its_domain(first))?;
        // The extrapolated rest of a large call adds at least zero.
        let bytes = self.sample(first, bytes).last();
        let (ranks, buffers) = (first.len() as u32, BufferUse::OutOfPlace);
        let call = Call { collective, bytes, ranks, root: Rank(0), buffers };
        Some(self.bounds(first).of(&call).time)
    }

    /// Times a call at its own size, without sampling.
    fn price_whole(&self, parties: &[Vec<NodeId>], asked: Asked) -> Result<Timed, PlanError> {
        let Asked { collective, bytes, allowed, .. } = asked;
        match self.differ(parties) {
            true => self.price_each(parties, asked),
            false => self.best(parties, (collective, bytes), allowed),
        }
    }

    /// Variant of [`Self::price_whole`] for groups of different forms: each form gets its own best strategy, and the
    /// slowest group determines the time.
    fn price_each(&self, parties: &[Vec<NodeId>], asked: Asked) -> Result<Timed, PlanError> {
        let Asked { collective, bytes, allowed, .. } = asked;
        let mut picks: FxHashMap<Form, Option<Strategy>> = FxHashMap::default();
        let mut calls = Vec::with_capacity(parties.len());
        for devices in parties {
            let form = self.form(devices);
            let strategy = match picks.get(&form) {
                Some(known) => *known,
                None => {
                    let most = if self.is_spread(devices) { looked_at(devices.len()) } else { Bytes::MAX };
                    let ways = self.ways(&Kind::ALL, devices, (collective, bytes.min(most)), allowed)?;
                    *picks.entry(form).or_insert(ways.first().map(|&(_, strategy)| strategy))
                }
            };
            calls.extend(
                strategy.map(|strategy| (Planned { collective, bytes, strategy }, devices.as_slice(), Picos::ZERO)),
            );
        }
        let times = self.together_at(&calls)?;
        let slowest = times.into_iter().zip(&calls).max_by_key(|&(time, _)| time);
        Ok(slowest.map_or_else(Timed::default, |(time, call)| Timed { time, strategy: Some(call.0.strategy) }))
    }

    /// Returns true if groups have different forms because a scheduler placed the ranks.
    fn differ(&self, parties: &[Vec<NodeId>]) -> bool {
        self.numbers.is_some() && parties.windows(2).any(|pair| self.form(&pair[0]) != self.form(&pair[1]))
    }

    /// Rank counts of a group by domain and by host, which determine the available strategies.
    fn form(&self, devices: &[NodeId]) -> Form {
        let counts = |of: &dyn Fn(NodeId) -> u32| {
            let mut places: Vec<u32> = devices.iter().map(|&device| of(device)).collect();
            places.sort_unstable();
            let mut counts: Vec<usize> = places.chunk_by(|a, b| a == b).map(<[u32]>::len).collect();
            counts.sort_unstable();
            counts
        };
        let fabric = self.router.fabric();
        [counts(&|device| self.router.island_of(device)), counts(&|device| fabric.node(device).host.0)]
    }

    /// Returns true if a group spans several NVLink domains.
    pub(super) fn leaves_its_domain(&self, group: &[NodeId]) -> bool {
        self.islands(group).len() > 1
    }

    /// Extent of the groups of a dimension: beyond the domain if any of them leaves it.
    fn reach(&self, groups: &[Vec<u32>]) -> Reach {
        match groups.iter().any(|group| self.leaves_its_domain(&self.devices(group))) {
            true => Reach::Beyond,
            false => Reach::Inside,
        }
    }

    /// SM usage of a call with a given strategy.
    pub(super) fn claim_of(&self, layout: &Layout, exchange: Exchange, strategy: &Strategy) -> Claim {
        let reach = self.reach(&layout.groups(exchange.dimension));
        Claim::of(strategy, &exchange, layout.size(exchange.dimension), reach)
    }

    /// Returns true if a group is large (more than [`MANY`] ranks) and spans NVLink domains.
    pub(super) fn is_spread(&self, group: &[NodeId]) -> bool {
        group.len() > MANY && self.leaves_its_domain(group)
    }

    /// Cached lower bounds of a group. (Two threads may compute the same bounds concurrently.)
    pub(super) fn bounds(&self, group: &[NodeId]) -> Arc<Bounds> {
        let known = self.bounds.lock().unwrap_or_else(PoisonError::into_inner).get(group).cloned();
        known.unwrap_or_else(|| {
            // For large groups, searching the bounds takes longer than simulating the candidates that they would rule
            // out.
            let bounds = if group.len() > MOST_BOUNDED { Bounds::of_parts } else { Bounds::new };
            let bounds = Arc::new(bounds(self.router.fabric(), self.router, group, 0));
            self.bounds.lock().unwrap_or_else(PoisonError::into_inner).insert(group.to_vec(), Arc::clone(&bounds));
            bounds
        })
    }
}

impl Allowed<'_> {
    fn asked(&self, layout: &Layout, Exchange { dimension, collective, bytes }: Exchange) -> Asked {
        Asked { groups: layout.shape(dimension), collective, bytes, allowed: self.collectives }
    }

    fn timed(&self, layout: &Layout, exchange: Exchange) -> Result<Timed, PlanError> {
        let asked = self.asked(layout, exchange);
        let price = || self.simulated.price(&layout.groups(exchange.dimension), asked).map(Some);
        Ok(self.simulated.known.or_find(asked, price)?.unwrap_or_default())
    }

    /// Lower bound on [`Tariff::time`] that is usually cheaper to compute: the schedule-independent bound for groups
    /// that leave their domain, otherwise the time itself.
    ///
    /// # Errors
    /// See [`Tariff::time`].
    pub(super) fn least(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        let (asked, Exchange { dimension, collective, bytes }) = (self.asked(layout, exchange), exchange);
        let bound = || Ok(self.simulated.least(&layout.groups(dimension), (collective, bytes)));
        match self.simulated.least.or_find(asked, bound)? {
            Some(least) => Ok(least),
            None => self.time(layout, exchange),
        }
    }

    /// Returns calls with their strategies and times. Calls with nothing to do are omitted.
    ///
    /// # Errors
    /// See [`Tariff::time`].
    pub fn priced(&self, layout: &Layout, calls: &[StepCall]) -> Result<Vec<PricedCall>, PlanError> {
        let mut priced = Vec::with_capacity(calls.len());
        for &call in calls {
            let Timed { time, strategy } = self.timed(layout, call.exchange)?;
            priced.extend(strategy.map(|strategy| PricedCall { call, strategy, time }));
        }
        Ok(priced)
    }
}

impl Tariff for Allowed<'_> {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        Ok(self.timed(layout, exchange)?.time)
    }

    fn claim(&self, layout: &Layout, exchange: Exchange) -> Result<Claim, PlanError> {
        let strategy = self.timed(layout, exchange)?.strategy;
        Ok(strategy.map_or_else(Claim::default, |strategy| self.simulated.claim_of(layout, exchange, &strategy)))
    }

    fn meet(&self, layout: &Layout, one: Dimension, other: Dimension) -> bool {
        let Simulated { router, ranks, .. } = *self.simulated;
        rows::meet((router, ranks), layout, one, other)
    }
}

#[cfg(test)]
mod tests;
