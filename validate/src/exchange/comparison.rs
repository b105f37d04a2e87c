//! Predictions of measured exchanges and their errors.

use std::sync::Arc;

use fabricast_experts::{
    Exchange, ExchangeCosts, ExchangeError, ExchangeExtent, ExchangeLoad, ExchangeRanks, TokenRouting,
};
use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{PeerAccess, RouteOptions, Router};
use fabricast_topologies::{Fabric, Picos};

use super::{ExchangeCompareError, ExchangeMeasurement, ExchangeRow, MeasuredQuantity};
use crate::compare::{Coverage, Summary};

/// Measured exchange with its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedExchange {
    /// Index of the measurement.
    pub measurement: usize,
    /// Line in the table, from 1.
    pub line: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of tokens of each rank.
    pub tokens: u64,
    /// Measured time.
    pub measured: Picos,
    /// Predicted time.
    pub predicted: Picos,
    /// Lower end of the 80 % prediction interval.
    pub low: Picos,
    /// Upper end of the 80 % prediction interval.
    pub high: Picos,
    /// Lower bound on the time of any kernel.
    pub bound: Picos,
}

impl ComparedExchange {
    /// Relative error of the prediction: predicted ÷ measured − 1.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.predicted.0 as f64 / self.measured.0.max(1) as f64 - 1.0
    }

    /// Returns true if the measured time lies inside the prediction interval.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        (self.low..=self.high).contains(&self.measured)
    }
}

/// Rows of one measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeGroup {
    /// Index of the measurement.
    pub measurement: usize,
    /// Error statistics of the measurement's rows.
    pub summary: Summary,
    /// Coverage of the measurement's rows by their prediction intervals.
    pub coverage: Coverage,
}

/// Measured exchanges with their predictions.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeComparison {
    /// All rows, by measurement, then line.
    pub rows: Vec<ComparedExchange>,
    /// Statistics of each measurement.
    pub groups: Vec<ExchangeGroup>,
    /// Error statistics of all rows.
    pub summary: Summary,
    /// Coverage of all rows by their prediction intervals.
    pub coverage: Coverage,
    /// Names of the profiles whose link rates were used, without duplicates.
    pub profiles: Vec<String>,
}

/// Fabric and profile of measured rows: the inputs of a prediction that do not differ between the rows.
pub(super) struct Machine {
    fabric: Arc<Fabric>,
    profile: Profile,
    peer_access: PeerAccess,
}

impl Machine {
    /// Creates the machines of all measurements; [`Self::find`] returns the machine of a row. `profile` is the profile
    /// of all machines; `None` selects the best match for each.
    ///
    /// # Errors
    /// [`ExchangeCompareError::Profile`] if no profile matches a fabric.
    pub fn list(
        measurements: &[ExchangeMeasurement],
        profile: Option<&Profile>,
    ) -> Result<Vec<Self>, ExchangeCompareError> {
        let mut machines: Vec<Self> = Vec::new();
        for measurement in measurements {
            for row in &measurement.rows {
                if Self::find(&machines, measurement, row).is_none() {
                    machines.push(Self {
                        fabric: Arc::clone(&row.fabric),
                        profile: profile.cloned().map_or_else(|| Profile::for_fabric(&row.fabric), Ok)?,
                        peer_access: measurement.peer_access,
                    });
                }
            }
        }
        Ok(machines)
    }

    pub fn find(machines: &[Self], measurement: &ExchangeMeasurement, row: &ExchangeRow) -> Option<usize> {
        machines.iter().position(|machine| {
            Arc::ptr_eq(&machine.fabric, &row.fabric) && machine.peer_access == measurement.peer_access
        })
    }

    pub fn router(&self) -> Router<'_> {
        Router::new(&self.fabric, RouteOptions { p2p: self.peer_access, ..RouteOptions::default() })
    }
}

/// Measured row with its tokens routed to experts, so that predictions with different costs share the routing.
pub(super) struct RoutedRow<'a> {
    pub measurement: usize,
    pub row: &'a ExchangeRow,
    router: &'a Router<'a>,
    ranks: &'a ExchangeRanks,
    machine: &'a Machine,
    routing: TokenRouting,
    load: ExchangeLoad,
    pub measured: Picos,
    bound: Picos,
}

impl RoutedRow<'_> {
    /// Time predicted with the given costs.
    pub fn predict(&self, measurements: &[ExchangeMeasurement], costs: &ExchangeCosts) -> Picos {
        let Some(measurement) = measurements.get(self.measurement) else { return Picos::ZERO };
        self.exchange(measurement).time(&self.load, costs, measurement.timing).total()
    }

    /// Extent of the exchange.
    pub fn extent(&self) -> ExchangeExtent {
        self.ranks.extent()
    }

    fn exchange(&self, measurement: &ExchangeMeasurement) -> Exchange<'_> {
        Exchange {
            router: self.router,
            ranks: self.ranks,
            links: &self.machine.profile.links,
            routing: &self.routing,
            kernel: measurement.kernel,
            sms: self.row.sms,
        }
    }
}

