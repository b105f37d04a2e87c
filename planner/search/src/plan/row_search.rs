//! Search of a row: computes a lower bound for every candidate, simulates the candidates that can still be selected,
//! and returns the best strategy and the best one with another algorithm or protocol.

use std::borrow::Cow;
use std::collections::BTreeSet;

use fabricast_sim::engine::{EngineError, Watch};
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{PredictionInterval, TimeInterval};
use fabricast_sim::schedule::{Call, Collective, Header, Protocol, Symmetry, TrafficMatrix};
use fabricast_sim::{Folding, SimulateError, SimulationOptions, simulate};
use fabricast_topologies::{Bytes, Picos};
use rustc_hash::FxHashMap;

use super::examination::{ExaminationDepth, ExaminedStrategy};
use super::incumbents::{Incumbents, LibraryStrategies};
use super::lower_bounds::LowerBounds;
use super::search_space::{MissingRoutes, omission_reason};
use super::speculative::{Outcome, SpeculativeRuns, StrategyRun};
use super::templates::{GroupTemplate, MAX_TEMPLATE_RANKS, Templates};
use super::{Busiest, Effort, PlanError, PlanRequest, PlanRow, Preference, TimedStrategy};
use crate::candidates::Restriction;
use fabricast_collectives::algorithm::{self, Algorithm, Shape, Unsupported};
use fabricast_collectives::bound::{Bound, Bounds};
use fabricast_collectives::capabilities::{FabricCapabilities, PackedTrees};
use fabricast_collectives::strategy::{Mismatch, Strategy, check_combination, describe_combinations};

