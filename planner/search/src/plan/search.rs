//! The search: computes a lower bound for every candidate, simulates those that can still win, and returns the best
//! strategy and the best one of another algorithm or protocol.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fabricast_sim::engine::{EngineError, Watch};
use fabricast_sim::profile::PredictionInterval;
use fabricast_sim::schedule::{Call, Collective, Header, TrafficMatrix};
use fabricast_sim::{Folding, SimulateError, SimulationOptions, simulate};
use fabricast_topologies::{Bytes, Picos};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::examination::{ExaminationDepth, Examined};
use super::lower_bounds::LowerBounds;
use super::measured::{self, Measurements};
use super::search_space::omission_reason;
use super::simulated_candidates::SimulatedCandidates;
use super::speculative::{SpeculativeRuns, StrategyRun};
use super::templates::{BlockTemplate, Templates};
use super::{
    Busiest, Effort, LibraryDefault, Plan, PlanError, PlanRequest, Preference, Row, TimedStrategy, library_default,
    outside, preference, ranges, refinement, smoothing,
};
use crate::candidates::candidates;
use fabricast_collectives::algorithm::{self, Shape, Unsupported};
use fabricast_collectives::bound::{Bound, Bounds};
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::strategy::{Strategy, describe_combinations};
use fabricast_libraries::Chooser;

/// Largest number of ranks at which a template is folded for channels with different rank orders. Its use for other
/// sizes and protocols then justifies the cost.
const MAX_TEMPLATE_RANKS: u32 = 1024;

/// Interruption and progress of a search.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watcher<'a> {
    /// Flag set by the caller to stop the search.
    pub interrupt: Option<&'a AtomicBool>,
    /// Number of rows done so far.
    pub rows_done: Option<&'a AtomicUsize>,
}

/// Finds the best strategy for every collective and size. Of several collectives, those for which the restriction
/// leaves no candidate are omitted. Rows are independent and run on all threads of the current rayon pool; the result
/// does not depend on their number.
///
/// # Errors
/// [`PlanError`]: no candidate, or a simulation that cannot run.
pub fn plan(request: &PlanRequest<'_>, watcher: Watcher<'_>) -> Result<Plan, PlanError> {
    plan_with_bounds(request, &rank_bounds(request), &Measurements::NONE, watcher)
}

/// Variant of [`plan`] for tables: uses measured times where they exist, adds rows between the requested sizes where
/// the selected strategy changes, and the library's defaults outside the requested sizes.
///
/// # Errors
/// [`PlanError`], as in [`plan`].
pub fn plan_table(
    request: &PlanRequest<'_>,
    measurements: &Measurements,
    watcher: Watcher<'_>,
) -> Result<Plan, PlanError> {
    let bounds = rank_bounds(request);
    let templates = Templates::new(request, fabric_capabilities(request));
    let planner = RowPlanner { templates: &templates, bounds: &bounds, measurements, watcher };
    let mut plan = planner.plan()?;
    plan.refined_rows = refinement::rows(&planner, &plan.rows)?;
    plan.ranges = ranges::merge(&plan.all_rows());
    plan.outside_ranges = outside::ranges(request, &plan.rows);
    Ok(plan)
}

/// Variant of [`plan_table`] that plans only the requested sizes, with known bounds of the ranks.
///
/// # Errors
/// [`PlanError`], as in [`plan`].
pub fn plan_with_bounds(
    request: &PlanRequest<'_>,
    bounds: &Bounds,
    measurements: &Measurements,
    watcher: Watcher<'_>,
) -> Result<Plan, PlanError> {
    let templates = Templates::new(request, fabric_capabilities(request));
    RowPlanner { templates: &templates, bounds, measurements, watcher }.plan()
}

/// Shared context of the rows of a plan.
pub(super) struct RowPlanner<'a> {
    templates: &'a Templates<'a>,
    bounds: &'a Bounds,
    measurements: &'a Measurements,
    watcher: Watcher<'a>,
}

/// Row, with the reason why the library's default is unknown, if it is.
type RowResult = (Row, Option<String>);

impl<'a> RowPlanner<'a> {
    pub(super) fn request(&self) -> &'a PlanRequest<'a> {
        self.templates.request
    }

