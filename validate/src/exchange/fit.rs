//! Fit of the shared costs of exchanges, and predictions of each cluster with costs fitted to the other clusters.
//!
//! The loss is the weighted mean of |ln(predicted ÷ measured)| over the clusters. The weight of a cluster is the number
//! of its rows to the power of 0.3, so that a table with a thousand rows does not dominate. Parameters are changed one
//! at a time by factors; the factors shrink when neither direction reduces the loss.

use fabricast_experts::{CostParameter, ExchangeCosts, ExchangeExtent};
use fabricast_topologies::Picos;
use fabricast_topologies::route::Router;

use super::comparison::{Machine, RoutedRow, Routes};
use super::{ExchangeCompareError, ExchangeMeasurement};
use crate::measured::manifest::Role;

/// Exponent of the number of rows in the weight of a cluster: 0 gives clusters equal weights, 1 gives rows equal
/// weights. The value is an estimate.
const WEIGHT: f64 = 0.3;
/// First factor by which a parameter is changed. It approaches 1 when no change improves the fit.
const FIRST_STEP: f64 = 1.15;
/// Number of passes over all parameters.
const PASSES: usize = 14;
/// Loss difference up to which two sets of costs are equally good.
const TOLERANCE: f64 = 1e-6;

/// Predictions of a cluster with costs that were fitted without it.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOutCluster {
    /// Name of the cluster.
    pub cluster: String,
    /// Costs fitted to the other clusters.
    pub costs: ExchangeCosts,
    /// Rows of the cluster, by measurement, then line.
    pub rows: Vec<HeldOutRow>,
}

/// Row of a cluster that was predicted with costs fitted without the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldOutRow {
    /// Index of the measurement.
    pub measurement: usize,
    /// Line in the table, from 1.
    pub line: u32,
    /// Extent of the exchange.
    pub extent: ExchangeExtent,
    /// Measured time.
    pub measured: Picos,
    /// Predicted time.
    pub predicted: Picos,
}

impl HeldOutRow {
    /// Relative error of the prediction: predicted ÷ measured − 1.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.predicted.0 as f64 / self.measured.0.max(1) as f64 - 1.0
    }

    /// Ratio of measured to predicted time.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.measured.0 as f64 / self.predicted.0.max(1) as f64
    }
}

/// 80 % prediction interval: the 10th and 90th percentile of measured ÷ predicted time over the rows of an extent. The
/// rows of a cluster share the weight that the cluster has in the fit.
#[must_use]
pub fn prediction_interval(held_out: &[HeldOutCluster], extent: ExchangeExtent) -> [f64; 2] {
    let own = |cluster: &HeldOutCluster| -> Vec<f64> {
        cluster.rows.iter().filter(|row| row.extent == extent).map(HeldOutRow::ratio).collect()
    };
    let mut weighted: Vec<(f64, f64)> = Vec::new();
    for ratios in held_out.iter().map(own) {
        let weight = (ratios.len().max(1) as f64).powf(WEIGHT - 1.0);
        weighted.extend(ratios.into_iter().map(|ratio| (ratio, weight)));
    }
    weighted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let total: f64 = weighted.iter().map(|(_, weight)| weight).sum();
    [0.1, 0.9].map(|share| {
        let mut sum = 0.0;
        let found = weighted.iter().find(|(_, weight)| {
            sum += weight;
            sum >= share * total
        });
        found.map_or(1.0, |(ratio, _)| *ratio)
    })
}

/// Fits costs to all rows with the role `fit`.
///
/// # Errors
/// [`ExchangeCompareError`]: there are no rows, or one of them cannot be predicted.
pub fn fit(measurements: &[ExchangeMeasurement]) -> Result<ExchangeCosts, ExchangeCompareError> {
    let machines = Machine::list(measurements, None)?;
    let routers: Vec<Router<'_>> = machines.iter().map(Machine::router).collect();
    let routes = Routes::new(&machines, &routers)?;
    Ok(ExchangeFit::new(measurements, &routes.rows(measurements)?, None).run())
}

/// Predicts the rows of each cluster with costs fitted to the other clusters.
///
/// # Errors
/// [`ExchangeCompareError`]: there are no rows, or one of them cannot be predicted.
pub fn hold_out(measurements: &[ExchangeMeasurement]) -> Result<Vec<HeldOutCluster>, ExchangeCompareError> {
    let machines = Machine::list(measurements, None)?;
    let routers: Vec<Router<'_>> = machines.iter().map(Machine::router).collect();
    let routes = Routes::new(&machines, &routers)?;
    let rows = routes.rows(measurements)?;
    let mut clusters: Vec<&str> = Vec::new();
    for measurement in measurements {
        if !clusters.contains(&measurement.cluster.as_str()) {
            clusters.push(&measurement.cluster);
        }
    }
    let held_out = clusters.into_iter().map(|cluster| {
        let costs = ExchangeFit::new(measurements, &rows, Some(cluster)).run();
        let own = rows.iter().filter(|row| cluster_name(measurements, row) == cluster);
        let rows = own.map(|row| HeldOutRow {
            measurement: row.measurement,
            line: row.row.line,
            extent: row.extent(),
            measured: row.measured,
            predicted: row.predict(measurements, &costs),
        });
        HeldOutCluster { cluster: cluster.to_owned(), costs, rows: rows.collect() }
    });
    Ok(held_out.collect())
}

fn cluster_name<'m>(measurements: &'m [ExchangeMeasurement], row: &RoutedRow<'_>) -> &'m str {
    measurements.get(row.measurement).map_or("", |measurement| &measurement.cluster)
}

/// Rows by cluster that are used in a fit.
struct ExchangeFit<'a> {
    measurements: &'a [ExchangeMeasurement],
    clusters: Vec<Vec<&'a RoutedRow<'a>>>,
}

impl<'a> ExchangeFit<'a> {
    fn new(measurements: &'a [ExchangeMeasurement], rows: &'a [RoutedRow<'a>], without: Option<&str>) -> Self {
        let mut clusters: Vec<(&str, Vec<&RoutedRow<'_>>)> = Vec::new();
        for row in rows {
            let cluster = cluster_name(measurements, row);
            let is_fit = measurements.get(row.measurement).is_some_and(|measurement| measurement.role == Role::Fit);
            if !is_fit || without == Some(cluster) {
                continue;
            }
            match clusters.iter_mut().find(|(known, _)| *known == cluster) {
                Some((_, own)) => own.push(row),
                None => clusters.push((cluster, vec![row])),
            }
        }
        Self { measurements, clusters: clusters.into_iter().map(|(_, rows)| rows).collect() }
    }

    fn loss(&self, costs: &ExchangeCosts) -> f64 {
        let error = |row: &&RoutedRow<'_>| {
            let Picos(predicted) = row.predict(self.measurements, costs);
            (predicted.max(1) as f64 / row.measured.0.max(1) as f64).ln().abs()
        };
        let (mut sum, mut weights) = (0.0, 0.0);
        for rows in &self.clusters {
            let count = rows.len() as f64;
            sum += rows.iter().map(error).sum::<f64>() / count * count.powf(WEIGHT);
            weights += count.powf(WEIGHT);
        }
        if weights > 0.0 { sum / weights } else { 0.0 }
    }

    /// Fits all parameters. Costs on which no row depends are set to zero.
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
