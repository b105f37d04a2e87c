//! Predictions of a measurement's rows.

use std::collections::HashMap;

use fabricast_collectives::strategy::Strategy;
use fabricast_search::candidates::Restriction;
use fabricast_search::plan::{Effort, PlanError, PlanRequest, TimedStrategy, plan};
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{Profile, TimeInterval};
use fabricast_sim::schedule::BufferUse;
use fabricast_topologies::Bytes;

use super::{ChoiceRequest, Compared, LibraryChoice};
use crate::measured::Row;
use crate::measured_strategy::call;
use crate::measurement_simulation::{MeasurementSimulation, SimulatedRow};

/// A measurement and the profile with which it is predicted.
pub(super) struct Predictor<'a> {
    rerun: MeasurementSimulation<'a>,
    profile: &'a Profile,
}

/// Rows that share one plan of candidates.
struct Batch<'a> {
    restriction: Restriction,
    root: u32,
    buffers: BufferUse,
    rows: Vec<&'a Row>,
}

impl<'a> Predictor<'a> {
    pub fn new(rerun: MeasurementSimulation<'a>, profile: &'a Profile) -> Self {
        Self { rerun, profile }
    }

    /// Predicts every row of the measurement, in the order of log lines. `number`: index of the measurement.
    ///
    /// # Errors
    /// [`PlanError`] if a row cannot be predicted.
    pub fn rows(&self, number: usize, choice: &dyn LibraryChoice) -> Result<Vec<Compared>, PlanError> {
        let measurement = self.rerun.measurement;
        let strategies = self.rerun.strategies();
        let (mut compared, mut open) = (Vec::with_capacity(measurement.rows.len()), Vec::new());
        // Rows with equal calls share one simulation.
        let mut simulated: HashMap<(Strategy, Bytes, u32, bool), Option<TimedStrategy>> = HashMap::new();
        for row in &measurement.rows {
            let mut run = |strategy| {
                let call = (strategy, row.bytes, row.root.unwrap_or(0), row.out_of_place.is_some());
                *simulated.entry(call).or_insert_with(|| self.predict_with_strategy(row, strategy))
            };
            match strategies.strategy(row).and_then(&mut run) {
                Some(priced) => compared.push(compared_row(number, row, priced)),
                None => open.push(row),
            }
        }
        for batch in self.batches(&open, choice) {
            let mut sizes: Vec<Bytes> = batch.rows.iter().map(|row| row.bytes).collect();
            sizes.sort_unstable();
            sizes.dedup();
            let request = PlanRequest {
                fabric: &measurement.fabric,
                router: &self.rerun.router,
                placement: measurement.fabric.gpus(),
                profile: self.profile,
                ranks_per_node: measurement.configuration.gpus,
                mode: self.rerun.mode(),
                buffers: batch.buffers,
                root: batch.root,
                collectives: &[measurement.configuration.collective],
                sizes: &sizes,
                restriction: &batch.restriction,
                effort: Effort::Contenders,
                library: None,
                matrix: None,
            };
            let plan = plan(&request, Monitor::default())?;
            let answers: HashMap<Bytes, _> = plan.rows.iter().map(|answer| (answer.bytes, answer)).collect();
            for row in batch.rows {
                let Some(answer) = answers.get(&row.bytes) else { continue };
                compared.push(compared_row(number, row, answer.pick));
            }
        }
        compared.sort_by_key(|row| row.line);
        Ok(compared)
    }

    /// Predicts a row whose strategy is known; `None` if the strategy has no schedule or cannot be simulated.
    fn predict_with_strategy(&self, row: &Row, strategy: Strategy) -> Option<TimedStrategy> {
        let schedule = self.rerun.schedule(strategy, row, self.profile)?;
        let SimulatedRow { time, band, busiest, .. } = self.rerun.simulate(&*schedule, self.profile)?;
        let TimeInterval { low, high } = band.around(time);
        Some(TimedStrategy { strategy, time, low, high, busiest, measured: None })
    }

    /// Groups rows by restriction, root and buffers.
    fn batches(&self, rows: &[&'a Row], choice: &dyn LibraryChoice) -> Vec<Batch<'a>> {
        let mut batches: Vec<Batch<'a>> = Vec::new();
        for &row in rows {
            let restriction = self.restriction(row, choice);
            let call = call(self.rerun.measurement, row);
            let (root, buffers) = (call.root.0, call.buffers);
            let same_batch = |b: &&mut Batch<'_>| (&b.restriction, b.root, b.buffers) == (&restriction, root, buffers);
            match batches.iter_mut().find(same_batch) {
                Some(batch) => batch.rows.push(row),
                None => batches.push(Batch { restriction, root, buffers, rows: vec![row] }),
            }
        }
        batches
    }

    /// Restriction of a row's candidates: the settings that the measurement states, completed by the library's choice.
    fn restriction(&self, row: &Row, choice: &dyn LibraryChoice) -> Restriction {
        let measurement = self.rerun.measurement;
        let configuration = &measurement.configuration;
        let forced = configuration.algorithm.is_some() && configuration.protocol.is_some();
        let open = if forced { Restriction::default() } else { choice.restriction(ChoiceRequest { measurement, row }) };
        Restriction {
            algorithms: configuration.algorithm.map_or(open.algorithms, |algorithm| vec![algorithm]),
            protocols: configuration.protocol.map_or(open.protocols, |protocol| vec![protocol]),
            channels: configuration.channels.map_or(open.channels, |channels| vec![channels]),
            chunk: open.chunk,
            trees: open.trees,
            in_network: configuration.in_network,
            library: None,
        }
    }
}

/// Combines a row with its prediction. `measurement`: index of the row's measurement.
fn compared_row(
    measurement: usize,
    row: &Row,
    TimedStrategy { strategy, time, low, high, busiest, .. }: TimedStrategy,
) -> Compared {
    let (line, bytes, measured) = (row.line, row.bytes, row.measured());
    Compared {
        measurement,
        line,
        bytes,
        strategy,
        measured,
        predicted: time,
        low,
        high,
        outlier: None,
        slow: None,
        busiest,
    }
}
