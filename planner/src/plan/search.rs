//! The search: computes a lower bound for every candidate, simulates those that can still win, and returns the best
//! strategy and the best one of another algorithm or protocol.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fabricast_sim::engine::{EngineError, Watch};
use fabricast_sim::profile::Band;
use fabricast_sim::schedule::{Call, Collective, Generate, Header, Matrix};
use fabricast_sim::{Folding, SimulateError, Surroundings, simulate};
use fabricast_topologies::{Bytes, Picos};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::ahead::{Ahead, Limited};
use super::kept::Kept;
use super::least::LeastTimes;
use super::measured::{self, Measurements};
use super::space::too_large;
use super::templates::{Found, Templates};
use super::{
    Busiest, Effort, LibraryDefault, Plan, PlanError, PlanRequest, Preference, Priced, Row, between, beyond, default,
    preference, ranges, steady,
};
use crate::abilities::Abilities;
use crate::algorithm::{self, Shape, Unsupported};
use crate::bound::{Bound, Bounds};
use crate::library::Chooser;
use crate::strategy::{Strategy, candidates, possible};

/// Largest number of ranks at which a template is folded for channels with different rank orders. Its use for other
/// sizes and protocols then justifies the cost.
const MOST_FOLDED_TWICE: u32 = 1024;

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
    plan_within(request, &bounds_of(request), &Measurements::NONE, watcher)
}

/// Variant of [`plan`] for tables: uses measured times where they exist, adds rows between the requested sizes where
/// the selected strategy changes, and the library's defaults outside the requested sizes.
///
/// # Errors
/// [`PlanError`], as in [`plan`].
pub fn plan_with(
    request: &PlanRequest<'_>,
    measurements: &Measurements,
    watcher: Watcher<'_>,
) -> Result<Plan, PlanError> {
    let bounds = bounds_of(request);
    let templates = Templates::new(request, abilities_of(request));
    let planner = RowPlanner { templates: &templates, bounds: &bounds, measurements, watcher };
    let mut plan = planner.plan()?;
    plan.between = between::rows(&planner, &plan.rows)?;
    plan.ranges = ranges::merge(&plan.all_rows());
    plan.beyond = beyond::ranges(request, &plan.rows);
    Ok(plan)
}

