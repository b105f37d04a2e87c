//! The prediction of a measurement's rows.

use fabricast_planner::abilities::Abilities;
use fabricast_planner::algorithm::{self, Shape};
use fabricast_planner::plan::{Busiest, Effort, PlanError, PlanRequest, Watcher, plan};
use fabricast_planner::strategy::{Restriction, Strategy};
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Setting;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::BufferUse;
use fabricast_sim::timeline::Utilization;
use fabricast_sim::{LaunchMode, Surroundings, Timeline, simulate};
use fabricast_topologies::Bytes;
use fabricast_topologies::route::{RouteOptions, Router};

use super::{Compared, LibraryChoice, Question};
use crate::measured::Row;
use crate::measured::manifest::Measurement;
use crate::strategy_of::{Strategies, call};

/// A measurement with all that predicting it needs.
pub(super) struct Stage<'a> {
    measurement: &'a Measurement,
    profile: &'a Profile,
    router: Router<'a>,
}

/// Rows that one plan answers.
struct Batch<'a> {
    restriction: Restriction,
    root: u32,
    buffers: BufferUse,
    rows: Vec<&'a Row>,
}

impl<'a> Stage<'a> {
    pub fn new(measurement: &'a Measurement, profile: &'a Profile, routes: RouteOptions) -> Self {
        Self { measurement, profile, router: Router::new(&measurement.fabric, routes) }
    }

    /// The prediction of every row, in their order.
    pub fn rows(&self, number: usize, choice: &dyn LibraryChoice) -> Result<Vec<Compared>, PlanError> {
        let strategies = Strategies::new(self.measurement, &self.router);
        let known =
            self.measurement.rows.iter().map(|row| strategies.of(row).and_then(|known| self.known(number, row, known)));
        let known: Vec<Option<Compared>> = known.collect();
        let open = self.measurement.rows.iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(row, _)| row);
        let open: Vec<&Row> = open.collect();
        let mut compared: Vec<Compared> = known.into_iter().flatten().collect();
        for batch in self.batches(&open, choice) {
            let mut sizes: Vec<Bytes> = batch.rows.iter().map(|row| row.bytes).collect();
            sizes.sort_unstable();
            sizes.dedup();
            let request = PlanRequest {
                fabric: &self.measurement.fabric,
                router: &self.router,
                placement: self.measurement.fabric.gpus(),
                profile: self.profile,
                ranks_per_node: self.measurement.configuration.gpus,
                mode: self.mode(),
                buffers: batch.buffers,
                root: batch.root,
                collectives: &[self.measurement.configuration.collective],
                sizes: &sizes,
                restriction: &batch.restriction,
                effort: Effort::Contenders,
                library: None,
                matrix: None,
            };
            let plan = plan(&request, Watcher::default())?;
            for row in batch.rows {
                let Some(answer) = plan.rows.iter().find(|answer| answer.bytes == row.bytes) else { continue };
                let pick = answer.pick;
                compared.push(Compared {
                    measurement: number,
                    line: row.line,
                    bytes: row.bytes,
                    strategy: pick.strategy,
                    measured: row.measured(),
                    predicted: pick.time,
                    low: pick.low,
                    high: pick.high,
                    busiest: pick.busiest,
                });
            }
        }
        compared.sort_by_key(|row| row.line);
        Ok(compared)
    }

    fn mode(&self) -> LaunchMode {
        let configuration = &self.measurement.configuration;
        LaunchMode {
            launch: configuration.launch,
            processes: configuration.processes,
            gpus_per_host: configuration.gpus,
        }
    }

    /// A row whose strategy is known.
    fn known(&self, number: usize, row: &Row, strategy: Strategy) -> Option<Compared> {
        let timeline = self.run(strategy, row)?;
        let (low, high) = self.profile.band.around(timeline.time);
        Some(Compared {
            measurement: number,
            line: row.line,
            bytes: row.bytes,
            strategy,
            measured: row.measured(),
            predicted: timeline.time,
            low,
            high,
            busiest: Utilization::busiest(&timeline.utilization)
                .map(|busiest| Busiest { resource: busiest.resource, fraction: busiest.fraction }),
        })
    }

    /// Rows with the same restriction, root and buffers.
    fn batches(&self, rows: &[&'a Row], choice: &dyn LibraryChoice) -> Vec<Batch<'a>> {
        let mut batches: Vec<Batch<'a>> = Vec::new();
        for &row in rows {
            let restriction = self.restriction(row, choice);
            let (root, buffers) = (row.root.unwrap_or(0), buffers(row));
            let alike = |b: &&mut Batch<'_>| (&b.restriction, b.root, b.buffers) == (&restriction, root, buffers);
            match batches.iter_mut().find(alike) {
                Some(batch) => batch.rows.push(row),
                None => batches.push(Batch { restriction, root, buffers, rows: vec![row] }),
            }
        }
        batches
    }

    /// What the measurement says, and what its library chooses from where it says nothing.
    fn restriction(&self, row: &Row, choice: &dyn LibraryChoice) -> Restriction {
        let configuration = &self.measurement.configuration;
        let forced = configuration.algorithm.is_some() && configuration.protocol.is_some();
        let open = if forced {
            Restriction::default()
        } else {
            choice.narrow(Question { measurement: self.measurement, row })
        };
        Restriction {
            algorithms: configuration.algorithm.map_or(open.algorithms, |algorithm| vec![algorithm]),
            protocols: configuration.protocol.map_or(open.protocols, |protocol| vec![protocol]),
            channels: configuration.channels.map_or(open.channels, |channels| vec![channels]),
            chunk: open.chunk,
            in_network: configuration.in_network,
            library: None,
        }
    }

    /// The run of a strategy that is already known.
    pub fn run(&self, strategy: Strategy, row: &Row) -> Option<Timeline> {
        let configuration = &self.measurement.configuration;
        let fabric = &self.measurement.fabric;
        let placement = fabric.gpus();
        let abilities = Abilities::of(fabric, &self.router, placement, configuration.gpus, configuration.in_network);
        let call = call(self.measurement, row);
        let shape = Shape {
            grid: fabric.host_grid().to_vec(),
            ..strategy.shape(call, self.profile, configuration.gpus, &abilities)
        };
        let generator = algorithm::generator(strategy.algorithm, &shape).ok()?;
        let setting = Setting { fabric, router: &self.router, placement, profile: self.profile, delays: &[] };
        simulate(generator.as_ref(), setting, self.mode(), Surroundings::default(), Watch::default()).ok()
    }
}

fn buffers(row: &Row) -> BufferUse {
    if row.out_of_place.is_some() { BufferUse::OutOfPlace } else { BufferUse::InPlace }
}
