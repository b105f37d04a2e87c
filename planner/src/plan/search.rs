//! The search: bound every candidate, simulate those that can still win, keep the best and the best of another kind.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Setting;
use fabricast_sim::profile::{LaneSpeed, Passes, ProtocolCosts};
use fabricast_sim::schedule::{Call, Collective, Matrix, Rank};
use fabricast_sim::{Surroundings, Timeline, simulate};
use fabricast_topologies::{Bytes, Picos};
use rayon::prelude::*;

use super::{Busiest, Effort, Plan, PlanError, PlanRequest, Preference, Priced, Row, default, preference, ranges};
use crate::abilities::Abilities;
use crate::algorithm::facts::{Count, Toll, toll};
use crate::algorithm::{self, Algorithm, Shape, Unsupported};
use crate::bound::{Bound, Bounds, Efficiency, InNetwork, Sharing, least_traffic};
use crate::library::Chooser;
use crate::strategy::{Strategy, candidates, possible};

/// How the outside follows a search.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watcher<'a> {
    /// Set from outside to stop.
    pub interrupt: Option<&'a AtomicBool>,
    /// Rows done so far.
    pub rows_done: Option<&'a AtomicUsize>,
}

/// Finds the best strategy for every collective and size; of several collectives, those for which the restriction leaves
/// nothing are left out. Rows are independent and run on all threads of the current
/// rayon pool; the result does not depend on their number.
///
/// # Errors
/// [`PlanError`]: nothing to choose from, or a simulation that cannot run.
pub fn plan(request: &PlanRequest<'_>, watcher: Watcher<'_>) -> Result<Plan, PlanError> {
    let bounds = Bounds::new(request.fabric, request.router, request.placement, request.root)
        .with(request.restriction.in_network);
    let abilities = Abilities::of(
        request.fabric,
        request.router,
        request.placement,
        request.ranks_per_node,
        request.restriction.in_network,
    );
    let cells: Vec<(Collective, Bytes)> =
        request.collectives.iter().flat_map(|&c| sizes(request, c).iter().map(move |&bytes| (c, bytes))).collect();
    let found: Vec<Result<(Row, Option<String>), PlanError>> = cells
        .par_iter()
        .map(|&(collective, bytes)| {
            let search = Search::new(request, abilities, &bounds, collective, bytes);
            let row = search.run(watcher).and_then(|row| default::add(&search, row, watcher));
            let row = row.map(|(row, unknown)| (preference::settle(row, request.restriction), unknown));
            if let Some(done) = watcher.rows_done {
                done.fetch_add(1, Ordering::Relaxed);
            }
            row
        })
        .collect();
    let mut rows = Vec::with_capacity(found.len());
    let mut left_out: Vec<(Collective, PlanError)> = Vec::new();
    let mut library_unknown: Vec<String> = Vec::new();
    for row in found {
        match row {
            Ok((row, unknown)) => {
                rows.push(row);
                library_unknown.extend(unknown.filter(|reason| !library_unknown.contains(reason)));
            }
            // One of several collectives may be beyond the restriction; the others are still wanted.
            Err(error @ PlanError::NothingToChoose { collective, .. }) => {
                if left_out.iter().all(|(known, _)| *known != collective) {
                    left_out.push((collective, error));
                }
            }
            Err(error) => return Err(error),
        }
    }
    if let (true, Some((_, error))) = (rows.is_empty(), left_out.first()) {
        return Err(error.clone());
    }
    Ok(Plan {
        fabric: request.fabric.name().to_owned(),
        profile: request.profile.name.clone(),
        ranks: request.placement.len() as u32,
        ranges: ranges::merge(&rows),
        library: request.library.map(Chooser::library),
        library_unknown,
        rows,
        left_out: left_out.into_iter().map(|(collective, error)| (collective, error.to_string())).collect(),
    })
}

/// The sizes of the rows of a collective.
fn sizes<'a>(request: &PlanRequest<'a>, collective: Collective) -> &'a [Bytes] {
    if collective == Collective::Barrier { &[Bytes(0)] } else { request.sizes }
}

pub(super) struct Search<'a> {
    pub(super) request: &'a PlanRequest<'a>,
    pub(super) abilities: Abilities,
    pub(super) call: Call,
    /// Of an all_to_allv, as large as the call.
    matrix: Option<Matrix>,
    bounds: Cow<'a, Bounds>,
    bound: Bound,
}

