//! What the calls of groups take, all groups of a dimension at once.
//!
//! [`plan`](crate::plan::plan) says what the best strategies take for one group; then the groups that share anything with it run them together
//! ([`fabricast_sim::simulate_together`]), since they do so in the job: those of the same NVLink domain where the group does not leave it,
//! and of others that are wired otherwise; else all groups of the cluster (of very large ones those on the same hosts), less those that others stand for. The time
//! is that of the last to end, and the pick is what takes the least then. Times are kept, by what was asked, so that jobs on the
//! same fabric share them.
//!
//! Groups over many hosts are asked about once for all sizes that are near each other: the strategy is that of the next power
//! of two. For calls larger than [`looked_at`] strategies are looked for at that size, and the fast ones of them compared at their own.
//! Sizes between hosts are rounded to parts that channels divide evenly, and of large calls parts are timed, to which the rest adds
//! in proportion (`sample`): within 1 % of the call itself, and some 5 % where loops of chunks get in each other's way, for a
//! hundredth of the work.

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

/// A call among the groups of a dimension, all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exchange {
    /// Whose groups.
    pub dimension: Dimension,
    /// What they call.
    pub collective: Collective,
    /// The size, as `--bytes` counts it.
    pub bytes: Bytes,
}

/// Who knows what calls take.
pub trait Tariff: Sync {
    /// The time of a call.
    ///
    /// # Errors
    /// [`PlanError`]: no strategy for it, or one that cannot run.
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError>;

    /// What a call holds of its GPUs meanwhile; nothing, where that is not known.
    ///
    /// # Errors
    /// As [`Self::time`].
    fn claim(&self, _layout: &Layout, _exchange: Exchange) -> Result<Claim, PlanError> {
        Ok(Claim::default())
    }

    /// Whether calls of two dimensions would wait for each other's bytes, were they made at once; not, where that is not known.
    fn meet(&self, _layout: &Layout, _one: Dimension, _other: Dimension) -> bool {
        false
    }
}

/// From so many ranks on in groups that leave their NVLink domain.
const MANY: usize = 16;

/// Bytes for each rank of groups of many from which on a ring's chunks take several times what its steps take besides: about 20 µs over
/// a 400 Gb/s NIC.
pub(super) const LOOKED_AT: u64 = 1 << 20;

/// Up to so many ranks of a group what bounds its calls is searched.
const MOST_BOUNDED: usize = 64;

/// Beyond so many ranks only the groups that share hosts with the first run together: what the others load on the core of a
/// network that is oversubscribed is not counted then.
const MOST_TOGETHER: usize = 4096;

/// What is asked of the groups of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asked {
    groups: GroupShape,
    collective: Collective,
    bytes: Bytes,
    /// What may be used.
    allowed: Collectives,
}

impl Asked {
    /// The same of a call of another size.
    fn of(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }
}

/// Ranks by domain and by host.
type Form = [Vec<usize>; 2];

/// Whether ranks are numbered as the fabric numbers its GPUs, with none between them left out.
pub(super) fn are_in_order(router: &Router<'_>, ranks: &[NodeId]) -> bool {
    let gpus = router.fabric().gpus();
    let first = gpus.iter().position(|gpu| Some(gpu) == ranks.first()).unwrap_or_default();
    gpus.get(first..).is_some_and(|from| from.starts_with(ranks))
}

/// Times by plan and simulation.
pub struct Simulated<'a> {
    pub(super) router: &'a Router<'a>,
    pub(super) profile: &'a Profile,
    pub(super) ranks: &'a [NodeId],
    /// The number that the fabric gives each GPU, where ranks are in another order.
    numbers: Option<FxHashMap<NodeId, u32>>,
    known: Kept<Asked, Timed>,
    /// What groups of many take, by the size at which strategies were compared.
    picked: Kept<Asked, Timed>,
    /// What was timed.
    timed: Kept<Asked, Timed>,
    /// The same of parts of calls, and of calls of fewer ranks.
    pub(super) parts: Kept<Part, Picos>,
    /// How busy rings keep the busiest link between domains, by the first of so many groups.
    pub(super) busiest: Kept<(Vec<NodeId>, usize, Partners), f64>,
    /// What calls of groups that leave their domain take at least.
    least: Kept<Asked, Picos>,
    /// Which groups stand for others.
    pub(super) standing: Standing,
    /// How hosts are wired.
    forms: OnceLock<HostForms>,
    /// Of each group that was asked about, with its devices in this order.
    bounds: Mutex<FxHashMap<Vec<NodeId>, Arc<Bounds>>>,
}