/// Variant of [`plan_with`] that plans only the requested sizes, with known bounds of the ranks.
///
/// # Errors
/// [`PlanError`], as in [`plan`].
pub(crate) fn plan_within(
    request: &PlanRequest<'_>,
    bounds: &Bounds,
    measurements: &Measurements,
    watcher: Watcher<'_>,
) -> Result<Plan, PlanError> {
    let templates = Templates::new(request, abilities_of(request));
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
type Judged = (Row, Option<String>);

impl<'a> RowPlanner<'a> {
    pub(super) fn request(&self) -> &'a PlanRequest<'a> {
        self.templates.request
    }

    /// Plans the rows of the request.
    fn plan(&self) -> Result<Plan, PlanError> {
        let request = self.request();
        let cells: Vec<(Collective, Bytes)> =
            request.collectives.iter().flat_map(|&c| sizes(request, c).iter().map(move |&bytes| (c, bytes))).collect();
        let found = self.judged(&cells);
        let mut rows = Vec::with_capacity(found.len());
        let mut left_out: Vec<(Collective, PlanError)> = Vec::new();
        let mut library_unknown: Vec<String> = Vec::new();
        for row in found {
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
            steady::settle(&mut rows, request.restriction);
        }
        Ok(Plan {
            most_overlap: preference::most_overlap(request.restriction),
            fabric: request.fabric.name().to_owned(),
            profile: request.profile.name.clone(),
            ranks: request.placement.len() as u32,
            ranges: ranges::merge(&rows),
            library: request.library.map(Chooser::library),
            library_unknown,
            rows,
            between: Vec::new(),
            beyond: Vec::new(),
            left_out: left_out.into_iter().map(|(collective, error)| (collective, error.to_string())).collect(),
        })
    }

    /// Plans a row for each collective and size, on all threads.
    fn judged(&self, cells: &[(Collective, Bytes)]) -> Vec<Result<Judged, PlanError>> {
        let rows = cells.par_iter().with_max_len(1);
        // A row needs between microseconds and seconds.
        rows.map(|&(collective, bytes)| {
            let row = self.row(collective, bytes);
            if let Some(done) = self.watcher.rows_done {
                done.fetch_add(1, Ordering::Relaxed);
            }
            row
        })
        .collect()
    }

    /// Plans rows at additional sizes, without counting progress. Omits those for which the restriction leaves no
    /// candidate.
    pub(super) fn further(&self, cells: &[(Collective, Bytes)]) -> Result<Vec<Row>, PlanError> {
        let quiet = Self { watcher: Watcher { rows_done: None, ..self.watcher }, ..*self };
        let rows = quiet.judged(cells).into_iter().filter_map(|row| match row {
            Ok((row, _)) => Some(Ok(row)),
            Err(PlanError::NothingToChoose { .. }) => None,
            Err(error) => Some(Err(error)),
        });
        rows.collect()
    }

    fn row(&self, collective: Collective, bytes: Bytes) -> Result<Judged, PlanError> {
        let search = self.search(collective, bytes);
        let (row, unknown) = default::add(&search, search.run(self.watcher)?, self.watcher)?;
        let row = measured::stand_in(&search, row, self.measurements, self.watcher)?;
        Ok((preference::settle(row, self.request().restriction), unknown))
    }

    /// Plans a row that selects the library's default, if that is known, without examining other candidates.
    pub(super) fn kept(&self, collective: Collective, bytes: Bytes) -> Result<Option<Row>, PlanError> {
        let search = self.search(collective, bytes);
        let choice = self.request().library.and_then(|chooser| chooser.choose(&search.call).ok());
        let Some(choice) = choice else { return Ok(None) };
        let priced = search.price(default::as_simulated(&search, choice.strategy), self.watcher)?;
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
            library_default: Some(LibraryDefault { choice, priced: pick }),
            left_out: Vec::new(),
        };
        Ok(priced.ok().map(row))
    }

    /// Simulates a strategy for a call; `None` if there is no such schedule.
    pub(super) fn price(
        &self,
        collective: Collective,
        bytes: Bytes,
        strategy: Strategy,
    ) -> Result<Option<Priced>, PlanError> {
        let search = self.search(collective, bytes);
        Ok(search.price(default::as_simulated(&search, strategy), self.watcher)?.ok())
    }

    fn search(&self, collective: Collective, bytes: Bytes) -> Search<'_> {
        Search::new(self.templates, self.templates.abilities, self.bounds, collective, bytes)
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
pub fn least_time(
    request: &PlanRequest<'_>,
    collective: Collective,
    bytes: Bytes,
    strategy: Strategy,
) -> Result<Option<Picos>, PlanError> {
    let (bounds, abilities) = surveyed(request);
    let templates = Templates::new(request, abilities);
    let search = Search::new(&templates, abilities, &bounds, collective, bytes);
    Ok(search.look_at_all(strategy)?.ok().map(|looked| looked.least))
}

/// Simulates the given strategies for their calls, on all threads. Strategies without a schedule have the reason
/// instead.
///
/// # Errors
/// [`PlanError`]: a simulation that cannot run.
pub fn prices(
    request: &PlanRequest<'_>,
    calls: &[(Collective, Bytes, Strategy)],
    watcher: Watcher<'_>,
) -> Result<Vec<Result<Priced, Unsupported>>, PlanError> {
    let (bounds, abilities) = surveyed(request);
    let templates = Templates::new(request, abilities);
    let priced = calls.par_iter().with_max_len(1).map(|&(collective, bytes, strategy)| {
        let search = Search::new(&templates, abilities, &bounds, collective, bytes);
        search.price(default::as_simulated(&search, strategy), watcher)
    });
    priced.collect()
}

fn surveyed(request: &PlanRequest<'_>) -> (Bounds, Abilities) {
    (bounds_of(request), abilities_of(request))
}

fn bounds_of(request: &PlanRequest<'_>) -> Bounds {
    let PlanRequest { fabric, router, placement, root, restriction, .. } = *request;
    Bounds::new(fabric, router, placement, root).with(restriction.in_network)
}

pub(super) fn abilities_of(request: &PlanRequest<'_>) -> Abilities {
    let PlanRequest { fabric, router, placement, restriction, ranks_per_node, .. } = *request;
    Abilities::of(fabric, router, placement, ranks_per_node, restriction.in_network)
}

pub(super) struct Search<'a> {
    pub(super) request: &'a PlanRequest<'a>,
    pub(super) abilities: Abilities,
    pub(super) call: Call,
    /// Matrix of an all_to_allv, scaled to the call's size.
    matrix: Option<Matrix>,
    bounds: Cow<'a, Bounds>,
    bound: Bound,
    templates: &'a Templates<'a>,
}