impl<'a> Search<'a> {
    fn new(
        request: &'a PlanRequest<'a>,
        abilities: Abilities,
        bounds: &'a Bounds,
        collective: Collective,
        bytes: Bytes,
    ) -> Self {
        let matrix = request.matrix.filter(|_| collective == Collective::AllToAllV).map(|matrix| matrix.scaled(bytes));
        let call = Call {
            collective,
            // An empty matrix is empty at every size.
            bytes: matrix.as_ref().map_or(bytes, Matrix::total),
            ranks: request.placement.len() as u32,
            root: Rank(request.root),
            buffers: request.buffers,
        };
        let bounds = match &matrix {
            Some(matrix) => Cow::Owned(bounds.clone().with_matrix(Some(matrix))),
            None => Cow::Borrowed(bounds),
        };
        let bound = bounds.of(&call);
        Self { request, abilities, call, matrix, bounds, bound }
    }

    fn run(&self, watcher: Watcher<'_>) -> Result<Row, PlanError> {
        let mut order: Vec<(Picos, Strategy)> =
            candidates(self.call.collective, &self.abilities, self.request.restriction)
                .into_iter()
                .chain(default::candidate(self))
                .map(|strategy| (self.least_time(strategy), strategy))
                .collect();
        order.sort_by_key(|&(least, strategy)| (least, strategy));
        order.dedup();
        let mut rejected = Vec::new();
        let mut simulated: Vec<Vec<Priced>> = Vec::new();
        for (least, strategy) in order {
            if self.request.effort == Effort::Contenders && !can_matter(least, strategy, &simulated) {
                continue;
            }
            match self.price(strategy, watcher)? {
                Ok(priced) => keep(&mut simulated, priced),
                Err(why) => rejected.push((strategy, why)),
            }
        }
        let mut pairs: Vec<Priced> = simulated.iter().filter_map(|pair| best(pair)).collect();
        pairs.sort_by_key(|p| (p.time, p.strategy));
        let mut fastest = pairs.iter().copied();
        let Some(pick) = fastest.next() else {
            let possible = possible(self.call.collective, &self.abilities);
            return Err(PlanError::NothingToChoose { collective: self.call.collective, rejected, possible });
        };
        Ok(Row {
            collective: self.call.collective,
            bytes: self.call.bytes,
            size: self.matrix.as_ref().map_or(self.call.bytes, Matrix::size),
            pick,
            preference: Preference::Fastest,
            runner_up: fastest.next(),
            bound: self.bound.clone(),
            pairs,
            library_default: None,
        })
    }

    /// Less than this no run of the strategy takes: start-up, a step, and the bytes through the fabric, through the
    /// channels at the protocol's rate, or those that the algorithm's busiest rank sends through its port; or as many steps
    /// as the algorithm takes one after the other.
    fn least_time(&self, strategy: Strategy) -> Picos {
        let profile = self.request.profile;
        let costs = profile.protocol(strategy.protocol);
        let links = profile.links;
        let best_link = [links.nvlink, links.c2c, links.pcie, links.upi, links.network].into_iter().fold(0.0, f64::max);
        let efficiency = Efficiency { wire: costs.wire_efficiency, links: best_link };
        let fabric = self.bounds.reached(&self.call, strategy.algorithm.in_network(), efficiency);
        let first_byte = self.bounds.first_byte();
        let lanes = first_byte + Picos(self.lanes(strategy) as u64);
        let step = if self.call.ranks > 1 { costs.least_software() } else { Picos::ZERO };
        let count = Count::on_hosts(self.call.ranks, self.request.ranks_per_node);
        // Between ranks of one device a step has no latency, and what they send passes no port.
        let Toll { steps, sent } = match self.bounds.sharing() {
            Sharing::None => toll(strategy.algorithm, self.call.collective, count),
            Sharing::Some => Toll::default(),
        };
        let port = first_byte + self.bounds.sending(sent * self.call.bytes.0 as f64, efficiency);
        let steps = Picos(((step + first_byte).0 as f64 * steps) as u64);
        costs.startup + (step + fabric.max(lanes).max(port)).max(steps)
    }

    /// Picoseconds that the channels of all ranks together take for the least that must move. A channel that copies
    /// within its rank besides only takes longer.
    fn lanes(&self, strategy: Strategy) -> f64 {
        let costs = self.request.profile.protocol(strategy.protocol);
        let lane = match costs.lane {
            LaneSpeed::Unlimited => return 0.0,
            LaneSpeed::Rate(lane) => lane.0 as f64,
            LaneSpeed::Passes(passes) => self.fastest_passes(strategy, costs, &passes),
        };
        // What switches copy passes no channel.
        if strategy.algorithm.in_network() == InNetwork::Allowed {
            return 0.0;
        }
        let lanes = f64::from(self.call.ranks) * f64::from(strategy.channels) * lane;
        let least = match &self.matrix {
            Some(matrix) => matrix.crossing().0.into(),
            None => least_traffic(&self.call),
        };
        least as f64 * 1e12 / lanes.max(1.0)
    }