    /// Plans the rows of the request.
    fn plan(&self) -> Result<Plan, PlanError> {
        let request = self.request();
        let cells: Vec<(Collective, Bytes)> =
            request.collectives.iter().flat_map(|&c| sizes(request, c).iter().map(move |&bytes| (c, bytes))).collect();
        let results = self.plan_rows(&cells);
        let mut rows = Vec::with_capacity(results.len());
        let mut left_out: Vec<(Collective, PlanError)> = Vec::new();
        let mut library_unknown: Vec<String> = Vec::new();
        for row in results {
            match row {
                Ok((row, unknown)) => {
                    rows.push(row);
                    library_unknown.extend(unknown.filter(|reason| !library_unknown.contains(reason)));
                }
                // The restriction may leave no candidate for one of several collectives; the others are still planned.
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
        // Strategies selected for a library become its table.
        if request.restriction.library.is_some() {
            smoothing::smooth(&mut rows, request.restriction);
        }
        Ok(Plan {
            max_overlap: preference::max_overlap(request.restriction),
            fabric: request.fabric.name().to_owned(),
            profile: request.profile.name.clone(),
            ranks: request.placement.len() as u32,
            ranges: ranges::merge(&rows),
            library: request.library.map(Chooser::library),
            library_unknown,
            rows,
            refined_rows: Vec::new(),
            outside_ranges: Vec::new(),
            left_out: left_out.into_iter().map(|(collective, error)| (collective, error.to_string())).collect(),
        })
    }

    /// Plans a row for each collective and size, on all threads.
    fn plan_rows(&self, cells: &[(Collective, Bytes)]) -> Vec<Result<RowResult, PlanError>> {
        let rows = cells.par_iter().with_max_len(1);
        // A row needs between microseconds and seconds.
        rows.map(|&(collective, bytes)| {
            let row = self.row(collective, bytes);
            if let Some(counter) = self.watcher.rows_done {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            row
        })
        .collect()
    }

    /// Plans rows at additional sizes, without counting progress. Omits those for which the restriction leaves no
    /// candidate.
    pub(super) fn additional_rows(&self, cells: &[(Collective, Bytes)]) -> Result<Vec<Row>, PlanError> {
        let planner = Self { watcher: Watcher { rows_done: None, ..self.watcher }, ..*self };
        let rows = planner.plan_rows(cells).into_iter().filter_map(|row| match row {
            Ok((row, _)) => Some(Ok(row)),
            Err(PlanError::NothingToChoose { .. }) => None,
            Err(error) => Some(Err(error)),
        });
        rows.collect()
    }

    fn row(&self, collective: Collective, bytes: Bytes) -> Result<RowResult, PlanError> {
        let search = self.search(collective, bytes);
        let (row, unknown) = library_default::add(&search, search.run(self.watcher)?, self.watcher)?;
        let row = measured::apply_measurements(&search, row, self.measurements, self.watcher)?;
        Ok((preference::select_default_if_unclear(row, self.request().restriction), unknown))
    }

    /// Plans a row that selects the library's default, if that is known, without examining other candidates.
    pub(super) fn default_row(&self, collective: Collective, bytes: Bytes) -> Result<Option<Row>, PlanError> {
        let search = self.search(collective, bytes);
        let choice = self.request().library.and_then(|chooser| chooser.choose(&search.call).ok());
        let Some(choice) = choice else { return Ok(None) };
        let timed = search.simulate(library_default::normalize_chunk(&search, choice.strategy), self.watcher)?;
        let row = |pick| Row {
            collective,
            bytes,
            size: bytes,
            pick,
            preference: Preference::Fastest,
            fastest: pick,
            runner_up: None,
            bound: search.bound.clone(),
            pairs: vec![pick],
            library_default: Some(LibraryDefault { choice, timed: pick }),
            omitted: Vec::new(),
        };
        Ok(timed.ok().map(row))
    }

    /// Simulates a strategy for a call; `None` if there is no such schedule.
    pub(super) fn simulate(
        &self,
        collective: Collective,
        bytes: Bytes,
        strategy: Strategy,
    ) -> Result<Option<TimedStrategy>, PlanError> {
        let search = self.search(collective, bytes);
        Ok(search.simulate(library_default::normalize_chunk(&search, strategy), self.watcher)?.ok())
    }

    fn search(&self, collective: Collective, bytes: Bytes) -> Search<'_> {
        Search::new(self.templates, self.templates.capabilities, self.bounds, collective, bytes)
    }
}

/// Message sizes of the rows of a collective.
fn sizes<'a>(request: &PlanRequest<'a>, collective: Collective) -> &'a [Bytes] {
    if collective == Collective::Barrier { &[Bytes(0)] } else { request.sizes }
}

