//! Fit of the shared costs of exchanges, and predictions of each table by costs fitted without it.
//!
//! The loss is the mean of |ln(predicted ÷ measured)| of each table, weighted by the number of its rows to the power of
//! 0.3, so that a table of a thousand rows does not decide alone. Parameters are changed one at a time by factors that
//! shrink when neither direction improves the loss.

use fabricast_experts::{CostParameter, ExchangeCosts};
use fabricast_topologies::Picos;
use fabricast_topologies::route::Router;

use super::comparison::{Machine, RoutedRow, Routes};
use super::{ExchangeCompareError, ExchangeMeasurement};
use crate::compare::Summary;
use crate::measured::manifest::Role;

/// Exponent of the number of rows in the weight of a table.
const WEIGHT: f64 = 0.3;
/// First factor by which parameters change.
const FIRST_STEP: f64 = 1.15;
/// Passes over all parameters.
const PASSES: usize = 14;
/// Loss differences below which two costs are equally good.
const TOLERANCE: f64 = 1e-6;

/// Table predicted by costs that were fitted without it.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOut {
    /// Name of the table.
    pub table: String,
    /// Costs fitted to the other tables.
    pub costs: ExchangeCosts,
    /// Measured ÷ predicted time of each row.
    pub ratios: Vec<f64>,
    /// Error statistics.
    pub summary: Summary,
}

/// Fits costs to all rows with the role `fit`.
///
/// # Errors
/// [`ExchangeCompareError`]: there are no rows, or one of them cannot be predicted.
pub fn fit(measurements: &[ExchangeMeasurement]) -> Result<ExchangeCosts, ExchangeCompareError> {
    let machines = Machine::list(measurements)?;
    let routers: Vec<Router<'_>> = machines.iter().map(Machine::router).collect();
    let routes = Routes::new(&machines, &routers)?;
    Ok(Fit::new(measurements, &routes.rows(measurements)?, None).run())
}

/// Predicts the rows of each table by costs fitted to the other tables.
///
/// # Errors
/// [`ExchangeCompareError`]: there are no rows, or one of them cannot be predicted.
pub fn hold_out(measurements: &[ExchangeMeasurement]) -> Result<Vec<HeldOut>, ExchangeCompareError> {
    let machines = Machine::list(measurements)?;
    let routers: Vec<Router<'_>> = machines.iter().map(Machine::router).collect();
    let routes = Routes::new(&machines, &routers)?;
    let rows = routes.rows(measurements)?;
    let mut tables: Vec<&str> = Vec::new();
    for measurement in measurements {
        if !tables.contains(&measurement.name.as_str()) {
            tables.push(&measurement.name);
        }
    }
    let held_out = tables.into_iter().map(|table| {
        let costs = Fit::new(measurements, &rows, Some(table)).run();
        let own = rows.iter().filter(|row| name(measurements, row) == table);
        let ratios: Vec<f64> =
            own.map(|row| row.measured.0 as f64 / row.predict(measurements, &costs).0.max(1) as f64).collect();
        let summary = Summary::from_errors(ratios.iter().map(|ratio| 1.0 / ratio - 1.0));
        HeldOut { table: table.to_owned(), costs, ratios, summary }
    });
    Ok(held_out.collect())
}

fn name<'m>(measurements: &'m [ExchangeMeasurement], row: &RoutedRow<'_>) -> &'m str {
    measurements.get(row.measurement).map_or("", |measurement| &measurement.name)
}

/// Rows of each table that a fit uses.
struct Fit<'a> {
    measurements: &'a [ExchangeMeasurement],
    tables: Vec<Vec<&'a RoutedRow<'a>>>,
}

impl<'a> Fit<'a> {
    fn new(measurements: &'a [ExchangeMeasurement], rows: &'a [RoutedRow<'a>], without: Option<&str>) -> Self {
        let mut tables: Vec<(&str, Vec<&RoutedRow<'_>>)> = Vec::new();
        for row in rows {
            let table = name(measurements, row);
            let is_fit = measurements.get(row.measurement).is_some_and(|measurement| measurement.role == Role::Fit);
            if !is_fit || without == Some(table) {
                continue;
            }
            match tables.iter_mut().find(|(known, _)| *known == table) {
                Some((_, own)) => own.push(row),
                None => tables.push((table, vec![row])),
            }
        }
        Self { measurements, tables: tables.into_iter().map(|(_, rows)| rows).collect() }
    }

    fn loss(&self, costs: &ExchangeCosts) -> f64 {
        let error = |row: &&RoutedRow<'_>| {
            let Picos(predicted) = row.predict(self.measurements, costs);
            (predicted.max(1) as f64 / row.measured.0.max(1) as f64).ln().abs()
        };
        let (mut sum, mut weights) = (0.0, 0.0);
        for rows in &self.tables {
            let count = rows.len() as f64;
            sum += rows.iter().map(error).sum::<f64>() / count * count.powf(WEIGHT);
            weights += count.powf(WEIGHT);
        }
        if weights > 0.0 { sum / weights } else { 0.0 }
    }

    /// Fits all parameters. A time that no row depends on has no cost.
    fn run(&self) -> ExchangeCosts {
        let mut costs = ExchangeCosts::PRIOR;
        let mut loss = self.loss(&costs);
        let is_determined =
            |parameter: CostParameter| (self.loss(&costs.scaled(parameter, 0.5)) - loss).abs() > TOLERANCE;
        let (determined, free): (Vec<_>, Vec<_>) = CostParameter::ALL.into_iter().partition(|&one| is_determined(one));
        for parameter in free.into_iter().filter(|parameter| parameter.is_time()) {
            costs = costs.scaled(parameter, 0.0);
        }
        let mut steps = vec![FIRST_STEP; determined.len()];
        for _ in 0..PASSES {
            for (&parameter, step) in determined.iter().zip(&mut steps) {
                let candidates = [*step, 1.0 / *step].map(|factor| costs.scaled(parameter, factor));
                let better = candidates.into_iter().map(|costs| (self.loss(&costs), costs));
                match better.into_iter().find(|(other, _)| *other < loss - TOLERANCE) {
                    Some((other, changed)) => (loss, costs) = (other, changed),
                    None => *step = step.sqrt(),
                }
            }
        }
        costs
    }
}