/// Strategy whose schedule was examined.
struct Looked {
    generator: Box<dyn Generate + Send + Sync>,
    glance: Glance,
    least: Picos,
}

/// Extent to which a schedule was examined.
enum Glance {
    /// First rank only.
    FirstRank,
    /// First channel only, as a schedule of one channel.
    FirstChannel,
    /// Whole schedule.
    Whole(Option<Found>),
}

impl Looked {
    fn is_whole(&self) -> bool {
        matches!(self.glance, Glance::Whole(_))
    }
}

/// Outcome of the simulation of a strategy.
pub(super) enum Outcome {
    Time(Priced),
    /// The strategy exceeds the time limit.
    TooLate,
}

impl<'a> Search<'a> {
    fn new(
        templates: &'a Templates<'a>,
        abilities: Abilities,
        bounds: &'a Bounds,
        collective: Collective,
        bytes: Bytes,
    ) -> Self {
        let request = templates.request;
        let matrix = request.matrix.filter(|_| collective == Collective::AllToAllV).map(|matrix| matrix.scaled(bytes));
        // An empty matrix remains empty at every size.
        let call = request.call(collective, matrix.as_ref().map_or(bytes, Matrix::total));
        let bounds = match &matrix {
            Some(matrix) => Cow::Owned(bounds.clone().with_matrix(Some(matrix))),
            None => Cow::Borrowed(bounds),
        };
        let bound = bounds.of(&call);
        Self { request, abilities, call, matrix, bounds, bound, templates }
    }

