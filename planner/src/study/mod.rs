//! Studies: which of several machines to buy or rent for these jobs.
//!
//! ```text
//! TOML ─read─► Study ─► Cases (candidate × job × setting, by key) ─run─► Run ─► prices ─► rank ─► Answer (results.json)
//!                                              kept runs ─journal──┘
//! ```
//!
//! Every candidate runs every job, or those that name it, as given and under each setting of `[sensitivity]`. A run knows no prices, and two runs
//! that depend on the same have the same key and are one. Results stand in the order of the file and do not depend on
//! threads, nor on which runs were made now and which were kept.

pub mod answer;
pub mod beside;
pub mod cases;
mod chance;
mod cost;
mod granted;
pub mod journal;
pub mod key;
pub mod load;
mod measured;
mod paid;
mod pairs;
mod prices;
mod rank;
mod read;
mod row;
mod run;
pub mod setting;
#[cfg(test)]
mod tests;
mod trust;

pub use cost::{Terms, price};
pub use measured::{Figure, MeasuredStep};
pub use paid::{Counted, Extent, Payment, Price};
pub use pairs::Pairs;
pub use prices::{Band, Listed, PriceUnit, read_list, shipped};
pub use rank::{Ranked, nearest, rank};
pub use read::{Lists, Traces, is_study, read_only_job, read_study, read_study_with};
pub use row::served;
pub use run::{Outcome, Run, StudyError, Watch, check, check_outcomes, run};

use std::collections::BTreeMap;

use fabricast_topologies::{Fabric, FabricRequest, Picos, Place};

use crate::job::Job;
use crate::step::Efficiency;
use setting::Setting;

/// A study that ships as an example, and as what `study --template` writes.
pub const TEMPLATE: &str = include_str!("../../data/study.toml");

/// The currency of studies: keys name it, and lists must have it.
pub const CURRENCY: &str = "USD";

/// What to compare, for what.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// Machines.
    pub candidates: Vec<Candidate>,
    /// What they are for.
    pub jobs: Vec<Job>,
    /// Of each job what it says, by key, as TOML; without its name, its weight and where it runs.
    pub asked: Vec<BTreeMap<String, String>>,
    /// Which of them run on which of the machines.
    pub pairs: Pairs,
    /// What was measured of some of them.
    pub measured: Vec<MeasuredStep>,
    /// What they must keep within.
    pub constraints: Constraints,
    /// What costs are worked out with.
    pub assumptions: Assumptions,
    /// What is said of how long kernels take.
    pub efficiency: GivenEfficiency,
    /// What is changed, to see whether the answer does.
    pub sensitivities: Vec<Setting>,
}

impl Study {
    /// The curve of a candidate's kernels, on its fabric or on that as it is changed.
    #[must_use]
    pub fn curve(&self, candidate: usize, fabric: &Fabric) -> Efficiency {
        self.candidates.get(candidate).map_or(self.efficiency, |one| one.efficiency).on(fabric)
    }

    /// The jobs that run on a candidate, by its place; each with its own.
    pub fn jobs_on(&self, candidate: usize) -> impl Iterator<Item = (usize, &Job)> {
        self.jobs.iter().enumerate().filter(move |(job, _)| self.pairs.has(candidate, *job))
    }
}

/// What a study says of how long kernels take; the rest is that of each candidate's GPUs ([`Efficiency::of`]).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GivenEfficiency {
    /// What large matrix products reach of the peak, over 0 to 1.
    pub matrix: Option<f64>,
    /// What attention reaches of the peak of 16 bits where rows meet many keys, over 0 to 1.
    pub attention: Option<f64>,
    /// What products and attention that wait for their bytes reach of the memory's bandwidth, over 0 to 1.
    pub memory: Option<f64>,
    /// What kernels between products reach of it, over 0 to 1.
    pub stream: Option<f64>,
    /// What each kernel takes besides.
    pub start: Option<Picos>,
}

impl GivenEfficiency {
    /// With another's figures where it has none.
    #[must_use]
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            matrix: self.matrix.or(other.matrix),
            attention: self.attention.or(other.attention),
            memory: self.memory.or(other.memory),
            stream: self.stream.or(other.stream),
            start: self.start.or(other.start),
        }
    }

    /// The curve of a fabric's GPUs.
    #[must_use]
    pub fn on(&self, fabric: &Fabric) -> Efficiency {
        let own = Efficiency::of(fabric);
        Efficiency {
            matrix: self.matrix.unwrap_or(own.matrix),
            attention: self.attention.unwrap_or(own.attention),
            memory: self.memory.unwrap_or(own.memory),
            stream: self.stream.unwrap_or(own.stream),
            start: self.start.unwrap_or(own.start),
            spread: own.spread,
        }
    }
}

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Its fabric.
    pub fabric: FabricRequest,
    /// The network between its hosts as the command line has it, where it is given.
    pub network: Option<String>,
    /// The curve of its kernels, as far as it or the study gives one.
    pub efficiency: GivenEfficiency,
    /// What is paid for it.
    pub price: Option<Price>,
    /// The entry of a price list that the price comes from.
    pub listed: Option<Listed>,
    /// Where that entry is named.
    pub price_place: Place,
    /// Power of all of it, in kW.
    pub power_kw: Option<Band>,
    /// Racks that it fills.
    pub racks: Option<f64>,
    /// Where it stands.
    pub place: Place,
    /// Where its fabric stands.
    pub fabric_place: Place,
    /// Where it stands how many GPUs of a host are taken; its fabric's place where that is not said.
    pub gpus_place: Place,
}

/// What a candidate must keep within; absent: anything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints {
    /// The most that may be paid at once.
    pub budget: Option<f64>,
    /// The most that may be paid by the hour, energy included.
    pub hourly: Option<f64>,
    /// The most power, kW.
    pub power_kw: Option<f64>,
    /// The most racks.
    pub racks: Option<f64>,
    /// Where they stand.
    pub place: Place,
}

/// What costs are worked out with: nobody's figures but the user's to replace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumptions {
    /// Years over which a purchase is written off.
    pub years: f64,
    /// The part of the time that it works, over 0 to 1.
    pub utilization: f64,
    /// A kWh.
    pub per_kwh: f64,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self { years: 4.0, utilization: 0.8, per_kwh: 0.1 }
    }
}

impl Assumptions {
    /// Hours of work over which a purchase is written off.
    #[must_use]
    pub fn hours(&self) -> f64 {
        self.years * 365.25 * 24.0 * self.utilization
    }
}
