//! Converts a plan into a saved plan, so that display and export code accepts both.

use fabricast_topologies::Bytes;

use super::{SavedPick, SavedPlan, SavedRow};
use crate::plan::{LibraryDefault, Plan, Priced, Row};
use crate::strategy::Strategy;

impl SavedPlan {
    /// Creates a saved plan from the rows of a plan, without ranges, which tables by size do not need. `nodes`: number
    /// of hosts.
    #[must_use]
    pub fn of(plan: &Plan, profile_date: &str, nodes: u32) -> Self {
        Self {
            fabric: plan.fabric.clone(),
            profile: plan.profile.clone(),
            profile_date: profile_date.to_owned(),
            ranks: plan.ranks,
            nodes,
            library: plan.library,
            library_nodes: None,
            asked: None,
            root: 0,
            in_place: false,
            rows: plan.rows.iter().map(SavedRow::from).collect(),
            between: plan.between.iter().map(SavedRow::from).collect(),
            ranges: Vec::new(),
            beyond: Vec::new(),
            departures: None,
        }
    }
}

impl From<&Row> for SavedRow {
    fn from(row: &Row) -> Self {
        let own = row.library_default.as_ref();
        Self {
            collective: row.collective,
            bytes: row.bytes,
            pick: row.pick.into(),
            library_default: own.map(|LibraryDefault { choice, priced }| SavedPick {
                name: Some(choice.name.clone()),
                most_channels: Some(choice.most_channels),
                ..(*priced).into()
            }),
            best_of_library: None,
            fastest: Some(row.fastest.into()),
            runner_up: row.runner_up.map(SavedPick::from),
            bound_us: Some(row.bound.time.us()),
            binds: None,
        }
    }
}

impl SavedPick {
    /// The strategy, without its times.
    #[must_use]
    pub fn strategy(&self) -> Strategy {
        Strategy {
            algorithm: self.algorithm,
            protocol: self.protocol,
            channels: self.channels,
            threads: self.threads,
            chunk: self.chunk.map(Bytes),
        }
    }
}

impl From<Priced> for SavedPick {
    fn from(priced: Priced) -> Self {
        Self {
            algorithm: priced.strategy.algorithm,
            protocol: priced.strategy.protocol,
            channels: priced.strategy.channels,
            chunk: priced.strategy.chunk.map(|chunk| chunk.0),
            threads: priced.strategy.threads,
            time_us: priced.time.us(),
            low_us: Some(priced.low.us()),
            high_us: Some(priced.high.us()),
            measured_us: priced.measured.map(|measured| measured.time.us()),
            name: None,
            most_channels: None,
        }
    }
}