    fn run(&self, watcher: Watcher<'_>) -> Result<Row, PlanError> {
        let PlanRequest { restriction, profile, .. } = *self.request;
        let found =
            candidates(self.call.collective, &self.abilities, restriction, (profile.software(), self.call.bytes));
        let found = found.into_iter().filter(|strategy| self.is_reached(strategy));
        let all = found.chain(default::candidate(self));
        let mut open: BTreeSet<(Picos, Strategy)> = all.map(|s| (self.least_times().at_sight(s), s)).collect();
        let mut looked: FxHashMap<Strategy, Looked> = FxHashMap::default();
        let mut rejected = Vec::new();
        let mut kept = Kept::default();
        let mut ahead = Ahead::default();
        let picky = self.request.effort == Effort::Contenders;
        // Deferred: candidates with more channels than one that is good enough for their pair. Examined again when all
        // others are known.
        let mut put_off: Vec<(Picos, Strategy)> = Vec::new();
        // Pruned: candidates that can neither win nor come second, with their lower bounds. They may still be preferred
        // to more channels.
        let mut passed_over: Vec<(Picos, Strategy)> = Vec::new();
        loop {
            let (least, strategy, until) = if let Some(next) = open.pop_first() {
                let (least, strategy) = next;
                if picky && !kept.can_matter(least, strategy) {
                    passed_over.push(next);
                    continue;
                }
                if picky && kept.is_settled(least, strategy) {
                    put_off.push(next);
                    continue;
                }
                (least, strategy, kept.latest(strategy).filter(|_| picky))
            } else if let Some(again) = put_off.iter().position(|&(least, s)| !kept.is_settled(least, s)) {
                open.insert(put_off.remove(again));
                continue;
            } else if let Some(faster) = put_off.iter().position(|&(least, _)| kept.may_lead(least)) {
                // Its channels are not worth their cost, but it may be the fastest.
                let (least, strategy) = put_off.remove(faster);
                (least, strategy, kept.latest(strategy))
            } else if let Some((place, limit)) = kept.preferable(&passed_over).filter(|_| picky) {
                let (least, strategy) = passed_over.remove(place);
                (least, strategy, Some(limit))
            } else {
                break;
            };
            let known = match looked.entry(strategy) {
                std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::hash_map::Entry::Vacant(place) => match self.look_at(strategy)? {
                    Ok(new) => place.insert(new),
                    Err(why) => {
                        rejected.push((strategy, why));
                        continue;
                    }
                },
            };
            if least < known.least {
                open.insert((known.least, strategy));
                continue;
            }
            if !known.is_whole() {
                match self.look_closer(strategy, known) {
                    Ok(()) => drop(open.insert((known.least, strategy))),
                    Err(error) => rejected.push((strategy, too_large(error)?)),
                }
                continue;
            }
            let known_least = known.least;
            let run = |(strategy, until): Limited| match looked.get(&strategy) {
                Some(looked) => self.simulated(strategy, looked, until, watcher),
                None => Ok(Outcome::TooLate),
            };
            let outcome = ahead.or_run((strategy, until), self.call.ranks, run, || {
                let is_ready = |&&(least, strategy): &&(Picos, Strategy)| {
                    let is_wanted = kept.can_matter(least, strategy) && !kept.is_settled(least, strategy);
                    is_wanted && looked.get(&strategy).is_some_and(|known| known.is_whole() && known.least <= least)
                };
                let &(_, next) = open.iter().find(is_ready)?;
                Some((next, kept.latest(next).filter(|_| picky)))
            });
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(error) => {
                    rejected.push((strategy, too_large(error)?));
                    continue;
                }
            };
            match outcome {
                Outcome::Time(priced) => kept.keep(priced),
                // Raise the bound of an aborted candidate above its time limit, so that it is simulated again only
                // under a later limit.
                Outcome::TooLate => {
                    let least = known_least.max(Picos(until.unwrap_or_default().0.saturating_add(1)));
                    if let Some(known) = looked.get_mut(&strategy) {
                        known.least = least;
                    }
                    passed_over.push((least, strategy));
                }
            }
        }
        let pairs = kept.best();
        let mut best = pairs.iter().copied();
        let (Some(pick), Some(fastest)) = (best.next(), kept.fastest()) else {
            let possible = possible(self.call.collective, &self.abilities);
            return Err(PlanError::NothingToChoose { collective: self.call.collective, rejected, possible });
        };
        Ok(Row {
            collective: self.call.collective,
            bytes: self.call.bytes,
            size: self.matrix.as_ref().map_or(self.call.bytes, Matrix::size),
            pick,
            preference: Preference::Fastest,
            fastest: if pick.time == fastest.time { pick } else { fastest },
            runner_up: best.next(),
            bound: self.bound.clone(),
            pairs,
            library_default: None,
            left_out: rejected,
        })
    }

    /// Returns true if the library to which the plan is restricted can be made to run this strategy.
    fn is_reached(&self, strategy: &Strategy) -> bool {
        let restricted = self.request.restriction.library.and(self.request.library);
        restricted.is_none_or(|chooser| chooser.reaches(&self.call, strategy))
    }

    fn least_times(&self) -> LeastTimes<'_> {
        LeastTimes { request: self.request, bounds: &self.bounds, call: self.call, matrix: self.matrix.as_ref() }
    }

    /// Generates a strategy's schedule and bounds its time by the traffic of its first rank. This is much cheaper than
    /// folding and sees the load of all channels on one NIC and its proxy.
    fn look_at(&self, strategy: Strategy) -> Result<Result<Looked, Unsupported>, PlanError> {
        let shape = Shape { matrix: self.matrix.clone(), ..self.request.shape(self.call, strategy, &self.abilities) };
        let generator = match algorithm::timed(strategy.algorithm, &shape, self.request.router.options().buffers) {
            Ok(generator) => generator,
            Err(why) => return Ok(Err(why)),
        };
        let of_rank = self.templates.least_of_first_rank(generator.as_ref());
        let least = self.least_times().by_device(strategy, of_rank);
        Ok(Ok(Looked { generator, glance: Glance::FirstRank, least }))
    }

    /// Tightens the bound of an examined schedule: by its first channel, then by the template of the whole schedule.
    fn look_closer(&self, strategy: Strategy, looked: &mut Looked) -> Result<(), PlanError> {
        let header = looked.generator.header();
        if let (Glance::FirstRank, true) =
            (&looked.glance, strategy.algorithm.divides_by_channels(self.call.collective))
        {
            let found = self.found(Strategy { channels: 1, ..strategy }, (strategy.channels, header))?;
            if let Some(found) = &found {
                looked.least = looked.least.max(self.least_times().by_first_channel(strategy, header, found));
            }
            looked.glance = Glance::FirstChannel;
            return Ok(());
        }
        let found = if self.is_rather_simulated(strategy) { None } else { self.found(strategy, (1, header))? };
        if let Some(found) = &found {
            looked.least = looked.least.max(self.least_times().by_template(strategy, header, found));
        }
        looked.glance = Glance::Whole(found);
        Ok(())
    }

    /// Returns true if a template is not worth its cost. For very large groups whose channels have different rank
    /// orders, it is folded from all channels, as the schedule itself is, and does not give an exact time.
    fn is_rather_simulated(&self, strategy: Strategy) -> bool {
        let ways = || self.request.shape(self.call, strategy, &self.abilities).orders.len();
        self.call.ranks > MOST_FOLDED_TWICE && ways() > 1
    }

    /// Variant of [`Self::look_at`] that examines the whole schedule.
    fn look_at_all(&self, strategy: Strategy) -> Result<Result<Looked, Unsupported>, PlanError> {
        let mut looked = self.look_at(strategy)?;
        if let Ok(looked) = &mut looked {
            while !looked.is_whole() {
                self.look_closer(strategy, looked)?;
            }
        }
        Ok(looked)
    }

    fn found(&self, strategy: Strategy, schedule: (u16, &Header)) -> Result<Option<Found>, PlanError> {
        self.templates.of(&self.call, strategy, schedule).map_err(|error| self.failed(strategy, error))
    }

    /// Simulates a strategy without a time limit.
    pub(super) fn price(
        &self,
        strategy: Strategy,
        watcher: Watcher<'_>,
    ) -> Result<Result<Priced, Unsupported>, PlanError> {
        let timed = self.look_at_all(strategy).and_then(|looked| match looked {
            Ok(looked) => self.simulated(strategy, &looked, None, watcher).map(Ok),
            Err(why) => Ok(Err(why)),
        });
        match timed.or_else(|error| too_large(error).map(Err))? {
            Err(why) => Ok(Err(why)),
            Ok(Outcome::Time(priced)) => Ok(Ok(priced)),
            Ok(Outcome::TooLate) => Err(self.failed(strategy, EngineError::Interrupted.into())),
        }
    }

    /// Simulates a strategy up to the time limit `until`.
    fn simulated(
        &self,
        strategy: Strategy,
        looked: &Looked,
        until: Option<Picos>,
        watcher: Watcher<'_>,
    ) -> Result<Outcome, PlanError> {
        let request = self.request;
        let mode = request.mode;
        // The launch adds to the device's time, so the limit on the device is earlier.
        let launch = request.profile.launch(mode.launch, mode.processes);
        let on_device = until.map(|until| Picos(until.0.saturating_sub(launch.added(mode.gpus_per_host).0)));
        let watch = Watch { interrupt: watcher.interrupt, until: on_device, ..Watch::default() };
        let header = looked.generator.header();
        let found = match &looked.glance {
            Glance::FirstRank | Glance::FirstChannel => None,
            Glance::Whole(found) => found.as_ref(),
        };
        let template = found.and_then(|found| Some((found.template().filter(|one| one.is_exact())?, found.blocks)));
        let timed = match template.filter(|(template, blocks)| template.fits(header, *blocks)) {
            Some((template, blocks)) => {
                template.run(header, blocks, request.profile, watch).map_err(SimulateError::Engine).map(|timed| {
                    let busiest = timed.busiest.map(|(resource, fraction)| Busiest { resource, fraction });
                    let band = mode.band(header, request.profile, timed.end, timed.bytes);
                    (launch.apply(timed.end, mode.host_work(header)), band, busiest)
                })
            }
            None => {
                let surroundings = Surroundings { folding: Folding::BlocksFirst, ..Surroundings::default() };
                simulate(looked.generator.as_ref(), request.setting(), mode, surroundings, watch)
                    .map(|timeline| (timeline.time, timeline.band, Busiest::of(&timeline)))
            }
        };
        match timed {
            Ok((time, ..)) if until.is_some_and(|until| time > until) => Ok(Outcome::TooLate),
            Ok((time, band, busiest)) => Ok(Outcome::Time(self.priced(strategy, (time, band), busiest))),
            Err(SimulateError::Engine(EngineError::Abandoned { .. })) => Ok(Outcome::TooLate),
            Err(source) => Err(self.failed(strategy, source)),
        }
    }

    fn failed(&self, strategy: Strategy, source: SimulateError) -> PlanError {
        let Call { collective, bytes, .. } = self.call;
        PlanError::Simulation { strategy, collective, bytes, source: source.into() }
    }

    fn priced(&self, strategy: Strategy, (time, band): (Picos, Band), busiest: Option<Busiest>) -> Priced {
        let (low, high) = band.around(time);
        // No interval extends below the lower bound.
        Priced { strategy, time, low: low.max(self.bound.time).min(time), high, busiest, measured: None }
    }
}
