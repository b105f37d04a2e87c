//! Predictions of a measurement's rows.

use std::collections::HashMap;

use fabricast_planner::plan::{Effort, PlanError, PlanRequest, Priced, Watcher, plan};
use fabricast_planner::strategy::{Restriction, Strategy};
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::BufferUse;
use fabricast_topologies::Bytes;

use super::{Compared, LibraryChoice, Question};
use crate::measured::Row;
use crate::rerun::{Again, Rerun};
use crate::strategy_of::call;

/// A measurement and the profile for its prediction.
pub(super) struct Stage<'a> {
    rerun: Rerun<'a>,
    profile: &'a Profile,
}

/// Rows that share one plan.
struct Batch<'a> {
    restriction: Restriction,
    root: u32,
    buffers: BufferUse,
    rows: Vec<&'a Row>,
}

impl<'a> Stage<'a> {
    pub fn new(rerun: Rerun<'a>, profile: &'a Profile) -> Self {
        Self { rerun, profile }
    }

    /// Predicts every row, in the order of the measurement.
    pub fn rows(&self, number: usize, choice: &dyn LibraryChoice) -> Result<Vec<Compared>, PlanError> {
        let measurement = self.rerun.measurement;
        let strategies = self.rerun.strategies();
        let (mut compared, mut open) = (Vec::with_capacity(measurement.rows.len()), Vec::new());
        // Rows that repeat a call share its simulation.
        let mut known: HashMap<(Strategy, Bytes, u32, bool), Option<Priced>> = HashMap::new();
        for row in &measurement.rows {
            let mut run = |strategy| {
                let call = (strategy, row.bytes, row.root.unwrap_or(0), row.out_of_place.is_some());
                *known.entry(call).or_insert_with(|| self.known(row, strategy))
            };
            match strategies.of(row).and_then(&mut run) {
                Some(priced) => compared.push(beside(number, row, priced)),
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
            let plan = plan(&request, Watcher::default())?;
            let answers: HashMap<Bytes, _> = plan.rows.iter().map(|answer| (answer.bytes, answer)).collect();
            for row in batch.rows {
                let Some(answer) = answers.get(&row.bytes) else { continue };
                compared.push(beside(number, row, answer.pick));
            }
        }
        compared.sort_by_key(|row| row.line);
        Ok(compared)
    }

    /// Predicts a row whose strategy is known.
    fn known(&self, row: &Row, strategy: Strategy) -> Option<Priced> {
        let schedule = self.rerun.schedule(strategy, row, self.profile)?;
        let Again { time, band, busiest, .. } = self.rerun.simulate(&*schedule, self.profile)?;
        let (low, high) = band.around(time);
        Some(Priced { strategy, time, low, high, busiest, measured: None })
    }

    /// Groups rows by restriction, root and buffers.
    fn batches(&self, rows: &[&'a Row], choice: &dyn LibraryChoice) -> Vec<Batch<'a>> {
        let mut batches: Vec<Batch<'a>> = Vec::new();
        for &row in rows {
            let restriction = self.restriction(row, choice);
            let call = call(self.rerun.measurement, row);
            let (root, buffers) = (call.root.0, call.buffers);
            let alike = |b: &&mut Batch<'_>| (&b.restriction, b.root, b.buffers) == (&restriction, root, buffers);
            match batches.iter_mut().find(alike) {
                Some(batch) => batch.rows.push(row),
                None => batches.push(Batch { restriction, root, buffers, rows: vec![row] }),
            }
        }
        batches
    }

    /// Restriction given by the measurement, completed by the library's choice.
    fn restriction(&self, row: &Row, choice: &dyn LibraryChoice) -> Restriction {
        let measurement = self.rerun.measurement;
        let configuration = &measurement.configuration;
        let forced = configuration.algorithm.is_some() && configuration.protocol.is_some();
        let open = if forced { Restriction::default() } else { choice.narrow(Question { measurement, row }) };
        Restriction {
            algorithms: configuration.algorithm.map_or(open.algorithms, |algorithm| vec![algorithm]),
            protocols: configuration.protocol.map_or(open.protocols, |protocol| vec![protocol]),
            channels: configuration.channels.map_or(open.channels, |channels| vec![channels]),
            chunk: open.chunk,
            in_network: configuration.in_network,
            library: None,
        }
    }
}

/// A row with its prediction.
fn beside(measurement: usize, row: &Row, Priced { strategy, time, low, high, busiest, .. }: Priced) -> Compared {
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