    /// Bytes a second that a block passes at most which works by passes, the first of each operation in its step.
    /// Infinite where operations may be of a single pass.
    fn fastest_passes(&self, strategy: Strategy, costs: &ProtocolCosts, passes: &Passes) -> f64 {
        let chunk = strategy.chunk.or(costs.chunk).map_or(0, |chunk| chunk.0) as f64;
        let per_loop = chunk * f64::from(strategy.channels) * f64::from(self.call.ranks);
        let loops = (self.call.bytes.0 as f64 / per_loop.max(1.0)).floor();
        // Trees stream in pieces smaller than chunks.
        if strategy.algorithm == Algorithm::Tree || loops < 2.0 {
            return f64::INFINITY;
        }
        let threads = strategy.threads.unwrap_or(costs.threads);
        let quantum = passes.bytes_per_thread.0 as f64 * f64::from(threads);
        let seconds = passes.send.min(passes.forward).0 as f64 * 1e-12;
        // In loops of chunks there is no operation of less than half a chunk, but in the last.
        let seconds_a_byte = (seconds * (1.0 / quantum - 2.0 / chunk)).max(0.0) * (loops - 1.0) / loops;
        1.0 / seconds_a_byte
    }

    pub(super) fn price(
        &self,
        strategy: Strategy,
        watcher: Watcher<'_>,
    ) -> Result<Result<Priced, Unsupported>, PlanError> {
        let request = self.request;
        let shape = Shape {
            grid: request.fabric.host_grid().to_vec(),
            matrix: self.matrix.clone(),
            ..strategy.shape(self.call, request.profile, request.ranks_per_node, &self.abilities)
        };
        let generator = match algorithm::generator(strategy.algorithm, &shape) {
            Ok(generator) => generator,
            Err(why) => return Ok(Err(why)),
        };
        let setting = Setting {
            fabric: request.fabric,
            router: request.router,
            placement: request.placement,
            profile: request.profile,
            delays: &[],
        };
        let watch = Watch { interrupt: watcher.interrupt, ..Watch::default() };
        let timeline =
            simulate(generator.as_ref(), setting, request.mode, Surroundings::default(), watch).map_err(|source| {
                PlanError::Simulation {
                    strategy,
                    collective: self.call.collective,
                    bytes: self.call.bytes,
                    source: source.into(),
                }
            })?;
        Ok(Ok(self.priced(strategy, &timeline)))
    }

    fn priced(&self, strategy: Strategy, timeline: &Timeline) -> Priced {
        let (low, high) = timeline.band.around(timeline.time);
        Priced {
            strategy,
            time: timeline.time,
            // Whatever software saves, nothing beats the bound.
            low: low.max(self.bound.time).min(timeline.time),
            high,
            busiest: Busiest::of(timeline),
        }
    }
}

/// Whether a strategy that takes at least `least` could still be the pick or the runner-up.
fn can_matter(least: Picos, strategy: Strategy, simulated: &[Vec<Priced>]) -> bool {
    // Whatever else is simulated of a pair, what it is kept for takes no longer than this.
    let faster = |pair: &&Vec<Priced>| worth_of(pair).is_some_and(|longest| longest < least);
    let own = |pair: &&Vec<Priced>| pair.iter().any(|p| same_pair(p.strategy, strategy));
    simulated.iter().filter(faster).count() < 2 && !simulated.iter().filter(faster).any(|pair| own(&pair))
}

fn same_pair(a: Strategy, b: Strategy) -> bool {
    (a.algorithm, a.protocol) == (b.algorithm, b.protocol)
}

/// A channel is a thread block that the application does without: more of them must be faster by this part.
const CHANNELS_WORTH: f64 = 0.01;

/// Keeps the best of each algorithm and protocol: the fewest channels that come within [`CHANNELS_WORTH`] of the fastest.
fn keep(pairs: &mut Vec<Vec<Priced>>, priced: Priced) {
    match pairs.iter_mut().find(|pair| pair.iter().any(|p| same_pair(p.strategy, priced.strategy))) {
        Some(pair) => pair.push(priced),
        None => pairs.push(vec![priced]),
    }
}

/// The longest time for which fewer channels are preferred.
fn worth_of(pair: &[Priced]) -> Option<Picos> {
    let fastest = pair.iter().map(|p| p.time).min()?;
    Some(Picos((fastest.0 as f64 * (1.0 + CHANNELS_WORTH)) as u64))
}

fn best(pair: &[Priced]) -> Option<Priced> {
    let limit = worth_of(pair)?;
    pair.iter().filter(|p| p.time <= limit).min_by_key(|p| (p.strategy.channels, p.time, p.strategy)).copied()
}
