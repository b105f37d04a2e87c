//! Entry points: plans of a request, lower bounds of single strategies, and simulations of single strategies.

use fabricast_sim::monitor::Monitor;
use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};
use rayon::prelude::*;

use super::measured::Measurements;
use super::row_planner::RowPlanner;
use super::row_search::Search;
use super::templates::Templates;
use super::{Plan, PlanError, PlanRequest, PlanRow, TimedStrategy, outside, ranges, refinement};
use fabricast_collectives::algorithm::Unsupported;
use fabricast_collectives::bound::Bounds;
use fabricast_collectives::strategy::Strategy;

/// Finds the best strategy for every collective and size. Of several collectives, those for which the restriction
/// leaves no candidate are omitted. Rows are independent and run on all threads of the current rayon pool; the result
/// does not depend on their number.
///
/// # Errors
/// [`PlanError`]: no candidate, or a simulation that cannot run.
pub fn plan(request: &PlanRequest<'_>, monitor: Monitor<'_>) -> Result<Plan, PlanError> {
    plan_with_bounds(request, &request.bounds(), &Measurements::NONE, monitor)
}

/// Variant of [`plan`] for tables. Uses measured times if they exist, and adds rows between requested sizes at which
/// the selected strategy differs, and the library's defaults outside the requested sizes.
///
/// # Errors
/// [`PlanError`], as in [`plan`].
pub fn plan_table(
    request: &PlanRequest<'_>,
    measurements: &Measurements,
    monitor: Monitor<'_>,
) -> Result<Plan, PlanError> {
    let bounds = request.bounds();
    let templates = Templates::new(request, request.fabric_capabilities());
    let planner = RowPlanner { templates: &templates, bounds: &bounds, measurements, monitor };
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
    monitor: Monitor<'_>,
) -> Result<Plan, PlanError> {
    let templates = Templates::new(request, request.fabric_capabilities());
    RowPlanner { templates: &templates, bounds, measurements, monitor }.plan()
}

/// Plans each call of the request without regard to its neighbours: no row is smoothed. The calls are those of
/// [`PlanRequest::collectives`], each with all sizes.
///
/// # Errors
/// [`PlanError`] of each call, as in [`plan`].
pub fn plan_single_calls(
    request: &PlanRequest<'_>,
    bounds: &Bounds,
    monitor: Monitor<'_>,
) -> Vec<Result<PlanRow, PlanError>> {
    let templates = Templates::new(request, request.fabric_capabilities());
    RowPlanner { templates: &templates, bounds, measurements: &Measurements::NONE, monitor }.single_rows()
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
    with_search(request, collective, bytes, |search| {
        Ok(search.examine(strategy)?.ok().map(|examined| examined.lower_bound))
    })
}

/// Returns the lower bound from the ranks on a strategy's longest chain of dependencies, which the search computes for
/// large groups in addition to [`lower_bound`]; `None` if there is no such schedule.
///
/// # Errors
/// [`PlanError`]: a schedule that cannot run on the fabric.
pub fn chain_lower_bound(
    request: &PlanRequest<'_>,
    collective: Collective,
    bytes: Bytes,
    strategy: Strategy,
) -> Result<Option<Picos>, PlanError> {
    with_search(request, collective, bytes, |search| search.chain_lower_bound(strategy))
}

/// Calls `examine` with the search of a call of the request, with templates of its own.
fn with_search<T>(
    request: &PlanRequest<'_>,
    collective: Collective,
    bytes: Bytes,
    examine: impl FnOnce(&Search<'_>) -> T,
) -> T {
    let (bounds, abilities) = (request.bounds(), request.fabric_capabilities());
    let templates = Templates::new(request, abilities.clone());
    examine(&Search::new(&templates, abilities, &bounds, collective, bytes))
}

/// A strategy to simulate, and the call that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrategyCall {
    /// Collective of the call.
    pub collective: Collective,
    /// Message size of the call.
    pub bytes: Bytes,
    /// Strategy of the call.
    pub strategy: Strategy,
}

/// Simulates the given strategies for their calls, on all threads. The result of a strategy without a schedule is the
/// reason why there is none.
///
/// # Errors
/// [`PlanError`]: a simulation that cannot run.
pub fn simulate_strategies(
    request: &PlanRequest<'_>,
    calls: &[StrategyCall],
    monitor: Monitor<'_>,
) -> Result<Vec<Result<TimedStrategy, Unsupported>>, PlanError> {
    let (bounds, abilities) = (request.bounds(), request.fabric_capabilities());
    let templates = Templates::new(request, abilities.clone());
    monitor.add_total(calls.len());
    let results = calls.par_iter().with_max_len(1).map(|&StrategyCall { collective, bytes, strategy }| {
        let search = Search::new(&templates, abilities.clone(), &bounds, collective, bytes);
        let simulated = search.simulate(search.normalize_chunk(strategy), monitor);
        monitor.add_done(1);
        simulated
    });
    results.collect()
}