/// Search of the best strategy of a call.
pub(super) struct Search<'a> {
    pub(super) request: &'a PlanRequest<'a>,
    pub(super) capabilities: FabricCapabilities,
    pub(super) call: Call,
    /// Matrix of an all_to_allv, scaled to the call's size.
    matrix: Option<TrafficMatrix>,
    bounds: Cow<'a, Bounds>,
    pub(super) bound: Bound,
    templates: &'a Templates<'a>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
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

    /// Returns the library's default as a candidate if the restriction allows it. The default is a candidate even if
    /// its channel count or chunk is outside the search space.
    fn library_candidate(&self) -> Option<Strategy> {
        let choice = self.request.library?.choose(&self.call).ok()?;
        let strategy = self.normalize_chunk(choice.strategy);
        let restriction = self.request.restriction;
        let is_allowed = restriction.allows(&strategy, self.call.collective)
            && check_combination(strategy.algorithm, strategy.protocol, self.call.collective, &self.capabilities)
                .is_ok();
        is_allowed.then_some(strategy)
    }

    /// Returns the algorithms that the restriction names and that cannot run with any of its protocols, with the reason for
    /// `simple`, or for the first of these.
    fn named_mismatches(&self) -> Vec<(Algorithm, Mismatch)> {
        let Restriction { algorithms, protocols, .. } = self.request.restriction;
        let mut protocols = if protocols.is_empty() { Protocol::ALL.to_vec() } else { protocols.clone() };
        protocols.sort_by_key(|&protocol| protocol != Protocol::Simple);
        let mismatch = |&algorithm: &Algorithm| {
            let checks =
                protocols.iter().map(|&p| check_combination(algorithm, p, self.call.collective, &self.capabilities));
            let reasons: Result<Vec<Mismatch>, ()> = checks.map(|check| check.err().ok_or(())).collect();
            Some((algorithm, *reasons.ok()?.first()?))
        };
        algorithms.iter().filter_map(mismatch).collect()
    }

    /// Removes a strategy's chunk size if the profile has no chunks, or if the chunk size equals the default for this
    /// strategy, so that equal schedules are one candidate. A chunk size that the restriction requires is retained,
    /// because all candidates have it.
    pub(super) fn normalize_chunk(&self, strategy: Strategy) -> Strategy {
        let default = strategy.default_chunk(self.call.collective, self.request.profile);
        let is_demanded = strategy.chunk == self.request.restriction.chunk;
        let chunk = strategy.chunk.filter(|&chunk| is_demanded || default.is_some_and(|default| chunk != default));
        Strategy { chunk, ..strategy }
    }

    /// Searches for the best strategy of the call. Returns the row and all strategies that were simulated to the end.
    pub(super) fn run(&self, monitor: Monitor<'_>) -> Result<(PlanRow, Incumbents<'_>), PlanError> {
        let profile = self.request.profile;
        let candidates = self.request.candidates(self.call, &self.capabilities);
        let mut rejected = Vec::new();
        let mut simulated = Incumbents::new(LibraryStrategies::new(self.request, self.call));
        // The row states the time of the library's default in any case, which also limits the simulations of the others.
        let default = self.library_candidate();
        if let Some(strategy) = default {
            match self.simulate(strategy, monitor)? {
                Ok(timed) => simulated.insert(timed),
                Err(reason) => rejected.push((strategy, reason)),
            }
        }
        let others =
            candidates.into_iter().filter(|strategy| Some(*strategy) != default && self.can_be_selected(strategy));
        let mut queue: BTreeSet<(Picos, Strategy)> =
            others.map(|s| (self.lower_bounds().traffic_bound(s), s)).collect();
        let mut examined: FxHashMap<Strategy, ExaminedStrategy> = FxHashMap::default();
        let mut speculative = SpeculativeRuns::default();
        let prune = self.request.effort == Effort::Contenders;
        // Deferred candidates: a strategy of the same pair with fewer channels is already good enough. They are
        // examined again after all others.
        let mut deferred: Vec<(Picos, Strategy)> = Vec::new();
        // Pruned candidates that can neither be selected nor become the runner-up, with their lower bounds. One of them
        // may still be preferred to a strategy with more channels.
        let mut pruned: Vec<(Picos, Strategy)> = Vec::new();
        // Candidates whose simulations take long without a time limit. They follow when other
        // candidates have set one, or when there are no others.
        let mut postponed: Vec<(Picos, Strategy)> = Vec::new();
        let mut postpones = prune;
        loop {
            if simulated.all.has_time_limit() || queue.is_empty() {
                postpones &= postponed.is_empty();
                queue.extend(postponed.drain(..));
            }
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
                deferred.iter().position(|&(lower_bound, _)| simulated.all.may_be_fastest(lower_bound))
            {
                // The additional channels do not justify their cost, but the candidate may still be the fastest one.
                let (lower_bound, strategy) = deferred.remove(index);
                (lower_bound, strategy, simulated.time_limit(strategy))
            } else if let Some((index, limit)) = simulated.find_preferable_pruned(&pruned).filter(|_| prune) {
                let (lower_bound, strategy) = pruned.remove(index);
                (lower_bound, strategy, Some(limit))
            } else {
                break;
            };
            if monitor.is_interrupted() {
                return Err(self.failed(strategy, EngineError::Interrupted.into()));
            }
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
                    Err(error) => rejected.push((strategy, omission_reason(error, self.missing_routes())?)),
                }
                continue;
            }
            if postpones && !simulated.all.has_time_limit() && known.is_long() {
                postponed.push((lower_bound, strategy));
                continue;
            }
            let known_bound = known.lower_bound;
            let is_equivalent = |other: Strategy| strategy.is_equivalent(&other, self.call.collective, profile);
            if let Some(timed) = simulated.all.find(is_equivalent) {
                if time_limit.is_none_or(|time_limit| timed.time <= time_limit) {
                    simulated.insert(TimedStrategy { strategy, ..timed });
                } else {
                    pruned.push((timed.time.max(known_bound), strategy));
                }
                continue;
            }
            let run = |run: StrategyRun| match examined.get(&run.strategy) {
                Some(examined) => self.simulate_until(run.strategy, examined, run.time_limit, monitor),
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
                // Without a time limit, the simulation of a slow candidate might take longer than all others together.
                let time_limit = simulated.time_limit(next);
                let is_bounded = !prune || time_limit.is_some();
                is_bounded.then(|| StrategyRun { strategy: next, time_limit: time_limit.filter(|_| prune) })
            });
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(error) => {
                    rejected.push((strategy, omission_reason(error, self.missing_routes())?));
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
        let (pairs, library_pairs) = (simulated.all.best_per_pair(), simulated.library_pairs());
        let mut best = pairs.iter().copied();
        let (Some(pick), Some(fastest)) = (best.next(), simulated.all.fastest()) else {
            let possible = describe_combinations(self.call.collective, &self.capabilities);
            let (collective, named) = (self.call.collective, self.named_mismatches());
            return Err(PlanError::NothingToChoose { collective, rejected, named, possible });
        };
        let row = PlanRow {
            collective: self.call.collective,
            bytes: self.call.bytes,
            size: self.matrix.as_ref().map_or(self.call.bytes, TrafficMatrix::size),
            pick,
            preference: Preference::Fastest,
            fastest: if pick.time == fastest.time { pick } else { fastest },
            runner_up: best.next(),
            bound: self.bound.clone(),
            pairs,
            library_pairs,
            library_default: None,
            omitted: rejected,
        };
        Ok((row, simulated))
    }

    /// Returns true if the library to which the plan is restricted can be configured to run this strategy.
    fn can_be_selected(&self, strategy: &Strategy) -> bool {
        let restricted = self.request.restriction.library.and(self.request.library);
        restricted.is_none_or(|chooser| chooser.can_use_channels(&self.call, strategy))
    }

    /// Treatment of strategies between ranks without a path. They are excluded if packed trees are candidates.
    fn missing_routes(&self) -> MissingRoutes {
        match self.capabilities.packing {
            PackedTrees::Packer(_) => MissingRoutes::OmitStrategy,
            PackedTrees::Assumed | PackedTrees::Unavailable(_) => MissingRoutes::Error,
        }
    }

    fn lower_bounds(&self) -> LowerBounds<'_> {
        LowerBounds { request: self.request, bounds: &self.bounds, call: self.call, matrix: self.matrix.as_ref() }
    }

    /// Generates a strategy's schedule and bounds its time by the traffic of its first rank. This takes much less time
    /// than folding the schedule, and includes the load of all channels on one NIC and its proxy thread.
    fn examine_first_rank(&self, strategy: Strategy) -> Result<Result<ExaminedStrategy, Unsupported>, PlanError> {
        let shape =
            Shape { matrix: self.matrix.clone(), ..self.request.shape(self.call, strategy, &self.capabilities) };
        let generator =
            match algorithm::timing_generator(strategy.algorithm, &shape, self.request.router.options().buffers) {
                Ok(generator) => generator,
                Err(reason) => return Ok(Err(reason)),
            };
        let rank_bound = self.templates.first_rank_bound(&self.call, strategy, generator.as_ref());
        let lower_bound = self.lower_bounds().device_bound(strategy, rank_bound);
        Ok(Ok(ExaminedStrategy { generator, extent: ExaminationDepth::FirstRank, lower_bound }))
    }

    /// Tightens the lower bound of an examined schedule: first by its longest chain of dependencies (for large groups
    /// without a symmetry) or its first channel, then by the template of the whole schedule.
    fn refine(&self, strategy: Strategy, examined: &mut ExaminedStrategy) -> Result<(), PlanError> {
        let header = examined.generator.header();
        if let (ExaminationDepth::FirstRank, true) = (&examined.extent, self.has_chain_bound(examined)) {
            return self.examine_longest_chain(strategy, examined);
        }
        if let (ExaminationDepth::FirstRank, true) =
            (&examined.extent, strategy.algorithm.is_channel_independent(self.call.collective, self.capabilities.hosts))
        {
            let template = self.template(Strategy { channels: 1, ..strategy }, strategy.channels, header)?;
            if let Some(template) = &template {
                examined.lower_bound = examined.lower_bound.max(self.lower_bounds().part_bound(
                    strategy,
                    header,
                    template,
                    strategy.channels,
                ));
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

    /// Tightens the lower bound of a schedule by the ranks on a longest chain of dependencies.
    fn examine_longest_chain(&self, strategy: Strategy, examined: &mut ExaminedStrategy) -> Result<(), PlanError> {
        let header = examined.generator.header();
        let template = self.templates.chain_template(&self.call, strategy, header);
        if let Some(template) = &template.map_err(|error| self.failed(strategy, error))? {
            let bound = self.lower_bounds().part_bound(strategy, header, template, template.groups);
            examined.lower_bound = examined.lower_bound.max(bound);
        }
        examined.extent = ExaminationDepth::LongestChain;
        Ok(())
    }

    /// Returns the lower bound that the search computes for a strategy of a large group before all ranks are lowered, for
    /// a group of any size; `None` if there is no such schedule.
    pub(super) fn chain_lower_bound(&self, strategy: Strategy) -> Result<Option<Picos>, PlanError> {
        let Ok(mut examined) = self.examine_first_rank(strategy)? else { return Ok(None) };
        self.examine_longest_chain(strategy, &mut examined)?;
        Ok(Some(examined.lower_bound))
    }

    /// Returns true if the ranks on a longest chain of dependencies are examined before all ranks: for large groups
    /// without a symmetry, whose ranks are lowered one by one.
    fn has_chain_bound(&self, examined: &ExaminedStrategy) -> bool {
        self.call.ranks > MAX_TEMPLATE_RANKS && matches!(examined.generator.symmetry(), Symmetry::None)
    }

    /// Returns true if computing a template takes longer than it saves. For large groups whose channels have different
    /// rank orders, the template has to be folded from all channels, like the schedule itself, and does not give an
    /// exact time.
    fn skips_template(&self, strategy: Strategy) -> bool {
        let order_count = || self.request.shape(self.call, strategy, &self.capabilities).orders.len();
        self.call.ranks > MAX_TEMPLATE_RANKS && order_count() > 1
    }

    /// Variant of [`Self::examine_first_rank`] that examines the whole schedule.
    pub(super) fn examine(&self, strategy: Strategy) -> Result<Result<ExaminedStrategy, Unsupported>, PlanError> {
        let mut examined = self.examine_first_rank(strategy)?;
        if let Ok(examined) = &mut examined {
            while !examined.is_whole() {
                self.refine(strategy, examined)?;
            }
        }
        Ok(examined)
    }

    fn template(&self, strategy: Strategy, times: u16, header: &Header) -> Result<Option<GroupTemplate>, PlanError> {
        self.templates.template(&self.call, strategy, times, header).map_err(|error| self.failed(strategy, error))
    }

    /// Simulates a strategy without a time limit.
    pub(super) fn simulate(
        &self,
        strategy: Strategy,
        monitor: Monitor<'_>,
    ) -> Result<Result<TimedStrategy, Unsupported>, PlanError> {
        let outcome = self.examine(strategy).and_then(|examined| match examined {
            Ok(examined) => self.simulate_until(strategy, &examined, None, monitor).map(Ok),
            Err(reason) => Ok(Err(reason)),
        });
        match outcome.or_else(|error| omission_reason(error, self.missing_routes()).map(Err))? {
            Err(reason) => Ok(Err(reason)),
            Ok(Outcome::Time(timed)) => Ok(Ok(timed)),
            Ok(Outcome::TimeLimitExceeded) => Err(self.failed(strategy, EngineError::Interrupted.into())),
        }
    }

    /// Simulates a strategy; the simulation is aborted at `time_limit`.
    fn simulate_until(
        &self,
        strategy: Strategy,
        examined: &ExaminedStrategy,
        time_limit: Option<Picos>,
        monitor: Monitor<'_>,
    ) -> Result<Outcome, PlanError> {
        let request = self.request;
        let mode = request.mode;
        // The time limit includes the launch, so the limit for the time on the device is lower.
        let launch = request.profile.launch(mode.launch, mode.processes);
        let on_device =
            time_limit.map(|time_limit| Picos(time_limit.0.saturating_sub(launch.added(mode.gpus_per_host).0)));
        let watch = Watch { interrupt: monitor.interrupt, until: on_device, ..Watch::default() };
        let header = examined.generator.header();
        let timed = match examined.exact_template() {
            Some((template, groups)) => {
                template.run(header, groups, request.profile, watch).map_err(SimulateError::Engine).map(|timed| {
                    let busiest = timed.busiest.map(|(resource, fraction)| Busiest { resource, fraction });
                    let band = mode.band(header, request.profile, timed.end, timed.bytes);
                    (launch.call_time(timed.end, mode.host_work(header)), band, busiest)
                })
            }
            None => {
                let options = SimulationOptions { folding: Folding::GroupsFirst, ..SimulationOptions::default() };
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
        let TimeInterval { low, high } = band.around(time);
        // The interval is cut at the lower bound, because no time below it is possible.
        TimedStrategy { strategy, time, low: low.max(self.bound.time).min(time), high, busiest, measured: None }
    }
}
