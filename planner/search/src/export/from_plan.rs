//! Converts a plan into a saved plan, so that display and export code accepts both.

use fabricast_topologies::Bytes;

use super::{SavedPick, SavedPlan, SavedRow};
use crate::plan::{LibraryDefault, Plan, PlanRow, TimedStrategy};
use fabricast_collectives::strategy::Strategy;

impl SavedPlan {
    /// Creates a saved plan from the rows of a plan. The result has no ranges, because exports by size do not need
    /// them. `nodes`: number of hosts.
    #[must_use]
    pub fn from_plan(plan: &Plan, profile_date: &str, nodes: u32) -> Self {
        Self {
            fabric: plan.fabric.clone(),
            profile: plan.profile.clone(),
            profile_date: profile_date.to_owned(),
            ranks: plan.ranks,
            nodes,
            library: plan.library,
            library_nodes: None,
            request: None,
            root: 0,
            in_place: false,
            trees: None,
            rows: plan.rows.iter().map(SavedRow::from).collect(),
            refined_rows: plan.refined_rows.iter().map(SavedRow::from).collect(),
            ranges: Vec::new(),
            outside_ranges: Vec::new(),
            departures: None,
        }
    }
}

impl From<&PlanRow> for SavedRow {
    fn from(row: &PlanRow) -> Self {
        let default = row.library_default.as_ref();
        Self {
            collective: row.collective,
            bytes: row.bytes,
            pick: row.pick.into(),
            library_default: default.map(|LibraryDefault { choice, timed }| SavedPick {
                name: Some(choice.name.clone()),
                max_channels: Some(choice.max_channels),
                ..(*timed).into()
            }),
            best_of_library: None,
            fastest: Some(row.fastest.into()),
            runner_up: row.runner_up.map(SavedPick::from),
            bound_us: Some(row.bound.time.us()),
            bottleneck: None,
        }
    }
}

impl SavedPick {
    /// The strategy without its predicted and measured times.
    #[must_use]
    pub fn strategy(&self) -> Strategy {
        Strategy {
            threads: self.threads,
            chunk: self.chunk.map(Bytes),
            trees: self.trees,
            ..Strategy::new(self.algorithm, self.protocol, self.channels)
        }
    }
}

impl From<TimedStrategy> for SavedPick {
    fn from(timed: TimedStrategy) -> Self {
        Self {
            algorithm: timed.strategy.algorithm,
            protocol: timed.strategy.protocol,
            channels: timed.strategy.channels,
            chunk: timed.strategy.chunk.map(|chunk| chunk.0),
            threads: timed.strategy.threads,
            trees: timed.strategy.trees,
            time_us: timed.time.us(),
            low_us: Some(timed.low.us()),
            high_us: Some(timed.high.us()),
            measured_us: timed.measured.map(|measured| measured.time.us()),
            name: None,
            max_channels: None,
        }
    }
}