/// Routers and ranks of machines, in the order of the machines.
pub(super) struct Routes<'a> {
    machines: &'a [Machine],
    routers: &'a [Router<'a>],
    ranks: Vec<ExchangeRanks>,
}

impl<'a> Routes<'a> {
    pub fn new(machines: &'a [Machine], routers: &'a [Router<'a>]) -> Result<Self, ExchangeCompareError> {
        let ranks = machines.iter().zip(routers).map(|(machine, router)| {
            ExchangeRanks::new(router, machine.fabric.gpus())
                .map_err(|error| ExchangeCompareError::Machine { fabric: machine.fabric.name().to_owned(), error })
        });
        Ok(Self { machines, routers, ranks: ranks.collect::<Result<_, _>>()? })
    }

    /// Routes the tokens of all rows to their experts.
    ///
    /// # Errors
    /// [`ExchangeCompareError::Row`] if the tokens of a row cannot be routed.
    pub fn rows<'r>(
        &'r self,
        measurements: &'r [ExchangeMeasurement],
    ) -> Result<Vec<RoutedRow<'r>>, ExchangeCompareError> {
        let mut routed = Vec::new();
        for (number, measurement) in measurements.iter().enumerate() {
            for row in &measurement.rows {
                let located =
                    |error| ExchangeCompareError::Row { file: measurement.name.clone(), line: row.line, error };
                routed.extend(self.row(number, measurement, row).map_err(located)?);
            }
        }
        if routed.is_empty() { Err(ExchangeCompareError::NoRows) } else { Ok(routed) }
    }

    fn row<'r>(
        &'r self,
        number: usize,
        measurement: &ExchangeMeasurement,
        row: &'r ExchangeRow,
    ) -> Result<Option<RoutedRow<'r>>, ExchangeError> {
        let index = Machine::find(self.machines, measurement, row).unwrap_or_default();
        let (Some(machine), Some(router), Some(ranks)) =
            (self.machines.get(index), self.routers.get(index), self.ranks.get(index))
        else {
            return Ok(None);
        };
        let routing = TokenRouting::new(row.tokens, row.hidden, row.experts, row.top_k, measurement.pattern)?;
        let exchange = Exchange {
            router,
            ranks,
            links: &machine.profile.links,
            routing: &routing,
            kernel: measurement.kernel,
            sms: row.sms,
        };
        let load = exchange.load(measurement.operation, measurement.token_type)?;
        let bound = exchange.bound(measurement.operation, measurement.token_type)?;
        let measured = match row.measured {
            MeasuredQuantity::Time(time) => time,
            MeasuredQuantity::Bandwidth(gb_per_s) => {
                // The bandwidth of an operation that takes one second equals its number of bytes.
                let second = Picos::from_us(1e6);
                let bytes = match exchange.network_bandwidth(measurement.token_type, second)? {
                    Some(bytes) => bytes,
                    None => exchange.nvlink_bandwidth(measurement.token_type, second)?,
                };
                Picos::from_us(bytes.gb_per_s() / gb_per_s * 1e6)
            }
        };
        Ok(Some(RoutedRow { measurement: number, row, router, ranks, machine, routing, load, measured, bound }))
    }
}

/// Predicts all rows with the shipped costs. `profile` provides the link rates; `None` selects the best match for each
/// machine.
///
/// # Errors
/// [`ExchangeCompareError`]: there are no rows, or one of them cannot be predicted.
pub fn compare(
    measurements: &[ExchangeMeasurement],
    profile: Option<&Profile>,
) -> Result<ExchangeComparison, ExchangeCompareError> {
    let machines = Machine::list(measurements, profile)?;
    let routers: Vec<Router<'_>> = machines.iter().map(Machine::router).collect();
    let routes = Routes::new(&machines, &routers)?;
    let rows: Vec<ComparedExchange> = routes
        .rows(measurements)?
        .iter()
        .map(|routed| {
            let predicted = routed.predict(measurements, &ExchangeCosts::FITTED);
            let [low, high] = routed.extent().prediction_interval(predicted);
            ComparedExchange {
                measurement: routed.measurement,
                line: routed.row.line,
                ranks: routed.ranks.count(),
                tokens: routed.row.tokens,
                measured: routed.measured,
                predicted,
                low,
                high,
                bound: routed.bound,
            }
        })
        .collect();
    let groups = (0..measurements.len()).map(|measurement| {
        let own = || rows.iter().filter(move |row| row.measurement == measurement);
        ExchangeGroup {
            measurement,
            summary: Summary::from_errors(own().map(ComparedExchange::error)),
            coverage: Coverage::count(own().map(ComparedExchange::is_inside)),
        }
    });
    let mut profiles: Vec<String> = machines.iter().map(|machine| machine.profile.name.clone()).collect();
    profiles.sort_unstable();
    profiles.dedup();
    Ok(ExchangeComparison {
        groups: groups.collect(),
        summary: Summary::from_errors(rows.iter().map(ComparedExchange::error)),
        coverage: Coverage::count(rows.iter().map(ComparedExchange::is_inside)),
        profiles,
        rows,
    })
}