/// Returns the lower bound that the search computes for a strategy before it simulates it; `None` if there is no such
/// schedule.
///
/// # Errors
/// [`PlanError`]: a schedule that cannot run on the fabric.
pub fn lower_bound(
    request: &PlanRequest<'_>,
    collective: Collective,
    bytes: Bytes,
    strategy: Strategy,
) -> Result<Option<Picos>, PlanError> {
    let (bounds, abilities) = bounds_and_capabilities(request);
    let templates = Templates::new(request, abilities);
    let search = Search::new(&templates, abilities, &bounds, collective, bytes);
    Ok(search.examine(strategy)?.ok().map(|examined| examined.lower_bound))
}

/// Simulates the given strategies for their calls, on all threads. Strategies without a schedule have the reason
/// instead.
///
/// # Errors
/// [`PlanError`]: a simulation that cannot run.
pub fn simulate_strategies(
    request: &PlanRequest<'_>,
    calls: &[(Collective, Bytes, Strategy)],
    watcher: Watcher<'_>,
) -> Result<Vec<Result<TimedStrategy, Unsupported>>, PlanError> {
    let (bounds, abilities) = bounds_and_capabilities(request);
    let templates = Templates::new(request, abilities);
    let results = calls.par_iter().with_max_len(1).map(|&(collective, bytes, strategy)| {
        let search = Search::new(&templates, abilities, &bounds, collective, bytes);
        search.simulate(library_default::normalize_chunk(&search, strategy), watcher)
    });
    results.collect()
}

fn bounds_and_capabilities(request: &PlanRequest<'_>) -> (Bounds, FabricCapabilities) {
    (rank_bounds(request), fabric_capabilities(request))
}

fn rank_bounds(request: &PlanRequest<'_>) -> Bounds {
    let PlanRequest { fabric, router, placement, root, restriction, .. } = *request;
    Bounds::new(fabric, router, placement, root).with_in_network(restriction.in_network)
}

pub(super) fn fabric_capabilities(request: &PlanRequest<'_>) -> FabricCapabilities {
    let PlanRequest { fabric, router, placement, restriction, ranks_per_node, .. } = *request;
    FabricCapabilities::new(fabric, router, placement, ranks_per_node, restriction.in_network)
}

pub(super) struct Search<'a> {
    pub(super) request: &'a PlanRequest<'a>,
    pub(super) capabilities: FabricCapabilities,
    pub(super) call: Call,
    /// Matrix of an all_to_allv, scaled to the call's size.
    matrix: Option<TrafficMatrix>,
    bounds: Cow<'a, Bounds>,
    bound: Bound,
    templates: &'a Templates<'a>,
}

/// Outcome of the simulation of a strategy.
pub(super) enum Outcome {
    Time(TimedStrategy),
    /// The strategy exceeds the time limit.
    TimeLimitExceeded,
}

impl<'a> Search<'a> {
    fn new(
        templates: &'a Templates<'a>,
        capabilities: FabricCapabilities,
        bounds: &'a Bounds,
        collective: Collective,
        bytes: Bytes,
    ) -> Self {
        let request = templates.request;
        let matrix = request.matrix.filter(|_| collective == Collective::AllToAllV).map(|matrix| matrix.scaled(bytes));
        // An empty matrix remains empty at every size.
        let call = request.call(collective, matrix.as_ref().map_or(bytes, TrafficMatrix::total));
        let bounds = match &matrix {
            Some(matrix) => Cow::Owned(bounds.clone().with_matrix(Some(matrix))),
            None => Cow::Borrowed(bounds),
        };
        let bound = bounds.bound(&call);
        Self { request, capabilities, call, matrix, bounds, bound, templates }
    }