/// What a call takes, and how it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Timed {
    time: Picos,
    /// `None` where nothing is to be done.
    strategy: Option<Strategy>,
}

/// Answers that were worked out before.
pub(super) struct Kept<K, T>(Mutex<FxHashMap<K, T>>);

impl<K, T> Default for Kept<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, T: Clone> Kept<K, T> {
    /// The answer that is known, or that `find` finds now; of nothing found nothing is kept. Two threads may work out the
    /// same; they find the same.
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

/// What a job may use of it.
pub struct Allowed<'a> {
    simulated: &'a Simulated<'a>,
    collectives: Collectives,
}

impl<'a> Simulated<'a> {
    /// Of the devices of all ranks.
    #[must_use]
    pub fn new(router: &'a Router<'a>, profile: &'a Profile, ranks: &'a [NodeId]) -> Self {
        let numbers = (!are_in_order(router, ranks)).then(|| router.fabric().gpus().iter().copied().zip(0..).collect());
        let (known, picked, timed, parts, busiest, least, standing, forms, bounds) = Default::default();
        Self { router, profile, ranks, numbers, known, picked, timed, parts, busiest, least, standing, forms, bounds }
    }

    /// Of some of the same fabric's devices alone.
    #[must_use]
    pub fn on<'b>(&self, ranks: &'b [NodeId]) -> Simulated<'b>
    where
        'a: 'b,
    {
        Simulated::new(self.router, self.profile, ranks)
    }

    /// For a job that may use so much.
    #[must_use]
    pub fn allowing(&'a self, collectives: Collectives) -> Allowed<'a> {
        Allowed { simulated: self, collectives }
    }

    pub(crate) fn devices(&self, group: &[u32]) -> Vec<NodeId> {
        group.iter().filter_map(|&rank| self.ranks.get(rank as usize).copied()).collect()
    }

    /// The devices of a group as a library orders them: it finds its rings and trees on the machine, wherever a scheduler put which
    /// rank (NCCL 2.30.7 src/graph/search.cc), so what a call takes hangs on the set of GPUs. Those who hand over to neighbours stay
    /// as they are numbered.
    pub(super) fn members(&self, group: &[u32], collective: Collective) -> Vec<NodeId> {
        let mut devices = self.devices(group);
        if let (Some(numbers), false) = (&self.numbers, collective == Collective::SendRecv) {
            devices.sort_by_key(|device| numbers.get(device).copied());
        }
        devices
    }

    /// The islands of a group, each once.
    pub(crate) fn islands(&self, devices: &[NodeId]) -> Vec<u32> {
        let mut islands: Vec<u32> = devices.iter().map(|&device| self.router.island_of(device)).collect();
        islands.sort_unstable();
        islands.dedup();
        islands
    }

    /// Those that share the fabric with the first, which stands for all: one that leaves its NVLink domain where there is one.
    pub(super) fn together(&self, groups: &[Vec<u32>], collective: Collective) -> Vec<Vec<NodeId>> {
        let placed: Vec<Vec<NodeId>> = groups.iter().map(|group| self.members(group, collective)).collect();
        let islands: Vec<Vec<u32>> = placed.iter().map(|devices| self.islands(devices)).collect();
        match islands.iter().position(|of| of.len() > 1) {
            Some(first) => {
                let (before, from) = placed.split_at(first);
                let all: Vec<Vec<NodeId>> = from.iter().chain(before).cloned().collect();
                if self.ranks.len() <= MOST_TOGETHER { all } else { self.on_the_hosts_of_the_first(all) }
            }
            // Those of a domain do what those of another do, unless somebody placed them.
            None if self.numbers.is_some() => placed,
            None => self.of_unlike_domains(placed),
        }
    }

    /// Groups that stay in their domains, of one domain of each kind: those of a domain do what those of another do that is wired alike.
    fn of_unlike_domains(&self, groups: Vec<Vec<NodeId>>) -> Vec<Vec<NodeId>> {
        let fabric = self.router.fabric();
        let domain = |group: &Vec<NodeId>| group.first().map(|&device| self.router.island_of(device));
        let mut forms: FxHashMap<Option<u32>, BTreeSet<Option<u32>>> = FxHashMap::default();
        for group in &groups {
            let of_hosts = group.iter().map(|&device| self.host_forms().form(fabric.node(device).host));
            forms.entry(domain(group)).or_default().extend(of_hosts);
        }
        // The first domain of each kind, in the order of their groups.
        let mut standing: FxHashMap<&BTreeSet<Option<u32>>, Option<u32>> = FxHashMap::default();
        let stands = |group: &Vec<NodeId>| {
            let of = domain(group);
            forms.get(&of).is_some_and(|forms| *standing.entry(forms).or_insert(of) == of)
        };
        let stands: Vec<bool> = groups.iter().map(stands).collect();
        groups.into_iter().zip(stands).filter_map(|(group, stands)| stands.then_some(group)).collect()
    }

    /// How hosts are wired. (Two threads wait for one.)
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

    /// What a call of these groups takes at least, by the [`Bounds`] of the group that stands for all; `None` where that
    /// group does not leave its domain, so that its price is quickly known.
    fn least(&self, groups: &[Vec<u32>], (collective, bytes): (Collective, Bytes)) -> Option<Picos> {
        let parties = self.together(groups, collective);
        let first = parties.first().filter(|first| self.leaves_its_domain(first))?;
        // Of a large call what is added to the part that is timed is no less than nothing.
        let bytes = self.sample(first, bytes).last();
        let (ranks, buffers) = (first.len() as u32, BufferUse::OutOfPlace);
        let call = Call { collective, bytes, ranks, root: Rank(0), buffers };
        Some(self.bounds(first).of(&call).time)
    }

    /// The same of a call as it is.
    fn price_whole(&self, parties: &[Vec<NodeId>], asked: Asked) -> Result<Timed, PlanError> {
        let Asked { collective, bytes, allowed, .. } = asked;
        match self.differ(parties) {
            true => self.price_each(parties, asked),
            false => self.best(parties, (collective, bytes), allowed),
        }
    }

    /// The same where groups differ: each does what is best for groups of its form, and the slowest is what is told.
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

    /// Whether groups are of several forms, since somebody placed them.
    fn differ(&self, parties: &[Vec<NodeId>]) -> bool {
        self.numbers.is_some() && parties.windows(2).any(|pair| self.form(&pair[0]) != self.form(&pair[1]))
    }

    /// How many ranks of a group each of its domains has, and each of its hosts: what strategies hang on.
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

    /// Whether a group is of more than one NVLink domain.
    pub(super) fn leaves_its_domain(&self, group: &[NodeId]) -> bool {
        self.islands(group).len() > 1
    }

    /// How far the groups of a dimension go: as far as any of them.
    fn reach(&self, groups: &[Vec<u32>]) -> Reach {
        match groups.iter().any(|group| self.leaves_its_domain(&self.devices(group))) {
            true => Reach::Beyond,
            false => Reach::Inside,
        }
    }

    /// What a call that is done this way holds of its GPUs.
    pub(super) fn claim_of(&self, layout: &Layout, exchange: Exchange, strategy: &Strategy) -> Claim {
        let reach = self.reach(&layout.groups(exchange.dimension));
        Claim::of(strategy, &exchange, layout.size(exchange.dimension), reach)
    }

    /// Whether a group is of many ranks beyond one NVLink domain.
    pub(super) fn is_spread(&self, group: &[NodeId]) -> bool {
        group.len() > MANY && self.leaves_its_domain(group)
    }

    /// What no call of a group beats. (Two threads may work out the same.)
    pub(super) fn bounds(&self, group: &[NodeId]) -> Arc<Bounds> {
        let known = self.bounds.lock().unwrap_or_else(PoisonError::into_inner).get(group).cloned();
        known.unwrap_or_else(|| {
            // Searching what bounds many takes longer than simulating the ways that it would rule out.
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

    /// No more than [`Tariff::time`] says, and mostly at hand sooner: what no schedule can beat, of groups that leave their
    /// domain; of others the time itself.
    ///
    /// # Errors
    /// As [`Tariff::time`].
    pub(super) fn least(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        let (asked, Exchange { dimension, collective, bytes }) = (self.asked(layout, exchange), exchange);
        let bound = || Ok(self.simulated.least(&layout.groups(dimension), (collective, bytes)));
        match self.simulated.least.or_find(asked, bound)? {
            Some(least) => Ok(least),
            None => self.time(layout, exchange),
        }
    }

    /// Calls with their strategies and times.
    ///
    /// # Errors
    /// As [`Tariff::time`].
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
