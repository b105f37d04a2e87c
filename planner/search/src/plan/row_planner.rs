//! Planning of rows: a search for each collective and size, followed by measured times and the library's default.

use fabricast_sim::monitor::Monitor;
use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use rayon::prelude::*;

use super::measured::{self, Measurements};
use super::row_search::Search;
use super::templates::Templates;
use super::{
    LibraryDefault, Plan, PlanError, PlanRequest, PlanRow, Preference, TimedStrategy, library_default, preference,
    ranges, smoothing,
};
use fabricast_collectives::bound::Bounds;
use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::Chooser;

/// Shared context of the rows of a plan.
pub(super) struct RowPlanner<'a> {
    pub templates: &'a Templates<'a>,
    pub bounds: &'a Bounds,
    pub measurements: &'a Measurements,
    pub monitor: Monitor<'a>,
}

/// Row, and the reason why the library's default is unknown; `None` if it is known.
type RowResult = (PlanRow, Option<String>);

impl<'a> RowPlanner<'a> {
    pub(super) fn request(&self) -> &'a PlanRequest<'a> {
        self.templates.request
    }

    /// Plans the rows of the request.
    pub(super) fn plan(&self) -> Result<Plan, PlanError> {
        let request = self.request();
        let results = self.plan_rows(&self.cells());
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
        // If the plan is restricted to a library, the selected strategies become the library's table and are smoothed.
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

    /// Plans the rows of the request without smoothing.
    pub(super) fn single_rows(&self) -> Vec<Result<PlanRow, PlanError>> {
        self.plan_rows(&self.cells()).into_iter().map(|row| row.map(|(row, _)| row)).collect()
    }

    /// Collectives and message sizes of the request.
    fn cells(&self) -> Vec<(Collective, Bytes)> {
        let request = self.request();
        request.collectives.iter().flat_map(|&c| sizes(request, c).iter().map(move |&bytes| (c, bytes))).collect()
    }

    /// Plans a row for each collective and size, on all threads.
    fn plan_rows(&self, cells: &[(Collective, Bytes)]) -> Vec<Result<RowResult, PlanError>> {
        self.monitor.add_total(cells.len());
        let rows = cells.par_iter().with_max_len(1);
        // Planning a row takes between microseconds and seconds, so each row is a separate task.
        rows.map(|&(collective, bytes)| {
            // Of an interrupted plan no further row begins: its candidates and bounds alone would need seconds on large fabrics.
            if self.monitor.is_interrupted() {
                return Err(PlanError::Interrupted);
            }
            let row = self.row(collective, bytes);
            self.monitor.add_done(1);
            row
        })
        .collect()
    }

    /// Plans rows at additional sizes, without counting progress. Omits those for which the restriction leaves no
    /// candidate.
    pub(super) fn additional_rows(&self, cells: &[(Collective, Bytes)]) -> Result<Vec<PlanRow>, PlanError> {
        let planner = Self { monitor: Monitor { progress: None, ..self.monitor }, ..*self };
        let rows = planner.plan_rows(cells).into_iter().filter_map(|row| match row {
            Ok((row, _)) => Some(Ok(row)),
            Err(PlanError::NothingToChoose { .. }) => None,
            Err(error) => Some(Err(error)),
        });
        rows.collect()
    }

    fn row(&self, collective: Collective, bytes: Bytes) -> Result<RowResult, PlanError> {
        let search = self.search(collective, bytes);
        let (row, simulated) = search.run(self.monitor)?;
        let (row, unknown) = library_default::add(&search, row, &simulated, self.monitor)?;
        let row = measured::apply_measurements(&search, row, self.measurements, self.monitor)?;
        Ok((preference::select_default_if_unclear(row, self.request().restriction), unknown))
    }

    /// Plans a row that selects the library's default, if that is known, without examining other candidates.
    pub(super) fn default_row(&self, collective: Collective, bytes: Bytes) -> Result<Option<PlanRow>, PlanError> {
        let search = self.search(collective, bytes);
        let choice = self.request().library.and_then(|chooser| chooser.choose(&search.call).ok());
        let Some(choice) = choice else { return Ok(None) };
        let timed = search.simulate(search.normalize_chunk(choice.strategy), self.monitor)?;
        let row = |pick| PlanRow {
            collective,
            bytes,
            size: bytes,
            pick,
            preference: Preference::Fastest,
            fastest: pick,
            runner_up: None,
            bound: search.bound.clone(),
            pairs: vec![pick],
            library_pairs: vec![pick],
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
        Ok(search.simulate(search.normalize_chunk(strategy), self.monitor)?.ok())
    }

    fn search(&self, collective: Collective, bytes: Bytes) -> Search<'_> {
        Search::new(self.templates, self.templates.capabilities.clone(), self.bounds, collective, bytes)
    }
}

/// Message sizes of the rows of a collective.
fn sizes<'a>(request: &PlanRequest<'a>, collective: Collective) -> &'a [Bytes] {
    if collective == Collective::Barrier { &[Bytes(0)] } else { request.sizes }
}