    fn run(&self, watcher: Watcher<'_>) -> Result<Row, PlanError> {
        let PlanRequest { restriction, profile, .. } = *self.request;
        let candidates =
            candidates(self.call.collective, &self.capabilities, restriction, profile.software(), self.call.bytes);
        let candidates = candidates.into_iter().filter(|strategy| self.can_be_selected(strategy));
        let all = candidates.chain(library_default::candidate(self));
        let mut queue: BTreeSet<(Picos, Strategy)> = all.map(|s| (self.lower_bounds().traffic_bound(s), s)).collect();
        let mut examined: FxHashMap<Strategy, Examined> = FxHashMap::default();
        let mut rejected = Vec::new();
        let mut simulated = SimulatedCandidates::default();
        let mut speculative = SpeculativeRuns::default();
        let prune = self.request.effort == Effort::Contenders;
        // Deferred: candidates with more channels than one that is good enough for their pair. Examined again when all
        // others are known.
        let mut deferred: Vec<(Picos, Strategy)> = Vec::new();
        // Pruned: candidates that can neither win nor come second, with their lower bounds. They may still be preferred
        // to more channels.
        let mut pruned: Vec<(Picos, Strategy)> = Vec::new();
        loop {
            let (lower_bound, strategy, time_limit) = if let Some(next) = queue.pop_first() {
                let (lower_bound, strategy) = next;
                if prune && !simulated.may_be_selected(lower_bound, strategy) {
                    pruned.push(next);
                    continue;
                }
                if prune && simulated.is_dominated_by_fewer_channels(lower_bound, strategy) {
                    deferred.push(next);
                    continue;
                }
                (lower_bound, strategy, simulated.time_limit(strategy).filter(|_| prune))
            } else if let Some(index) =
                deferred.iter().position(|&(lower_bound, s)| !simulated.is_dominated_by_fewer_channels(lower_bound, s))
            {
                queue.insert(deferred.remove(index));
                continue;
            } else if let Some(index) =
                deferred.iter().position(|&(lower_bound, _)| simulated.may_be_fastest(lower_bound))
            {
                // Its channels are not worth their cost, but it may be the fastest.
                let (lower_bound, strategy) = deferred.remove(index);
                (lower_bound, strategy, simulated.time_limit(strategy))
            } else if let Some((index, limit)) = simulated.find_preferable_pruned(&pruned).filter(|_| prune) {
                let (lower_bound, strategy) = pruned.remove(index);
                (lower_bound, strategy, Some(limit))
            } else {
                break;
            };
            let known = match examined.entry(strategy) {
                std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => match self.examine_first_rank(strategy)? {
                    Ok(new) => entry.insert(new),
                    Err(reason) => {
                        rejected.push((strategy, reason));
                        continue;
                    }
                },
            };
            if lower_bound < known.lower_bound {
                queue.insert((known.lower_bound, strategy));
                continue;
            }
            if !known.is_whole() {
                match self.refine(strategy, known) {
                    Ok(()) => drop(queue.insert((known.lower_bound, strategy))),
                    Err(error) => rejected.push((strategy, omission_reason(error)?)),
                }
                continue;
            }
            let known_bound = known.lower_bound;
            let run = |run: StrategyRun| match examined.get(&run.strategy) {
                Some(examined) => self.simulate_until(run.strategy, examined, run.time_limit, watcher),
                None => Ok(Outcome::TimeLimitExceeded),
            };
            let outcome = speculative.take_or_run(StrategyRun { strategy, time_limit }, self.call.ranks, run, || {
                let is_ready = |&&(lower_bound, strategy): &&(Picos, Strategy)| {
                    let is_wanted = simulated.may_be_selected(lower_bound, strategy)
                        && !simulated.is_dominated_by_fewer_channels(lower_bound, strategy);
                    is_wanted
                        && examined
                            .get(&strategy)
                            .is_some_and(|known| known.is_whole() && known.lower_bound <= lower_bound)
                };
                let &(_, next) = queue.iter().find(is_ready)?;
                Some(StrategyRun { strategy: next, time_limit: simulated.time_limit(next).filter(|_| prune) })
            });
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(error) => {
                    rejected.push((strategy, omission_reason(error)?));
                    continue;
                }
            };
            match outcome {
                Outcome::Time(timed) => simulated.insert(timed),
                // Raise the bound of an aborted candidate above its time limit, so that it is simulated again only
                // under a later limit.
                Outcome::TimeLimitExceeded => {
                    let lower_bound = known_bound.max(Picos(time_limit.unwrap_or_default().0.saturating_add(1)));
                    if let Some(known) = examined.get_mut(&strategy) {
                        known.lower_bound = lower_bound;
                    }
                    pruned.push((lower_bound, strategy));
                }
            }
        }
        let pairs = simulated.best_per_pair();
        let mut best = pairs.iter().copied();
        let (Some(pick), Some(fastest)) = (best.next(), simulated.fastest()) else {
            let possible = describe_combinations(self.call.collective, &self.capabilities);
            return Err(PlanError::NothingToChoose { collective: self.call.collective, rejected, possible });
        };
        Ok(Row {
            collective: self.call.collective,
            bytes: self.call.bytes,
            size: self.matrix.as_ref().map_or(self.call.bytes, TrafficMatrix::size),
            pick,
            preference: Preference::Fastest,
            fastest: if pick.time == fastest.time { pick } else { fastest },
            runner_up: best.next(),
            bound: self.bound.clone(),
            pairs,
            library_default: None,
            omitted: rejected,
        })
    }

    /// Returns true if the library to which the plan is restricted can be made to run this strategy.
    fn can_be_selected(&self, strategy: &Strategy) -> bool {
        let restricted = self.request.restriction.library.and(self.request.library);
        restricted.is_none_or(|chooser| chooser.can_use_channels(&self.call, strategy))
    }

    fn lower_bounds(&self) -> LowerBounds<'_> {
        LowerBounds { request: self.request, bounds: &self.bounds, call: self.call, matrix: self.matrix.as_ref() }
    }

    /// Generates a strategy's schedule and bounds its time by the traffic of its first rank. This is much cheaper than
    /// folding and sees the load of all channels on one NIC and its proxy.
    fn examine_first_rank(&self, strategy: Strategy) -> Result<Result<Examined, Unsupported>, PlanError> {
        let shape =
            Shape { matrix: self.matrix.clone(), ..self.request.shape(self.call, strategy, &self.capabilities) };
        let generator =
            match algorithm::timing_generator(strategy.algorithm, &shape, self.request.router.options().buffers) {
                Ok(generator) => generator,
                Err(reason) => return Ok(Err(reason)),
            };
        let rank_bound = self.templates.first_rank_bound(generator.as_ref());
        let lower_bound = self.lower_bounds().device_bound(strategy, rank_bound);
        Ok(Ok(Examined { generator, extent: ExaminationDepth::FirstRank, lower_bound }))
    }

    /// Tightens the bound of an examined schedule: by its first channel, then by the template of the whole schedule.
    fn refine(&self, strategy: Strategy, examined: &mut Examined) -> Result<(), PlanError> {
        let header = examined.generator.header();
        if let (ExaminationDepth::FirstRank, true) =
            (&examined.extent, strategy.algorithm.is_channel_independent(self.call.collective))
        {
            let template = self.template(Strategy { channels: 1, ..strategy }, strategy.channels, header)?;
            if let Some(template) = &template {
                examined.lower_bound =
                    examined.lower_bound.max(self.lower_bounds().first_channel_bound(strategy, header, template));
            }
            examined.extent = ExaminationDepth::FirstChannel;
            return Ok(());
        }
        let template = if self.skips_template(strategy) { None } else { self.template(strategy, 1, header)? };
        if let Some(template) = &template {
            examined.lower_bound =
                examined.lower_bound.max(self.lower_bounds().template_bound(strategy, header, template));
        }
        examined.extent = ExaminationDepth::Whole(template);
        Ok(())
    }

    /// Returns true if a template is not worth its cost. For very large groups whose channels have different rank
    /// orders, it is folded from all channels, as the schedule itself is, and does not give an exact time.
    fn skips_template(&self, strategy: Strategy) -> bool {
        let order_count = || self.request.shape(self.call, strategy, &self.capabilities).orders.len();
        self.call.ranks > MAX_TEMPLATE_RANKS && order_count() > 1
    }

    /// Variant of [`Self::examine_first_rank`] that examines the whole schedule.
    fn examine(&self, strategy: Strategy) -> Result<Result<Examined, Unsupported>, PlanError> {
        let mut examined = self.examine_first_rank(strategy)?;
        if let Ok(examined) = &mut examined {
            while !examined.is_whole() {
                self.refine(strategy, examined)?;
            }
        }
        Ok(examined)
    }

    fn template(&self, strategy: Strategy, times: u16, header: &Header) -> Result<Option<BlockTemplate>, PlanError> {
        self.templates.template(&self.call, strategy, times, header).map_err(|error| self.failed(strategy, error))
    }

    /// Simulates a strategy without a time limit.
    pub(super) fn simulate(
        &self,
        strategy: Strategy,
        watcher: Watcher<'_>,
    ) -> Result<Result<TimedStrategy, Unsupported>, PlanError> {
        let outcome = self.examine(strategy).and_then(|examined| match examined {
            Ok(examined) => self.simulate_until(strategy, &examined, None, watcher).map(Ok),
            Err(reason) => Ok(Err(reason)),
        });
        match outcome.or_else(|error| omission_reason(error).map(Err))? {
            Err(reason) => Ok(Err(reason)),
            Ok(Outcome::Time(timed)) => Ok(Ok(timed)),
            Ok(Outcome::TimeLimitExceeded) => Err(self.failed(strategy, EngineError::Interrupted.into())),
        }
    }

    /// Simulates a strategy up to `time_limit`.
    fn simulate_until(
        &self,
        strategy: Strategy,
        examined: &Examined,
        time_limit: Option<Picos>,
        watcher: Watcher<'_>,
    ) -> Result<Outcome, PlanError> {
        let request = self.request;
        let mode = request.mode;
        // The launch adds to the device's time, so the limit on the device is earlier.
        let launch = request.profile.launch(mode.launch, mode.processes);
        let on_device =
            time_limit.map(|time_limit| Picos(time_limit.0.saturating_sub(launch.added(mode.gpus_per_host).0)));
        let watch = Watch { interrupt: watcher.interrupt, until: on_device, ..Watch::default() };
        let header = examined.generator.header();
        let block_template = match &examined.extent {
            ExaminationDepth::FirstRank | ExaminationDepth::FirstChannel => None,
            ExaminationDepth::Whole(block_template) => block_template.as_ref(),
        };
        let template = block_template.and_then(|block_template| {
            Some((block_template.template().filter(|template| template.is_exact())?, block_template.blocks))
        });
        let timed = match template.filter(|(template, blocks)| template.fits(header, *blocks)) {
            Some((template, blocks)) => {
                template.run(header, blocks, request.profile, watch).map_err(SimulateError::Engine).map(|timed| {
                    let busiest = timed.busiest.map(|(resource, fraction)| Busiest { resource, fraction });
                    let band = mode.band(header, request.profile, timed.end, timed.bytes);
                    (launch.call_time(timed.end, mode.host_work(header)), band, busiest)
                })
            }
            None => {
                let options = SimulationOptions { folding: Folding::BlocksFirst, ..SimulationOptions::default() };
                simulate(examined.generator.as_ref(), request.setting(), mode, options, watch)
                    .map(|timeline| (timeline.time, timeline.band, Busiest::from_timeline(&timeline)))
            }
        };
        match timed {
            Ok((time, ..)) if time_limit.is_some_and(|time_limit| time > time_limit) => Ok(Outcome::TimeLimitExceeded),
            Ok((time, band, busiest)) => Ok(Outcome::Time(self.time_strategy(strategy, time, band, busiest))),
            Err(SimulateError::Engine(EngineError::Abandoned { .. })) => Ok(Outcome::TimeLimitExceeded),
            Err(source) => Err(self.failed(strategy, source)),
        }
    }

    fn failed(&self, strategy: Strategy, source: SimulateError) -> PlanError {
        let Call { collective, bytes, .. } = self.call;
        PlanError::Simulation { strategy, collective, bytes, source: source.into() }
    }

    fn time_strategy(
        &self,
        strategy: Strategy,
        time: Picos,
        band: PredictionInterval,
        busiest: Option<Busiest>,
    ) -> TimedStrategy {
        let (low, high) = band.around(time);
        // No interval extends below the lower bound.
        TimedStrategy { strategy, time, low: low.max(self.bound.time).min(time), high, busiest, measured: None }
    }
}
